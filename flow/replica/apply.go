package replica

import (
	"fmt"
	"maps"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/planted"
	"github.com/skeinmesh/skein/ring"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// applyRun is one atomic batch of applied entries.
type applyRun struct {
	batch   log.Batch
	entries int
	bytes   int64
	conf    bool
	results []*proposal
	acks    []*pb.Message
}

// apply applies committed entries until the time is over, as one batch in the store. It reports whether it applied any.
func (g *Group) apply(until time.Time) (bool, error) {
	if len(g.applyQ) == 0 || g.fetch != nil || g.installing || g.mend.why != nil {
		return false, nil
	}
	start := time.Now()
	run := applyRun{batch: g.h.cfg.Store.NewBatch()}
	for over := false; len(g.applyQ) > 0 && !over; {
		m := g.applyQ[0]
		es := m.GetEntries()
		for g.applyPos < len(es) && !over {
			if err := g.applyEntry(&run, es[g.applyPos]); err != nil {
				g.abandon(run.results)
				return false, err
			}
			g.applyPos++
			over = run.entries%4 == 0 && !time.Now().Before(until)
		}
		if g.applyPos < len(es) {
			break
		}
		run.acks = append(run.acks, m.GetResponses()...)
		g.applyQ[0] = nil
		g.applyQ, g.applyPos = g.applyQ[1:], 0
		over = over || !time.Now().Before(until)
	}
	g.st.save(run.batch, g.id, run.conf)
	if err := run.batch.Commit(); err != nil {
		g.abandon(run.results)
		return false, fmt.Errorf("store: %w", err)
	}
	g.applied.Store(g.st.applied.Index)
	g.unsynced.Store(true)
	g.h.metrics.applySeconds.Observe(time.Since(start).Seconds())
	g.h.metrics.appliedEntries.Add(float64(run.entries))
	g.h.noteApplied(run.bytes)
	for _, a := range run.acks {
		g.respond(a)
	}
	g.complete(g.plantComplete(run.results))
	g.releaseReads()
	return true, nil
}

// abandon answers proposals whose run failed half way: the entries are committed, the local result is not.
func (g *Group) abandon(ps []*proposal) {
	for _, p := range ps {
		g.finish(p, Outcome{Err: unknownOutcome("apply", g.term)})
	}
}

func (g *Group) applyEntry(run *applyRun, e *pb.Entry) error {
	run.entries++
	run.bytes += int64(len(e.GetData()))
	if g.plantApplied(run, e) {
		return nil
	}
	p := g.popProposal(e.GetIndex(), e.GetTerm())
	switch {
	case e.GetType() == pb.EntryNormal && len(e.GetData()) > 0:
		res, err := g.sm.Apply(journalEntry(e), run.batch)
		if p != nil {
			p.result = res
			run.results = append(run.results, p)
		}
		if err != nil {
			return fmt.Errorf("apply entry %d: %w", e.GetIndex(), err)
		}
	case e.GetType() == pb.EntryConfChangeV2:
		if err := g.applyConf(e.GetData()); err != nil {
			return fmt.Errorf("apply configuration entry %d: %w", e.GetIndex(), err)
		}
		run.conf = true
	case e.GetType() == pb.EntryConfChange:
		return fmt.Errorf("apply entry %d: a configuration change of the first kind is never proposed here", e.GetIndex())
	}
	g.st.applied = log.Mark{Index: e.GetIndex(), Term: e.GetTerm()}
	return nil
}

// applyConf applies a configuration change. The context names the nodes of new replicas. A change that gives out a replica
// id that was given out before is void: all replicas see it so, since the last id is replicated state.
func (g *Group) applyConf(data []byte) error {
	var cc pb.ConfChangeV2
	if err := proto.Unmarshal(data, &cc); err != nil {
		return err
	}
	added, err := decodeConfContext(cc.GetContext())
	if err != nil {
		return err
	}
	for _, ch := range cc.GetChanges() {
		id := ring.ReplicaID(ch.GetNodeId())
		_, here := g.st.nodes[id]
		_, named := added[id]
		switch ch.GetType() {
		case pb.ConfChangeAddNode, pb.ConfChangeAddLearnerNode:
			if !here && (!named || id <= g.st.lastID && !planted.Is(planted.ReuseReplicaID)) {
				g.log.Warn("configuration change is void: replica id was used before or has no node", "id", uint64(id))
				return nil
			}
		}
	}
	nodes := maps.Clone(g.st.nodes)
	for _, ch := range cc.GetChanges() {
		id := ring.ReplicaID(ch.GetNodeId())
		if ch.GetType() == pb.ConfChangeRemoveNode {
			continue
		}
		if n, ok := added[id]; ok {
			nodes[id] = n
		}
		g.st.lastID = max(g.st.lastID, id)
	}
	before := maps.Clone(nodes)
	g.st.conf = g.rn.ApplyConfChange(&cc)
	g.st.nodes = nodes
	g.st.dropNodes()
	g.noteGone(before)
	g.forgetAbsent()
	g.confSeq++
	g.log.Info("membership changed", "voters", g.st.conf.GetVoters(), "learners", g.st.conf.GetLearners(),
		"outgoing", g.st.conf.GetVotersOutgoing())
	return nil
}

// dropNodes forgets nodes of replicas that no part of the configuration names.
func (st *state) dropNodes() {
	in := map[ring.ReplicaID]bool{}
	for _, ids := range [][]uint64{st.conf.GetVoters(), st.conf.GetLearners(), st.conf.GetVotersOutgoing(), st.conf.GetLearnersNext()} {
		for _, id := range ids {
			in[ring.ReplicaID(id)] = true
		}
	}
	maps.DeleteFunc(st.nodes, func(id ring.ReplicaID, _ ring.NodeID) bool { return !in[id] })
}

func encodeConfContext(ms []Member) []byte { return appendMembers([]byte{1}, ms) }

func decodeConfContext(raw []byte) (map[ring.ReplicaID]ring.NodeID, error) {
	out := map[ring.ReplicaID]ring.NodeID{}
	if len(raw) == 0 {
		return out, nil
	}
	d := decoder{b: raw}
	if d.byte() != 1 {
		return nil, errMalformed
	}
	for _, m := range d.members() {
		out[m.ID] = m.Node
	}
	return out, d.done()
}
