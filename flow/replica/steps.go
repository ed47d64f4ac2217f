package replica

import (
	"context"
	"slices"
	"time"

	"github.com/skeinmesh/skein/flow/planted"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// planState is an owner's memory of what it is doing to its group's membership. What counts is the applied configuration;
// this only keeps it from asking twice.
type planState struct {
	every     uint64 // ticks between looks
	next      uint64 // tick of the next look
	pending   bool
	pendingAt uint64 // tick at which the step was started
	confAt    uint64 // confSeq then
	confIndex uint64 // of the last configuration change seen in the log
	seenConf  uint64 // confSeq last published
	content   bool   // the last look found nothing to do and nothing under way: the group may rest, and is looked at less often
	tried     ring.ReplicaID
	lastStep  time.Time
	homeSince time.Time
	failures  uint64

	handing ring.ReplicaID            // who was offered the ownership; 0: nobody
	refused map[ring.ReplicaID]uint64 // who did not take it, until which tick
	move    *move
	settled time.Time     // when a move that an operator asked for was made
	wanted  []ring.NodeID // where copies should be, as of the last look
	want    int
	waits   Step // what the last look found to wait for

	born map[ring.ReplicaID]uint64 // tick at which a silent learner was noticed, or asked for last
	dead []ring.ReplicaID          // learners that their nodes have no more

	closed map[ring.ReplicaID]closedWord // members that are closed for good, as their nodes say

	gone     []Member // removed, and not told yet
	telling  bool
	tellNext uint64
}

// reset forgets the doings of an earlier tenure.
func (p *planState) reset() {
	p.pending, p.failures, p.homeSince, p.next, p.confIndex, p.content = false, 0, time.Time{}, 0, 0, false
	p.handing, p.refused, p.move, p.wanted, p.waits = 0, nil, nil, nil, Step{}
	p.born, p.dead, p.closed = nil, nil, nil
}

// lostOwnership ends what only an owner may be about. The next owner knows of a move if it was handed the group for it.
func (g *Group) lostOwnership() {
	if m := g.plan.move; m != nil && !m.told {
		g.endMove("the ownership was lost")
	}
	g.plan.move = nil
}

// stepTimeout is how many looks a step may stay without effect before the owner tries again. One that is in the log and not applied yet
// still has its effect to come, however long the disk takes.
const stepTimeout = 40

// refusedTicks is for how long a member that did not take the ownership over is not asked again before others.
const refusedTicks = 100

// noteConf notes where the log holds a configuration change.
func (p *planState) noteConf(es []*pb.Entry) {
	for _, e := range es {
		if e.GetType() == pb.EntryConfChangeV2 {
			p.confIndex = e.GetIndex()
		}
	}
}

// planTick looks at the membership now and then, and starts the next step.
func (g *Group) planTick() {
	p := &g.plan
	if !g.isReady || g.ticks < p.next {
		return
	}
	p.next = g.ticks + p.every + g.h.jitter(p.every)
	if g.h.leaving.Load() {
		p.next = g.ticks + 1
	}
	g.settleStep()
	g.leaveJoint()
	now := time.Now()
	g.tellGone()
	g.dropClosed()
	g.probeLearners()
	g.tendMove(now)
	in := g.planInput(now)
	if in.Move != nil && holds(in.Members, in.Move.From) && slices.Contains(in.Desired, in.Move.To) {
		g.endMove("its target gets a copy anyway")
		in = g.planInput(now)
	}
	step := Plan(now, in)
	p.wanted, p.want, p.waits = in.wanted(), in.Want, Step{}
	if step.Kind != StepNone {
		p.content = false
		g.perform(now, step)
		return
	}
	p.waits = step
	if step.Content() {
		p.failures = 0
		if p.move == nil {
			g.relieve(now, in)
		}
	}
	p.content = !in.Joint && !in.Pending && p.move == nil && !p.telling
	if p.content && step.Content() {
		p.next += 3 * p.every // look less often
	}
}

// settleStep sees what became of the last step.
func (g *Group) settleStep() {
	p := &g.plan
	if p.handing != 0 && g.rn.BasicStatus().LeadTransferee == raft.None {
		g.log.Info("the ownership was not taken over", "replica", uint64(p.handing))
		if p.refused == nil {
			p.refused = map[ring.ReplicaID]uint64{}
		}
		p.refused[p.handing] = g.ticks + refusedTicks
		p.handing, p.pending = 0, false
	}
	switch {
	case !p.pending || p.handing != 0:
	case g.confSeq != p.confAt:
		p.pending, p.failures = false, 0
	case g.ticks > p.pendingAt+stepTimeout*p.every && g.st.applied.Index >= p.confIndex:
		g.log.Info("a membership step had no effect")
		g.stepFailed()
	}
}

// leaveJoint ends a joint configuration that raft has not left: it does that when it applies the entry of it, or a later one, but not while
// a hand-over is under way. In a quiet group nothing is applied later.
func (g *Group) leaveJoint() {
	if len(g.st.conf.GetVotersOutgoing()) == 0 || g.st.applied.Index < g.plan.confIndex {
		return
	}
	if err := g.rn.ProposeConfChange(&pb.ConfChangeV2{}); err != nil {
		g.log.Debug("a joint configuration is not left yet", "err", err)
	}
}

// agreedMove is the move that both ends agreed to, as Plan sees it.
func (g *Group) agreedMove() *Swap {
	if m := g.plan.move; m != nil && m.granted {
		return &m.Swap
	}
	return nil
}

// perform starts a step.
func (g *Group) perform(now time.Time, step Step) {
	p := &g.plan
	g.log.Info("membership step", step.attrs()...)
	g.h.metrics.steps.WithLabelValues(step.Kind.String()).Inc()
	p.pending, p.pendingAt, p.confAt, p.lastStep = true, g.ticks, g.confSeq, now
	switch step.Kind {
	case StepAddLearner:
		g.addLearner(step.Node)
	case StepTransfer:
		if m := p.move; m != nil && m.granted && !m.told {
			g.carryOn(m, step)
			return
		}
		g.handTo(step)
	default:
		g.changeMembers(step)
	}
}

// handTo offers the ownership to a voter. settleStep sees whether it is taken.
func (g *Group) handTo(s Step) {
	p := &g.plan
	p.homeSince = time.Time{}
	p.handing, p.pending = s.IDs[0], true
	g.h.noteHanded(time.Now(), s.Node, s.Even)
	g.rn.TransferLeader(uint64(s.IDs[0]))
}

func (g *Group) planInput(now time.Time) PlanInput {
	p := &g.plan
	members := g.st.members()
	in := PlanInput{Self: g.birth.Self, Joint: len(g.st.conf.GetVotersOutgoing()) > 0, Pending: p.pending,
		Commit: g.commit.Load(), Want: g.h.want(g.birth, g.sm), Move: g.agreedMove(), LastStep: p.lastStep,
		HomeAfter: g.h.cfg.HomeAfter, EvenOut: g.h.mayEven(now)}
	// A move that both ends are still asked about would be lost with the ownership.
	in.PreferHome = g.h.cfg.PreferHome && p.move == nil && !g.slowDisk()
	place := g.h.cfg.Placement
	g.loadProgress()
	for _, m := range members {
		pm := PlanMember{Member: m, Active: g.active(m.ID), Alive: m.Node == g.h.cfg.Self || place.Alive(m.Node),
			Leaving: place.Leaving(m.Node) || (m.Node == g.h.cfg.Self && g.h.leaving.Load()), Refused: g.ticks < p.refused[m.ID], Dead: slices.Contains(p.dead, m.ID), Closed: g.closedLong(m.ID)}
		pm.Owned, pm.Mean, pm.High = g.h.ownedBy(now, m.Node)
		for _, pr := range g.progress {
			if pr.id == m.ID {
				pm.Match, pm.Replicating = pr.match, pr.replicating && !g.unfit(m.ID)
			}
		}
		in.Members = append(in.Members, pm)
	}
	in.Desired = g.desired(in)
	in.DesiredAlive = make([]bool, len(in.Desired))
	for i, n := range in.Desired {
		in.DesiredAlive[i] = n == g.h.cfg.Self || place.Alive(n)
	}
	if _, ok := in.Home(); !ok {
		p.homeSince = time.Time{}
	} else if p.homeSince.IsZero() {
		p.homeSince = now
	}
	in.HomeSince = p.homeSince
	return in
}

// desired asks where the copies should be. Voters that may stay are kept before learners, which are on their way in or out; the target
// of a move is left out, for Plan puts it in the place of its source, which counts as one that stays, closed or not. Where another copy is
// closed for good none is wanted while another node can take one.
func (g *Group) desired(in PlanInput) []ring.NodeID {
	var voters, learners, closed []ring.NodeID
	for _, m := range in.Members {
		switch {
		case m.Closed && !in.moves(m.Node):
			closed = append(closed, m.Node)
		case in.Move != nil && m.Node == in.Move.To && holds(in.Members, in.Move.From):
		case m.Learner:
			learners = append(learners, m.Node)
		default:
			voters = append(voters, m.Node)
		}
	}
	first := g.h.cfg.Placement.Desired(g.id, in.Want, voters, closed)
	kept := slices.DeleteFunc(voters, func(n ring.NodeID) bool { return !slices.Contains(first, n) })
	if len(learners) == 0 || len(kept) >= in.Want {
		return first
	}
	return g.h.cfg.Placement.Desired(g.id, in.Want, append(kept, learners...), closed)
}

// addLearner has the node create an empty replica, then names it in the configuration. Its id is never given out again by
// this owner, even when the change comes to nothing.
func (g *Group) addLearner(node ring.NodeID) {
	id := g.plantID(max(g.st.lastID, g.plan.tried) + 1)
	g.plan.tried = id
	learner := Member{ID: id, Node: node, Learner: true}
	b := Birth{Group: g.id, Kind: g.birth.Kind, Spec: g.birth.Spec, Members: append(g.st.members(), learner), Self: id, Empty: true}
	term := g.term
	g.spawn(func() {
		ctx, cancel := context.WithTimeout(g.ctx, 5*time.Second)
		defer cancel()
		_, err := g.h.cfg.Caller.Call(ctx, node, wire.ClassControl, wire.MethodBirth, encodeBirth(b))
		g.post(func() {
			if g.term != term || g.role != raft.StateLeader || g.st.lastID >= id && !planted.Is(planted.ReuseReplicaID) {
				return
			}
			if wire.KindOf(err) == wire.KindNoCredit {
				g.plan.pending = false // others come in there first
				g.plan.next = g.ticks + g.plan.every + g.h.jitter(4*g.plan.every)
				return
			}
			if g.h.declined(node, err) {
				g.log.Info("a node takes nothing new: another one is chosen", "peer", node.String())
				g.plan.pending, g.plan.next = false, g.ticks+g.plan.every
				return
			}
			if err != nil {
				g.log.Warn("the node did not create a replica", "peer", node.String(), "err", err)
				g.stepFailed()
				return
			}
			g.changeConf(&pb.ConfChangeV2{Context: encodeConfContext([]Member{learner}),
				Changes: []*pb.ConfChangeSingle{{Type: pb.ConfChangeAddLearnerNode.Enum(), NodeId: new(uint64(id))}}})
		})
	})
}

// changeMembers promotes, demotes and removes in one change: more than one at a time go through a joint configuration, which needs a
// majority of the old voters and one of the new.
func (g *Group) changeMembers(s Step) {
	cc := &pb.ConfChangeV2{}
	for _, part := range []struct {
		kind pb.ConfChangeType
		ids  []ring.ReplicaID
	}{{pb.ConfChangeAddNode, s.IDs}, {pb.ConfChangeAddLearnerNode, s.Demote}, {pb.ConfChangeRemoveNode, s.Remove}} {
		for _, id := range part.ids {
			cc.Changes = append(cc.Changes, &pb.ConfChangeSingle{Type: part.kind.Enum(), NodeId: new(uint64(id))})
		}
	}
	if len(cc.Changes) > 1 || len(s.Demote) > 0 {
		cc.Transition = pb.ConfChangeTransitionJointImplicit.Enum()
	}
	g.changeConf(cc)
}

func (g *Group) changeConf(cc *pb.ConfChangeV2) {
	if err := g.rn.ProposeConfChange(cc); err != nil {
		g.log.Debug("membership step refused", "err", err)
		g.stepFailed()
	}
}

// stepFailed makes the next look come later each time.
func (g *Group) stepFailed() {
	p := &g.plan
	p.pending = false
	p.failures = min(p.failures+1, 5)
	p.next = g.ticks + p.every<<p.failures + g.h.jitter(p.every)
}
