package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
)

// TestEarliestIsKnownWhereThereIsNoReplica: a node without a copy must not take a trimmed partition to begin at 0.
func TestEarliestIsKnownWhereThereIsNoReplica(t *testing.T) {
	t.Parallel()
	m := startStill(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1,"replicas":1}`)
	for i := range 5 {
		m.must(0, 200, "POST", "/v1/streams/s/events?key=k", fmt.Sprint(i))
	}
	owner := m.owner("s", 0)
	for _, g := range m.nodes[owner].host.Groups() {
		p, ok := g.StateMachine().(*partition.Partition)
		if !ok {
			continue
		}
		trimmed := make(chan replica.Outcome, 1)
		if err := g.Propose(partition.EncodeTrim(nil, 3, time.Now().UnixMilli()), func(o replica.Outcome) { trimmed <- o }); err != nil {
			t.Fatal(err)
		}
		if o := <-trimmed; o.Err != nil || p.Start() != 3 {
			t.Fatalf("trimmed to %d: %v", p.Start(), o.Err)
		}
	}
	for i := range m.nodes {
		page := m.must(i, 200, "GET", "/v1/streams/s/events?from=earliest&limit=2&wait_ms=3000", "", "Accept", "application/json")
		if n := strings.Count(page, `"offset":`); n != 2 || !strings.Contains(page, `"offset":3`) {
			t.Errorf("node %d (the owner is %d) gave %s", i, owner, page)
		}
	}
}
