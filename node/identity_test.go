package node

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// TestIdentityThatCannotBeWrittenStaysAsItIs: what is not on disk is not gone by, and asking again does not pass for done.
func TestIdentityThatCannotBeWrittenStaysAsItIs(t *testing.T) {
	mesh, node := ring.NewMeshID(), ring.NewNodeID()
	for _, c := range []struct {
		name   string
		change func(d *dataDir) error
	}{
		{"the mesh", func(d *dataDir) error { return d.setMesh(mesh, true) }},
		{"the floor", func(d *dataDir) error { _, err := d.raiseFloor(wire.Oldest + 1); return err }},
		{"the marks", func(d *dataDir) error { return d.setMarks(marks{Cordoned: true}) }},
		{"the id is given up", func(d *dataDir) error { return d.giveUp(reasonRolledBack, "a test") }},
		{"lost nodes", func(d *dataDir) error { return d.declareLost([]RecoverNode{{ID: node}}) }},
		{"a founding record", func(d *dataDir) error { return d.decide(&foundingRecord{Mesh: mesh}) }},
		{"another's founding record", func(d *dataDir) error { return d.take(&foundingRecord{Mesh: mesh}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			d, err := openDataDir(dir, "test")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = d.close() }()
			before := d.id
			inTheWay := filepath.Join(dir, identityFile+newSuffix)
			if err := os.Mkdir(inTheWay, 0o750); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := c.change(d); err == nil {
					t.Error("a change that could not be written was taken for done")
				}
				if !reflect.DeepEqual(d.id, before) {
					t.Errorf("the node goes by what its disk does not have: %+v, was %+v", d.id, before)
				}
			}
			if err := os.Remove(inTheWay); err != nil {
				t.Fatal(err)
			}
			if err := c.change(d); err != nil || reflect.DeepEqual(d.id, before) {
				t.Errorf("once the disk takes it again: %v, %+v", err, d.id)
			}
		})
	}
}

func TestDataDirThatIsAFileIsCalledSo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if _, err := openDataDir(path, "test"); err == nil || !strings.Contains(err.Error(), "not a directory") || strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
