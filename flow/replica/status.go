package replica

import (
	"time"

	"github.com/skeinmesh/skein/ring"
	"go.etcd.io/raft/v3"
)

// Status is a recent snapshot, without a lock: the applied and commit indexes are current, Match and Active are as of the
// last tick. The caller must not change its slices and maps.
func (g *Group) Status() Status {
	s := *g.status.Load()
	s.Applied, s.Commit = g.applied.Load(), g.commit.Load()
	if n := g.ownerSeen.Load(); n != 0 {
		s.OwnerSeen = time.Unix(0, n)
	}
	if g.resting.Load() != nil {
		s.OwnerSeen = time.Now() // within an election timeout, or it would not rest
	}
	return s
}

// settle follows changes of role, term and readiness, and answers what waited for them.
func (g *Group) settle() {
	bs := g.rn.BasicStatus()
	role, term, lead := bs.RaftState, bs.GetTerm(), bs.Lead
	changed := role != g.role || term != g.term || lead != g.lead
	lost := g.role == raft.StateLeader && (role != raft.StateLeader || term != g.term)
	won := role == raft.StateLeader && (g.role != raft.StateLeader || term != g.term)
	g.role, g.term, g.lead = role, term, lead
	if lost {
		g.h.metrics.owned.Dec()
		g.h.owns.Add(-1)
		g.lostOwnership()
		g.failProposals()
	}
	if won {
		g.h.metrics.owned.Inc()
		g.h.owns.Add(1)
		g.h.metrics.elections.Inc()
		g.campaigns = 0
		g.plan.reset()
		g.log.Info("became owner", "term", term)
	}
	if role != raft.StateLeader {
		g.failReads()
	}
	ready := role == raft.StateLeader && g.st.applied.Term == term
	changed = changed || ready != g.isReady
	g.isReady = ready
	g.commit.Store(bs.GetCommit())
	g.releaseHeld()
	g.settleTransfers(bs.LeadTransferee)
	if changed || g.plan.seenConf != g.confSeq || (role == raft.StateLeader && g.ticks >= g.statusAt+2) {
		g.plan.seenConf = g.confSeq
		g.publish()
	}
	if changed {
		g.h.ownerChanged(g.Status())
	}
}

// publish makes the status that others read.
func (g *Group) publish() {
	g.statusAt = g.ticks
	s := &Status{Group: g.id, Kind: g.birth.Kind, Spec: g.birth.Spec, Self: g.birth.Self, Term: g.term,
		Members: g.st.members(), Ready: g.isReady, Damage: g.mend.why, lastID: g.st.lastID}
	s.Owner, _ = g.nodeOf(g.lead)
	switch g.role {
	case raft.StateLeader:
		s.Role, s.Owner = RoleOwner, g.h.cfg.Self
		s.Match, s.Active = map[ring.ReplicaID]uint64{}, map[ring.ReplicaID]bool{}
		g.loadProgress()
		for _, p := range g.progress {
			s.Match[p.id], s.Active[p.id] = p.match, g.active(p.id)
		}
		s.Closed = g.closedSince()
		s.Want, s.Wanted, s.Waits, s.Move = g.plan.want, g.plan.wanted, Waits{g.plan.waits.Node, g.plan.waits.Reason}, g.moveStatus()
	case raft.StateCandidate, raft.StatePreCandidate:
		s.Role = RoleCandidate
	default:
		for _, m := range s.Members {
			if m.ID == g.birth.Self && m.Learner {
				s.Role = RoleLearner
			}
		}
		if g.st.applied.Index == 0 {
			s.Role = RoleLearner
		}
	}
	g.status.Store(s)
}
