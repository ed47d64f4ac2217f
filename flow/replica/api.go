package replica

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// GroupKind says which state machine a group runs. The numbers are on disk: append only.
type GroupKind uint8

const (
	KindCatalog   GroupKind = 1
	KindPartition GroupKind = 2
)

// Member is one replica of a group.
type Member struct {
	ID      ring.ReplicaID `msgpack:"i"`
	Node    ring.NodeID    `msgpack:"n"`
	Learner bool           `msgpack:"l,omitempty"`
}

// Birth is the record from which a replica comes into being: from the catalog with the founding members,
// or from the owner for a learner (Empty), which waits for a snapshot.
type Birth struct {
	Group   ring.GroupID   `msgpack:"g"`
	Kind    GroupKind      `msgpack:"k"`
	Spec    []byte         `msgpack:"s"` // for the state machine's factory; opaque here
	Members []Member       `msgpack:"m"` // founding members, or the members known to the owner plus the learner
	Self    ring.ReplicaID `msgpack:"r"` // which of them is born here
	Empty   bool           `msgpack:"e,omitempty"`
}

// Every founding replica starts as if it had a snapshot at this position (a synthetic index and term).
const (
	BirthIndex = 10
	BirthTerm  = 1
)

// StateMachine is a group's replicated state. All calls come from the group's own goroutine, one at a time, except where a
// method says otherwise.
type StateMachine interface {
	// Apply applies one committed normal entry to memory, to bulk files, and to b, which commits atomically with the applied
	// index. The result goes to the local proposer. It must be deterministic: same entries, same state on every replica. An
	// error is fatal to the replica (I/O, corruption); refusals are results.
	Apply(e log.Entry, b log.Batch) (result any, err error)
	// Checkpoint captures the small state at the applied index. The returned source is used from another goroutine, keeps
	// what it needs pinned, and is closed by the caller.
	Checkpoint() (Checkpoint, error)
	// Fetch reads what the sender's Checkpoint.WriteTo wrote, staging bulk data; it runs in a goroutine of its own while no
	// entry is applied. It must verify checksums and honour ctx. nil without an error: bulk data alone came, and the caller asks
	// again, for the state and what came meanwhile.
	Fetch(ctx context.Context, s wire.Stream) (staged any, err error)
	// BulkHave tells the sender what is here already (opaque; for partitions the next offset and the last batch's CRC). Called before
	// each Fetch, from the same goroutine.
	BulkHave() []byte
	// Install replaces the state by what Fetch staged, writing small state to b atomically with the applied index.
	Install(staged any, b log.Batch) error
	// BulkIndex is the raft index of the last entry whose bulk data is on disk; 0: none. Asked at start only.
	BulkIndex() uint64
	// Complete writes the bulk data of an entry that was applied before a crash but whose bulk data was lost: state is not
	// run again. Called at start, in order, for (BulkIndex, applied].
	Complete(e log.Entry) error
	// Sync makes bulk data applied so far durable. Called from another goroutine, concurrently with Apply.
	Sync() error
	// Close releases files; the state stays on disk.
	Close() error
	// Destroy closes and removes all bulk files and adds the removal of all small state to b.
	Destroy(b log.Batch) error
}

// Sizer is a StateMachine whose wanted number of copies is part of its state and may change. Called from the group's goroutine.
type Sizer interface {
	WantReplicas() int // below 1: as Config.WantReplicas says
}

// Checkpoint is a captured state on its way to another replica.
type Checkpoint interface {
	// WriteTo sends the state, then the bulk data the receiver lacks, as frames. A checkpoint with a method Partial() bool says
	// afterwards whether it sent bulk data alone.
	WriteTo(ctx context.Context, s wire.Stream, have []byte) error
	Close() error
}

// Factory opens the state machine of a group: at birth (empty state) and at restart (state as of the applied index that
// the store holds). sm keys in the store must start with prefix.
type Factory func(b Birth, prefix []byte) (StateMachine, error)

// Sender carries frames to other nodes. Safe for concurrent use; never blocks.
type Sender interface {
	// Send queues a one-way MethodRaft message; false when the queue to that node was full or the node is unknown.
	Send(to ring.NodeID, class wire.Class, body []byte) bool
}

// Caller makes requests and opens streams to other nodes' hosts.
type Caller interface {
	Call(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, body []byte) ([]byte, error)
	Open(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, hello []byte) (wire.Stream, error)
}

// Placement proposes where a group should live. Safe for concurrent use, pure reading, cheap.
type Placement interface {
	// Desired returns the nodes that should hold the group, the proposed owner first; none that hands away what it holds, or is
	// gone for good. current is what it has now. Those to avoid, of which current has none, are there only where no others can be.
	Desired(g ring.GroupID, want int, current, avoid []ring.NodeID) []ring.NodeID
	// Alive reports whether gossip holds the node for alive.
	Alive(n ring.NodeID) bool
	// Takes reports whether something new may go to the node: it is alive, neither cordoned nor leaving.
	Takes(n ring.NodeID) bool
	// Leaving reports whether the node hands away what it owns (draining, stopping): it is handed nothing and is no target.
	Leaving(n ring.NodeID) bool
	// Declined notes that the node itself said that it takes nothing new, sooner than gossip did: for a while nothing new is proposed
	// for it.
	Declined(n ring.NodeID)
	Balance
}

// Balance tells how much nodes hold and own, as far as this one has heard, and what would bring them nearer to their share. Safe for
// concurrent use, pure reading, cheap.
type Balance interface {
	// Relief proposes one swap that brings nodes nearer to their share: from holds the group and more than its share, to does not
	// hold it and has less. ok is false when there is none (also while dynamic rebalance is off).
	Relief(g ring.GroupID, current []ring.NodeID) (from, to ring.NodeID, ok bool)
	// Share is how many replicas this node should hold: between low and high.
	Share() (low, high int)
	// Owned is how many groups the node owns, the mean of all nodes that may own any, rounded up, and the most that the node should
	// own: 1.25 times the mean, rounded up, and never below it.
	Owned(n ring.NodeID) (count, mean, high int)
}

// Role is what a replica is in its group right now.
type Role uint8

const (
	RoleFollower Role = iota
	RoleCandidate
	RoleOwner
	RoleLearner
)

// Status is a snapshot of one group as this replica sees it.
type Status struct {
	Group   ring.GroupID
	Kind    GroupKind
	Spec    []byte
	Self    ring.ReplicaID
	Role    Role
	Owner   ring.NodeID // zero: not known
	Term    uint64
	Applied uint64
	Commit  uint64
	Members []Member
	// Ready: this replica is owner and has applied an entry of its own term, so it may propose and serve reads.
	Ready bool
	// Match is each member's acknowledged index; only on the owner.
	Match map[ring.ReplicaID]uint64
	// Active tells which members answered within the last election timeout; only on the owner.
	Active map[ring.ReplicaID]bool
	// Closed is since when members' replicas are closed for good, as their nodes told the owner; only on the owner.
	Closed map[ring.ReplicaID]time.Time
	// Want is how many copies the group wants, and Wanted where they should be, as of the owner's last look; only on the owner.
	Want   int
	Wanted []ring.NodeID
	// Waits is what the owner waits for before the group's members are as wanted; only on the owner.
	Waits Waits
	// Move is the move under way; nil: none. Only on the owner.
	Move *MoveStatus
	// OwnerSeen is when this replica last heard from (or was) a working owner.
	OwnerSeen time.Time
	// Damage is why this replica neither leads nor serves, until it has the damaged bytes from another one; nil: it is sound.
	Damage error

	lastID ring.ReplicaID // the highest ever given out
}

// Waits says what keeps a group from the membership that it should have. Without a reason: nothing.
type Waits struct {
	Node   ring.NodeID // zero: no node in particular
	Reason string
}

// Outcome is what became of a proposal.
type Outcome struct {
	// Result is what the state machine's Apply returned.
	Result any
	Index  uint64
	// Copies is how many voters and live learners are known to hold the entry durably.
	Copies int
	// Err: KindNotOwner (not proposed), KindNoCredit (uncommitted bound reached, not proposed), KindOutcomeUnknown (ownership
	// lost while in flight), KindClosed, KindUnavailable.
	Err error
}
