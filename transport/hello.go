package transport

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Why a hello is refused. The words travel between nodes: append only.
const (
	RefusedCluster   = "other-cluster"  // cluster ids differ
	RefusedMesh      = "other-mesh"     // mesh ids differ
	RefusedNode      = "wrong-node"     // the certificate or the address belongs to another node
	RefusedVersion   = "other-version"  // no common protocol version
	RefusedRollback  = "rolled-back"    // the node's disk is an older copy of itself
	RefusedDuplicate = "duplicate-node" // two processes run under one node id
	RefusedGivenUp   = "given-up"       // the node id was given up: its data is not to be used any more
)

// maxHello bounds a hello on the wire, bytes.
const maxHello = 4 << 10

// hello opens every connection, both ways.
type hello struct {
	Node    ring.NodeID `msgpack:"n"`
	To      ring.NodeID `msgpack:"t"` // whom the dialer means to reach; zero in answers
	Name    string      `msgpack:"h"`
	Mesh    ring.MeshID `msgpack:"m"`
	Cluster string      `msgpack:"c"`
	Version uint16      `msgpack:"v"`
	Min     uint16      `msgpack:"w"`
	Boot    uint64      `msgpack:"b"`
	Nonce   uint64      `msgpack:"x"`
	Class   wire.Class  `msgpack:"k"`
}

func (i Identity) hello(to ring.NodeID, class wire.Class) hello {
	return hello{Node: i.NodeID, To: to, Name: i.Name, Mesh: i.MeshID, Cluster: i.ClusterID,
		Version: i.Version, Min: i.MinVersion, Boot: i.Boot, Nonce: i.Nonce, Class: class}
}

// refusal is why two nodes do not talk; its text names both values and what to do, and reads the same on both sides.
type refusal struct {
	code   string
	detail string
	remote bool
}

func (r *refusal) Error() string { return r.detail }

func refuse(code, format string, args ...any) *refusal {
	return &refusal{code: code, detail: fmt.Sprintf(format, args...)}
}

// check holds the peer's hello against ours. cert is the node its certificate names; zero: none (own certificates).
func (i Identity) check(h hello, cert ring.NodeID) *refusal {
	us, them := label(i.Name, i.NodeID), label(h.Name, h.Node)
	switch {
	case h.Cluster != i.ClusterID:
		return refuse(RefusedCluster, "cluster_id differs: %q on %s, %q on %s; nodes of one mesh need one cluster_id",
			i.ClusterID, us, h.Cluster, them)
	case !cert.IsZero() && cert != h.Node:
		return refuse(RefusedNode, "%s shows the certificate of node %s; every node needs a certificate of its own", them, cert)
	case h.Node == i.NodeID && h.Boot == i.Boot && h.Nonce == i.Nonce:
		return refuse(RefusedNode, "%s found itself where it looked for node %s; it will try again when gossip knows the new address", us, h.To)
	case h.Node == i.NodeID:
		return refuse(RefusedDuplicate, "%s and %s have one node id; never start a copy of a data directory", us, them)
	case !h.To.IsZero() && h.To != i.NodeID:
		return refuse(RefusedNode, "%s looked for node %s but found %s; it will try again when gossip knows the new address", them, h.To, us)
	case !i.MeshID.IsZero() && !h.Mesh.IsZero() && i.MeshID != h.Mesh:
		return refuse(RefusedMesh, "mesh id differs: %s on %s, %s on %s; two meshes never merge: to move a node, start it with an empty data directory",
			i.MeshID, us, h.Mesh, them)
	case min(h.Version, i.Version) < max(h.Min, i.MinVersion):
		return refuse(RefusedVersion, "no common protocol version: %d to %d on %s, %d to %d on %s; upgrade the older one "+
			"(a mesh that uses what a version brought does not go back below it)", i.MinVersion, i.Version, us, h.Min, h.Version, them)
	}
	return nil
}

func label(name string, id ring.NodeID) string {
	if name == "" {
		return "node " + id.String()
	}
	if len(name) > 64 {
		name = name[:64]
	}
	return fmt.Sprintf("node %q (%s)", name, id)
}

// closeReason packs a refusal into a connection's close reason, which fits one packet.
func (r *refusal) closeReason() string {
	s := r.code + ": " + r.detail
	for len(s) > 700 || !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s[:min(len(s), 700)], "")
	}
	return s
}

// asRefusal recognises a refusal by the peer in a connection's error.
func asRefusal(e *CloseError) *refusal {
	if !e.Remote || e.Code != CloseRefused {
		return nil
	}
	code, detail, _ := strings.Cut(strings.ToValidUTF8(e.Reason, "?"), ": ")
	return &refusal{code: code, detail: detail, remote: true}
}

// Start is what is remembered of a node's latest start: its count on durable storage, and what was drawn for it.
type Start struct{ Boot, Nonce uint64 }

// GivenUp is the Start of a node id that nobody may use again.
var GivenUp = Start{Boot: math.MaxUint64}

func (h hello) start() Start { return Start{h.Boot, h.Nonce} }

// checkStart compares a peer's start with the latest that is remembered. The other process of that id, if there was one, is gone.
func checkStart(known Start, h hello) *refusal {
	switch {
	case known == GivenUp:
		return refuse(RefusedGivenUp, "the node id of %s was given up: its copies are made elsewhere, and its data must not be used any more; it rejoins under a new node id",
			label(h.Name, h.Node))
	case h.Boot == 0 || known.Boot == 0 || h.Boot > known.Boot:
		return nil
	case h.Boot < known.Boot:
		return refuse(RefusedRollback, "%s counts start %d, but was seen at start %d: its disk is an older copy of itself; it rejoins under a new node id",
			label(h.Name, h.Node), h.Boot, known.Boot)
	case h.Nonce != known.Nonce:
		return refuse(RefusedRollback, "%s counts start %d, but another start %d of it was seen: its disk is an older copy of itself; it rejoins under a new node id",
			label(h.Name, h.Node), h.Boot, h.Boot)
	}
	return nil
}
