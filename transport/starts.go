package transport

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// remember checks a peer's start against the latest that is remembered, and remembers it. While another process of that id still answers,
// the newcomer is refused whatever it counts: of two that run from one data directory, both its copies, none must take the other's place.
func (p *Peers) remember(ctx context.Context, h hello) *refusal {
	if p.otherAnswers(ctx, h) {
		return refuse(RefusedDuplicate, "%s runs already, in another process that answers: its data directory was copied; stop one of the two, "+
			"and start a new node with an empty data directory", label(h.Name, h.Node))
	}
	p.mu.Lock()
	known := p.starts[h.Node].Start
	r := checkStart(known, h)
	news := r == nil && h.Boot > 0 && h.start() != known
	if news {
		p.noteStartLocked(h.Node, h.start())
	}
	p.mu.Unlock()
	if news && p.cfg.OnStart != nil {
		p.cfg.OnStart(h.Node, h.Name, h.start())
	}
	return r
}

// maxStarts bounds the nodes whose starts are remembered. Of more, the one heard of longest ago is forgotten, but one that is a peer now, or
// was given up, only where there is no other.
const maxStarts = 4096

// heardStart is a node's latest start; seq orders them by when they were heard.
type heardStart struct {
	Start
	seq uint64
}

func (p *Peers) noteStartLocked(id ring.NodeID, s Start) {
	p.startSeq++
	p.starts[id] = heardStart{s, p.startSeq}
	if len(p.starts) <= maxStarts {
		return
	}
	worth := func(id ring.NodeID) int {
		if p.peers[id] != nil || p.starts[id].Start == GivenUp {
			return 1
		}
		return 0
	}
	delete(p.starts, slices.MinFunc(slices.Collect(maps.Keys(p.starts)), func(a, b ring.NodeID) int {
		return cmp.Or(cmp.Compare(worth(a), worth(b)), cmp.Compare(p.starts[a].seq, p.starts[b].seq), a.Compare(b))
	}))
}

// otherAnswers reports whether another process than the one that says h answers under its node id.
func (p *Peers) otherAnswers(ctx context.Context, h hello) bool {
	if h.Boot == 0 {
		return false
	}
	l, err := p.link(h.Node, wire.ClassControl)
	if err != nil {
		return false
	}
	s := l.session()
	return s != nil && s.peer.Boot > 0 && s.peer.start() != h.start() && s.answers(ctx, p.cfg.PingInterval/2)
}

// answers asks for a sign of life and waits for it. A process that was killed gives none, whatever of it is still on the way.
func (s *session) answers(ctx context.Context, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	at := uint32(time.Since(s.start).Microseconds())
	if s.say(wire.Header{Type: wire.FramePing, Arg: at}, nil) != nil {
		return false
	}
	for {
		s.pongmu.Lock()
		last, next := s.pong, s.ponged
		s.pongmu.Unlock()
		if int32(last-at) >= 0 && last != 0 {
			return true
		}
		select {
		case <-next:
		case <-s.conn.Context().Done():
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// heardPong notes the answer to a ping.
func (s *session) heardPong(arg uint32) {
	s.pongmu.Lock()
	defer s.pongmu.Unlock()
	s.pong = arg
	close(s.ponged)
	s.ponged = make(chan struct{})
}

// GiveUp refuses a node id from now on, for good, and leaves whoever uses it. The caller keeps that durably, see Config.Known.
func (p *Peers) GiveUp(id ring.NodeID) {
	p.mu.Lock()
	if p.starts[id].Start == GivenUp || id == p.cfg.Self.NodeID {
		p.mu.Unlock()
		return
	}
	p.noteStartLocked(id, GivenUp)
	var conns []Conn
	for _, in := range p.inbound {
		if in.from == id {
			conns = append(conns, in.conn)
		}
	}
	pe := p.peers[id]
	p.mu.Unlock()
	if pe != nil {
		for _, l := range pe.links {
			if s := l.session(); s != nil {
				conns = append(conns, s.conn)
			}
		}
	}
	r := refuse(RefusedGivenUp, "the node id %s was given up", id)
	for _, c := range conns {
		c.Close(CloseRefused, r.closeReason())
	}
}
