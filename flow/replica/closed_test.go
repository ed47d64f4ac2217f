package replica

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

var errBadLuck = errors.New("bad luck")

// closeForGood has the replica of a group on a node stop with an error that does not pass, and the group go on.
func (m *mesh) closeForGood(n int, g ring.GroupID, next string) {
	m.t.Helper()
	gr := m.group(n, g)
	gr.post(func() { gr.sm.(*recorder).fail = func(log.Entry) error { return errBadLuck } })
	m.propose(g, next)
	<-gr.Done()
	if c := m.nodes[n].host.Closed(); len(c) != 1 || c[0].Self != gr.birth.Self || !errors.Is(c[0].Why, errBadLuck) {
		m.t.Fatalf("closed are %+v", c)
	}
}

// another is a node that does not own the group.
func (m *mesh) another(g ring.GroupID) int { return (m.nodeOf(m.owner(g)).i + 1) % 3 }

// closedFor is for how long the owner was told that the replica on a node is closed for good; 0: it was not.
func (m *mesh) closedFor(g ring.GroupID, id ring.ReplicaID) time.Duration {
	if at, ok := m.owner(g).Status().Closed[id]; ok {
		return max(time.Since(at), 1)
	}
	return 0
}

const replaceAfter = 5 * time.Minute

func TestReplicaThatIsClosedForGoodIsReplacedOnAnotherNode(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		n := m.another(g)
		id := m.group(n, g).birth.Self
		m.closeForGood(n, g, "b")
		m.await("that the owner knows", func() bool { return m.closedFor(g, id) > 0 })
		virtual.Sleep(replaceAfter - time.Minute)
		if on := m.on(g); len(on) != 3 || !on[n] {
			t.Fatalf("replaced before a restart could bring it back: %v", on)
		}
		m.propose(g, "c")
		virtual.Sleep(time.Minute)
		left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == n })
		m.awaitMembers(g, 3, left...)
		m.await("its end", func() bool { return len(m.nodes[n].host.Closed()) == 0 })
		m.propose(g, "d")
		if got := m.converge(g, left...); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
			t.Fatalf("got %v", got)
		}
		if m.nodes[n].aside != 1 || len(m.owner(g).Status().Closed) > 0 {
			t.Fatalf("%d set aside, closed are %v", m.nodes[n].aside, m.owner(g).Status().Closed)
		}
	})
}

func TestReplicaThatIsClosedForGoodComesAnewOnItsNodeWhereNoOtherIs(t *testing.T) {
	for _, nodes := range []int{2, 3} { // of two it is the learner
		inMesh(t, nodes, func(m *mesh) {
			g := testGroup(1)
			m.found(g, 0)
			m.propose(g, "a")
			votes := TargetVoters(nodes)
			all := []int{0, 1, 2}[:nodes]
			m.awaitMembers(g, votes, all...)
			m.converge(g, all...)
			n := (m.nodeOf(m.owner(g)).i + 1) % nodes
			id := m.group(n, g).birth.Self
			m.closeForGood(n, g, "b")
			virtual.Sleep(replaceAfter + 20*time.Second)
			m.awaitMembers(g, votes, all...)
			m.await("the new replica", func() bool { gr := m.group(n, g); return gr != nil && gr.birth.Self > id })
			m.propose(g, "c")
			if got := m.converge(g, all...); !slices.Equal(got, []string{"a", "b", "c"}) {
				t.Fatalf("got %v", got)
			}
			if m.nodes[n].aside != 1 {
				t.Fatalf("%d set aside", m.nodes[n].aside)
			}
		})
	}
}

// Files that the disk does not let go of keep neither the node down nor the group from having its copies: they are in the way of a new
// replica of that group alone.
func TestFilesThatCannotBeSetAsideAreLeftForLater(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g, other := m.foundOnThree(), testGroup(2)
		n := m.another(g)
		nd, left := m.nodes[n], slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == n })
		m.closeForGood(n, g, "b")
		nd.stick(errBadLuck)
		virtual.Sleep(replaceAfter)
		m.awaitMembers(g, 3, left...)
		m.await("its end", func() bool { return len(nd.host.Closed()) == 0 })
		nd.stop()
		nd.start() // it fails the test where the node does not come up

		m.set(m.drained, 3, true)
		m.await("that a new replica is refused", func() bool {
			err := nd.host.Create(context.Background(), Birth{Group: g, Kind: KindPartition, Self: 100, Empty: true,
				Members: []Member{{ID: 1, Node: m.nodes[left[0]].id}, {ID: 100, Node: nd.id, Learner: true}}})
			return errors.Is(err, errLeft) && wire.KindOf(err) == wire.KindUnavailable
		})
		virtual.Sleep(10 * time.Second)
		if gs, _ := nd.journal.Load(g); gs.Birth != nil || len(nd.host.Closed()) > 0 || nd.aside > 0 {
			t.Fatalf("born over what is left: %+v", gs)
		}
		nd.stick(nil)
		m.awaitMembers(g, 3, left[0], left[1], n)
		m.found(other, n)
		m.propose(g, "c")
		if got := m.converge(g, left[0], left[1], n); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("got %v", got)
		}
	})
}

// deafen has a node hear nothing of any group, while it answers questions.
func (m *mesh) deafen(n int, deaf bool) {
	m.dropping(func(_, to int, _ envelope) bool { return deaf && to == n })
}

// An operator moves the copy away before the plan replaces it: the plan leaves that to the move, and it is over when the new copy votes.
func TestMoveOfAReplicaThatIsClosedForGoodGoesOnWhenItIsToBeReplaced(t *testing.T) {
	inMesh(t, 5, func(m *mesh) {
		g := m.foundOnThree()
		n := m.another(g)
		own, to := m.owner(g), m.nodes[4] // of the spare ones the plan would take the other
		m.closeForGood(n, g, "b")
		virtual.Sleep(replaceAfter / 2)
		m.deafen(to.i, true)
		if _, err := own.h.Move(context.Background(), g, m.nodes[n].id, to.id, false); err != nil {
			t.Fatal(err)
		}
		m.await("the move", func() bool { s := own.Status().Move; return s != nil && s.Phase == MoveCatchingUp })
		virtual.Sleep(replaceAfter)
		if s := own.Status().Move; s == nil || m.on(g)[3] {
			t.Fatalf("derailed: %+v, on %v", s, m.on(g))
		}
		m.deafen(to.i, false)
		m.await("its end", func() bool { return own.Status().Move == nil })
		left := slices.DeleteFunc([]int{0, 1, 2, 4}, func(i int) bool { return i == n })
		if mem := own.Status().Members; len(mem) != 3 || slices.ContainsFunc(mem, func(m Member) bool { return m.Learner }) {
			t.Fatalf("it is said to be done, and the members are %+v", mem)
		}
		m.awaitMembers(g, 3, left...)
		m.await("that the old one goes", func() bool { return len(m.nodes[n].host.Closed()) == 0 })
	})
}

// What takes the source's copy out of the group, as another owner's plan may have, does not make the move one that is done.
func TestMoveIsDoneWhenItsTargetVotes(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		own, to := m.owner(g), m.nodes[3]
		n := m.another(g)
		from := m.group(n, g).birth.Self
		m.deafen(to.i, true)
		if _, err := own.h.Move(context.Background(), g, m.nodes[n].id, to.id, false); err != nil {
			t.Fatal(err)
		}
		m.await("its learner", func() bool { return len(own.Status().Members) == 4 })
		own.post(func() { own.changeMembers(Step{Kind: StepRemove, Remove: []ring.ReplicaID{from}}) })
		m.await("the end of the source", func() bool { return len(own.Status().Members) == 3 })
		virtual.Sleep(5 * time.Second)
		if own.Status().Move == nil {
			t.Fatalf("it is over, and the members are %+v", own.Status().Members)
		}
		m.deafen(to.i, false)
		m.await("its end", func() bool { return own.Status().Move == nil })
		if mem := own.Status().Members; len(mem) != 3 || slices.ContainsFunc(mem, func(m Member) bool { return m.Learner }) {
			t.Fatalf("the members are %+v", mem)
		}
	})
}

func TestReplicaThatARestartBringsBackInTimeIsNotReplaced(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		n := m.another(g)
		id := m.group(n, g).birth.Self
		m.closeForGood(n, g, "b")
		virtual.Sleep(replaceAfter - time.Minute)
		m.nodes[n].stop()
		m.nodes[n].start()
		m.converge(g, 0, 1, 2)
		virtual.Sleep(2 * replaceAfter)
		if gr := m.group(n, g); gr == nil || gr.birth.Self != id || m.closedFor(g, id) > 0 {
			t.Fatalf("replaced: %v", m.on(g))
		}
	})
}

// What a node says counts for its own replica alone, and not while the replica is heard of.
func TestReplicaIsNotClosedByWhatOthersSay(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		n := m.another(g)
		id, owner := m.group(n, g).birth.Self, m.owner(g)
		for range 40 {
			for _, from := range []int{n, 3} {
				say := encodeRemoval(removal{Op: removalClosed, Group: g, Replica: id})
				if _, err := owner.h.HandleRemoval(context.Background(), m.nodes[from].id, say); err != nil {
					t.Fatal(err)
				}
			}
			virtual.Sleep(10 * time.Second)
		}
		m.propose(g, "b")
		if gr := m.group(n, g); gr == nil || gr.birth.Self != id {
			t.Fatalf("replaced: %v", m.on(g))
		}
	})
}

func TestNodeOfAnOlderVersionIsAskedAboutAClosedReplicaAsBefore(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		n := m.another(g)
		for i, nd := range m.nodes {
			nd.old = i != n
		}
		m.closeForGood(n, g, "b")
		virtual.Sleep(2 * replaceAfter)
		if on := m.on(g); !on[n] {
			t.Fatalf("replaced by an owner that was not told: %v", on)
		}
		owner := m.owner(g)
		m.set(m.drained, n, true)
		m.await("its replacement", func() bool { return !m.on(g)[n] })
		if err := owner.ask(context.Background(), "test", func() error { owner.plan.gone = nil; return nil }); err != nil {
			t.Fatal(err)
		}
		m.await("its end", func() bool { return len(m.nodes[n].host.Closed()) == 0 })
	})
}

func TestLearnerThatCannotBeOpenedAtItsBirthIsTriedAgainUnderANewID(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		host := m.nodes[3].host
		open, failures := host.cfg.Factories[KindPartition], 0
		host.cfg.Factories[KindPartition] = func(b Birth, prefix []byte) (StateMachine, error) {
			if failures++; failures == 1 {
				return nil, errBadLuck
			}
			return open(b, prefix)
		}
		n := m.another(g)
		m.set(m.drained, n, true)
		m.awaitMembers(g, 3, slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == n })...)
		if failures < 2 || len(host.Closed()) > 0 || m.group(3, g).birth.Self < 5 {
			t.Fatalf("opened %d times, closed are %v", failures, host.Closed())
		}
	})
}

// What does not run is held all the same: until it was removed a node is not empty. It is told by the owner, and asks where nobody tells it.
func TestReplicaThatIsClosedIsHeldUntilItsGroupLetItGo(t *testing.T) {
	for _, told := range []bool{true, false} {
		inMesh(t, 4, func(m *mesh) {
			g := testGroup(1)
			failed := errors.New("bad luck")
			m.nodes[2].failing = func(log.Entry) error { return failed }
			m.found(g, 0, 1, 2)
			m.propose(g, "a")
			m.await("the replica to stop", func() bool { return m.group(2, g) == nil })
			host := m.nodes[2].host
			if c := host.Closed(); len(c) != 1 || c[0].Group != g || c[0].Self != 3 {
				t.Fatalf("closed are %+v", c)
			}
			m.split(2, 0, true)
			m.split(2, 1, true)
			m.split(2, 3, true)
			m.set(m.drained, 2, true)
			m.await("its replacement", func() bool { on := m.on(g); return len(on) == 3 && on[3] })
			if len(host.Closed()) != 1 {
				t.Fatal("it is gone, and nobody can have told it")
			}
			if !told {
				for _, n := range []int{0, 1, 3} {
					if err := m.group(n, g).ask(context.Background(), "test", func() error { m.group(n, g).plan.gone = nil; return nil }); err != nil {
						t.Fatal(err)
					}
				}
			}
			m.split(2, 0, false)
			m.split(2, 1, false)
			m.split(2, 3, false)
			m.await("its end", func() bool { return len(host.Closed()) == 0 })
		})
	}
}
