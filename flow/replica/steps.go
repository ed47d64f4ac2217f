package replica

import (
	"context"
	"time"

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
}

// reset forgets the tenure's doings.
func (p *planState) reset() {
	p.pending, p.failures, p.homeSince, p.next, p.confIndex, p.content = false, 0, time.Time{}, 0, 0, false
}

// stepTimeout is how many looks a step may stay without effect before the owner tries again. One that is in the log and not applied yet
// still has its effect to come, however long the disk takes.
const stepTimeout = 40

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
	if p.pending && (g.confSeq != p.confAt || (g.ticks > p.pendingAt+stepTimeout*p.every && g.st.applied.Index >= p.confIndex)) {
		p.pending = false
	}
	now := time.Now()
	in := g.planInput(now)
	step := Plan(now, in)
	p.content = step.Kind == StepNone && !in.Joint && !in.Pending
	if step.Kind == StepNone {
		if !in.Joint && !in.Pending && len(in.Members) >= min(len(in.Desired), in.Want) {
			p.next += 3 * p.every // content: look less often
		}
		return
	}
	g.log.Info("membership step", "step", step.Kind.String(), "to", step.Node.String(), "ids", step.IDs, "reason", step.Reason)
	g.h.metrics.steps.WithLabelValues(step.Kind.String()).Inc()
	p.pending, p.pendingAt, p.confAt, p.lastStep = true, g.ticks, g.confSeq, now
	switch step.Kind {
	case StepAddLearner:
		g.addLearner(step.Node)
	case StepPromote:
		g.promote(step.IDs)
	case StepTransfer:
		p.homeSince = time.Time{}
		g.rn.TransferLeader(uint64(step.IDs[0]))
		p.pending = false
	}
}

func (g *Group) planInput(now time.Time) PlanInput {
	members := g.st.members()
	in := PlanInput{Self: g.birth.Self, Joint: len(g.st.conf.GetVotersOutgoing()) > 0, Pending: g.plan.pending,
		Commit: g.commit.Load(), Want: g.h.want(g.birth, g.sm), LastStep: g.plan.lastStep,
		PreferHome: g.h.cfg.PreferHome, HomeAfter: g.h.cfg.HomeAfter}
	nodes := make([]ring.NodeID, len(members))
	g.loadProgress()
	for i, m := range members {
		nodes[i] = m.Node
		pm := PlanMember{Member: m, Active: g.active(m.ID), Alive: g.h.cfg.Placement.Alive(m.Node)}
		for _, pr := range g.progress {
			if pr.id == m.ID {
				pm.Match, pm.Replicating = pr.match, pr.replicating && !g.unfit(m.ID)
			}
		}
		in.Members = append(in.Members, pm)
	}
	in.Desired = g.h.cfg.Placement.Desired(g.id, in.Want, nodes)
	in.DesiredAlive = make([]bool, len(in.Desired))
	for i, n := range in.Desired {
		in.DesiredAlive[i] = n == g.h.cfg.Self || g.h.cfg.Placement.Alive(n)
	}
	if _, ok := in.Home(); !ok {
		g.plan.homeSince = time.Time{}
	} else if g.plan.homeSince.IsZero() {
		g.plan.homeSince = now
	}
	in.HomeSince = g.plan.homeSince
	return in
}

// addLearner has the node create an empty replica, then names it in the configuration. Its id is never given out again by
// this owner, even when the change comes to nothing.
func (g *Group) addLearner(node ring.NodeID) {
	id := max(g.st.lastID, g.plan.tried) + 1
	g.plan.tried = id
	learner := Member{ID: id, Node: node, Learner: true}
	b := Birth{Group: g.id, Kind: g.birth.Kind, Spec: g.birth.Spec, Members: append(g.st.members(), learner), Self: id, Empty: true}
	term := g.term
	g.spawn(func() {
		ctx, cancel := context.WithTimeout(g.ctx, 5*time.Second)
		defer cancel()
		_, err := g.h.cfg.Caller.Call(ctx, node, wire.ClassControl, wire.MethodBirth, encodeBirth(b))
		g.post(func() {
			if g.term != term || g.role != raft.StateLeader || g.st.lastID >= id {
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

func (g *Group) promote(ids []ring.ReplicaID) {
	cc := &pb.ConfChangeV2{}
	if len(ids) > 1 {
		cc.Transition = pb.ConfChangeTransitionJointImplicit.Enum()
	}
	for _, id := range ids {
		cc.Changes = append(cc.Changes, &pb.ConfChangeSingle{Type: pb.ConfChangeAddNode.Enum(), NodeId: new(uint64(id))})
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
