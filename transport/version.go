package transport

import (
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// speaks reports whether this node's version knows a method.
func (p *Peers) speaks(m wire.Method) bool { return m.Since() <= wire.Version(p.cfg.Self.Version) }

// common is the highest version that this node and a peer know.
func (p *Peers) common(peer hello) wire.Version {
	return wire.Version(min(p.cfg.Self.Version, peer.Version))
}

// supports is nil when a peer knows the method.
func (p *Peers) supports(peer hello, m wire.Method) error {
	v := p.common(peer)
	if m.Since() <= v {
		return nil
	}
	return wire.Errorf(wire.KindUnavailable, wire.CodeUnsupported, "method %d needs protocol version %d; with %s it is %d: upgrade the older one",
		m, m.Since(), label(peer.Name, peer.Node), v)
}

// Version is the protocol version that this node speaks with another, by its last hello; 0 while it is not connected.
func (p *Peers) Version(to ring.NodeID) wire.Version {
	if to == p.cfg.Self.NodeID {
		return wire.Version(p.cfg.Self.Version)
	}
	l, err := p.link(to, wire.ClassControl)
	if err != nil {
		return 0
	}
	s := l.session()
	if s == nil {
		return 0
	}
	return p.common(s.peer)
}

// SetFloor refuses protocol versions below v from now on, and leaves peers that speak only such. The floor never sinks.
func (p *Peers) SetFloor(v wire.Version) {
	p.mu.Lock()
	if uint16(v) <= p.id.MinVersion {
		p.mu.Unlock()
		return
	}
	p.id.MinVersion = uint16(v)
	id, links := p.id, p.linksLocked()
	tooOld := map[*inbound]*refusal{}
	for _, in := range p.inbound {
		if r := id.check(in.peer, in.conn.Peer()); r != nil {
			tooOld[in] = r
		}
	}
	p.mu.Unlock()
	for in, r := range tooOld {
		in.conn.Close(CloseRefused, r.closeReason())
		p.refused(in.conn.RemoteAddr(), r)
	}
	for _, l := range links {
		s := l.session()
		if s == nil {
			continue
		}
		if r := id.check(s.peer, s.conn.Peer()); r != nil {
			s.conn.Close(CloseRefused, r.closeReason())
			p.warn(l.id.String(), r.code, "left a node of an older version", r)
		}
	}
}
