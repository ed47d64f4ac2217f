package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tmaxmax/go-sse"

	"github.com/skeinmesh/skein/node/dev"
)

// eventSource is an SSE client of somebody else's making, behind a name that leads to every node: what a browser's EventSource does
// with a DNS name of several addresses.
type eventSource struct {
	servers []string

	mu      sync.Mutex
	next    int // server to dial
	at      string
	resumed []string // Last-Event-ID of each request
}

// dial takes the next server that answers.
func (s *eventSource) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var errs []error
	for range s.servers {
		s.mu.Lock()
		addr := s.servers[s.next%len(s.servers)]
		s.next++
		s.mu.Unlock()
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, addr)
		if err == nil {
			s.mu.Lock()
			s.at = addr
			s.mu.Unlock()
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// RoundTrip notes where each connection resumes.
func (s *eventSource) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.resumed = append(s.resumed, r.Header.Get("Last-Event-ID"))
	s.mu.Unlock()
	t := &http.Transport{DialContext: s.dial, DisableKeepAlives: true}
	return t.RoundTrip(r)
}

// connected waits until the client has made n requests, and returns the address it is connected to.
func (s *eventSource) connected(t *testing.T, n int) string {
	t.Helper()
	var at string
	until(t, healWithin, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if at = s.at; len(s.resumed) < n || at == "" {
			return fmt.Errorf("the client made %d of %d connections", len(s.resumed), n)
		}
		return nil
	})
	return at
}

// TestForeignEventSourceResumesOverADeadNode: a client that knows no more than the SSE standard is connected to a node that is killed,
// goes on at another by Last-Event-ID, and misses and repeats nothing while publishing goes on.
func TestForeignEventSourceResumesOverADeadNode(t *testing.T) {
	s := seed(t)
	m := startMesh(t, dev.Options{Nodes: 3})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 6, 20*time.Millisecond)
	source := &eventSource{servers: m.Addresses(), next: int(s % 3)}
	l.readers.Go(func() error { return l.listen(l.reading, source, "event source") })
	deaths := 1
	if long() {
		deaths = 6
	}
	for i := range deaths {
		at := source.connected(t, i+1)
		w.progress(200)
		victim := index(m, at)
		kill(t, m, victim)
		source.connected(t, i+2)
		w.progress(100)
		restart(t, m, victim)
		waitWhole(t, m)
	}
	w.progress(100)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
	for i, id := range source.resumed {
		if (i == 0) != (id == "") {
			t.Errorf("connection %d of %d resumed with Last-Event-ID %q", i+1, len(source.resumed), id)
		}
	}
	t.Logf("%d nodes died under the client, which connected %d times", deaths, len(source.resumed))
}

func index(m *dev.Mesh, addr string) int {
	for i, a := range m.Addresses() {
		if a == addr {
			return i
		}
	}
	return -1
}

// listen reads with the foreign client until ctx ends.
func (l *load) listen(ctx context.Context, source *eventSource, reader string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+source.servers[0]+"/v1/streams/"+l.w.stream+"/events?from=earliest", nil)
	if err != nil {
		return err
	}
	c := sse.Client{HTTPClient: &http.Client{Transport: source}, Backoff: sse.Backoff{InitialInterval: 50 * time.Millisecond, Multiplier: 1}}
	conn := c.NewConnection(req)
	var broken error
	conn.SubscribeToAll(func(ev sse.Event) {
		switch ev.Type {
		case "":
			var e envelope
			if err := json.Unmarshal([]byte(ev.Data), &e); err != nil {
				broken = errors.Join(broken, fmt.Errorf("data %q: %w", ev.Data, err))
				return
			}
			l.saw(reader, e)
		case "start":
		default:
			broken = errors.Join(broken, fmt.Errorf("event %q: %s", ev.Type, ev.Data))
		}
	})
	err = conn.Connect()
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(broken, err)
}
