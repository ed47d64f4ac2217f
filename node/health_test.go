package node

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/api"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/memnet"
)

func (m *testMesh) summary(i int) api.MeshSummary {
	m.t.Helper()
	s, err := (meshPages{m.nodes[i].Node}).Summary(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// failing names the checks that node i does not pass.
func (m *testMesh) failing(i int) []string {
	var names []string
	for _, c := range (meshPages{m.nodes[i].Node}).Readiness(context.Background()) {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

// leave stops node i in order.
func (m *testMesh) leave(i int) {
	m.t.Helper()
	tn := m.nodes[i]
	tn.cancel()
	if err := <-tn.ended; err != nil {
		m.t.Fatal(err)
	}
	tn.cancel = nil
}

func TestNodeWithoutAMeshSaysSo(t *testing.T) {
	cfg := testConfig("alone", t.TempDir())
	cfg.Join = []string{gossipAddr()}
	n, err := newNode(cfg, slog.New(slog.DiscardHandler), memnet.New().Node("127.0.9.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s, err := (meshPages{n}).Summary(context.Background())
	if err != nil || s.Health != "critical" || !slices.Equal(s.Reasons, []string{notJoined}) {
		t.Fatalf("%v, health %s because %q", err, s.Health, s.Reasons)
	}
}

func TestLearnerWhoseOwnerIsGoneIsNotReady(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	m.poll("node 1 is ready", 10*time.Second, func() bool { return len(m.failing(1)) == 0 })
	if s := m.summary(1); !slices.Contains(s.Reasons, twoNodes) {
		t.Fatalf("a mesh of two is %s because %q", s.Health, s.Reasons)
	}
	m.leave(0)
	m.poll("node 1 misses the catalog's owner", 10*time.Second, func() bool { return slices.Contains(m.failing(1), "catalog") })
}

func TestMeshOfThreeThatOneLeftIsNoMeshOfTwo(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.leave(2)
	m.poll("node 0 counts two nodes", 10*time.Second, func() bool { return m.summary(0).Nodes == 2 })
	if s := m.summary(0); slices.Contains(s.Reasons, twoNodes) {
		t.Fatalf("%s because %q", s.Health, s.Reasons)
	}
	m.poll("node 0 is ready without it", 10*time.Second, func() bool { return len(m.failing(0)) == 0 })
}

// Of four nodes one holds no replica of the shard: all it knows of the owner is what it heard.
func TestNodeWithoutAReplicaMissesAShardWhoseOwnerIsGone(t *testing.T) {
	t.Parallel()
	m := startStill(t, 4)
	g := ring.CatalogGroup(m.nodes[0].mesh(), 0)
	without := slices.IndexFunc(m.nodes, func(tn *testNode) bool {
		_, here := tn.host.Group(g)
		return !here
	})
	if without < 0 {
		t.Fatal("every node holds a replica of the shard")
	}
	owner := -1
	m.poll("the shard has an owner", 10*time.Second, func() bool {
		owner = slices.IndexFunc(m.nodes, func(tn *testNode) bool {
			lg, here := tn.host.Group(g)
			return here && lg.Status().Role == replica.RoleOwner
		})
		return owner >= 0
	})
	others := slices.DeleteFunc([]int{0, 1, 2, 3}, func(i int) bool { return i == owner || i == without })
	m.net.Cut(m.nodes[others[0]].addr, m.nodes[others[1]].addr) // neither can be elected
	m.net.Cut(m.nodes[owner].addr, m.nodes[others[0]].addr)
	m.net.Cut(m.nodes[owner].addr, m.nodes[others[1]].addr)
	m.leave(owner)
	m.poll("the shard's owner is missed", 20*time.Second, func() bool { return !m.nodes[without].shardOwned(0) })
}

func TestPartitionWhoseOwnerIsGoneHasNone(t *testing.T) {
	t.Parallel()
	m := startStill(t, 3)
	info, _, err := m.nodes[0].broker.Create(context.Background(), "orders", flow.StreamConfig{Partitions: 16, Replicas: 1}, flow.CreateOnly)
	if err != nil {
		t.Fatal(err)
	}
	m.poll("every partition has an owner", 10*time.Second, func() bool { return m.summary(0).Ownerless == 0 })
	there := 0
	for _, p := range info.Partitions {
		if p.Replicas[0] == m.nodes[2].cfg.Name {
			there++
		}
	}
	if there == 0 {
		t.Fatal("node 2 holds no partition")
	}
	m.leave(2)
	m.poll("node 0 misses their owner", 20*time.Second, func() bool { return m.summary(0).Ownerless == there })
}
