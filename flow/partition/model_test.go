package partition

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/transport/wire"
)

// model is the partition as its promises have it, written to be read and not to be fast.
type model struct {
	stamp, window, floor int64
	start                uint64
	events               []readEvent
	ids                  []modelID
	sessions             map[SessionID]*modelSession
}

type modelID struct {
	rec    rec
	offset uint64
	minute int64
}

type modelSession struct {
	seen    int64
	results []BatchResult
}

func newModel() *model {
	return &model{window: 10 * minuteMS, sessions: map[SessionID]*modelSession{}}
}

func (m *model) tick(stamp int64) {
	m.stamp = max(m.stamp, stamp)
	m.floor = max(m.floor, (m.stamp-m.window)/minuteMS)
}

// batch returns the result as far as it is promised: of a refusal only its kind.
func (m *model) batch(id SessionID, seq uint64, recs []rec) (res BatchResult, refused wire.Kind) {
	s := m.sessions[id]
	if s == nil || m.stamp-s.seen > sessionIdleMS {
		return res, wire.KindFenced
	}
	n := uint64(len(s.results))
	switch {
	case seq > n+1:
		return res, wire.KindFenced
	case seq == 0:
		return res, wire.KindInvalid
	case seq+outcomesKept <= n:
		return res, wire.KindOutcomeUnknown
	case seq <= n:
		res = s.results[seq-1]
		res.Retry = true
		return res, 0
	}
	res = BatchResult{Base: uint64(len(m.events)), Count: uint32(len(recs)), Stamp: m.stamp}
	for pos, r := range recs {
		if known := m.find(r.id); known != nil {
			res.Dups = append(res.Dups, Dup{Pos: uint32(pos), Offset: known.offset, Reused: known.rec.payload != r.payload})
			continue
		}
		offset := uint64(len(m.events))
		if r.id != 0 {
			m.ids = append(m.ids, modelID{r, offset, m.stamp / minuteMS})
		}
		m.events = append(m.events, readEvent{offset, m.stamp, r.value})
	}
	s.seen, s.results = m.stamp, append(s.results, res)
	return res, 0
}

func (m *model) find(id byte) *modelID {
	for i := range m.ids {
		if id != 0 && m.ids[i].rec.id == id && m.ids[i].minute >= m.floor {
			return &m.ids[i]
		}
	}
	return nil
}

// run drives one history of entries into several replicas and the model.
type run struct {
	t        *rapid.T
	rnd      *rand.Rand
	m        *model
	hosts    []*host
	entries  []log.Entry
	results  []any // of the entries, as the first replica saw them
	proposed map[SessionID][][]rec
	now      int64
	dirs     []string
}

func (r *run) propose(data []byte, want any) {
	r.entries = append(r.entries, log.Entry{Index: uint64(11 + len(r.entries)), Term: 1, Data: data})
	r.results = append(r.results, want)
}

func (r *run) stamp() int64 {
	switch rapid.IntRange(0, 20).Draw(r.t, "clock") {
	case 0:
		r.now += 8 * minuteMS
	case 1:
		r.now += 16 * minuteMS
	case 2:
		return max(0, r.now-5000)
	default:
		r.now += rapid.Int64Range(0, 20_000).Draw(r.t, "ms")
	}
	return r.now
}

var modelSessionIDs = []SessionID{{1}, {2}, {3}}

func (r *run) open(*rapid.T) {
	id, stamp := rapid.SampledFrom(modelSessionIDs).Draw(r.t, "session"), r.stamp()
	r.m.tick(stamp)
	r.expire()
	if r.m.sessions[id] == nil {
		r.m.sessions[id] = &modelSession{seen: r.m.stamp}
	}
	r.propose(EncodeOpenSession(nil, id, testNode, stamp), SessionResult{Last: uint64(len(r.m.sessions[id].results)), Stamp: r.m.stamp})
}

func (r *run) expire() {
	for id, s := range r.m.sessions {
		if r.m.stamp-s.seen > sessionIdleMS {
			delete(r.m.sessions, id)
			delete(r.proposed, id)
		}
	}
}

func (r *run) end(*rapid.T) {
	id, stamp := rapid.SampledFrom(modelSessionIDs).Draw(r.t, "session"), r.stamp()
	r.m.tick(stamp)
	res := SessionResult{Stamp: r.m.stamp}
	if s := r.m.sessions[id]; s != nil {
		res.Last = uint64(len(s.results))
	}
	delete(r.m.sessions, id)
	delete(r.proposed, id)
	r.propose(EncodeCloseSession(nil, id, stamp), res)
}

func (r *run) batch(*rapid.T) {
	id, stamp := rapid.SampledFrom(modelSessionIDs).Draw(r.t, "session"), r.stamp()
	last := uint64(len(r.proposed[id]))
	seq := last + 1
	switch rapid.IntRange(0, 9).Draw(r.t, "order") {
	case 0:
		seq = last + 2
	case 1, 2:
		seq = rapid.Uint64Range(last-min(last, outcomesKept+2), last).Draw(r.t, "seq")
	}
	var recs []rec
	if seq > 0 && seq <= last {
		recs = r.proposed[id][seq-1]
	} else {
		for i := range rapid.IntRange(1, 5).Draw(r.t, "records") {
			recs = append(recs, rec{id: rapid.Byte().Draw(r.t, "id") % 40, payload: uint64(rapid.IntRange(0, 9).Draw(r.t, "payload") / 9),
				value: fmt.Sprintf("entry %d record %d", len(r.entries), i)})
		}
	}
	r.m.tick(stamp)
	res, refused := r.m.batch(id, seq, recs)
	if refused == 0 && seq == last+1 {
		r.proposed[id] = append(r.proposed[id], recs)
	}
	if refused != 0 {
		r.propose(batchEntry(0, id, seq, stamp, recs...).Data, refused)
		return
	}
	r.propose(batchEntry(0, id, seq, stamp, recs...).Data, res)
}

func (r *run) trim(*rapid.T) {
	stamp := r.stamp()
	start := uint64(len(r.m.events))
	if rapid.Bool().Draw(r.t, "some stay") {
		start = rapid.Uint64Range(0, start+2).Draw(r.t, "start")
	}
	r.m.tick(stamp)
	r.m.start = min(max(r.m.start, start), uint64(len(r.m.events)))
	r.propose(EncodeTrim(nil, start, stamp), TrimResult{Start: r.m.start})
}

func (r *run) config(t *rapid.T) {
	stamp := r.stamp()
	l := Limits{DedupeWindowMS: rapid.Int64Range(0, 20).Draw(t, "window") * minuteMS}
	raw, err := EncodeConfig(nil, l, stamp)
	if err != nil {
		t.Fatal(err)
	}
	r.m.tick(stamp)
	r.m.window = l.DedupeWindowMS
	r.propose(raw, ConfigResult{Limits: l})
}

// catchUp gives a replica the entries it lacks, up to n of them, in commits of random size.
func (r *run) catchUp(h *host, n int) {
	for n > 0 {
		from := 0
		if h.applied > 0 {
			from = int(h.applied) - 10
		}
		size := min(1+r.rnd.IntN(4), n, len(r.entries)-from)
		if size == 0 {
			return
		}
		for i, res := range h.apply(r.entries[from : from+size]...) {
			if b, ok := res.(BatchResult); ok && b.Err != nil {
				res = b.Err.Kind
			}
			if want := r.results[from+i]; !reflect.DeepEqual(res, want) {
				r.t.Fatalf("entry %d: got %+v, want %+v", r.entries[from+i].Index, res, want)
			}
		}
		n -= size
	}
}

func (r *run) drawHost(t *rapid.T) *host {
	return r.hosts[rapid.IntRange(0, len(r.hosts)-1).Draw(t, "host")]
}

func (r *run) snapshot(t *rapid.T) {
	from, to := r.drawHost(t), r.drawHost(t)
	r.catchUp(to, r.rnd.IntN(3))
	if from == to || from.applied <= to.applied {
		return
	}
	applied := from.applied
	staged, err := transfer(t, from, to, newPipe(), func() { r.catchUp(from, 5) })
	if err != nil {
		t.Fatal(err)
	}
	switch rapid.SampledFrom([]string{"installed", "crash before it is committed", "dropped"}).Draw(t, "then") {
	case "installed":
		to.install(staged, applied)
	case "dropped":
		if err := staged.(io.Closer).Close(); err != nil {
			t.Fatal(err)
		}
	default:
		if err := to.p.Install(staged, to.store.NewBatch()); err != nil {
			t.Fatal(err)
		}
		to.sync(rapid.Bool().Draw(t, "flush"))
		r.crash(to)
	}
}

// crash loses what was not durable, by chance.
func (r *run) crash(h *host) {
	h.crash(r.entries, func(n int64) int64 {
		if n == 0 {
			return 0
		}
		return r.rnd.Int64N(n + 1)
	})
}

func (r *run) check(t *rapid.T) {
	for _, h := range r.hosts {
		r.catchUp(h, len(r.entries))
	}
	first := r.hosts[0].dump()
	for i, h := range r.hosts[1:] {
		if got := h.dump(); got != first {
			t.Fatalf("replica %d differs:\n%s\n\nthe first is\n%s", i+1, got, first)
		}
	}
	p := r.hosts[0].p
	if p.Start() != r.m.start || p.Next() != uint64(len(r.m.events)) {
		t.Fatalf("offsets [%d, %d), want [%d, %d)", p.Start(), p.Next(), r.m.start, len(r.m.events))
	}
	for from := p.Start(); from < p.Next(); {
		for _, ev := range r.hosts[0].read(from) {
			if want := r.m.events[ev.offset]; ev != want {
				t.Fatalf("read %+v, want %+v", ev, want)
			}
			from = ev.offset + 1
		}
	}
}

// Whatever crashes, restarts, snapshots and memory limits befall the replicas: equal entries give equal results, equal state and
// equal events, and they are those of the model.
func TestReplicasAgreeWithEachOtherAndTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &run{t: t, m: newModel(), proposed: map[SessionID][][]rec{}}
		r.rnd = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		defer func() {
			for i, h := range r.hosts {
				_ = h.p.Close()
				if n := h.cfg.Limit.Held(); n != 0 {
					t.Fatalf("replica %d: %d identities still counted", i, n)
				}
				_ = os.RemoveAll(r.dirs[i])
			}
		}()
		for _, cfg := range []Config{{}, {MaxIdentities: 8}, {MaxIdentities: 1, MaxFilterBytes: 24}} {
			dir, err := os.MkdirTemp("", "partition")
			if err != nil {
				t.Fatal(err)
			}
			cfg.Limit = NewNodeLimit(1 << 20)
			r.dirs = append(r.dirs, dir)
			r.hosts = append(r.hosts, newHost(t, dir, logtest.NewDisk(logtest.Config{Rand: r.rnd}), cfg))
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": r.open, "close": r.end, "batch": r.batch, "batch2": r.batch, "batch3": r.batch, "batch4": r.batch,
			"trim": r.trim, "config": r.config, "snapshot": r.snapshot,
			"clock": func(*rapid.T) {
				stamp := r.stamp()
				r.m.tick(stamp)
				r.expire()
				r.propose(EncodeClock(nil, stamp), nil)
			},
			"apply": func(t *rapid.T) { r.catchUp(r.drawHost(t), 20) },
			"sync":  func(t *rapid.T) { r.drawHost(t).sync(rapid.Bool().Draw(t, "flush")) },
			"crash": func(t *rapid.T) {
				h := r.drawHost(t)
				for range rapid.IntRange(1, 2).Draw(t, "crashes") { // the second before anything is written
					r.crash(h)
				}
			},
			"trim, sync": func(t *rapid.T) {
				h := r.drawHost(t)
				r.trim(t)
				r.catchUp(h, len(r.entries))
				h.sync(rapid.Bool().Draw(t, "flush"))
			},
			"restart": func(t *rapid.T) {
				h := r.drawHost(t)
				h.close()
				h.open()
			},
		})
		r.check(t)
	})
}
