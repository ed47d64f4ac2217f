package logtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
	"golang.org/x/sys/unix"
)

// put makes or opens a file and writes at its start.
func put(t testing.TB, fsys log.FS, name string, content []byte) log.File {
	t.Helper()
	f, err := fsys.Open(name, os.O_RDWR|os.O_CREATE)
	if err == nil {
		err = f.WriteV([][]byte{slices.Clone(content)}, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// content is what a file holds; nil where there is none.
func content(t testing.TB, fsys log.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	b := make([]byte, size)
	if _, err2 := f.ReadAt(b, 0); errors.Join(err, err2, f.Close()) != nil {
		t.Fatal(err, err2)
	}
	return b
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestSyncedBytesAndNamesSurvivePowerLoss(t *testing.T) {
	for seed := range uint64(50) {
		m := NewMedium(seed)
		d := m.Mount()
		want := bytes.Repeat([]byte("x"), 3000)
		must(t, d.Mkdir("/a"), d.Mkdir("/a/b"))
		f := put(t, d, "/a/b/tmp", want)
		must(t, f.Sync(), d.Rename("/a/b/tmp", "/a/b/f"), d.SyncDir("/a/b"), d.SyncDir("/a"), d.SyncDir("/"))
		must(t, f.WriteV([][]byte{[]byte("lost")}, 4000))
		m.LosePower()
		if got := content(t, m.Mount(), "/a/b/f"); len(got) < len(want) || !bytes.Equal(got[:len(want)], want) {
			t.Fatalf("seed %d: %d bytes", seed, len(got))
		}
	}
}

func TestSyncedFileWhoseNameWasNotSyncedMayBeLost(t *testing.T) {
	lost := 0
	for seed := range uint64(50) {
		m := NewMedium(seed)
		d := m.Mount()
		must(t, put(t, d, "/f", []byte("all of it")).Sync())
		m.LosePower()
		if got := content(t, m.Mount(), "/f"); got == nil {
			lost++
		} else if string(got) != "all of it" {
			t.Fatalf("seed %d: %q", seed, got)
		}
	}
	if lost == 0 || lost == 50 {
		t.Fatalf("lost by %d of 50 seeds", lost)
	}
}

func TestUnsyncedSectorsAreLostAtRandom(t *testing.T) {
	outcomes := map[string]bool{}
	for seed := range uint64(100) {
		m := NewMedium(seed)
		d := m.Mount()
		f := put(t, d, "/f", bytes.Repeat([]byte("o"), 3*sector))
		must(t, f.Sync(), d.SyncDir("/"), f.WriteV([][]byte{bytes.Repeat([]byte("n"), 3*sector)}, sector))
		m.LosePower()
		got := content(t, m.Mount(), "/f")
		if len(got)%sector != 0 || len(got) < 3*sector || len(got) > 4*sector {
			t.Fatalf("seed %d: %d bytes", seed, len(got))
		}
		var outcome strings.Builder
		for s := range slices.Chunk(got, sector) {
			if !bytes.Equal(s, bytes.Repeat(s[:1], sector)) {
				t.Fatalf("seed %d: a torn sector", seed)
			}
			outcome.WriteByte(max(s[0], '0'))
		}
		if outcome.String()[0] != 'o' || strings.Contains(outcome.String()[:3], "0") {
			t.Fatalf("seed %d: %s", seed, outcome.String())
		}
		outcomes[outcome.String()] = true
	}
	if len(outcomes) != 12 { // two sectors old or new; a third that is not there, empty or new
		t.Fatalf("%d outcomes: %v", len(outcomes), outcomes)
	}
}

func TestNamesAreLostFromTheEndOfTheirDirectory(t *testing.T) {
	steps := []string{"a=old b=other", "b=other c=old", "c=other", "", "d="}
	seen := map[string]bool{}
	for seed := range uint64(100) {
		m := NewMedium(seed)
		d := m.Mount()
		must(t, put(t, d, "/a", []byte("old")).Sync(), put(t, d, "/b", []byte("other")).Sync(), d.SyncDir("/"))
		must(t, d.Rename("/a", "/c"), d.Rename("/b", "/c"), d.Remove("/c"))
		if _, err := d.Open("/d", os.O_RDWR|os.O_CREATE); err != nil {
			t.Fatal(err)
		}
		m.LosePower()
		d = m.Mount()
		names, err := d.List("/")
		must(t, err)
		for i, name := range names {
			names[i] = name + "=" + string(content(t, d, "/"+name))
		}
		seen[strings.Join(names, " ")] = true
	}
	for _, s := range steps {
		if !seen[s] {
			t.Errorf("never seen: %q", s)
		}
	}
	if len(seen) != len(steps) {
		t.Errorf("seen: %v", seen)
	}
}

func TestRenameAcrossDirectoriesIsDurableWithEither(t *testing.T) {
	for seed := range uint64(60) {
		m := NewMedium(seed)
		d := m.Mount()
		must(t, d.Mkdir("/a"), d.Mkdir("/b"), d.SyncDir("/"))
		must(t, put(t, d, "/a/f", []byte("f")).Sync(), d.Rename("/a/f", "/b/f"))
		synced := []string{"", "/a", "/b"}[seed%3]
		if synced != "" {
			must(t, d.SyncDir(synced))
		}
		m.LosePower()
		d = m.Mount()
		a, b := content(t, d, "/a/f"), content(t, d, "/b/f")
		if (a != nil && b != nil) || (synced != "" && b == nil) {
			t.Fatalf("seed %d: %q and %q", seed, a, b)
		}
	}
}

func TestKillKeepsEverything(t *testing.T) {
	m := NewMedium(1)
	d := m.Mount()
	must(t, d.Mkdir("/a"))
	f := put(t, d, "/a/f", []byte("not synced"))
	if _, err := d.Lock("/a/lock"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lock("/a/lock"); wire.KindOf(err) != wire.KindConflict {
		t.Fatalf("second lock: %v", err)
	}
	m.Kill()
	_, err := f.Size()
	_, err2 := f.ReadAt(make([]byte, 1), 0)
	_, err3 := d.Open("/a/f", os.O_RDONLY)
	_, err4 := d.List("/a")
	for _, err := range []error{err, err2, err3, err4, f.Sync(), f.WriteV([][]byte{{1}}, 0), f.Close(), d.SyncDir("/a"), d.Remove("/a/f")} {
		if !errors.Is(err, ErrGone) {
			t.Errorf("after the end: %v", err)
		}
	}
	d = m.Mount()
	if got := content(t, d, "/a/f"); string(got) != "not synced" {
		t.Fatalf("%q", got)
	}
	l, err := d.Lock("/a/lock")
	must(t, err, l.Close())
}

func TestPowerMayGoInTheMiddleOfAnOperation(t *testing.T) {
	for _, end := range []string{"kill", "power"} {
		m := NewMedium(1)
		n := 0
		m.Before = func(op, name string) {
			if n++; n == 4 && end == "kill" {
				m.Kill()
			} else if n == 4 {
				m.LosePower()
			}
		}
		d := m.Mount()
		f := put(t, d, "/f", []byte("1"))
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteV([][]byte{[]byte("2")}, 0); !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		if got := content(t, m.Mount(), "/f"); string(got) == "2" || (got == nil && end == "kill") {
			t.Fatalf("%s: %q", end, got)
		}
	}
}

func TestFailedSyncIsNotMadeUpForByALaterOne(t *testing.T) {
	lost := 0
	for seed := range uint64(40) {
		m := NewMedium(seed)
		d := m.Mount()
		f := put(t, d, "/f", []byte("durable"))
		must(t, f.Sync(), d.SyncDir("/"), f.WriteV([][]byte{[]byte("abandon")}, 0))
		m.FailSync(2)
		if err := errors.Join(put(t, d, "/other", nil).Sync(), d.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := f.Sync(); !errors.Is(err, unix.EIO) {
				t.Fatal(err)
			}
		}
		m.Kill()
		d = m.Mount()
		f, err := d.Open("/f", os.O_RDWR)
		must(t, err, f.Sync())
		if got := content(t, d, "/f"); string(got) != "abandon" {
			t.Fatalf("%q", got)
		}
		m.LosePower()
		if string(content(t, m.Mount(), "/f")) == "durable" {
			lost++
		}
	}
	if lost == 0 || lost == 40 {
		t.Fatalf("lost by %d of 40 seeds", lost)
	}
}

func TestFullMediumRefusesWhatDoesNotFitAndNothingElse(t *testing.T) {
	m := NewMedium(1)
	d := m.Mount()
	f := put(t, d, "/f", make([]byte, 1000))
	m.SetRoom(1500)
	for _, err := range []error{f.Allocate(1501), f.Truncate(1501), f.WriteV([][]byte{make([]byte, 400), make([]byte, 101)}, 1000)} {
		if pe := (*os.PathError)(nil); !errors.As(err, &pe) || !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	must(t, f.WriteV([][]byte{make([]byte, 500)}, 1000))
	if n := m.Used(); n != 1500 {
		t.Fatalf("%d bytes", n)
	}
	must(t, f.Truncate(10))
	put(t, d, "/g", make([]byte, 1490))
	must(t, d.Remove("/g"))
	m.SetRoom(-1)
	must(t, f.Allocate(1<<20))
}

func TestPatchedByteStaysFlipped(t *testing.T) {
	m := NewMedium(1)
	d := m.Mount()
	must(t, put(t, d, "/f", []byte("abc")).Sync(), d.SyncDir("/"), m.Patch("/f", 1, 1))
	m.LosePower()
	if got := content(t, m.Mount(), "/f"); string(got) != "acc" {
		t.Fatalf("%q", got)
	}
	if err := m.Patch("/g", 0, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := m.Patch("/f", 3, 1); err == nil {
		t.Fatal("a byte beyond the end was changed")
	}
}

func TestSameSeedLosesTheSame(t *testing.T) {
	run := func(seed uint64) string {
		m := NewMedium(seed)
		rng := rand.New(rand.NewPCG(7, 7))
		var out strings.Builder
		for range 5 {
			d := m.Mount()
			r := fsRun{fsys: d, rng: rng, trace: io.Discard}
			for range 100 {
				r.step()
			}
			m.LosePower()
			dump(t, &out, m.Mount(), "/")
			m.Kill()
		}
		return out.String()
	}
	if a, b := run(1), run(1); a != b {
		t.Fatalf("%s\n%s", a, b)
	}
	if run(1) == run(2) {
		t.Fatal("another seed loses the same")
	}
}

func dump(t testing.TB, to io.Writer, fsys log.FS, dir string) {
	t.Helper()
	names, err := fsys.List(dir)
	must(t, err)
	for _, name := range names {
		full := filepath.Join(dir, name)
		if _, err := fsys.List(full); err == nil {
			fmt.Fprintf(to, "%s/\n", full)
			dump(t, to, fsys, full)
		} else {
			fmt.Fprintf(to, "%s %x\n", full, content(t, fsys, full))
		}
	}
}

func TestMountDoesWhatTheOperatingSystemDoes(t *testing.T) {
	for seed := range uint64(60) {
		var traces [2]strings.Builder
		for i, fsys := range []log.FS{osAt(t.TempDir()), NewMedium(seed).Mount()} {
			r := fsRun{fsys: fsys, rng: rand.New(rand.NewPCG(seed, 5)), trace: &traces[i]}
			for range 150 {
				r.step()
			}
			for _, f := range r.open {
				_ = f.Close()
			}
			dump(t, &traces[i], fsys, "/")
		}
		a, b := strings.Split(traces[0].String(), "\n"), strings.Split(traces[1].String(), "\n")
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Fatalf("seed %d, step %d: the operating system %s, the mount %s", seed, i, a[i], b[min(i, len(b)-1)])
			}
		}
	}
}

// osAt is log.OS below a directory.
type osAt string

func (d osAt) in(name string) string { return filepath.Join(string(d), name) }

func (d osAt) Open(name string, flag int) (log.File, error) { return log.OS{}.Open(d.in(name), flag) }
func (d osAt) List(dir string) ([]string, error)            { return log.OS{}.List(d.in(dir)) }
func (d osAt) Exists(name string) (bool, error)             { return log.OS{}.Exists(d.in(name)) }
func (d osAt) Mkdir(dir string) error                       { return log.OS{}.Mkdir(d.in(dir)) }
func (d osAt) Rename(from, to string) error                 { return log.OS{}.Rename(d.in(from), d.in(to)) }
func (d osAt) Remove(name string) error                     { return log.OS{}.Remove(d.in(name)) }
func (d osAt) RemoveAll(dir string) error                   { return log.OS{}.RemoveAll(d.in(dir)) }
func (d osAt) SyncDir(dir string) error                     { return log.OS{}.SyncDir(d.in(dir)) }
func (d osAt) Lock(name string) (io.Closer, error)          { return log.OS{}.Lock(d.in(name)) }

// fsRun does random things to a file system and writes down what comes of them.
type fsRun struct {
	fsys  log.FS
	rng   *rand.Rand
	trace io.Writer
	open  []log.File
}

// class is what callers may learn from an error.
func class(err error) string {
	for _, known := range []error{io.EOF, fs.ErrNotExist, unix.ENOTEMPTY, fs.ErrExist, fs.ErrClosed, unix.EISDIR, unix.ENOTDIR,
		unix.EBADF, unix.EINVAL} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err != nil && wire.KindOf(err) == wire.KindConflict {
		return "conflict"
	}
	return fmt.Sprint(err)
}

func (r *fsRun) name() string {
	name := ""
	for range 1 + r.rng.IntN(3) {
		name += "/" + string("abc"[r.rng.IntN(3)])
	}
	return name
}

func (r *fsRun) step() {
	if r.rng.IntN(2) == 0 && len(r.open) > 0 {
		r.fileStep()
		return
	}
	name, to := r.name(), r.name()
	switch op := r.rng.IntN(9); op {
	case 0, 1:
		flag := []int{os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE, os.O_RDWR | os.O_CREATE | os.O_TRUNC}[r.rng.IntN(4)]
		f, err := r.fsys.Open(name, flag)
		if _, listErr := r.fsys.List(name); err == nil && listErr == nil {
			_ = f.Close() // of an open directory nothing is asked
		} else if err == nil {
			r.open = append(r.open, f)
		}
		fmt.Fprintf(r.trace, "open %s %x: %s\n", name, flag, class(err))
	case 2:
		names, err := r.fsys.List(name)
		fmt.Fprintf(r.trace, "list %s: %v %s\n", name, names, class(err))
	case 3:
		ok, err := r.fsys.Exists(name)
		fmt.Fprintf(r.trace, "exists %s: %v %s\n", name, ok, class(err))
	case 4:
		fmt.Fprintf(r.trace, "mkdir %s: %s\n", name, class(r.fsys.Mkdir(name)))
	case 5:
		fmt.Fprintf(r.trace, "rename %s %s: %s\n", name, to, class(r.fsys.Rename(name, to)))
	case 6:
		fmt.Fprintf(r.trace, "remove %s: %s\n", name, class(r.fsys.Remove(name)))
	case 7:
		if r.rng.IntN(4) == 0 {
			fmt.Fprintf(r.trace, "remove all %s: %s\n", name, class(r.fsys.RemoveAll(name)))
		} else {
			fmt.Fprintf(r.trace, "sync dir %s: %s\n", name, class(r.fsys.SyncDir(name)))
		}
	case 8:
		l, err := r.fsys.Lock(name)
		var again error
		if err == nil {
			_, again = r.fsys.Lock(name)
			err = l.Close()
		}
		fmt.Fprintf(r.trace, "lock %s: %s %s\n", name, class(err), class(again))
	}
}

func (r *fsRun) fileStep() {
	f := r.open[r.rng.IntN(len(r.open))]
	n := r.rng.Int64N(3000) - 1
	switch op := r.rng.IntN(7); op {
	case 0, 1:
		bufs := [][]byte{bytes.Repeat([]byte{byte(n)}, r.rng.IntN(700)), {}, bytes.Repeat([]byte{byte(n + 1)}, r.rng.IntN(3))}
		fmt.Fprintf(r.trace, "write at %d: %s\n", n, class(f.WriteV(bufs, n)))
	case 2:
		b := make([]byte, r.rng.IntN(2000))
		got, err := f.ReadAt(b, max(n, 0))
		fmt.Fprintf(r.trace, "read at %d: %x %s\n", n, b[:got], class(err))
	case 3:
		size, err := f.Size()
		fmt.Fprintf(r.trace, "size: %d %s\n", size, class(err))
	case 4:
		if r.rng.IntN(2) == 0 {
			fmt.Fprintf(r.trace, "truncate %d: %s\n", n, class(f.Truncate(n)))
		} else {
			fmt.Fprintf(r.trace, "allocate %d: %s\n", n, class(f.Allocate(n)))
		}
	case 5:
		fmt.Fprintf(r.trace, "sync: %s\n", class(f.Sync()))
	case 6:
		fmt.Fprintf(r.trace, "close: %s\n", class(f.Close()))
	}
}
