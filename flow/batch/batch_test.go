package batch

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func genRecord(t *rapid.T) Record {
	attr := rapid.StringN(0, 40, 300)
	r := Record{
		HasKey:      rapid.Bool().Draw(t, "haskey"),
		Value:       rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "value"),
		ContentType: attr.Draw(t, "contenttype"),
		ID:          attr.Draw(t, "id"),
		Source:      attr.Draw(t, "source"),
		Type:        attr.Draw(t, "type"),
		Time:        rapid.Int64().Draw(t, "time"),
	}
	if r.HasKey {
		r.Key = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "key")
	}
	for range rapid.IntRange(0, 20).Draw(t, "headers") {
		r.Headers = append(r.Headers, Header{attr.Draw(t, "name"), attr.Draw(t, "hvalue")})
	}
	return r
}

func sameRecord(a, b *Record) bool {
	return a.HasKey == b.HasKey && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) &&
		a.ContentType == b.ContentType && a.ID == b.ID && a.Source == b.Source && a.Type == b.Type && a.Time == b.Time &&
		len(a.Headers) == len(b.Headers) && (len(a.Headers) == 0 || reflect.DeepEqual(a.Headers, b.Headers))
}

func genMeta(t *rapid.T) Meta {
	m := Meta{
		Codec:      Codec(rapid.IntRange(0, 1).Draw(t, "codec")),
		Count:      rapid.Uint32Range(1, 300).Draw(t, "count"),
		RawLen:     rapid.Uint32Range(0, MaxRaw).Draw(t, "raw"),
		PayloadLen: rapid.Uint32Range(0, MaxRaw).Draw(t, "payload"),
		PayloadCRC: rapid.Uint32().Draw(t, "crc"),
		Seq:        rapid.Uint64().Draw(t, "seq"),
		Stamp:      rapid.Int64().Draw(t, "stamp"),
		Base:       rapid.Uint64Range(0, 1<<62).Draw(t, "base"),
		Index:      rapid.Uint64().Draw(t, "index"),
		Term:       rapid.Uint64().Draw(t, "term"),
	}
	copy(m.Session[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "session"))
	for pos := range m.Count {
		if rapid.IntRange(0, 9).Draw(t, "skip") == 0 {
			m.Skip = append(m.Skip, pos)
		}
	}
	if rapid.Bool().Draw(t, "identified") {
		m.Identities = make([]Identity, m.Count)
		for i := range m.Identities {
			m.Identities[i] = Identity{Hash: [16]byte{byte(i), byte(i >> 8), 1}, Payload: uint64(i) << 40}
		}
	}
	return m
}

func TestMetaRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genMeta(t)
		b := AppendMeta([]byte("before"), &want)[len("before"):]
		if len(b) != MetaLen(&want) {
			t.Fatalf("MetaLen = %d, wrote %d", MetaLen(&want), len(b))
		}
		got, n, err := ParseMeta(append(b, "after"...))
		if err != nil || n != len(b) || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %d, %v; want %+v", got, n, err, want)
		}
	})
}

func TestMetaWithAnyBitFlippedIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genMeta(t)
		b := AppendMeta(nil, &m)
		bit := rapid.IntRange(0, 8*len(b)-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := ParseMeta(b); wire.KindOf(err) != wire.KindCorrupt {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	})
}

func TestMetaCutAnywhereIsShort(t *testing.T) {
	m := Meta{Count: 2, Skip: []uint32{1}, Identities: make([]Identity, 2)}
	b := AppendMeta(nil, &m)
	for n := range b {
		if _, _, err := ParseMeta(b[:n]); err != ErrShort {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestMetaOutOfBoundsIsRefused(t *testing.T) {
	for name, m := range map[string]Meta{
		"no records":       {},
		"too many records": {Count: MaxRecords + 1},
		"raw too large":    {Count: 1, RawLen: MaxRaw + 1},
		"payload too big":  {Count: 1, PayloadLen: MaxRaw + 1},
		"unknown codec":    {Count: 1, Codec: 9},
		"skip beyond":      {Count: 2, Skip: []uint32{2}},
		"skip twice":       {Count: 2, Skip: []uint32{1, 1}},
		"skip descending":  {Count: 3, Skip: []uint32{1, 0}},
		"offset overflow":  {Count: 1, Base: 1 << 63},
	} {
		if _, _, err := ParseMeta(AppendMeta(nil, &m)); wire.KindOf(err) != wire.KindCorrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecordsRoundTripWithoutTheSkippedOnes(t *testing.T) {
	var b Builder
	var r Reader
	rapid.Check(t, func(t *rapid.T) {
		recs := rapid.SliceOfN(rapid.Custom(genRecord), 1, 20).Draw(t, "records")
		b.Reset()
		for i := range recs {
			if err := b.Add(&recs[i]); err != nil {
				t.Fatal(err)
			}
		}
		m, payload := b.Finish(rapid.Bool().Draw(t, "compress"))
		m.Base = 100
		for pos := range m.Count {
			if rapid.Bool().Draw(t, "skip") {
				m.Skip = append(m.Skip, pos)
			}
		}
		if err := r.Open(&m, payload, nil); err != nil {
			t.Fatal(err)
		}
		var got Record
		offset := uint64(100)
		for r.Next(&got) {
			if want := &recs[r.Position()]; !sameRecord(&got, want) {
				t.Fatalf("position %d: got %+v, want %+v", r.Position(), got, *want)
			}
			if r.Offset() != offset {
				t.Fatalf("offset %d, want %d", r.Offset(), offset)
			}
			offset++
		}
		if r.Err() != nil || offset != m.Next() {
			t.Fatalf("stopped at %d of %d: %v", offset, m.Next(), r.Err())
		}
	})
}

func TestEachRecordIsOneMessagePackValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := genRecord(t)
		var b Builder
		if err := b.Add(&rec); err != nil {
			t.Fatal(err)
		}
		_, payload := b.Finish(false)
		d := msgpack.NewDecoder(bytes.NewReader(payload))
		v, err := d.DecodeInterface()
		if err != nil {
			t.Fatal(err)
		}
		fields := v.([]any)
		if len(fields) != recordFields || !bytes.Equal(fields[1].([]byte), rec.Value) || fields[3] != rec.ID ||
			(fields[0] == nil) == rec.HasKey || len(fields[7].([]any)) != 2*len(rec.Headers) {
			t.Fatalf("a reader of msgpack sees %v", fields)
		}
		if _, err := d.DecodeInterface(); err == nil {
			t.Fatal("more than one value")
		}
	})
}

// The bytes are on disk: when this test fails the format has changed, and needs a new version.
func TestGoldenBytes(t *testing.T) {
	var b Builder
	recs := []Record{
		{Key: []byte("k1"), HasKey: true, Value: []byte(`{"a":1}`), ContentType: "application/json", ID: "7", Source: "/shop",
			Type: "paid", Time: 1700000000000, Headers: []Header{{"ce-subject", "s"}}},
		{Value: []byte("plain")},
	}
	_ = b.AddIdentified(&recs[0], Identity{Hash: [16]byte{1, 2, 3}, Payload: 4})
	_ = b.Add(&recs[1])
	m, payload := b.Finish(false)
	m.Session, m.Seq = [16]byte{0xaa, 0xbb}, 5
	m.Stamp, m.Base, m.Index, m.Term, m.Skip = 1700000000001, 6, 7, 8, []uint32{1}
	const (
		wantPayload = "98c4026b31c4077b2261223a317db06170706c69636174696f6e2f6a736f6ea137a52f73686f70a470616964" +
			"d30000018bcfe5680092aa63652d7375626a656374a17398c0c405706c61696ea0a0a0a00090"
		wantMeta = "536b4231010001009000000071bcbdd80200000052000000520000003071a5ce" +
			"aabb00000000000000000000000000000500000000000000" +
			"0168e5cf8b01000006000000000000000700000000000000080000000000000001000000" + "01000000" +
			"01020300000000000000000000000000" + "0400000000000000" + "00000000000000000000000000000000" + "0000000000000000"
	)
	if got := hex.EncodeToString(payload); got != wantPayload {
		t.Errorf("payload\n%s\nwant\n%s", got, wantPayload)
	}
	if got := hex.EncodeToString(AppendMeta(nil, &m)); got != wantMeta {
		t.Errorf("header\n%s\nwant\n%s", got, wantMeta)
	}
}

func TestCompressionIsKeptOnlyWhereItSavesAnEighth(t *testing.T) {
	var b Builder
	_ = b.Add(&Record{Value: bytes.Repeat([]byte("words and words "), 200)})
	if m, p := b.Finish(true); m.Codec != CodecS2 || len(p) > int(m.RawLen)/8*7 {
		t.Errorf("text: codec %d, %d of %d bytes", m.Codec, len(p), m.RawLen)
	}
	if m, _ := b.Finish(false); m.Codec != CodecNone {
		t.Errorf("not asked: codec %d", m.Codec)
	}
	b.Reset()
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(ring.Hash(ring.Seed{}, []byte{byte(i), byte(i >> 8)}))
	}
	_ = b.Add(&Record{Value: noise})
	if m, p := b.Finish(true); m.Codec != CodecNone || len(p) != int(m.RawLen) {
		t.Errorf("noise: codec %d, %d of %d bytes", m.Codec, len(p), m.RawLen)
	}
}

func TestWhatIsTooLargeIsNamed(t *testing.T) {
	big := string(make([]byte, MaxAttr+1))
	for what, r := range map[string]Record{
		"key":          {HasKey: true, Key: make([]byte, MaxKey+1)},
		"content type": {ContentType: big},
		"id":           {ID: big},
		"source":       {Source: big},
		"type":         {Type: big},
		"header name":  {Headers: []Header{{Name: big}}},
		"header x":     {Headers: []Header{{Name: "x", Value: big}}},
		"65 headers":   {Headers: make([]Header, MaxHeaders+1)},
		"event":        {Value: make([]byte, MaxRaw)},
	} {
		var b Builder
		err := b.Add(&r)
		if wire.CodeOf(err) != wire.CodeTooLarge || !bytes.HasPrefix([]byte(err.Error()), []byte(what)) {
			t.Errorf("%s: %v", what, err)
		}
		if b.Len() != 0 || b.RawBytes() != 0 {
			t.Errorf("%s: the builder changed", what)
		}
	}
}

func TestFullBatchTakesNoMore(t *testing.T) {
	var b Builder
	for range MaxRecords {
		if err := b.Add(&Record{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(&Record{}); err != ErrFull {
		t.Errorf("by count: %v", err)
	}
	b.Reset()
	_ = b.Add(&Record{Value: make([]byte, MaxRaw/2)})
	if err := b.Add(&Record{Value: make([]byte, MaxRaw/2)}); err != ErrFull {
		t.Errorf("by bytes: %v", err)
	}
	m, p := b.Finish(false)
	if err := new(Reader).Open(&m, p, nil); err != nil {
		t.Error(err)
	}
}

func TestDamagedPayloadIsRefused(t *testing.T) {
	var b Builder
	_ = b.Add(&Record{Value: bytes.Repeat([]byte("abc"), 1000)})
	m, p := b.Finish(true)
	p[len(p)/2] ^= 1
	var r Reader
	if err := r.Open(&m, p, nil); wire.KindOf(err) != wire.KindCorrupt {
		t.Errorf("bit flipped: %v", err)
	}
	if r.Next(&Record{}) || r.Err() == nil {
		t.Error("a reader whose Open failed gives records")
	}
	if err := VerifyPayload(&m, p[1:]); wire.KindOf(err) != wire.KindCorrupt {
		t.Errorf("too short: %v", err)
	}
}

func TestIdentitiesAreUnambiguous(t *testing.T) {
	seed := ring.Seed{1}
	seen := map[[16]byte]string{}
	for _, p := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"", "abc"}, {"abc", ""}, {"a\x00", "b"}, {"a", "\x00b"}} {
		h := IdentityOf(seed, p[0], p[1])
		if other, dup := seen[h]; dup {
			t.Errorf("%q and %s hash alike", p, other)
		}
		seen[h] = fmt.Sprintf("%q", p)
	}
}

func TestPayloadHashTellsContentsApart(t *testing.T) {
	base := Record{HasKey: true, Key: []byte("ab"), Value: []byte("cd"), Type: "t", ContentType: "c"}
	h := PayloadHash(&base)
	again := base.Clone()
	again.Time, again.Headers = 99, []Header{{"traceparent", "x"}}
	if PayloadHash(&again) != h {
		t.Error("time or headers change the hash")
	}
	for name, change := range map[string]func(*Record){
		"value":      func(r *Record) { r.Value = []byte("ce") },
		"shifted":    func(r *Record) { r.Key, r.Value = []byte("abc"), []byte("d") },
		"no key":     func(r *Record) { r.HasKey, r.Key = false, nil },
		"empty key":  func(r *Record) { r.Key = nil },
		"attributes": func(r *Record) { r.Type, r.ContentType = r.ContentType, r.Type },
	} {
		r := base.Clone()
		change(&r)
		if PayloadHash(&r) == h {
			t.Errorf("%s: the same hash", name)
		}
	}
}

func benchRecord() Record {
	return Record{Key: []byte("customer-17"), HasKey: true, Value: bytes.Repeat([]byte(`{"n":12345}`), 90),
		ContentType: "application/json", ID: "0123456789", Source: "/orders", Type: "order.paid", Time: 1700000000000,
		Headers: []Header{{"ce-subject", "17"}, {"traceparent", "00-aa-bb-01"}}}
}

func TestAppendAndReadDoNotAllocate(t *testing.T) {
	rec, got := benchRecord(), Record{}
	var b Builder
	var r Reader
	var m Meta
	round := func() {
		b.Reset()
		for range 50 {
			_ = b.AddIdentified(&rec, Identity{Hash: [16]byte{1}})
		}
		var p []byte
		m, p = b.Finish(true)
		if err := r.Open(&m, p, nil); err != nil {
			t.Fatal(err)
		}
		for r.Next(&got) {
		}
	}
	round()
	if n := testing.AllocsPerRun(50, round); n >= 1 {
		t.Errorf("%v allocations for a batch of 50", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	rec := benchRecord()
	var bu Builder
	b.ReportAllocs()
	b.SetBytes(int64(rec.Size()))
	for b.Loop() {
		if bu.Add(&rec) != nil || bu.RawBytes() > TargetBytes {
			bu.Reset()
		}
	}
}

func BenchmarkRead(b *testing.B) {
	rec, got := benchRecord(), Record{}
	var bu Builder
	for bu.RawBytes() < TargetBytes {
		_ = bu.Add(&rec)
	}
	m, p := bu.Finish(true)
	var r Reader
	_ = r.Open(&m, p, nil)
	b.ReportAllocs()
	b.SetBytes(int64(rec.Size()))
	for b.Loop() {
		if !r.Next(&got) {
			_ = r.Open(&m, p, nil)
		}
	}
}

func FuzzParseMeta(f *testing.F) {
	f.Add(AppendMeta(nil, &Meta{Count: 3, Skip: []uint32{0, 2}, Identities: make([]Identity, 3)}))
	f.Add([]byte(Magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := ParseMeta(b)
		if err != nil {
			return
		}
		if again := AppendMeta(nil, &m); !bytes.Equal(again, b[:n]) {
			t.Fatalf("a header that parses is not written back the same")
		}
	})
}

func FuzzRecords(f *testing.F) {
	var bu Builder
	rec := benchRecord()
	_ = bu.Add(&rec)
	_ = bu.Add(&Record{Value: []byte("x")})
	for _, compress := range []bool{false, true} {
		m, p := bu.Finish(compress)
		f.Add(p, m.Count, m.RawLen, compress)
	}
	f.Fuzz(func(t *testing.T, p []byte, count, raw uint32, compressed bool) {
		m := Meta{Count: count, RawLen: raw, PayloadLen: uint32(len(p)), PayloadCRC: crcOf(p)}
		if compressed {
			m.Codec = CodecS2
		}
		var r Reader
		if r.Open(&m, p, nil) != nil {
			return
		}
		var got Record
		var again Builder
		for r.Next(&got) {
			if err := again.Add(&got); err != nil {
				t.Fatalf("a record that was read is not taken back: %v", err)
			}
		}
	})
}
