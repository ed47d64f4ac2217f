package ops

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// Kind is what is asked.
type Kind string

const (
	Drain       Kind = "drain"        // the node hands away all that it holds
	CancelDrain Kind = "cancel-drain" // and this takes it back into service
	Cordon      Kind = "cordon"       // the node keeps what it has and gets nothing new
	Uncordon    Kind = "uncordon"
	Move        Kind = "move"     // one copy of a partition goes from one node to another
	Transfer    Kind = "transfer" // the ownership of a partition goes to another of its nodes
)

// OfNode reports whether operations of the kind are kept by the node that they are about; the others are kept by the partition's owner.
func (k Kind) OfNode() bool { return k != Move && k != Transfer }

// State is how far an operation is.
type State string

const (
	Planned   State = "planned" // a dry run: nothing was done
	Running   State = "running"
	Done      State = "done"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Time is a moment in milliseconds since 1970: a number between nodes, RFC 3339 in JSON. Zero is no moment.
type Time int64

// At makes a Time; the zero time is 0.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixMilli())
}

// Time is the moment in UTC.
func (t Time) Time() time.Time { return time.UnixMilli(int64(t)).UTC() }

// MarshalJSON writes RFC 3339.
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.Time()) }

// UnmarshalJSON reads RFC 3339.
func (t *Time) UnmarshalJSON(b []byte) error {
	var at time.Time
	if err := json.Unmarshal(b, &at); err != nil {
		return err
	}
	*t = At(at)
	return nil
}

// Request is what an operator asks. Nodes go by name or by id.
type Request struct {
	Kind      Kind             `json:"kind" msgpack:"k"`
	Node      string           `json:"node,omitempty" msgpack:"n,omitempty"`
	Stream    string           `json:"stream,omitempty" msgpack:"s,omitempty"`
	Partition ring.PartitionID `json:"partition,omitempty" msgpack:"p,omitempty"`
	From      string           `json:"from,omitempty" msgpack:"f,omitempty"`
	To        string           `json:"to,omitempty" msgpack:"t,omitempty"`
	DryRun    bool             `json:"dry_run,omitempty" msgpack:"d,omitempty"`
}

// Operation is one thing that an operator asked for, as the node that keeps it tells of it.
type Operation struct {
	ID        string            `json:"id,omitempty" msgpack:"i,omitempty"` // "": a dry run
	Kind      Kind              `json:"kind" msgpack:"k"`
	State     State             `json:"state" msgpack:"s"`
	Node      string            `json:"node,omitempty" msgpack:"n,omitempty"` // whom a drain or a cordon is about
	Stream    string            `json:"stream,omitempty" msgpack:"st,omitempty"`
	Partition *ring.PartitionID `json:"partition,omitempty" msgpack:"p,omitempty"`
	From      string            `json:"from,omitempty" msgpack:"f,omitempty"`
	To        string            `json:"to,omitempty" msgpack:"t,omitempty"`
	// Keeper is the node that answers for it.
	Keeper string `json:"kept_by" msgpack:"kb"`
	// Reason says in a sentence how it stands and why.
	Reason string `json:"reason" msgpack:"r"`
	// Steps are what is done, or would be: in order, each with its reason (at most MaxSteps).
	Steps    []string  `json:"steps,omitempty" msgpack:"sp,omitempty"`
	Progress *Progress `json:"progress,omitempty" msgpack:"pr,omitempty"`
	Started  Time      `json:"started" msgpack:"b"`
	Updated  Time      `json:"updated" msgpack:"u"`
	Ended    Time      `json:"ended,omitempty" msgpack:"e,omitempty"`
}

// List is a page of what is known of all operations, the newest first.
type List struct {
	Observer   string      `json:"observer"`
	AsOf       Time        `json:"as_of"`
	Operations []Operation `json:"operations"`
	// Silent are nodes that did not say which ones they keep.
	Silent []string `json:"silent,omitempty"`
	// NextCursor is where older ones follow; empty: there are none.
	NextCursor string `json:"next_cursor,omitempty"`
}

// Over reports whether nothing more will happen.
func (o Operation) Over() bool { return o.State != Running }

// Progress is how far a drain is.
type Progress struct {
	ReplicasAtStart int `json:"replicas_at_start" msgpack:"a"`
	Replicas        int `json:"replicas" msgpack:"r"` // held still, catalog shards included
	Owned           int `json:"owned" msgpack:"o"`    // and owned of these
	Stuck           int `json:"stuck" msgpack:"s"`    // of these no way is seen
	// SafeToPowerDown: the node holds nothing that counts any more.
	SafeToPowerDown bool `json:"safe_to_power_down" msgpack:"d"`
	// What becomes of the partitions held still if the node is powered down now: they go on with a copy less, stop until it is back, or
	// have their only copy on it.
	GoOn     int `json:"without_it_go_on" msgpack:"g"`
	Stop     int `json:"without_it_stop" msgpack:"st"`
	OnlyCopy int `json:"only_copy_here" msgpack:"c"`
	// Remaining are what is held still, stuck ones first (at most MaxRemaining).
	Remaining []Remaining `json:"remaining,omitempty" msgpack:"m,omitempty"`
}

// Remaining is one copy that a draining node still holds, and why.
type Remaining struct {
	Stream    string           `json:"stream" msgpack:"s"`
	Partition ring.PartitionID `json:"partition" msgpack:"p"`
	Role      string           `json:"role" msgpack:"r"` // owner | voter | learner
	Stuck     bool             `json:"stuck,omitempty" msgpack:"k,omitempty"`
	Reason    string           `json:"reason" msgpack:"w"`
}

// Bounds of one operation's text.
const (
	MaxSteps     = 64
	MaxRemaining = 100
	maxText      = 1000
)

// clip bounds all that an operation carries, so that a list of them fits into a frame between nodes. It writes into nothing that was given
// out before: slices and progress are made anew.
func (o *Operation) clip() {
	o.Reason = clipText(o.Reason)
	steps := slices.Clone(o.Steps[:min(len(o.Steps), MaxSteps)])
	if more := len(o.Steps) - MaxSteps; more > 0 {
		steps[MaxSteps-1] = fmt.Sprintf("and %d steps more", more+1)
	}
	for i, s := range steps {
		steps[i] = clipText(s)
	}
	o.Steps = steps
	if o.Progress != nil && len(o.Progress.Remaining) > MaxRemaining {
		p := *o.Progress
		p.Remaining = p.Remaining[:MaxRemaining]
		o.Progress = &p
	}
}

func clipText(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// newID names an operation by who keeps it, the keeper's start count, and a number: any node can tell whom to ask.
func newID(keeper ring.NodeID, boot, seq uint64) string {
	return keeper.String() + "." + strconv.FormatUint(boot, 10) + "." + strconv.FormatUint(seq, 10)
}

// KeeperOf reads out of an operation's id who keeps it.
func KeeperOf(id string) (ring.NodeID, bool) {
	node, rest, ok := strings.Cut(id, ".")
	boot, seq, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || !digits(boot) || !digits(seq) {
		return ring.NodeID{}, false
	}
	n, err := ring.ParseNodeID(node)
	return n, err == nil && !n.IsZero()
}

func digits(s string) bool {
	return s != "" && len(s) <= 20 && strings.Trim(s, "0123456789") == ""
}
