package transport

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Status is what is known of one peer's connections.
type Status struct {
	Node ring.NodeID
	Name string // empty until its first hello
	Addr string
	// Up and BulkUp: the control and the bulk connection work; Since is when Up last changed.
	Up, BulkUp bool
	Since      time.Time
	// RTT is the last ping's round trip; zero before the first.
	RTT time.Duration
	// Err is why it is not up; nil while up or before the first attempt ended.
	Err error
}

// Status lists all known peers by node id.
func (p *Peers) Status() []Status {
	p.mu.Lock()
	peers := make([]*peer, 0, len(p.peers))
	for _, pe := range p.peers {
		peers = append(peers, pe)
	}
	p.mu.Unlock()
	out := make([]Status, 0, len(peers))
	for _, pe := range peers {
		l := pe.links[wire.ClassControl]
		l.mu.Lock()
		s := Status{Node: pe.id, Addr: l.addr, Up: l.sess != nil, Since: l.since, Err: l.lastErr}
		if l.sess != nil {
			s.Name, s.RTT = l.sess.peer.Name, time.Duration(l.sess.rtt.Load())
		}
		l.mu.Unlock()
		s.BulkUp = pe.links[wire.ClassBulk].session() != nil
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return a.Node.Compare(b.Node) })
	return out
}

// over ends a link whose loop has ended: nobody waits for it any more.
func (l *link) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attempt != nil {
		close(l.attempt)
		l.attempt = nil
	}
	if l.lastErr == nil {
		l.lastErr = errClosed
	}
}

// dialed counts an attempt and logs what an operator can mend.
func (p *Peers) dialed(l *link, addr string, err error) {
	if err == nil {
		p.m.connects.WithLabelValues("ok").Inc()
		return
	}
	p.m.connects.WithLabelValues("failed").Inc()
	switch r, ok := errors.AsType[*refusal](err); {
	case ok:
		p.toldOff(l.id, addr, r)
	case errors.Is(err, ErrOtherSecret), errors.Is(err, ErrCertificate), errors.Is(err, ErrNotSkein):
		p.warn(l.id.String(), "tls", "cannot connect to a node", err, "peer_addr", addr, "peer", l.id)
	case !errors.Is(err, context.Canceled):
		p.log.Debug("connection attempt failed", "peer", l.id, "addr", addr, "class", className(l.class), "err", err)
	}
}

// changed reacts to a link that came up or went down.
func (p *Peers) changed(l *link, up bool, err error) {
	if l.class != wire.ClassControl {
		return
	}
	if up {
		p.m.up.Inc()
		p.log.Info("peer is up", "peer", l.id)
	} else {
		p.m.up.Dec()
		p.log.Info("peer is down", "peer", l.id, "reason", err)
		p.giveUpBulk(l.id, err)
	}
}

// giveUpBulk ends the bulk connection of a peer that no longer answers on the control connection.
func (p *Peers) giveUpBulk(id ring.NodeID, err error) {
	if ce, ok := errors.AsType[*CloseError](err); ok && ce.Code != CloseSilent {
		return
	}
	if l, e := p.link(id, wire.ClassBulk); e == nil {
		if s := l.session(); s != nil {
			s.conn.Close(CloseSilent, "the peer is silent on its control connection")
		}
	}
}

// arrived registers an accepted connection: an older one of the same peer and class is replaced, and our own links to
// that peer are hurried, for it is evidently there. A stranger to the mesh that was learned during the hello is refused.
func (p *Peers) arrived(in *inbound) {
	key := inboundKey{in.from, in.peer.Class}
	p.mu.Lock()
	if r := p.id.check(in.peer, in.conn.Peer()); r != nil {
		p.mu.Unlock()
		in.conn.Close(CloseRefused, r.closeReason())
		p.refused(in.conn.RemoteAddr(), r)
		return
	}
	old := p.inbound[key]
	p.inbound[key] = in
	closed := p.closed
	pe := p.peers[in.from]
	p.mu.Unlock()
	if old != nil {
		old.conn.Close(CloseReplaced, "a newer connection took its place")
	}
	if closed {
		in.conn.Close(CloseNormal, "the node is closing")
		return
	}
	if pe == nil {
		return
	}
	for _, l := range pe.links {
		if s := l.session(); s != nil && s.peer.start() != in.peer.start() {
			s.conn.Close(CloseReplaced, "the peer has restarted")
		}
		l.hurry(in.peer.start())
	}
}

func (p *Peers) departed(in *inbound) {
	key := inboundKey{in.from, in.peer.Class}
	p.mu.Lock()
	if p.inbound[key] == in {
		delete(p.inbound, key)
	}
	p.mu.Unlock()
	if ce, ok := errors.AsType[*CloseError](in.conn.Err()); ok {
		if r := asRefusal(ce); r != nil {
			p.toldOff(in.from, in.conn.RemoteAddr(), r) // the dialer did not like our answer
		}
	}
}

// renewed takes a later hello of a connected peer.
func (p *Peers) renewed(in *inbound, h hello) *refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.id.check(h, in.conn.Peer()); r != nil {
		return r
	}
	in.peer.Mesh = h.Mesh
	return nil
}

// warnEvery is how often one peer's same trouble is logged; maxWarned bounds what is remembered for that.
const (
	warnEvery = 30 * time.Second
	maxWarned = 1024
)

// warn logs one line per (who, what) and warnEvery.
func (p *Peers) warn(who, what, msg string, err error, args ...any) {
	if host := addrHost(who); host != "" {
		args = append(args, "addr", who)
		who = host // the port of a dialer may change with each try
	}
	now := time.Now()
	p.mu.Lock()
	last, ok := p.warned[who+" "+what]
	quiet := ok && now.Sub(last) < warnEvery
	if !quiet {
		if len(p.warned) >= maxWarned {
			clear(p.warned)
		}
		p.warned[who+" "+what] = now
	}
	p.mu.Unlock()
	if !quiet {
		p.log.Warn(msg, append(args, "reason", err)...)
	}
}
