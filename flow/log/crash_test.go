package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/transport/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// copyDir is what a crash of the process leaves: the files as the OS has them now.
func copyDir(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(e.Name(), ".tmp") {
			continue // a spare file, without data, got its name meanwhile
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), b, 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func smallJournal(dir string) (*FileJournal, error) {
	return OpenJournal(JournalConfig{Dir: dir, FileBytes: 8 << 10, RetainBytes: 64 << 10})
}

// journalOnDisk makes a journal of three units, the last of which starts at the returned offset of the returned file and ends at end.
func journalOnDisk(t testing.TB) (dir, file string, start, end int64) {
	t.Helper()
	src := t.TempDir()
	j, err := smallJournal(src)
	if err != nil {
		t.Fatal(err)
	}
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 1, 3, 20), HardState: &HardState{1, 1, 0}})
	appendSync(t, j, Write{Group: testGroup(1), Birth: []byte("birth"), Entries: entries(1, 1, 3, 20)})
	start = j.w.file.end
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 3, 5, 20)}, Write{Group: testGroup(1), HardState: &HardState{9, 1<<63 | 9, 1}})
	if err := j.Close(); err != nil { // the writer has ended: its state can be looked at
		t.Fatal(err)
	}
	return src, filepath.Base(j.w.file.path), start, j.w.file.end
}

func patch(t testing.TB, path string, fn func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, fn(b), 0o640)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestJournalCutAtAnyByteOfTheLastUnitLosesThatUnitAlone(t *testing.T) {
	src, file, start, end := journalOnDisk(t)
	for cut := start; cut < end; cut++ {
		for _, zero := range []bool{true, false} {
			if !zero && cut%7 != 0 {
				continue // shorter files are rare: journals are preallocated
			}
			dir := copyDir(t, src)
			patch(t, filepath.Join(dir, file), func(b []byte) []byte {
				if zero {
					clear(b[cut:])
					return b
				}
				return b[:cut]
			})
			j, err := smallJournal(dir)
			if err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			a, _ := j.Load(testGroup(0))
			b, _ := j.Load(testGroup(1))
			if a.Last != 2 || a.HardState.Vote != 1 || b.Last != 2 || b.HardState.Term != 0 || string(b.Birth) != "birth" {
				t.Fatalf("cut at %d: %+v %+v", cut, a, b)
			}
			if cut%16 == 0 {
				appendSync(t, j, Write{Group: testGroup(0), Entries: entries(2, 3, 4, 20)})
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestJournalWithADamagedByteIsRefusedAndLeftAsItIs(t *testing.T) {
	src, file, _, end := journalOnDisk(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for at := int64(0); at < end; at += 1 + rng.Int64N(9) {
		dir := copyDir(t, src)
		path := filepath.Join(dir, file)
		if at >= 12 && at < 16 {
			continue
		}
		patch(t, path, func(b []byte) []byte { b[at] ^= 1 << rng.IntN(8); return b })
		before, _ := os.ReadFile(path)
		j, err := smallJournal(dir)
		if wire.KindOf(err) != wire.KindCorrupt || !bytes.Contains([]byte(err.Error()), []byte(file)) {
			if j != nil {
				_ = j.Close()
			}
			t.Fatalf("damage at %d: %v", at, err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Fatalf("damage at %d: the file was changed", at)
		}
	}
}

func TestJournalWithoutItsLastMarkCutsAReorderedCommit(t *testing.T) {
	src, file, start, end := journalOnDisk(t)
	dir := copyDir(t, src)
	// A disk that lost power may have written the end of the last commit, and not its beginning.
	patch(t, filepath.Join(dir, file), func(b []byte) []byte {
		clear(b[start : start+recordSize])
		clear(b[end:])
		return b
	})
	j, err := smallJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	if st, _ := j.Load(testGroup(0)); st.Last != 2 {
		t.Fatalf("%+v", st)
	}
}

func TestJournalWithAMissingOrShortenedOldFileIsRefused(t *testing.T) {
	src := t.TempDir()
	j, err := smallJournal(src)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(12) {
		appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, i+1, i+2, 3000)})
	}
	var paths []string
	for _, f := range j.files {
		paths = append(paths, filepath.Base(f.path))
	}
	_ = j.Close()
	if len(paths) < 4 {
		t.Fatalf("%d files", len(paths))
	}
	for name, harm := range map[string]func(path string) error{
		"removed":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 4000) },
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
	} {
		dir := copyDir(t, src)
		if err := harm(filepath.Join(dir, paths[1])); err != nil {
			t.Fatal(err)
		}
		if _, err := smallJournal(dir); wire.KindOf(err) != wire.KindCorrupt {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestJournalSurvivesACrashAtAnyMoment(t *testing.T) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 3))
		src := t.TempDir()
		j, err := smallJournal(src)
		if err != nil {
			t.Fatal(err)
		}
		last := map[int]uint64{}
		term := uint64(1)
		for range 10 + rng.IntN(60) {
			g := rng.IntN(3)
			from := last[g] + 1
			if last[g] > 5 && rng.IntN(8) == 0 {
				from -= uint64(rng.IntN(3))
				term++
			}
			to := from + uint64(rng.IntN(4))
			appendSync(t, j, Write{Group: testGroup(g), Entries: entries(term, from, to+1, 1+rng.IntN(900))})
			last[g] = to
			if to > 6 && rng.IntN(2) == 0 {
				j.Release(testGroup(g), to-5)
			}
		}
		dir := copyDir(t, src) // as kill -9
		again, err := smallJournal(dir)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for g, want := range last {
			a, _ := j.Load(testGroup(g))
			b, _ := again.Load(testGroup(g))
			if b.Last != want || fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("seed %d: before %+v, after %+v", seed, a, b)
			}
			x, err1 := j.Entries(testGroup(g), a.First, a.Last+1, 1<<30)
			y, err2 := again.Entries(testGroup(g), a.First, a.Last+1, 1<<30)
			if err1 != nil || err2 != nil || fmt.Sprint(x) != fmt.Sprint(y) {
				t.Fatalf("seed %d: entries differ: %v %v", seed, err1, err2)
			}
		}
		if err := firstError(j.Close(), again.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestJournalDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	if _, err := OpenJournal(JournalConfig{Dir: dir}); wire.KindOf(err) != wire.KindConflict {
		t.Fatalf("second open: %v", err)
	}
	_ = j.Close()
}

func TestJournalKeepsWhatWasNotReleasedBeyondItsLimitAndShrinksOnceItIs(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 1, 2, 10)})
	for i := range uint64(100) {
		appendSync(t, j, Write{Group: testGroup(1), Entries: entries(1, i+1, i+2, 8000)})
		j.Release(testGroup(1), i+1)
	}
	size := func() int64 {
		j.mu.RLock()
		defer j.mu.RUnlock()
		return j.bytes
	}
	if n := size(); n <= j.cfg.RetainBytes {
		t.Fatalf("%d bytes: the oldest file went, though an entry in it was not released", n)
	}
	j.Release(testGroup(0), 1)
	for i := range uint64(30) {
		appendSync(t, j, Write{Group: testGroup(1), Entries: entries(1, i+101, i+102, 8000)})
		j.Release(testGroup(1), i+101)
	}
	if n := size(); n > j.cfg.RetainBytes {
		t.Fatalf("%d bytes, though all is released", n)
	}
}

func TestJournalTakesUnitsLargerThanAFile(t *testing.T) {
	dir := t.TempDir()
	j, err := smallJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 1, 4, 50_000)})
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 4, 5, 10)})
	_ = j.Close()
	if j, err = smallJournal(dir); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	got, err := j.Entries(testGroup(0), 1, 5, 1<<30)
	if err != nil || len(got) != 4 || !bytes.Equal(got[2].Data, entries(1, 3, 4, 50_000)[0].Data) {
		t.Fatalf("%d entries, %v", len(got), err)
	}
}

func TestJournalReadErrorNamesTheEntry(t *testing.T) {
	dir := t.TempDir()
	j, err := OpenJournal(JournalConfig{Dir: dir, FileBytes: 64 << 10, CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 1, 3, 100)})
	s := j.groups[testGroup(0)].slots[1]
	if _, err := j.files[0].f.(osFile).WriteAt([]byte{0xff}, int64(s.off)+recordSize+5); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Entries(testGroup(0), 2, 3, 1000); wire.KindOf(err) != wire.KindCorrupt {
		t.Fatalf("read of a damaged entry: %v", err)
	}
}

func TestJournalSyncsWhatAKilledProcessLeftToTheOS(t *testing.T) {
	src := t.TempDir()
	j := openTest(t, src)
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 1, 3, 20)})
	handed := make(chan error, 1)
	j.Append(context.Background(), []Write{{Group: testGroup(0), Entries: entries(1, 3, 5, 20)}}, false, func(err error) { handed <- err })
	if err := <-handed; err != nil {
		t.Fatal(err)
	}
	j = openTest(t, copyDir(t, src)) // killed before the fsync
	if st, _ := j.Load(testGroup(0)); st.Last != 4 {
		t.Fatalf("%+v", st)
	}
	// What was recovered is answered for, and may be built upon, from now on: it must be as durable as what is appended.
	if f := j.files[0]; f.durable != f.end {
		t.Fatalf("of %d bytes recovered, %d were synced", f.end, f.durable)
	}
}
