package bounds

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
)

// flood is many publishers that send more than a mesh can take. Each sends batches of its own keys and numbers. A refused
// event is sent again under its identity a few times, then given up; the next number is sent only after that.
type flood struct {
	m       *mesh
	stream  string
	http    *http.Client
	history check.History
	// timeout is how long a request may wait at the server; tries how often an event is sent; pause what a publisher waits after
	// a refusal, whatever the server asks for.
	timeout, pause time.Duration
	tries          int
	events, bytes  int // of one batch, and of one value

	mu       sync.Mutex
	offered  int64 // bytes of values, each try counted
	acked    int64 // bytes of values
	refusals map[string]int
	wrong    []string // answers that are not as promised
}

func newFlood(m *mesh, stream string) *flood {
	return &flood{m: m, stream: stream, refusals: map[string]int{}, timeout: 10 * time.Second, pause: 20 * time.Millisecond, tries: 3,
		events: 16, bytes: 16 << 10, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}}}
}

// run floods with n publishers, shared out over the nodes, until ctx ends and the last of them has heard of its last batch.
func (f *flood) run(ctx context.Context, n int, nodes ...int) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f.publisher(ctx, i, nodes[i%len(nodes)]) })
	}
	wg.Wait()
	f.http.CloseIdleConnections()
}

type floodEvent struct {
	key string
	seq uint64
}

func (f *flood) publisher(ctx context.Context, i, node int) {
	name := "flood-" + strconv.Itoa(i)
	rnd := rand.New(rand.NewPCG(uint64(i), 0))
	raw := make([]byte, f.bytes*3/4)
	for j := range raw {
		raw[j] = byte(rnd.Uint32())
	}
	value := base64.StdEncoding.EncodeToString(raw) // does not shrink much
	seqs := map[string]uint64{}
	for ctx.Err() == nil {
		todo := make([]*floodEvent, f.events)
		for j := range todo {
			key := name + "-" + strconv.Itoa(rnd.IntN(64))
			seqs[key]++
			todo[j] = &floodEvent{key: key, seq: seqs[key]}
		}
		for try := 0; len(todo) > 0 && try < f.tries; try++ {
			if todo = f.send(name, node, value, todo); len(todo) > 0 {
				time.Sleep(f.pause)
			}
		}
	}
}

// send makes one try and returns the events to send again.
func (f *flood) send(name string, node int, value string, events []*floodEvent) (again []*floodEvent) {
	var body bytes.Buffer
	for _, e := range events {
		fmt.Fprintf(&body, `{"key":%q,"source":"bounds/%s/%s","id":"%d","content_type":"text/plain","value":%q}`+"\n", e.key, name, e.key, e.seq, value)
		f.history.Sent(name, e.key, e.seq)
	}
	f.count(&f.offered, len(events))
	// Requests go on when the flood ends: what became of the last batch is part of the history.
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout+30*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://%s/v1/streams/%s/events/batch?envelope=true&timeout_ms=%d", f.m.Address(node), f.stream, f.timeout.Milliseconds())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, &body)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := f.http.Do(req)
	if err != nil {
		return f.unknown(name, events, "connection")
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return f.unknown(name, events, "connection")
	}
	return f.judge(name, resp, answer, events)
}

type problem struct {
	Code         string `json:"code"`
	Status       int    `json:"status"`
	Retryable    bool   `json:"retryable"`
	RetryAfterMS int64  `json:"retry_after_ms"`
	Detail       string `json:"detail"`
}

// judge notes what an answer says of each event.
func (f *flood) judge(name string, resp *http.Response, answer []byte, events []*floodEvent) (again []*floodEvent) {
	if resp.StatusCode != http.StatusOK {
		var p problem
		if err := json.Unmarshal(answer, &p); err != nil {
			f.complain("%s with %q", resp.Status, answer)
		}
		if resp.StatusCode == http.StatusServiceUnavailable && (resp.Header.Get("Retry-After") == "" || p.RetryAfterMS <= 0) {
			f.complain("503 %s without Retry-After: %q", p.Code, answer)
		}
		for _, e := range events {
			again = f.refuse(name, e, p, again)
		}
		return again
	}
	var a struct {
		Results []struct {
			Partition uint32
			Offset    uint64
			Duplicate bool
			Error     *problem
		}
		Error *problem
	}
	if err := json.Unmarshal(answer, &a); err != nil || len(a.Results) > len(events) || len(a.Results) < len(events) && a.Error == nil {
		f.complain("%d results for %d events: %v", len(a.Results), len(events), err)
		return f.unknown(name, events, "broken answer")
	}
	for i, e := range events {
		switch {
		case i >= len(a.Results):
			again = f.refuse(name, e, *a.Error, again)
		case a.Results[i].Error != nil:
			again = f.refuse(name, e, *a.Results[i].Error, again)
		default:
			f.history.Acked(name, e.key, e.seq, ring.PartitionID(a.Results[i].Partition), a.Results[i].Offset, a.Results[i].Duplicate)
			f.count(&f.acked, 1)
		}
	}
	return again
}

// refuse notes one event that was not acknowledged.
func (f *flood) refuse(name string, e *floodEvent, p problem, again []*floodEvent) []*floodEvent {
	f.mu.Lock()
	f.refusals[fmt.Sprintf("%d %s", p.Status, p.Code)]++
	f.mu.Unlock()
	if p.Status == http.StatusGatewayTimeout || p.Code == "outcome-unknown" {
		f.history.Unknown(name, e.key, e.seq)
	} else {
		f.history.Refused(name, e.key, e.seq)
	}
	return append(again, e)
}

func (f *flood) unknown(name string, events []*floodEvent, why string) []*floodEvent {
	f.mu.Lock()
	f.refusals[why] += len(events)
	f.mu.Unlock()
	for _, e := range events {
		f.history.Unknown(name, e.key, e.seq)
	}
	return events
}

func (f *flood) count(to *int64, events int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*to += int64(events * f.bytes)
}

func (f *flood) complain(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) < 10 {
		f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
	}
}

// verify reads everything back through each node and holds the history against the promises.
func (f *flood) verify() {
	t := f.m.t
	t.Helper()
	for _, w := range f.wrong {
		t.Errorf("an answer that was not promised: %s", w)
	}
	for node := range f.m.Nodes() {
		if err := f.read(node); err != nil {
			t.Fatalf("read through %s: %v", f.m.Name(node), err)
		}
	}
	if v := check.Check(&f.history); len(v) > 0 {
		t.Errorf("promises are broken:\n%s", check.Format(v))
	}
}

func (f *flood) read(node int) error {
	ctx, cancel := context.WithTimeout(f.m.t.Context(), 3*time.Minute)
	defer cancel()
	sub, err := f.m.at(node).Subscribe(ctx, f.stream, client.SubscribeRequest{From: "earliest", UntilEnd: true})
	if err != nil {
		return err
	}
	defer sub.Close()
	reader := "reader at " + f.m.Name(node)
	for {
		chunk, err := sub.Next()
		if err == io.EOF {
			f.history.Final(reader)
			return nil
		}
		if err != nil {
			return err
		}
		for i := range chunk.Events {
			ev := &chunk.Events[i]
			rest, ok := strings.CutPrefix(ev.Source, "bounds/")
			name, key, cut := strings.Cut(rest, "/")
			seq, err := strconv.ParseUint(ev.ID, 10, 64)
			if !ok || !cut || err != nil || len(ev.Value) != base64.StdEncoding.EncodedLen(f.bytes*3/4) {
				return fmt.Errorf("a strange event: %s/%s with %d bytes", ev.Source, ev.ID, len(ev.Value))
			}
			f.history.Read(reader, ring.PartitionID(ev.Partition), ev.Offset, name, key, seq)
		}
	}
}
