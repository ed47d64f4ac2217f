package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"pgregory.net/rapid"
)

type sample struct {
	ID    ring.NodeID       `msgpack:"i"`
	Name  string            `msgpack:"n"`
	Bytes []byte            `msgpack:"b"`
	Nums  []uint64          `msgpack:"u"`
	Tags  map[string]string `msgpack:"t"`
	When  time.Duration     `msgpack:"w"`
	Sub   *sample           `msgpack:"s,omitempty"`
}

func TestMarshalRoundTrips(t *testing.T) {
	in := sample{ID: ring.NewNodeID(), Name: "x", Bytes: []byte{1, 2}, Nums: []uint64{1, 1 << 40},
		Tags: map[string]string{"a": "b", "c": "d"}, When: time.Second, Sub: &sample{Name: "y"}}
	b, err := Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out sample
	if err := Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if out.ID != in.ID || out.Name != "x" || out.Nums[1] != 1<<40 || out.Tags["c"] != "d" || out.Sub.Name != "y" || out.When != time.Second {
		t.Fatalf("got %+v", out)
	}
	again, err := Marshal(out)
	if err != nil || !bytes.Equal(again, b) {
		t.Fatalf("equal values must give equal bytes: %x %x %v", again, b, err)
	}
}

func TestHostileMessagesAreCorruptAndAllocateNothing(t *testing.T) {
	nested := bytes.Repeat([]byte{0x91}, 3_000_000)
	many := append([]byte{0xdd, 0, 0x20, 0, 0}, make([]byte, 2<<20)...)
	cases := map[string][]byte{
		"empty":               {},
		"array of 4 Gi":       {0xdd, 0xff, 0xff, 0xff, 0xff},
		"map of 4 Gi":         {0xdf, 0xff, 0xff, 0xff, 0xff},
		"string of 4 GiB":     {0xdb, 0xff, 0xff, 0xff, 0xff},
		"binary of 4 GiB":     {0xc6, 0xff, 0xff, 0xff, 0xff},
		"extension of 4 GiB":  {0xc9, 0xff, 0xff, 0xff, 0xff, 1},
		"truncated fixext":    {0xd8, 1, 2},
		"truncated ext8":      {0xc7, 3, 1, 0},
		"truncated ext head":  {0xc7},
		"truncated uint64":    {0xcf, 1, 2, 3},
		"never-used byte":     {0xc1},
		"nested 3 M deep":     nested,
		"too many values":     many,
		"trailing byte":       {0xc0, 0xc0},
		"map without values":  {0x82, 0x01},
		"array of maps short": {0x92, 0xdf, 0, 0, 0, 1},
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			for _, v := range []any{new(any), new(sample), new([]sample), new(map[string]any), new([]byte), new(string)} {
				if err := Unmarshal(b, v); KindOf(err) != KindCorrupt {
					t.Fatalf("into %T: %v", v, err)
				}
			}
			var v any
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = Unmarshal(b, &v)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 64<<10 {
				t.Fatalf("allocated %d bytes", got)
			}
		})
	}
}

func TestScanAgreesWithMarshal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := sample{
			Name:  rapid.String().Draw(t, "name"),
			Bytes: rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"),
			Nums:  rapid.SliceOf(rapid.Uint64()).Draw(t, "nums"),
			Tags:  rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "tags"),
		}
		b, err := Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := scan(b, MaxElements); err != nil || n != len(b) {
			t.Fatalf("scan %d of %d: %v", n, len(b), err)
		}
		for cut := range b {
			if _, err := scan(b[:cut], MaxElements); KindOf(err) != KindCorrupt {
				t.Fatalf("cut at %d: %v", cut, err)
			}
		}
	})
}

func TestFrameRoundTrips(t *testing.T) {
	for _, n := range []int{0, 1, 1000, bodyChunk, bodyChunk + 1, 1 << 20, MaxFrame} {
		body := bytes.Repeat([]byte{7}, n)
		b := AppendFrame(nil, Header{Type: FrameRequest, Method: 513, Arg: 70000}, body)
		h, got, err := ReadFrame(bytes.NewReader(b))
		if err != nil || h.Method != 513 || h.Arg != 70000 || h.Type != FrameRequest || !bytes.Equal(got, body) {
			t.Fatalf("%d: %+v %v", n, h, err)
		}
		if n > 0 {
			if _, _, err := ReadFrame(bytes.NewReader(b[:len(b)-1])); err != io.ErrUnexpectedEOF {
				t.Fatalf("%d: cut frame gives %v", n, err)
			}
		}
	}
}

func TestHostileFrameLengthAllocatesLittle(t *testing.T) {
	b := AppendHeader(nil, Header{Length: 0xffffffff, Type: FrameData})
	if _, _, err := ReadFrame(bytes.NewReader(b)); KindOf(err) != KindCorrupt || CodeOf(err) != CodeTooLarge {
		t.Fatalf("4 GiB frame: %v", err)
	}
	b = AppendHeader(nil, Header{Length: MaxFrame, Type: FrameData})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := ReadFrame(bytes.NewReader(b)); err != io.ErrUnexpectedEOF {
		t.Fatalf("got %v", err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 2*bodyChunk {
		t.Fatalf("a length alone allocated %d bytes", got)
	}
}

func TestErrorRoundTrips(t *testing.T) {
	in := &Error{Kind: KindNotOwner, Code: CodeNoQuorum, Op: "publish", Detail: "moved", Owner: ring.NewNodeID(), Term: 9, RetryAfter: time.Second}
	out, err := ParseError(AppendError(nil, in))
	if err != nil || *out != *in {
		t.Fatalf("got %+v %v", out, err)
	}
	long, err := ParseError(AppendError(nil, &Error{Kind: KindInternal, Detail: string(bytes.Repeat([]byte{'x'}, 1<<20))}))
	if err != nil || len(long.Detail) != maxErrorDetail {
		t.Fatalf("a long detail must be cut: %d %v", len(long.Detail), err)
	}
	plain, err := ParseError(AppendError(nil, io.ErrShortWrite))
	if err != nil || plain.Kind != KindInternal || plain.Detail != io.ErrShortWrite.Error() {
		t.Fatalf("got %+v %v", plain, err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	b, _ := Marshal(sample{Name: "x", Nums: []uint64{1}, Tags: map[string]string{"a": "b"}})
	f.Add(b)
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0xc7, 12, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(any), new(sample), new([]sample), new(map[string]any), new(Header)} {
			if err := Unmarshal(b, v); err != nil && KindOf(err) != KindCorrupt {
				t.Fatalf("into %T: %v", v, err)
			}
		}
	})
}

func FuzzParseError(f *testing.F) {
	f.Add(AppendError(nil, Errorf(KindFenced, "x", "y")))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseError(b)
		if err != nil {
			return
		}
		again, err := ParseError(AppendError(nil, e))
		if err != nil || again.Kind != e.Kind || again.Term != e.Term {
			t.Fatalf("%+v %+v %v", e, again, err)
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	f.Add(AppendFrame(nil, Header{Type: FrameData}, []byte("body")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, err := ReadFrame(bytes.NewReader(b))
		if err == nil && (int(h.Length) != len(body) || binary.BigEndian.Uint32(b) != h.Length) {
			t.Fatalf("%+v with %d bytes", h, len(body))
		}
	})
}

func BenchmarkScan(b *testing.B) {
	msg, _ := Marshal(sample{Name: "x", Bytes: make([]byte, 64<<10), Nums: make([]uint64, 50), Tags: map[string]string{"a": "b"}})
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if _, err := scan(msg, MaxElements); err != nil {
			b.Fatal(err)
		}
	}
}
