package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// refuse answers with a problem.
func refuse(w http.ResponseWriter, status int, code string, retryable bool, retryAfterMS int) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"title":"no","status":%d,"detail":"because","code":%q,"retryable":%t,"node":"n","retry_after_ms":%d}`, status, code, retryable, retryAfterMS)
}

// batchServer is a fake node: it notes what it was sent and answers through script, one call after the other; when the script is over it
// accepts everything.
type batchServer struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]map[string]any
	script []func(w http.ResponseWriter, n int) // n lines came
}

func newBatchServer(t *testing.T, script ...func(http.ResponseWriter, int)) *batchServer {
	s := &batchServer{script: script}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var lines []map[string]any
		data, _ := io.ReadAll(r.Body)
		for _, l := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
			var m map[string]any
			if err := json.Unmarshal(l, &m); err != nil {
				t.Errorf("line %q: %v", l, err)
			}
			lines = append(lines, m)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bodies = append(s.bodies, lines)
		if n := len(s.bodies) - 1; n < len(s.script) {
			s.script[n](w, len(lines))
			return
		}
		accept(w, len(lines))
	}))
	t.Cleanup(s.Close)
	return s
}

// sent are the batches that came, by try.
func (s *batchServer) sent() [][]map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][]map[string]any(nil), s.bodies...)
}

func accept(w http.ResponseWriter, n int) {
	var items []string
	for i := range n {
		items = append(items, fmt.Sprintf(`{"index":%d,"partition":1,"offset":%d,"duplicate":false}`, i, i))
	}
	fmt.Fprintf(w, `{"ok":%d,"failed":0,"results":[%s]}`, n, strings.Join(items, ","))
}

func newTestClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	cfg.MinBackoff, cfg.MaxBackoff, cfg.MaxRetryAfter = time.Millisecond, 2*time.Millisecond, 2*time.Millisecond
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func cut(http.ResponseWriter, int) { panic(http.ErrAbortHandler) }

func TestPublishRepeatsWithTheSameIdentity(t *testing.T) {
	for name, fault := range map[string]func(http.ResponseWriter, int){
		"connection lost": cut,
		"outcome unknown": func(w http.ResponseWriter, _ int) { refuse(w, 504, "outcome-unknown", true, 0) },
		"overloaded":      func(w http.ResponseWriter, _ int) { refuse(w, 503, "overloaded", true, 1) },
		"proxy":           func(w http.ResponseWriter, _ int) { http.Error(w, "upstream is gone", http.StatusBadGateway) },
		"proxy, in JSON": func(w http.ResponseWriter, _ int) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"message":"upstream is gone"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBatchServer(t, fault, fault)
			c := newTestClient(t, Config{Servers: []string{s.URL}})
			r, err := c.Publish(testContext(t), "s", Event{Key: []byte("k"), Value: []byte("v"), ContentType: TextPlain}, PublishOptions{})
			if err != nil || r.Partition != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			if len(s.sent()) != 3 || !reflect.DeepEqual(s.sent()[0], s.sent()[2]) || s.sent()[0][0]["id"] == nil || s.sent()[0][0]["source"] == nil {
				t.Errorf("tries: %v", s.sent())
			}
		})
	}
}

// roundTrip answers requests without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTryLastsAsLongAsTheServerMayWait(t *testing.T) {
	var left time.Duration
	look := roundTrip(func(r *http.Request) (*http.Response, error) {
		at, _ := r.Context().Deadline()
		left = time.Until(at)
		rec := httptest.NewRecorder()
		accept(rec, 1)
		return rec.Result(), nil
	})
	c := newTestClient(t, Config{Servers: []string{"n"}, HTTP: &http.Client{Transport: look}, AttemptTimeout: time.Minute})
	for timeout, most := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Minute, time.Hour: 61 * time.Minute} {
		if _, err := c.Publish(t.Context(), "s", Event{Value: []byte("v")}, PublishOptions{Timeout: timeout}); err != nil {
			t.Fatal(err)
		}
		if left < timeout || left > most {
			t.Errorf("timeout %v: the try has %v", timeout, left)
		}
	}
}

func TestUnreadyNodeSaysWhatFails(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"status":"not ready","node":"n1","failing":["catalog","disk"],"code":"not-ready","retryable":true,"retry_after_ms":1000`)
		if r.URL.RawQuery != "" {
			fmt.Fprint(w, `,"checks":[{"name":"mesh","ok":true},{"name":"catalog","ok":false,"detail":"no quorum"},{"name":"disk","ok":false}]`)
		}
		fmt.Fprint(w, "}")
	}))
	defer s.Close()
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	err := c.Ready(testContext(t))
	if CodeOf(err) != CodeNotReady || !strings.Contains(err.Error(), "n1") || !strings.Contains(err.Error(), "catalog (no quorum), disk") {
		t.Errorf("got %v", err)
	}
}

func TestDeleteWhoseAnswerWasLostIsDone(t *testing.T) {
	for name, c := range map[string]struct {
		first func(http.ResponseWriter)
		code  string
	}{
		"lost":   {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, ""},
		"none":   {func(w http.ResponseWriter) { refuse(w, 503, "no-quorum", true, 1) }, "stream-not-found"},
		"at all": {func(w http.ResponseWriter) { refuse(w, 404, "stream-not-found", false, 0) }, "stream-not-found"},
	} {
		var tries atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if tries.Add(1) == 1 {
				c.first(w)
				return
			}
			refuse(w, 404, "stream-not-found", false, 0)
		}))
		err := newTestClient(t, Config{Servers: []string{s.URL}}).DeleteStream(testContext(t), "s")
		if CodeOf(err) != c.code || (err == nil) != (c.code == "") {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

func TestPublishDoesNotRepeatWhatWillNotHelp(t *testing.T) {
	s := newBatchServer(t, func(w http.ResponseWriter, _ int) { refuse(w, 404, "stream-not-found", false, 0) })
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	_, err := c.Publish(testContext(t), "s", Event{}, PublishOptions{})
	var e *Error
	if !errors.As(err, &e) || e.Code != "stream-not-found" || e.Status != 404 || e.Node != "n" || e.OutcomeUnknown() {
		t.Fatalf("got %v", err)
	}
	if len(s.sent()) != 1 {
		t.Errorf("%d tries", len(s.sent()))
	}
}

func TestWithoutIdentityNothingUnknownIsRepeated(t *testing.T) {
	s := newBatchServer(t, cut)
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	_, err := c.Publish(testContext(t), "s", Event{}, PublishOptions{NoIdentity: true})
	var e *Error
	if !errors.As(err, &e) || !e.OutcomeUnknown() {
		t.Fatalf("got %v", err)
	}
	if len(s.sent()) != 1 || s.sent()[0][0]["id"] != nil {
		t.Errorf("tries: %v", s.sent())
	}
}

func TestOnlyFailedEventsGoAgainInTheirOrder(t *testing.T) {
	s := newBatchServer(t, func(w http.ResponseWriter, _ int) {
		fmt.Fprint(w, `{"ok":2,"failed":3,"results":[{"index":0,"partition":0,"offset":7,"duplicate":false},
			{"index":1,"error":{"code":"no-quorum","status":503,"detail":"d","retryable":true}},
			{"index":2,"error":{"code":"too-large","status":413,"detail":"too large","retryable":false}},
			{"index":3,"partition":0,"offset":8,"duplicate":true},
			{"index":4,"error":{"code":"outcome-unknown","status":504,"detail":"d","retryable":true}}]}`)
	})
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	var events []Event
	for i := range 5 {
		events = append(events, Event{Value: fmt.Append(nil, i), ContentType: TextPlain})
	}
	res, err := c.PublishBatch(testContext(t), "s", events, PublishOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if res[0].Offset != 7 || !res[3].Duplicate || res[1].Err != nil || res[4].Err != nil || CodeOf(res[2].Err) != "too-large" {
		t.Errorf("results %+v", res)
	}
	if len(s.sent()) != 2 || len(s.sent()[1]) != 2 || s.sent()[1][0]["value"] != "1" || s.sent()[1][1]["value"] != "4" {
		t.Errorf("second try: %v", s.sent()[1:])
	}
}

func TestRestOfAStoppedBodyGoesAgain(t *testing.T) {
	s := newBatchServer(t, func(w http.ResponseWriter, _ int) {
		fmt.Fprint(w, `{"ok":1,"failed":0,"stopped_at":1,"error":{"code":"no-quorum","status":503,"detail":"d","retryable":true},"results":[{"index":0,"partition":0,"offset":7,"duplicate":false}]}`)
	})
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	res, err := c.PublishBatch(testContext(t), "s", make([]Event, 3), PublishOptions{})
	if err != nil || res[0].Err != nil || res[2].Err != nil || len(s.sent()[1]) != 2 {
		t.Errorf("%+v, %v, tries %v", res, err, s.sent())
	}
}

func TestNextServerIsTriedWhenOneIsGone(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	s := newBatchServer(t)
	c := newTestClient(t, Config{Servers: []string{gone.URL, strings.TrimPrefix(s.URL, "http://")}, GiveUpUnreachable: true})
	for range 3 {
		if _, err := c.Publish(testContext(t), "s", Event{}, PublishOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c = newTestClient(t, Config{Servers: []string{gone.URL}, GiveUpUnreachable: true})
	_, err := c.GetStream(testContext(t), "s")
	if CodeOf(err) != CodeConnect || !strings.Contains(err.Error(), "cannot connect to 127.0.0.1:") {
		t.Errorf("got %v", err)
	}
}

func TestContextEndsTheTries(t *testing.T) {
	always := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "no-quorum", true, 0) }))
	t.Cleanup(always.Close)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough, tries := errors.New("enough"), 0
	c := newTestClient(t, Config{Servers: []string{always.URL}, OnRetry: func(error, time.Duration) {
		if tries++; tries == 3 {
			cancel(enough)
		}
	}})
	_, err := c.Publish(ctx, "s", Event{}, PublishOptions{})
	if !errors.Is(err, enough) || CodeOf(err) != "no-quorum" || tries != 3 {
		t.Errorf("got %v after %d tries", err, tries)
	}
}

func TestAddresses(t *testing.T) {
	for _, bad := range []string{"", "ftp://x", "http://", "http://x/y", "http://x?y", "a b"} {
		if _, err := New(Config{Servers: []string{bad}}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no server was accepted")
	}
}

// TestEnvelopesAreJSON holds the encoder against the standard library's.
func TestEnvelopesAreJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev := Event{
			Value: rapid.SliceOf(rapid.Byte()).Draw(t, "value"), Key: rapid.SliceOf(rapid.Byte()).Draw(t, "key"),
			HasKey: rapid.Bool().Draw(t, "has key"), ContentType: rapid.SampledFrom([]string{"", TextPlain, "image/png"}).Draw(t, "type"),
			ID: rapid.String().Draw(t, "id"), Headers: rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "headers"),
		}
		if rapid.Bool().Draw(t, "text") {
			ev.Value = []byte(rapid.String().Draw(t, "text value"))
		}
		line, err := encodeBatch([]Event{ev}, []int{0})
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(line, []byte("\n")) != 1 || line[len(line)-1] != '\n' {
			t.Fatalf("not one line: %q", line)
		}
		var got struct {
			Key         *string
			KeyBase64   []byte  `json:"key_base64"`
			Value       *string `json:"value"`
			ValueBase64 []byte  `json:"value_base64"`
			ID          string
			Headers     map[string]string
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		value := got.ValueBase64
		if got.Value != nil {
			value = []byte(*got.Value)
		}
		if !bytes.Equal(value, ev.Value) {
			t.Fatalf("value %q, want %q", value, ev.Value)
		}
		key := got.KeyBase64
		if got.Key != nil {
			key = []byte(*got.Key)
		}
		if !bytes.Equal(key, ev.Key) || (got.Key != nil || got.KeyBase64 != nil) != (ev.HasKey || len(ev.Key) > 0) {
			t.Fatalf("key %q, want %q (%t)", key, ev.Key, ev.HasKey)
		}
		if utf8.ValidString(ev.ID) && got.ID != ev.ID || len(got.Headers) != len(ev.Headers) {
			t.Fatalf("got %+v", got)
		}
	})
}

func TestTextThatEscapingWouldSwellGoesAsBytes(t *testing.T) {
	for value, field := range map[string]string{"": "value", "\n": "value", "a \"quote\"": "value", strings.Repeat("\x00", 1<<20): "value_base64"} {
		line, err := encodeBatch([]Event{{Value: []byte(value), ContentType: TextPlain}}, []int{0})
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil || m[field] == nil || len(line) > len(value)*4/3+100 {
			t.Errorf("%.20q: %d bytes, %.40q, %v", value, len(line), line, err)
		}
	}
}

func TestJSONTypesAreThoseOfTheServer(t *testing.T) {
	for ct, want := range map[string]bool{"application/json": true, "Application/JSON ; charset=utf-8": true, "a/b+json": true, "+json": false, "text/json": false, "": false} {
		if isJSON(ct) != want {
			t.Errorf("%q: %v", ct, !want)
		}
	}
}

func TestJSONValuesKeepTheirSpace(t *testing.T) {
	line, err := encodeBatch([]Event{{Value: []byte(" {\"a\" :  1,\n\"b\":\"x\\ny\"}\r\n"), ContentType: "application/json"}}, []int{0})
	if want := `{"value":{"a" :  1, "b":"x\ny"},"content_type":"application/json"}` + "\n"; err != nil || string(line) != want {
		t.Errorf("%s, %v", line, err)
	}
	if _, err := encodeBatch([]Event{{Value: []byte("{"), ContentType: "application/cloudevents+json"}}, []int{0}); err == nil {
		t.Error("broken JSON was accepted")
	}
}
