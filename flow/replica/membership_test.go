package replica

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func (m *mesh) set(what map[int]bool, n int, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what[n] = on
}

// on lists the nodes that the owner's configuration names, and whether each votes.
func (m *mesh) on(g ring.GroupID) map[int]bool {
	out := map[int]bool{}
	for _, mem := range m.owner(g).Status().Members {
		out[m.find(mem.Node).i] = !mem.Learner
	}
	return out
}

// awaitMembers waits until exactly the named nodes are members, of which so many vote, and the others that are up hold no replica.
func (m *mesh) awaitMembers(g ring.GroupID, voting int, nodes ...int) {
	m.t.Helper()
	m.await("the members", func() bool {
		on := m.on(g)
		votes := 0
		for _, v := range on {
			if v {
				votes++
			}
		}
		if len(on) != len(nodes) || votes != voting {
			return false
		}
		for i := range m.nodes {
			_, in := on[i]
			if in != slices.Contains(nodes, i) || (!in && m.group(i, g) != nil) {
				return false
			}
		}
		return true
	})
}

func TestDrainedNodeIsEmptied(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		gone := m.nodeOf(m.owner(g)).i // the hardest one: it owns the group
		m.set(m.drained, gone, true)
		left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == gone })
		m.awaitMembers(g, 3, left...)
		m.propose(g, "b")
		if got := m.converge(g, left...); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("got %v", got)
		}
		if got := m.nodes[gone].bulk(g).values(); len(got) > 0 {
			t.Fatalf("the drained node still holds %v", got)
		}
	})
}

func TestOneOfThreeDrainedLeavesAVoterAndALearner(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		gone := m.nodeOf(m.owner(g)).i
		m.set(m.drained, gone, true)
		left := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == gone })
		m.awaitMembers(g, 1, left...)
		m.nodes[gone].stop()
		m.await("two copies", func() bool { return m.propose(g, "b").Copies == 2 })
		// One more goes: the last one holds it alone.
		next := m.nodeOf(m.owner(g)).i
		last := slices.DeleteFunc(slices.Clone(left), func(i int) bool { return i == next })[0]
		m.set(m.drained, next, true)
		m.awaitMembers(g, 1, last)
		m.propose(g, "c")
		// They come back, under new ids.
		m.set(m.drained, gone, false)
		m.set(m.drained, next, false)
		m.nodes[gone].start()
		m.awaitMembers(g, 3, 0, 1, 2)
		got := m.converge(g, 0, 1, 2)
		if got[0] != "a" || got[len(got)-1] != "c" {
			t.Fatalf("got %v", got)
		}
	})
}

func TestLostNodeIsReplacedAndRemovesItsReplicaWhenItComesBack(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		gone := m.nodeOf(m.owner(g)).i
		before := m.group(gone, g).birth.Self
		m.nodes[gone].crash()
		virtual.Sleep(20 * time.Second)
		if on := m.on(g); len(on) != 3 || !on[gone] {
			t.Fatalf("replaced on suspicion alone: %v", on)
		}
		m.set(m.lost, gone, true)
		left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == gone })
		m.awaitMembers(g, 3, left...)
		m.propose(g, "b")
		// Nobody tells it: it asks.
		owner := m.owner(g)
		if err := owner.ask(context.Background(), "test", func() error { owner.plan.gone = nil; return nil }); err != nil {
			t.Fatal(err)
		}
		m.nodes[gone].start()
		if m.group(gone, g) == nil {
			t.Fatal("the replica is gone before anyone was asked")
		}
		m.await("the removal", func() bool { return m.group(gone, g) == nil })
		// Its old record of birth brings nothing back, and a new replica gets a new id.
		b := m.birth(g, 0, 1, 2)
		b.Self = before
		if err := m.nodes[gone].host.Create(context.Background(), b); wire.KindOf(err) != wire.KindFenced {
			t.Fatalf("rebirth gave %v", err)
		}
		m.set(m.lost, gone, false)
		m.set(m.drained, left[0], true)
		m.awaitMembers(g, 3, gone, left[1], left[2])
		if id := m.group(gone, g).birth.Self; id <= 4 {
			t.Fatalf("came back as replica %d", id)
		}
		if got := m.converge(g, gone, left[1], left[2]); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("got %v", got)
		}
	})
}

func TestNodeThatIsAwayForAWhileSimplyCatchesUp(t *testing.T) {
	inMesh(t, 5, func(m *mesh) {
		g := m.foundOnThree()
		away := (m.nodeOf(m.owner(g)).i + 1) % 3
		self := m.group(away, g).birth.Self
		m.nodes[away].crash()
		virtual.Sleep(time.Minute)
		m.propose(g, "b")
		m.nodes[away].start()
		m.converge(g, 0, 1, 2)
		if id := m.group(away, g).birth.Self; id != self {
			t.Fatalf("came back as replica %d", id)
		}
		m.awaitMembers(g, 3, 0, 1, 2)
	})
}

func TestReplicaWithoutAQuorumIsNotRemovedByAsking(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := m.foundOnThree()
		own := m.nodeOf(m.owner(g)).i
		m.nodes[own].crash()
		m.nodes[(own+1)%3].crash()
		m.nodes[(own+1)%3].start()
		m.nodes[(own+2)%3].crash()
		virtual.Sleep(3 * time.Minute)
		m.nodes[own].start()
		m.nodes[(own+2)%3].start()
		if got := m.converge(g, 0, 1, 2); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("got %v", got)
		}
	})
}

func TestFounderThatWasNeverBornIsNotResurrected(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := testGroup(1)
		m.nodes[2].stop()
		b := m.birth(g, 0, 1, 2)
		for i := range 2 {
			b.Self = ring.ReplicaID(i + 1)
			if err := m.nodes[i].host.Create(context.Background(), b); err != nil {
				t.Fatal(err)
			}
		}
		m.propose(g, "a")
		m.set(m.lost, 2, true)
		m.awaitMembers(g, 3, 0, 1, 3)
		// The node comes back, and is told to be born by the catalog: it does not know that it was replaced.
		m.nodes[2].start()
		b.Self = 3
		if err := m.nodes[2].host.Create(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		m.await("its end", func() bool { return m.group(2, g) == nil })
		if err := m.nodes[2].host.Create(context.Background(), b); wire.KindOf(err) != wire.KindFenced {
			t.Fatalf("rebirth gave %v", err)
		}
		m.propose(g, "b")
		m.converge(g, 0, 1, 3)
	})
}

func TestLearnerOnANodeThatIsLostIsReplaced(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		own := m.nodeOf(m.owner(g)).i
		drained := (own + 1) % 3
		m.nodes[3].journal.hold(true) // the learner is born and gets nowhere
		m.set(m.drained, drained, true)
		virtual.Sleep(3 * time.Second)
		m.nodes[3].crash()
		m.set(m.lost, 3, true)
		m.set(m.drained, drained, false)
		m.awaitMembers(g, 3, 0, 1, 2)
		if id := m.group(drained, g).birth.Self; id > 3 {
			t.Fatalf("the copy that could stay was replaced by %d", id)
		}
	})
}

// A learner that was born and never named, for its owner was no more, goes; one that is named all the same is replaced.
func TestLearnerThatWasNeverNamedGoes(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		b := m.birth(g, 0, 1, 2, 3)
		b.Self, b.Empty, b.Members[3].Learner = 4, true, true
		if err := m.nodes[3].host.Create(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		m.await("its end", func() bool { return m.group(3, g) == nil })
		// The next owner gives out the same id, and its node refuses it for ever.
		m.set(m.drained, m.nodeOf(m.owner(g)).i, true)
		m.await("an empty node", func() bool { on := m.on(g); return len(on) == 3 && on[3] })
		if id := m.group(3, g).birth.Self; id < 5 {
			t.Fatalf("replica %d was born again", id)
		}
	})
}

// A learner that was born, and whose owner does not know of that (the answer was lost, and nothing is wanted there any more), goes, too,
// although the owner stays the same.
func TestLearnerThatItsOwnerGaveUpGoes(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		own := m.owner(g)
		if err := own.ask(context.Background(), "test", func() error { own.plan.tried = 4; return nil }); err != nil {
			t.Fatal(err)
		}
		b := m.birth(g, 0, 1, 2, 3)
		b.Self, b.Empty, b.Members[3].Learner = 4, true, true
		if err := m.nodes[3].host.Create(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		m.await("its end", func() bool { return m.group(3, g) == nil })
		if m.owner(g) != own {
			t.Error("the owner changed")
		}
	})
}

func TestLearnerThatItsNodeRemovedIsReplaced(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		m.propose(g, "a")
		m.awaitMembers(g, 1, 0, 1)
		id := m.group(1, g).birth.Self
		if err := m.nodes[1].host.Remove(context.Background(), g); err != nil {
			t.Fatal(err)
		}
		m.await("a new copy", func() bool { r := m.group(1, g); return r != nil && r.birth.Self > id && r.applied.Load() > 0 })
		m.converge(g, 0, 1)
	})
}

// A joint change in the midst of which its owner dies is finished by the next owner.
func TestSwapIsFinishedByTheNextOwner(t *testing.T) {
	for seed := range 6 {
		inMesh(t, 5, func(m *mesh) {
			g := testGroup(1)
			m.found(g, 0, 1, 2)
			for i := range 5 {
				m.propose(g, value(i))
			}
			m.converge(g, 0, 1, 2)
			own := m.owner(g)
			i := m.nodeOf(own).i
			gone := (i + 1) % 3
			m.set(m.drained, gone, true)
			m.await("the swap", func() bool { return own.confSeqNow() >= uint64(1+seed/2) })
			virtual.Sleep(time.Duration(seed) * time.Millisecond)
			m.nodes[i].crash()
			m.propose(g, "z")
			m.nodes[i].start()
			m.await("an empty node", func() bool { return m.group(gone, g) == nil })
			m.propose(g, "zz")
			var on []int
			for n := range m.on(g) {
				on = append(on, n)
			}
			if got := m.converge(g, on...); len(got) != 7 || len(on) != 3 {
				t.Fatalf("got %v on %v", got, on)
			}
		})
	}
}

// confSeqNow is how many configuration changes the replica has applied.
func (g *Group) confSeqNow() (n uint64) {
	if err := g.ask(context.Background(), "test", func() error { n = g.confSeq; return nil }); err != nil {
		return 0
	}
	return n
}

func TestNodeThatStopsHandsEverythingOver(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		const groups = 12
		for i := range groups {
			m.found(testGroup(byte(i)), 0, (1+i)%2+1, i%2+1) // all born on node 0
			m.propose(testGroup(byte(i)), "a")
			m.converge(testGroup(byte(i)), 0, 1, 2)
		}
		alone := testGroup(99)
		m.mu.Lock()
		m.fixed = true
		m.mu.Unlock()
		m.found(alone, 0)
		m.propose(alone, "a")
		n := m.nodes[0]
		begin := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if left := n.host.Leave(ctx); left > 0 {
			t.Fatalf("%d groups left", left)
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("took %v", d)
		}
		for i := range groups {
			if own := m.owner(testGroup(byte(i))); own.h == n.host {
				t.Errorf("group %d is still owned here", i)
			}
		}
		// Nobody can hand anything back.
		own := m.owner(testGroup(1))
		ctx, cancel = context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := own.Transfer(ctx, n.id); wire.KindOf(err) != wire.KindUnavailable {
			t.Errorf("handed to a node that stops: %v", err)
		}
		m.propose(testGroup(1), "b")
	})
}

func TestNodesThatAllStopDoNotWaitForEachOther(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.foundOnThree()
		for i := range m.nodes {
			m.set(m.drained, i, true)
		}
		begin := time.Now()
		var all sync.WaitGroup
		for _, n := range m.nodes {
			all.Go(func() { n.host.Leave(context.Background()) })
		}
		all.Wait()
		if d := time.Since(begin); d > time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestOwnershipThatIsRefusedGoesToAnother(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := m.foundOnThree()
		own := m.owner(g)
		i := m.nodeOf(own).i
		first := slices.DeleteFunc([]int{0, 1, 2}, func(n int) bool { return n == i })[0]
		m.nodes[first].host.leaving.Store(true) // it does not say so to others
		begin := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if left := own.h.Leave(ctx); left > 0 {
			t.Fatal("not handed over")
		}
		if now := m.nodeOf(m.owner(g)).i; now == first || now == i {
			t.Fatalf("node %d owns the group", now)
		}
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("took %v", d)
		}
	})
}
