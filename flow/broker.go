package flow

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/flow/credit"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Peers makes requests and opens streams to nodes, this one included. Safe for concurrent use.
type Peers interface {
	Call(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, body []byte) ([]byte, error)
	Open(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, hello []byte) (wire.Stream, error)
}

// Groups gives the replica groups that have a replica here. Safe for concurrent use.
type Groups interface {
	Group(id ring.GroupID) (*replica.Group, bool)
	Groups() []*replica.Group
	Remove(ctx context.Context, id ring.GroupID) error
}

// Directory is what gossip believes: hints, never authority. Safe for concurrent use, never blocks.
type Directory interface {
	// Owner is the last heard owner of a group.
	Owner(g ring.GroupID) (owner ring.NodeID, term uint64, ok bool)
	// Name is a node's human name, or its id where it is not known.
	Name(n ring.NodeID) string
	// Live lists the members held for alive, this node included.
	Live() []ring.NodeID
	// Place proposes n nodes for each of several new groups, the proposed owner first; fewer, or none, where there are not so many.
	Place(groups []ring.GroupID, n int) [][]ring.NodeID
}

// Config says how a Broker works.
type Config struct {
	Self ring.NodeID
	// Mesh is the mesh this node belongs to; zero while it has not joined one yet.
	Mesh          func() ring.MeshID
	CatalogShards int // of the mesh, fixed at founding
	// Cluster is the mesh's human name; exports carry it.
	Cluster string
	// RequireVersion is asked before an entry is proposed that only nodes of that version read: an error, of KindUnavailable, says why
	// the mesh is not ready for it. nil: it always is.
	RequireVersion func(ctx context.Context, v wire.Version) error

	Peers     Peers
	Groups    Groups
	Directory Directory

	// PublishBudget bounds the bytes of events waiting to be acknowledged on the ingest side, OwnerBudget those granted to
	// publish sessions on the owner side, ReadBudget those read ahead for subscribers. All node-wide.
	PublishBudget, OwnerBudget, ReadBudget *credit.Budget
	// DiskFull, where not nil, reports that the free-space reserve is reached: publishes are refused, the rest goes on.
	DiskFull func() bool
	// MaintainEvery is how often an owner looks at retention and configuration. Default 5 s.
	MaintainEvery time.Duration
	// Now is the wall clock; default time.Now.
	Now func() time.Time
	// Rand draws from [0,n) for jitter and for whom to ask; n is at least 1. Called by many goroutines at a time. Default rand.Int64N
	// of math/rand/v2.
	Rand func(n int64) int64

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// Broker is one node's publish and subscribe side. All exported methods are safe for concurrent use.
type Broker struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	owners  owners
	catalog *catalogClient
	births  *birthKeeper

	mu       sync.Mutex
	sessions map[ring.GroupID]*session
	closed   bool
	wg       sync.WaitGroup

	// life ends when Run returns: sessions and feeds live under it.
	life    context.Context
	endLife context.CancelCauseFunc

	granted grants
	turn    int // under mu: where leastQueued starts
}

var (
	_ Publisher  = (*Broker)(nil)
	_ Subscriber = (*Broker)(nil)
	_ Streams    = (*Broker)(nil)
)

// errClosing is what sessions and subscriptions end with when the node stops.
var errClosing = wire.Errorf(wire.KindUnavailable, wire.CodeDraining, "this node is stopping; ask another one")

// NewBroker checks the configuration; nothing runs before Run.
func NewBroker(cfg Config) (*Broker, error) {
	if cfg.Peers == nil || cfg.Groups == nil || cfg.Directory == nil || cfg.Mesh == nil || cfg.Logger == nil ||
		cfg.PublishBudget == nil || cfg.OwnerBudget == nil || cfg.ReadBudget == nil || cfg.CatalogShards < 1 {
		return nil, errors.New("flow: config lacks peers, groups, directory, mesh, logger, budgets or catalog shards")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Int64N
	}
	if cfg.RequireVersion == nil {
		cfg.RequireVersion = func(context.Context, wire.Version) error { return nil }
	}
	if cfg.MaintainEvery <= 0 {
		cfg.MaintainEvery = 5 * time.Second
	}
	b := &Broker{cfg: cfg, log: cfg.Logger, sessions: map[ring.GroupID]*session{}}
	b.metrics = newMetrics(cfg.Registerer)
	b.owners.init(b)
	b.catalog = newCatalogClient(b)
	b.births = newBirthKeeper(b)
	b.life, b.endLife = context.WithCancelCause(context.Background())
	return b, nil
}

// Run keeps births, retention and garbage collection going until ctx ends, then ends all sessions and subscriptions and
// waits for them.
func (b *Broker) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.births.run(gctx) })
	g.Go(func() error { return b.maintain(gctx) })
	err := g.Wait()
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.endLife(errClosing)
	b.wg.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// spawn starts a goroutine that Run waits for; false after the broker closed.
func (b *Broker) spawn(fn func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spawnLocked(fn)
}

func (b *Broker) spawnLocked(fn func(ctx context.Context)) bool {
	if b.closed {
		return false
	}
	b.wg.Go(func() { fn(b.life) })
	return true
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// jittered is between half of d and all of it.
func (b *Broker) jittered(d time.Duration) time.Duration {
	return d/2 + time.Duration(b.cfg.Rand(int64(d/2)+1))
}

// QueuedBytes is how much of publishers' events is waiting on this node to be acknowledged, or granted to publish sessions.
func (b *Broker) QueuedBytes() int64 { return b.cfg.PublishBudget.Used() + b.cfg.OwnerBudget.Used() }
