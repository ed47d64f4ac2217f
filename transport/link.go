package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// peer is one other node that gossip named: its address and the two links to it.
type peer struct {
	id     ring.NodeID
	links  [2]*link
	cancel context.CancelFunc
}

// link keeps one outgoing connection of one class to a peer: dial, run, back off, dial again.
type link struct {
	p     *Peers
	id    ring.NodeID
	class wire.Class
	kick  chan struct{} // dial now

	mu      sync.Mutex
	addr    string
	sess    *session
	attempt chan struct{} // closed when the attempt under way, or about to start, ends; nil: none is
	began   time.Time     // of the attempt
	abort   context.CancelFunc
	aborted time.Time // when hurry last used abort
	start   Start     // of the peer, when it last connected to us
	lastErr error
	since   time.Time // of the present state
}

// freshAttempt is how old an attempt must be before news of a restarted peer restarts it: a lost first packet is sent
// again only after some time, and the more often it was lost the later.
const freshAttempt = 100 * time.Millisecond

// hurry makes the link dial at once, for the peer of that start has connected to us: it ends a backoff, and an attempt
// that may be stuck. Two nodes that hurry each other must not restart each other's attempts for ever: without a new start
// of the peer, an attempt is restarted only now and then.
func (l *link) hurry(start Start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	renewed := start != l.start
	l.start = start
	if l.sess != nil {
		return
	}
	l.wake()
	if l.abort == nil {
		return
	}
	began := l.began
	age := time.Since(began)
	switch {
	case renewed && age < freshAttempt:
		time.AfterFunc(freshAttempt-age, func() { l.restart(began) })
	case renewed, age > l.p.cfg.DialTimeout/3 && time.Since(l.aborted) > 2*l.p.cfg.DialTimeout:
		l.abortLocked()
	}
}

// restart ends the attempt that began then, if it is still under way.
func (l *link) restart(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.abort != nil && l.began.Equal(began) {
		l.abortLocked()
	}
}

// abortLocked ends the attempt under way; the next follows at once.
func (l *link) abortLocked() {
	l.aborted = time.Now()
	l.abort()
	l.wake()
}

func (l *link) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// move points the link to another address.
func (l *link) move(addr string) {
	l.mu.Lock()
	if l.addr == addr {
		l.mu.Unlock()
		return
	}
	l.addr = addr
	sess := l.sess
	if l.abort != nil {
		l.abort()
	}
	l.wake()
	l.mu.Unlock()
	if sess != nil {
		sess.conn.Close(CloseReplaced, "the node has another address")
	}
}

// attemptWait is how long after its start an attempt is waited for by calls: a peer that is there answers sooner, and the
// caller of one that is not should turn elsewhere.
const attemptWait = 500 * time.Millisecond

// current is the working session, waiting for a young attempt under way but not for a backoff.
func (l *link) current(ctx context.Context) (*session, error) {
	var late <-chan time.Time
	for {
		l.mu.Lock()
		sess, attempt, err, age := l.sess, l.attempt, l.lastErr, time.Since(l.began)
		l.mu.Unlock()
		if sess != nil {
			return sess, nil
		}
		if attempt == nil || age >= attemptWait {
			return nil, unreachable(l.id, err)
		}
		if late == nil {
			t := time.NewTimer(attemptWait - age)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-attempt:
		case <-late:
			return nil, unreachable(l.id, err)
		case <-ctx.Done():
			return nil, unreachable(l.id, context.Cause(ctx))
		}
	}
}

func unreachable(id ring.NodeID, err error) *wire.Error {
	return &wire.Error{Kind: wire.KindUnavailable, Op: "reach node", Detail: "node " + id.String() + " cannot be reached", Err: err}
}

// session is the working session or nil, at once.
func (l *link) session() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sess
}

func (l *link) run(ctx context.Context) {
	backoff := l.p.cfg.BackoffMin
	for ctx.Err() == nil {
		sess, err := l.dial(ctx)
		if err == nil {
			backoff = l.p.cfg.BackoffMin
			l.serve(ctx, sess)
			continue
		}
		wait := backoff/2 + rand.N(backoff)
		if r, ok := errors.AsType[*refusal](err); ok && r.code != RefusedNode {
			wait = l.p.cfg.BackoffMax // it will not change soon
		}
		if l.pause(ctx, wait) {
			backoff = l.p.cfg.BackoffMin
		} else {
			backoff = min(2*backoff, l.p.cfg.BackoffMax)
		}
	}
}

// pause waits; true when it was told to hurry.
func (l *link) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.kick:
		return true
	case <-ctx.Done():
	}
	return false
}

// dial makes one attempt and publishes its result.
func (l *link) dial(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.DialTimeout)
	defer cancel()
	l.mu.Lock()
	if l.attempt == nil {
		l.attempt = make(chan struct{})
	}
	l.abort, l.began = cancel, time.Now()
	addr := l.addr
	select { // what hurried before this attempt is served by it; what ends the attempt comes later
	case <-l.kick:
	default:
	}
	l.mu.Unlock()
	sess, err := l.p.connect(ctx, l.id, addr, l.class)
	l.mu.Lock()
	if err == nil && l.addr != addr {
		err = errors.New("the node has another address")
		sess.conn.Close(CloseReplaced, err.Error())
		sess = nil
	}
	if sess != nil {
		l.since = time.Now()
	}
	close(l.attempt)
	l.sess, l.lastErr, l.attempt, l.abort = sess, err, nil, nil
	l.mu.Unlock()
	l.p.dialed(l, addr, err)
	return sess, err
}

// serve runs a session to its end.
func (l *link) serve(ctx context.Context, sess *session) {
	stop := context.AfterFunc(ctx, func() { sess.conn.Close(CloseNormal, "closing") })
	defer stop()
	if self := l.p.self(); self.MeshID != sess.mesh { // learned during the hello, when SetMesh did not find the session
		l.p.announce(sess, self, l)
	}
	l.p.changed(l, true, nil)
	err := sess.run(l.p.cfg.PingInterval, l.p.cfg.PingTimeout)
	l.mu.Lock()
	l.sess, l.lastErr, l.since = nil, err, time.Now()
	if ctx.Err() == nil {
		l.attempt, l.began = make(chan struct{}), time.Now() // the next attempt follows at once: calls wait for it
	}
	l.mu.Unlock()
	l.p.changed(l, false, err)
}

// connect dials addr and exchanges hellos.
func (p *Peers) connect(ctx context.Context, id ring.NodeID, addr string, class wire.Class) (*session, error) {
	conn, err := p.ep.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	sess, err := p.greet(ctx, conn, id, class)
	if err != nil {
		if ce, ok := errors.AsType[*CloseError](conn.Err()); ok {
			if r := asRefusal(ce); r != nil {
				return nil, r
			}
		}
		if r, ok := errors.AsType[*refusal](err); ok {
			conn.Close(CloseRefused, r.closeReason())
			return nil, err
		}
		if cause := conn.Err(); cause != nil {
			err = cause
		}
		conn.Close(CloseProtocol, "the hello failed")
		return nil, err
	}
	return sess, nil
}

func (p *Peers) greet(ctx context.Context, conn Conn, id ring.NodeID, class wire.Class) (*session, error) {
	ctl, err := conn.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { ctl.Reset(0) })
	defer stop()
	self := p.self()
	b, err := wire.Marshal(self.hello(id, class))
	if err != nil {
		return nil, err
	}
	if _, err := writeFrame(ctl, wire.Header{Type: wire.FrameHello}, b); err != nil {
		return nil, err
	}
	h, err := readHello(ctl)
	if err != nil {
		return nil, err
	}
	if r := self.check(h, conn.Peer()); r != nil {
		return nil, r
	}
	if h.Node != id {
		return nil, refuse(RefusedNode, "%s looked for node %s but found %s; it will try again when gossip knows the new address",
			label(self.Name, self.NodeID), id, label(h.Name, h.Node))
	}
	if r := p.remember(ctx, h); r != nil {
		return nil, r
	}
	if !stop() {
		return nil, ctx.Err()
	}
	cl := className(class)
	return &session{conn: conn, ctl: ctl, class: class, mesh: self.MeshID, peer: h, m: p.m, start: time.Now(), ponged: make(chan struct{}),
		out: newLane(p.cfg.SendQueueBytes, p.cfg.SendQueueFrames, p.m.queued.WithLabelValues(cl))}, nil
}

// readHello reads one hello, unbuffered: other frames follow on the stream.
func readHello(r io.Reader) (hello, error) {
	var out hello
	h, err := wire.ReadHeader(r)
	if err != nil {
		return out, err
	}
	if h.Type != wire.FrameHello || h.Length > maxHello {
		return out, wire.Errorf(wire.KindCorrupt, "", "frame type %d of %d bytes where a hello was expected", h.Type, h.Length)
	}
	return readHelloBody(bufio.NewReaderSize(io.LimitReader(r, int64(h.Length)), 512), h)
}

func readHelloBody(r io.Reader, h wire.Header) (hello, error) {
	var out hello
	if h.Length > maxHello {
		return out, wire.Errorf(wire.KindCorrupt, "", "hello of %d bytes", h.Length)
	}
	b, err := wire.ReadBody(r, h.Length)
	if err != nil {
		return out, err
	}
	if err := wire.Unmarshal(b, &out); err != nil {
		return out, err
	}
	if out.Class > wire.ClassBulk || out.Node.IsZero() || len(out.Cluster) > 256 {
		return out, fmt.Errorf("a hello with fields out of bounds")
	}
	return out, nil
}
