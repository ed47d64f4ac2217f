package replica

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// lanesTo lists the nodes to which a node keeps queues.
func (n *node) lanesTo() (to []ring.NodeID) {
	o := n.host.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := range o.lanes {
		if !slices.Contains(to, k.to) {
			to = append(to, k.to)
		}
	}
	return to
}

// noted is of how many replicas a group keeps notes, at most.
func (g *Group) noted() (n int) {
	_ = g.ask(context.Background(), "test", func() error {
		n = max(len(g.heard), len(g.unfitUntil), len(g.plan.refused), len(g.plan.born), len(g.plan.dead), len(g.snapIdle), len(g.strangers))
		return nil
	})
	return n
}

func TestNodesThatComeAndGoLeaveNothingBehind(t *testing.T) {
	inMesh(t, 7, func(m *mesh) {
		g := m.foundOnThree()
		for i := range 12 {
			on := m.on(g)
			gone := i % len(m.nodes)
			if _, in := on[gone]; !in {
				continue
			}
			m.set(m.drained, gone, true)
			m.await("the node is left", func() bool { _, in := m.on(g)[gone]; return !in && m.group(gone, g) == nil })
			m.set(m.drained, gone, false)
		}
		owner := m.owner(g)
		if last := owner.Status().Members; last[len(last)-1].ID < 8 {
			t.Fatalf("too few came and went: %v", last)
		}
		m.await("three members", func() bool { return len(m.on(g)) == 3 })
		here := m.nodeOf(owner)
		m.await("the nodes that left are forgotten", func() bool {
			for _, n := range here.lanesTo() {
				if !m.on(g)[m.find(n).i] {
					return false
				}
			}
			return owner.noted() <= 3
		})
		m.propose(g, "b")
		for i := range m.on(g) {
			if r := m.group(i, g); r.noted() > 3 {
				t.Errorf("node %d keeps notes of %d replicas", i, r.noted())
			}
		}
	})
}

func TestLaneThatIsForgottenLosesNothingAndComesBack(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		o := m.nodes[0].host.outbox
		to := ring.NodeID{9}
		add := func() { o.add(to, ring.GroupID{}, beatMessage(beat{boot: 1, seq: 1}), true) }
		lanes := func() (n int) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return len(o.lanes)
		}
		add()
		if o.retain(nil); lanes() != 1 {
			t.Fatal("a lane is forgotten while something waits in it")
		}
		o.flushing.Lock()
		o.flushLocked()
		o.flushing.Unlock()
		if o.retain([]ring.NodeID{to}); lanes() != 1 {
			t.Fatal("the lane of a peer is forgotten")
		}
		if o.retain(nil); lanes() != 0 {
			t.Fatal("the lane of a node that left is kept")
		}
		if add(); o.lanes[laneKey{to, wire.ClassControl}] == nil {
			t.Fatal("a node that comes back gets no lane")
		}
	})
}

func TestStrangersThatNeverBecameMembersAreForgotten(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := m.foundOnThree()
		r := m.owner(g)
		believed := func(id ring.ReplicaID) (ok bool) {
			if err := r.ask(context.Background(), "test", func() error { ok = r.known(id, m.nodes[3].id); return nil }); err != nil {
				t.Fatal(err)
			}
			return ok
		}
		last := ring.ReplicaID(3)
		for last++; believed(last); last++ {
		}
		if last != 4+maxStrangers {
			t.Fatalf("%d strangers are believed", last-4)
		}
		// The next member's id is above one of them: that one never became a member, and never will.
		if err := r.ask(context.Background(), "test", func() error { r.plan.tried = 4; return nil }); err != nil {
			t.Fatal(err)
		}
		gone := (m.nodeOf(r).i + 1) % 3
		m.set(m.drained, gone, true)
		m.await("another member", func() bool { _, in := m.on(g)[3]; return in })
		if r != m.owner(g) {
			t.Fatal("the owner changed")
		}
		if !believed(last) || !believed(last+1) || believed(last+2) {
			t.Fatal("strangers whose ids are used up take the place of those to come")
		}
	})
}

func TestHandOversToNodesThatLeftAreForgotten(t *testing.T) {
	var l handedLately
	now := time.Unix(1000, 0)
	for i := range 100 {
		l.note(now, ring.NodeID{byte(i + 1)}, false)
		now = now.Add(time.Second)
	}
	if n := len(l.given); n > int(gossipLag/time.Second)+1 {
		t.Fatalf("%d nodes are remembered", n)
	}
	if l.count(now, ring.NodeID{100}) != 1 {
		t.Fatal("the last one is forgotten, too")
	}
}

func TestLastReplicasRemovedAreTheOnesTold(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		r := m.owner(m.foundOnThree())
		if err := r.ask(context.Background(), "test", func() error {
			before := map[ring.ReplicaID]ring.NodeID{}
			for id := range ring.ReplicaID(maxGone + 10) {
				clear(before)
				before[100+id] = ring.NodeID{9} // never there
				r.noteGone(before)
			}
			if n := len(r.plan.gone); n != maxGone || r.plan.gone[n-1].ID != 100+maxGone+9 {
				t.Errorf("%d are to be told, the last of them %d", n, r.plan.gone[n-1].ID)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}
