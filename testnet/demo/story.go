package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/dev"
	"github.com/skeinmesh/skein/testnet/check"
)

// mesh is where the story plays: processes of this machine, or containers.
type mesh interface {
	Nodes() int
	Name(i int) string
	Address(i int) string
	// Client asks the preferred node first, then the others.
	Client(prefer int) (*client.Client, error)
}

// story is one run of the demo.
type story struct {
	o       options
	out     io.Writer
	mesh    mesh
	local   *dev.Mesh // the same, where it is processes
	stream  string
	history *check.History
	begin   time.Time
	enough  chan struct{} // closed when publishers with events without end shall stop

	mu     sync.Mutex
	acked  int
	parts  map[uint32]int      // acknowledged events by partition
	sample map[uint32]string   // a key of each partition
	values map[string][32]byte // what was sent, by identity
}

func (s *story) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.1f s  %s\n", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}

// tell runs the acts in order.
func (s *story) tell(ctx context.Context) (broken bool, err error) {
	s.say("Starting %d nodes, each a process of its own", s.o.nodes)
	if err := s.local.Wait(ctx); err != nil {
		return false, err
	}
	for i := range s.mesh.Nodes() {
		s.say("  %s at http://%s (pid %d)", s.mesh.Name(i), s.mesh.Address(i), s.local.PID(i))
	}
	c, err := s.mesh.Client(0)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := s.makeStream(ctx, c); err != nil {
		return false, err
	}
	sources, err := s.sources()
	if err != nil {
		return false, err
	}
	failover, err := s.publishAndKill(ctx, sources)
	if err != nil {
		return false, err
	}
	if err := s.local.Wait(ctx); err != nil {
		return false, fmt.Errorf("after the restart: %w", err)
	}
	corrupt, err := s.readBack(ctx)
	if err != nil {
		return false, err
	}
	return s.verdict(corrupt, fmt.Sprintf("%s was killed with SIGKILL; its busiest partition acknowledged again %d ms later.", failover.victim,
		failover.firstAck.Milliseconds())), nil
}

func (s *story) makeStream(ctx context.Context, c *client.Client) error {
	if _, err := c.CreateStream(ctx, s.stream, map[string]any{"partitions": s.o.partitions, "replicas": 3}, true); err != nil {
		return fmt.Errorf("create the stream: %w", err)
	}
	// A mesh that is still copying has less to show.
	parts, err := s.waitForCopies(ctx, c, "")
	if err != nil {
		return err
	}
	owners := map[string]int{}
	for _, p := range parts {
		owners[p.Owner]++
	}
	s.say("Stream %q has %d partitions with 3 copies each; owners: %v", s.stream, len(parts), owners)
	return nil
}

// waitForCopies returns when each partition has an owner and three copies, none of them on the node without.
func (s *story) waitForCopies(ctx context.Context, c *client.Client, without string) ([]client.MeshPartition, error) {
	for {
		parts, err := c.Partitions(ctx, s.stream)
		if err != nil && ctx.Err() != nil {
			return nil, err
		}
		ready := 0
		for _, p := range parts {
			if p.Owner != "" && len(p.Replicas) >= 3 && len(p.Learners) == 0 && (without == "" || !slices.Contains(p.Replicas, without)) {
				ready++
			}
		}
		if ready == s.o.partitions {
			return parts, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d partitions have their copies: %w", ready, s.o.partitions, context.Cause(ctx))
		}
	}
}

// failover is what the kill cost.
type failover struct {
	victim    string
	partition uint32
	firstAck  time.Duration
}

// publishAndKill runs the publishers, kills the owner of the busiest partition at two fifths of the events, and brings it back after
// four fifths, once its partition has acknowledged an event without it.
func (s *story) publishAndKill(ctx context.Context, sources []source) (failover, error) {
	s.say("%d publishers send %d events through all %d nodes, each with keys of its own", len(sources), s.o.events, s.o.nodes)
	g, gctx := errgroup.WithContext(ctx)
	for i := range sources {
		g.Go(func() error { return s.publish(gctx, i, &sources[i]) })
	}
	var f failover
	g.Go(func() (err error) {
		f, err = s.killAndRestart(gctx)
		return err
	})
	if err := g.Wait(); err != nil {
		return f, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say("All %d events are acknowledged", s.acked)
	return f, nil
}

func (s *story) waitForAcks(ctx context.Context, n int) error {
	for {
		s.mu.Lock()
		acked := s.acked
		s.mu.Unlock()
		if acked >= n {
			return nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *story) killAndRestart(ctx context.Context) (failover, error) {
	total := s.o.events
	if err := s.waitForAcks(ctx, total*2/5); err != nil {
		return failover{}, err
	}
	f, victim, err := s.chooseVictim(ctx)
	if err != nil {
		return f, err
	}
	s.mu.Lock()
	s.say("kill -9 %s (pid %d), the owner of partition %d, the busiest, after %d acknowledgements", f.victim, s.local.PID(victim), f.partition, s.acked)
	key := s.sample[f.partition]
	s.mu.Unlock()
	killed := time.Now()
	if err := s.local.Kill(victim); err != nil {
		return f, err
	}
	if err := s.probe(ctx, victim, key); err != nil {
		return f, err
	}
	f.firstAck = time.Since(killed)
	s.say("First acknowledgement from partition %d after the kill: %d ms later", f.partition, f.firstAck.Milliseconds())
	if err := s.waitForAcks(ctx, total*4/5); err != nil {
		return f, err
	}
	s.say("%s starts again, with the data it had", f.victim)
	return f, s.local.Restart(victim)
}

// chooseVictim finds the owner of the partition with the most events, of those whose owner takes part from beginning to end.
func (s *story) chooseVictim(ctx context.Context) (f failover, node int, err error) {
	c, err := s.mesh.Client(0)
	if err != nil {
		return f, 0, err
	}
	defer c.Close()
	parts, err := c.Partitions(ctx, s.stream)
	if err != nil {
		return f, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	most := 0
	for _, p := range parts {
		if i := s.index(p.Owner); i >= 0 && s.parts[p.Partition] > most {
			f.victim, f.partition, most, node = p.Owner, p.Partition, s.parts[p.Partition], i
		}
	}
	if most == 0 {
		return f, 0, errors.New("nobody says who owns what")
	}
	return f, node, nil
}

// index is the node of a name, or -1.
func (s *story) index(name string) int {
	for i := range s.mesh.Nodes() {
		if s.mesh.Name(i) == name {
			return i
		}
	}
	return -1
}

// probe publishes one event with a key of the dead owner's partition through another node, until it is acknowledged.
func (s *story) probe(ctx context.Context, victim int, key string) error {
	c, err := s.mesh.Client((victim + 1) % s.mesh.Nodes())
	if err != nil {
		return err
	}
	defer c.Close()
	ev := event{publisher: "probe", key: key, seq: 1, value: []byte(`{"probe":true}`)}
	return s.send(ctx, c, []event{ev}, "application/json")
}

var errUnfinished = errors.New("not every event was acknowledged")
