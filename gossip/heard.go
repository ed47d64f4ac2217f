package gossip

import (
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// takeInbox merges what the callbacks brought, and passes on what was news.
func (l *loop) takeInbox(now time.Time) {
	members, messages := l.g.inbox.take()
	if len(members) > 0 {
		u := view.Update{Members: make([]view.Member, 0, len(members))}
		for id, m := range members {
			l.logChange(id, m)
			if old, ok := l.view.Member(id); ok && old.State == m.State {
				m.Since = old.Since // news of something else: the belief is as old as it was
			}
			u.Members = append(u.Members, m)
		}
		l.merge(u)
	}
	for _, m := range messages {
		l.takeMessage(m, now)
	}
}

// logChange writes one line where a member comes or goes.
func (l *loop) logChange(id ring.NodeID, m view.Member) {
	old, known := l.view.Member(id)
	name := m.Name
	if name == "" {
		name = old.Name
	}
	attrs := []any{"peer", id.String(), "name", name}
	switch {
	case m.State == view.StateAlive && (!known || !old.Present()):
		l.g.log.Info("member joined", append(attrs, "gossip_addr", m.GossipAddr)...)
		if other, ok := l.namesake(id, name); ok {
			l.g.log.Warn("two nodes have the same name: give each a name of its own", append(attrs, "gossip_addr", m.GossipAddr,
				"other", other.ID.String(), "other_gossip_addr", other.GossipAddr)...)
		}
		l.logMoved(old, m)
	case m.State == view.StateSuspect && old.State == view.StateAlive:
		l.g.log.Info("member does not answer; waiting whether others reach it", attrs...)
	case m.State == view.StateDead && known && old.Present():
		l.g.log.Warn("member is dead", attrs...)
	case m.State == view.StateLeft && known && old.Present():
		l.g.log.Info("member left", attrs...)
	}
}

// logMoved says of a known member that is back under another name or address that nothing is to be done.
func (l *loop) logMoved(old, m view.Member) {
	const keeps = "it keeps its node id and what it holds; nothing is to be done"
	if old.Name != "" && m.Name != "" && m.Name != old.Name {
		l.g.log.Info("member has a new name: "+keeps, "peer", m.ID.String(), "was", old.Name, "name", m.Name)
	}
	if old.GossipAddr != "" && m.GossipAddr != "" && m.GossipAddr != old.GossipAddr {
		l.g.log.Info("member has a new address: "+keeps, "peer", m.ID.String(), "name", m.Name, "was", old.GossipAddr, "gossip_addr", m.GossipAddr)
	}
}

// namesake is another member that is there under the same name.
func (l *loop) namesake(id ring.NodeID, name string) (view.Member, bool) {
	for _, m := range l.view.Members() {
		if m.Name == name && name != "" && m.ID != id && m.Present() {
			return m, true
		}
	}
	return view.Member{}, false
}

// takeMessage merges one message. What came by broadcast and was news is broadcast on; what came by a full exchange is
// not, for every node has those of its own.
func (l *loop) takeMessage(m message, now time.Time) {
	var u view.Update
	relay := m.kind != kindState
	for _, r := range m.reports {
		if r.node == l.g.cfg.Self.ID {
			l.g.outrun(r)
			continue
		}
		old, known := l.view.Member(r.node)
		if !known || r.seq <= old.LoadSeq {
			continue
		}
		u.Members = append(u.Members, view.Member{Identity: view.Identity{ID: r.node}, Load: r.load, LoadSeq: r.seq,
			LoadAt: now.Add(-r.age)})
		if relay {
			l.g.broadcastLoad(m.mesh, r)
		}
	}
	for _, o := range m.hints {
		fresh := ownerHints{owner: o.owner}
		for _, h := range o.hints {
			if h.age > l.g.cfg.HintTTL {
				continue
			}
			hint := view.Hint{Group: h.group, Owner: o.owner, Term: h.term}
			u.Hints = append(u.Hints, view.HeardHint{Hint: hint, At: now.Add(-h.age)})
			if old, ok := l.view.Owner(h.group); !ok || hint.Newer(old) {
				fresh.hints = append(fresh.hints, h)
			}
		}
		if relay {
			l.g.broadcastHints(fresh)
		}
	}
	l.merge(u)
}

// outrun makes this node's own numbers higher than those that a peer remembers of it: they come from the clock, and that
// may have been set back since the node's last life.
func (g *Gossip) outrun(r report) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.seq > g.load.seq && g.load.seq > 0 {
		g.load.seq = r.seq + 1
		wake(g.localCh)
	}
	if r.incarnation > g.self.Incarnation {
		g.self.Incarnation = r.incarnation
		g.announceLocked()
	}
}

// Bounds of what waits for broadcast.
const (
	maxQueued   = 1024
	hintsPerMsg = 40 // about 1 KB, so that a packet holds it with all overhead
	loadPrefix  = "load/"
)

// broadcast is one queued message. Loads are named: a newer one of a node replaces the older.
type broadcast struct {
	name string
	msg  []byte
}

func (b *broadcast) Invalidates(memberlist.Broadcast) bool { return false }
func (b *broadcast) Name() string                          { return b.name }
func (b *broadcast) Message() []byte                       { return b.msg }
func (b *broadcast) Finished()                             {}

// uniqueBroadcast is a message that replaces nothing.
type uniqueBroadcast struct{ msg []byte }

func (b *uniqueBroadcast) Invalidates(memberlist.Broadcast) bool { return false }
func (b *uniqueBroadcast) UniqueBroadcast()                      {}
func (b *uniqueBroadcast) Message() []byte                       { return b.msg }
func (b *uniqueBroadcast) Finished()                             {}

func (g *Gossip) broadcastLoad(mesh ring.MeshID, r report) {
	g.enqueue("load", &broadcast{name: loadPrefix + string(r.node[:]), msg: encodeLoad(mesh, r)})
}

func (g *Gossip) broadcastHints(o ownerHints) {
	mesh := g.Self().Mesh
	for len(o.hints) > 0 {
		n := min(len(o.hints), hintsPerMsg)
		g.enqueue("hints", &uniqueBroadcast{msg: encodeHints(mesh, ownerHints{owner: o.owner, hints: o.hints[:n]})})
		o.hints = o.hints[n:]
	}
}

// enqueue bounds the queue: those sent most often already go first.
func (g *Gossip) enqueue(kind string, b memberlist.Broadcast) {
	g.queue.QueueBroadcast(b)
	g.metrics.sent.WithLabelValues(kind).Inc()
	if over := g.queue.NumQueued() - maxQueued; over > 0 {
		g.queue.Prune(maxQueued)
		g.metrics.dropped.WithLabelValues("broadcasts").Add(float64(over))
	}
}
