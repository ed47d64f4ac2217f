package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// powerSeeds runs a test with n seeds in virtual time; SEED=s with that one, N=k with k others.
func powerSeeds(t *testing.T, n uint64, run func(t *testing.T, seed uint64)) {
	from := uint64(0)
	if s, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		from, n = s, 1
	} else if k, err := strconv.ParseUint(os.Getenv("N"), 10, 64); err == nil {
		from, n = 1000, k
	}
	for seed := from; seed < from+n && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("seed %d; replay: SEED=%d go test ./flow/log -run '^%s$'", seed, seed, t.Name())
				}
			}()
			run(t, seed)
		})
	}
}

// lifeEnd is how a process ends.
type lifeEnd int

const (
	endClose    lifeEnd = iota
	endKill             // at an operation
	endPower            // at an operation
	endFailSync         // a sync fails; later the power goes
	endFull             // there is no more room for a while; then it closes, or the power goes
	ends
)

// trouble is a medium, and how the process that has it mounted will end.
type trouble struct {
	*logtest.Medium
	rng  *rand.Rand
	end  lifeEnd
	fuse atomic.Int64
	lost atomic.Bool // what was not durable
}

func newTrouble(seed uint64, rng *rand.Rand) *trouble {
	m := &trouble{Medium: logtest.NewMedium(seed), rng: rng}
	m.Before = func(string, string) {
		if m.fuse.Add(-1) != 0 {
			return
		}
		if m.end == endKill {
			m.Kill()
		} else {
			m.lost.Store(true)
			m.LosePower()
		}
	}
	return m
}

// begin starts a life, which lasts for so many operations at most where it ends at one.
func (m *trouble) begin(operations int64) *logtest.Mount {
	m.end = lifeEnd(m.rng.IntN(int(ends)))
	m.lost.Store(false)
	m.fuse.Store(0)
	switch m.end {
	case endKill, endPower:
		m.fuse.Store(1 + m.rng.Int64N(operations))
	case endFailSync:
		m.FailSync(1 + m.rng.IntN(int(operations/4)))
	case endFull:
		m.SetRoom(m.Used() + m.rng.Int64N(40<<10))
	}
	return m.Mount()
}

// finish ends what is left of the life, and reports whether only what is durable is left.
func (m *trouble) finish() bool {
	m.fuse.Store(0)
	if m.end == endFailSync || (m.end == endFull && m.rng.IntN(2) == 0) {
		m.LosePower()
		m.lost.Store(true)
	}
	m.Kill()
	m.SetRoom(-1)
	return m.lost.Load()
}

// The journal is opened, used and left in all ways again and again. What is found each time must be what some first units of those that
// were appended make, the acknowledged ones among them.
func TestJournalKeepsWhatIsAcknowledgedOverPowerLoss(t *testing.T) {
	powerSeeds(t, 60, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 11))
		r := &journalRun{t: t, rng: rng, m: newTrouble(seed, rng), twin: logtest.NewDisk(logtest.Config{}).OpenJournal()}
		defer func() {
			r.m.Kill()
			if r.j != nil {
				_ = r.j.Close()
			}
			_ = r.twin.Close()
		}()
		for range 8 {
			r.life()
		}
		r.m.end = endClose
		r.open(r.m.Mount())
		if err := r.j.Close(); err != nil {
			t.Error(err)
		}
	})
}

const powerGroups = 4

func powerGroup(i int) ring.GroupID { return ring.CatalogGroup(ring.MeshID{3}, i) }

// powerUnit is one unit; the run's mutex guards what became of it.
type powerUnit struct {
	writes   []log.Write
	sync     bool
	answered bool
	err      error
}

// journalRun is a journal over many lives, and its twin, which never dies.
type journalRun struct {
	t    *testing.T
	rng  *rand.Rand
	m    *trouble
	twin *logtest.Journal
	j    *log.FileJournal

	mu    sync.Mutex
	units []*powerUnit // since the journal was last found to agree with the twin
	must  int          // so many of them must be there
	safe  int          // and so many if the power goes

	groups [powerGroups]powerGroupState // with all units, and what was released
	wrote  int
	ended  string // the lives since then
}

type powerGroupState struct {
	born                                       bool
	tombstone, compacted, last, term, released uint64

	dropped uint64 // so far it may have been dropped, if what follows the release is lost
}

func (r *journalRun) life() {
	fsys := r.m.begin(120)
	r.ended += fmt.Sprintf(" %d", r.m.end)
	if r.open(fsys) {
		steps := 5 + r.rng.IntN(60)
		for i := range steps {
			if i == steps*2/3 && r.rng.IntN(2) == 0 {
				r.m.SetRoom(-1)
			}
			r.step()
		}
		r.leave()
	} else if r.m.finish() {
		r.must = r.safe
	}
}

// open opens the journal and compares it; false where that did not come to an end.
func (r *journalRun) open(fsys log.FS) bool {
	var err error
	r.j, err = log.OpenJournal(log.JournalConfig{Dir: "/journal", FS: fsys, FileBytes: 8 << 10, RetainBytes: 32 << 10,
		CacheBytes: 1 + r.rng.Int64N(2)*(1<<20)})
	if wire.KindOf(err) == wire.KindCorrupt || (err != nil && r.m.end == endClose) {
		r.t.Fatalf("open: %v", err)
	}
	if err != nil {
		return false
	}
	found := r.read()
	if found == nil {
		_ = r.j.Close() // it went while it was read
		return false
	}
	r.settle(found)
	return true
}

// leave ends the life, and notes what must be there in the next one.
func (r *journalRun) leave() {
	if r.m.end == endKill && r.rng.IntN(2) == 0 {
		r.m.Kill()
	}
	clean := false
	if r.m.end != endFailSync {
		clean = r.j.Close() == nil
	}
	lost := r.m.finish()
	_ = r.j.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, u := range r.units {
		if !u.answered {
			r.t.Fatalf("unit %d was never answered", i)
		}
		if u.err == nil {
			r.must = i + 1
			if u.sync || clean {
				r.safe = i + 1
			}
		}
	}
	if lost {
		r.must = r.safe
	}
}

// step appends, or releases.
func (r *journalRun) step() {
	if r.rng.IntN(5) > 0 {
		r.append()
		return
	}
	if !r.wait() {
		return
	}
	i := r.rng.IntN(powerGroups)
	g := &r.groups[i]
	if g.last > g.released {
		g.released += uint64(r.rng.Int64N(int64(g.last-g.released) + 1))
		g.dropped = max(g.dropped, g.released)
		r.j.Release(powerGroup(i), g.released)
	}
}

func (r *journalRun) append() {
	u := &powerUnit{sync: r.rng.IntN(3) > 0}
	for range 1 + r.rng.IntN(3) {
		u.writes = append(u.writes, r.write())
	}
	r.mu.Lock()
	r.units = append(r.units, u)
	r.mu.Unlock()
	r.j.Append(context.Background(), u.writes, u.sync, func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		u.answered, u.err = true, err
	})
	if r.rng.IntN(3) == 0 {
		r.wait()
	}
}

// wait waits for all units, but not for ever for space; false where one of them failed.
func (r *journalRun) wait() bool {
	for range 3 {
		synctest.Wait()
		r.mu.Lock()
		last := len(r.units) == 0 || r.units[len(r.units)-1].answered
		ok := !slices.ContainsFunc(r.units, func(u *powerUnit) bool { return !u.answered || u.err != nil })
		r.mu.Unlock()
		if last {
			return ok
		}
		virtual.Sleep(time.Second)
	}
	return false
}

// write makes one write that the group takes, and expects that it does.
func (r *journalRun) write() log.Write {
	i := r.rng.IntN(powerGroups)
	g := &r.groups[i]
	r.wrote++
	w := log.Write{Group: powerGroup(i)}
	if g.born && r.rng.IntN(25) == 0 {
		w.Tombstone = g.tombstone + 1
		*g = powerGroupState{tombstone: w.Tombstone, dropped: g.dropped}
		return w
	}
	if !g.born || r.rng.IntN(30) == 0 {
		w.Birth = fmt.Appendf(nil, "birth %d", r.wrote)
		g.born = true
	}
	if r.rng.IntN(30) == 0 {
		w.Reset = &log.Mark{Index: g.last + 1 + r.rng.Uint64N(50), Term: g.term + 1}
		g.term, g.last, g.compacted, g.released = g.term+1, w.Reset.Index, w.Reset.Index, w.Reset.Index
	}
	if r.rng.IntN(2) == 0 {
		w.HardState = &log.HardState{Term: g.term, Vote: uint64(r.wrote), Commit: g.last}
	}
	if r.rng.IntN(6) == 0 {
		return w
	}
	from := g.last + 1
	if low := max(g.released, g.compacted); g.last > low && r.rng.IntN(6) == 0 {
		from -= r.rng.Uint64N(g.last-low) + 1
		g.term++
	}
	size := r.rng.IntN(900)
	if r.rng.IntN(40) == 0 {
		size = 6000
	}
	for range 1 + r.rng.IntN(4) {
		data := fmt.Appendf(nil, "%d/%d", r.wrote, from)
		data = append(data, bytes.Repeat([]byte{byte(r.wrote)}, r.rng.IntN(size+1))...)
		w.Entries = append(w.Entries, log.Entry{Index: from, Term: max(g.term, 1), Data: data})
		from++
	}
	g.last = from - 1
	return w
}

// heldGroup is what a journal holds of a group.
type heldGroup struct {
	state   log.GroupState
	known   bool
	entries []log.Entry
}

// read reads all groups; nil where the medium went.
func (r *journalRun) read() []heldGroup {
	held := make([]heldGroup, powerGroups)
	for i := range held {
		h := &held[i]
		h.state, h.known = r.j.Load(powerGroup(i))
		if !h.known || h.state.Last < h.state.First {
			continue
		}
		var err error
		h.entries, err = r.j.Entries(powerGroup(i), h.state.First, h.state.Last+1, 1<<40)
		if errors.Is(err, logtest.ErrGone) {
			return nil
		}
		if err != nil {
			r.t.Fatalf("group %d: %v", i, err)
		}
	}
	return held
}

// settle gives the twin as many units as it takes to agree.
func (r *journalRun) settle(found []heldGroup) {
	why := ""
	for i := 0; i <= len(r.units); i++ {
		if i > 0 {
			r.twin.Append(context.Background(), r.units[i-1].writes, true, func(error) {})
			synctest.Wait()
		}
		if i < r.must {
			continue
		}
		differs := r.differs(found)
		if differs == "" {
			r.units, r.must, r.safe, r.ended = nil, 0, 0, fmt.Sprint(r.m.end)
			r.expect(found)
			return
		}
		if i < r.must+4 {
			why += fmt.Sprintf("\nafter %d: %s", i, differs)
		}
	}
	r.t.Fatalf("after %s: what is there is not what %d to %d units make:%s", r.ended, r.must, len(r.units), why)
}

// differs says where the twin holds something else. The journal may have dropped what was released.
func (r *journalRun) differs(found []heldGroup) string {
	for i, h := range found {
		want, known := r.twin.Load(powerGroup(i))
		got := h.state
		compacted := got.Compacted
		got.First, got.Compacted = want.First, want.Compacted
		if known != h.known || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			return fmt.Sprintf("group %d: is %+v, want %+v", i, h.state, want)
		}
		if compacted.Index < want.Compacted.Index || compacted.Index > max(want.Compacted.Index, r.groups[i].dropped) {
			return fmt.Sprintf("group %d: compacted at %+v, want %+v, released %d", i, compacted, want.Compacted, r.groups[i].dropped)
		}
		if term, err := r.twin.Term(powerGroup(i), compacted.Index); known && (err != nil || term != compacted.Term) {
			return fmt.Sprintf("group %d: compacted at %+v, want term %d, %v", i, compacted, term, err)
		}
		for k, e := range h.entries {
			w, err := r.twin.Entries(powerGroup(i), e.Index, e.Index+1, 0)
			if err != nil || e.Index != compacted.Index+1+uint64(k) || e.Term != w[0].Term || !bytes.Equal(e.Data, w[0].Data) {
				return fmt.Sprintf("group %d: entry %d differs: %v", i, e.Index, err)
			}
		}
	}
	return ""
}

// expect goes on from what was found.
func (r *journalRun) expect(found []heldGroup) {
	for i, h := range found {
		g := &r.groups[i]
		*g = powerGroupState{born: h.state.Birth != nil, tombstone: h.state.Tombstone, compacted: h.state.Compacted.Index,
			last: h.state.Last, term: g.term, released: h.state.Compacted.Index, dropped: h.state.Compacted.Index}
	}
}

func TestJournalThatClosesOnAFullDiskStoresNothingAfterAUnitThatItRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := logtest.NewMedium(1)
		j, err := log.OpenJournal(log.JournalConfig{Dir: "/journal", FS: m.Mount(), FileBytes: 8 << 10})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the next file is ready
		m.SetRoom(0)
		var stored []string
		add := func(name string, i, size int) {
			w := log.Write{Group: powerGroup(i), Entries: []log.Entry{{Index: 1, Term: 1, Data: make([]byte, size)}}}
			j.Append(context.Background(), []log.Write{w}, true, func(err error) {
				if err == nil {
					stored = append(stored, name)
				}
			})
			synctest.Wait()
		}
		add("first", 0, 5000)
		add("in the file that is ready", 1, 5000)
		add("too large", 2, 5000)
		add("small", 3, 10)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(stored, []string{"first", "in the file that is ready"}) {
			t.Fatalf("stored: %q", stored)
		}
	})
}
