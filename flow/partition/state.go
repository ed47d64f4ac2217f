package partition

import (
	"encoding/binary"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// state is what the entries made of the partition. The group's goroutine owns it.
type state struct {
	applied uint64 // index of the last entry applied
	next    uint64 // offset after the last event
	start   uint64 // offset of the first event readers see
	stamp   int64  // the partition's time, Unix ms
	sizes   sizes  // differs between replicas
	// dirGen and window.gen number the segments' directory and the identities' keys: a snapshot that replaces them is
	// staged under the next numbers. They may differ between replicas, as may what window holds in memory.
	dirGen   uint32
	spec     Spec
	imp      *Import // nil: it was never filled from an export; never changed
	sessions sessions
	window   window
}

// tick moves the partition's time to an entry's stamp, never back.
func (st *state) tick(stamp int64) { st.stamp = max(st.stamp, stamp) }

const (
	stateVersion = 1
	stateSize    = 1 + 5*8 + 2*4 + 8
)

// encode is the state record: everything that is not in keys of its own.
func (st *state) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, stateSize)
	b = append(b, stateVersion)
	b = le.AppendUint64(b, st.applied)
	b = le.AppendUint64(b, st.next)
	b = le.AppendUint64(b, st.start)
	b = le.AppendUint64(b, uint64(st.stamp))
	b = le.AppendUint64(b, st.sizes.total)
	b = le.AppendUint32(b, st.dirGen)
	b = le.AppendUint32(b, st.window.gen)
	return le.AppendUint64(b, uint64(st.window.expired))
}

func (st *state) decode(b []byte) error {
	if len(b) != stateSize || b[0] != stateVersion {
		return corrupt("partition state record of %d bytes", len(b))
	}
	le := binary.LittleEndian
	st.applied, st.next, st.start = le.Uint64(b[1:]), le.Uint64(b[9:]), le.Uint64(b[17:])
	st.stamp = int64(le.Uint64(b[25:]))
	st.sizes.total = le.Uint64(b[33:])
	st.dirGen, st.window.gen = le.Uint32(b[41:]), le.Uint32(b[45:])
	st.window.expired = int64(le.Uint64(b[49:]))
	if st.start > st.next {
		return corrupt("partition state record: start %d beyond the end %d", st.start, st.next)
	}
	return nil
}

// save writes the state record, and the size marks where they changed.
func (st *state) save(keys keyspace, b log.Batch) {
	b.Set(keys.state(), st.encode())
	if st.sizes.dirty {
		b.Set(keys.sizes(), st.sizes.encode())
		st.sizes.dirty = false
	}
}

// load reads the state from the store; nothing there is the state at birth.
func (st *state) load(store log.Store, keys keyspace) error {
	raw, ok, err := store.Get(keys.state())
	if err != nil || !ok {
		return err
	}
	if err := st.decode(raw); err != nil {
		return err
	}
	raw, ok, err = store.Get(keys.limits())
	if err != nil {
		return err
	}
	if ok {
		if err := wire.Unmarshal(raw, &st.spec.Limits); err != nil {
			return err
		}
	}
	raw, ok, err = store.Get(keys.sizes())
	if err != nil {
		return err
	}
	if ok {
		if err := st.sizes.decode(raw); err != nil {
			return err
		}
	}
	if err := st.loadImport(store, keys); err != nil {
		return err
	}
	if err := st.sessions.load(store); err != nil {
		return err
	}
	return st.window.load()
}

// recovery is what the segments of the state are opened with.
func (st *state) recovery(store log.Store, keys keyspace) (log.Recovery, error) {
	synced, _, err := store.Get(keys.synced(st.dirGen))
	return log.Recovery{Start: st.start, Next: st.next, AppliedIndex: st.applied, Synced: synced}, err
}

// decision is what apply decided about a batch entry: enough to write its bytes to the segments again without the state that
// the decision was taken in.
type decision struct {
	base  uint64
	stamp int64
	skip  []uint32
}

func appendDecision(dst []byte, m *batch.Meta) []byte {
	le := binary.LittleEndian
	dst = append(dst, stateVersion)
	dst = le.AppendUint64(dst, m.Base)
	dst = le.AppendUint64(dst, uint64(m.Stamp))
	for _, pos := range m.Skip {
		dst = le.AppendUint32(dst, pos)
	}
	return dst
}

func parseDecision(b []byte) (decision, error) {
	if len(b) < 17 || (len(b)-17)%4 != 0 || len(b) > 17+4*batch.MaxRecords || b[0] != stateVersion {
		return decision{}, corrupt("batch decision of %d bytes", len(b))
	}
	le := binary.LittleEndian
	d := decision{base: le.Uint64(b[1:]), stamp: int64(le.Uint64(b[9:]))}
	for b = b[17:]; len(b) > 0; b = b[4:] {
		d.skip = append(d.skip, le.Uint32(b))
	}
	return d, nil
}
