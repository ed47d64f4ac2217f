package replica

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/ring"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A group in which nothing is left to do rests: its owner sends no heartbeats, its followers do not wait for any, and nobody ticks it.
// What heartbeats are for is left to the beats between the nodes (beat.go): a follower rests while it hears the owner's node, the
// owner while the nodes of all members hear it. Whatever else comes (a proposal, a read, a message) wakes the replica, and one that
// wakes has the others wake up.
//
// Resting changes nothing about safety, for raft does not know of it: votes, terms and reads go the usual way, by messages that wake.
// It only stands for time: a replica that wakes because beats are missing catches up on the ticks since the last one, and so elects,
// or gives up, when it would have without the rest.
//
// The words of it are heartbeats and their answers, with an index that raft gives them never and ignores:
//
//	owner to follower   heartbeat, index i        I rest; so may you, if your log ends at i and all of it is applied
//	owner to follower   heartbeat, index overMark this replica is no more: look for another owner
//	follower to owner   answer, index askMark     do you still rest? say it again
//	follower to owner   answer, index wakeMark    wake up
const (
	overMark = math.MaxUint64
	askMark  = 1
	wakeMark = 2
)

// askEvery is how many ticks at most a resting follower goes without a word from the owner of its own group, rather than from the
// owner's node: an owner that rests no more and could not say so is found out by not answering. It is asked maxAsks times, an election
// timeout apart: a question that is lost, or answered late by a busy node, must not cost an ownership.
//
// Those that ask do so at the same few ticks, at which beats leave too: many questions travel in one frame, and so do the answers.
const (
	askEvery    = 200
	askTogether = 16
	maxAsks     = 4
)

// lookEvery is how many ticks pass between looks of a resting owner at its group's membership, on average.
const lookEvery = 32

// nextAsk is the tick at which a follower asks its owner next.
func (g *Group) nextAsk(now uint64) uint64 {
	return (now + askEvery/2 + g.h.jitter(askEvery)) / askTogether * askTogether
}

// nextLook is the tick at which an owner looks at its group's membership next.
func (g *Group) nextLook(now uint64) uint64 { return now + lookEvery/2 + g.h.jitter(lookEvery) }

// rest is what a resting replica relies on. The group's goroutine makes it; on and owned do not change.
type rest struct {
	owned bool
	on    []restOn
	off   []ring.NodeID // nodes of members that are down: a beat of theirs ends the rest
	look  atomic.Uint64 // tick of the host from which the group's goroutine wants to look again

	// Below: of the group's goroutine.
	since uint64 // tick of the host up to which the group's ticks are counted
	asked int    // how often the owner was asked since it answered last
}

// restOn is a node whose beats a resting replica relies on.
type restOn struct {
	node ring.NodeID
	boot uint64 // a node that was started again has forgotten whom it owned
}

// lapsed says whether beats that the rest relies on are missing, or a node is back that was down.
func (r *rest) lapsed(of func(ring.NodeID) lease, limit uint64) bool {
	for _, o := range r.on {
		l := of(o.node)
		if l.boot != o.boot || l.silence >= limit || (r.owned && l.unheard >= limit) {
			return true
		}
	}
	for _, n := range r.off {
		if of(n).silence < limit {
			return true
		}
	}
	return false
}

// isWord tells a word about resting from raft's own heartbeats and answers.
func isWord(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgHeartbeat, pb.MsgHeartbeatResp:
		return m.GetIndex() != 0
	}
	return false
}

// word sends a message that is not from this replica's raft: one of the words above, or the last of an owner that stops.
func (g *Group) word(to uint64, typ pb.MessageType, index uint64) {
	self, term := uint64(g.birth.Self), g.term
	g.send(&pb.Message{Type: typ.Enum(), From: &self, To: &to, Term: &term, Index: &index})
}

func (g *Group) tellOwner(mark uint64) {
	if g.lead != raft.None && g.lead != uint64(g.birth.Self) {
		g.word(g.lead, pb.MsgHeartbeatResp, mark)
	}
}

// askIfSilent has a follower that is awake ask whether its owner rests, when half an election timeout went by without a word: the
// one that let it rest may be lost.
func (g *Group) askIfSilent() {
	half := uint64(g.h.cfg.ElectionTicks) / 2
	if g.role != raft.StateFollower || g.lead == raft.None || g.ticks != g.heard[ring.ReplicaID(g.lead)]+half {
		return
	}
	if node, ok := g.nodeOf(g.lead); ok && g.h.beats.lease(g.h.clock.Load(), node).silence < half {
		g.tellOwner(askMark)
	}
}

// sayOver tells the followers that this owner is no more, and has the best of them stand at once (the TimeoutNow of the Raft dissertation,
// section 3.10): if time went by at once for all of them, all would stand. They hear the word nevertheless, for that one may refuse.
func (g *Group) sayOver() {
	if !beating {
		return
	}
	if heir, ok := g.successor(); ok {
		g.word(uint64(heir), pb.MsgTimeoutNow, 0)
	}
	g.loadProgress()
	for _, p := range g.progress {
		if p.id != g.birth.Self {
			g.word(uint64(p.id), pb.MsgHeartbeat, overMark)
		}
	}
	g.h.outbox.kick()
}

// idle is true when nothing of this replica is under way and its whole log is applied.
func (g *Group) idle() bool {
	busy := g.mend.why != nil || g.mend.doom != nil || g.fetch != nil || g.installing || g.rn.HasReady() || g.pending.Load() != 0 ||
		len(g.appends)+len(g.heldAppends)+len(g.applyQ)+len(g.unindexed)+len(g.inLog)+len(g.held) > 0 ||
		len(g.reads)+len(g.readsDue)+len(g.transfers)+len(g.snapOut) > 0 || len(g.st.conf.GetVotersOutgoing()) > 0
	return !busy && g.st.applied.Index == g.store.last && g.commit.Load() == g.store.last
}

// lieDown has an owner's group rest when nothing was asked of it for a while, and every member has all of its log or is down: a majority
// of the voters must be there.
func (g *Group) lieDown() {
	quiet := uint64(g.h.cfg.RestTicks)
	if g.role != raft.StateLeader || quiet == 0 || g.ticks < g.stirred+quiet || !g.isReady || !g.plan.content || !g.idle() {
		return
	}
	r := &rest{owned: true, since: g.h.clock.Load()}
	voters, there := 0, 0
	g.loadProgress()
	for _, p := range g.progress {
		if !p.learner {
			voters++
		}
		if p.id != g.birth.Self && !g.fitToRest(r, p) {
			node := g.st.nodes[p.id]
			if g.active(p.id) || g.h.cfg.Placement.Alive(node) || g.h.beats.lease(r.since, node).silence < uint64(g.h.cfg.ElectionTicks) {
				return
			}
			r.off = append(r.off, node)
			continue
		}
		if !p.learner {
			there++
		}
	}
	if there <= voters/2 {
		return
	}
	for _, p := range g.progress {
		if p.id != g.birth.Self && !slices.Contains(r.off, g.st.nodes[p.id]) {
			g.word(uint64(p.id), pb.MsgHeartbeat, g.store.last)
		}
	}
	g.rest(r, g.nextLook(r.since))
}

// fitToRest says whether a member has the whole log and beats go both ways between its node and this one, and notes that r relies on it.
func (g *Group) fitToRest(r *rest, p memberProgress) bool {
	node := g.st.nodes[p.id]
	l := g.h.beats.lease(r.since, node)
	if p.match != g.store.last || !p.replicating || g.unfit(p.id) || !g.active(p.id) || !l.good(uint64(g.h.cfg.ElectionTicks)/4+1) {
		return false
	}
	r.on = append(r.on, restOn{node, l.boot})
	return true
}

// follow has a follower rest when its owner said so and nothing stands against it; else it has the owner wake up.
func (g *Group) follow() {
	m := g.invited
	if m == nil {
		return
	}
	g.invited = nil
	now := g.h.clock.Load()
	node, _ := g.nodeOf(m.GetFrom())
	l := g.h.beats.lease(now, node)
	if g.role == raft.StateFollower && g.lead == m.GetFrom() && g.term == m.GetTerm() && m.GetIndex() == g.store.last && g.idle() &&
		g.h.cfg.RestTicks > 0 && l.boot != 0 && l.silence < uint64(g.h.cfg.ElectionTicks) {
		g.rest(&rest{on: []restOn{{node, l.boot}}, since: now}, g.nextAsk(now))
		return
	}
	g.tellOwner(wakeMark)
}

func (g *Group) rest(r *rest, look uint64) {
	r.look.Store(look)
	g.resting.Store(r)
	g.h.metrics.resting.Inc()
}

// undisturbed takes a message that a resting replica need not wake up for; false when it must.
func (g *Group) undisturbed(r *rest, m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgHeartbeatResp:
		switch {
		case !r.owned || len(m.GetContext()) > 0 || m.GetTerm() != g.term:
		case m.GetIndex() == 0:
			g.stepCore(m) // to one of the last heartbeats
			return true
		case m.GetIndex() == askMark:
			g.word(m.GetFrom(), pb.MsgHeartbeat, g.store.last)
			return true
		}
	case pb.MsgHeartbeat:
		if !r.owned && m.GetTerm() == g.term && m.GetFrom() == g.lead && m.GetIndex() == g.store.last {
			if r.asked > 0 {
				r.asked = 0
				r.look.Store(g.nextAsk(g.h.clock.Load()))
			}
			return true
		}
	}
	return false
}

// hearWord takes a word about resting, in a replica that is awake. One of another term tells raft of that term.
func (g *Group) hearWord(m *pb.Message) {
	switch {
	case m.GetTerm() != g.term:
		g.stepCore(m)
	case m.GetType() == pb.MsgHeartbeatResp || m.GetFrom() != g.lead:
	case m.GetIndex() == overMark:
		g.pass(uint64(g.h.cfg.ElectionTicks))
	default:
		g.invited = m
	}
}

// pass lets raft's time go by at once. A follower is then ready to elect, if it may.
func (g *Group) pass(ticks uint64) {
	if g.mend.why != nil {
		return
	}
	g.passing = true
	for range min(ticks, uint64(g.h.cfg.ElectionTicks)) {
		g.rn.Tick()
	}
	g.drainReady()
	g.passing = false
}

// lookAround is a resting replica's turn now and then: an owner looks whether its group's membership is as wanted, a follower asks its
// owner for a word.
func (g *Group) lookAround(r *rest) {
	g.countTicks(r)
	g.store.refresh()
	switch {
	case r.owned:
		g.planTick()
		if !g.plan.content || g.h.cfg.RestTicks == 0 {
			g.rouse("membership")
			return
		}
		r.look.Store(g.nextLook(r.since))
	case r.asked == maxAsks:
		g.rouse("owner-silent")
		g.pass(uint64(g.h.cfg.ElectionTicks))
	default:
		r.asked++
		g.tellOwner(askMark)
		r.look.Store(r.since + uint64(g.h.cfg.ElectionTicks))
	}
}

// countTicks brings the replica's clock to now, and counts beats as words of the members on those nodes.
func (g *Group) countTicks(r *rest) {
	now := g.h.clock.Load()
	g.ticks += since(now, r.since)
	r.since = now
	if r.owned {
		g.ownerSeen.Store(time.Now().UnixNano())
	}
	for _, o := range r.on {
		l := g.h.beats.lease(now, o.node)
		gone := l.silence
		if r.owned {
			gone = max(gone, l.unheard)
		} else if l.boot == o.boot {
			g.ownerSeen.Store(time.Now().Add(-time.Duration(gone) * g.h.cfg.TickInterval).UnixNano())
		}
		for id, n := range g.st.nodes {
			if n == o.node && gone < g.ticks {
				g.heard[id] = max(g.heard[id], g.ticks-gone)
			}
		}
	}
}

// rouse ends the rest, if there is one: from the next tick on the replica does as it always did.
func (g *Group) rouse(why string) {
	r := g.resting.Swap(nil)
	if r == nil {
		return
	}
	g.h.metrics.resting.Dec()
	g.h.metrics.roused.WithLabelValues(why).Inc()
	g.countTicks(r)
	g.stirred, g.invited = g.ticks, nil
	if !r.owned {
		g.pass(g.missed(r))
	}
}

// missed is how many ticks ago a resting follower was last told that its owner lives.
func (g *Group) missed(r *rest) uint64 {
	l := g.h.beats.lease(g.h.clock.Load(), r.on[0].node)
	if l.boot != r.on[0].boot {
		return math.MaxUint64
	}
	return l.silence
}

// rouseLapsed wakes a replica when beats that it relies on are missing, or a node is back that was down.
func (g *Group) rouseLapsed(r *rest) {
	now := g.h.clock.Load()
	if !r.lapsed(func(n ring.NodeID) lease { return g.h.beats.lease(now, n) }, uint64(g.h.cfg.ElectionTicks)) {
		return
	}
	g.rouse("beats")
	if r.owned && !g.quorumHears(now) {
		g.pass(uint64(g.h.cfg.ElectionTicks)) // as if it had sent heartbeats all the time: it gives up when the next go unanswered too
	}
}

// quorumHears says whether beats reach a majority of the voters, and theirs us.
func (g *Group) quorumHears(now uint64) bool {
	voters, good := g.st.conf.GetVoters(), 0
	for _, v := range voters {
		node := g.st.nodes[ring.ReplicaID(v)]
		if node == g.h.cfg.Self || g.h.beats.lease(now, node).good(uint64(g.h.cfg.ElectionTicks)-1) {
			good++
		}
	}
	return good > len(voters)/2
}

// rouseBy wakes a replica for a message, and its owner with it: who sent it may be one that the owner does not reach.
func (g *Group) rouseBy(r *rest, m *pb.Message) {
	g.rouse("message")
	if !r.owned && m.GetFrom() != g.lead {
		g.tellOwner(wakeMark)
	}
}
