package flow

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/ring"
)

// StreamConfig is what a stream's creator may choose; the zero of a field means its default. It is the catalog's own type, with
// WithDefaults and Validate.
type StreamConfig = catalog.StreamConfig

// PartitionInfo is one partition of a stream's lineage and what this node believes of its owner and replicas.
type PartitionInfo struct {
	ID       ring.PartitionID   `json:"partition"`
	Group    ring.GroupID       `json:"group"`
	Range    ring.Range         `json:"range"`
	State    string             `json:"state"` // open | sealed | importing
	Parents  []ring.PartitionID `json:"parents,omitempty"`
	Children []ring.PartitionID `json:"children,omitempty"`
	Owner    string             `json:"owner,omitempty"` // node name; "" not known
	Term     uint64             `json:"term,omitempty"`
	Replicas []string           `json:"replicas,omitempty"` // node names
}

// StreamInfo is a stream's definition.
type StreamInfo struct {
	Name       string          `json:"name"`
	ID         ring.StreamID   `json:"incarnation"`
	Version    uint64          `json:"version"` // the ETag: changes with each change of the definition
	Created    time.Time       `json:"created"`
	Config     StreamConfig    `json:"config"`
	Partitions []PartitionInfo `json:"partitions,omitempty"` // the lineage, by partition id
}

// StreamList is all definitions, by name, as far as the catalog tells.
type StreamList struct {
	Streams []StreamInfo `json:"streams"`
	// Incomplete says what is missing, for people; empty where nothing is.
	Incomplete string `json:"incomplete,omitempty"`
}

// CreateMode says what to do when the stream exists.
type CreateMode int

const (
	CreateOrSame CreateMode = iota // equal config: fine; different: KindConflict
	CreateOnly                     // exists: KindConflict with code "exists"
)

// Streams manages stream definitions, from any node. Errors: KindInvalid, KindNotFound (stream-not-found), KindConflict,
// KindUnavailable (no-quorum), KindOutcomeUnknown.
type Streams interface {
	Create(ctx context.Context, name string, cfg StreamConfig, mode CreateMode) (info StreamInfo, created bool, err error)
	Get(ctx context.Context, name string) (StreamInfo, error)
	// List waits for half of the time that ctx leaves. Where some shards of the catalog do not answer meanwhile, it gives what is known, and
	// says that it is incomplete; an error where nothing is.
	List(ctx context.Context) (StreamList, error)
	// Update replaces the mutable part of the config when version matches. 0: any; it is then repeated when its outcome is unknown, so that it
	// may be made twice, undo what another client changed between, or meet the next incarnation.
	Update(ctx context.Context, name string, version uint64, cfg StreamConfig) (StreamInfo, error)
	Delete(ctx context.Context, name string) error
}

// Ack says when a publish is answered.
type Ack int

const (
	AckQuorum Ack = iota // fsynced by a majority
	AckNone              // accepted by the owner, not yet durable
)

// PublishOptions are common to all events of one request.
type PublishOptions struct {
	Ack Ack
	// IdempotencyKey, where not empty, is the identity of events that have none of their own: (key, position in the request).
	IdempotencyKey string
	// Partition, where not nil, overrules the key hash for all events (tests, tools).
	Partition *ring.PartitionID
	// AutoCreate makes the stream with the default config where it does not exist.
	AutoCreate bool
}

// PublishResult is what became of one event, in input order.
type PublishResult struct {
	Partition ring.PartitionID
	Offset    uint64 // 0 with AckNone: not known yet
	Time      time.Time
	Copies    int
	Duplicate bool
	Err       error // nil: stored (or accepted, with AckNone)
}

// Publisher appends events, from any node. It waits at most until ctx's deadline. err is for the request as a whole (no
// event was stored: KindInvalid, KindNotFound, …); else each event has its own result. When outcomes differ
// per partition err is nil. Records are not kept after it returned.
type Publisher interface {
	Publish(ctx context.Context, stream string, recs []batch.Record, o PublishOptions) ([]PublishResult, error)
}

// Event is one event as read.
type Event struct {
	Stream    string
	Partition ring.PartitionID
	Offset    uint64
	Stamp     time.Time // when the owner took it; the time that positions count by
	batch.Record
}

// SubscribeRequest says what to read.
type SubscribeRequest struct {
	From      Position
	Key       []byte // with HasKey: only events of this key
	HasKey    bool
	Partition *ring.PartitionID // only this partition
	UntilEnd  bool              // stop at the end as it was when the subscription started
}

// Chunk is a run of events. Its slices are valid until the next call of Next.
type Chunk struct {
	Events []Event
	// Cursor resumes after the chunk's last event.
	Cursor Cursor
	// End: with UntilEnd, everything was delivered; no further chunk follows.
	End bool
}

// Subscription reads one stream; one goroutine uses it at a time. Within a partition events come in offset order; a partition's children
// come after it is finished.
type Subscription interface {
	// Next waits for events (ctx: how long) and returns at least one event or End; maxEvents below 1 means no limit.
	Next(ctx context.Context, maxEvents int) (Chunk, error)
	// Cursor is the position after all that Next returned so far (before the first Next: the start, resolved).
	Cursor() Cursor
	Close() error
}

// Subscriber reads, from any node. Errors: KindInvalid (position, foreign cursor), KindNotFound, KindUnavailable (no-quorum when the
// end is asked), and KindNotFound with code offset-expired whose Detail names the earliest offset.
type Subscriber interface {
	Subscribe(ctx context.Context, stream string, req SubscribeRequest) (Subscription, error)
	// EventAt returns one event.
	EventAt(ctx context.Context, stream string, p ring.PartitionID, offset uint64) (Event, error)
}
