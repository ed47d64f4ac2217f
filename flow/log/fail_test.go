package log

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/skeinmesh/skein/transport/wire"
	"golang.org/x/sys/unix"
)

func TestJournalIsDoneForGoodAfterAFailedWrite(t *testing.T) {
	j := openTest(t, t.TempDir())
	appendSync(t, j, Write{Group: testGroup(0), Entries: entries(1, 1, 2, 10)})
	// A descriptor that cannot write stands for a disk that cannot.
	ro, err := os.Open(j.files[0].path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ro.Close() }()
	if err := unix.Dup3(int(ro.Fd()), int(j.files[0].f.(osFile).Fd()), 0); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		ch := make(chan error, 1)
		j.Append(context.Background(), []Write{{Group: testGroup(0), Entries: entries(1, 2, 3, 10)}}, i%2 == 0, func(err error) { ch <- err })
		if err := <-ch; err == nil || !errors.Is(err, j.Err()) {
			t.Fatalf("append: %v", err)
		}
		<-j.Failed()
	}
	if st, _ := j.Load(testGroup(0)); st.Last != 1 {
		t.Fatalf("what was not written is visible: %+v", st)
	}
	if err := j.Close(); err == nil {
		t.Fatal("close said nothing of the failure")
	}
}

func TestQueueBlocksAtItsBoundAndLetsOneUnitThrough(t *testing.T) {
	var q queue
	q.init(100)
	if err := q.put(context.Background(), unit{size: 500}); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() { second <- q.put(context.Background(), unit{size: 10}) }()
	units := q.take(nil)
	select {
	case <-second:
		t.Fatal("put did not wait")
	default:
	}
	q.release(units[0].size)
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, when := range []string{"while it waits", "before"} {
		gone := make(chan error, 1)
		go func() { gone <- q.put(ctx, unit{size: 99}) }()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Fatalf("put that was given up %s: %v", when, err)
		}
	}
	third := make(chan error, 1)
	go func() { third <- q.put(context.Background(), unit{size: 99}) }()
	q.close()
	if err := <-third; wire.KindOf(err) != wire.KindClosed {
		t.Fatalf("put into a closed queue: %v", err)
	}
	if got := q.take(nil); len(got) != 1 {
		t.Fatalf("%d units left", len(got))
	}
}

func TestDiskFullHasItsOwnKind(t *testing.T) {
	err := ioError("write", fmt.Errorf("wrapped: %w", &os.PathError{Op: "pwritev", Path: "x", Err: unix.ENOSPC}))
	if wire.KindOf(err) != wire.KindUnavailable || wire.CodeOf(err) != wire.CodeDiskFull || !IsDiskFull(err) {
		t.Fatalf("%#v", err)
	}
	if free, total, err := DiskFree(t.TempDir()); err != nil || total == 0 || free > total {
		t.Fatalf("%d of %d free, %v", free, total, err)
	}
}

func TestStoreKeepsFlushedCommitsAndLosesOnlyASuffix(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s, err := OpenStore(StoreConfig{Dir: "store", fs: fs})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		b := s.NewBatch()
		b.Set(fmt.Appendf(nil, "%02d", i), []byte("v"))
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		if i == 11 {
			if err := s.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = OpenStore(StoreConfig{Dir: "store", fs: crashed}); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := s.Scan(nil, func(k, _ []byte) error {
		if string(k) != fmt.Sprintf("%02d", n) {
			t.Errorf("key %s at place %d", k, n)
		}
		n++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n < 12 {
		t.Fatalf("%d keys after the crash, 12 were flushed", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestJournalThatClosesWhileItMakesAFileHasNotFailed(t *testing.T) {
	j, err := smallJournal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil { // the writer has ended: its part can be played
		t.Fatal(err)
	}
	for _, size := range []int64{0, 64 << 10} {
		if err := j.w.roll(size); wire.KindOf(err) != wire.KindClosed || j.Err() != nil {
			t.Fatalf("a file for %d bytes: %v; the journal failed: %v", size, err, j.Err())
		}
	}
}

func TestJournalLeavesNoSpareFileBehindWhenItIsKilledWhileItOpens(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"spare-a", "spare-b"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 8<<10), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	killed := FileJournal{cfg: JournalConfig{Dir: dir, FileBytes: 8 << 10, FS: OS{}}}
	keep := func() (*spare, error) {
		_, paths, err := listJournal(OS{}, dir)
		if err != nil {
			t.Fatal(err)
		}
		return killed.keepSpares(paths)
	}
	for range 2 {
		kept, err := keep()
		if err != nil || kept == nil {
			t.Fatalf("no spare file is kept: %v", err)
		}
		if _, err := os.Stat(kept.path); err != nil {
			t.Fatal(err)
		}
		_ = kept.f.Close()
	}
	killed.cfg.FileBytes *= 2 // it is of no use any more
	if kept, err := keep(); err != nil || kept != nil {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Fatalf("left behind: %v, %v", list, err)
	}
}
