//go:build skeinplanted

package partition

import (
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/planted"
)

type plantedState struct{ term uint64 } // of the entry before

// plantOwner forgets all identities when an entry is the first of an owner.
func (p *Partition) plantOwner(term uint64, b log.Batch) {
	if was := p.planted.term; planted.Is(planted.ForgetDedupe) && was != 0 && was != term {
		w := &p.st.window
		w.release()
		b.DeleteRange(w.keys.minute(w.gen, 0), w.keys.minute(w.gen, p.st.stamp/minuteMS+1))
	}
	p.planted.term = term
}

// plantRetry stores a batch again that the session has an outcome of.
func (p *Partition) plantRetry(e log.Entry, en *entry, first *BatchResult, b log.Batch) error {
	if !planted.Is(planted.StoreRetryTwice) || !first.Retry {
		return nil
	}
	st, m := &p.st, &en.meta
	m.Stamp, m.Base, m.Skip, m.Index, m.Term = st.stamp, st.next, nil, e.Index, e.Term
	if err := p.store(m, en.payload); err != nil {
		return err
	}
	b.Set(p.keys.batch(e.Index), appendDecision(nil, m))
	st.sizes.add(m.Base, batch.MetaLen(m)+len(en.payload), st.spec.RetentionBytes)
	st.next = m.Next()
	return nil
}
