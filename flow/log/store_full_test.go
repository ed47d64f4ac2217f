package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"
)

// lineLog keeps what is logged, and tells each time that it is about a full disk.
type lineLog struct {
	mu    sync.Mutex
	lines bytes.Buffer
	full  chan struct{}
}

func (l *lineLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(b, []byte("waits for disk space")) {
		select {
		case l.full <- struct{}{}:
		default:
		}
	}
	return l.lines.Write(b)
}

// fullFS is a file system that has no space while full is set.
func fullFS(full *atomic.Bool) vfs.FS {
	return errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite) {
			return unix.ENOSPC
		}
		return nil
	}))
}

// put commits one key.
func put(s *PebbleStore, key, value []byte) error {
	b := s.NewBatch()
	b.Set(key, value)
	return b.Commit()
}

func TestStoreOnAFullDiskSaysSoOnceAndCloses(t *testing.T) {
	var full atomic.Bool
	fs := fullFS(&full)
	said := &lineLog{full: make(chan struct{}, 1)}
	s, err := OpenStore(StoreConfig{Dir: "store", fs: fs, Log: slog.New(slog.NewTextHandler(said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(s, []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := put(s, []byte("l"), []byte("w")); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	flushed := make(chan error, 1)
	go func() { flushed <- s.Flush(ctx) }()
	<-said.full
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	cancel()
	<-flushed
	if s.Err() != nil {
		t.Errorf("a full disk passes, but the store failed: %v", s.Err())
	}
	if n := bytes.Count(said.lines.Bytes(), []byte("waits for disk space")); n != 1 || said.lines.Len() > 1<<10 {
		t.Errorf("said %d times, in %d bytes", n, said.lines.Len())
	}
	full.Store(false)
	if s, err = OpenStore(StoreConfig{Dir: "store", fs: fs}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Get([]byte("k")); !ok || err != nil {
		t.Errorf("what was flushed is gone: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestStoreLeavesAFullDiskAloneForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(slog.New(slog.DiscardHandler))
		defer s.giveUp()
		took := func() time.Duration {
			begin := time.Now()
			s.pace()
			return time.Since(begin)
		}
		if d := took(); d != 0 {
			t.Errorf("waits %v without need", d)
		}
		s.noteFull(unix.ENOSPC)
		if d := took(); d != fullPause {
			t.Errorf("tries again after %v", d)
		}
		close(s.closing)
		if d := took(); d != 0 {
			t.Errorf("closing waits %v", d)
		}
	})
}

// Pebble has writers wait for a flush when its memtables are full: on a full disk for ever.
func TestStoreOnAFullDiskRefusesWhatItCannotHold(t *testing.T) {
	var full atomic.Bool
	said := &lineLog{full: make(chan struct{}, 1)}
	s, err := OpenStore(StoreConfig{Dir: "store", fs: fullFS(&full), MemTableBytes: 64 << 10, Log: slog.New(slog.NewTextHandler(said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(s, []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	flushed := make(chan error, 2)
	go func() { flushed <- s.Flush(ctx) }()
	<-said.full
	value := make([]byte, 1<<10)
	taken := 0
	for taken < 1000 && err == nil {
		if err = put(s, fmt.Appendf(nil, "%04d", taken), value); err == nil {
			taken++
		}
	}
	if !IsDiskFull(err) || taken == 0 || taken > memTables*64 {
		t.Fatalf("%d KiB were taken into memtables of %d, then: %v", taken, memTables*64, err)
	}
	go func() { flushed <- s.Flush(ctx) }() // one more: it waits, and can be given up too
	full.Store(false)
	if err := errors.Join(<-flushed, <-flushed); err != nil {
		t.Fatal(err)
	}
	if err := put(s, []byte("l"), []byte("w")); err != nil {
		t.Errorf("there is space again, but: %v", err)
	}
	full.Store(true)
	go func() { flushed <- s.Flush(ctx) }()
	<-said.full
	for err = nil; err == nil; taken++ {
		err = put(s, fmt.Appendf(nil, "%04d", taken), value)
	}
	cancel()
	for _, err := range []error{s.Flush(ctx), <-flushed} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a flush that was given up: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Flushes that fit where compactions do not pile up in Pebble's first level, and from some number of them on it would have writers wait.
func TestStoreThatCannotCompactTakesWhatItCanFlush(t *testing.T) {
	s, err := OpenStore(StoreConfig{Dir: "store", fs: noCompaction{vfs.NewMem()}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if err := put(s, []byte("k"), []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if m := s.db.Metrics(); m.Levels[0].Sublevels < 40 {
		t.Errorf("%d sublevels: something was compacted, so this test shows nothing", m.Levels[0].Sublevels)
	}
	if v, ok, err := s.Get([]byte("k")); !ok || err != nil || v[0] != 39 {
		t.Errorf("got %v, %v, %v", v, ok, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// noCompaction is a file system with room for what is flushed alone.
type noCompaction struct{ vfs.FS }

func (f noCompaction) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if category == "pebble-compaction" {
		return nil, unix.ENOSPC
	}
	return f.FS.Create(name, category)
}
