package partition

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// staged is a fetched snapshot. Its identities are in the store under a generation that nothing names yet, its batches at the
// end of the segments, or in segments of their own when those here are of no use.
type staged struct {
	head     head
	sessions map[SessionID]*session
	window   window
	segs     *log.Segments // nil: the partition's own
	dirGen   uint32
	sizes    sizes
	took     bool // installed
}

// Close gives up a snapshot that is not installed. Batches that were added to the partition's own segments stay: they are
// committed, and no reader sees them before the entries that made them are applied.
func (s *staged) Close() error {
	if s.took {
		return nil
	}
	s.took = true
	s.window.release()
	if s.segs != nil {
		return s.segs.Remove()
	}
	return nil
}

// BulkHave tells where the batches here end, so that a sender need not send them again.
func (p *Partition) BulkHave() []byte {
	h := have{Version: snapshotVersion}
	segs := p.v.segs
	if next := segs.Next(); next > segs.Start() {
		last, err := segs.Read(next-1, 1, nil)
		if err == nil && len(last) > 0 {
			m := &last[0].Meta
			h.Next, h.Base, h.Index, h.CRC = m.Next(), m.Base, m.Index, m.PayloadCRC
		} else {
			p.log.Warn("the last batch cannot be read; a snapshot is fetched in whole", "offset", next-1, "err", err)
		}
	}
	raw, err := wire.Marshal(&h)
	if err != nil {
		return nil // as if nothing were here
	}
	return raw
}

// fetching is one run of Fetch.
type fetching struct {
	p      *Partition
	out    *staged
	segs   *log.Segments // where batches go
	next   uint64        // base of the next batch
	tail   []byte        // bytes of a batch that is not complete
	batch  log.Batch     // of identities
	queued int
}

// Fetch reads a snapshot and stages it. What was staged before and not installed is dropped first.
func (p *Partition) Fetch(ctx context.Context, s wire.Stream) (any, error) {
	out, err := p.fetch(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("partition: fetch snapshot: %w", errors.Join(err, closeStaged(out)))
	}
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
	out := &staged{sessions: make(map[SessionID]*session)}
	if kind != frameHead {
		return nil, corrupt("snapshot begins with a frame of kind %d", kind)
	}
	if err := wire.Unmarshal(body, &out.head); err != nil {
		return nil, err
	}
	if err := out.head.validate(); err != nil {
		return nil, err
	}
	f := &fetching{p: p, out: out, next: out.head.From}
	if err := f.prepare(); err != nil {
		return out, err
	}
	for {
		kind, body, err := recvFrame(ctx, s)
		if err != nil {
			return out, err
		}
		if kind == frameEnd {
			return out, f.finish()
		}
		if err := f.take(kind, body); err != nil {
			return out, err
		}
	}
}

// prepare makes room for the snapshot: a new generation of keys, and new segments where it brings all batches.
func (f *fetching) prepare() error {
	p, hd := f.p, &f.out.head
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
	f.out.dirGen = p.st.dirGen
	f.segs = p.v.segs
	if !hd.Fresh {
		if next := f.segs.Next(); next != hd.From {
			return corrupt("snapshot continues at offset %d, the segments here end at %d", hd.From, next)
		}
		f.out.sizes = p.st.sizes.clone()
		return nil
	}
	f.out.dirGen++
	dir := p.segmentDir(f.out.dirGen)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	segs, err := log.OpenSegments(dir, p.segmentConfig(), log.Recovery{Start: hd.From, Next: hd.From, AppliedIndex: hd.Applied})
	if err != nil {
		return err
	}
	f.out.segs, f.segs = segs, segs
	if segs.Next() == hd.From {
		return nil
	}
	return segs.Reset(hd.From)
}

func (f *fetching) take(kind byte, body []byte) error {
	switch kind {
	case frameSessions:
		return f.takeSessions(body)
	case frameIdentities:
		return f.takeIdentities(body)
	case frameBatches:
		return f.takeBatches(body)
	}
	return corrupt("snapshot frame of unknown kind %d", kind)
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

func (f *fetching) takeBatches(body []byte) error {
	b := body
	if len(f.tail) > 0 {
		f.tail = append(f.tail, body...)
		b = f.tail
	}
	for len(b) > 0 {
		m, payload, rest, ok, err := splitBatch(b)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if m.Base != f.next || m.Next() > f.out.head.Next || m.Index > f.out.head.Applied || m.Offsets() == 0 {
			return corrupt("snapshot with a batch at offset %d, want %d", m.Base, f.next)
		}
		// The segments keep the payload for readers: it must not be a part of a buffer that is used again.
		if err := f.segs.Append(&m, append([]byte(nil), payload...)); err != nil {
			return err
		}
		f.out.sizes.add(m.Base, batch.MetaLen(&m)+len(payload), f.out.head.Limits.RetentionBytes)
		f.next, b = m.Next(), rest
	}
	f.tail = append(f.tail[:0:0], b...)
	return nil
}

// finish holds what came against the head, and makes the batches durable: the entries that made them will not be in this
// replica's journal.
func (f *fetching) finish() error {
	hd := &f.out.head
	if len(f.tail) > 0 || f.next != hd.Next {
		return corrupt("snapshot ends at offset %d with %d bytes left, want %d", f.next, len(f.tail), hd.Next)
	}
	if err := f.commit(); err != nil {
		return err
	}
	f.out.window.seal()
	if f.out.segs != nil {
		if err := f.segs.TrimTo(hd.Start); err != nil {
			return err
		}
	}
	return f.segs.Sync()
}

// Install replaces the state by a fetched one. The segments it brought are used from now on; those replaced are removed two
// Syncs later, for until b is durable a crash goes back to them.
func (p *Partition) Install(in any, b log.Batch) error {
	s, ok := in.(*staged)
	if !ok || s.took {
		return fmt.Errorf("partition: install of %T that was not staged", in)
	}
	s.took = true
	st := &p.st
	p.dropState(b, s)
	old := *st
	st.window.release()
	hd := &s.head
	*st = state{applied: hd.Applied, next: hd.Next, start: hd.Start, stamp: hd.Stamp, sizes: s.sizes, dirGen: s.dirGen, spec: old.spec,
		sessions: sessions{keys: p.keys, open: s.sessions}, window: s.window}
	st.spec.Limits = hd.Limits
	st.sessions.save(b)
	raw, err := wire.Marshal(&hd.Limits)
	if err != nil {
		return err
	}
	b.Set(p.keys.limits(), raw)
	st.sizes.dirty = true
	st.save(p.keys, b)
	p.mu.Lock()
	p.v.windowGen = st.window.gen
	if s.segs != nil {
		p.retired = append(p.retired, retired{segs: p.v.segs})
		p.v.segs, p.v.dirGen = s.segs, s.dirGen
	}
	segs := p.v.segs
	p.mu.Unlock()
	b.Set(p.keys.synced(s.dirGen), segs.SyncedState())
	p.publish()
	return segs.TrimTo(hd.Start)
}

// dropState removes the keys of the present state, and none of those that are staged.
func (p *Partition) dropState(b log.Batch, s *staged) {
	for _, kind := range []byte{keySession, keyOutcome, keyBatch} {
		prefix := p.keys.plain(kind)
		b.DeleteRange(prefix, log.PrefixEnd(prefix))
	}
	dropGenerations(b, p.keys, keyIdentity, s.window.gen)
	dropGenerations(b, p.keys, keySynced, s.dirGen)
	b.Delete(p.keys.staging())
}

// generation is the window's generation of keys, for other goroutines.
func (p *Partition) generation() uint32 { return p.snapshot().windowGen }
