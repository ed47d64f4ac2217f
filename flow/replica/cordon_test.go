package replica

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// manyProbes is time for an owner to ask several times for a learner that is silent.
const manyProbes = 3 * time.Minute

// withLearner makes a group of a voter on node 0 and a learner on node 1, with one entry on both, and then has node 1 take nothing new.
func (m *mesh) withLearner() (ring.GroupID, ring.ReplicaID) {
	m.t.Helper()
	g := testGroup(1)
	m.found(g, 0)
	m.await("a second copy", func() bool { return m.propose(g, "a").Copies == 2 })
	m.set(m.cordoned, 1, true)
	return g, m.group(1, g).birth.Self
}

// keeps wants that the learner is the one that it was, and takes part.
func (m *mesh) keeps(g ring.GroupID, id ring.ReplicaID) {
	m.t.Helper()
	if mem := m.owner(g).Status().Members; !slices.ContainsFunc(mem, func(o Member) bool { return o.ID == id }) {
		m.t.Fatalf("the learner %d was removed: %v", id, mem)
	}
	m.await("the learner", func() bool { r := m.group(1, g); return r != nil && r.birth.Self == id })
	m.await("two copies", func() bool { return m.propose(g, "z").Copies == 2 })
	m.converge(g, 0, 1)
}

// What is here and does not run yet, or does not run now, is no new replica to a node that takes none.
func TestCordonedNodeKeepsALearnerThatDoesNotRunYet(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g, id := m.withLearner()
		n, gate := m.nodes[1], make(chan struct{})
		n.stop()
		m.tune = func(c *Config) {
			open := c.Factories[KindPartition]
			c.Factories[KindPartition] = func(b Birth, prefix []byte) (StateMachine, error) {
				<-gate // as with much to open
				return open(b, prefix)
			}
		}
		n.launch()
		virtual.Sleep(manyProbes)
		close(gate)
		<-n.host.Ready()
		m.keeps(g, id)
	})
}

func TestCordonedNodeKeepsALearnerThatWaitsForSpaceOnItsDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 2, 7)
		full := &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeDiskFull}
		var isFull atomic.Bool
		m.tune = func(c *Config) {
			open := c.Factories[KindPartition]
			c.Factories[KindPartition] = func(b Birth, prefix []byte) (StateMachine, error) {
				if isFull.Load() {
					return nil, full
				}
				return open(b, prefix)
			}
		}
		for _, n := range m.nodes {
			n.start()
		}
		g, id := m.withLearner()
		isFull.Store(true)
		gr := m.group(1, g)
		gr.post(func() { gr.sm.(*recorder).fail = func(logEntry) error { return full } })
		m.propose(g, "b")
		<-gr.Done()
		virtual.Sleep(manyProbes / 2)
		m.nodes[1].journal.hold(true) // it is being opened, which takes long
		virtual.Sleep(manyProbes / 2)
		m.nodes[1].journal.hold(false)
		isFull.Store(false)
		m.keeps(g, id)
		m.stop()
	})
}

// refusedBirths answers births as a node does that takes nothing new, and did not look whether it has the replica.
type refusedBirths struct{ Caller }

func (c refusedBirths) Call(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, body []byte) ([]byte, error) {
	if m == wire.MethodBirth {
		return nil, takesNothing(wire.KindUnavailable, "create replica")
	}
	return c.Caller.Call(ctx, to, class, m, body)
}

func TestRefusalAloneDoesNotSayThatALearnerIsGone(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g, id := m.withLearner()
		m.nodes[0].stop()
		m.tune = func(c *Config) { c.Caller = refusedBirths{c.Caller} }
		m.nodes[0].start()
		m.await("two copies", func() bool { return m.propose(g, "b").Copies == 2 })
		m.split(1, 0, true)
		m.mu.Lock()
		m.cut[[2]int{0, 1}] = false // its owner reaches it, and does not hear it
		m.mu.Unlock()
		virtual.Sleep(manyProbes)
		if len(m.declinedTo(0)) == 0 {
			t.Fatal("it was never asked")
		}
		m.split(1, 0, false)
		m.keeps(g, id)
	})
}

func TestLearnerThatACordonedNodeDoesNotHaveGoes(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g, _ := m.withLearner()
		n := m.nodes[1]
		n.stop()
		n.journal.Close()
		n.journal, n.store, n.bulks = newMemJournal(), newMemStore(), map[ring.GroupID]*bulk{}
		n.start()
		virtual.Sleep(manyProbes)
		m.awaitMembers(g, 1, 0)
	})
}
