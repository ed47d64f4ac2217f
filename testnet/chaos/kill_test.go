package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/dev"
)

// TestKillsLoseNothing kills each node with SIGKILL in turn, and then all at once, while publishers and readers go on.
func TestKillsLoseNothing(t *testing.T) {
	s := seed(t)
	publishers, rounds, pace := 8, 1, 40*time.Millisecond
	if long() {
		publishers, rounds, pace = 64, 3, 120*time.Millisecond
	}
	m := startMesh(t, dev.Options{Nodes: 3})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, publishers, pace)
	l.startReaders()
	l.watchOwners()
	rng := rand.New(rand.NewPCG(s, 1<<32))
	for range rounds {
		for _, node := range rng.Perm(m.Nodes()) {
			w.progress(5 * publishers)
			kill(t, m, node)
			pause(t.Context(), time.Duration(rng.IntN(1500))*time.Millisecond) // before, during and after the election
			restart(t, m, node)
			waitWhole(t, m)
		}
		w.progress(5 * publishers)
		kill(t, m, 0, 1, 2)
		begin := time.Now()
		restart(t, m, rng.Perm(m.Nodes())...)
		w.progress(1)
		t.Logf("all nodes killed and started again: first acknowledgement %d ms after the start", time.Since(begin).Milliseconds())
		waitWhole(t, m)
	}
	w.progress(5 * publishers)
	w.judgeEachReplica(m, l)
}

// judgeEachReplica ends the load, reads everything through all nodes and from each one's own replicas, and holds the history against the
// promises.
func (w *world) judgeEachReplica(m *dev.Mesh, l *load) {
	w.t.Helper()
	l.stopPublishing()
	ends := w.readBack()
	l.finishReaders(ends)
	for node := range m.Nodes() {
		w.readAlone(m, node, ends)
	}
	noneEndedByItself(w.t, m)
	w.verdict()
}

// readAlone reads everything from one replica, while no other node runs that it could ask.
func (w *world) readAlone(m *dev.Mesh, node int, ends map[uint32]uint64) {
	w.t.Helper()
	signal := func(sig syscall.Signal) {
		for other := range m.Nodes() {
			if other == node {
				continue
			}
			if err := m.Signal(other, sig); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reader, cursor, next := fmt.Sprintf("replica of node %d alone", node), "earliest", map[uint32]uint64{}
	until(w.t, healWithin, func() error {
		events, to, err := w.page(w.t.Context(), hc, node, url.Values{"from": {cursor}, "limit": {"10000"}})
		if err != nil {
			return err
		}
		cursor = to
		for _, ev := range events {
			w.read(reader, ev)
			next[ev.Partition] = ev.Offset + 1
		}
		for p, end := range ends {
			if next[p] < end {
				return fmt.Errorf("partition %d reaches to offset %d of %d on the replica of node %d", p, next[p], end, node)
			}
		}
		return nil
	})
	w.history.Final(reader)
}

// TestPausedOwnerIsFenced stops each node, without ending it, for longer than an election takes, and lets it go on as if nothing had
// happened: what it then says as owner must not count.
func TestPausedOwnerIsFenced(t *testing.T) {
	s := seed(t)
	m := startMesh(t, dev.Options{Nodes: 3})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 8, 20*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	rng := rand.New(rand.NewPCG(s, 3<<32))
	rounds := 1
	if long() {
		rounds = 4
	}
	for range rounds {
		for _, node := range rng.Perm(m.Nodes()) {
			w.progress(100)
			if err := m.Signal(node, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			pause(t.Context(), 800*time.Millisecond+time.Duration(rng.IntN(2000))*time.Millisecond)
			if err := m.Signal(node, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		waitWhole(t, m)
	}
	w.progress(100)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
}

// progress waits until n more events were acknowledged.
func (w *world) progress(n int) {
	w.t.Helper()
	want := w.acked.Load() + int64(n)
	until(w.t, sendWithin, func() error {
		if missing := want - w.acked.Load(); missing > 0 {
			return fmt.Errorf("%d of %d more acknowledgements did not come", missing, n)
		}
		return nil
	})
}

func kill(t *testing.T, m *dev.Mesh, nodes ...int) {
	t.Helper()
	var g errgroup.Group
	for _, i := range nodes {
		g.Go(func() error { return m.Kill(i) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func restart(t *testing.T, m *dev.Mesh, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		if err := m.Restart(i); err != nil {
			t.Fatal(err)
		}
	}
}

// How long publishing to a partition may rest when its owner is killed, on a quiet host of two cores.
const (
	resumeMedian = time.Second
	resumeWorst  = 2500 * time.Millisecond
)

// TestPublishingResumesAfterTheOwnerIsKilled measures, kill by kill, how long a partition acknowledges nothing: from the signal to
// the first acknowledgement, through any surviving node, of an event that was sent after it. Background publishers go on meanwhile.
func TestPublishingResumesAfterTheOwnerIsKilled(t *testing.T) {
	s := seed(t)
	kills := 2
	if long() {
		kills = 20
	}
	m := startMesh(t, dev.Options{Nodes: 3})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 8, 20*time.Millisecond)
	l.startReaders()
	rng := rand.New(rand.NewPCG(s, 2<<32))
	var first, last []time.Duration
	for i := range kills {
		w.progress(100)
		f := w.failover(m, i, rng)
		first, last = append(first, f.first), append(last, f.last)
		t.Logf("kill %2d: %s, owner of partition %d: %4d ms (%4d ms through the slower of the other nodes)", i+1, m.Name(f.victim), f.partition,
			f.first.Milliseconds(), f.last.Milliseconds())
		restart(t, m, f.victim)
		waitWhole(t, m)
	}
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
	slices.Sort(first)
	slices.Sort(last)
	median, worst := first[len(first)/2], first[len(first)-1]
	t.Logf("publishing resumed after %d kills: median %d ms, worst %d ms (through every other node: median %d ms, worst %d ms)", kills,
		median.Milliseconds(), worst.Milliseconds(), last[len(last)/2].Milliseconds(), last[len(last)-1].Milliseconds())
	if long() && (median > resumeMedian || worst > resumeWorst) {
		t.Errorf("aims are a median of %v and %v at worst", resumeMedian, resumeWorst)
	}
}

// failover is what one kill cost.
type failover struct {
	victim      int
	partition   uint32
	first, last time.Duration
}

// failover kills the owner of a partition, node i mod 3 where that owns any, and sends one event to it through each survivor.
func (w *world) failover(m *dev.Mesh, i int, rng *rand.Rand) failover {
	w.t.Helper()
	f := w.chooseOwner(m, i%m.Nodes(), rng)
	w.mu.Lock()
	key := w.keyOf[f.partition]
	w.mu.Unlock()
	took := make([]time.Duration, m.Nodes())
	killed := time.Now()
	kill(w.t, m, f.victim)
	var g errgroup.Group
	for node := range m.Nodes() {
		if node == f.victim {
			continue
		}
		g.Go(func() error {
			c := w.only(node)
			defer c.Close()
			ev := event{publisher: fmt.Sprintf("probe-%d-%d", i, node), key: key, seq: 1}
			err := w.send(w.t.Context(), c, []event{ev})
			took[node] = time.Since(killed)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		w.t.Fatalf("publishing through a survivor: %v", err)
	}
	for node, d := range took {
		if node == f.victim {
			continue
		}
		if f.first == 0 || d < f.first {
			f.first = d
		}
		f.last = max(f.last, d)
	}
	return f
}

// chooseOwner finds a partition of the preferred node, or of any where that owns none, that has acknowledged something.
func (w *world) chooseOwner(m *dev.Mesh, prefer int, rng *rand.Rand) failover {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), healWithin)
	defer cancel()
	c := w.client(0)
	defer c.Close()
	for {
		parts, err := c.Partitions(ctx, w.stream)
		if err != nil {
			w.t.Fatal(err)
		}
		var other failover
		found := false
		for _, i := range rng.Perm(len(parts)) {
			p := parts[i]
			w.mu.Lock()
			known := w.keyOf[p.Partition] != ""
			w.mu.Unlock()
			if owner := m.Index(p.Owner); owner >= 0 && known {
				f := failover{victim: owner, partition: p.Partition}
				if owner == prefer {
					return f
				}
				other, found = f, true
			}
		}
		if found {
			return other
		}
		pause(ctx, 20*time.Millisecond)
	}
}
