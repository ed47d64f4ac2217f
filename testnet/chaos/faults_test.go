package chaos

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
)

// TestFaultsDuringMembershipChangesLoseNothing drains, kills, pauses and loses nodes at once while publishers and readers go on. After
// each round every group is whole again, and a node that came back after its copies were made elsewhere has none of the old ones.
func TestFaultsDuringMembershipChangesLoseNothing(t *testing.T) {
	s := seed(t)
	rounds := 2
	if long() {
		rounds = 16
	}
	m := startMesh(t, dev.Options{Nodes: 5, Args: []string{"--replace-after", replaceAfter.String()}})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 8, 60*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	all := []int{0, 1, 2, 3, 4}
	w.settled(m, "five nodes", all...)
	rng := rand.New(rand.NewPCG(s, 5<<32))
	first := rng.IntN(len(faults))
	for round := range rounds {
		w.progress(100)
		f := faults[(first+round)%len(faults)]
		nodes := rng.Perm(m.Nodes())
		t.Logf("round %d: %s; nodes %v", round+1, f.what, nodes[:2])
		f.do(w, m, rng, nodes[0], nodes[1])
		waitWhole(t, m)
		w.settled(m, f.what, all...)
	}
	w.progress(100)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
}

// fault happens to two nodes; at its end all nodes run, and none is being drained.
type fault struct {
	what string
	do   func(w *world, m *dev.Mesh, rng *rand.Rand, a, b int)
}

var faults = []fault{
	{"a node is drained, and another one killed meanwhile", func(w *world, m *dev.Mesh, rng *rand.Rand, a, b int) {
		w.startDrain(m, a, b)
		w.breathe(rng, 2*time.Second)
		kill(w.t, m, b)
		w.breathe(rng, 2*replaceAfter)
		restart(w.t, m, b)
		w.breathe(rng, 2*time.Second)
		w.cancelDrain(m, a)
	}},
	{"a node is killed while it is drained", func(w *world, m *dev.Mesh, rng *rand.Rand, a, b int) {
		w.startDrain(m, a, b)
		w.breathe(rng, 2*time.Second)
		kill(w.t, m, a)
		w.breathe(rng, 2*time.Second)
		restart(w.t, m, a)
		w.breathe(rng, 4*time.Second)
		w.cancelDrain(m, a)
	}},
	{"a node is lost, replaced, and comes back", func(w *world, m *dev.Mesh, rng *rand.Rand, a, _ int) {
		kill(w.t, m, a)
		others := slices.DeleteFunc([]int{0, 1, 2, 3, 4}, func(i int) bool { return i == a })
		w.settled(m, "its copies are made elsewhere", others...)
		restart(w.t, m, a)
		w.breathe(rng, 2*time.Second)
	}},
	{"a node is drained, and another one stands still meanwhile", func(w *world, m *dev.Mesh, rng *rand.Rand, a, b int) {
		w.startDrain(m, a, b)
		w.breathe(rng, 2*time.Second)
		if err := m.Signal(b, syscall.SIGSTOP); err != nil {
			w.t.Fatal(err)
		}
		w.breathe(rng, 2*replaceAfter)
		if err := m.Signal(b, syscall.SIGCONT); err != nil {
			w.t.Fatal(err)
		}
		w.breathe(rng, 2*time.Second)
		w.cancelDrain(m, a)
	}},
	{"a node is killed while it gets its share back", func(w *world, m *dev.Mesh, rng *rand.Rand, a, b int) {
		w.drain(m, a)
		w.cancelDrain(m, a)
		w.breathe(rng, 4*time.Second)
		kill(w.t, m, a)
		w.breathe(rng, 2*replaceAfter)
		restart(w.t, m, a)
	}},
}

// TestStarvedNodeCausesNoPlacementChurn: a node that gets a twentieth of a CPU, in pieces two seconds apart, is suspected and loses its
// ownerships; its copies stay where they are, and nobody else's move.
func TestStarvedNodeCausesNoPlacementChurn(t *testing.T) {
	s := seed(t)
	starved := 16 * time.Second
	if long() {
		starved = time.Minute
	}
	m := startMesh(t, dev.Options{Nodes: 4, Args: []string{"--replace-after", "8s"}})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 4, 60*time.Millisecond)
	l.startReaders()
	w.settledAt(m, 1, "four nodes", 0, 1, 2, 3)
	counted := manyPartitions{t: t, m: m}
	const copies = `skein_replica_membership_steps_total{kind="add-learner"}`
	before := counted.sum(copies, 0, 1, 2, 3)
	for until := time.Now().Add(starved); time.Now().Before(until); {
		for _, turn := range []struct {
			sig  syscall.Signal
			time time.Duration
		}{{syscall.SIGSTOP, 1900 * time.Millisecond}, {syscall.SIGCONT, 100 * time.Millisecond}} {
			if err := m.Signal(3, turn.sig); err != nil {
				t.Fatal(err)
			}
			pause(t.Context(), turn.time)
		}
	}
	w.progress(50)
	waitWhole(t, m)
	if after := counted.sum(copies, 0, 1, 2, 3); after != before {
		t.Errorf("%d copies were made while a node was starved for %v", after-before, starved)
	}
	w.settledAt(m, 1, "starved no more", 0, 1, 2, 3)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
}

// breathe waits for a random time up to most.
func (w *world) breathe(rng *rand.Rand, most time.Duration) {
	pause(w.t.Context(), time.Duration(rng.Int64N(int64(most))))
}

// startDrain begins to drain a node, asked through one that will have trouble.
func (w *world) startDrain(m *dev.Mesh, node, through int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), healWithin)
	defer cancel()
	c := w.client(through)
	defer c.Close()
	if _, err := c.Drain(ctx, m.Name(node), false); err != nil {
		w.t.Fatalf("drain %s: %v", m.Name(node), err)
	}
}

// cancelDrain takes a node back into service.
func (w *world) cancelDrain(m *dev.Mesh, node int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), healWithin)
	defer cancel()
	c := w.client(0)
	defer c.Close()
	until(w.t, healWithin, func() error { // the node may just have been started
		_, err := c.CancelDrain(ctx, m.Name(node), false)
		return err
	})
}
