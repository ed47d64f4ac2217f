package flow

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
)

// members lists the nodes that hold a replica of the group, by the owner's word.
func (m *mesh) members(g ring.GroupID) (out []ring.NodeID) {
	lg, _ := m.owner(g).host.Group(g)
	for _, mem := range lg.Status().Members {
		out = append(out, mem.Node)
	}
	return out
}

// holders are the nodes with a replica of the group, by the owner's word, and those without.
func (m *mesh) holders(g ring.GroupID) (with, without []*node) {
	m.t.Helper()
	on := m.members(g)
	for _, nd := range m.nodes {
		if slices.Contains(on, nd.id) {
			with = append(with, nd)
		} else {
			without = append(without, nd)
		}
	}
	return with, without
}

// move moves a replica and waits until it is gone from where it was.
func (m *mesh) move(g ring.GroupID, from, to *node) {
	m.t.Helper()
	var err error
	for range 100 {
		if _, err = m.owner(g).host.Move(m.within(5*time.Second), g, from.id, to.id, false); err == nil {
			break
		}
		virtual.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	for range 3000 {
		_, here := from.host.Group(g)
		if on := m.members(g); !here && !slices.Contains(on, from.id) && slices.Contains(on, to.id) {
			return
		}
		virtual.Sleep(10 * time.Millisecond)
	}
	lg, _ := m.owner(g).host.Group(g)
	m.t.Fatalf("the replica never moved: %+v", lg.Status())
}

// readOn reads until ctx ends; nothing else may end it.
func readOn(t *testing.T, ctx context.Context, sub Subscription) (out []string) {
	for {
		c, err := sub.Next(ctx, 0)
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("a reader was ended after %d events: %v", len(out), err)
			}
			return out
		}
		out = append(out, values(c.Events)...)
	}
}

// While every replica of a partition moves, the owner's among them, to nodes that held none, publishing goes on, and readers read on where
// they were: one whose own replica goes away, one that reads from another node, and one on a node that gets a replica.
func TestReadersAndPublishersGoOnWhileReplicasMove(t *testing.T) {
	inMesh(t, 6, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		g := info.Partitions[0].Group
		reading, enough := context.WithCancel(t.Context())
		defer enough()
		var readers sync.WaitGroup
		got := make([][]string, len(m.nodes))
		for i, nd := range m.nodes {
			sub, err := nd.broker.Subscribe(t.Context(), "orders", earliest())
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close() //nolint:errcheck // it returns nil
			readers.Go(func() { got[i] = readOn(t, reading, sub) })
		}
		stop := make(chan struct{})
		var publishing sync.WaitGroup
		total := 0
		publishing.Go(func() {
			for ; ; total++ {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				_, err := m.nodes[total%6].broker.Publish(ctx, "orders", []batch.Record{event("k", fmt.Sprint(total))}, PublishOptions{})
				cancel()
				if err != nil {
					t.Errorf("publish %d on node %d: %v", total, total%6, err)
					return
				}
			}
		})
		from, to := m.holders(g)
		if len(from) != 3 || len(to) != 3 {
			t.Fatalf("%d and %d nodes", len(from), len(to))
		}
		for i := range from {
			m.move(g, from[i], to[i])
			virtual.Sleep(200 * time.Millisecond)
		}
		close(stop)
		publishing.Wait()
		virtual.Sleep(3 * time.Second)
		enough()
		readers.Wait()
		for i := range got {
			if len(got[i]) != total {
				t.Errorf("the reader on node %d has %d of %d events", i, len(got[i]), total)
			}
			for k, v := range got[i] {
				if v != fmt.Sprint(k) {
					t.Fatalf("the reader on node %d has %s at %d", i, v, k)
				}
			}
		}
		if total < 100 {
			t.Errorf("only %d events", total)
		}
		// A newcomer that knows the founders alone finds them, too.
		for i := range m.nodes {
			if got := m.readAll(i, "orders", earliest()); len(got) != total {
				t.Errorf("node %d reads %d of %d events", i, len(got), total)
			}
		}
		for _, nd := range from {
			if lg, ok := nd.host.Group(g); ok {
				t.Errorf("node %d still holds replica %d", nd.i, lg.Birth().Self)
			}
		}
	})
}

// Births that the catalog pushes again, as every new owner of its shard does, bring no founder back that moved away.
func TestBirthsBringNoFounderBackThatMovedAway(t *testing.T) {
	inMesh(t, 4, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		g := info.Partitions[0].Group
		m.put(0, "orders", "k", "v")
		with, without := m.holders(g)
		from := with[0]
		m.move(g, from, without[0])
		shard := ring.CatalogGroup(m.id, 0)
		owner := m.owner(shard)
		next := m.nodes[(owner.i+1)%len(m.nodes)]
		lg, _ := owner.host.Group(shard)
		if st := lg.Status(); !slices.ContainsFunc(st.Members, func(mem replica.Member) bool { return mem.Node == next.id && !mem.Learner }) {
			t.Fatalf("no voter to hand the shard to: %+v", st.Members)
		}
		if err := lg.Transfer(m.within(5*time.Second), next.id); err != nil {
			t.Fatal(err)
		}
		m.owner(shard)
		virtual.Sleep(5 * time.Second)
		if _, here := from.host.Group(g); here {
			t.Error("the founder is back")
		}
		m.put(1, "orders", "k", "w")
	})
}
