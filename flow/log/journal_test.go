package log

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/skeinmesh/skein/ring"
)

func testGroup(i int) ring.GroupID { return ring.CatalogGroup(ring.MeshID{1}, i) }

func openTest(t testing.TB, dir string) *FileJournal {
	t.Helper()
	j, err := OpenJournal(JournalConfig{Dir: dir, FileBytes: 64 << 10, RetainBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func appendSync(t testing.TB, j Journal, w ...Write) {
	t.Helper()
	ch := make(chan error, 1)
	j.Append(context.Background(), w, true, func(err error) { ch <- err })
	if err := <-ch; err != nil {
		t.Fatal(err)
	}
}

func entries(term uint64, lo, hi uint64, size int) []Entry {
	var out []Entry
	for i := lo; i < hi; i++ {
		out = append(out, Entry{Index: i, Term: term, Data: bytes.Repeat([]byte(fmt.Sprint(i%10)), size)})
	}
	return out
}

func TestJournalGivesBackWhatWasAppendedAfterReopen(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	for i := range uint64(200) {
		appendSync(t, j, Write{Group: testGroup(int(i % 3)), Entries: entries(1, i/3+1, i/3+2, 5000), HardState: &HardState{1, 2, i / 3}})
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openTest(t, dir)
	for g := range 3 {
		st, ok := j.Load(testGroup(g))
		if !ok || st.First != 1 || st.Last < 66 {
			t.Fatalf("group %d: %+v", g, st)
		}
		got, err := j.Entries(testGroup(g), 1, st.Last+1, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range got {
			if want := entries(1, uint64(i)+1, uint64(i)+2, 5000)[0]; e.Index != want.Index || !bytes.Equal(e.Data, want.Data) {
				t.Fatalf("entry %d differs", i+1)
			}
		}
		j.Release(testGroup(g), st.Last)
	}
}

func TestUnitThatRemovesAGroupAndBearsItAgainMayWriteItsFirstEntriesTwice(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	g := testGroup(0)
	appendSync(t, j, Write{Group: g, Birth: []byte("a"), Reset: &Mark{Index: 65, Term: 4}, Entries: entries(4, 66, 70, 10)})
	appendSync(t, j, Write{Group: g, Tombstone: 1}, Write{Group: g, Birth: []byte("b"), Entries: entries(1, 1, 5, 10)},
		Write{Group: g, Entries: entries(2, 1, 3, 10)})
	for range 2 {
		if st, ok := j.Load(g); !ok || st.First != 1 || st.Last != 2 || st.Compacted != (Mark{}) || string(st.Birth) != "b" {
			t.Fatalf("%+v", st)
		}
		if term, err := j.Term(g, 2); err != nil || term != 2 {
			t.Fatalf("term %d, %v", term, err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		j = openTest(t, dir)
	}
}
