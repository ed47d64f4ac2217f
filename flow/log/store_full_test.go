package log

import (
	"bytes"
	"context"
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

// lineLog keeps what is logged, and tells of the first line.
type lineLog struct {
	mu    sync.Mutex
	lines bytes.Buffer
	once  sync.Once
	first chan struct{}
}

func (l *lineLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.once.Do(func() { close(l.first) })
	return l.lines.Write(b)
}

func TestStoreOnAFullDiskSaysSoOnceAndCloses(t *testing.T) {
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite) {
			return unix.ENOSPC
		}
		return nil
	}))
	said := &lineLog{first: make(chan struct{})}
	s, err := OpenStore(StoreConfig{Dir: "store", fs: fs, Log: slog.New(slog.NewTextHandler(said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	b.Set([]byte("k"), []byte("v"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	b = s.NewBatch()
	b.Set([]byte("l"), []byte("w"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	flushed := make(chan error, 1)
	go func() { flushed <- s.Flush(ctx) }()
	<-said.first
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
