package replica

import (
	"slices"

	"github.com/skeinmesh/skein/ring"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// What elections need beside raft, to end with an owner soon: raft alone repeats them where votes are split, or slow to sync.

// election is what a replica remembers of elections. Of the group's goroutine.
type election struct {
	backUntil uint64 // tick before which it takes no pre-vote: another replica stands
	waitUntil uint64 // tick before which no time passes towards the next attempt
	slowUntil uint64 // tick before which the disk counts as slow
}

// campaignEagerly stands without waiting for an election timeout, a few times after birth or restart.
func (g *Group) campaignEagerly() {
	if g.campaigns == 0 || g.ticks%3 != 0 {
		return
	}
	g.campaigns--
	if g.lead == raft.None {
		g.campaign()
	} else {
		g.campaigns = 0
	}
}

func (g *Group) campaign() {
	if g.mend.why != nil {
		return
	}
	if err := g.rn.Campaign(); err != nil {
		g.log.Debug("campaign refused", "err", err)
	}
}

// standBack has this replica, if it stands, let another one win that stands too and that it would vote for: the one with the lower id. It
// says whether m is a pre-vote that is not taken for that.
//
// Two that stand within the same round trip both win the pre-vote, split the votes, and nobody owns the group for another election timeout.
// Half of one is enough to step back for: a pre-vote that comes later is one of its next attempt, which begins at least a whole one after
// the last, should the other not have won.
func (g *Group) standBack(m *pb.Message) (drop bool) {
	switch m.GetType() {
	case pb.MsgPreVote:
		if ring.ReplicaID(m.GetFrom()) < g.birth.Self && g.rn.BasicStatus().RaftState == raft.StatePreCandidate && g.hasNoMoreThan(m) {
			g.election.backUntil = g.ticks + uint64(g.h.cfg.ElectionTicks)/2
		}
	case pb.MsgPreVoteResp:
		return !m.GetReject() && g.ticks < g.election.backUntil
	}
	return false
}

// hasNoMoreThan says whether the log of a replica that stands is at least as up to date as this one's (Raft dissertation, section 3.6.1).
func (g *Group) hasNoMoreThan(m *pb.Message) bool {
	term, err := g.store.Term(g.store.last)
	return err == nil && (term < m.GetLogTerm() || (term == m.GetLogTerm() && g.store.last <= m.GetIndex()))
}

// votesSlowly has raft's clock stand still, but for an owner's, while this replica's term or vote is being synced, and for the same time
// again: the others' disks may be as slow, and each attempt makes the votes of the one before worthless. Where syncing takes longer than
// an election timeout, a group would never have an owner otherwise.
func (g *Group) votesSlowly() bool {
	return g.role != raft.StateLeader &&
		(g.ticks < g.election.waitUntil || slices.ContainsFunc(g.appends, func(op *appendOp) bool { return op.votes }))
}

// maxVoteWait is for how many election timeouts at most the others' disks are waited for, slowFor for how many a disk counts as slow.
const (
	maxVoteWait = 10
	slowFor     = 20
)

// wrote notes how long a write took that is durable now.
func (g *Group) wrote(op *appendOp) {
	limit := uint64(g.h.cfg.ElectionTicks)
	if g.ticks-op.tick >= limit {
		g.election.slowUntil = g.ticks + slowFor*limit
	}
	if op.votes {
		g.election.waitUntil = g.ticks + min(g.ticks-op.tick, maxVoteWait*limit)
	}
}

// slowDisk says whether the disk here takes longer for a write than an election timeout, or did so lately. A group that is handed over on
// such disks has no owner for several timeouts, until votes and the first entry of the next one are synced: more than evenness is worth.
func (g *Group) slowDisk() bool {
	return g.ticks < g.election.slowUntil || (len(g.appends) > 0 && g.ticks-g.appends[0].tick >= uint64(g.h.cfg.ElectionTicks))
}
