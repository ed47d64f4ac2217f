package partition

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// history applies n batches of two events to h, a minute's fifth apart, and returns the next index.
func history(h *host, n int) uint64 {
	h.t.Helper()
	h.apply(openEntry(11, sessionA, 1000), openEntry(12, sessionB, 1000))
	for i := range uint64(n) {
		h.apply(batchEntry(13+i, sessionA, 1+i, int64(12_000*i), rec{id: byte(1 + i%250), value: fmt.Sprintf("%0100d", i)}, rec{value: "b"}))
	}
	return 13 + uint64(n)
}

func TestSnapshotWithSpilledIdentitiesIsComplete(t *testing.T) {
	from := mustHost(t, Config{MaxIdentities: 4})
	next := history(from, 100)
	spilled := 0
	for _, bu := range from.p.st.window.buckets {
		if bu.ids == nil {
			spilled++
		}
	}
	if spilled < 3 {
		t.Fatalf("only %d of %d buckets are spilled", spilled, len(from.p.st.window.buckets))
	}
	want := from.dump()
	to := mustHost(t, Config{})
	later := func() { // must not get into the snapshot, nor take anything from it
		from.apply(batchEntry(next, sessionA, 101, 99*12_000, rec{id: 252, value: "later"}))
		from.apply(log.Entry{Index: next + 1, Data: EncodeClock(nil, 100*minuteMS)})
	}
	staged, err := transfer(t, from, to, newPipe(), later)
	if err != nil {
		t.Fatal(err)
	}
	to.install(staged, next-1)
	if got := to.dump(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	to.close()
	to.open()
	if got := to.dump(); got != want {
		t.Errorf("after a restart\n%s\nwant\n%s", got, want)
	}
	from.apply(log.Entry{Index: next + 2, Data: EncodeClock(nil, 100*minuteMS)})
	left := 0
	if err := from.store.Scan(from.p.keys.plain(keyIdentity), func(_, _ []byte) error { left++; return nil }); err != nil || left > 0 {
		t.Errorf("after the checkpoint's end %d expired identities are left, %v", left, err)
	}
}

func TestReceiverGetsOnlyTheBatchesItLacks(t *testing.T) {
	from, to := mustHost(t, Config{}), mustHost(t, Config{})
	history(to, 20)
	next := history(from, 30)
	p := newPipe()
	bytes := 0
	p.damage = func(_ int, frame []byte) []byte {
		if frame[0] == frameBatches {
			bytes += len(frame)
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
	if bytes == 0 || bytes > 10*400 {
		t.Errorf("%d bytes of batches for 10 of them", bytes)
	}
}

func TestReceiverWhoseBatchesDifferGetsAll(t *testing.T) {
	from, to := mustHost(t, Config{}), mustHost(t, Config{})
	to.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{value: "from another life"}, rec{value: "x"}))
	to.sync(true)
	old := to.p.segmentDir(0)
	next := history(from, 30)
	from.apply(log.Entry{Index: next, Data: EncodeTrim(nil, 7, 0)})
	staged, err := transfer(t, from, to, newPipe(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if to.read(0)[0].value != "from another life" {
		t.Error("the old batches are gone before the snapshot is installed")
	}
	to.install(staged, next)
	if got, want := to.dump(), from.dump(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := os.Stat(old); err != nil {
		t.Errorf("the old segments are gone before the install is surely durable: %v", err)
	}
	to.sync(true)
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the old segments are still there: %v", err)
	}
	to.apply(batchEntry(next+1, sessionA, 31, 1_000_000, rec{value: "new"}))
	to.close()
	to.open()
	if ev := to.read(60); ev[0].value != "new" {
		t.Errorf("read %v", ev)
	}
}

// hooked runs hook before it begins a batch.
type hooked struct {
	log.Store
	hook func()
}

func (h *hooked) NewBatch() log.Batch {
	h.hook()
	return h.Store.NewBatch()
}

func TestSyncThatBeganBeforeAnInstallLeavesWhatACrashGoesBackTo(t *testing.T) {
	from, to := mustHost(t, Config{}), mustHost(t, Config{})
	to.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{value: "old"}))
	old := to.p.segmentDir(0)
	history(from, 10)
	staged, err := transfer(t, from, to, newPipe(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := to.store.NewBatch()
	var install sync.Once
	to.p.cfg.Store = &hooked{to.store, func() { // Sync has synced, and notes it
		install.Do(func() {
			if err := to.p.Install(staged, b); err != nil {
				t.Error(err)
			}
		})
	}}
	to.sync(false)
	to.sync(false) // the install's own
	if _, err := os.Stat(old); err != nil {
		t.Errorf("the old segments are gone before the install is committed: %v", err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	to.sync(true)
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the old segments are still there: %v", err)
	}
}

func TestCrashBeforeTheInstallIsDurableGoesBack(t *testing.T) {
	from := mustHost(t, Config{})
	history(from, 10)
	to := mustHost(t, Config{})
	to.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{id: 3, value: "old"}))
	to.sync(true)
	before := to.dump()
	staged, err := transfer(t, from, to, newPipe(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := to.store.NewBatch()
	if err := to.p.Install(staged, b); err != nil {
		t.Fatal(err)
	}
	if err := to.p.Sync(); err != nil { // as the group does before it commits b
		t.Fatal(err)
	}
	if err := to.p.Close(); err != nil {
		t.Fatal(err)
	}
	to.disk.Crash()
	to.open()
	if got := to.dump(); got != before {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}
	keys := 0
	if err := to.store.Scan(to.p.keys.plain(keyIdentity), func(_, _ []byte) error { keys++; return nil }); err != nil || keys != 1 {
		t.Errorf("%d identities in the store, %v", keys, err)
	}
	// What was fetched is kept for the next fetch, until entries are applied again.
	if got := to.dirs(); len(got) != 2 {
		t.Errorf("directories %v", got)
	}
	to.apply(batchEntry(13, sessionA, 2, 1000, rec{value: "by the log"}))
	to.sync(true)
	to.sync(true)
	if got := to.dirs(); len(got) != 1 {
		t.Errorf("directories %v", got)
	}
}

func TestCrashBetweenSyncAndInstallKeepsWhatCompletesTheOldBatches(t *testing.T) {
	from := mustHost(t, Config{})
	next := history(from, 30)
	from.apply(log.Entry{Index: next, Data: EncodeTrim(nil, 20, 0)})
	to := mustHost(t, Config{})
	entries := []log.Entry{openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{id: 3, value: "old"})}
	to.apply(entries...)
	before := to.dump()
	staged, err := transfer(t, from, to, newPipe(), nil)
	if err != nil {
		t.Fatal(err)
	}
	files := to.files()
	if err := to.p.Install(staged, to.store.NewBatch()); err != nil {
		t.Fatal(err)
	}
	to.sync(true) // another group's checkpoint flushes the store just now
	if err := to.p.Close(); err != nil {
		t.Fatal(err)
	}
	to.disk.Crash()
	if err := os.Truncate(files[0], 10); err != nil { // never synced
		t.Fatal(err)
	}
	to.open()
	for _, e := range entries {
		if err := to.p.Complete(e); err != nil {
			t.Fatal(err)
		}
	}
	if got := to.dump(); got != before {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}
}

func TestDamagedSnapshotIsRefusedAndLeavesNothing(t *testing.T) {
	from := mustHost(t, Config{})
	history(from, 40)
	frames := 0
	{
		p := newPipe()
		p.damage = func(_ int, f []byte) []byte { frames++; return f }
		to := mustHost(t, Config{Limit: NewNodeLimit(1000)})
		staged, err := transfer(t, from, to, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := staged.(io.Closer).Close(); err != nil {
			t.Fatal(err)
		}
		if to.cfg.Limit.Held() != 0 {
			t.Errorf("%d identities are still counted", to.cfg.Limit.Held())
		}
	}
	for i := range frames {
		for name, damage := range map[string]func(f []byte) []byte{
			"flipped": func(f []byte) []byte { f[len(f)/2] ^= 1; return f },
			"short":   func(f []byte) []byte { return f[:len(f)-1] },
			"kind":    func(f []byte) []byte { f[0] = 77; binary.LittleEndian.PutUint32(f[1:], frameCRC(f)); return f },
		} {
			to := mustHost(t, Config{})
			to.apply(openEntry(11, sessionA, 1000), batchEntry(12, sessionA, 1, 1000, rec{id: 3, value: "old"}))
			before := to.dump()
			p := newPipe()
			p.damage = func(n int, f []byte) []byte {
				if n == i {
					return damage(f)
				}
				return f
			}
			if _, err := transfer(t, from, to, p, nil); wire.KindOf(err) != wire.KindCorrupt {
				t.Errorf("frame %d %s: %v", i, name, err)
			}
			if to.dump() != before {
				t.Errorf("frame %d %s: the state changed", i, name)
			}
			to.close()
			to.open()
			if to.dump() != before {
				t.Errorf("frame %d %s: the state changed after a restart", i, name)
			}
		}
	}
}

func TestFetchHonoursItsContext(t *testing.T) {
	h := mustHost(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.p.Fetch(ctx, newPipe()); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("got %v", err)
	}
}

// FuzzFetch feeds a receiver with frames whose CRC is right and whose content is not to be trusted.
func FuzzFetch(f *testing.F) {
	src := newHost(f, f.TempDir(), testDisk(), Config{})
	history(src, 3)
	var frames [][]byte
	p := newPipe()
	p.damage = func(_ int, frame []byte) []byte { frames = append(frames, frame[:1:1], frame[5:]); return frame }
	dst := newHost(f, f.TempDir(), testDisk(), Config{})
	if _, err := transfer(f, src, dst, p, nil); err != nil {
		f.Fatal(err)
	}
	src.close()
	dst.close()
	var seed []byte
	for i := 0; i < len(frames); i += 2 {
		seed = append(seed, frames[i][0])
		seed = binary.LittleEndian.AppendUint16(seed, uint16(len(frames[i+1])))
		seed = append(seed, frames[i+1]...)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, in []byte) {
		h := newHost(t, t.TempDir(), testDisk(), Config{})
		defer h.close()
		p := newPipe()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer close(p.frames)
			for len(in) >= 3 {
				n := min(int(binary.LittleEndian.Uint16(in[1:])), len(in)-3)
				frame := append([]byte{in[0], 0, 0, 0, 0}, in[3:3+n]...)
				binary.LittleEndian.PutUint32(frame[1:], frameCRC(frame))
				if p.Send(ctx, frame) != nil {
					return
				}
				in = in[3+n:]
			}
		}()
		got, err := h.p.Fetch(ctx, p)
		cancel()
		<-done
		if err == nil {
			h.install(got, got.(*staged).head.Applied)
			h.dump()
		}
	})
}

// FuzzEntry holds that no bytes of an entry make a replica panic.
func FuzzEntry(f *testing.F) {
	f.Add(batchEntry(1, sessionA, 1, 5, rec{id: 1, value: "a"}).Data)
	f.Add(EncodeOpenSession(nil, sessionA, testNode, 1))
	f.Add(EncodeTrim(nil, 4, 1))
	raw, err := EncodeConfig(nil, Limits{Replicas: 3}, 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	begin, err := EncodeImportBegin(nil, Import{Export: testExport, Base: 1, Start: 2, End: 9})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(begin)
	en, err := decodeEntry(batchEntry(1, sessionA, 1, 5, rec{id: 1, value: "a"}).Data)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(EncodeImportBatch(nil, testExport, &en.meta, en.payload))
	f.Fuzz(func(t *testing.T, in []byte) {
		if en, err := decodeEntry(in); err == nil && en.kind == 0 {
			t.Error("an entry without a kind")
		}
		if o, rest, err := parseOutcome(in); err == nil {
			again := appendOutcome(nil, &o)
			if len(again)+len(rest) != len(in) {
				t.Error("an outcome that parses is not written back the same")
			}
		}
		_, _ = parseDecision(in)
		_, _ = parseSession(in)
	})
}
