package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/ring"
)

// sendWithin is how long a batch is repeated: an outage is far shorter, so that whoever is not served by then is stuck.
const sendWithin = 2 * time.Minute

// send publishes events of one publisher, again under the same identities until they are acknowledged, and records it.
func (w *world) send(ctx context.Context, c *client.Client, events []event) error {
	out := make([]client.Event, len(events))
	for i, ev := range events {
		out[i] = ev.publish()
		w.history.Sent(ev.publisher, ev.key, ev.seq)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sendWithin, fmt.Errorf("not acknowledged within %v", sendWithin))
	defer cancel()
	results, err := c.PublishBatch(ctx, w.stream, out, client.PublishOptions{Timeout: 5 * time.Second})
	for i, ev := range events {
		switch {
		case err != nil:
			w.history.Unknown(ev.publisher, ev.key, ev.seq)
		case results[i].Err != nil:
			w.history.Unknown(ev.publisher, ev.key, ev.seq)
			err = results[i].Err
		default:
			r := results[i]
			w.history.Acked(ev.publisher, ev.key, ev.seq, ring.PartitionID(r.Partition), r.Offset, r.Duplicate)
			w.acked.Add(1)
			w.mu.Lock()
			w.keyOf[r.Partition] = ev.key
			w.mu.Unlock()
		}
	}
	return err
}

// load is a set of publishers and readers at work.
type load struct {
	w       *world
	enough  context.CancelFunc // publishers stop after what they are sending
	publish *errgroup.Group
	reading context.Context
	leave   context.CancelFunc // readers stop
	readers *errgroup.Group

	mu   sync.Mutex
	next map[string]map[uint32]uint64 // reader -> partition -> offset to come
}

// startLoad starts publishers, each with a few keys of its own and some that all share, and no readers yet. Every pace or so each
// sends a batch of 1 to 8 events through its own favourite node.
func (w *world) startLoad(seed uint64, publishers int, pace time.Duration) *load {
	l := &load{w: w, publish: &errgroup.Group{}, readers: &errgroup.Group{}, next: map[string]map[uint32]uint64{}}
	asking, enough := context.WithCancel(w.t.Context())
	l.enough = enough
	l.reading, l.leave = context.WithCancel(w.t.Context())
	for i := range publishers {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		l.publish.Go(func() error { return w.publisher(asking, i, rng, pace) })
	}
	return l
}

func (w *world) publisher(asking context.Context, i int, rng *rand.Rand, pace time.Duration) error {
	name := fmt.Sprintf("publisher-%02d", i)
	c := w.client(i % len(w.servers))
	defer c.Close()
	seqs := map[string]uint64{}
	for asking.Err() == nil {
		batch := make([]event, 1+rng.IntN(8))
		for j := range batch {
			key := fmt.Sprintf("%s/%d", name, rng.IntN(4))
			if rng.IntN(4) == 0 {
				key = fmt.Sprintf("shared/%d", rng.IntN(16))
			}
			seqs[key]++
			batch[j] = event{publisher: name, key: key, seq: seqs[key], pad: rng.IntN(400)}
		}
		if err := w.send(w.t.Context(), c, batch); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		pause(asking, pace/2+rand.N(pace))
	}
	return nil
}

// saw notes how far a reader has come.
func (l *load) saw(reader string, ev envelope) {
	l.w.read(reader, ev)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next[reader] == nil {
		l.next[reader] = map[uint32]uint64{}
	}
	l.next[reader][ev.Partition] = ev.Offset + 1
}

// startReaders starts two readers that go on over the deaths of nodes: one through the client's NDJSON subscription, one by pages of
// JSON, each page from another node.
func (l *load) startReaders() {
	l.readers.Go(func() error { return l.followLines(l.reading, "lines") })
	l.readers.Go(func() error { return l.turnPages(l.reading, "pages") })
}

// readersProgress waits until each of the two has read n more events.
func (l *load) readersProgress(n uint64) {
	l.w.t.Helper()
	seen := func(reader string) (sum uint64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, next := range l.next[reader] {
			sum += next
		}
		return sum
	}
	for _, reader := range []string{"lines", "pages"} {
		goal := seen(reader) + n
		until(l.w.t, healWithin, func() error {
			if got := seen(reader); got < goal {
				return fmt.Errorf("the reader of %s has %d of %d events", reader, got, goal)
			}
			return nil
		})
	}
}

// watchOwners asks all nodes who owns what in which term, for as long as readers read: no term may have two owners.
func (l *load) watchOwners() {
	for node := range l.w.servers {
		l.readers.Go(func() error {
			c := l.w.only(node)
			defer c.Close()
			for l.reading.Err() == nil {
				ctx, cancel := context.WithTimeout(l.reading, time.Second)
				parts, err := c.Partitions(ctx, l.w.stream)
				cancel()
				for _, p := range parts {
					// A node that has not heard the owner's name gives its id, and adds some of it to the name of one that has a former self.
					owner, _, _ := strings.Cut(p.Owner, "~")
					if _, noID := ring.ParseNodeID(owner); err == nil && owner != "" && noID != nil {
						l.w.history.Owned(ring.PartitionID(p.Partition), p.Term, owner)
					}
				}
				pause(l.reading, 50*time.Millisecond)
			}
			return nil
		})
	}
}

func (l *load) followLines(ctx context.Context, reader string) error {
	c := l.w.client(0)
	defer c.Close()
	sub, err := c.Subscribe(ctx, l.w.stream, client.SubscribeRequest{From: "earliest"})
	if err != nil {
		return fmt.Errorf("reader of lines: %w", err)
	}
	defer sub.Close()
	for {
		chunk, err := sub.Next()
		for i := range chunk.Events {
			l.saw(reader, received(&chunk.Events[i]))
		}
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reader of lines: %w", err)
		}
	}
}

func received(ev *client.Received) envelope {
	return envelope{Partition: ev.Partition, Offset: ev.Offset, Key: ev.Key, Source: ev.Source, ID: ev.ID, Value: ev.Value}
}

func (l *load) turnPages(ctx context.Context, reader string) error {
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	cursor := "earliest"
	for i := 0; ctx.Err() == nil; i++ {
		events, next, err := l.w.page(ctx, hc, i%len(l.w.servers), url.Values{"from": {cursor}, "wait_ms": {"200"}, "limit": {"1000"}})
		if err != nil { // the node is dead, starting, or without an answer: the next one goes on from the same place
			pause(ctx, 20*time.Millisecond)
			continue
		}
		for _, ev := range events {
			l.saw(reader, ev)
		}
		cursor = next
	}
	return nil
}

// page asks one node for one page. A status above 299 is an error that names it.
func (w *world) page(ctx context.Context, hc *http.Client, node int, q url.Values) ([]envelope, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.servers[node]+"/v1/streams/"+w.stream+"/events?"+q.Encode(), nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, "", err
	}
	if resp.StatusCode > 299 {
		return nil, "", &statusError{resp.StatusCode, body}
	}
	var page struct {
		Events []envelope `json:"events"`
		Next   string     `json:"next_cursor"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, "", fmt.Errorf("a page of %d bytes: %w", len(body), err)
	}
	return page.Events, page.Next, nil
}

// statusError is an answer that says no.
type statusError struct {
	status int
	body   []byte
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

func (e *statusError) code() string {
	var p struct{ Code string }
	_ = json.Unmarshal(e.body, &p)
	return p.Code
}

// stopPublishing lets the publishers finish what they are sending.
func (l *load) stopPublishing() {
	l.w.t.Helper()
	l.enough()
	if err := l.publish.Wait(); err != nil {
		l.w.t.Errorf("publish: %v", err)
	}
}

// readBack reads everything through each node, from the replica that it has.
func (w *world) readBack() map[uint32]uint64 {
	w.t.Helper()
	ends := make([]map[uint32]uint64, len(w.servers))
	var g errgroup.Group
	for i := range w.servers {
		g.Go(func() (err error) {
			if ends[i], err = w.readThrough(i); err != nil {
				err = fmt.Errorf("read back through node %d: %w", i, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		w.t.Fatal(err)
	}
	return ends[0]
}

func (w *world) readThrough(node int) (map[uint32]uint64, error) {
	reader := fmt.Sprintf("read back %s through node %d", w.stream, node)
	ends, err := w.readToEnd(reader, node)
	if err == nil {
		w.history.Final(reader)
	}
	return ends, err
}

// readToEnd reads through one node all that is there by now, as a reader of that name, and tells where it ends.
func (w *world) readToEnd(reader string, node int) (map[uint32]uint64, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), healWithin)
	defer cancel()
	c := w.only(node)
	defer c.Close()
	sub, err := c.Subscribe(ctx, w.stream, client.SubscribeRequest{From: "earliest", UntilEnd: true, NoReconnect: true})
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	next := map[uint32]uint64{}
	for {
		chunk, err := sub.Next()
		for i := range chunk.Events {
			ev := received(&chunk.Events[i])
			w.read(reader, ev)
			next[ev.Partition] = ev.Offset + 1
		}
		switch {
		case err == io.EOF:
			return next, nil
		case err != nil:
			return nil, err
		}
	}
}

// finishReaders waits until the readers have come to the ends, and holds them to have seen everything.
func (l *load) finishReaders(ends map[uint32]uint64) {
	l.w.t.Helper()
	if err := poll(healWithin, func() error { return l.behind(ends) }); err != nil {
		l.w.t.Errorf("a reader did not come to the end: %v", err)
	}
	l.leave()
	if err := l.readers.Wait(); err != nil {
		l.w.t.Error(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for reader := range l.next {
		l.w.history.Final(reader)
	}
}

func (l *load) behind(ends map[uint32]uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.next) == 0 {
		return errors.New("no reader has seen anything")
	}
	for reader, next := range l.next {
		for p, end := range ends {
			if next[p] < end {
				return fmt.Errorf("%s is at offset %d of %d in partition %d", reader, next[p], end, p)
			}
		}
	}
	return nil
}
