package log

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/transport/wire"
)

// segmentsOnDisk makes segments of 40 batches, of which the first 30 were synced, and what the small state knows then.
func segmentsOnDisk(t testing.TB) (dir string, r Recovery) {
	t.Helper()
	dir = t.TempDir()
	s := openSegs(t, dir, Recovery{})
	fill(t, s, 0, 30, 300)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	synced := s.SyncedState()
	fill(t, s, 30, 40, 300)
	r = recoveryOf(s)
	r.Synced = synced
	_ = s.Close()
	return dir, r
}

func lastSegment(t testing.TB, dir string) (string, int64) {
	t.Helper()
	bases, err := listSegments(OS{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	path := segmentPath(dir, bases[len(bases)-1])
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(path), st.Size()
}

func tryOpen(dir string, r Recovery) (*Segments, error) {
	return OpenSegments(dir, SegmentConfig{FileBytes: 8 << 10, IndexBytes: 1 << 10, TailBytes: -1}, r)
}

func TestSegmentsCutAtAnyByteOfTheLastBatchLoseThatBatchAlone(t *testing.T) {
	src, r := segmentsOnDisk(t)
	file, size := lastSegment(t, src)
	m, p := testBatch(39, 300)
	total := int64(92 + 4 + 72 + len(p))
	for cut := size - total; cut < size; cut++ {
		for _, zero := range []bool{false, true} {
			dir := copyDir(t, src)
			patch(t, filepath.Join(dir, file), func(b []byte) []byte {
				if zero {
					clear(b[cut:])
					return b
				}
				return b[:cut]
			})
			s, err := tryOpen(dir, r)
			if err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			if s.Next() != m.Base || s.LastIndex() != m.Index-1 {
				t.Fatalf("cut at %d: next %d", cut, s.Next())
			}
			if cut%50 == 0 {
				fill(t, s, 39, 41, 300)
				checkRead(t, s, 0, 300)
			}
			_ = s.Close()
		}
	}
}

func TestSegmentsWithDamageBelowTheSyncedLengthAreRefusedAndLeftAsTheyAre(t *testing.T) {
	src, r := segmentsOnDisk(t)
	pos, ok := parseSynced(r.Synced)
	if !ok {
		t.Fatal("synced position")
	}
	file := filepath.Base(segmentPath(src, pos.base))
	rng := rand.New(rand.NewPCG(4, 5))
	for at := int64(0); at < pos.length; at += 1 + rng.Int64N(40) {
		dir := copyDir(t, src)
		path := filepath.Join(dir, file)
		patch(t, path, func(b []byte) []byte { b[at] ^= 1 << rng.IntN(8); return b })
		before, _ := os.ReadFile(path)
		_, err := tryOpen(dir, r)
		if wire.KindOf(err) != wire.KindCorrupt || !strings.Contains(err.Error(), file) {
			t.Fatalf("damage at %d: %v", at, err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Fatalf("damage at %d: the file was changed", at)
		}
	}
}

func TestSegmentsWithDamageAboveTheSyncedLengthAreCutThere(t *testing.T) {
	src, r := segmentsOnDisk(t)
	pos, _ := parseSynced(r.Synced)
	file := filepath.Base(segmentPath(src, pos.base))
	dir := copyDir(t, src)
	patch(t, filepath.Join(dir, file), func(b []byte) []byte {
		if int64(len(b)) <= pos.length {
			t.Fatal("nothing unsynced in this file")
		}
		b[pos.length+200] ^= 1
		return b
	})
	s, err := tryOpen(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if s.Next() != 60 || !bytes.Equal(s.SyncedState(), r.Synced) {
		t.Fatalf("next %d", s.Next())
	}
	fill(t, s, 30, 50, 300) // the journal completes them
	checkRead(t, s, 0, 300)
}

func TestSegmentsMissingASyncedFileAreRefused(t *testing.T) {
	src, r := segmentsOnDisk(t)
	bases, _ := listSegments(OS{}, src)
	for _, base := range bases[:2] {
		dir := copyDir(t, src)
		if err := os.Remove(segmentPath(dir, base)); err != nil {
			t.Fatal(err)
		}
		if _, err := tryOpen(dir, r); wire.KindOf(err) != wire.KindCorrupt {
			t.Fatalf("without file %d: %v", base, err)
		}
	}
	if _, err := tryOpen(t.TempDir(), r); wire.KindOf(err) != wire.KindCorrupt {
		t.Fatalf("empty directory: %v", err)
	}
	if s, err := tryOpen(t.TempDir(), Recovery{Next: 80, AppliedIndex: 139}); err != nil || s.Next() != 0 {
		t.Fatalf("empty directory, nothing was synced: %v", err)
	} else {
		_ = s.Close()
	}
}

func TestSegmentsLaterThanTheAppliedIndexAreCutEvenWhereSynced(t *testing.T) {
	src, r := segmentsOnDisk(t)
	for batches := range 41 {
		dir := copyDir(t, src)
		old := r
		old.Next, old.AppliedIndex = uint64(2*batches), uint64(99+batches)
		s, err := tryOpen(dir, old)
		if err != nil {
			t.Fatalf("%d batches: %v", batches, err)
		}
		if s.Next() != old.Next {
			t.Fatalf("%d batches: next %d", batches, s.Next())
		}
		synced := s.SyncedState()
		fill(t, s, batches, 45, 300)
		checkRead(t, s, 0, 300)
		r2 := recoveryOf(s)
		r2.Synced = synced
		_ = s.Close()
		// A second crash that loses all that was appended since: what the first start returned holds.
		bases, _ := listSegments(OS{}, dir)
		pos, _ := parseSynced(synced)
		for _, base := range bases {
			if base > pos.base || pos == (syncedPos{}) {
				_ = os.Remove(segmentPath(dir, base))
			} else if base == pos.base {
				_ = os.Truncate(segmentPath(dir, base), pos.length)
			}
		}
		s, err = tryOpen(dir, r2)
		if err != nil {
			t.Fatalf("%d batches, second crash: %v", batches, err)
		}
		if s.Next() > old.Next || s.Next() < pos.next {
			t.Fatalf("%d batches, second crash: next %d", batches, s.Next())
		}
		_ = s.Close()
	}
}

func TestSegmentsResetForgetsAllThatWasBefore(t *testing.T) {
	dir, r := segmentsOnDisk(t)
	s, err := tryOpen(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reset(1000); err != nil {
		t.Fatal(err)
	}
	if s.Start() != 1000 || s.Next() != 1000 || s.LastIndex() != 0 || s.Bytes() != 0 {
		t.Fatalf("start %d next %d", s.Start(), s.Next())
	}
	fill(t, s, 500, 520, 300)
	checkRead(t, s, 1000, 300)
	_ = s.Close()
	// The small state knows nothing of it yet.
	s, err = tryOpen(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if s.Start() != 1000 || s.Next() != 1000 {
		t.Fatalf("start %d next %d", s.Start(), s.Next())
	}
}

func TestSegmentsReadNamesADamagedPayload(t *testing.T) {
	src, r := segmentsOnDisk(t)
	patch(t, segmentPath(src, 0), func(b []byte) []byte { b[200] ^= 1; return b })
	s, err := tryOpen(src, r)
	if err != nil {
		t.Fatal(err) // payloads of complete files are not read at a start
	}
	defer func() { _ = s.Close() }()
	if _, err := s.Read(0, 1000, nil); wire.KindOf(err) != wire.KindCorrupt {
		t.Fatalf("read: %v", err)
	}
	if _, err := s.Read(40, 1000, nil); err != nil {
		t.Fatal(err)
	}
}

func TestSegmentsGoOnAtThePlaceThatOnlyAnEmptyFileTells(t *testing.T) {
	dir := t.TempDir()
	s := openSegs(t, dir, Recovery{})
	fill(t, s, 0, 20, 4000)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	r := recoveryOf(s)
	fill(t, s, 20, 40, 4000)
	if err := s.TrimTo(79); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	for range 3 { // the small state went back to before the batches of the last file, and nothing is written
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openSegs(t, dir, r)
		if next == 0 {
			next = s.Next()
		}
		if s.Next() != next || next <= r.Next {
			t.Fatalf("goes on at %d, before at %d", s.Next(), next)
		}
	}
	fill(t, s, int(next/2), 40, 4000)
	checkRead(t, s, 79, 4000)
}

func TestSyncBesideAFileWithoutABatchVouchesForTheFilesBefore(t *testing.T) {
	dir := t.TempDir()
	s := openSegs(t, dir, Recovery{})
	fill(t, s, 0, 10, 500)
	if _, err := s.roll(s.Next()); err != nil { // an Append has come so far
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	r := recoveryOf(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := segmentPath(dir, 0)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := errors.Join(os.WriteFile(path, raw, 0o600), os.Remove(indexPath(dir, 0))); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(dir, r); wire.KindOf(err) != wire.KindCorrupt {
		t.Errorf("got %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || len(now) != len(raw) {
		t.Errorf("the damaged file has %d bytes, had %d: %v", len(now), len(raw), err)
	}
}
