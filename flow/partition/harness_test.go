package partition

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tester is what *testing.T and *rapid.T have in common here.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

var (
	testGroup  = ring.GroupID{1}
	testPrefix = []byte("gx")
	testNode   = ring.NodeID{9}
)

func testSpec(t tester) []byte {
	t.Helper()
	raw, err := Spec{Name: "orders", Range: ring.Range{Hi: ^uint64(0)}, Limits: Limits{DedupeWindowMS: 10 * minuteMS}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// host is one replica with its disk: the entries that its group committed, its store, and its files.
type host struct {
	t       tester
	cfg     Config
	disk    *logtest.Disk
	store   *logtest.Store
	p       *Partition
	applied uint64
	synced  map[string]int64 // sizes of files, as of the last Sync
}

func newHost(t tester, dir string, disk *logtest.Disk, cfg Config) *host {
	h := &host{t: t, cfg: cfg, disk: disk, synced: map[string]int64{}}
	h.cfg.Dir = dir
	h.cfg.Segments = log.SegmentConfig{FileBytes: 2000, IndexBytes: 300, TailBytes: 500}
	h.open()
	return h
}

func (h *host) open() {
	h.t.Helper()
	h.store = h.disk.OpenStore()
	h.cfg.Store = h.store
	p, err := Open(h.cfg, testGroup, testSpec(h.t), testPrefix)
	if err != nil {
		h.t.Fatal(err)
	}
	h.p = p
}

func (h *host) close() {
	h.t.Helper()
	if err := errors.Join(h.p.Close(), h.store.Close()); err != nil {
		h.t.Fatal(err)
	}
}

// apply applies entries as one commit.
func (h *host) apply(entries ...log.Entry) []any {
	h.t.Helper()
	b := h.store.NewBatch()
	var out []any
	for _, e := range entries {
		res, err := h.p.Apply(e, b)
		if err != nil {
			h.t.Fatalf("entry %d: %v", e.Index, err)
		}
		out = append(out, res)
		h.applied = e.Index
	}
	b.Set([]byte("applied"), binary.BigEndian.AppendUint64(nil, h.applied))
	if err := b.Commit(); err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) sync(flush bool) {
	h.t.Helper()
	if err := h.p.Sync(); err != nil {
		h.t.Fatal(err)
	}
	for _, path := range h.files() {
		st, err := os.Stat(path)
		if err != nil {
			h.t.Fatal(err)
		}
		h.synced[path] = st.Size()
	}
	if flush {
		if err := h.store.Flush(context.Background()); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *host) files() []string {
	files, err := filepath.Glob(filepath.Join(h.p.segmentDir(h.p.v.dirGen), "*.seg"))
	if err != nil {
		h.t.Fatal(err)
	}
	slices.Sort(files)
	return files
}

// crash loses a suffix of the store's commits, and of the segment bytes that were not synced; cut draws how many of n.
func (h *host) crash(entries []log.Entry, cut func(n int64) int64) {
	h.t.Helper()
	if err := h.p.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.disk.Crash()
	lost := false
	for _, path := range h.files() {
		st, err := os.Stat(path)
		if err != nil {
			h.t.Fatal(err)
		}
		unsynced := st.Size() - h.synced[path]
		switch n := cut(unsynced); {
		case lost:
			err = os.Remove(path)
		case n > 0:
			lost = true
			err = os.Truncate(path, st.Size()-n)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	h.open()
	kept := map[string]int64{}
	for _, path := range h.files() { // opening cuts what was not applied, synced or not
		st, err := os.Stat(path)
		if err != nil {
			h.t.Fatal(err)
		}
		kept[path] = min(h.synced[path], st.Size())
	}
	h.synced = kept
	h.applied = 0
	if raw, ok, _ := h.store.Get([]byte("applied")); ok {
		h.applied = binary.BigEndian.Uint64(raw)
	}
	for bulk, i := h.p.BulkIndex(), 0; i < len(entries); i++ {
		if e := entries[i]; e.Index > bulk && e.Index <= h.applied {
			if err := h.p.Complete(e); err != nil {
				h.t.Fatalf("complete %d: %v", e.Index, err)
			}
		}
	}
}

// dump is everything that replicas must agree on.
func (h *host) dump() string {
	h.t.Helper()
	st := &h.p.st
	var out strings.Builder
	fmt.Fprintf(&out, "next %d start %d stamp %d expired %d limits %+v\n", st.next, st.start, st.stamp, st.window.expired, st.spec.Limits)
	var lines []string
	for id, s := range st.sessions.open {
		lines = append(lines, fmt.Sprintf("session %x %+v", id[:2], *s))
	}
	err := h.store.Scan(h.p.keys.generation(keyIdentity, st.window.gen), func(key, value []byte) error {
		minute, hash, err := splitIdentityKey(key[len(key)-24:])
		if err != nil || minute < st.window.expired {
			return err
		}
		want, err := parseOriginal(value)
		if err != nil {
			return err
		}
		if got, ok, err := st.window.find(hash); err != nil || !ok || got != want {
			return fmt.Errorf("identity %x: stored %v, found %v, %v, %v", hash, want, got, ok, err)
		}
		lines = append(lines, fmt.Sprintf("identity %d %x %v", minute, hash[:2], want))
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	slices.Sort(lines)
	out.WriteString(strings.Join(lines, "\n"))
	for from := h.p.Start(); from < h.p.Next(); {
		events := h.read(from)
		for _, ev := range events {
			fmt.Fprintf(&out, "\n%d at %d: %s", ev.offset, ev.stamp, ev.value)
		}
		from = events[len(events)-1].offset + 1
	}
	return out.String()
}

type readEvent struct {
	offset uint64
	stamp  int64
	value  string
}

func (h *host) read(from uint64) (events []readEvent) {
	h.t.Helper()
	raw, err := h.p.Read(from, 700)
	if err != nil {
		h.t.Fatalf("read %d of [%d, %d): %v", from, h.p.Start(), h.p.Next(), err)
	}
	for len(raw) > 0 {
		m, payload, rest, ok, err := splitBatch(raw)
		if err != nil || !ok {
			h.t.Fatalf("read %d: %v", from, err)
		}
		var r batch.Reader
		if err := r.Open(&m, payload, nil); err != nil {
			h.t.Fatal(err)
		}
		var rec batch.Record
		for r.Next(&rec) {
			if r.Offset() >= from {
				events = append(events, readEvent{r.Offset(), m.Stamp, string(rec.Value)})
			}
		}
		raw = rest
	}
	if len(events) == 0 || events[0].offset != from {
		h.t.Fatalf("read %d of [%d, %d): got %v", from, h.p.Start(), h.p.Next(), events)
	}
	return events
}

// rec is one record of a test batch: an identity (0: none), its content, and a value.
type rec struct {
	id      byte
	payload uint64
	value   string
}

func batchEntry(index uint64, session SessionID, seq uint64, stamp int64, recs ...rec) log.Entry {
	var b batch.Builder
	for _, r := range recs {
		id := batch.Identity{Payload: r.payload}
		if r.id != 0 {
			id.Hash = [16]byte{r.id, 1, 2, 3, 4, 5, 6, 7, r.id, 3}
		}
		if err := b.AddIdentified(&batch.Record{Value: []byte(r.value)}, id); err != nil {
			panic(err)
		}
	}
	m, payload := b.Finish(false)
	m.Session, m.Seq, m.Stamp = session, seq, stamp
	return log.Entry{Index: index, Term: 1, Data: EncodeBatch(nil, &m, payload)}
}

func openEntry(index uint64, session SessionID, stamp int64) log.Entry {
	return log.Entry{Index: index, Term: 1, Data: EncodeOpenSession(nil, session, testNode, stamp)}
}

// pipe is one direction of a wire.Stream, unbuffered.
type pipe struct {
	frames chan []byte
	damage func(i int, frame []byte) []byte
	sent   int
}

func newPipe() *pipe { return &pipe{frames: make(chan []byte)} }

func (p *pipe) Send(ctx context.Context, frame []byte) error {
	frame = slices.Clone(frame)
	if p.damage != nil {
		frame = p.damage(p.sent, frame)
	}
	p.sent++
	select {
	case p.frames <- frame:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pipe) Recv(ctx context.Context) ([]byte, error) {
	select {
	case f, ok := <-p.frames:
		if !ok {
			return nil, io.EOF
		}
		return f, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipe) CloseSend() error  { close(p.frames); return nil }
func (p *pipe) Close(error) error { return nil }

var _ wire.Stream = (*pipe)(nil)

// transfer fetches a snapshot of from at to; the error is the receiver's. later runs at the sender after the capture.
func transfer(t tester, from, to *host, p *pipe, later func()) (any, error) {
	t.Helper()
	have := to.p.BulkHave()
	cp, err := from.p.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	if later != nil {
		later()
	}
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan error, 1)
	go func() {
		err := cp.WriteTo(ctx, p, have)
		_ = p.CloseSend()
		sent <- errors.Join(err, cp.Close())
	}()
	staged, err := to.p.Fetch(ctx, p)
	cancel()
	if serr := <-sent; serr != nil && !errors.Is(serr, context.Canceled) {
		t.Fatalf("the sender: %v; the receiver: %v", serr, err)
	}
	return staged, err
}

// install does what a replica group does with a fetched snapshot.
func (h *host) install(staged any, applied uint64) {
	h.t.Helper()
	b := h.store.NewBatch()
	if err := h.p.Install(staged, b); err != nil {
		h.t.Fatal(err)
	}
	h.applied = applied
	b.Set([]byte("applied"), binary.BigEndian.AppendUint64(nil, applied))
	h.sync(false)
	if err := errors.Join(b.Commit(), h.store.Flush(context.Background())); err != nil {
		h.t.Fatal(err)
	}
}

func testDisk() *logtest.Disk { return logtest.NewDisk(logtest.Config{}) }

func mustHost(t *testing.T, cfg Config) *host {
	h := newHost(t, t.TempDir(), testDisk(), cfg)
	t.Cleanup(h.close)
	return h
}
