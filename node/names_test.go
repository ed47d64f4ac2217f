package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestNameOfTwoNodesChoosesNone(t *testing.T) {
	member := func(id byte, name string, state view.State) view.Member {
		return view.Member{Identity: view.Identity{ID: ring.NodeID{id}, Name: name, GossipAddr: "host:8402", Incarnation: 1}, State: state}
	}
	members := []view.Member{member(1, "a", view.StateAlive), member(2, "a", view.StateAlive), member(3, "b", view.StateAlive),
		member(4, "b", view.StateDead)}
	err := ambiguous(members, "a")
	if wire.KindOf(err) != wire.KindInvalid || !strings.Contains(err.Error(), ring.NodeID{1}.String()) || !strings.Contains(err.Error(), ring.NodeID{2}.String()) {
		t.Error(err)
	}
	for _, name := range []string{"b", "c"} { // a wiped node's old self is no rival
		if err := ambiguous(members, name); err != nil {
			t.Error(err)
		}
	}
	if notes := sharedNames(members); !slices.Equal(notes, []string{"2 nodes are named a: give each a name of its own"}) {
		t.Error(notes)
	}
}

func TestLogsNamePartitionsAsOperatorsDo(t *testing.T) {
	mesh := ring.MeshID{7}
	n := &Node{}
	n.meshID.Store(&mesh)
	spec, err := partition.Spec{Stream: ring.StreamID{1}, Name: "orders", Partition: 3, Range: ring.Range{Lo: 0, Hi: 1},
		Limits: partition.Limits{Replicas: 3, MinCopies: 1}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got := n.describe(replica.Birth{Kind: replica.KindPartition, Spec: spec})
	if !slices.Equal(got, []any{"stream", "orders", "partition", ring.PartitionID(3)}) {
		t.Error(got)
	}
	got = n.describe(replica.Birth{Kind: replica.KindCatalog, Group: ring.CatalogGroup(mesh, 5)})
	if !slices.Equal(got, []any{"stream", catalogStream, "partition", 5}) {
		t.Error(got)
	}
	if got := n.describe(replica.Birth{Kind: replica.KindPartition, Spec: []byte("?")}); got != nil {
		t.Error(got)
	}
}
