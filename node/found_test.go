package node

import (
	"io"
	"log/slog"
	"testing"

	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/memnet"
)

func TestFounderKnowsItsMeshBeforeItHearsOfAnother(t *testing.T) {
	cfg := config.Default()
	cfg.Name, cfg.ClusterID, cfg.DataDir, cfg.Found = "n", "test", t.TempDir(), true
	cfg.HTTP.Addr, cfg.Gossip.Addr = "127.0.0.1:0", "127.0.0.1:0"
	n, err := newNode(cfg, slog.New(slog.NewTextHandler(io.Discard, nil)), memnet.New().Node("127.0.9.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.chooseMesh(); err != nil { // the first thing that Run does
		t.Fatal(err)
	}
	own := n.mesh()
	if told, ok := n.gossip.MeshID(); !ok || told != own || own.IsZero() {
		t.Fatalf("the mesh is %s, gossip has %s", own, told)
	}
	if err := n.joinedMesh(ring.NewMeshID()); err == nil || n.mesh() != own || !n.data.founding() {
		t.Fatalf("a founder joined another mesh: %v, %s", err, n.mesh())
	}
}

func TestFounderOfAMeshDoesNotJoinAnother(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 1)
	n := m.nodes[0]
	own := n.mesh()
	if err := n.joinedMesh(ring.NewMeshID()); err == nil || n.mesh() != own {
		t.Fatalf("it did: %v, %s", err, n.mesh())
	}
}
