package replica

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/transport/wire"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// proposal is one entry on its way. It is answered exactly once.
type proposal struct {
	data   []byte
	size   int64
	term   uint64 // the owner's term when it was proposed: it is not carried over into another
	start  time.Time
	index  uint64 // once seen in the log
	result any
	done   func(Outcome)
}

// MaxEntry is the most that one entry may hold, bytes: it must travel in one frame.
const MaxEntry = wire.MaxFrame - 64<<10

// Propose asks for data to be replicated and applied. It never blocks, keeps the order of calls, and keeps data: nobody may
// change it afterwards. done is called once, from the group's goroutine (or from the one that stops the group), and must
// not block. An error means that nothing was enqueued and done is not called: KindInvalid (no data, above MaxEntry), KindNotOwner with a
// hint, KindUnavailable (owner, but the first entry of the term is not applied yet), KindNoCredit, KindClosed.
func (g *Group) Propose(data []byte, done func(Outcome)) error {
	return g.propose(g.status.Load(), data, done)
}

// ProposeIn is Propose of what was found out while this replica was the owner in a term: KindNotOwner where that term is over, also where
// it owns the group again, for another owner may have decided otherwise meanwhile.
func (g *Group) ProposeIn(term uint64, data []byte, done func(Outcome)) error {
	st := g.status.Load()
	if st.Term != term {
		return notOwner("propose", st.Owner, st.Term)
	}
	return g.propose(st, data, done)
}

func (g *Group) propose(st *Status, data []byte, done func(Outcome)) error {
	switch {
	case len(data) == 0:
		return wire.Errorf(wire.KindInvalid, "", "an entry needs data")
	case len(data) > MaxEntry:
		return wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "an entry of %d bytes does not fit a frame", len(data))
	case st.Role != RoleOwner:
		if g.stopped() {
			return closedErr("propose")
		}
		return notOwner("propose", st.Owner, st.Term)
	case !st.Ready:
		return noQuorum("propose", "the new owner has not committed an entry of its term yet")
	}
	size := int64(len(data)) + 64
	if now := g.pending.Add(size); now > int64(g.h.cfg.MaxUncommittedBytes) && now != size {
		g.pending.Add(-size)
		g.h.metrics.proposals.WithLabelValues(wire.KindNoCredit.String()).Inc()
		return noCredit("propose")
	}
	p := &proposal{data: data, size: size, term: st.Term, start: time.Now(), done: done}
	if !g.inbox.put(func(in *input) { in.props = append(in.props, p) }) {
		g.pending.Add(-size)
		return closedErr("propose")
	}
	g.h.pace.waiting.Add(1)
	return nil
}

// ProposeWait is Propose that waits. When ctx ends first the outcome is KindOutcomeUnknown.
func (g *Group) ProposeWait(ctx context.Context, data []byte) Outcome {
	ch := make(chan Outcome, 1)
	if err := g.Propose(data, func(o Outcome) { ch <- o }); err != nil {
		return Outcome{Err: err}
	}
	select {
	case o := <-ch:
		return o
	case <-ctx.Done():
		return Outcome{Err: &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Op: "propose", Err: ctx.Err()}}
	}
}

func (g *Group) stopped() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// finish answers a proposal.
func (g *Group) finish(p *proposal, o Outcome) {
	g.pending.Add(-p.size)
	g.h.pace.waiting.Add(-1)
	if o.Err == nil {
		now := time.Now()
		g.h.pace.observe(now, now.Sub(p.start))
		g.h.metrics.proposed.Inc()
	} else {
		g.h.metrics.proposals.WithLabelValues(wire.KindOf(o.Err).String()).Inc()
	}
	p.done(o)
}

// proposeAll gives proposals to raft in runs, so that a run leaves as one message to each follower.
func (g *Group) proposeAll(ps []*proposal) {
	for len(ps) > 0 {
		n, size := 0, 0
		for n < len(ps) && n < 1024 && (n == 0 || size+len(ps[n].data) <= g.h.cfg.MaxSizePerMsg) {
			size += len(ps[n].data)
			n++
		}
		g.proposeRun(ps[:n])
		ps = ps[n:]
	}
}

func (g *Group) proposeRun(ps []*proposal) {
	bs := g.rn.BasicStatus()
	live := make([]*proposal, 0, len(ps))
	es := make([]*pb.Entry, 0, len(ps))
	for _, p := range ps {
		if bs.RaftState != raft.StateLeader || bs.GetTerm() != p.term {
			owner, _ := g.nodeOf(bs.Lead)
			g.finish(p, Outcome{Err: notOwner("propose", owner, bs.GetTerm())})
			continue
		}
		live, es = append(live, p), append(es, &pb.Entry{Data: p.data})
	}
	if len(es) == 0 {
		return
	}
	if err := g.rn.Step(proposeMsg(bs.ID, es...)); err == nil {
		g.unindexed = append(g.unindexed, live...)
		return
	}
	// All or nothing was refused; what fits still goes, in order, up to the first that does not.
	for i, p := range live {
		if err := g.rn.Step(proposeMsg(bs.ID, &pb.Entry{Data: p.data})); err != nil {
			for _, p := range live[i:] {
				g.finish(p, Outcome{Err: g.droppedErr(bs)})
			}
			return
		}
		g.unindexed = append(g.unindexed, p)
	}
}

func proposeMsg(from uint64, es ...*pb.Entry) *pb.Message {
	return &pb.Message{Type: pb.MsgProp.Enum(), From: &from, Entries: es}
}

// droppedErr explains why raft took no proposal: ownership is being handed over, or too much is uncommitted.
func (g *Group) droppedErr(bs raft.BasicStatus) error {
	if bs.LeadTransferee != raft.None {
		to, _ := g.nodeOf(bs.LeadTransferee)
		return notOwner("propose", to, bs.GetTerm())
	}
	return noCredit("propose")
}

// indexProposals learns the index of each proposal: raft emits our entries of the term in the order we proposed them.
func (g *Group) indexProposals(es []*pb.Entry) {
	for _, e := range es {
		if len(g.unindexed) == 0 {
			return
		}
		p := g.unindexed[0]
		if e.GetType() != pb.EntryNormal || len(e.GetData()) == 0 || e.GetTerm() != p.term {
			continue
		}
		p.index = e.GetIndex()
		g.unindexed[0] = nil
		g.unindexed = g.unindexed[1:]
		g.inLog = append(g.inLog, p)
	}
}

// popProposal gives the proposal whose entry has the index, if it was made here in the current ownership.
func (g *Group) popProposal(index, term uint64) *proposal {
	if len(g.inLog) == 0 || g.inLog[0].index != index || g.inLog[0].term != term {
		return nil
	}
	p := g.inLog[0]
	g.inLog[0] = nil
	g.inLog = g.inLog[1:]
	return p
}

// complete answers applied proposals, or keeps them until a second copy exists.
func (g *Group) complete(ps []*proposal) {
	if len(ps) == 0 {
		return
	}
	g.loadProgress()
	for _, p := range ps {
		if len(g.held) > 0 || !g.enoughCopies(p.index) {
			g.held = append(g.held, p)
			continue
		}
		g.finish(p, Outcome{Result: p.result, Index: p.index, Copies: g.copies(p.index)})
	}
}

func (g *Group) copies(index uint64) int {
	n := 0
	for _, p := range g.progress {
		if p.match >= index && (!p.learner || g.active(p.id)) {
			n++
		}
	}
	return max(n, 1)
}

// enoughCopies is false while the only voter must wait for a live learner: with two nodes an answer means two copies. A
// learner that is still catching up is not waited for.
func (g *Group) enoughCopies(index uint64) bool {
	waits := false
	voters := 0
	for _, p := range g.progress {
		switch {
		case !p.learner:
			voters++
		case p.match >= index:
			return true
		case g.active(p.id) && (p.replicating || (!p.snapshot && p.match+CaughtUp >= index)):
			waits = true
		}
	}
	return voters != 1 || !waits
}

func (g *Group) releaseHeld() {
	if len(g.held) == 0 {
		return
	}
	g.loadProgress()
	for len(g.held) > 0 && g.enoughCopies(g.held[0].index) {
		p := g.held[0]
		g.held[0] = nil
		g.held = g.held[1:]
		g.finish(p, Outcome{Result: p.result, Index: p.index, Copies: g.copies(p.index)})
	}
}

// failProposals answers everything in flight when ownership is lost. What is held is committed and applied: its outcome is
// known, only the second copy is not.
func (g *Group) failProposals() {
	err := unknownOutcome("propose", g.term)
	for _, p := range g.held {
		g.finish(p, Outcome{Result: p.result, Index: p.index, Copies: 1})
	}
	for _, p := range g.inLog {
		g.finish(p, Outcome{Err: err})
	}
	for _, p := range g.unindexed {
		g.finish(p, Outcome{Err: err})
	}
	g.held, g.inLog, g.unindexed = nil, nil, nil
}

// failAll answers everything when the replica stops.
func (g *Group) failAll(left *input) {
	g.failProposals()
	for _, p := range left.props {
		g.finish(p, Outcome{Err: closedErr("propose")})
	}
	err := closedErr("read index")
	for _, r := range left.reads {
		r.answer(err)
	}
	g.answerReads(err)
	for _, t := range g.transfers {
		t.answer(closedErr("transfer"))
	}
	g.transfers = nil
	// Control operations left over are not run: whoever posted them waits on Done as well.
}
