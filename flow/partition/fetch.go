package partition

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// staged is a fetched snapshot. Its identities are in the store under a generation that nothing names yet, its batches at the
// end of the segments, or in segments of their own when those here are of no use.
type staged struct {
	p        *Partition
	head     head
	sessions map[SessionID]*session
	window   window
	from     *staging // its batches; nil: in the partition's own segments
	sizes    sizes
	took     bool // installed
}

// Close gives up a snapshot that is not installed. Its batches stay for the next one: they are committed, and no reader sees them before
// the entries that made them are applied.
func (s *staged) Close() error {
	if !s.took {
		s.took = true
		s.window.release()
	}
	return nil
}

// maxRounds is how often batches alone are fetched before the state is asked for too, however much there is.
const maxRounds = 6

// BulkHave tells where the batches here end, so that a sender need not send them again: those staged by a fetch that broke, or the
// partition's own.
func (p *Partition) BulkHave() []byte {
	p.adopt()
	h := have{Version: snapshotVersion, Bulk: p.rounds < maxRounds}
	segs := p.v.segs
	p.offered = false
	if s := p.staging; s != nil && s.segs.Next() > s.segs.Start() && (segs == nil || s.segs.Next() > segs.Next()) {
		segs, p.offered = s.segs, true
	}
	if segs != nil {
		if err := h.last(segs); err != nil {
			p.offered = false
			p.log.Warn("the last batch cannot be read; a snapshot is fetched in whole", "offset", segs.Next()-1, "err", err)
		}
	}
	raw, err := wire.Marshal(&h)
	if err != nil {
		return nil // as if nothing were here
	}
	return raw
}

// last notes the last batch of segments.
func (h *have) last(segs *log.Segments) error {
	next := segs.Next()
	if next <= segs.Start() {
		return nil
	}
	last, err := segs.Read(next-1, 1, nil)
	if err != nil {
		return err
	}
	if len(last) > 0 {
		m := &last[0].Meta
		h.Next, h.Base, h.Index, h.CRC = m.Next(), m.Base, m.Index, m.PayloadCRC
	}
	return nil
}

// fetching is one run of Fetch.
type fetching struct {
	p      *Partition
	out    *staged
	segs   *log.Segments // where batches go
	fill   *filler
	in     batchStream
	batch  log.Batch // of identities
	queued int
}

// Fetch reads a snapshot and stages it. What was staged of an earlier one and not installed is used again where it is a part of this one,
// and dropped else. nil without an error: batches alone came, and the state is to be asked for.
func (p *Partition) Fetch(ctx context.Context, s wire.Stream) (any, error) {
	out, err := p.fetch(ctx, s)
	if err != nil {
		p.rounds = 0
		return nil, fmt.Errorf("partition: fetch snapshot: %w", errors.Join(err, closeStaged(out)))
	}
	if out.head.Bulk {
		p.rounds++
		return nil, nil
	}
	p.rounds = 0
	return out, nil
}

func closeStaged(s *staged) error {
	if s == nil {
		return nil
	}
	return s.Close()
}

func (p *Partition) fetch(ctx context.Context, s wire.Stream) (*staged, error) {
	kind, body, err := recvFrame(ctx, s)
	if err != nil {
		return nil, err
	}
	out := &staged{p: p, sessions: make(map[SessionID]*session)}
	if kind != frameHead {
		return nil, corrupt("snapshot begins with a frame of kind %d", kind)
	}
	if err := wire.Unmarshal(body, &out.head); err != nil {
		return nil, err
	}
	if err := out.head.validate(); err != nil {
		return nil, err
	}
	f := &fetching{p: p, out: out, in: batchStream{next: out.head.From, applied: out.head.Applied, end: out.head.Next}}
	if err := f.prepare(); err != nil {
		return out, err
	}
	f.fill = newFiller(f.segs)
	return out, errors.Join(f.run(ctx, s), f.fill.close(), f.sync())
}

func (f *fetching) run(ctx context.Context, s wire.Stream) error {
	in := readAhead(ctx, s)
	defer in.close()
	for {
		kind, body, err := in.frame()
		if err != nil {
			return err
		}
		if kind == frameEnd {
			return f.finish()
		}
		if err := f.take(kind, body); err != nil {
			return err
		}
	}
}

// sync makes the batches durable, also those of a fetch that broke: the entries that made them will not be in this replica's journal.
func (f *fetching) sync() error { return f.segs.Sync() }

// prepare makes room for the snapshot: a new generation of keys, and new segments where it brings all batches.
func (f *fetching) prepare() error {
	p, hd := f.p, &f.out.head
	if !hd.Bulk {
		if err := p.dropStaged(); err != nil {
			return err
		}
		b := p.cfg.Store.NewBatch()
		b.Set(p.keys.staging(), []byte{1})
		if err := b.Commit(); err != nil {
			return err
		}
		f.out.window = p.newWindow(p.st.window.gen + 1)
		f.out.window.expired = hd.Expired
	}
	switch {
	case hd.Fresh:
		s, err := p.stageFrom(hd.From, math.MaxUint64)
		if err != nil {
			return err
		}
		f.out.from, f.segs = s, s.segs
		return nil
	case p.offered && p.staging != nil:
		f.out.from, f.segs = p.staging, p.staging.segs
	case p.v.segs != nil:
		f.segs = p.v.segs
		f.out.sizes = p.st.sizes.clone()
	default:
		return corrupt("snapshot continues where there is nothing")
	}
	if next := f.segs.Next(); next != hd.From {
		return corrupt("snapshot continues at offset %d, the segments here end at %d", hd.From, next)
	}
	return nil
}

func (f *fetching) take(kind byte, body []byte) error {
	switch kind {
	case frameBatches:
		return f.in.take(body, f.store)
	case frameSessions:
		if !f.out.head.Bulk {
			return f.takeSessions(body)
		}
	case frameIdentities:
		if !f.out.head.Bulk {
			return f.takeIdentities(body)
		}
	}
	return corrupt("snapshot frame of unexpected kind %d", kind)
}

func (f *fetching) takeSessions(body []byte) error {
	var group []sentSession
	if err := wire.Unmarshal(body, &group); err != nil {
		return err
	}
	for i := range group {
		s, err := fromSent(&group[i])
		if err != nil {
			return err
		}
		f.out.sessions[group[i].ID] = s
	}
	if len(f.out.sessions) > maxSessions {
		return corrupt("snapshot with more than %d sessions", maxSessions)
	}
	return nil
}

// stagedKeys is how many identities are committed to the store together.
const stagedKeys = 4096

func (f *fetching) takeIdentities(body []byte) error {
	if len(body) < 8 || (len(body)-8)%identitySize != 0 {
		return corrupt("snapshot frame of identities with %d bytes", len(body))
	}
	w := &f.out.window
	minute := int64(binary.LittleEndian.Uint64(body))
	if n := len(w.buckets); minute < w.expired || n > 0 && minute < w.buckets[n-1].minute {
		return corrupt("snapshot with identities of minute %d out of order", minute)
	}
	for body = body[8:]; len(body) > 0; body = body[identitySize:] {
		o, err := parseOriginal(body[16:identitySize])
		if err != nil {
			return err
		}
		if f.batch == nil {
			f.batch = f.p.cfg.Store.NewBatch()
		}
		w.insert([16]byte(body), o, minute*minuteMS, f.batch)
		if f.queued++; f.queued >= stagedKeys {
			if err := f.commit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// commit writes the queued identities, and keeps the window within its memory.
func (f *fetching) commit() error {
	if f.batch == nil {
		return nil
	}
	b := f.batch
	f.batch, f.queued = nil, 0
	if err := b.Commit(); err != nil {
		return err
	}
	return f.out.window.shrink(true)
}

func (f *fetching) store(m *batch.Meta, payload []byte) error {
	if f.out.from == nil {
		f.out.sizes.add(m.Base, batch.MetaLen(m)+len(payload), f.out.head.Limits.RetentionBytes)
	}
	return f.fill.append(m, payload)
}

// batchStream puts batches together that come in pieces, cut anywhere, and checks that each follows the other.
type batchStream struct {
	next         uint64 // base of the next batch
	applied, end uint64 // no batch is of a later entry, or goes beyond
	tail         []byte // bytes of a batch that is not complete
}

// take calls fn for the batches that body completes. Their payloads are good until fn returns.
func (s *batchStream) take(body []byte, fn func(m *batch.Meta, payload []byte) error) error {
	b := body
	if len(s.tail) > 0 {
		s.tail = append(s.tail, body...)
		b = s.tail
	}
	for len(b) > 0 {
		m, payload, rest, ok, err := splitBatch(b)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if m.Base != s.next || m.Next() > s.end || m.Index > s.applied || m.Offsets() == 0 {
			return corrupt("snapshot with a batch at offset %d, want %d", m.Base, s.next)
		}
		if err := fn(&m, payload); err != nil {
			return err
		}
		s.next, b = m.Next(), rest
	}
	s.tail = append(s.tail[:0:0], b...)
	return nil
}

// finish holds what came against the head.
func (f *fetching) finish() error {
	hd := &f.out.head
	if len(f.in.tail) > 0 || f.in.next != hd.Next {
		return corrupt("snapshot ends at offset %d with %d bytes left, want %d", f.in.next, len(f.in.tail), hd.Next)
	}
	if hd.Bulk {
		return nil
	}
	if err := f.commit(); err != nil {
		return err
	}
	f.out.window.seal()
	if f.out.from == nil {
		return nil
	}
	f.out.sizes = sizesOf(f.segs, hd.Limits.RetentionBytes)
	return f.segs.TrimTo(hd.Start)
}

// Install replaces the state by a fetched one. The segments it brought are used from now on; those replaced are removed two
// Syncs later, for until b is durable a crash goes back to them.
func (p *Partition) Install(in any, b log.Batch) error {
	s, ok := in.(*staged)
	if !ok || s.took || s.from != nil && s.from != p.staging {
		return fmt.Errorf("partition: install of %T that was not staged", in)
	}
	s.took = true
	st := &p.st
	old := *st
	hd := &s.head
	gen, segs := old.dirGen, p.v.segs
	if p.damage != nil {
		if err := p.Condemn(p.damage); err != nil { // for the quarantine
			return err
		}
	}
	if s.from != nil {
		gen, segs = s.from.gen, s.from.segs
		p.staging = nil
	}
	p.dropState(b, s.window.gen, gen)
	st.window.release()
	*st = state{applied: hd.Applied, next: hd.Next, start: hd.Start, stamp: hd.Stamp, sizes: s.sizes, dirGen: gen, spec: old.spec,
		sessions: sessions{keys: p.keys, open: s.sessions}, window: s.window}
	st.spec.Limits, st.imp = hd.Limits, hd.Import
	st.sessions.save(b)
	raw, err := wire.Marshal(&hd.Limits)
	if err != nil {
		return err
	}
	b.Set(p.keys.limits(), raw)
	b.Delete(p.keys.imported())
	if st.imp != nil {
		if raw, err = wire.Marshal(st.imp); err != nil {
			return err
		}
		b.Set(p.keys.imported(), raw)
	}
	st.sizes.dirty = true
	st.save(p.keys, b)
	p.mu.Lock()
	p.v.windowGen = st.window.gen
	if s.from != nil {
		if p.v.segs != nil {
			p.retired = append(p.retired, retired{segs: p.v.segs})
		} else {
			p.retired = append(p.retired, retired{dir: p.segmentDir(old.dirGen)})
		}
		p.v.segs, p.v.dirGen, p.v.damaged, p.told = segs, gen, nil, false
		p.damage = nil
	}
	p.mu.Unlock()
	b.Set(p.keys.synced(gen), segs.SyncedState())
	p.publish()
	return segs.TrimTo(hd.Start)
}

// dropState removes the keys of the present state, and none of those that are staged.
func (p *Partition) dropState(b log.Batch, windowGen, dirGen uint32) {
	for _, kind := range []byte{keySession, keyOutcome, keyBatch} {
		prefix := p.keys.plain(kind)
		b.DeleteRange(prefix, log.PrefixEnd(prefix))
	}
	dropGenerations(b, p.keys, keyIdentity, windowGen)
	dropGenerations(b, p.keys, keySynced, dirGen)
	b.Delete(p.keys.staging())
}

// generation is the window's generation of keys, for other goroutines.
func (p *Partition) generation() uint32 { return p.snapshot().windowGen }
