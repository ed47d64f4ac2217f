package replica

import (
	"time"

	"github.com/skeinmesh/skein/ring"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// What a replica takes from its peers and what it says to them.

// step takes one message of a peer.
func (g *Group) step(from ring.NodeID, e envelope) {
	m := e.msg
	if e.to != g.birth.Self || !g.known(e.from, from) {
		g.h.metrics.dropped.WithLabelValues("stranger").Inc()
		return
	}
	if r := g.resting.Load(); r != nil {
		if g.undisturbed(r, m) {
			return
		}
		g.rouseBy(r, m)
	}
	g.heard[e.from], g.invited = g.ticks, nil
	switch m.GetType() {
	case pb.MsgApp, pb.MsgHeartbeat:
		g.ownerSeen.Store(time.Now().UnixNano())
	}
	if isWord(m) {
		g.hearWord(m)
		return
	}
	if m.GetType() == pb.MsgTimeoutNow && (g.mend.why != nil || g.h.leaving.Load()) {
		g.h.metrics.dropped.WithLabelValues("cannot-own").Inc() // it is damaged, or its node stops
		return
	}
	if g.standBack(m) {
		g.h.metrics.dropped.WithLabelValues("stands-back").Inc()
		return
	}
	if m.GetType() == pb.MsgSnap {
		g.startFetch(from, m)
		return
	}
	if m.GetType() == pb.MsgApp && (g.fetch != nil || g.installing) {
		g.h.metrics.dropped.WithLabelValues("fetching").Inc()
		return
	}
	if len(m.GetEntries()) > 0 && g.h.unwritten.over() {
		// The disk is behind. The owner hears nothing, stops at its window, and asks again with its next heartbeat.
		g.h.metrics.dropped.WithLabelValues("disk-behind").Inc()
		return
	}
	g.stepCore(m)
}

// maxStrangers bounds replicas we heard of that our configuration does not name yet.
const maxStrangers = 16

// known says whether replica id may speak from the node. A replica newer than all we know of is believed until the
// configuration says otherwise: a follower that lags must be able to hear an owner that joined after its last entry.
func (g *Group) known(id ring.ReplicaID, node ring.NodeID) bool {
	if n, ok := g.st.nodes[id]; ok {
		return n == node
	}
	if id <= g.st.lastID {
		return false
	}
	if n, ok := g.strangers[id]; ok {
		return n == node
	}
	if len(g.strangers) >= maxStrangers {
		return false
	}
	g.strangers[id] = node
	return true
}

func (g *Group) nodeOf(id uint64) (ring.NodeID, bool) {
	if n, ok := g.st.nodes[ring.ReplicaID(id)]; ok {
		return n, true
	}
	n, ok := g.strangers[ring.ReplicaID(id)]
	return n, ok
}

func (g *Group) send(m *pb.Message) {
	if g.passing && m.GetType() == pb.MsgHeartbeat {
		return
	}
	node, ok := g.nodeOf(m.GetTo())
	if !ok {
		g.h.metrics.dropped.WithLabelValues("no-address").Inc()
		return
	}
	if !g.h.outbox.add(node, g.id, m, canWait(m) || g.repeats(m)) {
		g.unreachable(m.GetTo(), m.GetType() == pb.MsgSnap)
	}
}

// answer is what this replica told an owner last about how far its log reaches.
type answer struct{ to, term, index uint64 }

// repeats is true of an answer to an append that tells nothing new.
func (g *Group) repeats(m *pb.Message) bool {
	if m.GetType() != pb.MsgAppResp || m.GetReject() {
		return false
	}
	now := answer{m.GetTo(), m.GetTerm(), m.GetIndex()}
	same := now == g.answered
	g.answered = now
	return same
}

// unreachable tells raft that a message did not leave.
func (g *Group) unreachable(id uint64, snapshot bool) {
	g.rn.ReportUnreachable(id)
	if snapshot {
		g.rn.ReportSnapshot(id, raft.SnapshotFailure)
	}
}
