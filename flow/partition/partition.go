package partition

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Partition is the replicated state of one partition on this node.
type Partition struct {
	planted plantedState // nothing but in builds with the tag skeinplanted

	cfg   Config
	group ring.GroupID
	dir   string // holds one directory of segments for each generation
	keys  keyspace
	log   *slog.Logger

	st     state // owned by the group's goroutine
	pins   atomic.Int32
	closed bool  // owned by the group's goroutine
	damage error // why the segments are not open; owned by the group's goroutine, or that of a mending

	// Of fetching: the goroutine of a fetch or mending owns them while there is one, else the group's.
	staging  *staging
	leftover uint32 // the generation of segments that an earlier run staged; 0: none
	lastGen  uint32 // the newest generation there is
	offered  bool   // the sender was told of what is staged
	rounds   int    // fetches of batches alone since the last one that brought the state

	onDamage func(error)

	mu sync.Mutex
	v  view // what other goroutines see; mu guards it
	// retired are segments that a snapshot replaced: closed, and to be removed once that is surely durable. mu guards them.
	retired []retired
	told    bool // damage was told of; mu guards it

	syncing sync.Mutex // one Sync at a time, and none beside Close; only they wait for it
	synced  syncPoint  // syncing guards it
}

// view is a snapshot of the state for readers.
type view struct {
	next, start uint64
	stamp       int64
	spec        Spec
	segs        *log.Segments
	dirGen      uint32
	windowGen   uint32
	sizeStart   uint64        // where retention by size would start the log
	notify      chan struct{} // closed when next grows; nil: nobody waits
	expiring    bool          // there are identities or sessions that only time ends
	importing   bool          // batches of an export are still to come
	export      [16]byte      // the one that it was or is filled from
	closed      bool
	damaged     error // the segments cannot be used: segs is nil
}

// Apply applies one entry. Refusals are results; an error means that this replica cannot go on: KindCorrupt when the entry or
// the segments are damaged, else I/O. Results: BatchResult, SessionResult, TrimResult, ConfigResult, or nil.
func (p *Partition) Apply(e log.Entry, b log.Batch) (any, error) {
	if len(e.Data) == 0 {
		return nil, nil
	}
	if p.damage != nil {
		return nil, p.damage
	}
	if p.staging != nil || p.leftover != 0 {
		p.abandonStaging()
	}
	if e.Index <= p.st.applied {
		return nil, fmt.Errorf("partition: entry %d applied after entry %d", e.Index, p.st.applied)
	}
	en, err := decodeEntry(e.Data)
	if err != nil {
		return nil, fmt.Errorf("partition: entry %d: %w", e.Index, err)
	}
	p.st.tick(en.stamp)
	p.plantOwner(e.Term, b)
	p.st.window.advance(p.st.stamp, p.st.spec.DedupeWindowMS, p.pins.Load() > 0, b)
	result, err := p.applyEntry(e, &en, b)
	if err != nil {
		return nil, fmt.Errorf("partition: entry %d: %w", e.Index, err)
	}
	p.st.applied = e.Index
	p.st.save(p.keys, b)
	p.publish()
	return result, nil
}

func (p *Partition) applyEntry(e log.Entry, en *entry, b log.Batch) (any, error) {
	st := &p.st
	switch en.kind {
	case entryBatch:
		res, err := p.applyBatch(e, en, b)
		if err != nil {
			return nil, err
		}
		p.cfg.Metrics.batch(res)
		return *res, st.window.shrink(false)
	case entryOpenSession:
		s := st.sessions.start(en.session, en.node, st.stamp, b)
		return SessionResult{Last: s.last(), Stamp: st.stamp}, nil
	case entryCloseSession:
		res := SessionResult{Stamp: st.stamp}
		if s := st.sessions.open[en.session]; s != nil {
			res.Last = s.last()
		}
		st.sessions.end(en.session, b)
		return res, nil
	case entryImport:
		return p.applyImport(e, en, b)
	case entryTrim:
		st.start = min(max(st.start, en.start), st.next)
		st.sizes.trim(st.start)
		return TrimResult{Start: st.start}, p.v.segs.TrimTo(st.start)
	case entryConfig:
		raw, err := wire.Marshal(&en.limits)
		if err != nil {
			return nil, err
		}
		b.Set(p.keys.limits(), raw)
		st.spec.Limits = en.limits
		return ConfigResult{Limits: en.limits}, nil
	}
	st.sessions.expire(st.stamp, b) // entryClock
	return nil, nil
}

// applyBatch decides about a batch, and stores what of it is new.
func (p *Partition) applyBatch(e log.Entry, en *entry, b log.Batch) (*BatchResult, error) {
	st, m := &p.st, &en.meta
	if st.importing() {
		return refusal(wire.KindUnavailable, CodeImporting, "the stream is being imported"), nil
	}
	if res := st.sessions.check(en.session, m.Seq, m.Count, m.PayloadCRC, st.stamp); res != nil {
		return res, p.plantRetry(e, en, res, b)
	}
	dups, err := p.dedupe(m, b)
	if err != nil {
		return nil, err
	}
	m.Stamp, m.Base, m.Skip, m.Index, m.Term = st.stamp, st.next, skipped(dups), e.Index, e.Term
	if m.Offsets() > 0 {
		if err := p.store(m, en.payload); err != nil {
			return nil, err
		}
		b.Set(p.keys.batch(e.Index), appendDecision(nil, m))
		st.sizes.add(m.Base, batch.MetaLen(m)+len(en.payload), st.spec.RetentionBytes)
	}
	st.next = m.Next()
	st.sessions.record(en.session, outcome{seq: m.Seq, base: m.Base, stamp: m.Stamp, count: m.Count, crc: m.PayloadCRC, dups: dups}, b)
	return &BatchResult{Base: m.Base, Count: m.Count, Stamp: m.Stamp, Dups: dups}, nil
}

// dedupe finds the records whose identity is known, and remembers the identities of the others.
func (p *Partition) dedupe(m *batch.Meta, b log.Batch) ([]Dup, error) {
	st := &p.st
	var dups []Dup
	for pos, id := range m.Identities {
		if id.Hash == ([16]byte{}) {
			continue
		}
		o, known, err := st.window.find(id.Hash)
		if err != nil {
			return nil, err
		}
		if known {
			dups = append(dups, Dup{Pos: uint32(pos), Offset: o.offset, Reused: o.payload != id.Payload})
			continue
		}
		offset := st.next + uint64(pos) - uint64(len(dups))
		st.window.insert(id.Hash, original{offset: offset, payload: id.Payload}, st.stamp, b)
	}
	return dups, nil
}

func skipped(dups []Dup) []uint32 {
	if len(dups) == 0 {
		return nil
	}
	skip := make([]uint32, len(dups))
	for i := range dups {
		skip[i] = dups[i].Pos
	}
	return skip
}

// store appends a batch to the segments. Its identities are taken out: the store and the checkpoints have them.
func (p *Partition) store(m *batch.Meta, payload []byte) error {
	m.Identities = nil
	segs := p.v.segs // only this goroutine changes it
	switch next := segs.Next(); {
	case m.Next() <= next:
		return p.stored(m, segs)
	case m.Base != next:
		return corrupt("the segments end at offset %d, the state at %d", next, m.Base)
	}
	return segs.Append(m, payload)
}

// stored checks a batch that the segments have already: a snapshot brought it that was not installed in the end.
func (p *Partition) stored(m *batch.Meta, segs *log.Segments) error {
	if m.Base < segs.Start() {
		return nil
	}
	have, err := segs.Read(m.Base, 1, nil)
	if err != nil {
		return err
	}
	if len(have) == 0 || have[0].Meta.Base != m.Base || have[0].Meta.Index != m.Index || have[0].Meta.PayloadCRC != m.PayloadCRC {
		return corrupt("the segments have another batch at offset %d", m.Base)
	}
	return nil
}

// Complete writes a batch to the segments again that a crash took from them.
func (p *Partition) Complete(e log.Entry) error {
	if len(e.Data) == 0 || entryKind(e.Data[0]) != entryBatch && entryKind(e.Data[0]) != entryImport {
		return nil
	}
	raw, ok, err := p.cfg.Store.Get(p.keys.batch(e.Index))
	if err != nil || !ok {
		return err // not there: refused, all duplicates, or durable in the segments
	}
	d, err := parseDecision(raw)
	if err != nil {
		return fmt.Errorf("partition: entry %d: %w", e.Index, err)
	}
	en, err := decodeEntry(e.Data)
	if err != nil {
		return fmt.Errorf("partition: entry %d: %w", e.Index, err)
	}
	m := &en.meta
	m.Base, m.Stamp, m.Skip, m.Index, m.Term = d.base, d.stamp, d.skip, e.Index, e.Term
	if m.Next() <= p.v.segs.Next() {
		return nil
	}
	return p.store(m, en.payload)
}

// BulkIndex is the entry of the last batch in the segments; 0: none.
func (p *Partition) BulkIndex() uint64 {
	if p.damage != nil {
		return math.MaxUint64 // it is mended first
	}
	return p.v.segs.LastIndex()
}

// publish shows the state to readers and wakes those that wait.
func (p *Partition) publish() {
	p.mu.Lock()
	grown := p.st.next > p.v.next
	p.v.next, p.v.start, p.v.stamp = p.st.next, p.st.start, p.st.stamp
	p.v.spec, p.v.importing = p.st.spec, p.st.importing()
	if p.st.imp != nil {
		p.v.export = p.st.imp.Export
	}
	p.v.expiring = len(p.st.window.buckets) > 0 || len(p.st.sessions.open) > 0
	if size := p.st.spec.RetentionBytes; size > 0 {
		p.v.sizeStart = p.st.sizes.seek(size)
	}
	var wake chan struct{}
	if grown {
		wake, p.v.notify = p.v.notify, nil
	}
	p.mu.Unlock()
	if wake != nil {
		close(wake)
	}
}

// Close releases the files and wakes all who wait. Idempotent.
func (p *Partition) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.mu.Lock()
	p.v.closed = true
	wake := p.v.notify
	p.v.notify = nil
	p.mu.Unlock()
	if wake != nil {
		close(wake)
	}
	p.st.window.release()
	p.syncing.Lock() // wait for a Sync that uses the files
	defer p.syncing.Unlock()
	var err error
	if p.v.segs != nil {
		err = p.v.segs.Close()
	}
	if p.staging != nil {
		err = errors.Join(err, p.staging.segs.Close())
	}
	for _, r := range p.takeRetired() {
		if r.segs != nil {
			err = errors.Join(err, r.segs.Close())
		}
	}
	return err
}

func (p *Partition) segmentDir(gen uint32) string {
	return filepath.Join(p.dir, fmt.Sprintf("%08x", gen))
}
