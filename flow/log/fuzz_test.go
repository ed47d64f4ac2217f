package log

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func FuzzJournalRecord(f *testing.F) {
	r := record{kind: recEntry, index: 7, term: 1, nonce: 42}
	f.Add(append(r.append(nil, []byte("data")), "data"...))
	f.Add((&groupImage{birth: []byte("b")}).append(nil))
	f.Add((&fileHeader{seq: 1}).append(nil))
	f.Add(appendIndex(nil, &segment{size: 10, next: 5, sparse: []sparse{{}}}))
	f.Add(syncedPos{base: 1, length: 2, next: 3}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := parseRecord(b, 42); ok {
			n := recordSize + int(h.length)
			if n <= len(b) && checkRecord(b[:n]) {
				h2 := h
				if got := h2.append(nil, b[recordSize:n]); string(got[4:55]) != string(b[4:55]) {
					t.Fatalf("record does not come back: %x %x", got, b[:recordSize])
				}
			}
		}
		if g, ok := parseGroupImage(b); ok && string(g.append(nil)) != string(b) {
			t.Fatal("group image does not come back")
		}
		parseFileHeader(b)
		parseIndex(b, &segment{size: int64(len(b)), next: 1})
		if p, ok := parseSynced(b); ok && len(b) > 0 && p != (syncedPos{}) && string(p.encode()) != string(b) {
			t.Fatal("synced position does not come back")
		}
	})
}

// FuzzJournalFile reads arbitrary bytes, with checksums made right where they look like records, as the part of a file after its checkpoint.
func FuzzJournalFile(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint8(0))
	for _, kind := range []recordKind{recEntry, recHardState, recTruncate, recReset, recBirth, recTombstone, recGroup, recMark} {
		r := record{kind: kind, index: 1, term: 1, nonce: 5, flags: flagEnd}
		f.Add(append(r.append(nil, []byte("12345678")), "12345678"...), uint8(kind))
	}
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		dir := t.TempDir()
		h := fileHeader{seq: 3, nonce: 5}
		buf := h.append(nil)
		r := record{kind: recCheckpoint, nonce: 5, flags: flagEnd}
		buf = r.append(buf, nil)
		// The mutator cannot find checksums: make one of the pieces valid.
		if len(b) >= recordSize {
			r, _ := parseRecord(b, 5)
			r.nonce, r.kind = 5, recordKind(kind)
			buf = append(r.append(buf, b[recordSize:]), b[recordSize:]...)
		}
		buf = append(buf, b...)
		if err := os.WriteFile(filepath.Join(dir, fileName(3)), append(buf, make([]byte, 100)...), 0o640); err != nil {
			t.Fatal(err)
		}
		j := &FileJournal{cfg: JournalConfig{Dir: dir}.withDefaults(), groups: map[ring.GroupID]*group{}}
		defer j.closeFiles()
		found := inspectJournal(t, dir)
		if _, err := j.recover(); err != nil {
			if wire.KindOf(err) != wire.KindCorrupt {
				t.Fatal(err)
			}
			return
		}
		if found.damage() {
			t.Fatalf("recovery takes what the inspection calls damaged: %+v", found.findings)
		}
		for _, st := range j.Groups() {
			if st.Last+1 < st.First {
				t.Fatalf("%+v", st)
			}
		}
	})
}

func FuzzSegmentFile(f *testing.F) {
	m, p := testBatch(0, 30)
	one := append(batch.AppendMeta(nil, m), p...)
	m, p = testBatch(1, 30)
	two := append(append([]byte{}, one...), append(batch.AppendMeta(nil, m), p...)...)
	f.Add(one, uint16(0))
	f.Add(two, uint16(1000))
	f.Add(two[:len(two)-1], uint16(150))
	f.Fuzz(func(t *testing.T, b []byte, synced uint16) {
		dir := t.TempDir()
		if err := os.WriteFile(segmentPath(dir, 0), b, 0o640); err != nil {
			t.Fatal(err)
		}
		r := Recovery{Next: 4, AppliedIndex: 1 << 40, Synced: syncedPos{length: int64(synced), next: 4}.encode()}
		inspectSegments(t, dir, nil, 0)
		found := inspectSegments(t, dir, &r, 0)
		s, err := OpenSegments(dir, SegmentConfig{}, r)
		if err != nil {
			if wire.KindOf(err) != wire.KindCorrupt {
				t.Fatal(err)
			}
			return
		}
		defer func() { _ = s.Close() }()
		if found.damage() {
			t.Fatalf("opened, and called damaged: %+v", found.findings)
		}
		for at := s.Start(); at < s.Next(); {
			got, err := s.Read(at, 100, nil)
			if err != nil || len(got) == 0 {
				t.Fatalf("what was accepted cannot be read at %d: %v", at, err)
			}
			at = got[len(got)-1].Meta.Next()
		}
		s.SeekTime(1005)
	})
}
