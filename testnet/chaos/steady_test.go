package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// steadyReader reads everything through one node at a time and never reconnects by itself: a connection that ends, but for being told to
// go elsewhere, fails the test.
type steadyReader struct {
	l    *load
	name string
	to   chan int // the node to read through from now on
}

// startSteady starts a reader at a node; leave of the load ends it.
func (l *load) startSteady(name string, node int) *steadyReader {
	r := &steadyReader{l: l, name: name, to: make(chan int, 1)}
	r.to <- node
	l.readers.Go(r.run)
	return r
}

// move has the reader go on through another node, and returns when events come from there.
func (r *steadyReader) move(node int) {
	r.l.w.t.Helper()
	r.to <- node
	before := r.l.count(r.name)
	until(r.l.w.t, healWithin, func() error {
		if len(r.to) > 0 || r.l.count(r.name) == before {
			return fmt.Errorf("%s has read nothing through node %d", r.name, node)
		}
		return nil
	})
}

func (r *steadyReader) run() error {
	for {
		select {
		case node := <-r.to:
			if err := r.through(node); err != nil {
				return fmt.Errorf("%s, reading through node %d: %w", r.name, node, err)
			}
		case <-r.l.reading.Done():
			return nil
		}
	}
}

// through reads until the reader is told to go elsewhere, or to leave.
func (r *steadyReader) through(node int) error {
	c := r.l.w.only(node)
	defer c.Close()
	ctx, cancel := context.WithCancelCause(r.l.reading)
	defer cancel(nil)
	watched := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case next := <-r.to:
			r.to <- next // run takes it again
			cancel(errMoved)
		case <-ended:
		}
	}()
	defer func() { close(ended); <-watched }()
	sub, err := c.Subscribe(ctx, r.l.w.stream, client.SubscribeRequest{From: r.l.position(r.name), NoReconnect: true})
	if err == nil {
		defer sub.Close()
	}
	for err == nil {
		var chunk client.Chunk
		chunk, err = sub.Next()
		for i := range chunk.Events {
			r.l.saw(r.name, received(&chunk.Events[i]))
		}
	}
	if context.Cause(ctx) == errMoved || r.l.reading.Err() != nil {
		return nil
	}
	return fmt.Errorf("the connection ended: %w", err)
}

var errMoved = errors.New("told to read through another node")

// position is where a reader goes on.
func (l *load) position(reader string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var parts []string
	for p, next := range l.next[reader] {
		parts = append(parts, fmt.Sprintf("%d:%d", p, next))
	}
	if len(parts) == 0 {
		return "earliest"
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// count is how many events a reader has seen.
func (l *load) count(reader string) (n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, next := range l.next[reader] {
		n += next
	}
	return n
}

// oneByOne adds publishers that each send one event at a time and wait for its acknowledgement, through whichever node answers.
func (l *load) oneByOne(ctx context.Context, seed uint64, name string, publishers int, pace time.Duration) {
	for i := range publishers {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		l.publish.Go(func() error {
			c := l.w.client(i % len(l.w.servers))
			defer c.Close()
			who := name + "-" + strconv.Itoa(i)
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				ev := event{publisher: who, key: who + "/" + strconv.Itoa(int(seq%3)), seq: seq, pad: rng.IntN(200)}
				if err := l.w.send(l.w.t.Context(), c, []event{ev}); err != nil {
					return fmt.Errorf("%s: %w", who, err)
				}
				pause(ctx, pace/2+rand.N(pace))
			}
			return nil
		})
	}
}
