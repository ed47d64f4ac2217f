package backup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func manifest(partitions int) Manifest {
	m := Manifest{Export: ExportID{1, 2}, ExportedMS: 5, Cluster: "c", Name: "orders", Stream: ring.StreamID{7}, Seed: ring.Seed{9},
		Config: catalog.StreamConfig{Partitions: partitions}.WithDefaults()}
	for i, r := range ring.EvenRanges(partitions) {
		m.Partitions = append(m.Partitions, Partition{ID: ring.PartitionID(i), Range: r})
	}
	return m
}

// someBatch is a batch of n records of so many bytes, of which the first skip ones have no offset.
func someBatch(t testing.TB, base uint64, stamp int64, n, size, skip int) (batch.Meta, []byte) {
	t.Helper()
	var b batch.Builder
	for i := range n {
		value, x := make([]byte, size), uint32(i+1)
		for j := range value { // nothing that can be compressed
			x = x*1664525 + 1013904223
			value[j] = byte(x >> 24)
		}
		rec := batch.Record{HasKey: i%2 == 0, Value: value, Headers: []batch.Header{{Name: "h", Value: "v"}}}
		if err := b.Add(&rec); err != nil {
			t.Fatal(err)
		}
	}
	m, payload := b.Finish(true)
	m.Base, m.Stamp, m.Index, m.Term = base, stamp, base+11, 1
	for i := range skip {
		m.Skip = append(m.Skip, uint32(i))
	}
	return m, append([]byte(nil), payload...)
}

// file writes a file of two partitions: one whose log was trimmed inside its first batch, and an empty one that was trimmed too.
func file(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, manifest(2))
	if err != nil {
		t.Fatal(err)
	}
	m1, p1 := someBatch(t, 100, 1000, 4, 10, 1)
	m2, p2 := someBatch(t, m1.Next(), 1000, 2, 600<<10, 0)
	steps := []error{w.Section(Section{Partition: 0, Base: 100, Start: 101, End: m2.Next()}), w.Batch(&m1, p1), w.Batch(&m2, p2),
		w.Section(Section{Partition: 1, Base: 8, Start: 8, End: 8})}
	totals, err := w.End()
	if err := errors.Join(append(steps, err)...); err != nil {
		t.Fatal(err)
	}
	if totals.Partitions != 2 || totals.Batches != 2 || totals.Events != 4 {
		t.Fatalf("%+v", totals)
	}
	return out.Bytes()
}

// readAll reads a file and tells what was in it.
func readAll(r io.Reader) (string, error) {
	rd, m, err := NewReader(r)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%+v\n", *m)
	for {
		it, err := rd.Next()
		switch {
		case errors.Is(err, io.EOF):
			return out.String(), nil
		case err != nil:
			return out.String(), err
		case it.Section != nil:
			fmt.Fprintf(&out, "%+v\n", *it.Section)
		case it.Batch != nil:
			fmt.Fprintf(&out, "%+v %x\n", it.Batch.Meta, it.Batch.Payload)
		default:
			fmt.Fprintf(&out, "%+v\n", *it.End)
		}
	}
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	got, err := readAll(bytes.NewReader(file(t)))
	if err != nil {
		t.Fatal(err)
	}
	m1, p1 := someBatch(t, 100, 1000, 4, 10, 1)
	for _, want := range []string{"Name:orders", "{Partition:0 Base:100 Start:101 End:105}", fmt.Sprintf("%+v %x", m1, p1),
		"{Partition:1 Base:8 Start:8 End:8}", "{Partitions:2 Batches:2 Events:4"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestTruncatedFileIsRefusedWhereverItEnds(t *testing.T) {
	whole := file(t)
	ends := []int{len(whole) - 1, len(whole) - 40, len(whole) / 2}
	for n := range 2000 {
		ends = append(ends, n)
	}
	for _, n := range ends {
		if _, err := readAll(bytes.NewReader(whole[:n])); wire.CodeOf(err) != CodeDamaged || !strings.Contains(err.Error(), fmt.Sprint("byte ", n)) {
			t.Fatalf("cut at byte %d: %v", n, err)
		}
	}
	if _, err := readAll(bytes.NewReader(append(bytes.Clone(whole), 0))); wire.CodeOf(err) != CodeDamaged {
		t.Fatal("bytes after the end:", err)
	}
}

func TestChangedByteIsNoticed(t *testing.T) {
	whole := file(t)
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.OneOf(rapid.IntRange(0, min(3000, len(whole)-1)), rapid.IntRange(0, len(whole)-1)).Draw(t, "at")
		spoiled := bytes.Clone(whole)
		spoiled[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		if _, err := readAll(bytes.NewReader(spoiled)); wire.CodeOf(err) != CodeDamaged {
			t.Fatalf("byte %d: %v", at, err)
		}
	})
}

// reframe replaces the body of the frame at byte pos by one that checks out.
func reframe(b []byte, pos int, kind byte, body []byte) []byte {
	old := pos + headBytes + int(binary.LittleEndian.Uint32(b[pos+1:]))
	out := append(bytes.Clone(b[:pos]), appendHead(nil, kind, body)...)
	return append(append(out, body...), b[old:]...)
}

// frames are the positions of all frames.
func frames(b []byte) []int {
	var out []int
	for pos := prefixBytes; pos < len(b); pos += headBytes + int(binary.LittleEndian.Uint32(b[pos+1:])) {
		out = append(out, pos)
	}
	return out
}

func TestFramesThatDoNotFitAreRefused(t *testing.T) {
	whole := file(t)
	at := frames(whole) // manifest, section, batches, batches, section, end
	if len(at) != 6 {
		t.Fatalf("%d frames", len(at))
	}
	pack := func(v any) []byte {
		b, err := wire.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	gap := manifest(2)
	gap.Partitions[1].Range.Lo++
	late, lateP := someBatch(t, 100, 900, 4, 10, 1)
	early, earlyP := someBatch(t, 99, 1000, 4, 10, 1)
	raw := func(m batch.Meta, p []byte) []byte { return append(batch.AppendMeta(nil, &m), p...) }
	unreadable, _ := someBatch(t, 100, 1000, 4, 10, 1)
	for name, b := range map[string][]byte{
		"ranges with a gap":              reframe(whole, at[0], kindManifest, pack(&gap)),
		"a manifest of another kind":     reframe(whole, at[0], kindSection, pack(&Section{})),
		"a second manifest":              reframe(whole, at[4], kindManifest, pack(&gap)),
		"a section before its start":     reframe(whole, at[1], kindSection, pack(&Section{Base: 102, Start: 101, End: 105})),
		"another partition's section":    reframe(whole, at[1], kindSection, pack(&Section{Partition: 1, Base: 100, Start: 101, End: 105})),
		"batches of no partition":        reframe(whole, at[1], kindBatches, raw(late, lateP)),
		"no batch":                       reframe(whole, at[2], kindBatches, nil),
		"a batch below the base":         reframe(whole, at[2], kindBatches, raw(early, earlyP)),
		"a missing batch":                append(bytes.Clone(whole[:at[2]]), whole[at[3]:]...),
		"a missing section":              append(bytes.Clone(whole[:at[4]]), whole[at[5]:]...),
		"time that goes back":            reframe(whole, at[3], kindBatches, raw(func() (batch.Meta, []byte) { return someBatch(t, 103, 1, 2, 600<<10, 0) }())),
		"a batch that is cut off":        reframe(whole, at[2], kindBatches, raw(late, lateP)[:150]),
		"a batch that cannot be read":    reframe(whole, at[2], kindBatches, raw(unreadable, make([]byte, unreadable.PayloadLen))),
		"another sum":                    reframe(whole, at[5], kindEnd, pack(&end{Totals: Totals{Partitions: 2, Batches: 2, Events: 4}})),
		"a batch before the first event": reframe(whole, at[1], kindSection, pack(&Section{Base: 100, Start: 104, End: 105})),
	} {
		if _, err := readAll(bytes.NewReader(b)); wire.CodeOf(err) != CodeDamaged || !strings.Contains(err.Error(), "byte") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOtherFormsAreRefusedByName(t *testing.T) {
	whole := file(t)
	binary.LittleEndian.PutUint32(whole[len(magic):], 2)
	if _, _, err := NewReader(bytes.NewReader(whole)); err == nil || !strings.Contains(err.Error(), "form 2; this build reads form 1") {
		t.Error(err)
	}
	for _, other := range []string{`{"events": "of another kind"}`, "short\n"} {
		if _, _, err := NewReader(strings.NewReader(other)); err == nil || !strings.Contains(err.Error(), "no export") {
			t.Error(other, err)
		}
	}
	if _, _, err := NewReader(strings.NewReader(magic[:5])); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Error(err)
	}
}

func TestWriterRefusesWhatAReaderWould(t *testing.T) {
	w, err := NewWriter(io.Discard, manifest(2))
	if err != nil {
		t.Fatal(err)
	}
	if w.Section(Section{Partition: 1}) == nil || w.Section(Section{Base: 2, Start: 1}) == nil {
		t.Error("a section out of order, or without sense")
	}
	if err := w.Section(Section{Base: 1, Start: 1, End: 3}); err != nil {
		t.Fatal(err)
	}
	m, p := someBatch(t, 2, 1, 1, 10, 0)
	if w.Batch(&m, p) == nil {
		t.Error("a batch out of order")
	}
	if w.Section(Section{Partition: 1}) == nil {
		t.Error("a section before the end of the one before")
	}
	if _, err := w.End(); err == nil {
		t.Error("an end before the end")
	}
	if _, err := NewWriter(io.Discard, Manifest{Name: "x"}); err == nil {
		t.Error("a manifest without partitions")
	}
}

func FuzzReader(f *testing.F) {
	whole := file(f)
	f.Add(whole[:2000])
	var small bytes.Buffer
	w, err := NewWriter(&small, manifest(1))
	if err != nil {
		f.Fatal(err)
	}
	m, p := someBatch(f, 0, 1, 2, 10, 0)
	if err := errors.Join(w.Section(Section{End: 2}), w.Batch(&m, p)); err != nil {
		f.Fatal(err)
	}
	if _, err := w.End(); err != nil {
		f.Fatal(err)
	}
	f.Add(small.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := readAll(bytes.NewReader(b)); err != nil && wire.CodeOf(err) != CodeDamaged {
			t.Fatal(err)
		}
	})
}
