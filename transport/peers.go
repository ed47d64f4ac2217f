package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Peers is a node's side of all its connections. Handlers are registered before Run; everything else is safe for
// concurrent use at any time, and fails with KindUnavailable before Run and KindClosed after it.
type Peers struct {
	cfg Config
	log *slog.Logger
	m   *metrics
	ep  Endpoint // set by Listen

	onMessage map[wire.Method]wire.MessageHandler
	onRequest map[wire.Method]wire.RequestHandler
	onStream  map[wire.Method]wire.StreamHandler

	wg      sync.WaitGroup // everything that Run waits for, except
	dialing sync.WaitGroup // the links, which end first: while the endpoint can still say goodbye

	mu       sync.Mutex
	ctx      context.Context // of Run; nil before
	closed   bool
	id       Identity
	addrs    map[ring.NodeID]string // what SetPeers was told before Run
	peers    map[ring.NodeID]*peer
	inbound  map[inboundKey]*inbound
	starts   map[ring.NodeID]heardStart
	startSeq uint64
	loops    [2]*lane // one-way messages to this node itself
	warned   map[string]time.Time
}

// New checks cfg (zero fields take their defaults) and makes Peers. It starts nothing.
func New(cfg Config) (*Peers, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("transport: register metrics: %w", err)
	}
	p := &Peers{
		cfg: cfg, log: cfg.Logger, m: m, id: cfg.Self,
		onMessage: map[wire.Method]wire.MessageHandler{},
		onRequest: map[wire.Method]wire.RequestHandler{},
		onStream:  map[wire.Method]wire.StreamHandler{},
		peers:     map[ring.NodeID]*peer{},
		inbound:   map[inboundKey]*inbound{},
		starts:    map[ring.NodeID]heardStart{},
		warned:    map[string]time.Time{},
	}
	for id, s := range cfg.Known {
		p.starts[id] = heardStart{Start: s}
	}
	for c := range p.loops {
		p.loops[c] = newLane(cfg.SendQueueBytes, cfg.SendQueueFrames, m.queued.WithLabelValues(className(wire.Class(c))))
	}
	return p, nil
}

// Handle registers the handler of one-way messages of m, before Run. One of a method that is newer than this node's protocol version is
// left out: such messages are dropped, such requests and streams refused with wire.CodeUnsupported.
func (p *Peers) Handle(m wire.Method, h wire.MessageHandler) {
	if p.speaks(m) {
		p.onMessage[m] = h
	}
}

// message hands a one-way message to its handler.
func (p *Peers) message(from ring.NodeID, m wire.Method, body []byte) {
	f := p.onMessage[m]
	if f == nil {
		return
	}
	if err := f(from, body); err != nil {
		p.warn(from.String(), fmt.Sprint("message ", m), "left out a message from a node", err, "peer", from, "method", m)
	}
}

// HandleRequest registers the handler of requests of m, before Run; see Handle.
func (p *Peers) HandleRequest(m wire.Method, h wire.RequestHandler) {
	if p.speaks(m) {
		p.onRequest[m] = h
	}
}

// HandleStream registers the handler of streams of m, before Run; see Handle.
func (p *Peers) HandleStream(m wire.Method, h wire.StreamHandler) {
	if p.speaks(m) {
		p.onStream[m] = h
	}
}

// Listen binds the node's address and returns it, so that it can be told to others before Run. Run does it otherwise.
func (p *Peers) Listen() (addr string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return "", errClosed
	}
	if p.ep == nil {
		p.ep, err = p.cfg.Network.Listen(ListenOptions{
			Credentials: p.cfg.Credentials, HandshakeTimeout: p.cfg.HandshakeTimeout, IdleTimeout: p.cfg.IdleTimeout,
			MaxHandshakes: p.cfg.MaxHandshakes, Notice: p.log.Info, Refused: p.refused,
		})
		if err != nil {
			return "", err
		}
	}
	return p.ep.Addr(), nil
}

var errClosed = &wire.Error{Kind: wire.KindClosed, Detail: "this node is closing"}

// Run serves and keeps connections until ctx ends, or the endpoint fails; it returns when every connection and handler has ended. Run it
// once.
func (p *Peers) Run(ctx context.Context) error {
	if _, err := p.Listen(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	if p.ctx != nil {
		p.mu.Unlock()
		return errors.New("transport: Run was called twice")
	}
	p.ctx = ctx
	for id, addr := range p.addrs { // told before; what comes from now on finds them there
		p.addLocked(id, addr)
	}
	p.addrs = nil
	p.mu.Unlock()
	for _, l := range p.loops {
		p.spawn(func() { p.loop(l) })
	}
	accepting := make(chan error, 1)
	p.spawn(func() { accepting <- p.accept(ctx) })
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-accepting:
		cancel()
	}

	p.mu.Lock()
	p.closed = true
	open := make([]*inbound, 0, len(p.inbound))
	for _, in := range p.inbound {
		open = append(open, in)
	}
	p.mu.Unlock()
	for _, in := range open {
		in.conn.Close(CloseNormal, "the node is closing")
	}
	for _, l := range p.loops {
		l.close()
	}
	p.dialing.Wait()
	err := p.ep.Close()
	p.wg.Wait()
	return errors.Join(failure, err)
}

// Close releases the address of Peers that Listen bound and nobody runs. With Run, end its context instead.
func (p *Peers) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.ctx != nil {
		return nil
	}
	p.closed = true
	if p.ep == nil {
		return nil
	}
	return p.ep.Close()
}

// spawn runs f in a goroutine that Run waits for; false when Run is over.
func (p *Peers) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.ctx == nil {
		return false
	}
	p.wg.Go(f)
	return true
}

func (p *Peers) self() Identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// SetMesh tells the mesh id once it is known (founded or joined). Peers that announced another one are disconnected.
func (p *Peers) SetMesh(mesh ring.MeshID) {
	p.mu.Lock()
	if p.id.MeshID == mesh {
		p.mu.Unlock()
		return
	}
	p.id.MeshID = mesh
	id, links := p.id, p.linksLocked()
	strangers := map[*inbound]*refusal{}
	for _, in := range p.inbound {
		if r := id.check(in.peer, in.conn.Peer()); r != nil {
			strangers[in] = r
		}
	}
	p.mu.Unlock()
	for in, r := range strangers {
		in.conn.Close(CloseRefused, r.closeReason())
		p.refused(in.conn.RemoteAddr(), r)
	}
	for _, l := range links {
		if s := l.session(); s != nil {
			p.announce(s, id, l)
		}
	}
}

// announce sends a later hello, and drops the session where the peer turned out to be of another mesh.
func (p *Peers) announce(s *session, id Identity, l *link) {
	if r := id.check(s.peer, s.conn.Peer()); r != nil {
		s.conn.Close(CloseRefused, r.closeReason())
		p.warn(l.id.String(), r.code, "left a node of another mesh", r)
		return
	}
	b, err := wire.Marshal(id.hello(l.id, l.class))
	if err == nil {
		err = s.say(wire.Header{Type: wire.FrameHello}, b)
	}
	if err != nil {
		s.conn.Close(CloseProtocol, "the hello could not be renewed")
	}
}

func (p *Peers) linksLocked() []*link {
	var out []*link
	for _, pe := range p.peers {
		out = append(out, pe.links[:]...)
	}
	return out
}

// SetPeers replaces the known nodes and their addresses (host:port). New ones are dialed, changed ones dialed again, and
// those missing are left: what was under way with them fails. This node itself may be among them.
func (p *Peers) SetPeers(addrs map[ring.NodeID]string) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	if p.ctx == nil {
		p.addrs = maps.Clone(addrs)
		p.mu.Unlock()
		return
	}
	var moved []func()
	for id, addr := range addrs {
		pe := p.peers[id]
		if pe == nil {
			p.addLocked(id, addr)
			continue
		}
		for _, l := range pe.links {
			moved = append(moved, func() { l.move(addr) })
		}
	}
	for id, pe := range p.peers {
		if _, ok := addrs[id]; !ok {
			delete(p.peers, id)
			moved = append(moved, pe.cancel)
		}
	}
	p.mu.Unlock()
	for _, f := range moved {
		f()
	}
}

func (p *Peers) addLocked(id ring.NodeID, addr string) {
	if id == p.id.NodeID {
		return
	}
	ctx, cancel := context.WithCancel(p.ctx)
	pe := &peer{id: id, cancel: cancel}
	for c := range pe.links {
		l := &link{p: p, id: id, class: wire.Class(c), addr: addr, kick: make(chan struct{}, 1),
			attempt: make(chan struct{}), began: time.Now(), since: time.Now()}
		pe.links[c] = l
		p.dialing.Go(func() {
			l.run(ctx)
			l.over()
		})
	}
	p.peers[id] = pe
}

func (p *Peers) link(to ring.NodeID, class wire.Class) (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	pe := p.peers[to]
	if pe == nil || int(class) >= len(pe.links) {
		return nil, &wire.Error{Kind: wire.KindUnavailable, Op: "reach node", Detail: "node " + to.String() + " is not known"}
	}
	return pe.links[class], nil
}

// reach is the working session with a node, see link.current.
func (p *Peers) reach(ctx context.Context, to ring.NodeID, class wire.Class) (*session, error) {
	l, err := p.link(to, class)
	if err != nil {
		return nil, err
	}
	return l.current(ctx)
}

// Send queues a one-way message, which it keeps, and never blocks. Messages of one (peer, class) arrive in order or not at
// all. False: dropped, for the peer is unknown or not connected, speaks an older version than m's, its queue is full, or body is larger
// than wire.MaxFrame.
func (p *Peers) Send(to ring.NodeID, class wire.Class, m wire.Method, body []byte) bool {
	cl := className(class)
	if len(body) > wire.MaxFrame || int(class) >= len(p.loops) {
		p.m.dropped.WithLabelValues(cl, "too-large").Inc()
		return false
	}
	out := p.loops[class]
	if to != p.cfg.Self.NodeID {
		l, err := p.link(to, class)
		if err != nil {
			p.m.dropped.WithLabelValues(cl, "unknown").Inc()
			return false
		}
		s := l.session()
		if s == nil {
			p.m.dropped.WithLabelValues(cl, "down").Inc()
			return false
		}
		if p.common(s.peer) < m.Since() {
			p.m.dropped.WithLabelValues(cl, "unsupported").Inc()
			return false
		}
		out = s.out
	}
	if !out.put(m, body) {
		p.m.dropped.WithLabelValues(cl, "full").Inc()
		return false
	}
	p.m.messages.WithLabelValues(cl).Inc()
	return true
}

// Call makes a request and waits for its answer, at most until ctx ends; the remaining time travels to the handler. Errors
// are *wire.Error: the handler's own, KindUnavailable when it certainly did not run (with wire.CodeUnsupported when the peer's version
// does not know m), KindOutcomeUnknown when it may have.
// A call to this node itself runs the handler in place. body is not kept.
func (p *Peers) Call(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, body []byte) ([]byte, error) {
	answer, err := p.call(ctx, to, class, m, body)
	result := "ok"
	if err != nil {
		result = wire.KindOf(err).String()
	}
	p.m.calls.WithLabelValues(className(class), result).Inc()
	return answer, err
}

func (p *Peers) call(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, body []byte) ([]byte, error) {
	if len(body) > wire.MaxFrame {
		return nil, wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "request of %d bytes is larger than %d", len(body), wire.MaxFrame)
	}
	if ctx.Err() != nil {
		return nil, callError(ctx, false, ctx.Err())
	}
	if to == p.cfg.Self.NodeID {
		return p.callSelf(ctx, m, body)
	}
	s, err := p.reach(ctx, to, class)
	if err != nil {
		return nil, err
	}
	if err := p.supports(s.peer, m); err != nil {
		return nil, err
	}
	return s.call(ctx, m, body)
}

// Open starts a stream and returns without waiting for the peer: a refusal comes with the first Recv. ctx bounds the
// opening only. Errors are *wire.Error of KindUnavailable or KindInvalid. hello is at most 64 KiB and is not kept. The caller must
// Close.
func (p *Peers) Open(ctx context.Context, to ring.NodeID, class wire.Class, m wire.Method, hello []byte) (wire.Stream, error) {
	if len(hello) > maxOpen {
		return nil, wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "hello of %d bytes is larger than %d", len(hello), maxOpen)
	}
	if ctx.Err() != nil {
		return nil, callError(ctx, false, ctx.Err())
	}
	if to == p.cfg.Self.NodeID {
		return p.openSelf(m, hello)
	}
	s, err := p.reach(ctx, to, class)
	if err != nil {
		return nil, err
	}
	if err := p.supports(s.peer, m); err != nil {
		return nil, err
	}
	st, err := s.open(ctx, m, hello)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// Up reports whether the control connection to a node works. This node is always up to itself.
func (p *Peers) Up(to ring.NodeID) bool {
	if to == p.cfg.Self.NodeID {
		return true
	}
	l, err := p.link(to, wire.ClassControl)
	return err == nil && l.session() != nil
}
