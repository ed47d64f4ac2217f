package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
)

var (
	errSilent = errors.New("no network activity")
	errReset  = errors.New("the peer has restarted")
)

// acceptBacklog bounds connections that wait for Accept.
const acceptBacklog = 64

type endpoint struct {
	net    *Net
	addr   string
	o      transport.ListenOptions
	accept chan *conn

	mu    sync.Mutex
	conns map[*conn]struct{}
	done  chan struct{}
	dead  bool
}

func (n *Net) listen(addr string, o transport.ListenOptions) (transport.Endpoint, error) {
	e := &endpoint{net: n, addr: addr, o: o, accept: make(chan *conn, acceptBacklog), conns: map[*conn]struct{}{}, done: make(chan struct{})}
	n.mu.Lock()
	old := n.nodes[addr]
	if old != nil && !old.isDead() {
		n.mu.Unlock()
		return nil, fmt.Errorf("listen on %s: address in use", addr)
	}
	n.nodes[addr] = e
	n.mu.Unlock()
	if old != nil {
		old.orphan()
	}
	return e, nil
}

func (e *endpoint) Addr() string { return e.addr }

func (e *endpoint) isDead() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead
}

func (e *endpoint) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case c := <-e.accept:
		return c, nil
	case <-e.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type dialed struct {
	c   *conn
	err error
}

func (e *endpoint) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if e.isDead() {
		return nil, net.ErrClosed
	}
	answer := make(chan dialed, 1)
	e.net.link(e.addr, addr).deliver(func() { e.net.handshake(e, addr, answer) })
	timeout := time.NewTimer(e.o.HandshakeTimeout)
	defer timeout.Stop()
	select {
	case d := <-answer:
		if d.err != nil {
			return nil, d.err
		}
		return d.c, nil
	case <-timeout.C:
		return nil, errSilent
	case <-e.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// handshake runs on the accepting side, when the dialer's first packet has arrived.
func (n *Net) handshake(from *endpoint, addr string, answer chan dialed) {
	n.mu.Lock()
	to := n.nodes[addr]
	n.mu.Unlock()
	if to == nil || to.isDead() {
		return // as with UDP: silence
	}
	acceptorID, dialerID, err := transport.Handshake(from.o.Credentials, to.o.Credentials, time.Now())
	if err != nil {
		if to.o.Refused != nil {
			to.o.Refused(from.addr, err)
		}
		n.link(addr, from.addr).deliver(func() { answer <- dialed{err: err} })
		return
	}
	idle := min(from.o.IdleTimeout, to.o.IdleTimeout)
	near, far := newConn(from, addr, acceptorID, idle), newConn(to, from.addr, dialerID, idle)
	near.peer, far.peer = far, near
	if !to.admit(far) {
		return
	}
	n.link(addr, from.addr).deliver(func() {
		if from.adopt(near) {
			answer <- dialed{c: near}
		}
	})
}

// admit hands an incoming connection to Accept.
func (e *endpoint) admit(c *conn) bool {
	if !e.adopt(c) {
		return false
	}
	select {
	case e.accept <- c:
		return true
	default:
		c.Close(transport.CloseBusy, "too many handshakes")
		return false
	}
}

func (e *endpoint) adopt(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return false
	}
	e.conns[c] = struct{}{}
	c.out.add(c)
	c.in.add(c)
	return true
}

func (e *endpoint) take() []*conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.dead {
		e.dead = true
		close(e.done)
	}
	var out []*conn
	for c := range e.conns {
		out = append(out, c)
	}
	return out
}

func (e *endpoint) Close() error {
	for _, c := range e.take() {
		c.Close(transport.CloseNormal, "endpoint closed")
	}
	return nil
}

// kill ends the local side of every connection without a word to the other.
func (e *endpoint) kill() {
	for _, c := range e.take() {
		peer := c.peer
		c.end(net.ErrClosed)
		time.AfterFunc(c.idle, func() { peer.end(errSilent) })
	}
}

// orphan tells the peers of a killed endpoint, whose address is in use again, that their connections are gone.
func (e *endpoint) orphan() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		peer := c.peer
		e.net.link(e.addr, c.addr).deliver(func() { peer.end(errReset) })
	}
	clear(e.conns)
}

// conn is one side of a connection.
type conn struct {
	e       *endpoint
	addr    string
	node    ring.NodeID
	idle    time.Duration
	peer    *conn
	out, in *link

	ctx    context.Context
	cancel context.CancelCauseFunc
	accept chan struct{} // a stream is waiting

	mu      sync.Mutex
	err     error
	waiting []*conduit
	streams map[*conduit]struct{}
}

func newConn(e *endpoint, addr string, node ring.NodeID, idle time.Duration) *conn {
	c := &conn{e: e, addr: addr, node: node, idle: idle, out: e.net.link(e.addr, addr), in: e.net.link(addr, e.addr),
		accept: make(chan struct{}, 1), streams: map[*conduit]struct{}{}}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

func (c *conn) Peer() ring.NodeID        { return c.node }
func (c *conn) RemoteAddr() string       { return c.addr }
func (c *conn) Context() context.Context { return c.ctx }

func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *conn) Close(code transport.CloseCode, reason string) {
	if c.end(&transport.CloseError{Code: code, Reason: reason}) {
		peer := c.peer
		c.out.deliver(func() { peer.end(&transport.CloseError{Code: code, Reason: reason, Remote: true}) })
	}
}

// end ends this side; false when it had ended before.
func (c *conn) end(err error) bool {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return false
	}
	c.err = err
	streams := c.streams
	c.streams, c.waiting = nil, nil
	c.mu.Unlock()
	c.cancel(err)
	for s := range streams {
		s.fail(err)
	}
	c.out.remove(c)
	c.in.remove(c)
	if !c.e.isDead() { // a dead endpoint keeps its list for orphan
		c.e.mu.Lock()
		delete(c.e.conns, c)
		c.e.mu.Unlock()
	}
	return true
}

func (c *conn) OpenStream(ctx context.Context) (transport.Conduit, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	near, far := newConduit(c), newConduit(c.peer)
	near.peer, far.peer = far, near
	if err := c.adopt(near); err != nil {
		return nil, err
	}
	c.out.deliver(func() { far.conn.arrive(far) })
	return near, nil
}

func (c *conn) adopt(s *conduit) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.streams[s] = struct{}{}
	return nil
}

func (c *conn) arrive(s *conduit) {
	if c.adopt(s) != nil {
		return
	}
	c.mu.Lock()
	c.waiting = append(c.waiting, s)
	c.mu.Unlock()
	wake(c.accept)
}

func (c *conn) AcceptStream(ctx context.Context) (transport.Conduit, error) {
	for {
		c.mu.Lock()
		if c.err != nil {
			c.mu.Unlock()
			return nil, c.err
		}
		if len(c.waiting) > 0 {
			s := c.waiting[0]
			c.waiting = c.waiting[1:]
			more := len(c.waiting) > 0
			c.mu.Unlock()
			if more {
				wake(c.accept)
			}
			return s, nil
		}
		c.mu.Unlock()
		select {
		case <-c.accept:
		case <-c.ctx.Done():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *conn) forget(s *conduit) {
	c.mu.Lock()
	delete(c.streams, s)
	c.mu.Unlock()
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
