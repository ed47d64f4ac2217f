package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
	"github.com/skeinmesh/skein/ring"
)

// TestSigtermFailsNoPublish stops each node with SIGTERM in turn, and starts it again. Publishers that ask another address where one does
// not answer, or says that it stops, are never told anything else: no publish fails.
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

// try asks one address. elsewhere says that this is no failure: nobody listens there, or the node stops.
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
		return true, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return true, err
	}
	if resp.StatusCode > 299 {
		refused := &statusError{resp.StatusCode, body}
		return refused.code() == "draining", refused
	}
	return false, p.acked(ev, body)
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
