package log

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// segmentFiles are the paths of the files in dir.
func segmentFiles(t testing.TB, dir string) (files []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+SegmentSuffix))
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v", files, err)
	}
	return files
}

func TestInspectedSegmentsAreJudgedAsTheirOpeningJudgesThem(t *testing.T) {
	src, r := segmentsOnDisk(t)
	before := contents(t, src)
	if sound := inspectSegments(t, src, &r, 0); len(sound.findings) > 0 || len(sound.batches) != 40 {
		t.Fatalf("%+v", sound)
	}
	if !maps.Equal(before, contents(t, src)) {
		t.Fatal("the directory was changed")
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range segmentFiles(t, src) {
		name = filepath.Base(name)
		whole, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			t.Fatal(err)
		}
		for n := range 60 {
			at := random.IntN(len(whole))
			b := bytes.Clone(whole)
			if n%2 == 0 {
				b = b[:at]
			} else {
				b[at] ^= 1
			}
			dir := copyDir(t, src)
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o640); err != nil {
				t.Fatal(err)
			}
			found := inspectSegments(t, dir, &r, 0)
			s, err := OpenSegments(dir, SegmentConfig{}, r)
			if err == nil {
				// Payloads of complete files are only verified when they are read.
				for at := s.Start(); err == nil && at < s.Next(); {
					var got []StoredBatch
					if got, err = s.Read(at, 1000, nil); err == nil {
						at = got[len(got)-1].Meta.Next()
					}
				}
				_ = s.Close()
			}
			if (err != nil) != found.damage() {
				t.Fatalf("%s, try %d at %d: opening and reading say %v, the inspection %+v", name, n, at, err, found.findings)
			}
			if len(found.findings) == 0 || len(found.batches) < 20 {
				t.Fatalf("%s, try %d at %d: %+v", name, n, at, found)
			}
		}
	}
}

func TestInspectedSegmentsGoOnAfterDamage(t *testing.T) {
	dir, r := segmentsOnDisk(t)
	files := segmentFiles(t, dir)
	patch(t, files[0], func(b []byte) []byte { b[2300] ^= 1; return b })
	if err := os.Remove(files[1]); err != nil {
		t.Fatal(err)
	}
	found := inspectSegments(t, dir, &r, 0)
	if len(found.findings) != 2 || found.findings[0].Kind != FoundDamage || found.findings[0].Path != files[0] || found.findings[1].Kind != FoundMissing ||
		found.findings[1].Path != files[1] {
		t.Fatalf("%+v", found.findings)
	}
	if f := found.findings[0]; f.Pos != 1872 || f.End != 2340 || f.Detail != "batch payload fails its CRC" {
		t.Fatalf("%+v", f)
	}
	if !slices.Contains(found.batches, 0) || !slices.Contains(found.batches, 78) {
		t.Fatalf("%v", found.batches)
	}
	// What is lost at the end of a file is not told again as a missing one.
	for i := range files {
		dir, r := segmentsOnDisk(t)
		s := openSegs(t, dir, r)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		r.Synced = s.SyncedState()
		patch(t, segmentFiles(t, dir)[i], func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
		if found := inspectSegments(t, dir, &r, 0); len(found.findings) != 1 || !found.damage() || len(found.batches) != 39 {
			t.Fatalf("%+v", found)
		}
	}
	// A file by itself is held against nothing.
	var alone inspected
	if err := InspectSegmentFile(files[2], alone.visitor()); err != nil || len(alone.findings) > 0 || len(alone.batches) == 0 {
		t.Fatalf("%v, %+v", err, alone)
	}
	// From an offset on, the files before it are not read.
	if found := inspectSegments(t, dir, &r, alone.batches[0]); len(found.findings) > 0 || found.batches[0] != alone.batches[0] {
		t.Fatalf("%+v", found)
	}
}

func TestInspectedSegmentsTellWhatTheNextStartCuts(t *testing.T) {
	dir, r := segmentsOnDisk(t)
	files := segmentFiles(t, dir)
	r.AppliedIndex, r.Next = 138, 78
	last := files[len(files)-1]
	found := inspectSegments(t, dir, &r, 0)
	if len(found.findings) != 1 || found.findings[0].Kind != FoundUnapplied || found.batches[len(found.batches)-1] != 78 {
		t.Fatalf("%+v", found)
	}
	r.AppliedIndex, r.Next = 139, 80
	patch(t, last, func(b []byte) []byte { return b[:len(b)-1] })
	found = inspectSegments(t, dir, &r, 0)
	if len(found.findings) != 1 || found.findings[0].Kind != FoundTorn || found.findings[0].Path != last {
		t.Fatalf("%+v", found.findings)
	}
	if found := inspectSegments(t, dir, nil, 0); !found.damage() {
		t.Fatal("where nobody knows what was durable, a cut file is not called damaged")
	}
	if err := MarkDamaged(OS{}, dir, errors.New("read wrong"), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if found := inspectSegments(t, dir, &r, 0); !found.damage() || !strings.Contains(found.findings[0].Detail, "read wrong") {
		t.Fatalf("%+v", found.findings)
	}
	for path, text := range map[string]string{filepath.Join(dir, markName): "no mark", last: "no batch"} {
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if found := inspectSegments(t, dir, &r, 0); len(found.findings) != 3 {
		t.Fatalf("%+v", found.findings)
	}
	if found := inspectSegments(t, filepath.Join(dir, "nothing"), &r, 0); len(found.findings) != 1 || found.findings[0].Kind != FoundMissing {
		t.Fatalf("%+v", found.findings)
	}
}

func TestInspectedSegmentsKnowWhatWasTrimmedAndReset(t *testing.T) {
	dir, r := segmentsOnDisk(t)
	s := openSegs(t, dir, r)
	if err := errors.Join(s.TrimTo(50), s.Sync()); err != nil {
		t.Fatal(err)
	}
	r = recoveryOf(s)
	r.Synced = s.SyncedState()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	found := inspectSegments(t, dir, &r, 0)
	if bases, err := listSegments(OS{}, dir); err != nil || bases[0] == 0 || found.batches[0] != bases[0] || len(found.findings) > 0 {
		t.Fatalf("%v, %v, %+v", bases, err, found)
	}
	patch(t, segmentPath(dir, found.batches[0]), func(b []byte) []byte { b[0] ^= 1; return b })
	if from := inspectSegments(t, dir, &r, 79); len(from.findings) > 0 {
		t.Fatalf("it looked before offset 79: %+v", from.findings)
	}
	if err := writeMark(OS{}, dir, trimMark{start: 1000, resetAt: 1000}); err != nil {
		t.Fatal(err)
	}
	r.Start, r.Next = 1000, 1000
	found = inspectSegments(t, dir, &r, 0)
	if len(found.batches) > 0 || len(found.findings) != 2 || found.findings[0].Kind != FoundLeftover || found.damage() {
		t.Fatalf("%+v", found)
	}
}

func TestInspectionHoldsNoMoreThanABatch(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenSegments(dir, SegmentConfig{TailBytes: -1}, Recovery{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, 0, 500, 64<<10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	count := SegmentVisitor{File: func(string, int64) error { return nil }, Batch: func(*InspectedBatch) error { n++; return nil },
		Finding: func(f Finding) error { return fmt.Errorf("%+v", f) }}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := InspectSegments(dir, nil, 0, count); err != nil || n != 500 {
		t.Fatalf("%d batches, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 2<<20 {
		t.Fatalf("%d bytes of memory for 32 MiB of batches", used)
	}
}

func TestInspectionReadsRegularFilesOnly(t *testing.T) {
	dir, r := segmentsOnDisk(t)
	first := segmentFiles(t, dir)[0]
	if err := errors.Join(os.Remove(first), os.Mkdir(first, 0o750)); err != nil {
		t.Fatal(err)
	}
	found := inspectSegments(t, dir, &r, 0)
	if f := found.findings[0]; len(found.findings) != 1 || f.Path != first || !f.Kind.Damage() || !strings.Contains(f.Detail, "is not a regular file") || len(found.batches) < 20 {
		t.Fatalf("%+v", found)
	}
	if err := InspectSegmentFile(first, (&inspected{}).visitor()); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Fatal(err)
	}
	if err := InspectJournal(filepath.Join(dir, "nothing"), JournalVisitor{}); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}
