package flow

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

// countingPeers counts the births that are pushed to each node.
type countingPeers struct {
	Peers
	mu     *sync.Mutex
	births map[ring.NodeID]int
}

func (p countingPeers) Call(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, body []byte) ([]byte, error) {
	if m == wire.MethodFounding {
		p.mu.Lock()
		p.births[to]++
		p.mu.Unlock()
	}
	return p.Peers.Call(ctx, to, class, m, body)
}

// fatePeers is told when a node asks for fates.
type fatePeers struct {
	Peers
	asked func()
}

func (p fatePeers) Call(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, body []byte) ([]byte, error) {
	var req catalogRequest
	if m == wire.MethodCatalog && wire.Unmarshal(body, &req) == nil && req.Op == opCatalogFates {
		p.asked()
	}
	return p.Peers.Call(ctx, to, class, m, body)
}

// A node asks for the fates of its streams at every tenth look for births.
func TestFatesAreAskedAtEveryTenthLook(t *testing.T) {
	var mu sync.Mutex
	var asked []time.Duration
	var start time.Time
	inMesh(t, 1, func(c *Config) {
		start = time.Now()
		c.Peers = fatePeers{c.Peers, func() {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, time.Since(start).Round(birthEvery))
		}}
	}, func(t *testing.T, m *mesh) {
		m.create("s", StreamConfig{Partitions: 2})
		virtual.Sleep(4*fateEvery - birthEvery - time.Since(start))
		mu.Lock()
		defer mu.Unlock()
		if want := []time.Duration{fateEvery, 2 * fateEvery, 3 * fateEvery}; !slices.Equal(asked, want) {
			t.Fatalf("asked after %v, want %v", asked, want)
		}
	})
}

// everywhere places all that is new on all nodes of a mesh, there or not.
type everywhere struct{ directory }

func (d everywhere) Place(groups []ring.GroupID, _ int) [][]ring.NodeID {
	out := make([][]ring.NodeID, len(groups))
	for i := range out {
		for _, nd := range d.nd.m.nodes {
			out[i] = append(out[i], nd.id)
		}
	}
	return out
}

func TestBirthsAreNotPushedToANodeThatIsGoneUntilItComesBack(t *testing.T) {
	births, mu := map[ring.NodeID]int{}, &sync.Mutex{}
	pushed := func(nd *node) int {
		mu.Lock()
		defer mu.Unlock()
		return births[nd.id]
	}
	inMesh(t, 3, func(c *Config) {
		c.Peers, c.Directory = countingPeers{c.Peers, mu, births}, everywhere{c.Directory.(directory)}
	}, func(t *testing.T, m *mesh) {
		gone := m.nodes[2]
		if m.owner(ring.CatalogGroup(m.id, 0)) == gone {
			gone = m.nodes[1]
		}
		gone.stop()
		info, _, err := m.owner(ring.CatalogGroup(m.id, 0)).broker.Create(m.within(10*time.Second), "s", StreamConfig{Partitions: 2}, CreateOnly)
		if err != nil {
			t.Fatal(err)
		}
		group := info.Partitions[0].Group
		m.owner(group)
		virtual.Sleep(10 * birthEvery)
		if n := pushed(gone); n > 0 {
			t.Fatalf("%d births were pushed to a node that is not there", n)
		}
		gone.start()
		m.until("the founder is born when it comes back", func() bool { _, ok := gone.host.Group(group); return ok })
		virtual.Sleep(2 * birthEvery)
		before := pushed(gone)
		virtual.Sleep(5 * birthEvery)
		if now := pushed(gone); before == 0 || now != before {
			t.Fatalf("confirmed births are pushed again: %d, then %d", before, now)
		}
	})
}
