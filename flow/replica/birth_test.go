package replica

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestReplicaThatMetAFullDiskAtItsBirthComesBackWhenThereIsSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 1, 7)
		n := m.nodes[0]
		var full atomic.Bool
		full.Store(true)
		m.tune = func(c *Config) {
			open := c.Factories[KindPartition]
			c.Factories[KindPartition] = func(b Birth, prefix []byte) (StateMachine, error) {
				if full.Load() {
					return nil, &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeDiskFull}
				}
				return open(b, prefix)
			}
		}
		n.start()
		g := testGroup(1)
		b := m.birth(g, 0)
		b.Self = 1
		if err := n.host.Create(context.Background(), b); !log.IsDiskFull(err) {
			t.Fatalf("got %v", err)
		}
		full.Store(false)
		m.await("the replica", func() bool { _, ok := n.host.Group(g); return ok })
		if err := n.host.Create(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		m.propose(g, "a")
		m.stop()
	})
}

func TestReplicaThatNeverCameToBeGivesWayThoughItsIDWentToAnotherNode(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.fixed = true
		g := testGroup(1)
		m.found(g, 0)
		ctx := context.Background()
		owner, n := m.nodes[0].id, m.nodes[1]
		on := func(id ring.ReplicaID, node int) Member { return Member{ID: id, Node: m.nodes[node].id, Learner: true} }
		b := m.birth(g, 0)
		b.Empty = true
		born := func(self ring.ReplicaID, more ...Member) error {
			b := b
			b.Self, b.Members = self, append(slices.Clone(b.Members), more...)
			_, err := n.host.HandleBirth(ctx, owner, encodeBirth(b))
			return err
		}
		if err := born(2, on(2, 1)); err != nil {
			t.Fatal(err)
		}
		// The owner died, and the next one, which had not heard of it, gave the id to another node.
		if err := born(3, on(2, 2), on(3, 1)); err != nil {
			t.Fatal(err)
		}
		if r, ok := n.host.Group(g); !ok || r.Birth().Self != 3 {
			t.Fatal("the former replica is still there")
		}
	})
}

func TestBirthRecordDoesNotRemoveAReplicaThatHoldsState(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		m.await("a second copy", func() bool { return m.propose(g, "x").Copies == 2 })
		n := m.nodes[1]
		have := m.group(1, g).Birth().Self
		// An owner that was cut off does not know of the replica, and names another one.
		b := m.birth(g, 0)
		b.Empty, b.Self = true, have+5
		b.Members = append(b.Members, Member{ID: b.Self, Node: n.id, Learner: true})
		if _, err := n.host.HandleBirth(context.Background(), m.nodes[0].id, encodeBirth(b)); wire.KindOf(err) != wire.KindConflict {
			t.Errorf("got %v", err)
		}
		if r, ok := n.host.Group(g); !ok || r.Birth().Self != have {
			t.Fatal("the replica was removed")
		}
		if o := m.propose(g, "y"); o.Copies != 2 {
			t.Fatalf("%d copies", o.Copies)
		}
	})
}

func TestNodeThatTakesNothingNewRefusesABirthAndAnotherOneIsChosen(t *testing.T) {
	inMesh(t, 5, func(m *mesh) {
		g := m.foundOnThree()
		m.set(m.unheard, 3, true)
		owner := m.nodeOf(m.owner(g)).i
		gone := (owner + 1) % 3
		m.set(m.drained, gone, true)
		m.awaitMembers(g, 3, owner, (owner+2)%3, 4)
		if by := m.declinedTo(owner); !slices.Equal(by, []ring.NodeID{m.nodes[3].id}) {
			t.Fatalf("declined by %v", by)
		}

		// What is here already is answered for as before: its owner may ask again.
		m.set(m.unheard, 4, true)
		b := m.birth(g, 0, 1, 2)
		b.Members = append(b.Members, Member{ID: m.group(4, g).birth.Self, Node: m.nodes[4].id, Learner: true})
		b.Self, b.Empty = b.Members[3].ID, true
		birth := func() error {
			_, err := m.nodes[4].host.HandleBirth(context.Background(), m.nodes[owner].id, encodeBirth(b))
			return err
		}
		if err := birth(); err != nil {
			t.Errorf("what is here is refused: %v", err)
		}
		b.Self++
		b.Members[3].ID++
		if err := birth(); wire.KindOf(err) != wire.KindNotFound || wire.CodeOf(err) != wire.CodeDraining {
			t.Errorf("another replica of the group is not refused: %v", err)
		}
	})
}

func TestMoveToANodeThatTakesNothingNewIsNotAskedAgain(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		for i := range byte(3) {
			m.found(testGroup(i+1), 0, 1, 2)
		}
		m.set(m.unheard, 3, true)
		m.mu.Lock()
		m.balance = true
		m.mu.Unlock()
		owner := m.nodeOf(m.owner(testGroup(1))).i
		m.await("the node declines", func() bool { return len(m.declinedTo(owner)) > 0 })
		virtual.Sleep(time.Minute)
		if n := len(m.declinedTo(owner)); n > 1 {
			t.Errorf("it was asked %d times", n)
		}
	})
}

func TestLearnerIsNotReplacedWhileItsConfigurationChangeIsUnderWay(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		m.propose(g, "a")
		m.nodes[0].journal.hold(true) // as on a full disk
		second := &node{m: m, i: 1, journal: newMemJournal(), store: newMemStore(), bulks: map[ring.GroupID]*bulk{}}
		second.id[0], second.id[15] = 0xaa, 2
		m.mu.Lock()
		m.nodes = append(m.nodes, second)
		m.mu.Unlock()
		second.start()
		virtual.Sleep(time.Minute)
		m.nodes[0].journal.hold(false)
		m.await("a second copy", func() bool { return m.propose(g, "x").Copies == 2 })
	})
}
