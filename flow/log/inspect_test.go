package log

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// inspected is what an inspection gave out.
type inspected struct {
	findings []Finding
	records  []JournalRecord
	batches  []uint64 // their bases
	ends     []int64
}

func (i *inspected) finding(f Finding) error {
	i.findings = append(i.findings, f)
	return nil
}

func (i *inspected) damage() bool {
	return slices.ContainsFunc(i.findings, func(f Finding) bool { return f.Kind.Damage() })
}

func inspectJournal(t testing.TB, dir string) (out inspected) {
	t.Helper()
	err := InspectJournal(dir, JournalVisitor{
		File:    func(JournalFile) error { return nil },
		Record:  func(r *JournalRecord) error { out.records = append(out.records, *r); return nil },
		Finding: out.finding,
		End:     func(_ string, end int64) error { out.ends = append(out.ends, end); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (i *inspected) visitor() SegmentVisitor {
	return SegmentVisitor{
		File:    func(string, int64) error { return nil },
		Batch:   func(b *InspectedBatch) error { i.batches = append(i.batches, b.Meta.Base); return nil },
		Finding: i.finding,
	}
}

func inspectSegments(t testing.TB, dir string, r *Recovery, from uint64) (out inspected) {
	t.Helper()
	if err := InspectSegments(dir, r, from, out.visitor()); err != nil {
		t.Fatal(err)
	}
	return out
}

// contents are the files of a directory with what is in them and when they were changed.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = fmt.Sprint(info.ModTime().UnixNano(), string(b))
	}
	return out
}

func TestStoreOpenedForReadingChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(StoreConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	b.Set([]byte("k"), []byte("v"))
	if err := errors.Join(b.Commit(), s.Close(), os.Remove(filepath.Join(dir, "LOCK"))); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	if s, err = OpenStore(StoreConfig{Dir: dir, ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := s.Get([]byte("k")); err != nil || !ok || string(v) != "v" {
		t.Fatalf("%q, %v, %v", v, ok, err)
	}
	b = s.NewBatch()
	b.Set([]byte("k"), []byte("w"))
	if err := b.Commit(); err == nil {
		t.Fatal("a write was taken")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(before, contents(t, dir)) {
		t.Fatal("the directory was changed")
	}
	if _, err := OpenStore(StoreConfig{Dir: filepath.Join(dir, "nothing"), ReadOnly: true}); err == nil || len(contents(t, dir)) != len(before) {
		t.Fatalf("a store that is not there: %v", err)
	}
}

func TestDamagedStoreOpenedForReadingIsAnErrorAndNeverAPanic(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(StoreConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		b := s.NewBatch()
		for k := range 200 {
			b.Set(fmt.Appendf(nil, "k%d-%d", i, k), make([]byte, 100))
		}
		b.DeleteRange([]byte("k1-1"), []byte("k1-2"))
		if err := errors.Join(b.Commit(), s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for name := range contents(t, dir) {
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; n < 40 && len(whole) > 0; n++ {
			b, at := bytes.Clone(whole), random.IntN(len(whole))
			if n%2 == 0 {
				b = b[:at]
			} else {
				b[at] ^= byte(1 << random.IntN(8))
			}
			if err := os.WriteFile(path, b, 0o640); err != nil {
				t.Fatal(err)
			}
			if s, err := OpenStore(StoreConfig{Dir: dir, ReadOnly: true}); err == nil {
				_ = s.Scan([]byte("k"), func(_, _ []byte) error { return nil })
				_ = s.Close()
			}
		}
		if err := os.WriteFile(path, whole, 0o640); err != nil {
			t.Fatal(err)
		}
	}
}
