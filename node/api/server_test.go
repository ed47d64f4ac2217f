package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server with its fakes, and what tests want to know afterwards.
type world struct {
	archives *fakeArchives
	t        testing.TB
	s        *Server
	broker   *fakeBroker
	mesh     *fakeMesh
	ops      *fakeOps
	budget   *countedBudget
	reg      *prometheus.Registry
	log      *syncBuffer
	http     *httptest.Server
}

// poll looks again and again at what the server does in its own time.
func (w *world) poll(what string, ok func() bool) {
	w.t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for end := time.After(20 * time.Second); !ok(); {
		select {
		case <-look.C:
		case <-end:
			w.t.Fatalf("in vain: %s", what)
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// countedBudget notes the most that was ever taken, and must be whole in the end.
type countedBudget struct {
	mu        sync.Mutex
	free      int64
	now, peak int64
}

func (b *countedBudget) Reserve(ctx context.Context, n int64) error {
	for {
		b.mu.Lock()
		if n <= b.free {
			b.free -= n
			b.now += n
			b.peak = max(b.peak, b.now)
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (b *countedBudget) Release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	b.now -= n
}

func (b *countedBudget) taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *countedBudget) mostTaken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peak
}

func newWorld(t testing.TB, change ...func(*Config, *Deps)) *world {
	t.Helper()
	w := &world{t: t, broker: newFakeBroker(), archives: &fakeArchives{}, mesh: &fakeMesh{}, ops: &fakeOps{}, budget: &countedBudget{free: 64 << 20},
		reg: prometheus.NewRegistry(), log: &syncBuffer{}}
	cfg := Config{Identity: Identity{Node: "n1", ID: ring.NewNodeID(), Cluster: "test"}, AutoCreate: true}
	dep := Deps{Publisher: w.broker, Subscriber: w.broker, Streams: w.broker, Archives: w.archives, Mesh: w.mesh, Ops: w.ops, Budget: w.budget,
		Registerer: w.reg, Gatherer: w.reg, Owner: func(string, ring.PartitionID) string { return "n2" },
		Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, f := range change {
		f(&cfg, &dep)
	}
	var err error
	if w.s, err = New(cfg, dep); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.http != nil {
			w.s.Drain()
			w.http.Close()
		}
		if n := w.budget.taken(); n != 0 {
			t.Errorf("%d bytes of the body budget were never released", n)
		}
		w.checkDocumented()
	})
	return w
}

// url starts a real server, once.
func (w *world) url() string {
	if w.http == nil {
		w.http = httptest.NewServer(w.s.Handler())
	}
	return w.http.URL
}

// newRequest makes a request of a client on this host; header lines are "Name: value".
func newRequest(method, target, body string, header ...string) *http.Request {
	r := httptest.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
	if body == "" {
		r.Body, r.ContentLength = http.NoBody, 0
		if method != http.MethodGet && method != http.MethodHead {
			r.Header.Set("Content-Length", "0")
		}
	}
	for _, h := range header {
		k, v, _ := strings.Cut(h, ": ")
		r.Header.Add(k, v)
	}
	return r
}

// do sends one request through the handler.
func (w *world) do(method, target, body string, header ...string) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	w.s.Handler().ServeHTTP(rec, newRequest(method, target, body, header...))
	return rec
}

// expect sends a request and checks the status, and the code of a problem where one is given.
func (w *world) expect(status int, code, method, target, body string, header ...string) map[string]any {
	w.t.Helper()
	return w.expectOf(newRequest(method, target, body, header...), status, code)
}

func (w *world) expectOf(r *http.Request, status int, code string) map[string]any {
	w.t.Helper()
	method, target := r.Method, r.URL.RequestURI()
	rec := httptest.NewRecorder()
	w.s.Handler().ServeHTTP(rec, r)
	if rec.Code != status {
		w.t.Fatalf("%s %s: status %d, want %d: %s", method, target, rec.Code, status, rec.Body)
	}
	var v map[string]any
	if rec.Body.Len() > 0 && strings.Contains(rec.Header().Get("Content-Type"), "json") && !strings.Contains(rec.Header().Get("Content-Type"), "ndjson") {
		if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
			w.t.Fatalf("%s %s: %v in %s", method, target, err, rec.Body)
		}
	}
	if status >= 400 {
		w.checkProblem(rec, v, code)
	}
	return v
}

func (w *world) checkProblem(rec *httptest.ResponseRecorder, v map[string]any, code string) {
	w.t.Helper()
	kind, fields, status := "application/problem+json", []string{"type", "title", "status", "detail", "code", "retryable", "node"}, any(float64(rec.Code))
	if v["failing"] != nil { // what a node that is not ready says has a form of its own
		kind, fields, status = contentJSON, []string{"status", "failing", "code", "retryable", "node"}, "not ready"
	}
	if ct := rec.Header().Get("Content-Type"); ct != kind {
		w.t.Fatalf("content type %q of a problem", ct)
	}
	for _, k := range fields {
		if v[k] == nil {
			w.t.Fatalf("the problem lacks %s: %v", k, v)
		}
	}
	if v["code"] != code || v["status"] != status || v["node"] != "n1" {
		w.t.Fatalf("problem %v, want code %s", v, code)
	}
	if rec.Code == 429 || rec.Code == 503 {
		if rec.Header().Get("Retry-After") == "" || v["retry_after_ms"] == nil || v["retryable"] != true {
			w.t.Fatalf("no hint when to retry: %v %v", rec.Header(), v)
		}
	}
}

func TestRoutingTellsUnknownPathsAndMethodsApart(t *testing.T) {
	w := newWorld(t)
	w.expect(404, codeNotFound, "GET", "/v2/streams", "")
	w.expect(404, codeNotFound, "GET", "/v1/", "")
	w.expect(404, codeNotFound, "GET", "/v1/streams/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p", "")
	w.expect(405, codeMethod, "POST", "/v1/streams/a", "x")
	w.expect(405, codeMethod, "HEAD", "/v1/streams/a/events", "")
	rec := w.do("DELETE", "/v1/streams/a/events", "")
	if rec.Code != 405 || rec.Header().Get("Allow") != "GET, POST" {
		t.Fatalf("%d, Allow %q", rec.Code, rec.Header().Get("Allow"))
	}
	if rec := w.do("HEAD", "/v1/mesh", ""); rec.Code != 200 {
		t.Fatalf("HEAD: %d", rec.Code)
	}
}

func TestUnknownAndDoubledQueryParametersAreNamed(t *testing.T) {
	w := newWorld(t)
	for target, want := range map[string]string{
		"/v1/streams/a/events?limt=3":            `"limt"; did you mean "limit"`,
		"/v1/streams/a/events?fron=earliest":     `did you mean "from"`,
		"/v1/mesh?verbose":                       `"verbose"; known are timeout_ms`,
		"/livez?x=1":                             `none is known`,
		"/v1/streams/a/events?limit=1&limit=2":   "more than once",
		"/v1/streams/a/events?limit=%zz":         "malformed",
		"/v1/streams/a/events?timeout_ms=0":      "timeout_ms",
		"/v1/streams/a/events?timeout_ms=999999": "within 1 and 60000",
		"/v1/mesh?timeout_ms=soon":               "timeout_ms",
	} {
		rec := w.do("GET", target, "")
		if rec.Code != 400 || !strings.Contains(strings.ReplaceAll(rec.Body.String(), `\"`, `"`), want) {
			t.Errorf("%s: %d %s, want %q", target, rec.Code, rec.Body, want)
		}
	}
}

func TestForeignHostsAreRefusedNamingTheKey(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.AllowedHosts = []string{"events.example.com", ".mesh.test"} })
	for host, ok := range map[string]bool{"localhost:8400": true, "127.0.0.1:8400": true, "[::1]:8400": true, "10.0.0.7": true, "n1:8400": true,
		"EVENTS.example.com": true, "a.mesh.test:80": true, "x.localhost": true, "evil.example.com": false, "mesh.test": false, "": false} {
		r := httptest.NewRequest("GET", "http://localhost/livez", nil)
		r.Host = host
		rec := httptest.NewRecorder()
		w.s.Handler().ServeHTTP(rec, r)
		if (rec.Code == 200) != ok {
			t.Errorf("host %q: %d", host, rec.Code)
		}
		if !ok && !strings.Contains(rec.Body.String(), "http.allowed_hosts") {
			t.Errorf("host %q: the key is not named: %s", host, rec.Body)
		}
	}
}

func TestBrowsersOfOtherOriginsCannotPublish(t *testing.T) {
	w := newWorld(t)
	w.expect(403, codeCrossOrigin, "POST", "/v1/streams/a/events", "x", "Sec-Fetch-Site: cross-site")
	w.expect(403, codeCrossOrigin, "POST", "/v1/streams/a/events", "x", "Origin: https://evil.example.com")
	w.expect(200, "", "POST", "/v1/streams/a/events", "x", "Sec-Fetch-Site: same-origin")
}

type refuser struct{ p *Problem }

func (r refuser) Authorize(c *Call, a Access) (context.Context, error) {
	if a.Scope == ScopeOpen {
		return nil, nil
	}
	return nil, r.p
}

func TestAuthorizerDecidesBeforeTheHandler(t *testing.T) {
	w := newWorld(t, func(_ *Config, d *Deps) { d.Auth = refuser{NewProblem(401, "unauthorized", "no token")} })
	rec := w.do("POST", "/v1/streams/a/events", "x")
	if rec.Code != 401 || rec.Header().Get("WWW-Authenticate") == "" {
		t.Fatalf("%d %v", rec.Code, rec.Header())
	}
	w.expect(200, "", "GET", "/livez", "")
	if w.broker.calls != 0 {
		t.Fatal("a refused publish reached the broker")
	}
	w = newWorld(t, func(_ *Config, d *Deps) { d.Auth = refuser{NewProblem(403, "forbidden", "not yours")} })
	w.expect(403, "forbidden", "GET", "/v1/streams", "")
	w = newWorld(t, func(_ *Config, d *Deps) { d.Auth = refuser{NewProblem(429, "quota", "too much")} })
	w.expect(429, "quota", "POST", "/v1/streams/a/events", "x")
}

func TestSecretsStayOutOfLogs(t *testing.T) {
	w := newWorld(t)
	w.expect(200, "", "POST", "/v1/streams/a/events?key=customer-4711", "the value", "Authorization: Bearer hunter2")
	for _, secret := range []string{"hunter2", "customer-4711", "the value"} {
		if strings.Contains(w.log.String(), secret) {
			t.Errorf("%q is in the log: %s", secret, w.log.String())
		}
	}
}

type extra struct{}

func (extra) Routes() []Route {
	return []Route{
		{Method: "GET", Pattern: "/v1/extra/{name}", Access: ScopeView, Handle: func(c *Call) error { return c.JSON(200, map[string]string{"name": c.Path("name")}) }},
		{Method: "GET", Pattern: "/v1/panics", Access: ScopeView, Handle: func(*Call) error { panic("boom") }},
	}
}

func TestRegistrarsBringRoutesAndPanicsAreAnswered(t *testing.T) {
	w := newWorld(t, func(_ *Config, d *Deps) { d.Routes = []Registrar{extra{}} })
	if v := w.expect(200, "", "GET", "/v1/extra/a%2Fb", ""); v["name"] != "a/b" {
		t.Fatalf("%v", v)
	}
	w.expect(500, codeInternal, "GET", "/v1/panics", "")
	if !strings.Contains(w.log.String(), "boom") {
		t.Fatal("the panic is not in the log")
	}
	cfg, dep := w.s.cfg, w.s.dep
	dep.Routes, dep.Registerer = []Registrar{extra{}, extra{}}, nil
	if _, err := New(cfg, dep); err == nil || !strings.Contains(err.Error(), "registered twice") {
		t.Fatalf("a doubled route: %v", err)
	}
}

func TestMeshAnswersNameObserverAndAge(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/v1/mesh", "/v1/mesh/members", "/v1/mesh/ring", "/v1/mesh/partitions", "/v1/mesh/partitions?stream=s"} {
		v := w.expect(200, "", "GET", path, "")
		if v["observer"] != "n1" || v["as_of"] == nil {
			t.Errorf("%s: %v", path, v)
		}
	}
	w.expect(404, "stream-not-found", "GET", "/v1/mesh/partitions?stream=absent", "")
	w.expect(400, codeInvalidName, "GET", "/v1/mesh/partitions?stream=..%2f", "")
}

func TestListenSaysWhatToChange(t *testing.T) {
	ln, err := Listen(Config{Addr: "127.0.0.1:0"}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for addr, want := range map[string]string{ln.Addr().String(): "taken by another process", "0.0.0.0:0": "insecure: true", "8400": "not host:port",
		"203.0.113.7:0": "insecure"} {
		if _, err := Listen(Config{Addr: addr}, false); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "http.addr") {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
	if _, err := Listen(Config{Addr: "203.0.113.7:0"}, true); err == nil || !strings.Contains(err.Error(), "not an address of this host") {
		t.Errorf("foreign address: %v", err)
	}
	open, err := Listen(Config{Addr: "0.0.0.0:0", Insecure: true}, false)
	if err != nil {
		t.Fatal(err)
	}
	_ = open.Close()
}

func TestRunEndsSubscribersWithGoodbye(t *testing.T) {
	w := newWorld(t)
	base, cancel, ran := w.run()
	w.expect(200, "", "POST", "/v1/streams/a/events", "hello", "Content-Type: text/plain")
	res := w.openStream(base+"/v1/streams/a/events?from=earliest", "Accept: text/event-stream")
	defer res.Body.Close()
	lines := lineReader(res.Body)
	waitLine(t, lines, "hello")
	cancel()
	waitLine(t, lines, "event: goodbye")
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(base, "http://")); err == nil {
		t.Fatal("still listening")
	}
	http.DefaultClient.CloseIdleConnections()
}

// run has the server serve by itself until cancel; then ran gets what it returned.
func (w *world) run() (base string, cancel func(), ran chan error) {
	t := w.t.(*testing.T)
	t.Helper()
	ln, err := Listen(Config{Addr: "127.0.0.1:0"}, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran = make(chan error, 1)
	go func() { ran <- w.s.Run(ctx, ln) }()
	return "http://" + ln.Addr().String(), cancel, ran
}

func (w *world) openStream(url string, header ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.(*testing.T).Context(), "GET", url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, h := range header {
		k, v, _ := strings.Cut(h, ": ")
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if res.StatusCode != 200 {
		b, _ := io.ReadAll(res.Body)
		w.t.Fatalf("%d %s", res.StatusCode, b)
	}
	return res
}

func ndjsonOf(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format+"\n", i)
	}
	return b.String()
}

func (w *world) request() *http.Request { return httptest.NewRequest("POST", "http://localhost/", nil) }
