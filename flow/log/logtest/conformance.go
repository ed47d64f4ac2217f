package logtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// RunJournal is what every log.Journal must do. open opens the journal that dir names; it is called again with the same dir after Close.
func RunJournal(t *testing.T, open func(t testing.TB, dir string) log.Journal) {
	for name, test := range map[string]func(t *testing.T, s *suite){
		"GivesBackAfterReopenWhatWasAppended":           testReopen,
		"OverwritingASuffixDropsWhatFollowed":           testOverwrite,
		"ResetStartsTheLogAfterItsMark":                 testReset,
		"TombstoneForgetsAllButItself":                  testTombstone,
		"RefusesHolesAndTheWholeUnitWithThem":           testRefusal,
		"EntriesHonoursBoundsAndBytes":                  testEntries,
		"CallsDoneOnceAndInOrder":                       testOrder,
		"NeverForgetsWhatWasNotReleased":                testRelease,
		"CloseIsIdempotentAndLaterAppendsAreRefused":    testClose,
		"KeepsHardStateWithoutSyncOverAClose":           testHardState,
		"ServesManyGroupsAndReadersAtTheSameTime":       testConcurrent,
		"TakesTwoWritesToOneGroupInOneUnitInOrder":      testTwoWrites,
		"AnEmptyUnitEndsWhenThoseBeforeItAreVisible":    testEmptyUnit,
		"ShowsNothingOfAGroupThatWasNeverWrittenTo":     testUnknown,
		"KeepsEmptyEntriesTypesAndEmptyBirthsAsTheyAre": testEmpty,
	} {
		t.Run(name, func(t *testing.T) { test(t, &suite{open: open, dir: t.TempDir()}) })
	}
}

type suite struct {
	open func(t testing.TB, dir string) log.Journal
	dir  string
	j    log.Journal
}

func (s *suite) start(t testing.TB) log.Journal {
	t.Helper()
	if s.j != nil {
		if err := s.j.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	s.j = s.open(t, s.dir)
	j := s.j
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// write appends one unit and waits for it.
func write(j log.Journal, sync bool, w ...log.Write) error {
	ch := make(chan error, 1)
	j.Append(context.Background(), w, sync, func(err error) { ch <- err })
	return <-ch
}

func mustWrite(t testing.TB, j log.Journal, w ...log.Write) {
	t.Helper()
	if err := write(j, true, w...); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func groupOf(i int) ring.GroupID { return ring.CatalogGroup(ring.MeshID{9}, i) }

// run makes entries [lo, hi) whose data tells index and term.
func run(term, lo, hi uint64, size int) []log.Entry {
	var out []log.Entry
	for i := lo; i < hi; i++ {
		data := bytes.Repeat([]byte{'.'}, size)
		copy(data, fmt.Sprintf("%d/%d ", i, term))
		out = append(out, log.Entry{Index: i, Term: term, Data: data})
	}
	return out
}

func same(a, b log.Entry) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Type == b.Type && bytes.Equal(a.Data, b.Data)
}

// check compares everything that a group holds.
func check(t testing.TB, j log.Journal, g ring.GroupID, compacted log.Mark, want []log.Entry) {
	t.Helper()
	st, ok := j.Load(g)
	last := compacted.Index + uint64(len(want))
	if !ok || st.Group != g || st.Compacted != compacted || st.First != compacted.Index+1 || st.Last != last {
		t.Fatalf("state %+v (known: %v), want entries (%d, %d]", st, ok, compacted.Index, last)
	}
	if len(want) > 0 {
		got, err := j.Entries(g, st.First, st.Last+1, 1<<40)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d entries, want %d: %v", len(got), len(want), err)
		}
		for i := range got {
			if !same(got[i], want[i]) {
				t.Fatalf("entry %d differs: %+v, want %+v", i, got[i], want[i])
			}
			if term, err := j.Term(g, got[i].Index); err != nil || term != want[i].Term {
				t.Fatalf("term of %d: %d, %v", got[i].Index, term, err)
			}
		}
	}
	if term, err := j.Term(g, compacted.Index); err != nil || term != compacted.Term {
		t.Fatalf("term at the compacted mark: %d, %v", term, err)
	}
}

func testReopen(t *testing.T, s *suite) {
	j := s.start(t)
	for i := range uint64(30) {
		for g := range 3 {
			mustWrite(t, j, log.Write{Group: groupOf(g), Entries: run(2, 3*i+1, 3*i+4, 100*g+20),
				HardState: &log.HardState{Term: 2, Vote: uint64(g), Commit: 3 * i}})
		}
	}
	mustWrite(t, j, log.Write{Group: groupOf(1), Birth: []byte("born")})
	for range 3 {
		for g := range 3 {
			check(t, j, groupOf(g), log.Mark{}, run(2, 1, 91, 100*g+20))
			if st, _ := j.Load(groupOf(g)); st.HardState != (log.HardState{Term: 2, Vote: uint64(g), Commit: 87}) {
				t.Fatalf("hard state %+v", st.HardState)
			}
		}
		if st, _ := j.Load(groupOf(1)); string(st.Birth) != "born" {
			t.Fatalf("birth %q", st.Birth)
		}
		if got := j.Groups(); len(got) != 3 {
			t.Fatalf("%d groups", len(got))
		}
		j = s.start(t)
	}
}

func testOverwrite(t *testing.T, s *suite) {
	j := s.start(t)
	g := groupOf(0)
	mustWrite(t, j, log.Write{Group: g, Entries: run(1, 1, 11, 50)})
	mustWrite(t, j, log.Write{Group: g, Entries: run(2, 6, 8, 60)})
	want := append(run(1, 1, 6, 50), run(2, 6, 8, 60)...)
	check(t, j, g, log.Mark{}, want)
	if _, err := j.Entries(g, 8, 9, 1); !errors.Is(err, log.ErrUnavailable) {
		t.Fatalf("entry that was dropped: %v", err)
	}
	j = s.start(t)
	check(t, j, g, log.Mark{}, want)
	// All of them, and twice without waiting in between.
	var done sync.WaitGroup
	done.Add(2)
	j.Append(context.Background(), []log.Write{{Group: g, Entries: run(3, 1, 5, 50)}}, true, func(error) { done.Done() })
	j.Append(context.Background(), []log.Write{{Group: g, Entries: run(4, 3, 7, 50)}}, true, func(error) { done.Done() })
	done.Wait()
	want = append(run(3, 1, 3, 50), run(4, 3, 7, 50)...)
	check(t, j, g, log.Mark{}, want)
	check(t, s.start(t), g, log.Mark{}, want)
}

func testReset(t *testing.T, s *suite) {
	j := s.start(t)
	g := groupOf(0)
	mark := log.Mark{Index: 10, Term: 1}
	mustWrite(t, j, log.Write{Group: g, Birth: []byte{1}, Reset: &mark, HardState: &log.HardState{Term: 1, Commit: 10}, Entries: run(1, 11, 13, 10)})
	check(t, j, g, mark, run(1, 11, 13, 10))
	if _, err := j.Term(g, 9); !errors.Is(err, log.ErrCompacted) {
		t.Fatalf("term before the mark: %v", err)
	}
	if _, err := j.Entries(g, 10, 12, 1<<20); !errors.Is(err, log.ErrCompacted) {
		t.Fatalf("entry at the mark: %v", err)
	}
	mark = log.Mark{Index: 500, Term: 7}
	mustWrite(t, j, log.Write{Group: g, Reset: &mark})
	check(t, j, g, mark, nil)
	j = s.start(t)
	check(t, j, g, mark, nil)
	mustWrite(t, j, log.Write{Group: g, Entries: run(8, 501, 503, 10)})
	check(t, s.start(t), g, mark, run(8, 501, 503, 10))
}

func testTombstone(t *testing.T, s *suite) {
	j := s.start(t)
	g := groupOf(0)
	mustWrite(t, j, log.Write{Group: g, Birth: []byte("a"), HardState: &log.HardState{Term: 3}, Entries: run(3, 1, 4, 10)})
	mustWrite(t, j, log.Write{Group: g, Tombstone: 5})
	for range 2 {
		st, ok := j.Load(g)
		if !ok || st.Tombstone != 5 || st.Birth != nil || st.Last != 0 || st.First != 1 || st.HardState != (log.HardState{}) {
			t.Fatalf("after removal: %+v (known: %v)", st, ok)
		}
		if err := write(j, true, log.Write{Group: g, Entries: run(3, 1, 2, 10)}); wire.KindOf(err) != wire.KindInvalid {
			t.Fatalf("write to a removed group: %v", err)
		}
		j = s.start(t)
	}
	mustWrite(t, j, log.Write{Group: g, Tombstone: 4}) // an older one changes nothing
	mark := log.Mark{Index: 10, Term: 1}
	mustWrite(t, j, log.Write{Group: g, Birth: []byte("b"), Reset: &mark, Entries: run(1, 11, 12, 10)})
	j = s.start(t)
	check(t, j, g, mark, run(1, 11, 12, 10))
	if st, _ := j.Load(g); st.Tombstone != 5 || string(st.Birth) != "b" {
		t.Fatalf("born again: %+v", st)
	}
}

func testRefusal(t *testing.T, s *suite) {
	j := s.start(t)
	g, other := groupOf(0), groupOf(1)
	mustWrite(t, j, log.Write{Group: g, Entries: run(1, 1, 4, 10)})
	bad := map[string]log.Write{
		"hole":           {Group: g, Entries: run(1, 5, 6, 10)},
		"index 0":        {Group: g, Entries: run(1, 0, 2, 10)},
		"not contiguous": {Group: g, Entries: append(run(1, 4, 5, 10), run(1, 6, 7, 10)...)},
		"tombstone with": {Group: g, Tombstone: 3, HardState: &log.HardState{}},
	}
	for name, w := range bad {
		err := write(j, true, log.Write{Group: other, Entries: run(1, 1, 2, 10)}, log.Write{Group: g, HardState: &log.HardState{Term: 9}}, w)
		if wire.KindOf(err) != wire.KindInvalid {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for range 2 {
		check(t, j, g, log.Mark{}, run(1, 1, 4, 10))
		if st, _ := j.Load(g); st.HardState.Term != 0 {
			t.Fatalf("part of a refused unit is there: %+v", st)
		}
		if st, ok := j.Load(other); ok && st.Last > 0 {
			t.Fatalf("part of a refused unit is there: %+v", st)
		}
		j = s.start(t)
	}
	mustWrite(t, j, log.Write{Group: g, Entries: run(1, 4, 5, 10)}) // a refusal is not the end
}

func testEntries(t *testing.T, s *suite) {
	j := s.start(t)
	g := groupOf(0)
	mustWrite(t, j, log.Write{Group: g, Entries: run(1, 1, 11, 100)})
	for max, want := range map[uint64]int{0: 1, 1: 1, 100: 1, 199: 1, 200: 2, 1000: 9, 1 << 40: 9} {
		if got, err := j.Entries(g, 2, 11, max); err != nil || len(got) != want || got[0].Index != 2 {
			t.Fatalf("up to %d bytes: %d entries, %v; want %d", max, len(got), err, want)
		}
	}
	if got, err := j.Entries(g, 3, 3, 100); err != nil || len(got) != 0 {
		t.Fatalf("empty range: %v, %v", got, err)
	}
	if _, err := j.Entries(g, 3, 12, 100); !errors.Is(err, log.ErrUnavailable) {
		t.Fatalf("beyond the end: %v", err)
	}
	if _, err := j.Term(g, 11); !errors.Is(err, log.ErrUnavailable) {
		t.Fatalf("term beyond the end: %v", err)
	}
}

func testOrder(t *testing.T, s *suite) {
	j := s.start(t)
	const n = 200
	var got []int
	var done sync.WaitGroup
	done.Add(n)
	for i := range n {
		g := groupOf(i % 4)
		j.Append(context.Background(), []log.Write{{Group: g, Entries: run(1, uint64(i/4)+1, uint64(i/4)+2, 200)}}, i%3 != 0, func(err error) {
			defer done.Done()
			if err != nil {
				t.Errorf("unit %d: %v", i, err)
			}
			got = append(got, i) // one goroutine calls all of them
			if last, _ := j.Load(g); last.Last < uint64(i/4)+1 {
				t.Errorf("unit %d is done but not visible", i)
			}
		})
	}
	done.Wait()
	for i := range got {
		if got[i] != i {
			t.Fatalf("done %d was called at place %d", got[i], i)
		}
	}
}

func testRelease(t *testing.T, s *suite) {
	j := s.start(t)
	idle, busy := groupOf(0), groupOf(1)
	mustWrite(t, j, log.Write{Group: idle, Birth: []byte("x"), Entries: run(1, 1, 3, 100)})
	j.Release(idle, 1)
	const n = 400
	for i := uint64(1); i <= n; i++ {
		if err := write(j, i%50 == 0, log.Write{Group: busy, Entries: run(1, i, i+1, 3000)}); err != nil {
			t.Fatal(err)
		}
		j.Release(busy, i)
	}
	if got, err := j.Entries(idle, 2, 3, 1000); err != nil || !same(got[0], run(1, 2, 3, 100)[0]) {
		t.Fatalf("an entry that was not released: %v, %v", got, err)
	}
	j = s.start(t)
	if got, err := j.Entries(idle, 2, 3, 1000); err != nil || !same(got[0], run(1, 2, 3, 100)[0]) {
		t.Fatalf("after reopen, an entry that was not released: %v, %v", got, err)
	}
	j.Release(idle, 99) // more than there is
	j.Release(groupOf(77), 1)
	for i := uint64(n + 1); i <= 2*n; i++ {
		if err := write(j, i%50 == 0, log.Write{Group: busy, Entries: run(1, i, i+1, 3000)}); err != nil {
			t.Fatal(err)
		}
		j.Release(busy, i)
	}
	for range 2 {
		st, _ := j.Load(idle)
		if st.Last != 2 || string(st.Birth) != "x" {
			t.Fatalf("the idle group: %+v", st)
		}
		if term, err := j.Term(idle, 2); err != nil || term != 1 {
			t.Fatalf("term of the last entry: %d, %v", term, err)
		}
		if st, _ := j.Load(busy); st.Last != 2*n {
			t.Fatalf("the busy group: %+v", st)
		}
		j = s.start(t)
	}
	mustWrite(t, j, log.Write{Group: idle, Entries: run(2, 3, 4, 10)})
}

func testClose(t *testing.T, s *suite) {
	j := s.start(t)
	var late error
	ch := make(chan error, 1)
	j.Append(context.Background(), []log.Write{{Group: groupOf(0), Entries: run(1, 1, 2, 10)}}, true, func(err error) { ch <- err })
	if err := errors.Join(j.Close(), j.Close(), <-ch); err != nil {
		t.Fatal(err)
	}
	j.Append(context.Background(), []log.Write{{Group: groupOf(0), Entries: run(1, 2, 3, 10)}}, true, func(err error) { late = err })
	if wire.KindOf(late) != wire.KindClosed {
		t.Fatalf("append after close: %v", late)
	}
	check(t, s.start(t), groupOf(0), log.Mark{}, run(1, 1, 2, 10))
}

func testHardState(t *testing.T, s *suite) {
	j := s.start(t)
	hs := log.HardState{Term: 4, Vote: 2, Commit: 17}
	if err := write(j, false, log.Write{Group: groupOf(0), HardState: &hs}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if st, _ := j.Load(groupOf(0)); st.HardState != hs {
			t.Fatalf("hard state %+v", st.HardState)
		}
		j = s.start(t)
	}
}

func testConcurrent(t *testing.T, s *suite) {
	j := s.start(t)
	const groups, n = 8, 60
	var all sync.WaitGroup
	for g := range groups {
		all.Go(func() {
			for i := uint64(1); i <= n; i++ {
				if err := write(j, true, log.Write{Group: groupOf(g), Entries: run(1, i, i+1, 700)}); err != nil {
					t.Errorf("append: %v", err)
					return
				}
				got, err := j.Entries(groupOf(g), max(i, 20)-19, i+1, 1<<20)
				if err != nil || got[len(got)-1].Index != i {
					t.Errorf("read: %v", err)
					return
				}
				j.Release(groupOf(g), max(i, 30)-30)
				j.Groups()
			}
		})
	}
	all.Wait()
}

func testEmptyUnit(t *testing.T, s *suite) {
	j := s.start(t)
	g := groupOf(0)
	j.Append(context.Background(), []log.Write{{Group: g, Entries: []log.Entry{{Index: 1, Term: 1}}}}, true, func(error) {})
	if err := write(j, false); err != nil {
		t.Fatal(err)
	}
	if st, ok := j.Load(g); !ok || st.Last != 1 {
		t.Fatalf("%+v", st)
	}
}

func testTwoWrites(t *testing.T, s *suite) {
	j := s.start(t)
	g := groupOf(0)
	mustWrite(t, j, log.Write{Group: g, Entries: run(1, 1, 6, 10)}, log.Write{Group: g, Entries: run(2, 3, 5, 10)},
		log.Write{Group: g, HardState: &log.HardState{Term: 2}})
	want := append(run(1, 1, 3, 10), run(2, 3, 5, 10)...)
	check(t, j, g, log.Mark{}, want)
	check(t, s.start(t), g, log.Mark{}, want)
}

func testUnknown(t *testing.T, s *suite) {
	j := s.start(t)
	if _, ok := j.Load(groupOf(0)); ok || len(j.Groups()) != 0 {
		t.Fatal("an empty journal knows groups")
	}
	if _, err := j.Term(groupOf(0), 0); !errors.Is(err, log.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := j.Entries(groupOf(0), 1, 2, 3); !errors.Is(err, log.ErrUnavailable) {
		t.Fatal(err)
	}
}

func testEmpty(t *testing.T, s *suite) {
	j := s.start(t)
	want := []log.Entry{{Index: 1, Term: 1}, {Index: 2, Term: 1, Type: log.EntryConfV2, Data: []byte{}}, {Index: 3, Term: 1, Type: log.EntryConf, Data: []byte{0}}}
	mustWrite(t, j, log.Write{Group: groupOf(0), Birth: []byte{}, Entries: want})
	for range 2 {
		check(t, j, groupOf(0), log.Mark{}, want)
		if st, _ := j.Load(groupOf(0)); st.Birth == nil || len(st.Birth) != 0 {
			t.Fatalf("empty birth became %v", st.Birth)
		}
		j = s.start(t)
	}
}

// RunStore is what every log.Store must do. open is as in RunJournal.
func RunStore(t *testing.T, open func(t testing.TB, dir string) log.Store) {
	dir := t.TempDir()
	s := open(t, dir)
	commit := func(fn func(b log.Batch)) {
		t.Helper()
		b := s.NewBatch()
		fn(b)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	commit(func(b log.Batch) {
		for i := range 50 {
			b.Set(fmt.Appendf(nil, "a/%02d", i), fmt.Appendf(nil, "v%d", i))
		}
		b.Set([]byte("b/1"), nil)
		b.Set([]byte("a"), []byte("short"))
	})
	commit(func(b log.Batch) {
		b.DeleteRange([]byte("a/10"), []byte("a/40"))
		b.Set([]byte("a/20"), []byte("again"))
		b.Delete([]byte("a/00"))
		b.Delete([]byte("absent"))
	})
	if err := s.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var keys []string
		if err := s.Scan([]byte("a/"), func(k, v []byte) error { keys = append(keys, string(k)+string(v)); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(keys) != 20 || keys[0] != "a/01v1" || keys[9] != "a/20again" || keys[10] != "a/40v40" {
			t.Fatalf("keys %q", keys)
		}
		if v, ok, err := s.Get([]byte("b/1")); err != nil || !ok || len(v) != 0 {
			t.Fatalf("empty value: %q %v %v", v, ok, err)
		}
		if _, ok, err := s.Get([]byte("a/15")); err != nil || ok {
			t.Fatalf("deleted key: %v %v", ok, err)
		}
		stop := errors.New("stop")
		if err := s.Scan(nil, func(_, _ []byte) error { return stop }); !errors.Is(err, stop) {
			t.Fatalf("scan that was stopped: %v", err)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
