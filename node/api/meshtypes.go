package api

import (
	"time"

	"github.com/skeinmesh/skein/ring"
)

// View heads every answer about the mesh: it is one node's picture, of one moment, and never authoritative.
type View struct {
	Observer   string      `json:"observer"` // node name
	ObserverID ring.NodeID `json:"observer_id"`
	Cluster    string      `json:"cluster_id"`
	Mesh       string      `json:"mesh_id,omitempty"`
	AsOf       time.Time   `json:"as_of"`
}

// MeshSummary is the mesh on one screen.
type MeshSummary struct {
	View
	Health     string   `json:"health"` // ok | degraded | critical
	Reasons    []string `json:"reasons"`
	Nodes      int      `json:"nodes"`
	Alive      int      `json:"alive"`
	Suspect    int      `json:"suspect"`
	Streams    int      `json:"streams"`
	Partitions int      `json:"partitions"`
	Ownerless  int      `json:"ownerless"`
	// Incomplete says what is not known, where shards of the catalog do not answer: streams, partitions and what is said of them are of those that are known.
	Incomplete string `json:"incomplete,omitempty"`
	// Hottest are the partitions with the highest load, hottest first (at most 10).
	Hottest []PartitionLoad `json:"hottest"`
	// UnderReplicated are partitions with fewer live copies than wanted (at most 100).
	UnderReplicated []UnderReplicated `json:"under_replicated"`
	// Notes are what goes on and is no fault: nodes that drain or are cordoned, copies that move.
	Notes []string `json:"notes"`
	// Members tell how old what is known of each node is.
	Members []Staleness `json:"members"`
}

// Staleness is how long ago a member was last heard, directly or through others.
type Staleness struct {
	Node        string `json:"node"`
	StalenessMS int64  `json:"staleness_ms"`
}

// PartitionLoad is one partition and its share of its owner's load.
type PartitionLoad struct {
	Stream         string           `json:"stream"`
	Partition      ring.PartitionID `json:"partition"`
	Owner          string           `json:"owner,omitempty"`
	Fatigue        float64          `json:"fatigue"`
	BytesPerSecond float64          `json:"bytes_per_second"`
}

// UnderReplicated is one partition that lacks copies.
type UnderReplicated struct {
	Stream    string           `json:"stream"`
	Partition ring.PartitionID `json:"partition"`
	Wanted    int              `json:"wanted"`
	Live      int              `json:"live"`
	Reason    string           `json:"reason"` // what it lacks, and what is done about it
}

// MeshMembers lists the members that this node knows.
type MeshMembers struct {
	View
	Members []Member `json:"members"`
}

// Member is one node as the observer knows it.
type Member struct {
	Node  string      `json:"node"`
	ID    ring.NodeID `json:"id"`
	State string      `json:"state"` // alive | suspect | dead | left
	Since time.Time   `json:"since"` // by the observer's clock
	// ReplacedAt is when the copies of a node that is not there are made elsewhere; nil of one that is.
	ReplacedAt  *time.Time        `json:"replaced_at,omitempty"`
	Zone        string            `json:"zone,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Weight      float64           `json:"weight"`
	Version     string            `json:"version,omitempty"`
	HTTP        string            `json:"http,omitempty"` // advertised addresses, host:port
	QUIC        string            `json:"quic,omitempty"`
	Gossip      string            `json:"gossip,omitempty"`
	Cordoned    bool              `json:"cordoned,omitempty"`
	Draining    bool              `json:"draining,omitempty"`
	Leaving     bool              `json:"leaving,omitempty"` // about to stop
	Fatigue     float64           `json:"fatigue"`
	CPUPercent  float64           `json:"cpu_percent"`
	MemPercent  float64           `json:"memory_percent"`
	Owned       int               `json:"owned"`    // partitions it owns
	Replicas    int               `json:"replicas"` // partitions it holds
	StalenessMS int64             `json:"staleness_ms"`
}

// MeshRing is the ring as the observer computes it.
type MeshRing struct {
	View
	Epoch   string      `json:"epoch"` // names the inputs: equal on two nodes means equal placement
	Slots   int         `json:"slots"`
	Factor  float64     `json:"load_factor"` // 1 + ε
	Members []RingShare `json:"members"`
	// Incomplete says what is not known, where shards of the catalog do not answer: homes are of the partitions that are known.
	Incomplete string `json:"incomplete,omitempty"`
}

// RingShare is what part of the ring one node has.
type RingShare struct {
	Node        string  `json:"node"`
	Zone        string  `json:"zone,omitempty"`
	Weight      float64 `json:"weight"`
	Slots       int     `json:"slots"`
	Homes       int     `json:"homes"` // partitions whose home it is
	StalenessMS int64   `json:"staleness_ms"`
}

// MeshPartitions lists partitions.
type MeshPartitions struct {
	View
	Partitions []MeshPartition `json:"partitions"`
	Members    []Staleness     `json:"members"`
	// Incomplete says what is not known, where shards of the catalog do not answer: these are the partitions that are known.
	Incomplete string `json:"incomplete,omitempty"`
}

// MeshPartition is one partition, where it is and where the ring would have it.
type MeshPartition struct {
	Stream    string           `json:"stream"`
	Partition ring.PartitionID `json:"partition"`
	Group     ring.GroupID     `json:"group"`
	State     string           `json:"state"` // open | sealed | moving
	Owner     string           `json:"owner,omitempty"`
	Term      uint64           `json:"term,omitempty"`
	Replicas  []string         `json:"replicas"`
	Learners  []string         `json:"learners,omitempty"`
	// MembersKnown: a replica here or the owner told of the members; else they are the founding ones.
	MembersKnown bool `json:"members_known"`
	Wanted       int  `json:"wanted"` // copies
	Live         int  `json:"live"`   // copies that are there and caught up
	// Lack says why copies are fewer than wanted, or lie badly; Waits what the owner waits for meanwhile.
	Lack           string         `json:"lack,omitempty"`
	Waits          string         `json:"waits,omitempty"`
	CatchingUp     []CatchingUp   `json:"catching_up,omitempty"`
	Move           *PartitionMove `json:"move,omitempty"`
	Home           string         `json:"home,omitempty"`     // what the ring proposes as owner
	Proposed       []string       `json:"proposed,omitempty"` // and as replicas
	Fatigue        float64        `json:"fatigue"`
	BytesPerSecond float64        `json:"bytes_per_second"`
	StalenessMS    int64          `json:"staleness_ms"` // of what is known about the owner
}

// CatchingUp is a learner that has not all entries yet.
type CatchingUp struct {
	Node   string `json:"node"`
	Match  uint64 `json:"match"` // its last index in the group's log, of Commit
	Commit uint64 `json:"commit"`
}

// PartitionMove is a copy on its way from one node to another.
type PartitionMove struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Phase  string `json:"phase"`
	Reason string `json:"reason,omitempty"`
}

// Check is one condition of readiness.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}
