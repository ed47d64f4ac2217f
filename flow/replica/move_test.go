package replica

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestMoveByHand(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		own := m.owner(g)
		from, to := own.h.cfg.Self, m.nodes[3].id
		ctx := context.Background()

		plan, err := own.h.Move(ctx, g, from, to, true)
		if err != nil || plan.Handover.IsZero() || plan.Handover == from || len(plan.Steps) < 4 {
			t.Fatalf("%+v, %v", plan, err)
		}
		virtual.Sleep(5 * time.Second)
		if on := m.on(g); on[3] || own.Status().Move != nil {
			t.Fatal("a dry run moved something")
		}
		if plan, err = own.h.Move(ctx, g, from, to, false); err != nil {
			t.Fatal(err)
		}
		left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == m.find(from).i })
		m.awaitMembers(g, 3, left...)
		m.propose(g, "b")
		m.converge(g, left...)
		m.await("that no node has the move granted", func() bool {
			return !slices.ContainsFunc(m.nodes, func(n *node) bool {
				n.host.movesMu.Lock()
				defer n.host.movesMu.Unlock()
				_, in := n.host.grants.to[moveIn][g]
				_, out := n.host.grants.to[moveOut][g]
				return in || out
			})
		})
	})
}

func TestMoveIsRefusedWhereItCannotBe(t *testing.T) {
	inMesh(t, 5, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		m.converge(g, 0, 1, 2)
		own := m.owner(g)
		self := m.nodeOf(own).i
		other := (self + 1) % 3
		id := func(i int) ring.NodeID { return m.nodes[i].id }
		m.set(m.cordoned, 4, true)
		for _, c := range []struct {
			name     string
			from, to int
			kind     wire.Kind
		}{
			{"to where it is", self, self, wire.KindInvalid},
			{"from where nothing is", 3, 4, wire.KindNotFound},
			{"to a member", self, other, wire.KindConflict},
			{"to a cordoned node", self, 4, wire.KindUnavailable},
		} {
			if _, err := own.h.Move(context.Background(), g, id(c.from), id(c.to), false); wire.KindOf(err) != c.kind {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if _, err := m.nodes[other].host.Move(context.Background(), g, id(self), id(3), false); wire.KindOf(err) != wire.KindNotOwner {
			t.Errorf("elsewhere than at the owner: %v", err)
		}
		m.nodes[other].crash()
		virtual.Sleep(time.Second)
		if _, err := own.h.Move(context.Background(), g, id((self+2)%3), id(3), false); err != nil {
			t.Errorf("a majority stays: %v", err)
		}
		m.nodes[other].start()
		m.awaitMembers(g, 3, self, other, 3)
	})
}

// TestMoveThatIsAskedForIsNotLostToBalance: the ownership stays where it is while the ends of a move are asked, however long the target is busy.
func TestMoveThatIsAskedForIsNotLostToBalance(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		busy, g, to := testGroup(1), testGroup(2), m.nodes[3].id
		for _, id := range []ring.GroupID{busy, g} {
			m.found(id, 0, 1, 2)
			m.propose(id, "a")
			m.converge(id, 0, 1, 2)
		}
		own := m.owner(g)
		self := m.nodeOf(own).i
		from, stays := (self+1)%3, (self+2)%3
		m.nodes[3].journal.hold(true)
		first := m.owner(busy)
		if first.h != own.h {
			t.Fatal("two nodes own one group each")
		}
		if _, err := first.h.Move(context.Background(), busy, m.nodes[from].id, to, false); err != nil {
			t.Fatal(err)
		}
		m.await("the first move", func() bool { s := first.Status().Move; return s != nil && s.Phase == MoveCatchingUp })
		if _, err := own.h.Move(context.Background(), g, m.nodes[from].id, to, false); err != nil {
			t.Fatal(err)
		}
		m.await("a target that is busy", func() bool { s := own.Status().Move; return s != nil && s.Phase == MoveReserving && s.Reason != "" })
		m.mu.Lock()
		m.owning = func(int) (count, mean, high int) { return 0, 1, 1 } // and this node owns two
		m.mu.Unlock()
		virtual.Sleep(5 * time.Second)
		if s := own.Status(); s.Role != RoleOwner || s.Move == nil {
			t.Fatalf("its role is %v, and the move %+v", s.Role, s.Move)
		}
		m.nodes[3].journal.hold(false)
		m.awaitMembers(g, 3, self, stays, 3)
	})
}

func TestMoveIsGivenUpWhenItsTargetDies(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		own := m.owner(g)
		from := m.nodes[(m.nodeOf(own).i+1)%3].id
		m.nodes[3].journal.hold(true)
		if _, err := own.h.Move(context.Background(), g, from, m.nodes[3].id, false); err != nil {
			t.Fatal(err)
		}
		m.await("the move", func() bool { s := own.Status().Move; return s != nil && s.Phase == MoveCatchingUp })
		m.nodes[3].crash()
		m.await("its end", func() bool { return own.Status().Move == nil })
		m.awaitMembers(g, 3, 0, 1, 2)
		m.nodes[3].start()
		virtual.Sleep(30 * time.Second)
		m.awaitMembers(g, 3, 0, 1, 2)
	})
}

func TestNewNodeGetsItsShareByTheFewestMoves(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		m.nodes[3].stop()
		m.mu.Lock()
		m.balance = true
		m.mu.Unlock()
		const groups = 12
		for i := range groups {
			m.found(testGroup(byte(i)), i%3, (i+1)%3, (i+2)%3)
			m.propose(testGroup(byte(i)), "a")
		}
		m.nodes[3].start()
		for _, n := range m.nodes {
			n.host.log.Debug("the fourth node is there")
		}
		share := groups * 3 / 4
		m.await("an even share", func() bool {
			for _, n := range m.nodes {
				if len(n.host.Groups()) != share {
					return false
				}
			}
			return true
		})
		virtual.Sleep(30 * time.Second)
		for i, n := range m.nodes {
			if len(n.host.Groups()) != share {
				t.Errorf("node %d then holds %d", i, len(n.host.Groups()))
			}
		}
		moves := 0
		for i := range groups {
			g := testGroup(byte(i))
			for _, mem := range m.owner(g).Status().Members {
				if mem.ID > 3 {
					moves++
				}
			}
			m.propose(g, "b")
		}
		if moves != share {
			t.Errorf("%d moves, %d are the fewest", moves, share)
		}
	})
}

// TestWhatAnOperatorPlacedIsNotMovedBackByBalance: balance finds another group that brings the nodes to their shares.
func TestWhatAnOperatorPlacedIsNotMovedBackByBalance(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		m.mu.Lock()
		m.balance = true
		m.mu.Unlock()
		for i := range 4 {
			m.found(testGroup(byte(i)), i, (i+1)%4, (i+2)%4)
			m.propose(testGroup(byte(i)), "a")
		}
		g := testGroup(0)
		if _, err := m.owner(g).h.Move(context.Background(), g, m.nodes[0].id, m.nodes[3].id, false); err != nil {
			t.Fatal(err)
		}
		m.awaitMembers(g, 3, 1, 2, 3)
		m.await("even shares by another move", func() bool {
			for _, n := range m.nodes {
				if len(n.host.Groups()) != 3 {
					return false
				}
			}
			return true
		})
		virtual.Sleep(30 * time.Second)
		if on := m.on(g); !on[3] || on[0] {
			t.Errorf("the group is on %v", on)
		}
	})
}

func TestGrants(t *testing.T) {
	now := time.Unix(1000, 0)
	a, b := testGroup(1), testGroup(2)
	x, y := ring.NodeID{1}, ring.NodeID{2}
	room := held{replicas: 3, low: 2, high: 4}
	full := held{replicas: 4, low: 4, high: 4}
	var g grants
	ask := func(d direction, id ring.GroupID, by ring.NodeID, manual bool, h held) bool {
		return g.ask(now, d, id, by, manual, h) == ""
	}
	if ask(moveIn, a, x, false, full) {
		t.Error("takes more than its share")
	}
	full.this = true
	if ask(moveOut, a, x, false, full) {
		t.Error("gives more than its share")
	}
	if !ask(moveIn, a, x, false, room) || ask(moveIn, b, x, false, room) || ask(moveIn, b, x, true, room) {
		t.Error("not one in at a time")
	}
	if !ask(moveOut, b, x, true, full) {
		t.Error("a manual move is held against a share, or one out against one in")
	}
	room.this = true
	if !ask(moveIn, a, y, false, held{replicas: 9, this: true, high: 4}) {
		t.Error("the next owner cannot renew")
	}
	g.release(now, a, x, true)
	if ask(moveIn, b, x, false, room) {
		t.Error("released by who does not have it any more")
	}
	now = now.Add(grantTime)
	if !ask(moveIn, b, x, false, room) {
		t.Error("a grant outlives its time")
	}
	g.release(now, b, x, true)
	if !ask(moveIn, a, x, false, room) {
		t.Error("not released")
	}
	if !ask(moveOut, a, x, false, room) {
		t.Error("not one out")
	}
	g.release(now, a, x, true)
	if ask(moveOut, b, x, false, room) {
		t.Error("another one goes while the first is still there")
	}
	g.removed(a)
	if !ask(moveOut, b, x, false, room) {
		t.Error("none goes although the first is gone")
	}
}

func FuzzReservationAndRemoval(f *testing.F) {
	f.Add(encodeReservation(reservation{Op: reserveIn, Group: testGroup(1), Swap: Swap{From: ring.NodeID{1}, To: ring.NodeID{2}}, Manual: true}))
	f.Add(encodeRemoval(removal{Op: removalAsked, Group: testGroup(1), Replica: 300}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if r, err := decodeReservation(raw); err == nil {
			if again, err := decodeReservation(encodeReservation(r)); err != nil || again != r {
				t.Errorf("%+v became %+v, %v", r, again, err)
			}
		}
		if r, err := decodeRemoval(raw); err == nil {
			if again, err := decodeRemoval(encodeRemoval(r)); err != nil || again != r {
				t.Errorf("%+v became %+v, %v", r, again, err)
			}
		}
	})
}
