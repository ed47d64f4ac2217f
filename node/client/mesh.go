package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// View heads what one node says of the mesh.
type View struct {
	Observer string    `json:"observer"`
	Cluster  string    `json:"cluster_id"`
	Mesh     string    `json:"mesh_id"`
	AsOf     time.Time `json:"as_of"`
}

// Staleness is how long ago the observer heard of a node.
type Staleness struct {
	Node        string `json:"node"`
	StalenessMS int64  `json:"staleness_ms"`
}

// Mesh is the mesh on one screen.
type Mesh struct {
	View
	Health     string   `json:"health"`
	Reasons    []string `json:"reasons"`
	Nodes      int      `json:"nodes"`
	Alive      int      `json:"alive"`
	Suspect    int      `json:"suspect"`
	Streams    int      `json:"streams"`
	Partitions int      `json:"partitions"`
	Ownerless  int      `json:"ownerless"`
	// Incomplete says why streams and partitions are those that are known; empty: they are all.
	Incomplete string `json:"incomplete"`
	// UnderReplicated are partitions with fewer live copies than wanted, and why.
	UnderReplicated []UnderReplicated `json:"under_replicated"`
	// Notes are what goes on and is no fault.
	Notes []string `json:"notes"`
	// Members tell how old what is known of each node is.
	Members []Staleness `json:"members"`
}

// UnderReplicated is one partition that lacks copies.
type UnderReplicated struct {
	Stream    string `json:"stream"`
	Partition uint32 `json:"partition"`
	Wanted    int    `json:"wanted"`
	Live      int    `json:"live"`
	Reason    string `json:"reason"`
}

// Member is one node as the observer knows it.
type Member struct {
	Node    string  `json:"node"`
	ID      string  `json:"id"`
	State   string  `json:"state"`
	Zone    string  `json:"zone"`
	Weight  float64 `json:"weight"`
	Version string  `json:"version"`
	HTTP    string  `json:"http"`
	// Since is when the server in use began to believe State; ReplacedAt when the copies of a node that is not there are made elsewhere.
	Since       time.Time  `json:"since"`
	ReplacedAt  *time.Time `json:"replaced_at"`
	Cordoned    bool       `json:"cordoned"`
	Draining    bool       `json:"draining"`
	Leaving     bool       `json:"leaving"`
	Fatigue     float64    `json:"fatigue"`
	CPUPercent  float64    `json:"cpu_percent"`
	MemPercent  float64    `json:"memory_percent"`
	Owned       int        `json:"owned"`
	Replicas    int        `json:"replicas"`
	StalenessMS int64      `json:"staleness_ms"`
}

// RingShare is what part of the ring one node has.
type RingShare struct {
	Node        string  `json:"node"`
	Zone        string  `json:"zone"`
	Weight      float64 `json:"weight"`
	Slots       int     `json:"slots"`
	Homes       int     `json:"homes"`
	StalenessMS int64   `json:"staleness_ms"`
}

// Ring is the ring as the observer computes it.
type Ring struct {
	View
	Epoch   string      `json:"epoch"`
	Slots   int         `json:"slots"`
	Factor  float64     `json:"load_factor"`
	Members []RingShare `json:"members"`
	// Incomplete says why homes are of the partitions that are known; empty: they are of all.
	Incomplete string `json:"incomplete"`
}

// MeshPartition is one partition, where it is and where the ring would have it.
type MeshPartition struct {
	Stream     string   `json:"stream"`
	Partition  uint32   `json:"partition"`
	State      string   `json:"state"`
	Owner      string   `json:"owner"`
	Term       uint64   `json:"term"`
	Replicas   []string `json:"replicas"`
	Learners   []string `json:"learners"`
	Wanted     int      `json:"wanted"` // copies
	Live       int      `json:"live"`   // copies that are there and caught up
	Lack       string   `json:"lack"`   // why they are fewer, or lie badly
	Waits      string   `json:"waits"`
	CatchingUp []struct {
		Node          string
		Match, Commit uint64
	} `json:"catching_up"`
	Move           *struct{ From, To, Phase, Reason string } `json:"move"`
	Home           string                                    `json:"home"`
	Fatigue        float64                                   `json:"fatigue"`
	BytesPerSecond float64                                   `json:"bytes_per_second"`
	StalenessMS    int64                                     `json:"staleness_ms"` // of what is known of the owner
}

// Mesh returns the summary of the server in use.
func (c *Client) Mesh(ctx context.Context) (Mesh, error) {
	var out Mesh
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/mesh", repeat: true}, &out)
	return out, err
}

// Members lists the nodes that the server in use knows.
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	var out struct{ Members []Member }
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/mesh/members", repeat: true}, &out)
	return out.Members, err
}

// Ring returns the ring as the server in use computes it.
func (c *Client) Ring(ctx context.Context) (Ring, error) {
	var out Ring
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/mesh/ring", repeat: true}, &out)
	return out, err
}

// Partitions lists the partitions of one stream, or of all where stream is empty. Of a list that is not whole the error is *Incomplete.
func (c *Client) Partitions(ctx context.Context, stream string) ([]MeshPartition, error) {
	q := url.Values{}
	if stream != "" {
		q.Set("stream", stream)
	}
	var out struct {
		Partitions []MeshPartition
		Incomplete string
	}
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/mesh/partitions", query: q, repeat: true}, &out)
	return out.Partitions, whole(err, out.Incomplete)
}

// Raw returns the body of a GET as it came: for output as JSON that leaves nothing out.
func (c *Client) Raw(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	var out json.RawMessage
	_, err := c.do(ctx, request{method: http.MethodGet, path: path, query: query, repeat: true}, &out)
	return out, err
}

// Ready asks the server in use once whether it takes traffic; nil means yes, an *Error with CodeNotReady names what fails.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.try(ctx, request{method: http.MethodGet, path: "/readyz", query: url.Values{"verbose": {"true"}}}, nil)
	return err
}
