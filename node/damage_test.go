package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// segmentBytes is what a partition's segment files on a node hold, one after the other.
func (tn *testNode) segmentBytes(t *testing.T, g ring.GroupID) (all []byte, files []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(tn.cfg.DataDir, "partitions", g.String(), "*", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, raw...)
	}
	return all, files
}

// TestNodeWithADamagedSegmentVotesAndGetsItsBytesFromTheOthers: a bit flips on the disk of a node that is down.
func TestNodeWithADamagedSegmentVotesAndGetsItsBytesFromTheOthers(t *testing.T) {
	t.Parallel()
	m := startStill(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`, "If-None-Match", "*")
	for i := range 50 {
		m.must(0, 200, "POST", "/v1/streams/s/events?key=k", fmt.Sprintf("event %d", i))
	}
	owner := m.owner("s", 0)
	var g ring.GroupID
	for _, lg := range m.nodes[owner].host.Groups() {
		if _, ok := lg.StateMachine().(*partition.Partition); ok {
			g = lg.ID()
		}
	}
	hurt := (owner + 1) % 3
	lg, _ := m.nodes[hurt].host.Group(g)
	all := m.nodes[owner].host
	m.poll("the other replica has all", 10*time.Second, func() bool {
		og, ok := all.Group(g)
		return ok && lg.Status().Applied == og.Status().Applied
	})
	if err := m.nodes[hurt].host.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.nodes[hurt].cancel()
	if err := <-m.nodes[hurt].ended; err != nil {
		t.Fatal(err)
	}
	_, files := m.nodes[hurt].segmentBytes(t, g)
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(files[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(hurt)
	m.poll("the damaged replica is mended", 30*time.Second, func() bool {
		lg, ok := m.nodes[hurt].host.Group(g)
		if !ok {
			return false
		}
		st := lg.Status()
		if st.Damage != nil && st.Role == replica.RoleOwner {
			t.Fatal("a damaged replica owns its group")
		}
		return st.Damage == nil && st.Applied > 0
	})
	m.must(hurt, 200, "POST", "/v1/streams/s/events?key=k", "later")
	m.poll("all replicas are the same bytes", 20*time.Second, func() bool {
		want, _ := m.nodes[owner].segmentBytes(t, g)
		got, files := m.nodes[hurt].segmentBytes(t, g)
		return len(files) > 0 && bytes.HasSuffix(got, want)
	})
	for _, c := range (meshPages{m.nodes[hurt].Node}).Readiness(context.Background()) {
		if c.Name == "damage" && (!c.OK || c.Detail != "") {
			t.Errorf("it still tells of damage: %+v", c)
		}
	}
	if got := m.readAll(hurt, "s"); len(got) != 51 {
		t.Errorf("%d events are read, want 51", len(got))
	}
}
