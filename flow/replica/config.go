package replica

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
)

// Config is what a Host needs. Fields without a stated default are required.
type Config struct {
	Self      ring.NodeID
	Journal   log.Journal
	Store     log.Store
	Factories map[GroupKind]Factory
	Sender    Sender
	Caller    Caller
	Placement Placement
	// WantReplicas is how many copies a group wants whose state machine is no Sizer; nil means 3.
	WantReplicas func(kind GroupKind, spec []byte) int

	// Describe gives log attributes, key and value in turn, that say which partition of which stream a group is: nobody knows a group by
	// its id. Called when a replica is opened; it must not block. nil: logs have the id alone.
	Describe func(b Birth) []any

	// TickInterval is the unit of raft's logical clock. Default 50 ms.
	TickInterval time.Duration
	// ElectionTicks without an owner start an election (randomised up to twice as long). Default 10: 0.5–1 s.
	ElectionTicks int
	// HeartbeatTicks between an owner's heartbeats. Default 1.
	HeartbeatTicks int
	// RestTicks without anything to do let a group rest: no heartbeats are sent for it and it is not ticked until something is to be
	// done. 0: never. Default 20: 1 s.
	RestTicks int

	// MaxUncommittedBytes bounds what is proposed and not yet answered, per group. Default 8 MiB.
	MaxUncommittedBytes int
	// MaxInflight bounds unacknowledged append messages per follower. Default 256.
	MaxInflight int
	// MaxInflightBytes bounds their bytes, so that one slow follower holds little memory. Default 16 MiB.
	MaxInflightBytes int
	// MaxSizePerMsg bounds the entries of one append message, bytes. Default 1 MiB.
	MaxSizePerMsg int
	// MaxApplyBytes bounds entries handed to the state machine at a time, bytes. Default 4 MiB.
	MaxApplyBytes int
	// CacheBytes bounds recent entries kept in memory per group for followers that lag a little. Default 4 MiB.
	CacheBytes int
	// NodeCacheBytes bounds the same over all groups, with the entries that are not applied yet: beyond it nothing is kept for
	// followers, who are served from the journal. Default 24 MiB.
	NodeCacheBytes int64
	// MaxUnwrittenBytes bounds the entries of all groups that wait for this node's disk: beyond it, entries of other owners are
	// dropped until the disk has caught up, and those owners send them again. What is owned here is bounded by
	// MaxUncommittedBytes and by who proposes. Default 48 MiB.
	MaxUnwrittenBytes int64

	// MailboxMessages and MailboxBytes bound raft messages waiting for one group; more are dropped, raft repairs the loss.
	// Defaults 4096 and 16 MiB.
	MailboxMessages int
	MailboxBytes    int
	// OutboxBytes bounds what waits to be framed for one peer and class; more is dropped. Default 16 MiB.
	OutboxBytes int

	// CheckpointInterval is the longest that applied entries wait to be made durable outside the journal. Default 10 s.
	CheckpointInterval time.Duration
	// CheckpointBytes starts a checkpoint earlier, after so many applied bytes on this node. Default 32 MiB.
	CheckpointBytes int64
	// MaxSnapshots is how many snapshots this node sends at a time. Default 2.
	MaxSnapshots int
	// MaxFetches is how many snapshots this node fetches at a time; others wait to be announced again. Default 4.
	MaxFetches int

	// PlanTicks is how often an owner looks whether its group's membership is as wanted. Default 5: 250 ms.
	PlanTicks int
	// PreferHome makes an owner hand its group to the first desired node once that node has been caught up for HomeAfter.
	PreferHome bool
	// HomeAfter: default 30 s.
	HomeAfter time.Duration

	// MaxArrivals is how many replicas may be coming to this node at a time, whatever for; others come when these are there. Default 4.
	MaxArrivals int
	// MoveTimeout is how long a move may take before it is given up. Default 1 h.
	MoveTimeout time.Duration
	// AskAfter is how long a replica hears of no owner before it asks whether it is a member still. Default 10 s.
	AskAfter time.Duration
	// ReplaceAfter is how long a replica is closed for good on a node that is there, as its owner was told, before it is replaced.
	// Safe for concurrent use, never blocks. Default 5 min.
	ReplaceAfter func() time.Duration
	// SetAside moves the bulk files of a removed replica that was closed for good, or that its factory cannot open, to where no later replica
	// meets them; doing it again changes nothing. nil: there are none.
	SetAside func(b Birth) error
	// OwnerHint is who is believed to own a group, zero: nobody; nil: nobody knows. Safe for concurrent use, never blocks.
	OwnerHint func(g ring.GroupID) ring.NodeID

	// Logger: default discards.
	Logger *slog.Logger
	// Registerer takes the metrics; nil: they are kept but not registered.
	Registerer prometheus.Registerer
	// Rand spreads retries; default seeded from the runtime. Used under a lock of the Host.
	Rand *rand.Rand
}

// DefaultConfig has every default; the required fields are left empty.
func DefaultConfig() Config {
	return Config{
		TickInterval: 50 * time.Millisecond, ElectionTicks: 10, HeartbeatTicks: 1, RestTicks: 20,
		MaxUncommittedBytes: 8 << 20, MaxInflight: 256, MaxInflightBytes: 16 << 20,
		MaxSizePerMsg: 1 << 20, MaxApplyBytes: 4 << 20, CacheBytes: 4 << 20, NodeCacheBytes: 24 << 20, MaxUnwrittenBytes: 48 << 20,
		MailboxMessages: 4096, MailboxBytes: 16 << 20, OutboxBytes: 16 << 20,
		CheckpointInterval: 10 * time.Second, CheckpointBytes: 32 << 20, MaxSnapshots: 2, MaxFetches: 4,
		PlanTicks: 5, PreferHome: true, HomeAfter: 30 * time.Second,
		MaxArrivals: 4, MoveTimeout: time.Hour, AskAfter: 10 * time.Second,
		ReplaceAfter: func() time.Duration { return 5 * time.Minute },
	}
}

// Validate reports what is missing or out of bounds. It changes nothing.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("replica: config: "+what))
		}
	}
	need(!c.Self.IsZero(), "Self is required")
	need(c.Journal != nil, "Journal is required")
	need(c.Store != nil, "Store is required")
	need(len(c.Factories) > 0, "Factories is required")
	need(c.Sender != nil, "Sender is required")
	need(c.Caller != nil, "Caller is required")
	need(c.Placement != nil, "Placement is required")
	need(c.TickInterval > 0, "TickInterval must be above 0")
	need(c.HeartbeatTicks > 0, "HeartbeatTicks must be above 0")
	need(c.ElectionTicks > c.HeartbeatTicks, "ElectionTicks must be above HeartbeatTicks")
	need(c.RestTicks >= 0, "RestTicks must not be negative")
	need(c.MaxUncommittedBytes > 0, "MaxUncommittedBytes must be above 0")
	need(c.MaxInflight > 0, "MaxInflight must be above 0")
	need(c.MaxSizePerMsg > 0, "MaxSizePerMsg must be above 0")
	need(c.MaxSizePerMsg <= MaxEntry, "MaxSizePerMsg must leave room in a frame")
	need(c.MaxInflightBytes >= c.MaxSizePerMsg, "MaxInflightBytes must be MaxSizePerMsg at least")
	need(c.MaxApplyBytes > 0, "MaxApplyBytes must be above 0")
	need(c.CacheBytes >= 0 && c.NodeCacheBytes >= 0, "CacheBytes and NodeCacheBytes must not be negative")
	need(c.MaxUnwrittenBytes > 0, "MaxUnwrittenBytes must be above 0")
	need(c.MailboxMessages > 0 && c.MailboxBytes > 0, "MailboxMessages and MailboxBytes must be above 0")
	need(c.OutboxBytes > 0, "OutboxBytes must be above 0")
	need(c.CheckpointInterval > 0 && c.CheckpointBytes > 0, "CheckpointInterval and CheckpointBytes must be above 0")
	need(c.MaxSnapshots > 0 && c.MaxFetches > 0, "MaxSnapshots and MaxFetches must be above 0")
	need(c.PlanTicks > 0, "PlanTicks must be above 0")
	need(c.HomeAfter >= 0, "HomeAfter must not be negative")
	need(c.MaxArrivals > 0, "MaxArrivals must be above 0")
	need(c.ReplaceAfter != nil, "ReplaceAfter is required")
	need(c.MoveTimeout > 0 && c.AskAfter > 0, "MoveTimeout and AskAfter must be above 0")
	return errors.Join(errs...)
}
