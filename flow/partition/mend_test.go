package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

func (h *host) dirs() (names []string) {
	h.t.Helper()
	entries, err := os.ReadDir(h.p.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// bytes is what the segment files hold, one after the other.
func (h *host) bytes() []byte {
	h.t.Helper()
	var all []byte
	for _, path := range h.files() {
		raw, err := os.ReadFile(path)
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, raw...)
	}
	return all
}

// serve gives what Mend opens streams with: to from, of whose frames at most limit are sent, where that is above 0.
func serve(t *testing.T, from *host, batches *int, limit int) func(context.Context, []byte) (wire.Stream, error) {
	return func(_ context.Context, have []byte) (wire.Stream, error) {
		cp, err := from.p.Checkpoint()
		if err != nil {
			return nil, err
		}
		p := newPipe()
		p.damage = func(_ int, frame []byte) []byte {
			if frame[0] == frameBatches {
				*batches += len(frame) - 5
			}
			return frame
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			err := cp.WriteTo(ctx, p, have)
			_ = p.CloseSend()
			if err := errors.Join(err, cp.Close()); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("the sender: %v", err)
			}
		}()
		return &broken{pipe: p, left: limit, stop: func() { cancel(); <-done }}, nil
	}
}

// broken is a stream that breaks after some frames.
type broken struct {
	*pipe
	left int
	stop func()
}

var errBroken = errors.New("the connection broke")

func (b *broken) Recv(ctx context.Context) ([]byte, error) {
	if b.left--; b.left == 0 {
		return nil, errBroken
	}
	return b.pipe.Recv(ctx)
}

func (b *broken) Close(error) error { b.stop(); return nil }

// flip changes one byte of a closed host's file.
func flip(t *testing.T, path string, at int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if at < 0 {
		at += len(raw)
	}
	raw[at] ^= 0x10
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// mend does what a replica group does with a damaged partition.
func (h *host) mend(t *testing.T, open func(context.Context, []byte) (wire.Stream, error)) error {
	t.Helper()
	if err := h.p.Mend(t.Context(), open); err != nil {
		return err
	}
	b := h.store.NewBatch()
	if err := h.p.Mended(b); err != nil {
		return err
	}
	return b.Commit()
}

// twins are two replicas with the same entries, of 80 batches in many files, synced.
func twins(t *testing.T) (sound, hurt *host) {
	sound, hurt = mustHost(t, Config{}), mustHost(t, Config{})
	history(sound, 80)
	history(hurt, 80)
	hurt.sync(true)
	return sound, hurt
}

func TestDamagedSegmentsAreFetchedAgainAndNothingElse(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, files []string){
		"a payload":         func(t *testing.T, f []string) { flip(t, f[3], -4) },
		"a header":          func(t *testing.T, f []string) { flip(t, f[3], 30) },
		"the first file":    func(t *testing.T, f []string) { flip(t, f[0], 70) },
		"two files":         func(t *testing.T, f []string) { flip(t, f[2], 70); flip(t, f[7], -9) },
		"the last file":     func(t *testing.T, f []string) { flip(t, f[len(f)-1], 40) },
		"cut in the middle": func(t *testing.T, f []string) { truncate(t, f[4], 300) },
		"a missing file":    func(t *testing.T, f []string) { truncate(t, f[4], -1) },
	} {
		t.Run(name, func(t *testing.T) {
			sound, hurt := twins(t)
			want := sound.dump()
			files := hurt.files()
			hurt.close()
			damage(t, files)
			for _, path := range files { // their indexes would hide it
				_ = os.Remove(strings.TrimSuffix(path, ".seg") + ".idx")
			}
			if name == "a payload" || name == "two files" { // payloads of complete files are only verified when they are read
				if err := log.MarkDamaged(log.OS{}, filepath.Dir(files[0]), errors.New("read wrong"), nil); err != nil {
					t.Fatal(err)
				}
			}
			hurt.open()
			if hurt.p.Damage() == nil || hurt.p.Damaged() == nil {
				t.Fatal("the damage was not found")
			}
			if _, err := hurt.p.Read(3, 100); wire.KindOf(err) != wire.KindCorrupt {
				t.Errorf("a read gives %v", err)
			}
			if _, err := hurt.p.Checkpoint(); wire.KindOf(err) != wire.KindCorrupt {
				t.Errorf("a checkpoint gives %v", err)
			}
			sent := 0
			if err := hurt.mend(t, serve(t, sound, &sent, 0)); err != nil {
				t.Fatal(err)
			}
			if got := hurt.dump(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if !bytes.Equal(hurt.bytes(), sound.bytes()) {
				t.Error("the files differ")
			}
			if sent == 0 || sent > 5*2000 {
				t.Errorf("%d bytes were sent of %d", sent, len(sound.bytes()))
			}
			hurt.sync(true)
			hurt.sync(true)
			if got := hurt.dirs(); len(got) != 1 {
				t.Errorf("directories %v", got)
			}
			kept, err := filepath.Glob(filepath.Join(hurt.cfg.Dir, quarantineName, "*", "*.seg"))
			if err != nil || name != "a missing file" && name != "cut in the middle" && (len(kept) == 0 || len(kept) > 2) {
				t.Errorf("set aside: %v, %v", kept, err)
			}
			hurt.apply(batchEntry(1000, sessionA, 81, 99*12_000, rec{value: "later"}))
			hurt.close()
			hurt.open()
			if hurt.p.Damage() != nil || hurt.read(160)[0].value != "later" {
				t.Errorf("after a restart: %v", hurt.p.Damage())
			}
		})
	}
}

// truncate cuts a file; below 0: it is gone.
func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	err := os.Truncate(path, max(size, 0))
	if size < 0 {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMendingThatBreaksGoesOnWhereItWas(t *testing.T) {
	sound, hurt := twins(t)
	files := hurt.files()
	hurt.close()
	for _, path := range files {
		flip(t, path, 90)
		_ = os.Remove(strings.TrimSuffix(path, ".seg") + ".idx")
	}
	hurt.open()
	sent, tries := 0, 0
	for err := io.EOF; err != nil; {
		if tries++; tries > 100 {
			t.Fatal(err)
		}
		if err = hurt.mend(t, serve(t, sound, &sent, 3)); err != nil && tries%3 == 0 {
			hurt.close()
			hurt.open()
		}
	}
	if tries < 2 {
		t.Errorf("nothing broke in %d tries", tries)
	}
	if got, want := hurt.dump(), sound.dump(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMendingAfterTheOthersTrimmedWhatIsMissing(t *testing.T) {
	sound, hurt := twins(t)
	files := hurt.files()
	hurt.close()
	flip(t, files[1], 90)
	for _, path := range files {
		_ = os.Remove(strings.TrimSuffix(path, ".seg") + ".idx")
	}
	hurt.open()
	sound.apply(log.Entry{Index: 200, Data: EncodeTrim(nil, 100, 99*12_000)})
	sent := 0
	if err := hurt.mend(t, serve(t, sound, &sent, 0)); err != nil {
		t.Fatal(err)
	}
	hurt.apply(log.Entry{Index: 200, Data: EncodeTrim(nil, 100, 99*12_000)})
	if got, want := hurt.dump(), sound.dump(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestDamageMetByAReaderIsToldOnce(t *testing.T) {
	h := mustHost(t, Config{})
	history(h, 30)
	h.sync(true)
	var told []error
	h.p.OnDamage(func(err error) { told = append(told, err) })
	flip(t, h.files()[0], -4)
	for range 3 {
		var err error
		for from := uint64(0); from < 20 && err == nil; from += 2 {
			_, err = h.p.Read(from, 1)
		}
		if wire.KindOf(err) != wire.KindCorrupt {
			t.Fatalf("reading gives %v", err)
		}
	}
	if len(told) != 1 || wire.KindOf(told[0]) != wire.KindCorrupt {
		t.Fatalf("told %v", told)
	}
	if err := h.p.Condemn(told[0]); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.open()
	if h.p.Damage() == nil {
		t.Error("what was read wrong is opened as sound")
	}
}

func TestFetchThatBreaksGoesOnWhereItWas(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%t", restart), func(t *testing.T) {
			from, to := mustHost(t, Config{}), mustHost(t, Config{})
			next := history(from, 80)
			size := len(from.bytes())
			sent, breakAt := 0, -1
			p := newPipe()
			ctx, cancel := context.WithCancel(t.Context())
			p.damage = func(_ int, frame []byte) []byte {
				if frame[0] == frameBatches {
					if sent += len(frame) - 5; breakAt < 0 && sent > size/2 {
						breakAt = sent
						cancel()
					}
				}
				return frame
			}
			cp, err := from.p.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- cp.(*checkpoint).writeFrames(ctx, p, to.p.BulkHave(), 1000) }()
			if _, err := to.p.Fetch(ctx, p); !errors.Is(err, context.Canceled) {
				t.Fatalf("the fetch gives %v", err)
			}
			<-done
			if err := cp.Close(); err != nil {
				t.Fatal(err)
			}
			if restart {
				to.close()
				to.open()
			}
			p = newPipe()
			again := 0
			p.damage = func(_ int, frame []byte) []byte {
				if frame[0] == frameBatches {
					again += len(frame) - 5
				}
				return frame
			}
			staged, err := transfer(t, from, to, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			to.install(staged, next-1)
			if got, want := to.dump(), from.dump(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if again > size*2/3 {
				t.Errorf("%d bytes were sent again of %d", again, size)
			}
		})
	}
}

func TestManyBatchesAreFetchedBeforeTheState(t *testing.T) {
	from, to := mustHost(t, Config{}), mustHost(t, Config{})
	from.apply(openEntry(11, sessionA, 1000))
	value := strings.Repeat("x", 1<<20)
	for i := range uint64(6) {
		from.apply(batchEntry(12+i, sessionA, 1+i, 1000, rec{value: value}))
	}
	staged, err := transfer(t, from, to, newPipe(), nil)
	if staged != nil || err != nil {
		t.Fatalf("the first round gives %v, %v", staged, err)
	}
	from.apply(batchEntry(18, sessionA, 7, 1000, rec{value: "meanwhile"}))
	staged, err = transfer(t, from, to, newPipe(), nil)
	if staged == nil || err != nil {
		t.Fatalf("the second round gives %v, %v", staged, err)
	}
	to.install(staged, 18)
	if to.dump() != from.dump() {
		t.Error("the replicas differ")
	}
}

func TestFilesOfAClosedPartitionAreSetAsideTheFirstOnes(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "data[1]*")} // not to be taken for a pattern
	dir := filepath.Join(cfg.Dir, testGroup.String())
	for _, content := range []string{"", "first", "", "second"} {
		gen := filepath.Join(dir, "00000000")
		if err := errors.Join(os.MkdirAll(gen, 0o750), os.WriteFile(filepath.Join(dir, "!note"), nil, 0o600)); err != nil { // somebody's file
			t.Fatal(err)
		}
		if content != "" {
			if err := os.WriteFile(filepath.Join(gen, "00000000000000000000"+log.SegmentSuffix), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := SetAside(cfg, testGroup); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Fatalf("a later replica finds files: %v", err)
		}
	}
	kept, err := fs.Glob(os.DirFS(filepath.Join(cfg.Dir, quarantineName)), "*/*/*")
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept are %v (%v)", kept, err)
	}
	if raw, err := os.ReadFile(filepath.Join(cfg.Dir, quarantineName, kept[0])); err != nil || string(raw) != "first" {
		t.Fatalf("kept is %q (%v)", raw, err)
	}
}
