//go:build skeinplanted

package replica

import (
	"math"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/planted"
	"github.com/skeinmesh/skein/ring"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// plantWrite takes the term and the vote out of what is written: the term of birth is all that a later start finds.
func (g *Group) plantWrite(w *log.Write) {
	if planted.Is(planted.DropHardState) {
		w.HardState = &log.HardState{Term: BirthTerm, Commit: w.HardState.Commit}
	}
}

// plantID gives the lowest id that no member has.
func (g *Group) plantID(id ring.ReplicaID) ring.ReplicaID {
	if !planted.Is(planted.ReuseReplicaID) {
		return id
	}
	for id = 1; g.st.nodes[id] != (ring.NodeID{}); {
		id++
	}
	return id
}

// appliesEarly: the owner of a partition applies what its own log has.
func (g *Group) appliesEarly() bool {
	return (planted.Is(planted.AckBeforeCommit) || planted.Is(planted.ReadPastCommit)) && g.birth.Kind == KindPartition
}

// plantAppended applies what the owner wrote, whoever else has it.
func (g *Group) plantAppended(op *appendOp) {
	if op.last == 0 || !g.appliesEarly() || g.rn.BasicStatus().RaftState != raft.StateLeader {
		return
	}
	es, err := g.store.Entries(g.st.applied.Index+1, op.last+1, math.MaxUint64)
	if err != nil {
		return
	}
	for i, e := range es {
		if e.GetType() != pb.EntryNormal {
			es = es[:i]
			break
		}
	}
	if len(es) > 0 {
		g.applyQ = append(g.applyQ, &pb.Message{Entries: es})
	}
}

// plantApplied: an entry that comes again, as raft has it committed, is left out. Whoever waits for it is answered now at the latest.
func (g *Group) plantApplied(run *applyRun, e *pb.Entry) bool {
	if !g.appliesEarly() || e.GetIndex() > g.st.applied.Index {
		return false
	}
	if p := g.popProposal(e.GetIndex(), e.GetTerm()); p != nil {
		run.results = append(run.results, p)
	}
	return true
}

// plantComplete leaves to be answered what is committed; the others wait, though they are applied.
func (g *Group) plantComplete(ps []*proposal) []*proposal {
	if !planted.Is(planted.ReadPastCommit) {
		return ps
	}
	commit := g.rn.BasicStatus().GetCommit()
	for i, p := range ps {
		if p.index > commit {
			g.inLog = append(append([]*proposal{}, ps[i:]...), g.inLog...)
			return ps[:i]
		}
	}
	return ps
}
