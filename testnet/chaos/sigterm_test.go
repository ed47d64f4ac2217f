package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
)

// slowestPublish is how long a publish may take while nodes are stopped, all addresses that it asked together.
const slowestPublish = 5 * time.Second

// TestSigtermFailsNoPublish stops each node with SIGTERM in turn, and starts it again. Publishers that ask another address where nobody
// listens, the connection ends before an answer, or the node says that it stops, are never told anything else: no publish fails. None is
// left without an answer until it gives up, either, or with a part of one.
func TestSigtermFailsNoPublish(t *testing.T) {
	s := seed(t)
	rounds, publishers := 1, 8
	if long() {
		rounds, publishers = 5, 32
	}
	m := startMesh(t, dev.Options{Nodes: 3})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 0, time.Second)
	l.startReaders()
	l.watchOwners()
	p := plainPublishers{w: w}
	asking, enough := context.WithCancel(t.Context())
	defer enough()
	for i := range publishers {
		l.publish.Go(func() error { return p.publish(asking, i) })
	}
	for range rounds {
		for node := range m.Nodes() {
			w.progress(10 * publishers)
			if err := m.Shutdown(node); err != nil {
				t.Fatal(err)
			}
			w.progress(10 * publishers)
			restart(t, m, node)
			waitWhole(t, m)
		}
	}
	w.progress(10 * publishers)
	enough()
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
	took := p.window()
	t.Logf("%d publishes over %d stops, %d of them asked a second address; slowest %v, p99 %v", len(took), rounds*m.Nodes(), p.elsewhere,
		took[len(took)-1].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond))
	if slowest := took[len(took)-1]; long() && slowest > slowestPublish {
		t.Errorf("the slowest publish took %v, more than %v", slowest.Round(time.Millisecond), slowestPublish)
	}
}

// plainPublishers publish with one request for an event, and repeat nothing that failed: they only ask another address.
type plainPublishers struct {
	w *world

	mu        sync.Mutex
	took      []time.Duration
	elsewhere int
}

// window is how long the publishes since the last call took, in order of size.
func (p *plainPublishers) window() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := p.took
	p.took = nil
	slices.Sort(took)
	return took
}

func (p *plainPublishers) publish(asking context.Context, i int) error {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	hc := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	at := i
	for seq := uint64(1); asking.Err() == nil; seq++ {
		ev := event{publisher: fmt.Sprintf("plain-%d", i), key: fmt.Sprintf("plain-%d/%d", i, seq%3), seq: seq, pad: 100}
		begin := time.Now()
		p.w.history.Sent(ev.publisher, ev.key, ev.seq)
		tried := 0
		for {
			elsewhere, err := p.try(hc, p.w.servers[at%len(p.w.servers)], ev)
			if err == nil {
				break
			}
			if tried++; !elsewhere || tried > 3*len(p.w.servers) {
				p.w.history.Unknown(ev.publisher, ev.key, ev.seq)
				return fmt.Errorf("%s: publishing event %d failed at address %d, after %v: %w", ev.publisher, seq, at%len(p.w.servers), time.Since(begin), err)
			}
			at++
			p.mu.Lock()
			p.elsewhere++
			p.mu.Unlock()
		}
		p.mu.Lock()
		p.took = append(p.took, time.Since(begin))
		p.mu.Unlock()
		pause(asking, 10*time.Millisecond)
	}
	return nil
}

// try asks one address. elsewhere says that this is no failure: the client knows at once that it is to ask another one.
func (p *plainPublishers) try(hc *http.Client, addr string, ev event) (elsewhere bool, err error) {
	req, err := http.NewRequestWithContext(p.w.t.Context(), http.MethodPost, "http://"+addr+"/v1/streams/"+p.w.stream+"/events?key="+ev.key, bytes.NewReader(ev.value()))
	if err != nil {
		return false, err
	}
	out := ev.publish()
	req.Header.Set("Content-Type", out.ContentType)
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Type": "chaos", "Ce-Source": out.Source, "Ce-Id": out.ID} {
		req.Header.Set(name, value)
	}
	resp, err := hc.Do(req)
	if err != nil {
		return hungUp(err), err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return false, fmt.Errorf("an answer of status %d that broke off after %d bytes: %w", resp.StatusCode, len(body), err)
	}
	if resp.StatusCode > 299 {
		refused := &statusError{resp.StatusCode, body}
		later := resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
		return later && refused.code() == "draining", refused
	}
	return false, p.acked(ev, body)
}

// hungUp reports whether nobody listens, or the connection ended before an answer began. A timeout is neither.
func hungUp(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (p *plainPublishers) acked(ev event, body []byte) error {
	var ack struct {
		Partition uint32
		Offset    uint64
		Duplicate bool
	}
	if err := json.Unmarshal(body, &ack); err != nil {
		return fmt.Errorf("an acknowledgement of %d bytes: %w", len(body), err)
	}
	p.w.history.Acked(ev.publisher, ev.key, ev.seq, ring.PartitionID(ack.Partition), ack.Offset, ack.Duplicate)
	p.w.acked.Add(1)
	return nil
}

// TestPublisherGoesElsewhereOnlyWhereItKnowsAtOnce holds the publishers of these tests to what they may take for no failure.
func TestPublisherGoesElsewhereOnlyWhereItKnowsAtOnce(t *testing.T) {
	answer := func(status int, retryAfter, body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			if retryAfter != "" {
				rw.Header().Set("Retry-After", retryAfter)
			}
			rw.WriteHeader(status)
			_, _ = io.WriteString(rw, body)
		}
	}
	breakOff := func(before string, linger int) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, before)
			_ = conn.(*net.TCPConn).SetLinger(linger)
		}
	}
	stops := `{"code":"draining"}`
	for _, c := range []struct {
		what      string
		node      http.HandlerFunc // nil: nobody listens
		elsewhere bool
	}{
		{"nobody listens", nil, true},
		{"the connection ends before an answer", breakOff("", -1), true},
		{"the connection is reset before an answer", breakOff("", 0), true},
		{"the node stops", answer(503, "1", stops), true},
		{"the node stops and says no time", answer(503, "", stops), false},
		{"no quorum", answer(503, "1", `{"code":"no-quorum"}`), false},
		{"outcome unknown", answer(504, "", `{"code":"outcome-unknown"}`), false},
		{"an answer breaks off in its head", breakOff("HTTP/1.1 200 OK\r\nContent-", -1), false},
		{"an answer breaks off in its body", breakOff("HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{", -1), false},
		{"no answer in time", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() }, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			node := httptest.NewServer(c.node)
			defer node.Close()
			if c.node == nil {
				node.Close()
			}
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			p := plainPublishers{w: &world{t: t, stream: "chaos", history: &check.History{}}}
			hc := &http.Client{Transport: transport, Timeout: healWithin}
			if !c.elsewhere {
				hc.Timeout = 200 * time.Millisecond
			}
			elsewhere, err := p.try(hc, node.Listener.Addr().String(), event{publisher: "plain", key: "k", seq: 1})
			if err == nil || elsewhere != c.elsewhere {
				t.Errorf("elsewhere: %v, want %v; error %v", elsewhere, c.elsewhere, err)
			}
		})
	}
}
