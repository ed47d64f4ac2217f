package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
)

const (
	partitions = 4
	wholeIn    = 90 * time.Second // a mesh on a busy host; it takes some seconds on a quiet one
	sendIn     = 60 * time.Second // one batch is repeated so long: an outage is shorter
)

// traffic is a stream with publishers and a reader at work, and all that they saw.
type traffic struct {
	t       *testing.T
	m       *Mesh
	stream  string
	nodes   []int // that take part
	history *check.History
	acked   atomic.Int64

	enough    chan struct{}
	stopped   sync.Once
	publish   errgroup.Group
	leave     context.CancelFunc
	read      errgroup.Group
	mu        sync.Mutex
	next      map[uint32]uint64 // the reader's
	wrong     []string          // values that are not what was sent
	partOfKey map[string]uint32
}

// start starts the five nodes, a stream, three publishers and a reader.
func start(t *testing.T, m *Mesh) *traffic {
	t.Helper()
	began := time.Now()
	do(t, func(ctx context.Context) error { return m.Up(ctx) })
	w := &traffic{t: t, m: m, stream: "traffic", nodes: []int{0, 1, 2, 3, 4}, history: &check.History{}, enough: make(chan struct{}),
		next: map[uint32]uint64{}, partOfKey: map[string]uint32{}}
	w.waitReady(w.nodes...)
	t.Logf("five nodes found a mesh and are ready %.1f s after they were started", time.Since(began).Seconds())
	c := w.client(w.nodes...)
	defer c.Close()
	do(t, func(ctx context.Context) error {
		_, err := c.CreateStream(ctx, w.stream, map[string]any{"partitions": partitions, "replicas": 3}, true)
		return err
	})
	w.waitCopies("")
	for i := range 3 {
		w.publish.Go(func() error { return w.publisher(i) })
	}
	reading, leave := context.WithCancel(t.Context())
	w.leave = leave
	w.read.Go(func() error { return w.reader(reading) })
	t.Cleanup(func() { // where the test ended early
		w.stop()
		leave()
		_ = errors.Join(w.publish.Wait(), w.read.Wait())
	})
	return w
}

func (w *traffic) client(nodes ...int) *client.Client {
	w.t.Helper()
	c, err := w.m.Client(nodes...)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *traffic) waitReady(nodes ...int) {
	w.t.Helper()
	until(w.t, wholeIn, "the nodes are ready", func(ctx context.Context) error {
		for _, i := range nodes {
			if err := w.m.Ready(ctx, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// waitCopies waits until each partition has an owner and three copies, none of them on the node without. Where no node is to be without,
// all of them are there, and the copies of each partition lie in different zones, those of the catalog too.
func (w *traffic) waitCopies(without string) []client.MeshPartition {
	w.t.Helper()
	var parts []client.MeshPartition
	until(w.t, wholeIn, "the partitions have their copies", func(ctx context.Context) (err error) {
		parts, err = w.partitions(ctx)
		whole := 0
		for _, p := range parts {
			there := false
			for _, r := range append(p.Replicas, p.Learners...) {
				there = there || r == without
			}
			if p.Owner != "" && len(p.Replicas) >= 3 && len(p.Learners) == 0 && !there {
				whole++
			}
		}
		if err == nil && whole != partitions {
			err = fmt.Errorf("%d of %d partitions are as they should be: %+v", whole, partitions, parts)
		}
		if err == nil && without == "" {
			err = w.spread(ctx)
		}
		return err
	})
	return parts
}

// partitions asks the nodes in turn.
func (w *traffic) partitions(ctx context.Context) ([]client.MeshPartition, error) {
	c := w.client(w.nodes...)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.Partitions(ctx, w.stream)
}

func (w *traffic) spread(ctx context.Context) error {
	c := w.client(w.nodes...)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return Spread(ctx, c, len(w.nodes), w.stream, Catalog)
}

// value says who an event is, so that a reader can tell.
type value struct {
	Publisher, Key string
	Seq            uint64
}

func (v value) event() client.Event {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain fields always marshal
	}
	return client.Event{Key: []byte(v.Key), HasKey: true, Value: raw, ContentType: "application/json", Source: "traffic/" + v.Publisher,
		ID: v.Key + "/" + strconv.FormatUint(v.Seq, 10)}
}

// publisher sends a small batch every 20 ms or so, with keys of its own and one that all share.
func (w *traffic) publisher(i int) error {
	name, seqs := fmt.Sprintf("publisher-%d", i), map[string]uint64{}
	c := w.client(i, (i+1)%5, (i+2)%5, (i+3)%5, (i+4)%5)
	defer c.Close()
	for n := 0; ; n++ {
		select {
		case <-w.enough:
			return nil
		case <-time.After(20 * time.Millisecond):
		}
		var batch []value
		for j := range 1 + n%3 {
			key := fmt.Sprintf("%s/%d", name, (n+j)%8)
			if n%5 == 0 {
				key = "shared"
			}
			seqs[key]++
			batch = append(batch, value{name, key, seqs[key]})
		}
		if err := w.send(c, batch); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// send publishes events until they are acknowledged, and records it.
func (w *traffic) send(c *client.Client, batch []value) error {
	events := make([]client.Event, len(batch))
	for i, v := range batch {
		events[i] = v.event()
		w.history.Sent(v.Publisher, v.Key, v.Seq)
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(w.t.Context()), sendIn, fmt.Errorf("not acknowledged within %v", sendIn))
	defer cancel()
	results, err := c.PublishBatch(ctx, w.stream, events, client.PublishOptions{Timeout: 5 * time.Second})
	for i, v := range batch {
		if err == nil && results[i].Err == nil {
			w.history.Acked(v.Publisher, v.Key, v.Seq, ring.PartitionID(results[i].Partition), results[i].Offset, results[i].Duplicate)
			w.acked.Add(1)
			w.mu.Lock()
			w.partOfKey[v.Key] = results[i].Partition
			w.mu.Unlock()
			continue
		}
		w.history.Unknown(v.Publisher, v.Key, v.Seq)
		if err == nil {
			err = results[i].Err
		}
	}
	return err
}

// progress waits until n more events are acknowledged.
func (w *traffic) progress(n int64) {
	w.t.Helper()
	goal := w.acked.Load() + n
	until(w.t, sendIn, "events are acknowledged", func(context.Context) error {
		if got := w.acked.Load(); got < goal {
			return fmt.Errorf("%d events more are missing", goal-got)
		}
		return nil
	})
}

func (w *traffic) saw(reader string, ev *client.Received) {
	var v value
	err := json.Unmarshal(ev.Value, &v)
	want := v.event()
	if err != nil || string(want.Value) != string(ev.Value) || ev.Key == nil || *ev.Key != v.Key || ev.Source != want.Source || ev.ID != want.ID {
		w.mu.Lock()
		w.wrong = append(w.wrong, fmt.Sprintf("%s at partition %d offset %d: %.200q", reader, ev.Partition, ev.Offset, ev.Value))
		w.mu.Unlock()
	}
	w.history.Read(reader, ring.PartitionID(ev.Partition), ev.Offset, v.Publisher, v.Key, v.Seq)
}

// reader follows the stream, from another node where its own is gone.
func (w *traffic) reader(ctx context.Context) error {
	c := w.client(2, 3, 4, 0, 1)
	defer c.Close()
	sub, err := c.Subscribe(ctx, w.stream, client.SubscribeRequest{From: "earliest"})
	if err != nil {
		return fmt.Errorf("reader: %w", err)
	}
	defer sub.Close()
	for {
		chunk, err := sub.Next()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reader: %w", err)
		}
		for i := range chunk.Events {
			w.saw("the reader", &chunk.Events[i])
			w.mu.Lock()
			w.next[chunk.Events[i].Partition] = chunk.Events[i].Offset + 1
			w.mu.Unlock()
		}
	}
}

func (w *traffic) stop() { w.stopped.Do(func() { close(w.enough) }) }

// verdict ends the traffic, reads everything back through each of the nodes, and holds the history against the promises.
func (w *traffic) verdict(nodes ...int) {
	w.t.Helper()
	w.stop()
	if err := w.publish.Wait(); err != nil {
		w.t.Errorf("publish: %v", err)
	}
	ends := map[uint32]uint64{}
	for _, i := range nodes {
		w.readBack(i, ends)
	}
	until(w.t, wholeIn, "the reader comes to the end", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for p, end := range ends {
			if w.next[p] < end {
				return fmt.Errorf("it is at offset %d of %d in partition %d", w.next[p], end, p)
			}
		}
		return nil
	})
	w.leave()
	if err := w.read.Wait(); err != nil {
		w.t.Error(err)
	}
	w.history.Final("the reader")
	acked, refused, unknown, reads := w.history.Counts()
	w.t.Logf("%d events acknowledged, %d refused, %d with unknown outcome, %d reads", acked, refused, unknown, reads)
	if acked == 0 || reads < acked {
		w.t.Error("too little was published and read to find anything")
	}
	if found := check.Check(w.history); len(found) > 0 {
		w.t.Errorf("promises are broken:\n%s", check.Format(found))
	}
	if n := len(w.wrong); n > 0 {
		w.t.Errorf("%d values are not what was sent, the first: %s", n, w.wrong[0])
	}
}

func (w *traffic) readBack(node int, ends map[uint32]uint64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), wholeIn)
	defer cancel()
	c := w.client(node)
	defer c.Close()
	sub, err := c.Subscribe(ctx, w.stream, client.SubscribeRequest{From: "earliest", UntilEnd: true})
	if err != nil {
		w.t.Fatalf("read back through %s: %v", w.m.Name(node), err)
	}
	defer sub.Close()
	name := "read back through " + w.m.Name(node)
	for {
		chunk, err := sub.Next()
		for i := range chunk.Events {
			w.saw(name, &chunk.Events[i])
			ends[chunk.Events[i].Partition] = chunk.Events[i].Offset + 1
		}
		if err == io.EOF && ctx.Err() == nil {
			w.history.Final(name)
			return
		}
		if err != nil {
			w.t.Fatalf("%s: %v", name, err)
		}
	}
}
