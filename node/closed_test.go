package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/ring"
)

// check gives the detail of one condition of a node's readiness.
func (tn *testNode) check(name string) string {
	for _, c := range (meshPages{tn.Node}).Readiness(context.Background()) {
		if c.Name == name {
			return c.Detail
		}
	}
	return ""
}

// breakState makes the small state of a group unreadable on the disk of a node that is down.
func (tn *testNode) breakState(t *testing.T, g ring.GroupID) {
	t.Helper()
	store, err := log.OpenStore(log.StoreConfig{Dir: filepath.Join(tn.cfg.DataDir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b := store.NewBatch()
	if err := store.Scan(replica.StatePrefix(g), func(key, _ []byte) error {
		b.Set(append([]byte(nil), key...), []byte{0xff})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

// TestVoterThatIsClosedForGoodComesBackWithoutADrain: its state is damaged, which nothing mends, on a node that is there, and there is no
// other node that could take a copy.
func TestVoterThatIsClosedForGoodComesBackWithoutADrain(t *testing.T) {
	m := startMeshWith(t, 3, func(c *config.Config) { c.ReplaceAfter = 5 * time.Second })
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`, "If-None-Match", "*")
	sent := 0
	publish := func() {
		m.must(0, 200, "POST", "/v1/streams/s/events?key=k", fmt.Sprintf("event %d", sent))
		sent++
	}
	for range 20 {
		publish()
	}
	owner := m.owner("s", 0)
	var g ring.GroupID
	for _, lg := range m.nodes[owner].host.Groups() {
		if _, ok := lg.StateMachine().(*partition.Partition); ok {
			g = lg.ID()
		}
	}
	hurt := 2
	if owner == hurt {
		hurt = 1
	}
	lg, ok := m.nodes[hurt].host.Group(g)
	if !ok {
		t.Fatal("no replica there")
	}
	was := lg.Birth().Self
	m.nodes[hurt].cancel()
	if err := <-m.nodes[hurt].ended; err != nil {
		t.Fatal(err)
	}
	m.nodes[hurt].breakState(t, g)
	m.start(hurt)
	m.poll("the replica is closed for good, and its node says so", 10*time.Second, func() bool {
		return strings.Contains(m.nodes[hurt].check("damage"), "1 replicas here are closed for good")
	})
	m.poll("the others say so", 20*time.Second, func() bool {
		_, page := m.do(0, "GET", "/v1/mesh", "")
		return strings.Contains(page, "the copy on "+m.nodes[hurt].cfg.Name+" is closed for good since")
	})
	publish()
	m.poll("a new replica is there, and votes", 30*time.Second, func() bool {
		lg, ok := m.nodes[hurt].host.Group(g)
		if !ok {
			return false
		}
		voters := 0
		for _, mem := range lg.Status().Members {
			if !mem.Learner {
				voters++
			}
		}
		return lg.Birth().Self > was && voters == 3
	})
	publish()
	m.poll("all say that nothing is lacking", 10*time.Second, func() bool {
		_, page := m.do(0, "GET", "/v1/mesh", "")
		return !strings.Contains(page, "closed for good") && m.nodes[hurt].check("damage") == "" && m.nodes[hurt].check("copies") == ""
	})
	for i := range m.nodes {
		if got := m.readAll(i, "s"); len(got) != sent {
			t.Errorf("node %d reads %d events of %d", i, len(got), sent)
		}
	}
	aside, err := filepath.Glob(filepath.Join(m.nodes[hurt].cfg.DataDir, "partitions", "quarantine", g.String()+"-closed", "*", "*"+log.SegmentSuffix))
	if err != nil || len(aside) == 0 {
		t.Errorf("nothing of the closed replica was set aside (%v)", err)
	}
}
