package chaos

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/dev"
)

// replaceAfter is short, so that a lost node is replaced within the test.
const replaceAfter = 4 * time.Second

// TestMeshGrowsShrinksAndHealsUnderLoad adds two nodes to three, drains one, kills one for good and restarts each of the others, while
// some publishers send one by one, 64 others send at the same time, again and again, so that 64 events are in flight in each burst, and
// two readers read. Nothing acknowledged is lost or doubled, keys keep their order, no connection of a reader ends but with its node,
// copies are as many as wanted after each step, and no node holds, or owns in the end, more than 1.25 times its share.
func TestMeshGrowsShrinksAndHealsUnderLoad(t *testing.T) {
	s := seed(t)
	rounds, pace := 1, 150*time.Millisecond
	if long() {
		rounds = 3
	}
	m := startMesh(t, dev.Options{Nodes: 5, Later: 2, Args: []string{"--replace-after", replaceAfter.String()}})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 2, pace)
	asking, enough := context.WithCancel(t.Context())
	defer enough()
	l.oneByOne(asking, s, "one-by-one", 4, pace/4)
	const atOnce = 64
	flying := l.inFlight(asking, s+1, "in-flight", atOnce, pace)
	l.watchOwners()
	w.progress(100)
	a, b := l.startSteady("reader a", 0), l.startSteady("reader b", 1)

	grown := []int{0, 1, 2, 3, 4}
	restart(t, m, 3, 4)
	w.settled(m, "two nodes came", grown...)
	w.progress(200)

	w.drain(m, 1)
	w.settled(m, "one node was drained", 0, 2, 3, 4)
	w.progress(200)
	b.move(3) // its connection outlived the drain; it does not outlive the node
	if err := m.Shutdown(1); err != nil {
		t.Fatal(err)
	}
	m.Retire(1)
	w.progress(100)

	kill(t, m, 2)
	m.Retire(2)
	left := []int{0, 3, 4}
	w.settled(m, "one node was killed for good", left...)
	w.progress(200)

	for range rounds {
		for i, node := range left {
			at := left[(i+1)%len(left)]
			a.move(at)
			b.move(at)
			if err := m.Shutdown(node); err != nil {
				t.Fatal(err)
			}
			w.progress(50)
			restart(t, m, node)
			waitWhole(t, m)
			w.settled(m, "a node was restarted", left...)
		}
	}
	w.progress(200)
	w.ownEvenly(m, left...)
	enough()
	l.stopPublishing()
	l.reached(flying, atOnce)
	w.servers = []string{m.Address(0), m.Address(3), m.Address(4)}
	ends := w.readBack()
	l.finishReaders(ends)
	noneEndedByItself(t, m)
	w.verdict()
}

// TestFewestMovesWhenAFourthNodeComesAndGoes counts the copies that owners have made when a node joins three and gets its share, and when
// it is drained: at most 1.2 times the least possible.
func TestFewestMovesWhenAFourthNodeComesAndGoes(t *testing.T) {
	s := seed(t)
	m := startMesh(t, dev.Options{Nodes: 4, Later: 1})
	w := newWorld(t, m.Addresses(), 16)
	l := w.startLoad(s, 4, 100*time.Millisecond)
	l.startReaders()
	w.settledAt(m, 1, "three nodes", 0, 1, 2)
	counted := manyPartitions{t: t, m: m}
	const copies = `skein_replica_membership_steps_total{kind="add-learner"}`
	least := 3 * (16 + catalogGroups) / 4
	fewest := func(what string, before int) int {
		t.Helper()
		now := counted.sum(copies, 0, 1, 2, 3)
		t.Logf("%s: %d copies made, the least possible is %d", what, now-before, least)
		if made := now - before; float64(made) > 1.2*float64(least) {
			t.Errorf("%s: %d copies made, more than 1.2 times %d", what, made, least)
		}
		return now
	}
	before := counted.sum(copies, 0, 1, 2)
	restart(t, m, 3)
	w.settledAt(m, 1, "a fourth node came", 0, 1, 2, 3)
	before = fewest("a node came", before)
	w.drain(m, 3)
	w.settledAt(m, 1, "it was drained", 0, 1, 2)
	fewest("a node left", before)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
}

// drain has a node hand away all that it holds, and waits until it may be powered down.
func (w *world) drain(m *dev.Mesh, node int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), healWithin)
	defer cancel()
	c := w.client(0) // any node serves and forwards
	defer c.Close()
	begin := time.Now()
	op, err := c.Drain(ctx, m.Name(node), false)
	if err != nil {
		w.t.Fatalf("drain %s: %v", m.Name(node), err)
	}
	until(w.t, healWithin, func() error {
		if op, err = c.Operation(ctx, op.ID); err != nil {
			return err
		}
		if op.State != "done" || op.Progress == nil || !op.Progress.SafeToPowerDown {
			return fmt.Errorf("the drain of %s is %s: %s", m.Name(node), op.State, op.Reason)
		}
		return nil
	})
	w.t.Logf("%s was drained within %v: %s", m.Name(node), time.Since(begin).Round(100*time.Millisecond), op.Reason)
}

// settled waits until all groups have three copies on the given nodes alone, no copy is on its way, and no node has more than 1.25 times
// the mean.
func (w *world) settled(m *dev.Mesh, what string, nodes ...int) {
	w.t.Helper()
	w.settledAt(m, 1.25, what, nodes...)
}

// settledAt is settled with a bound of factor times the mean, rounded up: with 1 the copies are even.
func (w *world) settledAt(m *dev.Mesh, factor float64, what string, nodes ...int) {
	w.t.Helper()
	begin := time.Now()
	var held []int
	until(w.t, 2*healWithin, func() (err error) {
		held, err = w.unsettled(m, factor, nodes)
		return err
	})
	w.t.Logf("%s: settled within %v, nodes %v hold %v", what, time.Since(begin).Round(100*time.Millisecond), nodes, held)
}

func (w *world) unsettled(m *dev.Mesh, factor float64, nodes []int) ([]int, error) {
	return w.unsettledAmong(nodes[0], namesOf(m, nodes), factor)
}

// unsettledAmong asks one node about the named ones.
func (w *world) unsettledAmong(through int, names []string, factor float64) ([]int, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	c := w.only(through)
	defer c.Close()
	parts, err := c.Partitions(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.Owner == "" || len(p.Replicas) != 3 || len(p.Learners) > 0 ||
			slices.ContainsFunc(p.Replicas, func(r string) bool { return !slices.Contains(names, r) }) {
			return nil, fmt.Errorf("partition %d of %s, owned by %q, is on %v, with learners on %v, and should be on three of %v", p.Partition, p.Stream, p.Owner, p.Replicas, p.Learners, names)
		}
	}
	members, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	return evenly(factor, members, names, len(parts))
}

// evenly holds what the named members say they hold against factor times the mean.
func evenly(factor float64, members []client.Member, names []string, partitions int) ([]int, error) {
	held := make([]int, len(names))
	for _, mb := range members {
		if i := slices.Index(names, mb.Node); i >= 0 {
			held[i] = mb.Replicas
		} else if mb.State == "alive" && mb.Replicas > 0 {
			return held, fmt.Errorf("%s still holds %d copies", mb.Node, mb.Replicas)
		}
	}
	if n, want := sum(held), 3*(partitions+catalogGroups); n != want {
		return held, fmt.Errorf("%v hold %v, %d copies of %d", names, held, n, want)
	}
	if most := share(factor, sum(held), len(names)); slices.Max(held) > most {
		return held, fmt.Errorf("%v hold %v: more than %d", names, held, most)
	}
	return held, nil
}

func namesOf(m *dev.Mesh, nodes []int) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = m.Name(n)
	}
	return names
}

// ownEvenly waits until no node owns more than 1.25 times the mean, rounded up. A node that was started again takes ownerships over one by
// one, from those that own too much; that groups go home afterwards must not undo it, which the long run waits for.
func (w *world) ownEvenly(m *dev.Mesh, nodes ...int) {
	w.t.Helper()
	begin, stays := time.Now(), time.Duration(0)
	if long() {
		stays = homeStays
	}
	names := namesOf(m, nodes)
	var owned []int
	since := begin // even
	until(w.t, stays+2*healWithin, func() error {
		now, groups, err := w.owned(nodes[0], names)
		if err != nil {
			return err
		}
		if !slices.Equal(now, owned) {
			w.t.Logf("after %v: nodes %v own %v", time.Since(begin).Round(100*time.Millisecond), nodes, now)
		}
		owned = now
		if most := share(1.25, groups, len(nodes)); slices.Max(owned) > most {
			since = time.Now()
			return fmt.Errorf("%v own %v: more than %d", names, owned, most)
		}
		if n := sum(owned); n != groups { // one was just handed over, and gossip tells it of both nodes or of neither
			return fmt.Errorf("%v own %v, %d groups of %d", names, owned, n, groups)
		}
		if d := time.Since(since); d < stays {
			return fmt.Errorf("%v own %v, and no more than they should for %v", names, owned, d.Round(time.Second))
		}
		return nil
	})
	w.t.Logf("no node owned more than it should after %v, for %v: nodes %v own %v", since.Sub(begin).Round(100*time.Millisecond),
		time.Since(since).Round(100*time.Millisecond), nodes, owned)
}

// owned is how many groups each node says that it owns, and how many there are.
func (w *world) owned(through int, names []string) (owned []int, groups int, err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	c := w.only(through)
	defer c.Close()
	parts, err := c.Partitions(ctx, "")
	if err != nil {
		return nil, 0, err
	}
	members, err := c.Members(ctx)
	if err != nil {
		return nil, 0, err
	}
	owned = make([]int, len(names))
	for _, mb := range members {
		if i := slices.Index(names, mb.Node); i >= 0 {
			owned[i] = mb.Owned
		}
	}
	return owned, len(parts) + catalogGroups, nil
}

// share is factor times what each of the nodes should have of so many, rounded up.
func share(factor float64, all, nodes int) int {
	return int(math.Ceil(factor * float64(all) / float64(nodes)))
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
