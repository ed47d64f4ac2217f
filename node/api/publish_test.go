package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

const (
	ndjsonType = "Content-Type: application/x-ndjson"
	textType   = "Content-Type: text/plain"
)

// all reads every event of a stream as envelopes, by value order of arrival per partition.
func (w *world) all(stream string) []map[string]any {
	w.t.Helper()
	var out []map[string]any
	rec := w.do("GET", "/v1/streams/"+stream+"/events?until=end", "")
	for l := range strings.Lines(rec.Body.String()) {
		var v map[string]any
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			w.t.Fatalf("%v in %q", err, l)
		}
		if v["offset"] != nil {
			out = append(out, v)
		}
	}
	return out
}

func TestPublishOneAnswersWhereItIs(t *testing.T) {
	w := newWorld(t)
	rec := w.do("POST", "/v1/streams/a/events?key=k", "hello", textType, "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	var v struct {
		Stream            string
		Partition, Copies int
		Offset            *int
		Time              time.Time
		Duplicate         *bool
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil || rec.Code != 200 || v.Stream != "a" || *v.Offset != 0 || v.Copies != 1 || *v.Duplicate || v.Time.IsZero() {
		t.Fatalf("%d %s %v", rec.Code, rec.Body, err)
	}
	if rec.Header().Get("Skein-Owner") != "n2" || rec.Header().Get("X-Request-Id") == "" {
		t.Fatalf("%v", rec.Header())
	}
	e := w.all("a")[0]
	if e["key"] != "k" || e["value"] != "hello" || e["content_type"] != "text/plain" || e["headers"].(map[string]any)["traceparent"] == nil {
		t.Fatalf("%v", e)
	}
	w.expect(200, "", "POST", "/v1/streams/a/events", "", textType) // an empty value is a value
	w.expect(200, "", "POST", "/v1/streams/a/events?key=", "x", textType)
	keys := map[any]int{}
	for _, e := range w.all("a") {
		keys[e["key"]]++
	}
	if keys["k"] != 1 || keys[""] != 1 || keys[nil] != 1 {
		t.Fatalf("no key and the empty key were mixed up: %v", keys)
	}
	if v := w.expect(202, "", "POST", "/v1/streams/a/events?ack=none", "x", textType); v["offset"] != nil {
		t.Fatalf("%v", v)
	}
}

func TestPublishRetriesAreStoredOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		v := w.expect(200, "", "POST", "/v1/streams/a/events", "x", textType, "Idempotency-Key: order-1")
		if v["duplicate"] != (i > 0) {
			t.Fatalf("try %d: %v", i, v)
		}
	}
	w.expect(422, "idempotency-reuse", "POST", "/v1/streams/a/events", "y", textType, "Idempotency-Key: order-1")
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "y", textType, "Idempotency-Key: "+strings.Repeat("k", 256))
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "y", textType, "Idempotency-Key: ")
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "y", textType, "Idempotency-Key: ä")
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "y", textType, "Idempotency-Key: a", "Idempotency-Key: b")
}

func TestPublishErrorsKeepTheirMeaning(t *testing.T) {
	w := newWorld(t)
	var err error
	w.broker.publishErr = func(string, int) error { return err }
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "x"), 503, "no-quorum"},
		{wire.Errorf(wire.KindNoCredit, wire.CodeOverloaded, "x"), 503, "overloaded"},
		{wire.Errorf(wire.KindNoCredit, "", "x"), 503, "overloaded"},
		{wire.Errorf(wire.KindUnavailable, wire.CodeDraining, "x"), 503, "draining"},
		{wire.Errorf(wire.KindUnavailable, wire.CodeDiskFull, "x"), 503, "disk-full"},
		{wire.Errorf(wire.KindUnavailable, wire.CodeTooFewCopies, "x"), 503, "too-few-copies"},
		{wire.Errorf(wire.KindNotOwner, "", "x"), 503, "no-quorum"},
		{wire.Errorf(wire.KindClosed, "", "x"), 503, "draining"},
		{wire.Errorf(wire.KindOutcomeUnknown, wire.CodeOutcomeUnknown, "x"), 504, "outcome-unknown"},
		{context.DeadlineExceeded, 504, "outcome-unknown"},
		{wire.Errorf(wire.KindNotFound, wire.CodeStreamNotFound, "x"), 404, "stream-not-found"},
		{wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "x"), 413, "too-large"},
		{wire.Errorf(wire.KindInvalid, "", "x"), 400, "invalid"},
		{wire.Errorf(wire.KindConflict, "", "x"), 409, "conflict"},
		{wire.Errorf(wire.KindFenced, "", "x"), 409, "fenced"},
		{wire.Errorf(wire.KindCorrupt, "", "x"), 500, "corrupt"},
		{errors.New("secret path"), 500, "internal"},
		{fmt.Errorf("op: %w", wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "x")), 503, "no-quorum"},
	} {
		err = c.err
		v := w.expect(c.status, c.code, "POST", "/v1/streams/a/events", "x", textType)
		if strings.Contains(fmt.Sprint(v), "secret path") {
			t.Errorf("an internal error's text reached the client: %v", v)
		}
		w.expect(c.status, c.code, "POST", "/v1/streams/a/events/batch", "1\n2\n", ndjsonType)
	}
	w = newWorld(t, func(c *Config, _ *Deps) { c.AutoCreate = false })
	w.expect(404, "stream-not-found", "POST", "/v1/streams/a/events", "x", textType)
}

func TestPublishSizeLimits(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxEventBytes, c.MaxBodyBytes = 1000, 100_000 })
	w.expect(200, "", "POST", "/v1/streams/a/events", strings.Repeat("x", 1000), textType)
	w.expect(413, "too-large", "POST", "/v1/streams/a/events", strings.Repeat("x", 1001), textType)
	w.expect(413, "too-large", "POST", "/v1/streams/a/events", strings.Repeat("x", 100_001), textType)
	w.expect(413, "too-large", "POST", "/v1/streams/a/events", string(gzipped(strings.Repeat("x", 1001))), textType, "Content-Encoding: gzip")
	w.expect(413, "too-large", "POST", "/v1/streams/a/events/batch", strings.Repeat("1\n", 60_000), ndjsonType)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events?ack=all", "x", textType)
	w.expect(415, codeMediaType, "POST", "/v1/streams/a/events", "x", "Content-Type: ;;")
	w.expect(415, codeMediaType, "POST", "/v1/streams/a/events", "[]", "Content-Type: application/cloudevents-batch+json")
	w.expect(415, codeMediaType, "POST", "/v1/streams/a/events/batch", "1", textType)
	w.expect(415, codeMediaType, "POST", "/v1/streams/a/events/batch", "1")
	for _, enc := range []string{"br", "gzip, gzip", "gzip,zstd", "identity, gzip"} {
		w.expect(415, codeMediaType, "POST", "/v1/streams/a/events", "x", textType, "Content-Encoding: "+enc)
	}
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "no gzip", textType, "Content-Encoding: gzip")
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "no zstd", textType, "Content-Encoding: zstd")
	if n := len(w.all("a")); n != 1 {
		t.Fatalf("%d events are stored, one was accepted", n)
	}
}

func gzipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.Bytes()
}

func zstded(s string, opt ...zstd.EOption) []byte {
	z, err := zstd.NewWriter(nil, opt...)
	if err != nil {
		panic(err)
	}
	defer z.Close()
	return z.EncodeAll([]byte(s), nil)
}

func TestCompressedBodies(t *testing.T) {
	w := newWorld(t)
	body := ndjsonOf(5000, `{"n":%d,"pad":"some text that repeats"}`)
	for i, enc := range []struct {
		name string
		body []byte
	}{{"gzip", gzipped(body)}, {"zstd", zstded(body)}, {"gzip", gzipped(body)}, {"zstd", zstded(body)}} {
		v := w.expect(200, "", "POST", fmt.Sprintf("/v1/streams/s%d/events/batch", i), string(enc.body), ndjsonType, "Content-Encoding: "+enc.name)
		if v["ok"] != 5000.0 || v["failed"] != 0.0 {
			t.Fatalf("%s: %v %v", enc.name, v["ok"], v["failed"])
		}
		w.expect(200, "", "POST", "/v1/streams/one/events", string(enc.body), textType, "Content-Encoding: "+enc.name)
		w.expect(400, codeInvalid, "POST", "/v1/streams/one/events", string(enc.body[:len(enc.body)/2]), textType, "Content-Encoding: "+enc.name)
	}
}

func TestBombsAreDefused(t *testing.T) {
	w := newWorld(t)
	zeros := strings.Repeat("0", 33<<20)
	for name, body := range map[string][]byte{"gzip": gzipped(zeros), "zstd": zstded(zeros)} {
		w.expect(413, "too-large", "POST", "/v1/streams/a/events/batch", string(body), ndjsonType, "Content-Encoding: "+name)
		w.expect(413, "too-large", "POST", "/v1/streams/a/events", string(body), textType, "Content-Encoding: "+name)
	}
	blank := strings.Repeat("\n", 30<<20) // below max_body_bytes, far above the ratio
	w.expect(413, "too-large", "POST", "/v1/streams/a/events/batch", string(gzipped(blank)), ndjsonType, "Content-Encoding: gzip")
	var wide bytes.Buffer // a window of 64 MiB
	z, _ := zstd.NewWriter(&wide, zstd.WithWindowSize(64<<20))
	_, _ = io.WriteString(z, strings.Repeat("abcdefgh", 1<<20))
	_ = z.Flush()
	_, _ = io.WriteString(z, "x")
	_ = z.Close()
	w.expect(413, "too-large", "POST", "/v1/streams/a/events/batch", wide.String(), ndjsonType, "Content-Encoding: zstd")
	if w.budget.peak > 8<<20 {
		t.Fatalf("%d bytes were held for bombs", w.budget.peak)
	}
}

func TestBatchResultsAreInInputOrder(t *testing.T) {
	w := newWorld(t)
	body := "{\"k\":\"a\"}\r\n\n  {\"k\":\"b\"}  \nnope\n{\"k\":1}\n{}\n{\"k\":\"a\"}"
	v := w.expect(200, "", "POST", "/v1/streams/a/events/batch?key_field=k", body, ndjsonType)
	res := v["results"].([]any)
	if v["ok"] != 4.0 || v["failed"] != 2.0 || len(res) != 6 {
		t.Fatalf("%v", v)
	}
	for i, r := range res {
		m := r.(map[string]any)
		if m["index"] != float64(i) || (m["error"] != nil) != (i == 2 || i == 4) {
			t.Errorf("%d: %v", i, m)
		}
	}
	first, last := res[0].(map[string]any), res[5].(map[string]any)
	if first["partition"] != last["partition"] || first["offset"].(float64) >= last["offset"].(float64) {
		t.Fatalf("one key, two partitions or no order: %v %v", first, last)
	}
	v = w.expect(200, "", "POST", "/v1/streams/a/events/batch?summary=true", "1\nx\n", ndjsonType)
	if v["results"] != nil || v["ok"] != 1.0 || v["first_failed"] != 1.0 {
		t.Fatalf("%v", v)
	}
	v = w.expect(202, "", "POST", "/v1/streams/a/events/batch?ack=none", "1\n2\n", ndjsonType)
	if v["results"].([]any)[0].(map[string]any)["offset"] != nil {
		t.Fatalf("%v", v)
	}
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch", "x\ny\n", ndjsonType)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch", "\n \n", ndjsonType)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch?key=a&key_field=b", "1\n", ndjsonType)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch?key_field=a..b", "1\n", ndjsonType)
}

func TestLargeBatchGoesInChunksWithinTheBudget(t *testing.T) {
	w := newWorld(t)
	pad := strings.Repeat("p", 900)
	var b strings.Builder
	const n = 20_000
	for i := range n {
		fmt.Fprintf(&b, `{"n":%d,"pad":"%s"}`+"\n", i, pad)
	}
	v := w.expect(200, "", "POST", "/v1/streams/a/events/batch?key=one", b.String(), ndjsonType, "Idempotency-Key: run-1")
	if v["ok"] != float64(n) || len(v["results"].([]any)) != n || w.broker.calls < 10 {
		t.Fatalf("%v ok in %d calls", v["ok"], w.broker.calls)
	}
	for i, e := range w.all("a") {
		if e["value"].(map[string]any)["n"] != float64(i) {
			t.Fatalf("event %d is %v", i, e["value"])
		}
	}
	if w.budget.peak > 4<<20 {
		t.Fatalf("a body of %d bytes held %d", b.Len(), w.budget.peak)
	}
	// However the bytes arrive, the retry has the same identities.
	r, _ := http.NewRequest("POST", w.url()+"/v1/streams/a/events/batch?key=one&summary", iotestReader(b.String()))
	r.Header.Set("Content-Type", "application/x-ndjson")
	r.Header.Set("Idempotency-Key", "run-1")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, _ := io.ReadAll(res.Body); res.StatusCode != 200 || len(w.all("a")) != n {
		t.Fatalf("%d %s: %d events", res.StatusCode, got, len(w.all("a")))
	}
	http.DefaultClient.CloseIdleConnections()
}

// iotestReader gives odd pieces, and hides the length.
func iotestReader(s string) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		for len(s) > 0 {
			n := min(len(s), 7777)
			if _, err := io.WriteString(pw, s[:n]); err != nil {
				return
			}
			s = s[n:]
		}
		_ = pw.Close()
	}()
	return pr
}

// laterReader gives its pieces, each after some time.
type laterReader []string

func (r *laterReader) Read(b []byte) (int, error) {
	if len(*r) == 0 {
		return 0, io.EOF
	}
	virtual.Sleep(time.Second)
	n := copy(b, (*r)[0])
	if (*r)[0] = (*r)[0][n:]; (*r)[0] == "" {
		*r = (*r)[1:]
	}
	return n, nil
}

func TestBatchThatFailsWhileItIsReadGivesItsMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t) // whose budget must be whole in the end
		w.broker.publishErr = func(string, int) error { return wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "no owner") }
		piece := strings.Repeat(`"`+strings.Repeat("p", 1000)+"\"\n", chunkBytes/1000)
		for range 32 { // each is a race of the piece read last with the end
			body := laterReader{piece, piece, piece}
			r := httptest.NewRequest("POST", "http://localhost/v1/streams/a/events/batch", &body)
			r.Header.Set("Content-Type", "application/x-ndjson")
			rec := httptest.NewRecorder()
			w.s.Handler().ServeHTTP(rec, r)
			if rec.Code != 503 {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
		}
	})
}

func TestBatchStopsAtTheFirstFailureThatIsNotAnEventsOwn(t *testing.T) {
	w := newWorld(t)
	body := ndjsonOf(3*chunkRecords, `%d`)
	w.broker.publishErr = func(_ string, call int) error {
		if call == 2 {
			return wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "gone")
		}
		return nil
	}
	v := w.expect(200, "", "POST", "/v1/streams/a/events/batch", body, ndjsonType)
	if v["ok"] != float64(chunkRecords) || v["failed"] != float64(chunkRecords) || v["stopped_at"] != float64(2*chunkRecords) ||
		v["error"].(map[string]any)["code"] != "no-quorum" || w.broker.calls != 2 {
		t.Fatalf("ok %v failed %v stopped %v after %d calls", v["ok"], v["failed"], v["stopped_at"], w.broker.calls)
	}
	w.broker.publishErr = nil
	w.broker.eventErr = func(r *batch.Record) error {
		if string(r.Value) == "1" {
			return wire.Errorf(wire.KindOutcomeUnknown, "", "who knows")
		}
		return nil
	}
	v = w.expect(200, "", "POST", "/v1/streams/b/events/batch", body, ndjsonType)
	if v["ok"] != float64(chunkRecords-1) || v["failed"] != 1.0 || v["stopped_at"] != float64(chunkRecords) {
		t.Fatalf("ok %v failed %v stopped %v", v["ok"], v["failed"], v["stopped_at"])
	}
	if e := v["results"].([]any)[1].(map[string]any)["error"].(map[string]any); e["code"] != "outcome-unknown" || e["retryable"] != true {
		t.Fatalf("%v", e)
	}
}

func TestManyMalformedLinesAreGivenUp(t *testing.T) {
	w := newWorld(t)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch", strings.Repeat("x\n", 5000), ndjsonType)
	v := w.expect(200, "", "POST", "/v1/streams/a/events/batch", "1\n"+strings.Repeat("x\n", 5000), ndjsonType)
	if v["ok"] != 1.0 || v["failed"] != float64(maxBadItems) || v["stopped_at"] == nil {
		t.Fatalf("%v %v %v", v["ok"], v["failed"], v["stopped_at"])
	}
	w.expect(413, "too-large", "POST", "/v1/streams/a/events/batch", `"`+strings.Repeat("x", 20<<20)+`"`, ndjsonType)
	deep := strings.Repeat("[", 100_000)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch", deep+"\n", ndjsonType)
}

func TestFullBudgetIsOverloaded(t *testing.T) {
	w := newWorld(t)
	w.s.reserveWait = 10 * time.Millisecond
	_ = w.budget.Reserve(t.Context(), 64<<20)
	w.expect(503, "overloaded", "POST", "/v1/streams/a/events", "x", textType)
	w.budget.Release(64 << 20)
	w.expect(200, "", "POST", "/v1/streams/a/events", "x", textType)
}

func TestEnvelopeLines(t *testing.T) {
	w := newWorld(t)
	lines := []string{
		`{"key":"k","value":{"a":[1,2]},"headers":{"h":"v"},"id":"1","source":"/s","type":"t","time":"2026-01-02T03:04:05.678Z"}`,
		`{"key":"k","value":"text","content_type":"text/plain"}`,
		`{"key":"k","value":"\"json\u00e4"}`,
		`{"key_base64":"/w==","value_base64":"AP8=","content_type":"image/png"}`,
		`{"key":null,"value":null}`,
	}
	v := w.expect(200, "", "POST", "/v1/streams/a/events/batch?envelope=true", strings.Join(lines, "\n"), ndjsonType)
	if v["ok"] != 5.0 {
		t.Fatalf("%v", v)
	}
	var got []string
	for _, e := range w.all("a") {
		got = append(got, fmt.Sprintf("%v %v %v %v %v %v %v %v", e["key"], e["key_base64"], e["value"], e["value_base64"], e["content_type"], e["id"], e["type"], e["headers"]))
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{`k <nil> map[a:[1 2]] <nil> application/json 1 t map[ce-time:2026-01-02T03:04:05.678Z h:v]`, `k <nil> text <nil> text/plain`,
		"k <nil> \"jsonä <nil> application/json", `<nil> /w== <nil> AP8= image/png`, `<nil> <nil> <nil> <nil> application/json`} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	for line, want := range map[string]string{
		`{"valu":1}`: `did you mean "value"`, `{"value":1,"value":2}`: "twice", `{"value":1,"value_base64":""}`: "exclude", `{"key":"a"}`: "neither",
		`{"value":1,"key":7}`: "must be a string", `{"value":1,"id":"x"}`: "together", `{"value":1,"time":"noon"}`: "RFC 3339",
		`{"value":1,"headers":{"a":1}}`: "strings", `{"value":1,"headers":{"a":"1","a":"2"}}`: "twice", `{"value_base64":"*"}`: "base64", `[1]`: "JSON",
		`{"value":1}x`: "JSON", `{"value":"` + "\xff" + `"}`: "JSON",
	} {
		rec := w.do("POST", "/v1/streams/a/events/batch?envelope=true", line+"\n", ndjsonType)
		if rec.Code != 400 || !strings.Contains(strings.ReplaceAll(rec.Body.String(), `\"`, `"`), want) {
			t.Errorf("%s: %d %s, want %q", line, rec.Code, rec.Body, want)
		}
	}
}

func TestKeyFieldReachesInside(t *testing.T) {
	for _, c := range []struct{ path, line, key, err string }{
		{"a.b", `{"x":{"b":1},"a":{"c":2,"b":"k\u0065y"}}`, "key", ""},
		{"a", `{"a":12.50}`, "12.50", ""},
		{"a", `{"a":true}`, "true", ""},
		{"a", `{"a":""}`, "", ""},
		{"a", `{"a":null}`, "", "a string, a number"},
		{"a", `{"a":[1]}`, "", "a string, a number"},
		{"a", `{"b":1}`, "", "no such field"},
		{"a", `[1]`, "", "no such field"},
		{"a.b", `{"a":1}`, "", "no such field"},
		{"a", `{"a":1,"a":2}`, "", "twice"},
		{"a", `{"a":1`, "", "not a JSON"},
	} {
		path, err := keyPath(c.path)
		if err != nil {
			t.Fatal(err)
		}
		var rec batch.Record
		err = (&lineRules{keyPath: path}).parse([]byte(c.line), &rec)
		if c.err == "" && (err != nil || string(rec.Key) != c.key || !rec.HasKey) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s in %s: %q %v", c.path, c.line, rec.Key, err)
		}
	}
}

func TestTraceContextNeitherMixesNorRefuses(t *testing.T) {
	const parent, state = "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate: of=request"
	w := newWorld(t)
	full := make([]string, batch.MaxHeaders)
	for i := range full {
		full[i] = fmt.Sprintf(`"h%d":"v"`, i)
	}
	for name, headers := range map[string]string{"state": `"tracestate":"of=event"`, "full": strings.Join(full, ","), "none": ""} {
		w.expect(200, "", "POST", "/v1/streams/"+name+"/events/batch?envelope", `{"value":1,"headers":{`+headers+`}}`,
			"Content-Type: application/x-ndjson", parent, state)
	}
	body := w.do("GET", "/v1/streams/state/events?from=earliest&until=end", "").Body.String()
	if strings.Count(body, `"tracestate"`) != 1 || !strings.Contains(body, "of=event") {
		t.Errorf("the event has %s", body)
	}
	if got := w.all("none")[0]["headers"].(map[string]any); got["tracestate"] != "of=request" || got["traceparent"] == nil {
		t.Errorf("the event without a trace has %v", got)
	}
}

func TestTheEpochIsATimeLikeAnyOther(t *testing.T) {
	w := newWorld(t)
	for _, at := range []string{"1970-01-01T00:00:00Z", "1970-01-01T01:00:00+01:00", "1969-12-31T23:59:59.999Z"} {
		w.expect(200, "", "POST", "/v1/streams/a/events/batch?envelope", `{"value":1,"time":"`+at+`"}`, "Content-Type: application/x-ndjson")
	}
	want := map[any]int{"1970-01-01T00:00:00Z": 2, "1969-12-31T23:59:59.999Z": 1}
	for _, e := range w.all("a") {
		headers, _ := e["headers"].(map[string]any)
		want[headers["ce-time"]]--
	}
	for at, n := range want {
		if n != 0 {
			t.Errorf("%v: %d too few", at, n)
		}
	}
}

func TestContentTypesComeBackAsTheyWere(t *testing.T) {
	w := newWorld(t)
	w.expect(415, codeMediaType, "POST", "/v1/streams/a/events", "x", "Content-Type: text/plain; x=\"\xff\"")
	w.expect(200, "", "POST", "/v1/streams/a/events", "x", "Content-Type: text/plain; x=\"ü\"")
	if got := w.all("a")[0]["content_type"]; got != "text/plain; x=\"ü\"" {
		t.Errorf("content type %v", got)
	}
}

var _ flow.Publisher = (*fakeBroker)(nil)
