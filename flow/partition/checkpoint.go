package partition

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/transport/wire"
)

// readBytes is how much of the segments is read, and sent, at a time.
const readBytes = 512 << 10

// checkpoint is the state at one entry, on its way to another replica. It shares the maps of sealed buckets, which nobody
// changes, keeps the store's identities from being removed, and pins the segments.
type checkpoint struct {
	p        *Partition
	head     head
	sessions map[SessionID]*session
	buckets  []*bucket
	keys     keyspace
	gen      uint32
	segs     *log.Segments
	pin      *log.Pin
	partial  bool // batches alone were sent
	close    sync.Once
}

// Checkpoint captures the state at the last entry applied; the newest identities are sealed, not copied.
func (p *Partition) Checkpoint() (replica.Checkpoint, error) {
	switch {
	case p.closed:
		return nil, errClosed()
	case p.damage != nil:
		return nil, p.damage
	}
	st := &p.st
	pin, err := p.v.segs.Pin(max(st.start, p.v.segs.Start()))
	if err != nil {
		return nil, fmt.Errorf("partition: checkpoint: %w", err)
	}
	st.window.seal()
	p.pins.Add(1)
	return &checkpoint{
		p: p,
		head: head{Version: snapshotVersion, Applied: st.applied, Next: st.next, Start: st.start, Stamp: st.stamp,
			Expired: st.window.expired, Limits: st.spec.Limits, Import: st.imp},
		sessions: st.sessions.snapshot(),
		buckets:  slices.Clone(st.window.buckets),
		keys:     p.keys,
		gen:      st.window.gen,
		segs:     p.v.segs,
		pin:      pin,
	}, nil
}

// Close lets go of what the checkpoint keeps. Idempotent.
func (c *checkpoint) Close() error {
	c.close.Do(func() {
		c.pin.Release()
		c.p.pins.Add(-1)
	})
	return nil
}

// WriteTo sends the state, and the batches that a receiver with rawHave lacks. It holds a few frames in memory.
func (c *checkpoint) WriteTo(ctx context.Context, s wire.Stream, rawHave []byte) error {
	return c.writeFrames(ctx, s, rawHave, readBytes)
}

// writeFrames is WriteTo with batches in frames of so many bytes.
func (c *checkpoint) writeFrames(ctx context.Context, s wire.Stream, rawHave []byte, size int) error {
	var h have
	if len(rawHave) > 0 {
		if err := wire.Unmarshal(rawHave, &h); err != nil {
			return err
		}
	}
	hd := c.head
	var err error
	if hd.From, hd.Fresh, err = c.sendFrom(&h); err != nil {
		return err
	}
	from, until := max(hd.From, hd.Start), hd.Next
	if h.Until > 0 {
		until = min(until, h.Until)
	}
	hd.Bulk = h.Only || h.Bulk && c.segs.BytesFrom(from) > bulkFirst
	c.partial = hd.Bulk
	w := &sender{s: s}
	if err := w.message(ctx, frameHead, &hd); err != nil {
		return err
	}
	if !hd.Bulk {
		if err := c.sendSessions(ctx, w); err != nil {
			return err
		}
		if err := c.sendIdentities(ctx, w); err != nil {
			return err
		}
	}
	if err := c.sendBatches(ctx, w, from, until, size); err != nil {
		return err
	}
	return w.send(ctx, w.begin(frameEnd))
}

// bulkFirst is how many bytes of batches are sent ahead of the state, to a receiver that asks again: what comes meanwhile is then a
// short second round, and the state is as new as can be.
const bulkFirst = 4 << 20

// Partial reports whether the receiver was sent batches alone, and will ask for the state.
func (c *checkpoint) Partial() bool { return c.partial }

// sendFrom tells where the receiver's batches end, when they are a prefix of ours; else it gets all, afresh.
func (c *checkpoint) sendFrom(h *have) (from uint64, fresh bool, err error) {
	if h.Version == snapshotVersion && h.Next > c.head.Start && h.Next <= c.head.Next {
		last, err := c.read(h.Next-1, 1, nil)
		if err != nil {
			return 0, false, err
		}
		if len(last) > 0 {
			if m := &last[0].Meta; m.Next() == h.Next && m.Base == h.Base && m.Index == h.Index && m.PayloadCRC == h.CRC {
				return h.Next, false, nil
			}
		}
	}
	if c.head.Start == c.head.Next {
		return c.head.Next, true, nil
	}
	first, err := c.read(c.head.Start, 1, nil)
	if err != nil {
		return 0, false, err
	}
	if len(first) == 0 {
		return 0, false, corrupt("the segments have nothing at offset %d", c.head.Start)
	}
	return first[0].Meta.Base, true, nil // Start may lie inside a batch
}

func (c *checkpoint) sendSessions(ctx context.Context, w *sender) error {
	var group []sentSession
	size := 0
	flush := func() error {
		err := w.message(ctx, frameSessions, group)
		group, size = nil, 0
		return err
	}
	ids := slices.SortedFunc(maps.Keys(c.sessions), func(a, b SessionID) int { return bytes.Compare(a[:], b[:]) })
	for _, id := range ids { // in order, so that the same state is sent in the same way
		group = append(group, c.sessions[id].toSend(id))
		if size += 64 + len(group[len(group)-1].Outcomes); size >= frameBytes/2 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(group) == 0 {
		return nil
	}
	return flush()
}

// identitySender gathers the identities of one minute into frames.
type identitySender struct {
	w     *sender
	frame []byte
}

func (s *identitySender) add(ctx context.Context, minute int64, hash [16]byte, o original) error {
	if len(s.frame) == 0 {
		s.frame = binary.LittleEndian.AppendUint64(s.w.begin(frameIdentities), uint64(minute))
	}
	s.frame = append(s.frame, hash[:]...)
	s.frame = appendOriginal(s.frame, o)
	if len(s.frame)+identitySize > frameBytes {
		return s.flush(ctx)
	}
	return nil
}

func (s *identitySender) flush(ctx context.Context) error {
	if len(s.frame) == 0 {
		return nil
	}
	frame := s.frame
	s.frame = nil
	return s.w.send(ctx, frame)
}

// sendIdentities sends the window, oldest first. A minute that is partly in the store and partly in memory may be sent twice in
// part: the receiver does not mind.
func (c *checkpoint) sendIdentities(ctx context.Context, w *sender) error {
	out := &identitySender{w: w}
	scanned := int64(-1)
	for _, bu := range c.buckets {
		var err error
		switch {
		case bu.ids != nil:
			for hash, o := range bu.ids {
				if err = out.add(ctx, bu.minute, hash, o); err != nil {
					break
				}
			}
		case bu.minute != scanned:
			scanned = bu.minute
			err = c.scanMinute(ctx, bu.minute, out)
		}
		if err != nil {
			return err
		}
		if err := out.flush(ctx); err != nil {
			return err
		}
	}
	// A snapshot installed meanwhile would have removed the keys under the scan.
	if gen := c.p.generation(); gen != c.gen {
		return wire.Errorf(wire.KindUnavailable, "", "the checkpoint's state was replaced")
	}
	return nil
}

func (c *checkpoint) scanMinute(ctx context.Context, minute int64, out *identitySender) error {
	prefix := c.keys.minute(c.gen, minute)
	return c.p.cfg.Store.Scan(prefix, func(key, value []byte) error {
		_, hash, err := splitIdentityKey(key[len(prefix)-8:])
		if err != nil {
			return err
		}
		o, err := parseOriginal(value)
		if err != nil || o.offset >= c.head.Next { // of an entry after the checkpoint
			return err
		}
		return out.add(ctx, minute, hash, o)
	})
}

// read reads pinned batches.
func (c *checkpoint) read(from uint64, maxBytes int, buf []byte) ([]log.StoredBatch, error) {
	batches, err := c.pin.Read(from, maxBytes, buf)
	return batches, c.p.noteDamage(err)
}

// sendBatches sends the batch that holds offset from, and all that follow below until. One goroutine reads while another sends.
func (c *checkpoint) sendBatches(ctx context.Context, w *sender, from, until uint64, size int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &batchFrames{c: c, frames: make(chan []byte, 2), free: make(chan []byte, 4), raw: make([]byte, size)}
	var reading sync.WaitGroup
	var rerr error
	reading.Go(func() {
		defer close(r.frames)
		rerr = r.read(ctx, from, until, size)
	})
	defer reading.Wait()
	defer cancel()
	for frame := range r.frames {
		if err := w.send(ctx, frame); err != nil {
			return err
		}
		select {
		case r.free <- frame:
		default:
		}
	}
	reading.Wait()
	return rerr
}

// batchFrames reads batches ahead of their sending, as frames.
type batchFrames struct {
	c      *checkpoint
	frames chan []byte
	free   chan []byte // frames that were sent
	raw    []byte
}

func (r *batchFrames) read(ctx context.Context, from, until uint64, size int) error {
	c := r.c
	for from < until {
		batches, err := c.read(from, size, r.raw)
		if err != nil {
			return err
		}
		for i := range batches {
			if batches[i].Meta.Base >= until {
				batches = batches[:i]
				break
			}
		}
		if len(batches) == 0 {
			return corrupt("the segments have nothing at offset %d", from)
		}
		from = batches[len(batches)-1].Meta.Next()
		frame := appendBatches(r.begin(), batches)
		for len(frame) > maxBatchFrame {
			if err := r.put(ctx, append(r.begin(), frame[5:maxBatchFrame]...)); err != nil {
				return err
			}
			frame = append(frame[:5], frame[maxBatchFrame:]...)
		}
		if err := r.put(ctx, frame); err != nil {
			return err
		}
		c.pin.Move(from)
	}
	return nil
}

// maxBatchFrame bounds a frame of batches, bytes: a single batch may be larger.
const maxBatchFrame = 2 << 20

// begin starts a frame, in the memory of one that was sent.
func (r *batchFrames) begin() []byte {
	var b []byte
	select {
	case b = <-r.free:
	default:
	}
	return append(b[:0], frameBatches, 0, 0, 0, 0)
}

func (r *batchFrames) put(ctx context.Context, frame []byte) error {
	select {
	case r.frames <- frame:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
