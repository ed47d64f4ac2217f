package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Host owns all replicas of one node. Its methods are safe for concurrent use.
type Host struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	outbox   *outbox
	appender *appender
	beats    *beats
	clock    atomic.Uint64 // ticks since the start

	ctx       context.Context // ends when the host is to stop
	cancel    context.CancelFunc
	ready     chan struct{}
	stopped   chan struct{}
	started   atomic.Bool
	fatal     chan error // first error that ends the process
	children  sync.WaitGroup
	snapSlots chan struct{} // snapshots sent at a time
	snapRooms chan struct{} // snapshots fetched at a time

	pace pacer

	cached    nodeBytes // entries kept in memory by all groups
	unwritten nodeBytes // entries of all groups on their way to the disk

	sinceCheckpoint atomic.Int64
	checkpointDue   chan struct{}

	mu     sync.Mutex
	groups map[ring.GroupID]*Group
	busy   map[ring.GroupID]chan struct{} // being created or removed
	closed bool
	list   atomic.Pointer[[]*Group]

	forGood   map[ring.GroupID]forGood // closed for good; under mu
	closedNow chan struct{}            // one of them is to be told of at once

	owns    atomic.Int64 // groups owned here
	leaving atomic.Bool  // Leave was called

	movesMu sync.Mutex
	grants  grants
	carries map[ring.GroupID]carry
	asked   map[ring.NodeID]time.Time // when each node was last asked for a balance move
	handed  handedLately

	randMu sync.Mutex
	rand   *rand.Rand

	watchMu  sync.Mutex
	watchSeq int
	watchers map[int]func(Status)
	watching atomic.Pointer[[]func(Status)]
}

// NewHost checks the config. Nothing starts before Run.
func NewHost(cfg Config) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, log: cfg.Logger, metrics: newMetrics(cfg.Registerer), appender: newAppender(cfg.Journal),
		ready: make(chan struct{}), stopped: make(chan struct{}), fatal: make(chan error, 1),
		snapSlots: make(chan struct{}, cfg.MaxSnapshots), snapRooms: make(chan struct{}, cfg.MaxFetches), checkpointDue: make(chan struct{}, 1),
		groups: map[ring.GroupID]*Group{}, busy: map[ring.GroupID]chan struct{}{}, rand: cfg.Rand,
		forGood: map[ring.GroupID]forGood{}, closedNow: make(chan struct{}, 1),
		watchers: map[int]func(Status){}, carries: map[ring.GroupID]carry{}, asked: map[ring.NodeID]time.Time{}}
	if h.log == nil {
		h.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if h.rand == nil {
		h.rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.cached.limit, h.unwritten.limit = cfg.NodeCacheBytes, cfg.MaxUnwrittenBytes
	h.pace.metrics = h.metrics
	h.outbox = newOutbox(h)
	h.beats = newBeats(h.rand.Uint64())
	h.list.Store(&[]*Group{})
	return h, nil
}

// Ready is closed when all replicas of this node are recovered and run.
func (h *Host) Ready() <-chan struct{} { return h.ready }

// Run recovers all replicas, then serves until ctx ends or the disk fails; it returns when everything it started has ended.
// The journal and the store are left open. Call it once.
func (h *Host) Run(ctx context.Context) error {
	if h.started.Swap(true) {
		return errors.New("replica: Run was called before")
	}
	defer context.AfterFunc(ctx, h.cancel)() // at once: who waits for the journal may wait for a disk that is full
	wctx, stopWriters := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	writers.Go(func() { h.appender.run(wctx) })
	writers.Go(func() { h.outbox.run(wctx.Done()) })
	err := h.serve(ctx)
	h.cancel()
	h.mu.Lock()
	h.closed = true
	groups := h.Groups()
	h.mu.Unlock()
	for _, g := range groups {
		g.close()
	}
	for _, g := range groups {
		<-g.done
	}
	h.children.Wait()
	stopWriters()
	writers.Wait()
	close(h.stopped)
	return err
}

func (h *Host) serve(ctx context.Context) error {
	if err := h.recover(ctx); err != nil {
		if ctx.Err() != nil && wire.KindOf(err) == wire.KindClosed {
			return nil // it was to write something first
		}
		return err
	}
	close(h.ready)
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var asker sync.WaitGroup
	asker.Go(func() { h.askFates(cctx) })
	defer asker.Wait()
	checked := make(chan error, 1)
	go func() { checked <- h.checkpointer(cctx) }()
	err := h.tickUntil(ctx, checked)
	cancel()
	if cerr := <-checked; err == nil {
		err = cerr
	}
	return err
}

// tickUntil fans the clock out (tick.go). A stalled machine gets one tick for all that it missed: time.Ticker drops, and so do groups.
func (h *Host) tickUntil(ctx context.Context, checked chan error) error {
	t := time.NewTicker(h.cfg.TickInterval)
	defer t.Stop()
	state := tickState{leases: map[ring.NodeID]lease{}, boots: map[ring.NodeID]uint64{}}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-h.fatal:
			return err
		case err := <-checked:
			checked <- nil
			return err
		case <-t.C:
			h.tick(&state)
		}
	}
}

// logOf is the logger for one group: lines about it name its partition.
func (h *Host) logOf(b Birth) *slog.Logger {
	attrs := []any{"group", b.Group.String()}
	if h.cfg.Describe != nil {
		attrs = append(h.cfg.Describe(b), attrs...)
	}
	return h.log.With(attrs...)
}

// Groups lists the replicas on this node, in no order. The caller must not change the slice.
func (h *Host) Groups() []*Group { return *h.list.Load() }

// Group gives the replica of a group on this node.
func (h *Host) Group(id ring.GroupID) (*Group, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.groups[id]
	return g, ok
}

// register makes a group visible and starts it; false when the host is closing.
func (h *Host) register(g *Group) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.groups[g.id] = g
	next := append(slices.Clone(*h.list.Load()), g)
	h.list.Store(&next)
	h.metrics.groups.Inc()
	go g.run()
	return true
}

// unregister takes a stopped group out of sight.
func (h *Host) unregister(g *Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.groups[g.id] != g {
		return
	}
	delete(h.groups, g.id)
	next := slices.DeleteFunc(slices.Clone(*h.list.Load()), func(o *Group) bool { return o == g })
	h.list.Store(&next)
	h.metrics.groups.Dec()
}

// groupFailed is told when a replica stopped on its own, its state machine closed. Errors of the journal, and a log that lost entries, end the
// host: the disk cannot be trusted. A full disk passes.
func (h *Host) groupFailed(g *Group, err error) {
	lasting := !endsHost(err) && !log.IsDiskFull(err) && !errors.Is(err, errDamaged)
	if lasting {
		h.closeForGood(g.birth, err) // before anybody can remove it
	}
	h.unregister(g)
	switch {
	case lasting:
	case endsHost(err):
		h.fail(err)
	case log.IsDiskFull(err):
		h.reopenLater(g.birth)
	default:
		h.reopenDamaged(g.birth)
	}
}

func (h *Host) fail(err error) {
	select {
	case h.fatal <- err:
	default:
	}
}

// HandleRaft takes a MethodRaft message. It does not block: what does not fit a group's mailbox is dropped. It keeps body.
// Its error says that the message is malformed.
func (h *Host) HandleRaft(from ring.NodeID, body []byte) error {
	err := decodeFrame(body, func(e envelope) {
		if beating && e.group.IsZero() {
			if b, ok := beatOf(e.msg); ok {
				h.beats.take(h.clock.Load(), from, b)
			}
			return
		}
		g, ok := h.Group(e.group)
		if !ok {
			h.metrics.dropped.WithLabelValues("no-group").Inc()
			return
		}
		if !g.inbox.message(from, e, h.cfg.MailboxMessages, h.cfg.MailboxBytes) {
			h.metrics.dropped.WithLabelValues("mailbox-full").Inc()
		}
	})
	if err != nil {
		h.metrics.dropped.WithLabelValues("malformed").Inc()
	}
	return err
}

// HandleBirth answers a MethodBirth request: an owner names a learner on this node. Only what is here already is taken where this node takes
// nothing new, whatever its owner has heard of that. What does not run is here too: the owner replaces what is not.
func (h *Host) HandleBirth(ctx context.Context, from ring.NodeID, body []byte) ([]byte, error) {
	b, err := decodeBirth(body)
	if err != nil {
		return nil, wire.Errorf(wire.KindInvalid, "", "malformed birth record")
	}
	if !b.Empty || !slices.ContainsFunc(b.Members, func(m Member) bool { return m.Node == from }) {
		return nil, wire.Errorf(wire.KindInvalid, "", "only a member of the group may name a learner, and only an empty one")
	}
	if !h.cfg.Placement.Takes(h.cfg.Self) {
		switch held, err := h.holds(ctx, b.Group, b.Self); {
		case err != nil:
			return nil, err
		case !held:
			return nil, takesNothing(wire.KindNotFound, "create replica")
		}
	}
	old, here := h.Group(b.Group)
	if !here && h.arriving() >= h.cfg.MaxArrivals {
		return nil, &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, Op: "create replica", RetryAfter: time.Second,
			Detail: "other replicas are on their way here"}
	}
	if err = h.Create(ctx, b); wire.KindOf(err) == wire.KindConflict {
		// What is here may have been removed from the group before this node heard of it.
		if here {
			h.askFate(ctx, old)
		} else if gs, known := h.cfg.Journal.Load(b.Group); known {
			if c, ok := h.closedIn(gs); ok {
				h.askClosedFate(ctx, c)
			}
		}
		err = h.Create(ctx, b)
	}
	return nil, err
}

// arrivalTime is for how long a replica counts as being on its way here although nothing comes.
const arrivalTime = time.Minute

// arriving is how many replicas are on their way here. One that was named and then left alone does not count for ever.
func (h *Host) arriving() (n int) {
	for _, g := range h.Groups() {
		if g.applied.Load() == 0 && (g.unsteady.Load() || time.Since(g.opened) < arrivalTime) {
			n++
		}
	}
	return n
}

// OnOwnerChanged has fn called whenever a replica here changed its role, term, owner or readiness. fn is called from the
// groups' goroutines, several at a time, and must not block. The returned function ends it.
func (h *Host) OnOwnerChanged(fn func(Status)) (stop func()) {
	h.watchMu.Lock()
	defer h.watchMu.Unlock()
	h.watchSeq++
	id := h.watchSeq
	h.watchers[id] = fn
	h.rewatch()
	return func() {
		h.watchMu.Lock()
		defer h.watchMu.Unlock()
		delete(h.watchers, id)
		h.rewatch()
	}
}

func (h *Host) rewatch() {
	fns := make([]func(Status), 0, len(h.watchers))
	for _, fn := range h.watchers {
		fns = append(fns, fn)
	}
	h.watching.Store(&fns)
}

func (h *Host) ownerChanged(s Status) {
	if fns := h.watching.Load(); fns != nil {
		for _, fn := range *fns {
			fn(s)
		}
	}
}

// want is how many copies a group should have, where there are enough nodes.
func (h *Host) want(b Birth, sm StateMachine) int {
	if s, ok := sm.(Sizer); ok {
		if n := s.WantReplicas(); n > 0 {
			return n
		}
	}
	if h.cfg.WantReplicas == nil {
		return 3
	}
	return max(h.cfg.WantReplicas(b.Kind, b.Spec), 1)
}

// jitter is a random number of ticks up to n.
func (h *Host) jitter(n uint64) uint64 {
	h.randMu.Lock()
	defer h.randMu.Unlock()
	return h.rand.Uint64N(n + 1)
}

func (h *Host) factory(b Birth) (StateMachine, error) {
	f, ok := h.cfg.Factories[b.Kind]
	if !ok {
		return nil, wire.Errorf(wire.KindInvalid, "", "group %s is of unknown kind %d", b.Group, b.Kind)
	}
	sm, err := f(b, StatePrefix(b.Group))
	if err != nil {
		return nil, fmt.Errorf("open state of group %s: %w", b.Group, err)
	}
	return sm, nil
}
