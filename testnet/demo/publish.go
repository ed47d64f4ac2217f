package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/orders"
)

const (
	batchMost   = 50
	sendFor     = 30 * time.Second // how long one batch is repeated
	sendTimeout = 5 * time.Second  // how long one try may wait at the server
)

// event is one event with the identity by which it is known again.
type event struct {
	publisher, key string
	seq            uint64
	value          []byte
}

func identity(publisher, key string, seq uint64) (source, id string) {
	return "demo/" + publisher + "/" + key, strconv.FormatUint(seq, 10)
}

// parseIdentity is the reverse of identity; keys may hold slashes, publishers do not.
func parseIdentity(source, id string) (publisher, key string, seq uint64, ok bool) {
	rest, found := strings.CutPrefix(source, "demo/")
	publisher, key, cut := strings.Cut(rest, "/")
	seq, err := strconv.ParseUint(id, 10, 64)
	return publisher, key, seq, found && cut && err == nil
}

// source is one publisher's events.
type source struct {
	name        string
	contentType string
	n           int     // how many; endless until s.enough
	share       float64 // of the rate
	next        func() event
}

// endless is the number of events of a source that goes on until it is told to stop.
const endless = math.MaxInt

// sources shares the events out: each publisher has keys that no other has.
func (s *story) sources() ([]source, error) {
	if s.o.input != "" {
		return s.fileSources()
	}
	out := make([]source, s.o.publishers)
	for i := range out {
		name := fmt.Sprintf("shop-%d", i)
		gen := orders.New(orders.Config{Seed: s.o.seed + uint64(i), Prefix: name + "-"})
		out[i] = source{name: name, contentType: "application/json", n: share(s.o.events, s.o.publishers, i), share: 1 / float64(len(out))}
		if s.o.endless() {
			out[i].n = endless
		}
		out[i].next = func() event {
			ev := gen.Next()
			return event{publisher: name, key: ev.Key, seq: ev.Seq, value: ev.Value}
		}
	}
	return out, nil
}

func share(total, parts, i int) int { return total*(i+1)/parts - total*i/parts }

// fileSources gives each line to the publisher of its key. Where events are without end, the file begins anew after its last line.
func (s *story) fileSources() ([]source, error) {
	expr := s.o.keyRegexp
	if expr == "" {
		expr = `\S+`
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(s.o.input)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	queues := make([][]event, s.o.publishers)
	keys := map[string]bool{}
	total := 0
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	sc.Split(wholeLines)
	for (total < s.o.events || s.o.endless()) && sc.Scan() {
		line := append([]byte(nil), sc.Bytes()...)
		key := "none"
		if m := re.FindSubmatch(line); len(m) > 1 {
			key = string(m[1])
		} else if len(m) == 1 {
			key = string(m[0])
		}
		h := fnv.New32a()
		h.Write([]byte(key))
		p := int(h.Sum32() % uint32(len(queues)))
		keys[key] = true
		queues[p] = append(queues[p], event{publisher: "file-" + strconv.Itoa(p), key: key, value: line})
		total++
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.o.input, err)
	}
	if total < 100 {
		return nil, fmt.Errorf("%s has %d lines; 100 or more are wanted", s.o.input, total)
	}
	s.say("%s: %d lines, %d keys", s.o.input, total, len(keys))
	out := make([]source, len(queues))
	for i, q := range queues {
		out[i] = source{name: "file-" + strconv.Itoa(i), contentType: client.TextPlain, n: len(q), share: float64(len(q)) / float64(total)}
		if s.o.endless() && len(q) > 0 {
			out[i].n = endless
		}
		seqs, at := map[string]uint64{}, 0
		out[i].next = func() event {
			ev := q[at%len(q)]
			at++
			seqs[ev.key]++
			ev.seq = seqs[ev.key]
			return ev
		}
	}
	if !s.o.endless() {
		s.o.events = total
	}
	return out, nil
}

// wholeLines cuts at line feeds alone: a carriage return belongs to its line.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// publish sends one publisher's events, a batch at a time, at its share of the rate.
func (s *story) publish(ctx context.Context, i int, src *source) error {
	c, err := s.mesh.Client(i % s.mesh.Nodes())
	if err != nil {
		return err
	}
	defer c.Close()
	begin := time.Now()
	for sent := 0; sent < src.n; {
		select {
		case <-s.enough:
			return nil
		default:
		}
		n := min(1+(sent*7+i)%batchMost, src.n-sent) // batches of all sizes
		batch := make([]event, n)
		for j := range batch {
			batch[j] = src.next()
		}
		if err := s.send(ctx, c, batch, src.contentType); err != nil {
			return fmt.Errorf("%s: %w", src.name, err)
		}
		sent += n
		if s.o.rate > 0 {
			due := time.Duration(float64(sent) / src.share / float64(s.o.rate) * float64(time.Second))
			if err := sleep(ctx, due-time.Since(begin)); err != nil {
				return err
			}
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send publishes a batch, again and again under the same identities until all of it is acknowledged, and records it all.
func (s *story) send(ctx context.Context, c *client.Client, batch []event, contentType string) error {
	events := make([]client.Event, len(batch))
	s.mu.Lock()
	for i, ev := range batch {
		src, id := identity(ev.publisher, ev.key, ev.seq)
		events[i] = client.Event{Key: []byte(ev.key), HasKey: true, Value: ev.value, ContentType: contentType, Source: src, ID: id}
		s.values[src+"#"+id] = sha256.Sum256(ev.value)
	}
	s.mu.Unlock()
	for _, ev := range batch {
		s.history.Sent(ev.publisher, ev.key, ev.seq)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sendFor, fmt.Errorf("not acknowledged within %v", sendFor))
	defer cancel()
	results, err := c.PublishBatch(ctx, s.stream, events, client.PublishOptions{Timeout: sendTimeout})
	if err != nil {
		for _, ev := range batch {
			s.history.Unknown(ev.publisher, ev.key, ev.seq)
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range results {
		ev := batch[i]
		if r.Err != nil {
			s.history.Unknown(ev.publisher, ev.key, ev.seq)
			err = fmt.Errorf("%w: %w", errUnfinished, r.Err)
			continue
		}
		s.history.Acked(ev.publisher, ev.key, ev.seq, ring.PartitionID(r.Partition), r.Offset, r.Duplicate)
		s.acked++
		s.parts[r.Partition]++
		s.sample[r.Partition] = ev.key
	}
	return err
}
