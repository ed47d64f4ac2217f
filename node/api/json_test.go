package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
)

var jsonCases = []string{``, `1`, `-0`, `01`, `1.`, `.5`, `1e5`, `1E+`, `"a"`, `"a`, `"\u00zz"`, `"\ud800"`, `"\x"`, `{}`, `{"a":1,}`, `{"a":[1,2,{"b":null}]}`, `[1,]`,
	`[ 1 , 2 ]`, `tru`, `true`, `nul`, `{"a" : "b\n\t\"c\u0041"}`, "\"\x01\"", "\"\xff\"", `"ä漢😀"`, `{"a":1}}`, `[[[[]]]]`, `{a:1}`, `"aaaaaaaaaaaaaaaa\"bbbbbbbbbbb"`, "1 ", "-", "[", "{\"a\"", "{\"a\":", "1e", "\"\\"}

// FuzzScanJSON holds the scanner against encoding/json.
func FuzzScanJSON(f *testing.F) {
	for _, c := range jsonCases {
		f.Add([]byte(c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want := json.Valid(b) && utf8.Valid(b) && len(bytes.TrimSpace(b)) == len(b)
		got := scanJSON(b)
		if got != want && !(want && bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) > maxJSONDepth) {
			t.Fatalf("%q: %v, encoding/json says %v", b, got, want)
		}
		if !got || b[0] != '"' {
			return
		}
		var s string
		if err := json.Unmarshal(b, &s); err != nil || s != string(unquote(b[1:len(b)-1])) {
			t.Fatalf("%q: unquoted to %q, want %q (%v)", b, unquote(b[1:len(b)-1]), s, err)
		}
	})
}

func TestScanJSONStopsAtItsDepth(t *testing.T) {
	for n, want := range map[int]bool{maxJSONDepth: true, maxJSONDepth + 1: false, 1 << 20: false} {
		if got := scanJSON([]byte(strings.Repeat("[", n) + strings.Repeat("]", n))); got != want {
			t.Errorf("depth %d: %v", n, got)
		}
	}
}

// FuzzLine feeds hostile lines to every way of parsing one.
func FuzzLine(f *testing.F) {
	f.Add([]byte(`{"key":"k","value":{"a":{"b":"x"}},"headers":{"h":"v"},"time":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"value_base64":"AAA=","id":"1","source":"s"}`))
	f.Add([]byte(`{"a":{"b":1}}`))
	rules := []lineRules{{}, {envelope: true}, {keyPath: []string{"a", "b"}}, {envelope: true, keyPath: []string{"a", "b"}}}
	f.Fuzz(func(t *testing.T, b []byte) {
		line := trimLine(b)
		if len(line) == 0 {
			return
		}
		for _, r := range rules {
			var rec batch.Record
			if err := r.parse(line, &rec); err != nil {
				continue
			}
			if !json.Valid(line) {
				t.Fatalf("accepted %q", line)
			}
			checkEnvelope(t, flow.Event{Stream: "s", Record: rec})
		}
	})
}

// FuzzCloudEvent feeds hostile documents to the JSON format, and headers to the binary mode.
func FuzzCloudEvent(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":1},"subject":"x"}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"AA==","n":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var rec batch.Record
		if ceJSON(&rec, b) == nil {
			if !json.Valid(b) || rec.ID == "" {
				t.Fatalf("accepted %q", b)
			}
			checkEnvelope(t, flow.Event{Stream: "s", Record: rec})
		}
		if v, err := ceDecode(string(b)); err == nil && !utf8.ValidString(v) {
			t.Fatalf("%q became %q", b, v)
		}
	})
}

// FuzzElements: however an array is cut into buffers, its elements are the same.
func FuzzElements(f *testing.F) {
	f.Add([]byte(`[{"a":1}, {"b":[{}]} ,{}]`), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		whole, err1 := splitAll(b, len(b)+1)
		pieces, err2 := splitAll(b, int(cut)+1)
		if (err1 == nil) != (err2 == nil) || err1 == nil && fmt.Sprint(whole) != fmt.Sprint(pieces) {
			t.Fatalf("whole %q %v, in pieces %q %v", whole, err1, pieces, err2)
		}
	})
}

func splitAll(b []byte, step int) (out []string, err error) {
	var e elements
	have, pos := min(step, len(b)), 0
	for {
		item, to, more, err := e.next(b[:have], pos, have == len(b))
		pos = to
		switch {
		case err != nil:
			return nil, err
		case item != nil:
			out = append(out, string(item))
		case !more:
			return out, nil
		default:
			have = min(have+step, len(b))
		}
	}
}

// checkEnvelope: an event becomes one line of JSON that says what the event says.
func checkEnvelope(t interface{ Fatalf(string, ...any) }, ev flow.Event) {
	var enc encoder
	b := enc.appendEvent(nil, &ev)
	if bytes.ContainsAny(b, "\r\n") || !json.Valid(b) {
		t.Fatalf("not one line of JSON: %q", b)
	}
	var v struct {
		Key      *string
		KeyB64   []byte `json:"key_base64"`
		Value    json.RawMessage
		ValueB64 []byte `json:"value_base64"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
	if utf8.Valid(ev.Key) && ev.HasKey && (v.Key == nil || *v.Key != string(ev.Key)) || !utf8.Valid(ev.Key) && !bytes.Equal(v.KeyB64, ev.Key) {
		t.Fatalf("key %q became %q", ev.Key, b)
	}
	var s string
	switch {
	case v.Value == nil:
		if !bytes.Equal(v.ValueB64, ev.Value) {
			t.Fatalf("value %q became %q", ev.Value, b)
		}
	case !isJSON(ev.ContentType):
		if err := json.Unmarshal(v.Value, &s); err != nil || s != string(ev.Value) {
			t.Fatalf("value %q became %q", ev.Value, b)
		}
	}
}

func TestEnvelopesSayWhatTheEventSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev := flow.Event{Stream: "s", Partition: 3, Offset: rapid.Uint64().Draw(t, "offset"), Stamp: time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(t, "ms"))}
		ev.HasKey = rapid.Bool().Draw(t, "has key")
		if ev.HasKey {
			ev.Key = rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		}
		ev.Value = rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
			rapid.Map(rapid.SampledFrom(jsonCases), func(s string) []byte { return []byte(s) })).Draw(t, "value")
		ev.ContentType = rapid.SampledFrom([]string{"", "application/json", "a/b+json; charset=utf-8", "text/plain", "image/png"}).Draw(t, "type")
		ev.Headers = []batch.Header{{Name: rapid.String().Draw(t, "name"), Value: rapid.String().Draw(t, "header")}}
		checkEnvelope(t, ev)
	})
}

func benchLines(n, size int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"id":%d,"user":"u-%d","pad":"%s"}`+"\n", i, i%100, strings.Repeat("x", size-40))
	}
	return b.Bytes()
}

func BenchmarkParseNDJSON(b *testing.B) {
	for _, size := range []int{64, 1024} {
		for _, key := range []string{"", "user"} {
			b.Run(fmt.Sprintf("%dB/key=%s", size, key), func(b *testing.B) {
				body := benchLines(500, size)
				w := newWorld(b)
				c := &Call{s: w.s, R: w.request()}
				rules := &lineRules{}
				if key != "" {
					rules.keyPath = []string{key}
				}
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					f := &feed{c: c, size: len(body) + 1, most: 1 << 20, split: lines{}, parse: rules.parse, r: bytes.NewReader(body)}
					for end := false; !end; {
						ch := f.next()
						end = ch.end
						n += len(ch.recs)
						f.done(ch)
					}
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

func BenchmarkEncodeEnvelope(b *testing.B) {
	for _, ct := range []string{contentJSON, "text/plain"} {
		b.Run(ct, func(b *testing.B) {
			ev := flow.Event{Stream: "orders", Partition: 3, Offset: 123456, Stamp: time.Now()}
			ev.Key, ev.HasKey, ev.ContentType = []byte("user-77"), true, ct
			ev.Value = bytes.TrimSpace(benchLines(1, 1024))
			var enc encoder
			buf := make([]byte, 0, 64<<10)
			b.SetBytes(int64(len(ev.Value)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				buf = ndjson{}.event(buf[:0], &enc, &ev, "")
				n++
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
