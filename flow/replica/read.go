package replica

import (
	"context"
	"encoding/binary"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"go.etcd.io/raft/v3"
)

// readWait is one waiting ReadIndex call.
type readWait struct {
	index uint64
	ch    chan error // room for one
}

func (r *readWait) answer(err error) { r.ch <- err }

// ReadIndex returns once the state here covers everything that was acknowledged before the call, as confirmed by a quorum
// after the call. Only on the owner: KindNotOwner with a hint elsewhere; KindUnavailable (no-quorum) when ctx ends first or
// ownership was lost meanwhile.
func (g *Group) ReadIndex(ctx context.Context) error {
	st := g.status.Load()
	if st.Role != RoleOwner {
		if g.stopped() {
			return closedErr("read index")
		}
		return notOwner("read index", st.Owner, st.Term)
	}
	r := &readWait{ch: make(chan error, 1)}
	if !g.inbox.put(func(in *input) { in.reads = append(in.reads, r) }) {
		return closedErr("read index")
	}
	select {
	case err := <-r.ch:
		return err
	case <-ctx.Done():
		return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeNoQuorum, Op: "read index",
			Detail: "no quorum confirmed the owner in time", Err: ctx.Err()}
	}
}

// readAll starts one round of confirmation for all calls that came together.
func (g *Group) readAll(rs []*readWait) {
	if len(rs) == 0 {
		return
	}
	bs := g.rn.BasicStatus()
	if bs.RaftState != raft.StateLeader {
		owner, _ := g.nodeOf(bs.Lead)
		for _, r := range rs {
			r.answer(notOwner("read index", owner, bs.GetTerm()))
		}
		return
	}
	g.readSeq++
	g.reads[g.readSeq] = append([]*readWait(nil), rs...)
	g.rn.ReadIndex(binary.BigEndian.AppendUint64(nil, g.readSeq))
}

// noteReadStates takes raft's confirmations: the calls wait until the index is applied.
func (g *Group) noteReadStates(states []raft.ReadState) {
	for _, s := range states {
		if len(s.RequestCtx) != 8 {
			continue
		}
		seq := binary.BigEndian.Uint64(s.RequestCtx)
		for _, r := range g.reads[seq] {
			r.index = s.Index
			g.readsDue = append(g.readsDue, r)
		}
		delete(g.reads, seq)
	}
	g.releaseReads()
}

func (g *Group) releaseReads() {
	keep := g.readsDue[:0]
	for _, r := range g.readsDue {
		if r.index <= g.st.applied.Index {
			r.answer(nil)
		} else {
			keep = append(keep, r)
		}
	}
	clear(g.readsDue[len(keep):])
	g.readsDue = keep
}

// failReads answers calls that no confirmation can reach any more.
func (g *Group) failReads() {
	if len(g.reads) == 0 && len(g.readsDue) == 0 {
		return
	}
	err := noQuorum("read index", "this node lost ownership before a quorum confirmed it")
	if owner, ok := g.nodeOf(g.lead); ok {
		err = notOwner("read index", owner, g.term)
	}
	g.answerReads(err)
}

func (g *Group) answerReads(err error) {
	for _, rs := range g.reads {
		for _, r := range rs {
			r.answer(err)
		}
	}
	for _, r := range g.readsDue {
		r.answer(err)
	}
	clear(g.reads)
	g.readsDue = nil
}

// transferWait is one waiting Transfer call.
type transferWait struct {
	to uint64
	ch chan error // room for one
}

func (t *transferWait) answer(err error) { t.ch <- err }

// Transfer hands ownership to the voter on node to, and returns when this replica saw the new owner. Errors: KindNotOwner,
// KindNotFound (no voter there), KindUnavailable (the hand-over did not happen), KindOutcomeUnknown (ctx ended first),
// KindClosed. While it is under way proposals are refused with KindNotOwner.
func (g *Group) Transfer(ctx context.Context, to ring.NodeID) error {
	t := &transferWait{ch: make(chan error, 1)}
	if !g.post(func() { g.startTransfer(t, to) }) {
		return closedErr("transfer")
	}
	select {
	case err := <-t.ch:
		return err
	case <-g.done:
		return closedErr("transfer")
	case <-ctx.Done():
		return &wire.Error{Kind: wire.KindOutcomeUnknown, Op: "transfer", Err: ctx.Err()}
	}
}

func (g *Group) startTransfer(t *transferWait, to ring.NodeID) {
	bs := g.rn.BasicStatus()
	if bs.RaftState != raft.StateLeader {
		owner, _ := g.nodeOf(bs.Lead)
		t.answer(notOwner("transfer", owner, bs.GetTerm()))
		return
	}
	for _, m := range g.st.members() {
		if m.Node == to && !m.Learner {
			t.to = uint64(m.ID)
		}
	}
	switch t.to {
	case 0:
		t.answer(wire.Errorf(wire.KindNotFound, "", "node %s holds no voter of the group", to))
		return
	case bs.ID:
		t.answer(nil)
		return
	}
	if g.unfit(ring.ReplicaID(t.to)) {
		t.answer(wire.Errorf(wire.KindUnavailable, "", "the replica on node %s is damaged", to))
		return
	}
	g.rn.TransferLeader(t.to)
	g.transfers = append(g.transfers, t)
}

// settleTransfers answers hand-overs that ended one way or the other.
func (g *Group) settleTransfers(transferee uint64) {
	keep := g.transfers[:0]
	for _, t := range g.transfers {
		switch {
		case g.lead == t.to:
			t.answer(nil)
		case g.role == raft.StateLeader && transferee == t.to, g.lead == raft.None:
			keep = append(keep, t)
		default:
			t.answer(wire.Errorf(wire.KindUnavailable, "", "the hand-over was abandoned"))
		}
	}
	clear(g.transfers[len(keep):])
	g.transfers = keep
}

// Campaign makes this replica stand for election now; peers that hear a working owner refuse it.
func (g *Group) Campaign() { g.post(g.campaign) }
