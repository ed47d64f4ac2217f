package replica

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// A replica that stopped for another reason than a full disk, or that could not be opened, is closed for good: it does not come back while
// its node runs. Nobody else can see that, for the node is there. So the node says so itself, to all members that it knows of and again every
// ten seconds: in the question that closed replicas ask anyway, whether they are members still (removal.go). The owner counts from the first
// time by its own clock: until ReplaceAfter a restart may bring the replica back, after that the plan replaces it. Whoever is heard of again
// was not closed for good, and a node that was away has to say it anew: it may have been restarted.

// tellsClosed is false in a build of the protocol's version in which nodes say nothing of that.
const tellsClosed = wire.Newest >= wire.Version2

// ClosedReplica is a replica that was born here and does not run.
type ClosedReplica struct {
	Birth
	// Why it is closed for good; nil: it is opened again by itself, when the disk has space.
	Why error
}

// forGood is what the host remembers of a replica that is closed for good.
type forGood struct {
	self ring.ReplicaID
	why  error
}

// closeForGood notes that a replica does not come back while this node runs, and has its group told. The journal keeps what the replica has
// not applied, and with it all files since, until a restart brings it back or it is removed: a voter that comes back without entries that it
// acknowledged may make an owner that lacks them, and recovery refuses a log that begins after the state (reconcile).
func (h *Host) closeForGood(b Birth, why error) {
	h.mu.Lock()
	h.forGood[b.Group] = forGood{b.Self, why}
	h.metrics.closed.Set(float64(len(h.forGood)))
	h.mu.Unlock()
	h.logOf(b).Error("replica stays closed; where its group has a majority without it, it is replaced after replace_after", "replica", uint64(b.Self), "err", why)
	select {
	case h.closedNow <- struct{}{}:
	default:
	}
}

// staysClosed reports whether a replica that could not be opened is closed for good by that: a full disk passes, and a host that is about to
// stop opens nothing.
func (h *Host) staysClosed(err error) bool {
	return !log.IsDiskFull(err) && wire.KindOf(err) != wire.KindClosed && h.ctx.Err() == nil
}

// notForGood forgets that a replica was closed: it runs again, or is removed.
func (h *Host) notForGood(g ring.GroupID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.forGood, g)
	h.metrics.closed.Set(float64(len(h.forGood)))
}

// whyClosed is why a replica is closed for good; nil: it is not.
func (h *Host) whyClosed(b Birth) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c, ok := h.forGood[b.Group]; ok && c.self == b.Self {
		return c.why
	}
	return nil
}

// Closed lists the replicas that were born here and do not run. What they hold counts until they are removed.
func (h *Host) Closed() (out []ClosedReplica) {
	for _, gs := range h.cfg.Journal.Groups() {
		if b, ok := h.closedIn(gs); ok {
			out = append(out, b)
		}
	}
	return out
}

// closedIn is the replica of a group that the journal knows, if it does not run.
func (h *Host) closedIn(gs log.GroupState) (ClosedReplica, bool) {
	if _, runs := h.Group(gs.Group); runs || gs.Birth == nil {
		return ClosedReplica{}, false
	}
	b, err := decodeBirth(gs.Birth)
	if err != nil {
		b = Birth{Group: gs.Group} // nothing more is known of it, and it is there
	}
	return ClosedReplica{b, h.whyClosed(b)}, true
}

// askClosedFate asks whether a replica that does not run is a member still, and says so if that is for good.
func (h *Host) askClosedFate(ctx context.Context, c ClosedReplica) {
	op := removalAsked
	if c.Why != nil && tellsClosed {
		op = removalClosed
	}
	var members []Member
	st, born, err := loadState(h.cfg.Store, c.Group)
	if err == nil && born {
		members = st.members() // newer than those of its birth
	}
	empty := err == nil && c.Empty && (!born || st.applied.Index == 0)
	h.askFateOf(ctx, op, c.Birth, members, func() bool { return empty })
}

// closedWord is what the owner was told of a member's replica that is closed for good.
type closedWord struct {
	at          time.Time // of the first time, for people
	first, last uint64    // ticks
}

// closedSilence is how long the word of a closed replica's node counts that is not said again: it is said every ten seconds.
const closedSilence = time.Minute

// hearClosed notes that a member's node says that the replica there is closed for good. Only an owner does.
func (g *Group) hearClosed(id ring.ReplicaID) {
	p := &g.plan
	if !g.isReady || id == g.birth.Self {
		return
	}
	if p.closed == nil {
		p.closed = map[ring.ReplicaID]closedWord{}
	}
	c, known := p.closed[id]
	if !known {
		c = closedWord{at: time.Now(), first: g.ticks}
		node := g.st.nodes[id]
		g.log.Warn("a copy is closed for good on its node: it is replaced unless a restart of that node brings it back",
			"peer", node.String(), "closed", uint64(id), "replace_after", g.h.cfg.ReplaceAfter().String())
	}
	c.last = g.ticks
	p.closed[id] = c
}

// since is the time since a tick of this group.
func (g *Group) since(tick uint64) time.Duration {
	return time.Duration(g.ticks-tick) * g.h.cfg.TickInterval
}

// dropClosed forgets the words that do not count any more.
func (g *Group) dropClosed() {
	for id, c := range g.plan.closed {
		node, member := g.st.nodes[id]
		if !member || g.heard[id] > c.last || g.since(c.last) > closedSilence || !g.h.cfg.Placement.Alive(node) {
			delete(g.plan.closed, id)
		}
	}
}

// closedLong reports whether a member is closed for good for so long that it is to be replaced.
func (g *Group) closedLong(id ring.ReplicaID) bool {
	c, ok := g.plan.closed[id]
	return ok && g.since(c.first) >= g.h.cfg.ReplaceAfter()
}

// closedSince is since when members' replicas are closed for good, for people.
func (g *Group) closedSince() map[ring.ReplicaID]time.Time {
	out := make(map[ring.ReplicaID]time.Time, len(g.plan.closed))
	for id, c := range g.plan.closed {
		if _, member := g.st.nodes[id]; member {
			out[id] = c.at
		}
	}
	return out
}

// setAside keeps the bulk files of a removed replica out of the way of a later one.
func (h *Host) setAside(b Birth) error {
	if h.cfg.SetAside == nil {
		return nil
	}
	return h.cfg.SetAside(b)
}
