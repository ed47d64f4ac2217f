package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/memnet"
)

// listedMesh has n nodes with one configuration, that of initial_members; none runs yet.
func listedMesh(t *testing.T, n int) *testMesh {
	t.Helper()
	m := &testMesh{t: t, net: memnet.New(), logs: &syncBuffer{}}
	dir := t.TempDir()
	t.Cleanup(m.stop)
	var list []string
	for range n {
		list = append(list, gossipAddr())
	}
	slices.Sort(list) // node i is member i
	for i := range n {
		cfg := testConfig(fmt.Sprintf("n%d", i), dir)
		cfg.Gossip.Addr = list[i]
		cfg.InitialMembers = slices.Clone(list)
		slices.Reverse(cfg.InitialMembers[i%2:]) // the order does not matter
		m.nodes = append(m.nodes, &testNode{cfg: cfg, addr: fmt.Sprintf("127.0.9.%d:1", i+1)})
	}
	return m
}

// wipe empties a stopped node's data directory.
func (m *testMesh) wipe(i int) {
	m.t.Helper()
	if err := os.RemoveAll(m.nodes[i].cfg.DataDir); err != nil {
		m.t.Fatal(err)
	}
}

// catalogVoters lists the founding members of each catalog shard that node i holds.
func (m *testMesh) catalogVoters(i int) map[ring.GroupID][]replica.Member {
	out := map[ring.GroupID][]replica.Member{}
	for _, g := range m.nodes[i].host.Groups() {
		if g.Birth().Kind == replica.KindCatalog {
			out[g.ID()] = g.Birth().Members
		}
	}
	return out
}

func (m *testMesh) logged(all ...string) int {
	n := 0
	for line := range strings.Lines(m.logs.String()) {
		if !slices.ContainsFunc(all, func(s string) bool { return !strings.Contains(line, s) }) {
			n++
		}
	}
	return n
}

func TestMembersOfOneListFoundOneMesh(t *testing.T) {
	t.Parallel()
	m := listedMesh(t, 3)
	for _, i := range []int{2, 0, 1} {
		m.start(i)
	}
	m.waitWhole()
	mesh := m.nodes[0].mesh()
	for i, tn := range m.nodes {
		if tn.mesh() != mesh || tn.mesh().IsZero() {
			t.Fatalf("node %d is in mesh %s, node 0 in %s", i, tn.mesh(), mesh)
		}
		shards := m.catalogVoters(i)
		if len(shards) != catalogShards {
			t.Fatalf("node %d holds %d founding replicas of catalog shards", i, len(shards))
		}
		for g, members := range shards {
			for _, mem := range members {
				if mem.Node != m.nodes[mem.ID-1].data.id.NodeID {
					t.Fatalf("shard %s: replica %d is on node %s", g, mem.ID, mem.Node)
				}
			}
		}
	}
	m.must(1, 201, "PUT", "/v1/streams/s", `{"partitions":2}`)
	m.must(2, 200, "POST", "/v1/streams/s/events?key=k", "v")
	m.poll("the founding is complete everywhere", 10*time.Second, func() bool {
		return !slices.ContainsFunc(m.nodes, func(tn *testNode) bool { return !tn.data.record().Done })
	})
	// With their data they need the list no more, and one that starts again changes nothing.
	m.leave(1)
	m.nodes[1].cfg.InitialMembers = nil
	m.start(1)
	m.waitWhole()
	if m.nodes[1].mesh() != mesh || len(m.readAll(1, "s")) != 1 {
		t.Fatal("a restarted founder is in another mesh, or lost an event")
	}
}

func TestFiveMembersFoundACatalogOfThreeVotersEach(t *testing.T) {
	t.Parallel()
	m := listedMesh(t, 5)
	for i := range m.nodes {
		m.start(i)
	}
	m.poll("every node holds its shards, and is ready", 30*time.Second, func() bool {
		replicas := 0
		for i, tn := range m.nodes {
			if tn.mesh().IsZero() || len(m.failing(i)) > 0 {
				return false
			}
			for _, g := range tn.host.Groups() {
				if b := g.Birth(); !b.Empty && len(b.Members) != 3 { // an empty one came later
					t.Fatalf("a shard was founded with %d voters", len(b.Members))
				}
				replicas++
			}
		}
		return replicas == 3*catalogShards
	})
}

func TestFoundersWaitForALateMemberAndSaySoOnce(t *testing.T) {
	t.Parallel()
	m := listedMesh(t, 3)
	m.start(0)
	m.start(1)
	const line = "waiting for the other founding members"
	m.poll("both wait for the third alone", 10*time.Second, func() bool { return m.logged("node=n0", line, "missing=["+m.nodes[2].cfg.Gossip.Addr+"]") > 0 })
	for range 5 { // rounds of questions
		before := time.Now()
		m.poll("another round", 10*time.Second, func() bool { return time.Since(before) > foundEvery })
	}
	if n := m.logged("node=n0", line, "missing=["+m.nodes[2].cfg.Gossip.Addr+"]"); n != 1 {
		t.Errorf("%d lines", n)
	}
	if !m.nodes[0].mesh().IsZero() || !m.nodes[1].mesh().IsZero() {
		t.Fatal("two of three founded a mesh")
	}
	if s := m.summary(0); len(s.Reasons) != 1 || !strings.Contains(s.Reasons[0], line) || !strings.Contains(s.Reasons[0], m.nodes[2].cfg.Gossip.Addr) {
		t.Errorf("the summary says %q", s.Reasons)
	}
	m.start(2)
	m.waitWhole()
}

func TestMemberWhoseDiskWasEmptiedJoinsUnderANewIDAndNeverUsesItsFoundingReplicas(t *testing.T) {
	t.Parallel()
	m := listedMesh(t, 3)
	for i := range m.nodes {
		m.start(i)
	}
	m.waitWhole()
	mesh, first := m.nodes[0].mesh(), m.nodes[0].data.id.NodeID
	m.leave(0) // the one that decided
	m.wipe(0)
	m.start(0)
	m.poll("it is back in the mesh", 20*time.Second, func() bool { return m.nodes[0].mesh() == mesh })
	if m.nodes[0].data.id.NodeID == first || m.nodes[0].data.record() != nil {
		t.Fatal("it has its old id, or a founding record")
	}
	if n := len(m.catalogVoters(0)); n > 0 {
		for _, g := range m.nodes[0].host.Groups() {
			if !g.Birth().Empty {
				t.Fatalf("it uses founding replica %d of %s", g.Birth().Self, g.ID())
			}
		}
	}
	m.must(1, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
}

// A founding that was cut short at any step goes on, as long as the record is somewhere.
func TestFoundingCutShortIsFinished(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		cut  func(m *testMesh, rec *foundingRecord)
	}{
		{"decided, and nobody told", func(m *testMesh, rec *foundingRecord) {}},
		{"one other member told", func(m *testMesh, rec *foundingRecord) {
			m.edit(1, func(d *dataDir) error { return d.take(rec) })
		}},
		{"all told, nothing born", func(m *testMesh, rec *foundingRecord) {
			for i := range m.nodes {
				m.edit(i, func(d *dataDir) error { return d.setMesh(rec.Mesh, false) })
				m.edit(i, func(d *dataDir) error { return d.take(rec) })
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := listedMesh(t, 3)
			var members []ring.Member
			for i := range m.nodes {
				m.edit(i, func(d *dataDir) error {
					members = append(members, ring.Member{ID: d.id.NodeID})
					return nil
				})
			}
			key, err := meshKey(nil)
			if err != nil {
				t.Fatal(err)
			}
			rec := newFoundingRecord(key, "test", m.nodes[0].cfg.Founders(), members)
			m.edit(0, func(d *dataDir) error { return d.decide(rec) })
			c.cut(m, rec)
			for i := range m.nodes {
				m.start(i)
			}
			m.waitWhole()
			if m.nodes[2].mesh() != rec.Mesh {
				t.Fatalf("the mesh is %s, %s was begun", m.nodes[2].mesh(), rec.Mesh)
			}
			m.must(2, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
		})
	}
}

// edit changes a stopped node's identity.
func (m *testMesh) edit(i int, fn func(*dataDir) error) {
	m.t.Helper()
	cfg := m.nodes[i].cfg
	d, err := openDataDir(cfg.DataDir, cfg.ClusterID)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := fn(d); err != nil {
		m.t.Fatal(err)
	}
	if err := d.close(); err != nil {
		m.t.Fatal(err)
	}
}

func TestDifferentListsFoundNothingAndBothSidesSaySo(t *testing.T) {
	t.Parallel()
	m := listedMesh(t, 2)
	m.nodes[1].cfg.InitialMembers = append(m.nodes[1].cfg.InitialMembers, "127.0.9.9:8402")
	m.start(0)
	m.start(1)
	const line = "initial_members differs between two nodes"
	m.poll("both say so", 15*time.Second, func() bool { return m.logged(line, "node=n0") > 0 && m.logged(line, "node=n1") > 0 })
	if m.logged(line, "ours=", "theirs=") != 2 {
		t.Error("the lines do not name both lists, or come more than once")
	}
	if !m.nodes[0].mesh().IsZero() || !m.nodes[1].mesh().IsZero() {
		t.Fatal("a mesh was founded")
	}
	m.leave(1)
	m.nodes[1].cfg.InitialMembers = m.nodes[0].cfg.InitialMembers
	m.start(1)
	m.waitWhole()
}

func TestListedMemberJoinsAMeshThatIsThere(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 1)
	cfg := testConfig("n1", t.TempDir())
	cfg.InitialMembers = []string{m.nodes[0].cfg.Gossip.Addr, cfg.Gossip.Addr}
	m.nodes = append(m.nodes, &testNode{cfg: cfg, addr: "127.0.9.2:1"})
	m.start(1)
	m.waitWhole()
	if m.nodes[1].mesh() != m.nodes[0].mesh() || m.nodes[1].data.record() != nil {
		t.Fatal("it founded a mesh")
	}
}

func TestGatherFoundsOnlyWhenEveryMemberIsEmptyWithTheSameList(t *testing.T) {
	list := []string{"a:1", "b:1", "c:1"}
	id := func(i int) ring.NodeID { return ring.NodeID{15: byte(i)} }
	at := func(node, pos int) standing { return standing{Members: list, At: pos, node: id(node)} }
	for _, c := range []struct {
		name    string
		answers []standing
		nodes   []ring.NodeID
		missing []string
	}{
		{"all there, in any order", []standing{at(3, 2), at(1, 0), at(2, 1)}, []ring.NodeID{id(1), id(2), id(3)}, nil},
		{"one is missing", []standing{at(1, 0), at(3, 2)}, nil, []string{"b:1"}},
		{"one does not find itself", []standing{at(1, 0), at(2, -1), at(3, 2)}, nil, []string{"b:1"}},
		{"two are the same", []standing{at(1, 0), at(2, 1), at(4, 1), at(3, 2)}, nil, nil},
		{"one has another list", []standing{at(1, 0), {Members: list[:2], At: 1, node: id(2)}, at(3, 2)}, nil, []string{"b:1"}},
		{"one is in a mesh", []standing{at(1, 0), {Members: list, At: 1, Mesh: ring.MeshID{1}, node: id(2)}, at(3, 2)}, nil, []string{"b:1"}},
		{"a stranger is in a mesh", []standing{at(1, 0), at(2, 1), at(3, 2), {Mesh: ring.MeshID{1}, node: id(7)}}, nil, nil},
		{"a position beyond the list", []standing{at(1, 0), at(2, 1), at(3, 9)}, nil, []string{"c:1"}},
		{"one that only joins does not count", []standing{at(1, 0), at(2, 1), at(3, 2), {At: -1, node: id(5)}}, []ring.NodeID{id(1), id(2), id(3)}, nil},
	} {
		g := gather(list, c.answers)
		if !slices.Equal(g.nodes, c.nodes) || !slices.Equal(g.missing, c.missing) {
			t.Errorf("%s: nodes %v, missing %v", c.name, g.nodes, g.missing)
		}
	}
}

func TestFoundingRecordOfAnotherMeshIsRefused(t *testing.T) {
	key, err := meshKey([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	other, _ := meshKey(nil)
	list := []string{"a:1", "b:1", "c:1"}
	rec := newFoundingRecord(key, "x", list, []ring.Member{{ID: ring.NodeID{1}}, {ID: ring.NodeID{2}}, {ID: ring.NodeID{3}}})
	if err := rec.check([][]byte{other, key}, "x"); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]func(r *foundingRecord) ([][]byte, string){
		"another secret":    func(*foundingRecord) ([][]byte, string) { return [][]byte{other}, "x" },
		"another cluster":   func(*foundingRecord) ([][]byte, string) { return [][]byte{key}, "y" },
		"another node":      func(r *foundingRecord) ([][]byte, string) { r.Nodes[1] = ring.NodeID{9}; return [][]byte{key}, "x" },
		"another list":      func(r *foundingRecord) ([][]byte, string) { r.Members[2] = "d:1"; return [][]byte{key}, "x" },
		"a missing shard":   func(r *foundingRecord) ([][]byte, string) { r.Shards = r.Shards[1:]; return [][]byte{key}, "x" },
		"a shard of nobody": func(r *foundingRecord) ([][]byte, string) { r.Shards[0] = nil; return [][]byte{key}, "x" },
		"a voter twice":     func(r *foundingRecord) ([][]byte, string) { r.Shards[0] = []int{1, 1}; return [][]byte{key}, "x" },
		"a voter too many":  func(r *foundingRecord) ([][]byte, string) { r.Shards[0] = []int{3}; return [][]byte{key}, "x" },
	} {
		r := newFoundingRecord(key, "x", slices.Clone(list), []ring.Member{{ID: ring.NodeID{1}}, {ID: ring.NodeID{2}}, {ID: ring.NodeID{3}}})
		keys, cluster := bad(r)
		if r.check(keys, cluster) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if newFoundingRecord(key, "x", list, []ring.Member{{ID: ring.NodeID{1}}, {ID: ring.NodeID{2}}, {ID: ring.NodeID{4}}}).Mesh == rec.Mesh {
		t.Error("founded anew by other nodes, the mesh is the same")
	}
}
