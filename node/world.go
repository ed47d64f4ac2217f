package node

import (
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
)

// world is what this node knows of the others, for judging copies.
func (n *Node) world(now time.Time) ops.World {
	w := ops.World{Now: now, Nodes: map[ring.NodeID]ops.Node{}, ReplaceAfter: n.cfg.Load().ReplaceAfter}
	for _, m := range n.gossip.View().Members() {
		if m.Mesh.IsZero() && m.ID != n.data.id.NodeID {
			continue // it has not joined: it holds nothing and takes nothing
		}
		w.Nodes[m.ID] = ops.Node{Name: n.dir.Name(m.ID), Zone: m.Zone, Here: m.Present(), Since: m.Since,
			Cordoned: m.Cordoned(), Draining: m.Draining()}
	}
	return w
}

// placesWithout is the ring as it would be without a node: the members that are there and stay.
func placesWithout(w ops.World, weights map[ring.NodeID]int, without ring.NodeID) *ring.Ring {
	var members []ring.Member
	for id, m := range w.Nodes {
		if id != without && m.Here && !m.Draining {
			members = append(members, ring.Member{ID: id, Zone: m.Zone, Weight: weights[id], Cordoned: m.Cordoned})
		}
	}
	return ring.New(members, 0)
}

func (n *Node) weights() map[ring.NodeID]int {
	out := map[ring.NodeID]int{}
	for _, m := range n.gossip.View().Members() {
		out[m.ID] = int(m.Weight)
	}
	return out
}

// catalogStream is the name under which catalog shards are shown, each as a partition.
const catalogStream = "_mesh"

// shardOf says which of the mesh's catalog shards a group is.
func shardOf(mesh ring.MeshID, g ring.GroupID) (int, bool) {
	for i := range catalogShards {
		if g == ring.CatalogGroup(mesh, i) {
			return i, true
		}
	}
	return 0, false
}

// nameOf says which partition a group is.
func (n *Node) nameOf(g *replica.Group, st replica.Status) (stream string, p ring.PartitionID) {
	if st.Kind == replica.KindCatalog {
		if i, ok := shardOf(n.mesh(), st.Group); ok {
			return catalogStream, ring.PartitionID(i)
		}
	}
	if spec, ok := specOf(g, st); ok {
		return spec.Name, spec.Partition
	}
	return st.Group.String(), 0
}
