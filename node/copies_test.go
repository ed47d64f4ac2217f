package node

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/node/api"
)

// TestANodeWithoutACopyTellsOfThoseThatThereAreNow: the definition names the founders for ever.
func TestANodeWithoutACopyTellsOfThoseThatThereAreNow(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 4)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1,"replicas":1}`)
	m.must(0, 200, "PATCH", "/v1/streams/s", `{"replicas":3}`, "Content-Type", "application/merge-patch+json")
	var without int
	m.poll("three nodes have the partition", 30*time.Second, func() bool {
		holders := 0
		for i, tn := range m.nodes {
			if len(partitionsOf(tn.Node)) > 0 {
				holders++
			} else {
				without = i
			}
		}
		return holders == 3
	})
	m.poll("the node without one tells of three copies", 20*time.Second, func() bool {
		var st flow.StreamInfo
		if err := json.Unmarshal([]byte(m.must(without, 200, "GET", "/v1/streams/s", "")), &st); err != nil {
			t.Fatal(err)
		}
		page, err := (meshPages{m.nodes[without].Node}).Partitions(context.Background(), "s")
		if err != nil {
			t.Fatal(err)
		}
		pt := page.Partitions[0]
		return len(st.Partitions[0].Replicas) == 3 && len(pt.Replicas) == 3 && pt.MembersKnown && pt.Wanted == 3 && pt.Live == 3 && pt.Lack == "" &&
			len(m.summary(without).UnderReplicated) == 0
	})
}

// partitionsOf names the streams of the partitions held by a node.
func partitionsOf(n *Node) (names []string) {
	for _, g := range n.host.Groups() {
		if spec, ok := specOf(g, g.Status()); ok {
			names = append(names, spec.Name)
		}
	}
	return names
}

func TestLackingCopiesAreToldWithTheReason(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
	m.poll("all is well", 20*time.Second, func() bool { return m.summary(0).Health == "ok" && m.detail(0, "copies") == "" })
	m.leave(2)
	m.poll("the summary and the readiness say who is missed, and until when", 20*time.Second, func() bool {
		s := m.summary(0)
		i := slices.IndexFunc(s.UnderReplicated, func(u api.UnderReplicated) bool { return u.Stream == "s" })
		if s.Health != "degraded" || i < 0 || !strings.Contains(s.UnderReplicated[i].Reason, "n2 is gone since ") || !strings.Contains(s.UnderReplicated[i].Reason, "replaced at ") {
			return false
		}
		d := m.detail(0, "copies")
		return strings.Contains(d, "s partition 0 has 2 of 3: n2 is gone since ") && strings.Contains(d, "_mesh partition ") && !slices.Contains(m.failing(0), "copies")
	})
	page, err := (meshPages{m.nodes[0].Node}).Members(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, mem := range page.Members {
		if gone := mem.Node == "n2"; gone != (mem.ReplacedAt != nil) || mem.Since.IsZero() || gone && mem.ReplacedAt.Sub(mem.Since) != m.nodes[0].cfg.ReplaceAfter {
			t.Errorf("%+v", mem)
		}
	}
}

// detail is what a check of node i's readiness says.
func (m *testMesh) detail(i int, check string) string {
	for _, c := range (meshPages{m.nodes[i].Node}).Readiness(context.Background()) {
		if c.Name == check {
			return c.Detail
		}
	}
	return ""
}

func TestAMeshOfTwoSaysThatTooFewNodesAreThere(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
	m.poll("the partition has both", 20*time.Second, func() bool {
		s := m.summary(0)
		return len(s.UnderReplicated) == 1 && s.UnderReplicated[0].Live == 2 && s.UnderReplicated[0].Reason == "too few nodes: 2 are there, 3 copies are wanted"
	})
	m.must(0, 202, "PUT", "/v1/nodes/n1/cordon", "")
	m.seen(1, true, false)
	if s := m.summary(0); !slices.Contains(s.Notes, "n1 is cordoned: it gets nothing new") {
		t.Errorf("%q", s.Notes)
	}
	if d := m.detail(1, "service"); !strings.Contains(d, "cordoned") {
		t.Errorf("%q", d)
	}
	list, err := (meshPages{m.nodes[0].Node}).Partitions(context.Background(), "_mesh")
	if err != nil || len(list.Partitions) != catalogShards || list.Partitions[0].Owner == "" || list.Partitions[0].Live != 2 {
		t.Errorf("%v: %+v", err, list.Partitions)
	}
}
