package node

import (
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/partition"
)

// TestMoreReplicasAreMadeWhenAStreamAsksForThem: the wanted number follows the stream's config, not the partition's birth.
func TestMoreReplicasAreMadeWhenAStreamAsksForThem(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1,"replicas":1}`)
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k", "v")
	m.must(0, 200, "PATCH", "/v1/streams/s", `{"replicas":3}`, "Content-Type", "application/merge-patch+json")
	m.poll("every node has a voter of the partition", 20*time.Second, func() bool {
		voters := 0
		for _, g := range m.nodes[m.owner("s", 0)].host.Groups() {
			if _, ok := g.StateMachine().(*partition.Partition); ok {
				for _, mem := range g.Status().Members {
					if !mem.Learner {
						voters++
					}
				}
			}
		}
		return voters == 3
	})
	for i := range m.nodes {
		if got := m.readAll(i, "s"); len(got) != 1 {
			t.Errorf("node %d gave %d events", i, len(got))
		}
	}
}
