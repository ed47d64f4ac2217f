package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/transport/wire"
)

func TestDirectoryOfANewerVersionIsRefusedAndLeftAsItIs(t *testing.T) {
	dir := t.TempDir()
	d, err := openDataDir(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	if raised, err := d.raiseFloor(wire.Newest + 1); err != nil || !raised {
		t.Fatal(raised, err)
	}
	if raised, err := d.raiseFloor(wire.Newest); err != nil || raised || d.floor() != wire.Newest+1 {
		t.Fatal("the floor sank:", raised, err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, identityFile)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = openDataDir(dir, "test"); err == nil || !strings.Contains(err.Error(), "format 3") || !strings.Contains(err.Error(), "formats 1 to 2") {
		t.Fatalf("it says %v", err)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Fatalf("it was changed: %s, %v", after, err)
	}
}

func TestFirstUseOfAVersionIsKnownToAllBeforeItBegins(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, n := range m.nodes {
		if v := n.data.floor(); v != wire.Oldest {
			t.Fatalf("%s begins at version %d", n.cfg.Name, v)
		}
	}
	if err := m.nodes[1].RequireVersion(ctx, wire.Newest+1); wire.CodeOf(err) != wire.CodeMeshVersion {
		t.Fatalf("a version that is not there: %v", err)
	}
	if err := m.nodes[1].RequireVersion(ctx, wire.Newest); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.nodes {
		if v := n.data.floor(); v != wire.Newest {
			t.Fatalf("%s is at version %d", n.cfg.Name, v)
		}
	}
}
