package flow

import (
	"bytes"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// FuzzMessages holds that what one of the broker's messages decodes to is written and read back the same.
func FuzzMessages(f *testing.F) {
	ack := publishAck{Seq: 1, Credit: 2, Dups: []partition.Dup{{Pos: 1, Offset: 2}}, Err: wire.Errorf(wire.KindFenced, "x", "y")}
	if _, err := ack.encode(); err != nil {
		f.Fatal(err)
	}
	for _, v := range []any{
		&publishHello{Group: ring.GroupID{1}, New: true}, &ack, &subscribeHello{Group: ring.GroupID{1}, From: 1, Credit: 2}, &creditFrame{Credit: 1},
		&partitionRequest{Op: opSeek, Time: 1}, &partitionResponse{Start: 1, Next: 2}, &catalogRequest{Op: opCatalogFates, IDs: []ring.StreamID{{1}}},
		&catalogResponse{Stream: &catalog.Stream{Name: "s"}, Streams: [][]byte{{1}}}, &importRequest{Base: 1, Batches: []byte{1}}, &importResponse{Next: 1},
	} {
		b, err := wire.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<10 {
			return // nothing new, and what is written may have more values than may be read
		}
		for _, pair := range [][2]any{
			{new(publishHello), new(publishHello)}, {new(publishAck), new(publishAck)}, {new(subscribeHello), new(subscribeHello)},
			{new(creditFrame), new(creditFrame)}, {new(partitionRequest), new(partitionRequest)}, {new(partitionResponse), new(partitionResponse)},
			{new(catalogRequest), new(catalogRequest)}, {new(catalogResponse), new(catalogResponse)}, {new(importRequest), new(importRequest)},
			{new(importResponse), new(importResponse)},
		} {
			if wire.Unmarshal(b, pair[0]) != nil {
				continue
			}
			once, err := wire.Marshal(pair[0])
			if err != nil {
				t.Fatalf("%T is read and cannot be written: %v", pair[0], err)
			}
			if err := wire.Unmarshal(once, pair[1]); err != nil {
				t.Fatalf("%T is written and cannot be read: %v", pair[0], err)
			}
			if twice, err := wire.Marshal(pair[1]); err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("%T: %x became %x, %v", pair[0], once, twice, err)
			}
		}
		_, _ = parseAnswer(b)
	})
}

// FuzzBatches holds that runs of batches, from a replica or in an import, are cut without a gap, and that what follows them is never taken.
func FuzzBatches(f *testing.F) {
	m := batch.Meta{Count: 1, Base: 5}
	f.Add(batch.AppendMeta(nil, &m))
	f.Add(append(batch.AppendMeta(nil, &m), batch.AppendMeta(nil, &m)...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		batches, err := split(raw)
		if err != nil {
			return
		}
		end := 0
		for i := range batches {
			_, n, err := batch.ParseMeta(raw[end:])
			if err != nil {
				t.Fatal(err)
			}
			end += n + len(batches[i].Payload)
		}
		if end != len(raw) {
			t.Fatalf("%d bytes of %d were cut into batches", end, len(raw))
		}
		entries, err := importEntries(&importRequest{Batches: raw})
		if err == nil && len(raw) > 0 && len(entries) != len(batches) {
			t.Fatalf("%d entries of %d batches", len(entries), len(batches))
		}
	})
}

// FuzzParsePosition holds that every position that is taken says where it begins.
func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{"", "latest", "earliest", "@2026-01-01T00:00:00Z", "-15m", "0:12,3:0", "-9999999h", "0:18446744073709551616", "0:1,0:2"} {
		f.Add(s)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePosition(s, now)
		switch {
		case err != nil:
			if k := wire.KindOf(err); k != wire.KindInvalid {
				t.Fatalf("%q: %v is of kind %v", s, err, k)
			}
		case p.Kind == FromTime && p.At.IsZero(), p.Kind == FromOffsets && len(p.Offsets) == 0:
			t.Fatalf("%q became %+v", s, p)
		}
	})
}
