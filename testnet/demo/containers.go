package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/testnet/containers"
)

// hosts is the testnet as the story sees it.
type hosts struct {
	*containers.Mesh
	n int // how many take part; the joiner comes last
}

func (h *hosts) Nodes() int { return h.n }

func (h *hosts) Client(prefer int) (*client.Client, error) {
	var order []int
	for i := range h.n {
		order = append(order, (prefer+i)%h.n)
	}
	return h.Mesh.Client(order...)
}

const (
	joiner    = containers.Hosts - 1   // the node that comes and goes
	cutOff    = containers.Founded - 1 // the node whose network cable is pulled
	cutFor    = 5 * time.Second
	actAcks   = 300              // acknowledged events between two acts
	actWithin = 90 * time.Second // how long each act may take
)

// tellContainers plays on the testnet: while publishers and readers are at work a node joins, one is cut off and comes back, one is
// killed, replaced and started again, and the one that joined is drained and taken away.
func (s *story) tellContainers(ctx context.Context) (broken bool, err error) {
	engine, err := containers.Find(ctx)
	if err != nil {
		return false, err
	}
	h := &hosts{Mesh: engine.Mesh(containers.Options{Project: s.o.project, File: composeFile(), Ports: s.o.ports}), n: containers.Founded}
	s.mesh = h
	// A stream of its own for each run: the testnet lives on.
	s.stream = "demo-" + time.Now().UTC().Format("20060102-150405")
	if err := s.act(ctx, "the five nodes are ready", h.allReady); err != nil {
		return false, fmt.Errorf("%w (is the testnet up? make testnet-up)", err)
	}
	s.say("%d nodes in %d zones, each in a container of its own (docker %s, %s)", h.n, containers.Zones, engine.Version, strings.Join(engine.Compose, " "))
	c, err := h.Client(0)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := s.makeStream(ctx, c); err != nil {
		return false, err
	}
	spread := func(ctx context.Context) error { return s.spread(ctx, h.n, c) }
	if err := s.act(ctx, "the copies of each partition lie in different zones", spread); err != nil {
		return false, err
	}
	sources, err := s.sources()
	if err != nil {
		return false, err
	}
	told, corrupt, err := s.underLoad(ctx, sources, func(ctx context.Context) ([]string, error) { return s.hostActs(ctx, h, c) })
	if err != nil {
		return false, err
	}
	bad, err := s.readBack(ctx)
	if err != nil {
		return false, err
	}
	return s.verdict(corrupt+bad, told...), nil
}

// composeFile lies beside this package, in the source tree that it was built from.
func composeFile() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "compose.yaml")
}

// act runs one step within its time, and names it where it fails.
func (s *story) act(ctx context.Context, what string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, actWithin, fmt.Errorf("not done within %v", actWithin))
	defer cancel()
	if err := f(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// underLoad plays the acts while publishers publish and two readers follow, then lets both come to their ends.
func (s *story) underLoad(ctx context.Context, sources []source, acts func(context.Context) ([]string, error)) (told []string, corrupt int, err error) {
	s.say("%d publishers and 2 readers are at work until the end, over all nodes", len(sources))
	f := &followers{s: s, next: map[string]map[uint32]uint64{}}
	reading, leave := context.WithCancel(ctx)
	defer leave()
	readers, rctx := errgroup.WithContext(reading)
	for i := range 2 {
		readers.Go(func() error { return f.follow(rctx, i) })
	}
	publishers, pctx := errgroup.WithContext(rctx)
	for i := range sources {
		publishers.Go(func() error { return s.publish(pctx, i, &sources[i]) })
	}
	publishers.Go(func() (err error) {
		defer close(s.enough)
		told, err = acts(pctx)
		return err
	})
	if err := publishers.Wait(); err != nil {
		leave()
		return nil, 0, errors.Join(err, readers.Wait())
	}
	s.say("All %d events are acknowledged", s.ackedSoFar())
	if err := s.act(ctx, "the readers come to the end", f.caughtUp); err != nil {
		return nil, 0, err
	}
	leave()
	if err := readers.Wait(); err != nil {
		return nil, 0, err
	}
	return append(told, fmt.Sprintf("Two readers followed from the first event to the last, and came back %d times from a node that went away.", f.lost)),
		f.corrupt, nil
}

func (s *story) ackedSoFar() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked
}

// followers read while things happen.
type followers struct {
	s *story

	mu      sync.Mutex
	next    map[string]map[uint32]uint64 // reader -> partition -> offset to come
	corrupt int
	lost    int // connections
}

// follow reads the stream until ctx ends, from another node where its own is gone.
func (f *followers) follow(ctx context.Context, i int) error {
	s, name := f.s, fmt.Sprintf("follower %d", i)
	var cfg client.Config
	for j := range s.mesh.Nodes() {
		cfg.Servers = append(cfg.Servers, s.mesh.Address((2*i+j)%s.mesh.Nodes()))
	}
	cfg.OnRetry = func(error, time.Duration) {
		f.mu.Lock()
		f.lost++
		f.mu.Unlock()
	}
	c, err := client.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	sub, err := c.Subscribe(ctx, s.stream, client.SubscribeRequest{From: "earliest"})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer sub.Close()
	for {
		chunk, err := sub.Next()
		if ctx.Err() != nil {
			s.history.Final(name)
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		f.saw(name, chunk.Events)
	}
}

func (f *followers) saw(name string, events []client.Received) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next[name] == nil {
		f.next[name] = map[uint32]uint64{}
	}
	for i := range events {
		ev := &events[i]
		if !f.s.read(name, ev) {
			f.corrupt++
		}
		f.next[name][ev.Partition] = ev.Offset + 1
	}
}

// caughtUp returns when both readers have seen as many events as were acknowledged; the checkers say whether it was the right ones.
func (f *followers) caughtUp(ctx context.Context) error {
	for {
		acked, behind := uint64(f.s.ackedSoFar()), ""
		f.mu.Lock()
		for name, next := range f.next {
			seen := uint64(0)
			for _, n := range next {
				seen += n
			}
			if seen < acked {
				behind = fmt.Sprintf("%s has %d of %d events", name, seen, acked)
			}
		}
		f.mu.Unlock()
		if behind == "" {
			return nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s: %w", behind, err)
		}
	}
}

// hostActs is what happens to the hosts. Between the acts events flow.
func (s *story) hostActs(ctx context.Context, h *hosts, c *client.Client) (told []string, err error) {
	acts := []struct {
		name string
		play func(context.Context, *hosts, *client.Client) (string, error)
	}{
		{"join", s.join}, {"cut and heal", s.cutAndHeal}, {"kill", s.killHost}, {"drain", s.drain},
	}
	for _, a := range acts {
		if err := s.act(ctx, "events flow", func(ctx context.Context) error { return s.waitForAcks(ctx, s.ackedSoFar()+actAcks) }); err != nil {
			return nil, err
		}
		var line string
		err := s.act(ctx, a.name, func(ctx context.Context) (err error) {
			line, err = a.play(ctx, h, c)
			return err
		})
		if err != nil {
			return nil, err
		}
		told = append(told, line)
	}
	return told, s.act(ctx, "events flow", func(ctx context.Context) error { return s.waitForAcks(ctx, s.ackedSoFar()+actAcks) })
}

// join starts a sixth node with the same configuration, and waits until it holds its share of the copies.
func (s *story) join(ctx context.Context, h *hosts, c *client.Client) (string, error) {
	name, began := h.Name(joiner), time.Now()
	s.say("Join: %s starts, with the configuration that all have and an empty disk", name)
	if err := h.Up(ctx, joiner); err != nil {
		return "", err
	}
	var counts map[string]int
	err := until(ctx, func() (err error) {
		counts, err = copies(ctx, c)
		if err == nil && !even(counts, h.Nodes()+1) {
			err = fmt.Errorf("copies by node: %v", counts)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if _, err := s.waitForCopies(ctx, c, ""); err != nil {
		return "", err
	}
	// Its share is no good where it takes copies of a partition together.
	if err := s.spread(ctx, h.Nodes()+1, c); err != nil {
		return "", err
	}
	took := time.Since(began).Seconds()
	s.say("  %s has its share %.1f s later; nobody told it to. Copies by node: %v", name, took, counts)
	return fmt.Sprintf("%s joined and had its share of the copies within %.1f s, those of each partition in different zones.", name, took), nil
}

// spread waits until the copies of each partition lie in different zones, those of the catalog too.
func (s *story) spread(ctx context.Context, nodes int, c *client.Client) error {
	return until(ctx, func() error { return containers.Spread(ctx, c, nodes, s.stream, containers.Catalog) })
}

// cutAndHeal pulls a node's cable and puts it back.
func (s *story) cutAndHeal(ctx context.Context, h *hosts, c *client.Client) (string, error) {
	name := h.Name(cutOff)
	s.say("Cut: %s is off the network", name)
	if err := h.Disconnect(ctx, cutOff); err != nil {
		return "", err
	}
	began, before := time.Now(), s.ackedSoFar()
	if err := s.waitForAcks(ctx, before+actAcks); err != nil {
		return "", err
	}
	if err := sleep(ctx, time.Until(began.Add(cutFor))); err != nil {
		return "", err
	}
	s.say("  %d events were acknowledged without it; heal", s.ackedSoFar()-before)
	if err := h.Connect(ctx, cutOff); err != nil {
		return "", err
	}
	healed := time.Now()
	if err := until(ctx, func() error { return h.Ready(ctx, cutOff) }); err != nil {
		return "", err
	}
	if _, err := s.waitForCopies(ctx, c, ""); err != nil {
		return "", err
	}
	s.say("  %s takes part again, %d ms after healing", name, time.Since(healed).Milliseconds())
	return fmt.Sprintf("%s was cut off for %.0f s and took part again %d ms after healing.", name, healed.Sub(began).Seconds(),
		time.Since(healed).Milliseconds()), nil
}

// killHost kills the owner of the busiest partition, waits until its copies are made elsewhere, and starts it again.
func (s *story) killHost(ctx context.Context, h *hosts, c *client.Client) (string, error) {
	f, victim, err := s.chooseVictim(ctx)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	key := s.sample[f.partition]
	s.mu.Unlock()
	s.say("Kill: SIGKILL for %s, the owner of partition %d, the busiest", f.victim, f.partition)
	killed := time.Now()
	if err := h.Kill(ctx, victim); err != nil {
		return "", err
	}
	if err := s.probe(ctx, victim, key); err != nil {
		return "", err
	}
	f.firstAck = time.Since(killed)
	s.say("  first acknowledgement from partition %d: %d ms after the kill", f.partition, f.firstAck.Milliseconds())
	if _, err := s.waitForCopies(ctx, c, f.victim); err != nil {
		return "", err
	}
	replaced := time.Since(killed).Seconds()
	s.say("  all its copies are made elsewhere, %.1f s after the kill; it starts again, with the disk it had", replaced)
	if err := h.Start(ctx, victim); err != nil {
		return "", err
	}
	if err := until(ctx, func() error { return h.Ready(ctx, victim) }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s was killed; its busiest partition acknowledged again %d ms later, and its copies were replaced after %.1f s.",
		f.victim, f.firstAck.Milliseconds(), replaced), nil
}

// drain moves everything off the node that joined, and takes it away for good.
func (s *story) drain(ctx context.Context, h *hosts, c *client.Client) (string, error) {
	name, began := h.Name(joiner), time.Now()
	s.say("Drain: skein drain %s", name)
	if _, err := h.Skein(ctx, 0, "drain", name); err != nil {
		return "", err
	}
	took := time.Since(began).Seconds()
	parts, err := s.waitForCopies(ctx, c, name)
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(parts, func(p client.MeshPartition) bool { return slices.Contains(p.Learners, name) }); i >= 0 {
		return "", fmt.Errorf("%s still has a copy of partition %d", name, parts[i].Partition)
	}
	s.say("  safe to power down after %.1f s; it is taken away, disk and all", took)
	if err := h.Remove(ctx, joiner); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s was drained in %.1f s and taken away.", name, took), nil
}

// allReady returns when every node that takes part takes traffic.
func (h *hosts) allReady(ctx context.Context) error {
	return until(ctx, func() error {
		for i := range h.n {
			if err := h.Ready(ctx, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// copies are how many each live node holds, of all groups.
func copies(ctx context.Context, c *client.Client) (map[string]int, error) {
	all, err := c.Members(ctx)
	out := map[string]int{}
	for _, m := range all {
		if m.State == "alive" {
			out[m.Node] = m.Replicas
		}
	}
	return out, err
}

// even: all nodes are there, none has more than a quarter above the mean (rounded up), and none less than half of it.
func even(counts map[string]int, nodes int) bool {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	most := (5*sum + 4*nodes - 1) / (4 * nodes)
	for _, n := range counts {
		if n > most || 2*n*nodes < sum {
			return false
		}
	}
	return len(counts) == nodes
}

// until polls until f returns nil, or ctx ends.
func until(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if ended := sleep(ctx, 50*time.Millisecond); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}
