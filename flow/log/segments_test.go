package log

import (
	"bytes"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// testBatch is batch number i of two offsets each.
func testBatch(i int, size int) (*batch.Meta, []byte) {
	payload := bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, size/3+1)[:size]
	return &batch.Meta{Count: 3, Skip: []uint32{1}, RawLen: uint32(size), PayloadLen: uint32(size), PayloadCRC: crc32.Checksum(payload, castagnoli),
		Seq: uint64(i), Stamp: int64(1000 + 10*i), Base: uint64(2 * i), Index: uint64(100 + i), Term: 3,
		Identities: []batch.Identity{{Payload: 1}, {Payload: 2}, {Payload: 3}}}, payload
}

func openSegs(t testing.TB, dir string, r Recovery) *Segments {
	t.Helper()
	s, err := OpenSegments(dir, SegmentConfig{FileBytes: 8 << 10, IndexBytes: 1 << 10, TailBytes: 2 << 10}, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func fill(t testing.TB, s *Segments, lo, hi, size int) {
	t.Helper()
	for i := lo; i < hi; i++ {
		m, p := testBatch(i, size)
		if err := s.Append(m, p); err != nil {
			t.Fatal(err)
		}
	}
}

// checkRead reads everything from offset from on and compares it.
func checkRead(t testing.TB, s *Segments, from uint64, size int) {
	t.Helper()
	var buf []byte
	for at := from; at < s.Next(); {
		got, err := s.Read(at, 1500, buf)
		if err != nil || len(got) == 0 {
			t.Fatalf("read at %d: %d batches, %v", at, len(got), err)
		}
		for _, b := range got {
			want, payload := testBatch(int(b.Meta.Base/2), size)
			if b.Meta.Next() <= at || b.Meta.Base > at || b.Meta.Index != want.Index || !bytes.Equal(b.Payload, payload) {
				t.Fatalf("at %d: batch %d differs", at, b.Meta.Base)
			}
			at = b.Meta.Next()
		}
	}
	if got, err := s.Read(s.Next(), 100, nil); err != nil || len(got) > 0 {
		t.Fatalf("read at the end: %v %v", got, err)
	}
}

func recoveryOf(s *Segments) Recovery {
	return Recovery{Start: s.Start(), Next: s.Next(), AppliedIndex: s.LastIndex(), Synced: s.SyncedState()}
}

func TestSegmentsReadBackFromEveryOffsetAcrossFilesAndReopen(t *testing.T) {
	dir := t.TempDir()
	s := openSegs(t, dir, Recovery{})
	fill(t, s, 0, 100, 500)
	for from := range s.Next() {
		checkRead(t, s, from, 500)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	r := recoveryOf(s)
	for _, remove := range []bool{false, true} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if remove {
			if err := os.Remove(indexPath(dir, 0)); err != nil {
				t.Fatal(err)
			}
		}
		s = openSegs(t, dir, r)
		if s.Next() != 200 || s.LastIndex() != 199 || !bytes.Equal(s.SyncedState(), r.Synced) {
			t.Fatalf("next %d, last index %d", s.Next(), s.LastIndex())
		}
		for from := range s.Next() {
			checkRead(t, s, from, 500)
		}
	}
}

func TestSegmentsSeekTimeFindsTheFirstBatchNotBefore(t *testing.T) {
	s := openSegs(t, t.TempDir(), Recovery{})
	fill(t, s, 0, 100, 500)
	for i := range 100 {
		if got := s.SeekTime(int64(1000 + 10*i)); got != uint64(2*i) {
			t.Fatalf("stamp of batch %d: offset %d", i, got)
		}
		if got := s.SeekTime(int64(1000 + 10*i - 9)); got != uint64(2*i) {
			t.Fatalf("before batch %d: offset %d", i, got)
		}
	}
	if got := s.SeekTime(5000); got != s.Next() {
		t.Fatalf("after all: %d", got)
	}
}

func TestSegmentsTrimKeepsPinnedFilesAndRefusesExpiredOffsets(t *testing.T) {
	dir := t.TempDir()
	s := openSegs(t, dir, Recovery{})
	fill(t, s, 0, 100, 500)
	pin, err := s.Pin(20)
	if err != nil {
		t.Fatal(err)
	}
	before := s.Bytes()
	if err := firstError(s.TrimTo(150), s.Sync()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(149, 100, nil); wire.CodeOf(err) != wire.CodeOffsetExpired {
		t.Fatalf("read below the start: %v", err)
	}
	if got, err := pin.Read(20, 100, nil); err != nil || got[0].Meta.Base != 20 {
		t.Fatalf("pinned read: %v %v", got, err)
	}
	if s.Bytes() >= before {
		t.Fatal("bytes did not shrink")
	}
	pin.Release()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(segmentPath(dir, 0)); !os.IsNotExist(err) {
		t.Fatalf("file is still there: %v", err)
	}
	// The small state lost the trim: the mark beside the files remembers it.
	r := recoveryOf(s)
	r.Start = 0
	_ = s.Close()
	s = openSegs(t, dir, r)
	if s.Start() != 150 {
		t.Fatalf("start %d", s.Start())
	}
	checkRead(t, s, 150, 500)
}

func TestSegmentsWaitWithATrimWhileTheDiskIsFull(t *testing.T) {
	dir := t.TempDir()
	s := openSegs(t, dir, Recovery{})
	fill(t, s, 0, 100, 500)
	full := filepath.Join(dir, markName+tmpSuffix)
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	if err := firstError(s.TrimTo(150), s.Sync()); err != nil {
		t.Fatalf("a full disk passes: %v", err)
	}
	if _, err := os.Stat(segmentPath(dir, 0)); err != nil {
		t.Fatalf("a file went before the mark: %v", err)
	}
	if err := firstError(os.Remove(full), s.Sync()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(segmentPath(dir, 0)); !os.IsNotExist(err) {
		t.Fatalf("file is still there: %v", err)
	}
	checkRead(t, s, 150, 500)
}

func TestSeekTimeOverlooksAFileThatHasNoBatchYet(t *testing.T) {
	for files := 0; files < 8; files++ {
		s := openSegs(t, t.TempDir(), Recovery{})
		n := 0
		for ; len(s.segs) < files || n%8 != 0; n++ { // 8 batches fill a file
			fill(t, s, n, n+1, 900)
		}
		if _, err := s.roll(s.next); err != nil { // Append has made the file, and not written to it yet
			t.Fatal(err)
		}
		for i := range n {
			m, _ := testBatch(i, 1)
			if got := s.SeekTime(m.Stamp); got != m.Base {
				t.Errorf("%d files: offset %d for the time of batch %d, which is at %d", files, got, i, m.Base)
			}
		}
		if got := s.SeekTime(0); got != 0 {
			t.Errorf("%d files: offset %d for the beginning of time", files, got)
		}
	}
}
