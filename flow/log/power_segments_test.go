package log_test

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/transport/wire"
)

// Segments are opened, used and left in all ways again and again, with a small state that may be older, as that of a store is that was
// not flushed. What it says is synced must be there, and all that is there must read as it was written.
func TestSegmentsKeepWhatIsSyncedOverPowerLoss(t *testing.T) {
	powerSeeds(t, 150, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 12))
		r := &segmentsRun{t: t, rng: rng, m: newTrouble(seed, rng), small: make([]smallState, 1)}
		d := r.m.Mount()
		if err := errors.Join(d.Mkdir("/data"), d.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		r.m.Kill()
		for range 8 {
			r.life()
		}
		r.m.end = endClose
		if r.open(r.m.Mount()) {
			_ = r.s.Close()
		}
	})
}

// smallState is a committed small state.
type smallState struct {
	log.Recovery
	synced uint64 // up to this offset it says that batches are
}

// segmentsRun is the segments of one partition over many lives.
type segmentsRun struct {
	t   *testing.T
	rng *rand.Rand
	m   *trouble
	s   *log.Segments

	small   []smallState // the durable one, and those committed since
	written uint64       // before this offset batches are in the cache, or were cut
	trimmed uint64       // Start may be up to here
	reset   uint64       // Start is at least here
	asked   uint64       // a reset that may have come so far
}

// batchAt is the batch at an offset. Each has two.
func batchAt(base uint64) (*batch.Meta, []byte) {
	i := base / 2
	payload := bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, 300)[:20+i*37%800]
	return &batch.Meta{Count: 2, RawLen: uint32(len(payload)), PayloadLen: uint32(len(payload)),
		PayloadCRC: crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)), Seq: i, Stamp: int64(i), Base: base, Index: i + 1, Term: 1,
		Identities: []batch.Identity{{Payload: 1}, {Payload: 2}}}, payload
}

func (r *segmentsRun) last() *smallState { return &r.small[len(r.small)-1] }

// commit puts what was applied, and change, into the small state; sometimes it is flushed.
func (r *segmentsRun) commit(change func(s *smallState)) {
	s := *r.last()
	s.Next = max(s.Next, r.s.Next())
	s.AppliedIndex = s.Next / 2
	if change != nil {
		change(&s)
	}
	r.small = append(r.small, s)
	if r.rng.IntN(4) == 0 {
		r.small = r.small[len(r.small)-1:]
	}
}

func (r *segmentsRun) life() {
	fsys := r.m.begin(80)
	if r.open(fsys) {
		steps := 5 + r.rng.IntN(60)
		for i := range steps {
			if i == steps*2/3 && r.rng.IntN(2) == 0 {
				r.m.SetRoom(-1)
			}
			if err := r.step(); err != nil && !log.IsDiskFull(err) {
				if wire.KindOf(err) == wire.KindCorrupt || r.m.end == endClose || r.m.end == endFull {
					r.t.Fatalf("step %d: %v", i, err)
				}
				break
			}
		}
		_ = r.s.Close()
	}
	if r.m.finish() {
		r.written = 0
	}
	// The store loses a suffix of its commits.
	r.small = r.small[:1+r.rng.IntN(len(r.small))]
	r.small = r.small[len(r.small)-1:]
}

// open opens the segments and checks what is there; false where that did not come to an end.
func (r *segmentsRun) open(fsys log.FS) bool {
	was := *r.last()
	var err error
	r.s, err = log.OpenSegments("/data/partition/segments", log.SegmentConfig{FS: fsys, Root: "/data", FileBytes: 4 << 10,
		IndexBytes: 1 << 10, TailBytes: -1}, was.Recovery)
	if wire.KindOf(err) == wire.KindCorrupt || (err != nil && r.m.end == endClose) {
		r.t.Fatalf("open with %+v: %v", was, err)
	}
	if err != nil {
		return false
	}
	start, next := r.s.Start(), r.s.Next()
	low := max(r.reset, min(max(was.synced, r.written), was.Next))
	if next < low || next > max(was.Next, r.trimmed, r.asked) { // what was trimmed is gone, though the small state was before it
		r.t.Fatalf("goes on at %d, not between %d and %d, trimmed %d, reset %d", next, low, was.Next, r.trimmed, r.asked)
	}
	if start < max(was.Start, r.reset) || start > max(r.trimmed, r.asked) {
		r.t.Fatalf("starts at %d, not between %d, reset %d, and %d, reset %d", start, was.Start, r.reset, r.trimmed, r.asked)
	}
	if err := r.read(start); err != nil {
		if !errors.Is(err, logtest.ErrGone) {
			r.t.Fatal(err)
		}
		_ = r.s.Close()
		return false
	}
	r.written = next
	if r.asked > r.reset && start >= r.asked {
		r.reset = r.asked // it came so far that it is seen, and is durable from now on
	}
	r.asked = r.reset
	r.commit(func(s *smallState) {
		s.Synced, s.Start = r.s.SyncedState(), start
		s.synced = min(s.synced, next)
	})
	return true
}

// read compares all batches.
func (r *segmentsRun) read(from uint64) error {
	for at := from; at < r.s.Next(); {
		got, err := r.s.Read(at, 2000, nil)
		if err != nil {
			return err
		}
		if len(got) == 0 {
			r.t.Fatalf("nothing at %d, the next is %d", at, r.s.Next())
		}
		for _, b := range got {
			want, payload := batchAt(b.Meta.Base)
			if b.Meta.Base > at || b.Meta.Next() <= at || b.Meta.Index != want.Index || !bytes.Equal(b.Payload, payload) {
				r.t.Fatalf("at %d: batch %d differs", at, b.Meta.Base)
			}
			at = b.Meta.Next()
		}
	}
	return nil
}

func (r *segmentsRun) step() error {
	s := r.s
	switch n := r.rng.IntN(40); {
	case n < 26:
		m, payload := batchAt(s.Next())
		if err := s.Append(m, payload); err != nil {
			return err
		}
		r.written = s.Next()
		if r.rng.IntN(3) == 0 {
			r.commit(nil)
		}
	case n < 34:
		next := s.Next()
		if err := s.Sync(); err != nil {
			return err
		}
		if r.rng.IntN(3) > 0 {
			r.commit(func(c *smallState) { c.Synced, c.synced = s.SyncedState(), next })
		}
	case n < 38:
		to := s.Start()
		if s.Next() <= to {
			return nil
		}
		to += r.rng.Uint64N(s.Next() - to + 1)
		r.trimmed = max(r.trimmed, to)
		if r.rng.IntN(2) == 0 {
			r.commit(func(c *smallState) { c.Start = to })
		}
		return s.TrimTo(to)
	case n == 38:
		to := max(s.Next(), r.last().Next) + 2*r.rng.Uint64N(20)
		if to == r.trimmed {
			to += 2 // so that Start tells a reset from a trim
		}
		r.asked = to
		if err := s.Reset(to); err != nil {
			return err
		}
		r.reset, r.written = to, to
		if r.rng.IntN(2) == 0 {
			r.commit(func(c *smallState) { c.Start, c.Synced, c.synced = to, s.SyncedState(), to })
		}
	default:
		return r.read(s.Start())
	}
	return nil
}
