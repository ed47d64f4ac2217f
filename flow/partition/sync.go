package partition

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/skeinmesh/skein/flow/log"
)

// syncPoint is what the store knows to be durable.
type syncPoint struct {
	state  []byte
	known  bool
	dirGen uint32
}

// retired are segments that a snapshot replaced.
type retired struct {
	segs  *log.Segments // nil: they are not open
	dir   string        // where segs is nil
	syncs int           // Syncs since
}

// Sync makes the batches applied so far durable, and notes in the store how far that is: what a later start may call damage.
// Decisions about batches that are durable are no longer needed, and go.
func (p *Partition) Sync() error {
	p.syncing.Lock()
	defer p.syncing.Unlock()
	if err := p.removeRetired(); err != nil { // first: what an install replaces from now on does not count this Sync
		return err
	}
	v := p.snapshot()
	switch {
	case v.closed:
		return errClosed()
	case v.damaged != nil:
		return nil
	}
	index := v.segs.LastIndex()
	if err := v.segs.Sync(); err != nil {
		return fmt.Errorf("partition: sync segments: %w", err)
	}
	return p.noteSynced(v.segs, v.dirGen, index)
}

// noteSynced writes to the store how far segments are durable, where that changed, and drops the decisions up to an entry.
func (p *Partition) noteSynced(segs *log.Segments, gen uint32, index uint64) error {
	state, last := segs.SyncedState(), p.synced
	if last.known && last.dirGen == gen && bytes.Equal(last.state, state) {
		return nil
	}
	b := p.cfg.Store.NewBatch()
	b.Set(p.keys.synced(gen), state)
	// The first Sync after an install comes before it is committed: until then the old segments may still be completed.
	if index > 0 && last.dirGen == gen {
		b.DeleteRange(p.keys.batch(0), p.keys.batch(index+1))
	}
	if err := b.Commit(); err != nil {
		return fmt.Errorf("partition: note synced segments: %w", err)
	}
	p.synced = syncPoint{state: state, known: true, dirGen: gen}
	return nil
}

func (p *Partition) takeRetired() []retired {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.retired
	p.retired = nil
	return old
}

// removeRetired removes replaced segments at the second Sync after the snapshot: the first comes before what replaced them
// is committed, and a flush of the store lies between the two.
func (p *Partition) removeRetired() error {
	p.mu.Lock()
	var due, rest []retired
	for _, r := range p.retired {
		if r.syncs++; r.syncs > 1 {
			due = append(due, r)
		} else {
			rest = append(rest, r)
		}
	}
	p.retired = rest
	p.mu.Unlock()
	var err error
	for _, r := range due {
		if r.segs == nil {
			err = errors.Join(err, p.removeDir(r.dir))
		} else {
			err = errors.Join(err, r.segs.Remove())
		}
	}
	return err
}
