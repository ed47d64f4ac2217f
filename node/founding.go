package node

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/ring"
)

// Founding by a list of members has one moment at which the mesh comes to be: when the member that is first in the sorted list has heard
// of every other one that it is empty and has the same list, and wrote the founding record. All had to be there anyway, so waiting for
// that one costs nothing, and no two can found apart. The record names the nodes, by their ids: one whose disk was emptied since is
// another node, and joins. Everyone who has the record hands it to the others that it names.

// foundingRecord is what a mesh was founded with. It is kept in node.json by every node that it names.
type foundingRecord struct {
	Mesh    ring.MeshID   `json:"mesh_id" msgpack:"m"`
	Members []string      `json:"members" msgpack:"l"` // the sorted list
	Nodes   []ring.NodeID `json:"nodes" msgpack:"n"`   // by position in Members
	// Shards has, for each catalog shard, the positions of its voters; the first one asks for the ownership. The id of a founding
	// replica is its node's position, counted from 1.
	Shards [][]int `json:"shards" msgpack:"s"`
	// Done: every node that it names has it, and the replicas of this one are born.
	Done bool `json:"done,omitempty" msgpack:"-"`
}

// meshKey is the key under which the ids of founded meshes are made, so that a list alone does not tell them.
func meshKey(secret []byte) ([]byte, error) {
	return hkdf.Key(sha256.New, secret, nil, "skein founding 1", 32)
}

// newFoundingRecord founds a mesh: ms are the nodes by position in list.
func newFoundingRecord(key []byte, cluster string, list []string, ms []ring.Member) *foundingRecord {
	rec := &foundingRecord{Members: list}
	position := map[ring.NodeID]int{}
	for i, m := range ms {
		rec.Nodes = append(rec.Nodes, m.ID)
		position[m.ID] = i
	}
	rec.Mesh = ring.FoundedMesh(key, cluster, list, rec.Nodes)
	voters := 3
	if len(ms) < voters {
		voters = 1 // the owner makes a learner of the other one
	}
	places := ring.New(ms, 0)
	for i := range catalogShards {
		var at []int
		for _, id := range places.Replicas(ring.CatalogGroup(rec.Mesh, i), voters, nil) {
			at = append(at, position[id])
		}
		rec.Shards = append(rec.Shards, at)
	}
	return rec
}

// check holds a record against the keys under which it may have been made. It may come from another node.
func (r *foundingRecord) check(keys [][]byte, cluster string) error {
	n := len(r.Members)
	if n == 0 || n > config.MaxFounders || len(r.Nodes) != n || len(r.Shards) != catalogShards {
		return fmt.Errorf("the founding record is incomplete")
	}
	for _, at := range r.Shards {
		if len(at) == 0 || len(at) > n {
			return fmt.Errorf("the founding record has a shard without voters")
		}
		for i, p := range at {
			if p < 0 || p >= n || slices.Contains(at[:i], p) {
				return fmt.Errorf("the founding record names a member that is not there")
			}
		}
	}
	for _, key := range keys {
		if ring.FoundedMesh(key, cluster, r.Members, r.Nodes) == r.Mesh {
			return nil
		}
	}
	return fmt.Errorf("the founding record was made with another secret, cluster_id or list")
}

// births are the birth records of a node's founding replicas.
func (r *foundingRecord) births(node ring.NodeID) []replica.Birth {
	self := slices.Index(r.Nodes, node)
	var out []replica.Birth
	for i, at := range r.Shards {
		if !slices.Contains(at, self) {
			continue
		}
		b := replica.Birth{Group: ring.CatalogGroup(r.Mesh, i), Kind: replica.KindCatalog, Self: ring.ReplicaID(self + 1)}
		for _, p := range at {
			b.Members = append(b.Members, replica.Member{ID: ring.ReplicaID(p + 1), Node: r.Nodes[p]})
		}
		out = append(out, b)
	}
	return out
}

// standing is where a node stands in a founding: its own, and what others answer.
type standing struct {
	Name    string      `msgpack:"h"`
	Members []string    `msgpack:"l"` // its sorted list; none: it only joins
	At      int         `msgpack:"p"` // its position in the list, -1 when it does not find itself there
	Mesh    ring.MeshID `msgpack:"m"` // the mesh that it belongs to, or has begun to found; zero: it is empty

	node ring.NodeID // who answered, by its certificate
}

// gathering is what one round of questions found.
type gathering struct {
	nodes   []ring.NodeID // by position; only when all are there
	missing []string      // members that did not answer
	differ  []standing    // empty nodes with another list
	twice   []standing    // nodes that claim a position which another one has
	founded bool          // somebody belongs to a mesh: it is to be joined
}

// gather judges the answers of all nodes that were heard of, this one's standing among them.
func gather(list []string, answers []standing) gathering {
	var g gathering
	nodes := make([]ring.NodeID, len(list))
	slices.SortFunc(answers, func(a, b standing) int { return a.node.Compare(b.node) })
	for _, a := range answers {
		switch {
		case !a.Mesh.IsZero():
			g.founded = true
		case len(a.Members) == 0:
		case !slices.Equal(a.Members, list):
			g.differ = append(g.differ, a)
		case a.At < 0 || a.At >= len(list):
		case !nodes[a.At].IsZero():
			g.twice = append(g.twice, a)
		default:
			nodes[a.At] = a.node
		}
	}
	for i, id := range nodes {
		if id.IsZero() {
			g.missing = append(g.missing, list[i])
		}
	}
	if !g.founded && len(g.missing)+len(g.differ)+len(g.twice) == 0 {
		g.nodes = nodes
	}
	return g
}
