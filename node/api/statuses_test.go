package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/skeinmesh/skein/transport/wire"
)

// documented are the statuses of each route in openapi.json, by method and pattern.
var documented = sync.OnceValue(func() map[string][]string {
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(openAPIDoc, &doc); err != nil {
		panic(err)
	}
	routes := map[string][]string{}
	for path, item := range doc.Paths {
		for method, raw := range item {
			var op struct{ Responses map[string]any }
			if json.Unmarshal(raw, &op) != nil { // parameters, which are a list
				continue
			}
			for status := range op.Responses {
				name := strings.ToUpper(method) + " " + path
				routes[name] = append(routes[name], status)
			}
		}
	}
	return routes
})

// answered calls each with the routes and statuses that the server answered so far.
func (w *world) answered(each func(route, status string)) {
	w.t.Helper()
	fams, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range fams {
		if f.GetName() != "skein_http_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			label := map[string]string{}
			for _, l := range m.GetLabel() {
				label[l.GetName()] = l.GetValue()
			}
			if label["method"] == http.MethodHead { // is documented with GET
				label["method"] = http.MethodGet
			}
			each(label["method"]+" "+strings.Replace(label["route"], "...}", "}", 1), label["status"])
		}
	}
}

// checkDocumented holds what the server answered, in whatever test, against the document.
func (w *world) checkDocumented() {
	w.t.Helper()
	w.answered(func(route, status string) {
		statuses, ours := documented()[route] // others are routes of a test
		if ours && status != "499" && !slices.Contains(statuses, status) {
			w.t.Errorf("%s answered %s, which openapi.json does not tell of", route, status)
		}
	})
}

// fail has all parts below the front door fail with err.
func (w *world) fail(err error) {
	w.broker.err, w.mesh.err, w.ops.err, w.archives.importErr, w.archives.exportErr = err, err, err, err, err
}

// exchange is a request and what it is answered with.
type exchange struct {
	status               int
	code                 string
	method, target, body string
	header               []string
}

// fine has one request of each route that is answered well where nothing fails.
var fine = []exchange{
	{200, "", "POST", "/v1/streams/a/events", "x", []string{textType}},
	{200, "", "GET", "/v1/streams/a/events", "", []string{"Accept: application/json"}},
	{200, "", "POST", "/v1/streams/a/events/batch", "1", []string{ndjsonType}},
	{200, "", "GET", "/v1/streams/a/partitions/5/events/0", "", nil}, // where the fake has what comes without a key
	{200, "", "GET", "/v1/streams", "", nil},
	{200, "", "GET", "/v1/streams/a", "", nil},
	{200, "", "PUT", "/v1/streams/a", "{}", nil},
	{200, "", "PATCH", "/v1/streams/a", "{}", nil},
	{204, "", "DELETE", "/v1/streams/a?confirm=a", "", nil},
	{200, "", "GET", "/v1/streams/a/export", "", nil},
	{201, "", "POST", "/v1/streams/b/import", "x", nil},
	{200, "", "GET", "/v1/mesh", "", nil},
	{200, "", "GET", "/v1/mesh/members", "", nil},
	{200, "", "GET", "/v1/mesh/ring", "", nil},
	{200, "", "GET", "/v1/mesh/partitions", "", nil},
	{202, "", "POST", "/v1/nodes/n2/drain", "", nil},
	{202, "", "DELETE", "/v1/nodes/n2/drain", "", nil},
	{202, "", "PUT", "/v1/nodes/n2/cordon", "", nil},
	{202, "", "DELETE", "/v1/nodes/n2/cordon", "", nil},
	{202, "", "POST", "/v1/streams/a/partitions/0/move", `{"from":"n1","to":"n2"}`, nil},
	{202, "", "POST", "/v1/streams/a/partitions/0/transfer", `{"to":"n2"}`, nil},
	{200, "", "GET", "/v1/operations", "", nil},
	{200, "", "GET", "/v1/operations/op.1", "", nil},
	{200, "", "GET", "/livez", "", nil},
	{200, "", "GET", "/readyz", "", nil},
	{200, "", "GET", "/metrics", "", nil},
	{200, "", "GET", "/version", "", nil},
	{200, "", "GET", "/openapi.json", "", nil},
	{200, "", "GET", "/debug/pprof/cmdline", "", nil},
}

// faults are what a fine request is answered with when the parts below fail with err, or when something is wrong with it.
var faults = []struct {
	status int
	code   string
	err    error
	spoil  func(*exchange)
}{
	{status: 400, code: codeUnknownParam, spoil: func(x *exchange) {
		if strings.Contains(x.target, "?") {
			x.target += "&nosuch=1"
		} else {
			x.target += "?nosuch=1"
		}
	}},
	{status: 404, code: "stream-not-found", err: notFoundStream("a")},
	{status: 408, code: codeTooSlow},
	{status: 409, code: codeConflict, err: wire.Errorf(wire.KindConflict, "", "another change came between")},
	{status: 410, code: "offset-expired", err: expired(0, 17)},
	{status: 413, code: "too-large", spoil: func(x *exchange) { x.body = strings.Repeat("x", 5<<20) }},
	{status: 415, code: codeMediaType, spoil: func(x *exchange) { x.header = []string{"Content-Type: ;;", "Content-Encoding: br"} }},
	{status: 500, code: codeInternal, err: errors.New("a bug")},
	{status: 503, code: "no-quorum", err: wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "no owner")},
	{status: 503, code: "overloaded", err: wire.Errorf(wire.KindNoCredit, "", "too much")},
	{status: 504, code: "outcome-unknown", err: wire.Errorf(wire.KindOutcomeUnknown, "", "sent, and no answer")},
}

// others are further answers, of streams a and full, in the latter of which an event has the Idempotency-Key k.
var others = []exchange{
	{202, "", "POST", "/v1/streams/a/events?ack=none", "x", []string{textType}},
	{202, "", "POST", "/v1/streams/a/events/batch?ack=none", "1", []string{ndjsonType}},
	{422, "idempotency-reuse", "POST", "/v1/streams/full/events", "y", []string{textType, "Idempotency-Key: k"}},
	{422, "idempotency-reuse", "POST", "/v1/streams/full/events/batch", "2", []string{ndjsonType, "Idempotency-Key: k"}},
	{406, codeNotAccepted, "GET", "/v1/streams/a/events", "", []string{"Accept: image/png"}},
	{404, "stream-not-found", "GET", "/v1/streams/none/partitions/0/events/0", "", nil},
	{404, "partition-not-found", "GET", "/v1/streams/a/partitions/99/events/0", "", nil},
	{404, "offset-not-found", "GET", "/v1/streams/a/partitions/0/events/99", "", nil},
	{304, "", "GET", "/v1/streams/a", "", []string{`If-None-Match: "1"`}},
	{201, "", "PUT", "/v1/streams/b", "", nil},
	{409, "config-differs", "PUT", "/v1/streams/a", `{"min_copies":2}`, nil},
	{412, "exists", "PUT", "/v1/streams/a", "", []string{"If-None-Match: *"}},
	{412, codePrecondition, "PATCH", "/v1/streams/a", "{}", []string{`If-Match: "7"`}},
	{200, "", "POST", "/v1/nodes/n2/drain?dry_run", "", nil},
	{200, "", "DELETE", "/v1/nodes/n2/drain?dry_run", "", nil},
	{200, "", "PUT", "/v1/nodes/n2/cordon?dry_run", "", nil},
	{200, "", "DELETE", "/v1/nodes/n2/cordon?dry_run", "", nil},
	{200, "", "POST", "/v1/streams/a/partitions/0/move?dry_run", `{"from":"n1","to":"n2"}`, nil},
	{200, "", "POST", "/v1/streams/a/partitions/0/transfer?dry_run", `{"to":"n2"}`, nil},
}

func (x exchange) request() *http.Request {
	r := newRequest(x.method, x.target, x.body, x.header...)
	r.RemoteAddr = "127.0.0.1:1" // profiles are for this host
	return r
}

// route is the name of the route that takes x.
func (w *world) route(x exchange) string {
	w.t.Helper()
	c := &Call{R: x.request(), s: w.s}
	if err := w.s.router.match(c); err != nil {
		w.t.Fatal(err)
	}
	return x.method + " " + strings.Replace(c.route.Pattern, "...}", "}", 1)
}

// TestEveryDocumentedStatusIsAnswered provokes each status that openapi.json tells of. Those that only an authorizer makes are left out.
func TestEveryDocumentedStatusIsAnswered(t *testing.T) {
	seen := map[string]bool{}
	fresh := func() *world {
		w := newWorld(t)
		w.archives.file = "x"
		w.expect(200, "", "POST", "/v1/streams/a/events", "x", textType)
		w.expect(200, "", "POST", "/v1/streams/full/events/batch", "1", ndjsonType, "Idempotency-Key: k")
		return w
	}
	ask := func(w *world, r *http.Request, status int, code string) {
		t.Helper()
		w.expectOf(r, status, code)
		w.answered(func(route, status string) { seen[route+" "+status] = true })
	}
	for _, x := range append(fine, others...) {
		ask(fresh(), x.request(), x.status, x.code)
	}
	for _, x := range fine {
		w := fresh()
		route := w.route(x)
		for _, f := range faults {
			if !slices.Contains(documented()[route], strconv.Itoa(f.status)) || route == "GET /readyz" && f.status == 503 || route == "GET /metrics" && f.status == 503 {
				continue
			}
			w.fail(f.err)
			spoiled := x
			if f.spoil != nil {
				f.spoil(&spoiled)
			}
			r := spoiled.request()
			if f.status == http.StatusRequestTimeout {
				r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(os.ErrDeadlineExceeded)), 7
			}
			ask(w, r, f.status, f.code)
		}
	}
	for _, path := range []string{"/v1/streams/a/events", "/v1/streams/a/events/batch"} {
		r := httptest.NewRequest("POST", "http://localhost"+path, nil)
		r.Header.Set("Content-Type", "application/x-ndjson")
		ask(fresh(), r, 411, codeLength)
	}
	w := fresh()
	w.mesh.checks = []Check{{Name: "disk"}}
	ask(w, newRequest("GET", "/readyz", ""), 503, codeNotReady)
	for range maxScrapes {
		w.s.scrapes <- struct{}{}
	}
	ask(w, newRequest("GET", "/metrics", ""), 503, "overloaded")
	for route, statuses := range documented() {
		for _, status := range statuses {
			if !seen[route+" "+status] && !slices.Contains([]string{"401", "403", "429"}, status) {
				t.Errorf("%s: %s is documented, and nothing here provokes it", route, status)
			}
		}
	}
}
