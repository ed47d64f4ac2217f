package partition

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

var testExport = [16]byte{0xe}

// source makes a partition whose log was trimmed inside a batch, with duplicates among its records, and returns its export: what to
// begin the import with, and its batches.
func source(t *testing.T) (*host, Import, []log.Entry) {
	t.Helper()
	h := mustHost(t, Config{})
	h.apply(openEntry(11, sessionA, 1000))
	for i := range uint64(8) {
		id := byte(1 + i)
		h.apply(batchEntry(12+i, sessionA, 1+i, int64(1000+i*10), rec{id: id, value: fmt.Sprint("x", i)}, rec{id: id, value: "again"},
			rec{value: fmt.Sprintf("%0400d", i)}, rec{value: "z"}))
	}
	h.apply(log.Entry{Index: 20, Term: 1, Data: EncodeTrim(nil, 7, 2000)})
	im := Import{Export: testExport, Start: h.p.Start(), End: h.p.Next()}
	raw := wholeLog(t, h)
	var entries []log.Entry
	for len(raw) > 0 {
		m, payload, rest, _, err := splitBatch(raw)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			im.Base = m.Base
		}
		m.Identities = make([]batch.Identity, m.Count)
		m.Identities[0] = batch.Identity{Hash: [16]byte{byte(m.Base), 9}, Payload: m.Base}
		m.Identities[1] = batch.Identity{Hash: [16]byte{0xff}} // skipped: not to be remembered
		entries = append(entries, log.Entry{Index: 12 + uint64(len(entries)), Term: 1, Data: EncodeImportBatch(nil, testExport, &m, payload)})
		raw = rest
	}
	begin, err := EncodeImportBegin(nil, im)
	if err != nil {
		t.Fatal(err)
	}
	if im.Base >= im.Start || len(entries) < 4 {
		t.Fatalf("%+v with %d batches", im, len(entries))
	}
	return h, im, append([]log.Entry{{Index: 11, Term: 1, Data: begin}}, entries...)
}

// wholeLog is all batches that readers can see.
func wholeLog(t *testing.T, h *host) (out []byte) {
	t.Helper()
	for from := h.p.Start(); from < h.p.Next(); {
		raw, err := h.p.Read(from, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, raw...)
		for len(raw) > 0 {
			var m batch.Meta
			if m, _, raw, _, err = splitBatch(raw); err != nil {
				t.Fatal(err)
			}
			from = m.Next()
		}
	}
	return out
}

// stored is all that readers of a partition can see, but for raft's position.
func stored(t *testing.T, h *host) []byte {
	t.Helper()
	raw := wholeLog(t, h)
	var out []byte
	for len(raw) > 0 {
		m, payload, rest, _, err := splitBatch(raw)
		if err != nil {
			t.Fatal(err)
		}
		m.Index, m.Term = 0, 0
		out = append(batch.AppendMeta(out, &m), payload...)
		raw = rest
	}
	return out
}

func imported(t *testing.T, res any) ImportResult {
	t.Helper()
	r, ok := res.(ImportResult)
	if !ok {
		t.Fatalf("result is %T", res)
	}
	return r
}

func TestImportedPartitionHasTheSameBytesAtTheSameOffsets(t *testing.T) {
	from, im, entries := source(t)
	to := mustHost(t, Config{})
	for i, e := range entries {
		if r := imported(t, to.apply(e)[0]); r.Err != nil || i == 0 && r.Next != im.Base {
			t.Fatalf("entry %d: %+v", i, r)
		}
		if export, whole := to.p.Imported(); export != im.Export || whole != (i == len(entries)-1) {
			t.Fatalf("after entry %d: filled from %x, whole %t", i, export, whole)
		}
	}
	if to.p.Start() != im.Start || to.p.Next() != im.End || !bytes.Equal(stored(t, to), stored(t, from)) {
		t.Errorf("offsets [%d, %d), want [%d, %d)", to.p.Start(), to.p.Next(), im.Start, im.End)
	}
	if _, err := to.p.Read(im.Start-1, 1); wire.CodeOf(err) != wire.CodeOffsetExpired {
		t.Errorf("before the start: %v", err)
	}
	next := entries[len(entries)-1].Index + 1
	// The partition goes on as any other: at the next offset, and knowing the identities that came with the batches.
	var b batch.Builder
	if err := b.AddIdentified(&batch.Record{Value: []byte("known")}, batch.Identity{Hash: [16]byte{byte(im.Base), 9}, Payload: im.Base}); err != nil {
		t.Fatal(err)
	}
	m, payload := b.Finish(false)
	m.Session, m.Seq, m.Stamp = sessionB, 1, 1500
	known := log.Entry{Index: next + 1, Term: 1, Data: EncodeBatch(nil, &m, payload)}
	res := to.apply(openEntry(next, sessionB, 1500), known, batchEntry(next+2, sessionB, 2, 1500, rec{value: "new"}))
	if r := result(t, res[1]); r.Err != nil || len(r.Dups) != 1 || r.Dups[0].Offset != im.Base || r.Dups[0].Reused {
		t.Errorf("a known identity: %+v", r)
	}
	if r := result(t, res[2]); r.Err != nil || r.Base != im.End {
		t.Errorf("the first new batch: %+v", r)
	}
}

func TestImportTakesEachBatchOnceAndInTurn(t *testing.T) {
	_, im, entries := source(t)
	h := mustHost(t, Config{})
	index := uint64(50)
	step := func(e log.Entry) ImportResult {
		t.Helper()
		e.Index = index
		index++
		return imported(t, h.apply(e)[0])
	}
	if r := step(entries[1]); r.Err == nil || r.Err.Code != CodeOtherImport {
		t.Fatalf("a batch before the beginning: %+v", r)
	}
	step(entries[0])
	if r := step(entries[2]); r.Err == nil || r.Err.Code != CodeImportGap || r.Next != im.Base {
		t.Fatalf("the second batch first: %+v", r)
	}
	first := step(entries[1])
	if again := step(entries[1]); again != first || first.Err != nil {
		t.Fatalf("the first batch twice: %+v, %+v", first, again)
	}
	if again := step(entries[0]); again != first {
		t.Fatalf("the beginning twice: %+v", again)
	}
	other := im
	other.Export[0]++
	begin, err := EncodeImportBegin(nil, other)
	if err != nil {
		t.Fatal(err)
	}
	if r := step(log.Entry{Term: 1, Data: begin}); r.Err == nil || r.Err.Kind != wire.KindConflict {
		t.Fatalf("another export: %+v", r)
	}
	h.apply(openEntry(index, sessionA, 1000))
	if r := result(t, h.apply(batchEntry(index+1, sessionA, 1, 1000, rec{value: "early"}))[0]); r.Err == nil || r.Err.Code != CodeImporting {
		t.Fatalf("a publisher before the end: %+v", r)
	}
	index += 2
	if _, due := h.p.RetentionTrim(1 << 50); due || h.p.ClockDue(1<<50) {
		t.Fatal("maintenance is due during the import")
	}
	for _, e := range entries[2:] {
		if r := step(e); r.Err != nil {
			t.Fatalf("%+v", r)
		}
	}
	for _, e := range entries {
		if r := step(e); r.Err != nil || r.Next != im.End || h.p.Next() != im.End {
			t.Fatalf("all again: %+v", r)
		}
	}
	if got := result(t, h.apply(batchEntry(index, sessionA, 1, 1000, rec{value: "on time"}))[0]); got.Base != im.End {
		t.Fatalf("after the end: %+v", got)
	}
	busy := mustHost(t, Config{})
	busy.apply(openEntry(11, sessionA, 1), batchEntry(12, sessionA, 1, 1, rec{value: "here first"}))
	entries[0].Index = 13
	if r := imported(t, busy.apply(entries[0])[0]); r.Err == nil || r.Err.Code != CodeOtherImport {
		t.Fatalf("into a partition with events: %+v", r)
	}
}

func TestImportSurvivesCrashesAtEachEntry(t *testing.T) {
	from, im, entries := source(t)
	want := stored(t, from)
	for _, lose := range []bool{false, true} {
		for stop := range len(entries) + 1 {
			h := mustHost(t, Config{})
			for i, e := range entries[:stop] {
				h.apply(e)
				if i%2 == 0 {
					h.sync(i%4 == 0)
				}
			}
			for range 2 {
				h.crash(entries, func(n int64) int64 {
					if lose {
						return n
					}
					return 0
				})
			}
			for _, e := range entries {
				if e.Index > h.applied {
					h.apply(e)
				}
			}
			if h.p.Start() != im.Start || h.p.Next() != im.End || !bytes.Equal(stored(t, h), want) {
				t.Fatalf("crash after %d entries: offsets [%d, %d)", stop, h.p.Start(), h.p.Next())
			}
		}
	}
}

func TestLearnerGoesOnWithAnImport(t *testing.T) {
	from, im, entries := source(t)
	for _, cut := range []int{1, 3, len(entries)} { // nothing yet, in the midst, complete
		a, b := mustHost(t, Config{}), mustHost(t, Config{})
		a.apply(entries[:cut]...)
		staged, err := transfer(t, a, b, newPipe(), nil)
		if err != nil {
			t.Fatal(err)
		}
		b.install(staged, entries[cut-1].Index)
		b.close()
		b.open()
		for _, e := range entries[cut:] {
			if r := imported(t, b.apply(e)[0]); r.Err != nil {
				t.Fatalf("%+v", r)
			}
		}
		if b.p.st.imp == nil || *b.p.st.imp != im || !bytes.Equal(stored(t, b), stored(t, from)) {
			t.Fatalf("after %d entries: offsets [%d, %d)", cut, b.p.Start(), b.p.Next())
		}
	}
}

func TestEmptyImportBeginsWhereTheLogEnded(t *testing.T) {
	h := mustHost(t, Config{})
	begin, err := EncodeImportBegin(nil, Import{Export: testExport, Base: 40, Start: 40, End: 40})
	if err != nil {
		t.Fatal(err)
	}
	h.apply(log.Entry{Index: 11, Term: 1, Data: begin})
	h.close()
	h.open()
	h.apply(openEntry(12, sessionA, 1))
	if r := result(t, h.apply(batchEntry(13, sessionA, 1, 1, rec{value: "a"}))[0]); r.Err != nil || r.Base != 40 {
		t.Fatalf("%+v", r)
	}
}
