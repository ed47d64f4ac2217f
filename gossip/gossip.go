package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// Errors of this package's calls.
var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("gossip: closed")
	// ErrOtherMesh is returned by AdoptMesh when the node belongs to another mesh already.
	ErrOtherMesh = errors.New("gossip: this node belongs to another mesh")
)

// Gossip is this node's membership of a mesh. All methods are safe for concurrent use.
type Gossip struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	net     *transport
	keyring *memberlist.Keyring
	queue   *memberlist.TransmitLimitedQueue
	inbox   *inbox
	notices *notices

	// lookup resolves seed names; tune, when set, changes the library's configuration. For tests of names and of long cuts.
	lookup lookup
	tune   func(*memberlist.Config)

	current atomic.Pointer[published]

	mu      sync.Mutex
	self    view.Identity // what is announced
	pending ring.MeshID   // learnt from a peer and not persisted yet
	load    report        // newest of SetLoad; seq 0: none yet
	loadAt  time.Time     // when that was
	hints   []view.Hint   // newest of SetHints, by group
	started bool
	closed  bool

	// libMu keeps the library from being shut down while Leave uses it; lib is nil before Run and after it.
	libMu sync.RWMutex
	// sayMu keeps announcements apart: the library reads this node's entry without its lock while it makes one.
	sayMu sync.Mutex
	lib   *memberlist.Memberlist

	localCh    chan struct{} // SetLoad, SetHints: something for the loop
	announceCh chan struct{} // identity changed
	meshCh     chan struct{} // pending was set
	stop       chan struct{} // closed by Close
	done       chan struct{} // closed when Run ended
}

// published is a view and the channel that is closed when the next one is out.
type published struct {
	view *view.View
	next chan struct{}
}

// New binds the sockets and checks the configuration. It starts nothing; call Run, and Close in any case.
func New(cfg Config) (*Gossip, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	var keyring *memberlist.Keyring
	if len(cfg.Secret) > 0 {
		var err error
		if keyring, err = memberlist.NewKeyring(cfg.PreviousSecrets, cfg.Secret); err != nil {
			return nil, fmt.Errorf("gossip: secret: %w", err)
		}
	}
	net, err := listen(cfg.BindAddr, cfg.AdvertiseAddr, cfg.Self.Cluster)
	if err != nil {
		return nil, err
	}
	g := &Gossip{
		cfg:        cfg,
		log:        logger,
		net:        net,
		keyring:    keyring,
		lookup:     lookupIP,
		self:       cfg.Self,
		localCh:    make(chan struct{}, 1),
		announceCh: make(chan struct{}, 1),
		meshCh:     make(chan struct{}, 1),
		stop:       make(chan struct{}),
		done:       make(chan struct{}),
	}
	g.self.Weight = max(g.self.Weight, 1)
	g.self.GossipAddr = net.adv.String()
	g.self.Incarnation = uint64(time.Now().UnixMilli())
	g.load.node = g.self.ID
	v, _ := view.New(g.self.ID, cfg.Limits).Merge(view.Update{Members: []view.Member{g.selfMember(time.Now())}})
	g.current.Store(&published{view: v, next: make(chan struct{})})
	g.metrics = newMetrics(cfg.Registerer, g.View)
	g.inbox = newInbox(g.metrics)
	g.notices = newNotices(g.metrics)
	g.queue = &memberlist.TransmitLimitedQueue{NumNodes: func() int { return g.View().CountPresent() }, RetransmitMult: 3}
	net.onOther = g.notices.otherCluster(cfg.Self.Cluster)
	net.onExcess = g.metrics.excessConns.Inc
	net.onCompressed = g.metrics.invalid.WithLabelValues("compressed").Inc
	return g, nil
}

// selfMember is this node as a member of its own view.
func (g *Gossip) selfMember(now time.Time) view.Member {
	return view.Member{Identity: g.self, State: view.StateAlive, Since: now, Observed: 1}
}

// Addr is host:port under which other nodes reach this one.
func (g *Gossip) Addr() string { return g.net.adv.String() }

// View is the newest picture; it never changes.
func (g *Gossip) View() *view.View { return g.current.Load().view }

// Changed is closed when a view newer than the one that View returns now is out. To miss nothing, call it before View.
func (g *Gossip) Changed() <-chan struct{} { return g.current.Load().next }

// Self is what this node announces now.
func (g *Gossip) Self() view.Identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.self
}

// MeshID is the mesh this node belongs to; false while it has none.
func (g *Gossip) MeshID() (ring.MeshID, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.self.Mesh, !g.self.Mesh.IsZero()
}

// AdoptMesh makes this node announce mesh id from now on: after founding, or when the node learnt it in another way. The
// caller has persisted it. ErrOtherMesh when the node has, or is just learning, another one.
func (g *Gossip) AdoptMesh(id ring.MeshID) error {
	if id.IsZero() {
		return errors.New("gossip: adopt mesh: zero id")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.self.Mesh == id:
		return nil
	case !g.self.Mesh.IsZero():
		return fmt.Errorf("%w: %s, not %s", ErrOtherMesh, g.self.Mesh, id)
	case !g.pending.IsZero() && g.pending != id:
		return fmt.Errorf("%w: %s, not %s", ErrOtherMesh, g.pending, id)
	}
	g.pending = ring.MeshID{}
	g.self.Mesh = id
	g.announceLocked()
	return nil
}

// SetFlags announces new flags.
func (g *Gossip) SetFlags(f view.Flags) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.self.Flags != f {
		g.self.Flags = f
		g.announceLocked()
	}
}

// SetFloor announces the lowest wire.Version that this node puts up with; it never sinks. Nodes that speak only older ones are not
// admitted any more.
func (g *Gossip) SetFloor(v uint16) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.self.Floor < v {
		g.self.Floor = v
		g.announceLocked()
	}
}

// announceLocked gives the changed identity its number and has it sent.
func (g *Gossip) announceLocked() {
	g.self.Incarnation = max(g.self.Incarnation+1, uint64(time.Now().UnixMilli()))
	wake(g.announceCh)
	wake(g.localCh)
}

// SetLoad says what this node measured just now. The newest replaces one not sent yet.
func (g *Gossip) SetLoad(l view.Load) {
	g.mu.Lock()
	g.load.seq = max(g.load.seq+1, uint64(time.Now().UnixMilli()))
	g.load.load, g.loadAt = l, time.Now()
	g.mu.Unlock()
	wake(g.localCh)
}

// SetHints says which groups this node owns, all of them; Owner is set to this node. What is new is broadcast, and all of
// it goes with every full exchange. Groups no longer named stay in the views of others until someone claims them in a
// higher term or HintTTL passed.
func (g *Gossip) SetHints(hints []view.Hint) {
	own := slices.Clone(hints)
	for i := range own {
		own[i].Owner = g.cfg.Self.ID
	}
	slices.SortFunc(own, func(a, b view.Hint) int { return a.Group.Compare(b.Group) })
	own = slices.CompactFunc(own, func(a, b view.Hint) bool { return a.Group == b.Group })
	g.mu.Lock()
	g.hints = own
	g.mu.Unlock()
	wake(g.localCh)
}

// wake signals a channel of capacity 1.
func wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Leave tells the others that this node goes on purpose, and returns when the word is out or timeout passed. Call it
// before ending Run. Nothing happens when Run has not started, or has ended.
func (g *Gossip) Leave(timeout time.Duration) error {
	g.libMu.RLock()
	defer g.libMu.RUnlock()
	if g.lib == nil {
		return nil
	}
	g.mu.Lock()
	g.self.Flags |= view.Leaving
	g.self.Incarnation++
	g.mu.Unlock()
	// The announcement first: from the departure alone others could not tell a node that left from one that died.
	deadline := time.Now().Add(timeout)
	if err := g.say(g.lib, max(timeout/2, time.Millisecond)); err != nil {
		g.log.Debug("leaving was not announced in time", "error", err)
	}
	if err := g.lib.Leave(max(time.Until(deadline), time.Millisecond)); err != nil {
		return fmt.Errorf("gossip: leave: %w", err)
	}
	return nil
}

// say has the library announce this node anew, and waits until that is out, for timeout at most.
func (g *Gossip) say(lib *memberlist.Memberlist, timeout time.Duration) error {
	g.sayMu.Lock()
	defer g.sayMu.Unlock()
	return lib.UpdateNode(timeout)
}

// Close ends Run and frees the sockets. It returns when Run has ended. Idempotent.
func (g *Gossip) Close() error {
	g.mu.Lock()
	first, started := !g.closed, g.started
	g.closed = true
	g.mu.Unlock()
	if first {
		close(g.stop)
		g.metrics.unregister(g.cfg.Registerer)
	}
	if started {
		<-g.done
	}
	return g.net.Shutdown()
}

// Run joins the mesh and gossips until ctx ends or Close is called; then it returns nil. It returns an error when the
// library cannot start or OnMesh refused the mesh. Call it once.
func (g *Gossip) Run(ctx context.Context) error {
	g.mu.Lock()
	if g.closed || g.started {
		g.mu.Unlock()
		return ErrClosed
	}
	g.started = true
	g.mu.Unlock()
	defer close(g.done)
	return g.run(ctx)
}
