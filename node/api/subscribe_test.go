package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gosse "github.com/tmaxmax/go-sse"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// lineReader hands on lines until the body ends.
func lineReader(r io.Reader) <-chan string {
	ch := make(chan string, 4096)
	go func() {
		defer close(ch)
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, 16<<20)
		for sc.Scan() {
			ch <- sc.Text()
		}
	}()
	return ch
}

// waitLine returns the first line that contains want.
func waitLine(t *testing.T, lines <-chan string, want string) string {
	t.Helper()
	return waitFor(t, lines, want, func(l string) bool { return strings.Contains(l, want) })
}

// waitFor returns the first line that fits.
func waitFor(t *testing.T, lines <-chan string, what string, fits func(string) bool) string {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case l, ok := <-lines:
			if !ok {
				t.Fatalf("the stream ended before %q", what)
			}
			if fits(l) {
				return l
			}
		case <-timeout:
			t.Fatalf("no line with %q", what)
		}
	}
}

func (w *world) seed(stream string, n int) {
	w.t.Helper()
	w.expect(200, "", "POST", "/v1/streams/"+stream+"/events/batch?key_field=k&summary", ndjsonOf(n, `{"k":"%d"}`), "Content-Type: application/x-ndjson")
}

func TestLinesCarryEnvelopesAndACursorAtEachFlush(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 20)
	rec := w.do("GET", "/v1/streams/a/events?until=end", "")
	lines := strings.Split(strings.TrimSuffix(rec.Body.String(), "\n"), "\n")
	if rec.Code != 200 || rec.Header().Get("Content-Type") != "application/x-ndjson" || len(lines) < 21 {
		t.Fatalf("%d %q %d lines", rec.Code, rec.Header().Get("Content-Type"), len(lines))
	}
	var cur struct{ Cursor string }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &cur); err != nil || cur.Cursor == "" {
		t.Fatalf("the last line %q is no cursor: %v", lines[len(lines)-1], err)
	}
	next := map[float64]float64{}
	for _, l := range lines {
		if strings.HasPrefix(l, `{"cursor"`) {
			continue
		}
		var e struct {
			Partition, Offset float64
			Key, Stream       string
			Value             map[string]string
		}
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		if e.Offset != next[e.Partition] || e.Key != e.Value["k"] || e.Stream != "a" {
			t.Fatalf("out of order or torn: %s", l)
		}
		next[e.Partition]++
	}
	w.expect(200, "", "POST", "/v1/streams/a/events?key=9", `"later"`, "Content-Type: application/json")
	rec = w.do("GET", "/v1/streams/a/events?until=end&from="+cur.Cursor, "")
	if got := strings.Count(rec.Body.String(), `"partition"`); got != 1 || !strings.Contains(rec.Body.String(), `"value":"later"`) {
		t.Fatalf("resumed with %d events: %s", got, rec.Body)
	}
}

func TestAnswerWithoutEventsSaysWhereItEnded(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 3)
	rec := w.do("GET", "/v1/streams/a/events?from=latest&until=end", "")
	if !strings.HasPrefix(rec.Body.String(), `{"cursor":"`) {
		t.Fatalf("lines: %q", rec.Body)
	}
	rec = w.do("GET", "/v1/streams/a/events?from=latest&until=end", "", "Accept: text/event-stream")
	if strings.Count(rec.Body.String(), `{"cursor":"`) != 1 || !strings.Contains(rec.Body.String(), "event: end\nid: ") {
		t.Fatalf("event stream: %q", rec.Body)
	}
}

func TestReaderThatCatchesUpIsToldItsPlaceOnTheWay(t *testing.T) {
	w := newWorld(t)
	const events, each = 8000, 250 // some 2 MB, which the reader never waits for
	w.seed("a", 1)
	for range events / 1000 {
		w.expect(200, "", "POST", "/v1/streams/a/events/batch?summary", ndjsonOf(1000, `{"n":%d,"pad":"`+strings.Repeat("x", each)+`"}`), "Content-Type: application/x-ndjson")
	}
	rec := w.do("GET", "/v1/streams/a/events?from=earliest&until=end", "")
	places, longest, since := 0, 0, 0
	for line := range strings.Lines(rec.Body.String()) {
		since += len(line)
		if strings.HasPrefix(line, `{"cursor":`) {
			places, since = places+1, 0
		}
		longest = max(longest, since)
	}
	if most := placeBytes + 1000*(each+200); places < 4 || longest > most {
		t.Errorf("%d places in %d bytes; %d bytes without one, at most %d are wanted", places, rec.Body.Len(), longest, most)
	}
}

func TestSubscribeFilters(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 40)
	count := func(query string) int {
		rec := w.do("GET", "/v1/streams/a/events?"+query, "")
		if rec.Code != 200 {
			t.Fatalf("%s: %d %s", query, rec.Code, rec.Body)
		}
		return strings.Count(rec.Body.String(), `"offset"`)
	}
	if n := count("until=end&key=7"); n != 1 {
		t.Errorf("by key: %d", n)
	}
	if n := count("until=end&key="); n != 0 {
		t.Errorf("by the empty key: %d", n)
	}
	if n := count("from=earliest&limit=5"); n != 5 {
		t.Errorf("by limit: %d", n)
	}
	sum := 0
	for p := range 8 {
		sum += count(fmt.Sprintf("until=end&partition=%d", p))
	}
	if sum != 40 {
		t.Errorf("by partition: %d in all", sum)
	}
	for query, want := range map[string]int{"from=latest&until=end": 0, "from=@2020-01-01T00:00:00Z&until=end": 40, "from=-1h&until=end": 40,
		"from=0:0,1:0&until=end": 40, "from=@2100-01-01T00:00:00Z&until=end": 0} {
		if n := count(query); n != want {
			t.Errorf("%s: %d, want %d", query, n, want)
		}
	}
}

func TestBadSubscriptionsAreRefused(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 3)
	foreign := flow.Cursor{Stream: ring.NewStreamID(), Next: map[ring.PartitionID]uint64{0: 1}}.String()
	for query, code := range map[string]string{
		"partition=-1": codeInvalid, "partition=4294967296": codeInvalid, "partition=x": codeInvalid, "limit=0": codeInvalid, "limit=-1": codeInvalid,
		"limit=9223372036854775808": codeInvalid, "until=now": codeInvalid, "from=": codeInvalid, "from=yesterday": "invalid-position",
		"from=@noon": "invalid-position", "from=0:-1": "invalid-position", "from=0:9223372036854775808": "invalid-position", "from=-5": "invalid-position",
		"from=" + foreign: "invalid-position", "wait_ms=5": codeInvalid,
	} {
		w.expect(400, code, "GET", "/v1/streams/a/events?"+query, "")
	}
	w.expect(400, "invalid-position", "GET", "/v1/streams/a/events", "", "Last-Event-ID: forged")
	w.expect(400, "invalid-position", "GET", "/v1/streams/a/events?from=earliest", "", "Last-Event-ID: "+foreign)
	w.expect(404, "partition-not-found", "GET", "/v1/streams/a/events?partition=99", "")
	w.expect(404, "stream-not-found", "GET", "/v1/streams/none/events", "")
	w.expect(406, codeNotAccepted, "GET", "/v1/streams/a/events", "", "Accept: image/png")
	w.expect(406, codeNotAccepted, "GET", "/v1/streams/a/events", "", "Accept: application/json;q=0")
}

func TestExpiredOffsetsAnswerGoneWithTheEarliest(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 3)
	w.broker.streams["a"].start[0] = 17
	if v := w.expect(410, "offset-expired", "GET", "/v1/streams/a/events?from=0:3", ""); v["earliest"] != 17.0 {
		t.Fatalf("%v", v)
	}
	if v := w.expect(410, "offset-expired", "GET", "/v1/streams/a/partitions/0/events/3", ""); v["earliest"] != 17.0 {
		t.Fatalf("%v", v)
	}
}

func TestUnknownEndIsNoQuorum(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 3)
	w.broker.subscribeErr = func(req flow.SubscribeRequest) error {
		if req.UntilEnd || req.From.Kind == flow.FromLatest {
			return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeNoQuorum, Detail: "no owner", RetryAfter: 2500 * time.Millisecond}
		}
		return nil
	}
	rec := w.do("GET", "/v1/streams/a/events", "")
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "3" || !strings.Contains(rec.Body.String(), `"retry_after_ms":2500`) {
		t.Fatalf("%d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	w.expect(503, "no-quorum", "GET", "/v1/streams/a/events?until=end", "")
	v := w.expect(200, "", "GET", "/v1/streams/a/events", "", "Accept: application/json") // needs no end
	if n := len(v["events"].([]any)); n != 3 {
		t.Fatalf("%d events", n)
	}
}

func TestPagesFollowOneAnotherAndPoll(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 25)
	seen, from := 0, "earliest"
	for range 10 {
		v := w.expect(200, "", "GET", "/v1/streams/a/events?limit=7&from="+from, "", "Accept: application/json")
		from = v["next_cursor"].(string)
		n := len(v["events"].([]any))
		if seen += n; n == 0 {
			break
		}
	}
	if seen != 25 {
		t.Fatalf("%d events over all pages", seen)
	}
	before := w.broker.nextCalls
	go func() {
		for {
			w.broker.mu.Lock()
			n := w.broker.nextCalls
			w.broker.mu.Unlock()
			if n > before { // the poll below waits
				break
			}
			time.Sleep(time.Millisecond)
		}
		w.do("POST", "/v1/streams/a/events?key=z", "new", "Content-Type: text/plain")
	}()
	v := w.expect(200, "", "GET", "/v1/streams/a/events?wait_ms=20000&from="+from, "", "Accept: application/json")
	if evs := v["events"].([]any); len(evs) != 1 || evs[0].(map[string]any)["value"] != "new" {
		t.Fatalf("%v", v)
	}
	w.expect(400, codeInvalid, "GET", "/v1/streams/a/events?limit=10001", "", "Accept: application/json")
	w.expect(400, codeInvalid, "GET", "/v1/streams/a/events?wait_ms=-1", "", "Accept: application/json")
}

func TestOneEvent(t *testing.T) {
	w := newWorld(t)
	v := w.expect(200, "", "POST", "/v1/streams/a/events?key=k", "hi\r\nthere", "Content-Type: text/plain")
	path := fmt.Sprintf("/v1/streams/a/partitions/%v/events/%v", v["partition"], v["offset"])
	if v := w.expect(200, "", "GET", path, ""); v["value"] != "hi\r\nthere" || v["key"] != "k" || v["content_type"] != "text/plain" {
		t.Fatalf("%v", v)
	}
	w.expect(404, "offset-not-found", "GET", "/v1/streams/a/partitions/0/events/9223372036854775807", "")
	for _, bad := range []string{"0/events/-1", "0/events/9223372036854775808", "-1/events/0", "x/events/0", "0/events/", "0/events/1%00"} {
		w.expect(400, codeInvalid, "GET", "/v1/streams/a/partitions/"+bad, "")
	}
}

// TestEventStreamClientResumes drives the server with an independent client, which sends Last-Event-ID by itself.
func TestEventStreamClientResumes(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 30)
	url := w.url() + "/v1/streams/a/events?from=earliest&limit=15"
	seen := map[string]int{}
	total := 0
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := fmt.Errorf("enough")
	client := gosse.Client{HTTPClient: http.DefaultClient, Backoff: gosse.Backoff{MaxRetries: 20, InitialInterval: time.Millisecond},
		ResponseValidator: gosse.DefaultValidator}
	conn := client.NewConnection(req)
	done := make(chan error, 1)
	conn.SubscribeMessages(func(e gosse.Event) {
		var v struct{ Partition, Offset int }
		if err := json.Unmarshal([]byte(e.Data), &v); err != nil || e.LastEventID == "" {
			t.Errorf("%v in %q, id %q", err, e.Data, e.LastEventID)
		}
		seen[fmt.Sprint(v.Partition, ":", v.Offset)]++
		if total++; total == 30 {
			select {
			case done <- stop:
			default:
			}
		}
	})
	go func() { done <- conn.Connect() }()
	if err := <-done; err != stop {
		t.Fatalf("after %d events: %v", total, err)
	}
	w.s.Drain() // further attempts are refused, which ends the client
	<-done
	if len(seen) != 30 || total != 30 {
		t.Fatalf("%d events, %d of them different, in connections of 15", total, len(seen))
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestEventStreamFraming(t *testing.T) {
	w := newWorld(t)
	w.expect(200, "", "POST", "/v1/streams/a/events", "a\r\nb\rc\nid: 1\n\ndata: x", "Content-Type: text/plain")
	w.expect(200, "", "POST", "/v1/streams/a/events", "{\n\"x\":\r\n1}", "Content-Type: application/json")
	rec := w.do("GET", "/v1/streams/a/events?until=end", "", "Accept: text/event-stream")
	if strings.Contains(rec.Body.String(), "\r") {
		t.Fatalf("a raw carriage return ends a line: %q", rec.Body)
	}
	blocks := strings.Split(strings.TrimSuffix(rec.Body.String(), "\n\n"), "\n\n")
	if len(blocks) != 3 { // two events, end
		t.Fatalf("%d blocks: %q", len(blocks), blocks)
	}
	for _, b := range blocks {
		if strings.Contains(b, "id: ") && !strings.Contains(b, "data: ") {
			t.Errorf("an id without data: %q", b)
		}
	}
	if !strings.HasPrefix(blocks[0], "retry: ") || !strings.HasPrefix(blocks[2], "event: end\n") || !strings.Contains(blocks[1], `"value":{ "x":  1}`) {
		t.Fatalf("%q", blocks)
	}
}

func TestQuietEventStreamShowsLifeAndItsPlace(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.Heartbeat = 20 * time.Millisecond })
	w.seed("a", 1)
	res := w.openStream(w.url()+"/v1/streams/a/events", "Accept: text/event-stream")
	lines := lineReader(res.Body)
	waitLine(t, lines, "event: start")
	id := waitLine(t, lines, "id: ")
	waitFor(t, lines, "a comment", func(l string) bool { return l == ":" })
	_ = res.Body.Close()
	w.expect(200, "", "POST", "/v1/streams/a/events", "missed", "Content-Type: text/plain")
	rec := w.do("GET", "/v1/streams/a/events?limit=1", "", "Accept: text/event-stream", "Last-Event-ID: "+strings.TrimPrefix(id, "id: "))
	if !strings.Contains(rec.Body.String(), "missed") {
		t.Fatalf("%s", rec.Body)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestStoppedReaderStopsReadingTheSource(t *testing.T) {
	w := newWorld(t)
	big := strings.Repeat("x", 1<<20)
	for range 64 {
		w.expect(200, "", "POST", "/v1/streams/a/events", big, "Content-Type: text/plain")
	}
	w.broker.nextCalls = 0
	res := w.openStream(w.url()+"/v1/streams/a/events?from=earliest", "Accept: application/x-ndjson")
	// The fake gives everything in one chunk, so what counts is that encoding stops: few events are delivered.
	deadline := time.Now().Add(5 * time.Second)
	last, same := -1.0, 0
	for same < 20 && time.Now().Before(deadline) {
		now := w.metric("skein_http_delivered_events_total", "ndjson")
		if now == last {
			same++
		} else {
			same = 0
		}
		last = now
		time.Sleep(5 * time.Millisecond)
	}
	if last > 32 {
		t.Fatalf("%v MiB were written to a reader that reads nothing", last)
	}
	_ = res.Body.Close() // gone: the handler must end, or closing the server hangs
	http.DefaultClient.CloseIdleConnections()
}

func (w *world) metric(name, label string) float64 {
	fams, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range fams {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

func TestTooManySubscriptionsAreOverloaded(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.MaxSubscribers = 1 })
	w.seed("a", 1)
	res := w.openStream(w.url() + "/v1/streams/a/events")
	w.expect(503, "overloaded", "GET", "/v1/streams/a/events", "")
	_ = res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
}

// lateBroker answers where it is asked for the end, or always, just when the time for it is over.
type lateBroker struct {
	*fakeBroker
	always bool
	closed int
}

type lateSub struct {
	flow.Subscription
	ctx context.Context
	b   *lateBroker
}

func (b *lateBroker) Subscribe(ctx context.Context, stream string, req flow.SubscribeRequest) (flow.Subscription, error) {
	if b.always || req.UntilEnd {
		<-ctx.Done()
	}
	sub, err := b.fakeBroker.Subscribe(ctx, stream, req)
	return lateSub{sub, ctx, b}, err
}

func (s lateSub) Next(ctx context.Context, n int) (flow.Chunk, error) {
	if s.ctx.Err() != nil {
		return flow.Chunk{}, s.ctx.Err()
	}
	return s.Subscription.Next(ctx, n)
}

func (s lateSub) Close() error {
	s.b.closed++
	return s.Subscription.Close()
}

func TestSubscriptionThatComesTooLateIsNoEmptyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := &lateBroker{}
		w := newWorld(t, func(_ *Config, d *Deps) {
			late.fakeBroker = d.Subscriber.(*fakeBroker)
			d.Subscriber = late
		})
		w.seed("a", 3)
		v := w.expect(200, "", "GET", "/v1/streams/a/events", "", "Accept: application/json") // the end was only a guess
		if n := len(v["events"].([]any)); n != 3 || late.closed != 2 {
			t.Fatalf("%d events, %d subscriptions closed", n, late.closed)
		}
		late.always = true
		for _, accept := range []string{"application/x-ndjson", "text/event-stream", "application/json"} {
			w.expect(503, codeTimeout, "GET", "/v1/streams/a/events?from=earliest", "", "Accept: "+accept)
		}
		if late.closed != 6 {
			t.Fatalf("%d subscriptions closed", late.closed)
		}
	})
}

func TestFormatsAreNegotiated(t *testing.T) {
	for accept, want := range map[string]string{"": formatNDJSON, "*/*": formatNDJSON, "text/event-stream": formatSSE, "application/json, text/plain, */*": formatJSON,
		"text/*": formatSSE, "application/json;q=0.5, text/event-stream;q=0.4": formatJSON, "application/*": formatNDJSON,
		"application/x-ndjson;q=0, */*": formatSSE, "TEXT/Event-Stream": formatSSE} {
		if got, err := negotiate(http.Header{"Accept": {accept}}); err != nil || got != want {
			t.Errorf("%q: %s %v, want %s", accept, got, err, want)
		}
	}
}

func TestClientThatLeavesIsNoFailure(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 1)
	w.broker.subscribeErr = func(flow.SubscribeRequest) error { return context.Canceled }
	ctx, leave := context.WithCancel(t.Context())
	leave()
	r := httptest.NewRequest("GET", "http://localhost/v1/streams/a/events", nil).WithContext(ctx)
	w.s.Handler().ServeHTTP(httptest.NewRecorder(), r)
	if strings.Contains(w.log.String(), "level=ERROR") {
		t.Errorf("logged as an error: %s", w.log)
	}
}
