package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func briefDrain(c *Config, _ *Deps) { c.DrainTimeout = 100 * time.Millisecond }

// whileServing has the server told to stop after fn, and wants it gone soon after its drain time.
func (w *world) whileServing(fn func(base string)) {
	w.t.Helper()
	base, cancel, ran := w.run()
	fn(base)
	cancel()
	select {
	case err := <-ran:
		if err != nil {
			w.t.Error(err)
		}
	case <-time.After(20 * time.Second):
		w.t.Fatal("the server does not stop")
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestServerStopsWhileAnExportIsSentThatNobodyReads(t *testing.T) {
	w := newWorld(t, briefDrain)
	w.archives.file = strings.Repeat("x", 64<<20)
	var body io.Closer
	w.whileServing(func(base string) { body = w.openStream(base + "/v1/streams/a/export").Body })
	w.waitLog("an export was cut short")
	_ = body.Close()
}

func TestServerStopsWhileASubscriberReadsNothing(t *testing.T) {
	w := newWorld(t, briefDrain)
	for range 16 { // more than sockets hold
		w.expect(200, "", "POST", "/v1/streams/a/events", strings.Repeat("x", 1_000_000), "Content-Type: text/plain")
	}
	var body io.Closer
	w.whileServing(func(base string) {
		body = w.openStream(base+"/v1/streams/a/events?from=earliest", "Accept: application/x-ndjson").Body
	})
	_ = body.Close()
}

// A node that gives up reaches no catalog any more: a read that waits for one must not keep it from ending.
func TestReadThatIsStillOpeningEndsWithTheDrain(t *testing.T) {
	w := newWorld(t)
	begun := make(chan struct{})
	w.broker.opening = func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	go func() {
		<-begun
		w.s.Drain()
	}()
	w.expect(503, "draining", "GET", "/v1/streams/a/events?from=earliest", "")
}

// waitLog waits for a word in the log.
func (w *world) waitLog(word string) {
	w.t.Helper()
	w.poll("the log says "+word, func() bool { return strings.Contains(w.log.String(), word) })
}

// waiting is a route that waits for the end of its request, and reads nothing of it.
type waiting struct{ begun, ended chan struct{} }

func (r waiting) Routes() []Route {
	return []Route{{Method: "POST", Pattern: "/v1/wait", Access: ScopeOpen, Handle: func(c *Call) error {
		close(r.begun)
		<-c.R.Context().Done()
		close(r.ended)
		return c.R.Context().Err()
	}}}
}

// Nobody looks at a connection while the request's body was not read: only the context tells such a request that the server is gone.
func TestRequestWhoseBodyWasNotReadEndsWithTheServer(t *testing.T) {
	r := waiting{make(chan struct{}), make(chan struct{})}
	w := newWorld(t, briefDrain, func(_ *Config, d *Deps) { d.Routes = []Registrar{r} })
	body, more := io.Pipe()
	answered := make(chan struct{})
	w.whileServing(func(base string) {
		go func() {
			defer close(answered)
			if res, err := http.Post(base+"/v1/wait", "text/plain", body); err == nil {
				_ = res.Body.Close()
			}
		}()
		<-r.begun
	})
	select {
	case <-r.ended:
	case <-time.After(20 * time.Second):
		t.Error("the request goes on without the server")
	}
	_ = more.Close()
	<-answered
}
