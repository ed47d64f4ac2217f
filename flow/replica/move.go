package replica

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"go.etcd.io/raft/v3"
)

// MovePhase is how far a move has come.
type MovePhase string

const (
	MoveReserving  MovePhase = "reserving"    // both ends are asked
	MoveHandover   MovePhase = "handing over" // the ownership goes first: an owner is never removed
	MoveCatchingUp MovePhase = "catching up"  // the new replica gets the data
	MoveSwapping   MovePhase = "swapping"     // one takes the other's place in the configuration
)

// MoveStatus is a move under way, as the owner sees it.
type MoveStatus struct {
	From, To ring.NodeID
	Phase    MovePhase
	// Reason says what it waits for.
	Reason string
}

// MovePlan is what a move would do.
type MovePlan struct {
	From, To ring.NodeID
	// Handover is who owns the group before the replica of the present owner goes; zero: the owner stays.
	Handover ring.NodeID
	// Steps tell in order what happens.
	Steps []string
}

// move is one that this owner is about.
type move struct {
	Swap
	manual   bool
	granted  bool
	asking   bool
	told     bool      // the next owner knows of it
	begun    time.Time // gives up after MoveTimeout
	renewAt  time.Time // when the grants are asked for again, or for the first time
	badSince time.Time // the target has not been there since; zero: it is
	reason   string
}

const (
	renewEvery  = 20 * time.Second // a third of grantTime
	askAgain    = time.Second      // after a refusal
	targetGrace = 10 * time.Second // how long a target may look dead before its move is given up
	// manualRest is for how long a group is left alone that an operator has placed: balancing finds others, and does not undo it at once.
	manualRest = 15 * time.Minute
)

// Move starts moving a replica of a group that is owned here, and returns; Status tells how it comes on. dryRun: it is only said what
// would happen. Errors: KindNotOwner with a hint; KindNotFound (from has no replica); KindConflict (to has one, or another move is under
// way); KindUnavailable (to takes nothing new, or too few others would be left meanwhile); KindInvalid; KindClosed.
func (h *Host) Move(ctx context.Context, group ring.GroupID, from, to ring.NodeID, dryRun bool) (MovePlan, error) {
	g, ok := h.Group(group)
	if !ok {
		return MovePlan{}, notOwner("move", ring.NodeID{}, 0)
	}
	var plan MovePlan
	err := g.ask(ctx, "move", func() (err error) {
		plan, err = g.startMove(time.Now(), Swap{From: from, To: to}, dryRun)
		return err
	})
	if err != nil {
		return MovePlan{}, err
	}
	return plan, nil
}

// ask runs fn in the group's goroutine and gives what it returned.
func (g *Group) ask(ctx context.Context, op string, fn func() error) error {
	ch := make(chan error, 1)
	if !g.post(func() { ch <- fn() }) {
		return closedErr(op)
	}
	select {
	case err := <-ch:
		return err
	case <-g.done:
		return closedErr(op)
	case <-ctx.Done():
		return &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Op: op, Err: ctx.Err()}
	}
}

func (g *Group) startMove(now time.Time, s Swap, dryRun bool) (MovePlan, error) {
	if !g.isReady {
		owner, _ := g.nodeOf(g.lead)
		return MovePlan{}, notOwner("move", owner, g.term)
	}
	if g.plan.handing != 0 { // who owns it next is to be asked
		return MovePlan{}, notOwner("move", ring.NodeID{}, g.term)
	}
	in := g.planInput(now)
	plan, err := planMove(in, s, g.h.cfg.Placement.Takes(s.To))
	if err != nil {
		return MovePlan{}, err
	}
	m := g.plan.move
	if m != nil && m.Swap != s && (m.granted || m.manual) {
		return MovePlan{}, wire.Errorf(wire.KindConflict, "", "the group is moving from %s to %s", m.From, m.To)
	}
	if !dryRun && (m == nil || m.Swap != s) {
		g.plan.move = &move{Swap: s, manual: true, begun: now, renewAt: now}
		g.plan.next = g.ticks
		g.rouse("membership")
		g.log.Info("move begins", "from", s.From.String(), "to", s.To.String(), "reason", "an operator asked for it")
	}
	return plan, nil
}

// planMove says what a move would do, or why it can not be done. Pure.
func planMove(in PlanInput, s Swap, takes bool) (MovePlan, error) {
	plan := MovePlan{From: s.From, To: s.To}
	at := slices.IndexFunc(in.Members, func(m PlanMember) bool { return m.Node == s.From })
	switch {
	case s.From == s.To:
		return plan, wire.Errorf(wire.KindInvalid, "", "a move needs two nodes")
	case at < 0:
		return plan, wire.Errorf(wire.KindNotFound, "", "node %s holds no replica of the group", s.From)
	case holds(in.Members, s.To) && in.Move == nil:
		return plan, wire.Errorf(wire.KindConflict, "", "node %s holds a replica of the group already", s.To)
	case !takes:
		return plan, wire.Errorf(wire.KindUnavailable, "", "node %s takes nothing new: it is away, cordoned or leaving", s.To)
	}
	from, fit, voters, stay := in.Members[at], 0, 0, 0
	for _, m := range in.Members {
		if m.Learner {
			continue
		}
		voters++
		if m.ID == in.Self || m.Fit(in.Commit) {
			fit++
			if m.Node != s.From {
				stay++
			}
		}
	}
	if !from.Learner && voters > 1 && stay+1 <= voters/2 {
		return plan, wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "only %d of %d voters are up to date: the group would lose its majority", fit, voters)
	}
	plan.Steps = append(plan.Steps, "both nodes agree to the move", fmt.Sprintf("%s gets a learner, which catches up", s.To))
	if from.ID == in.Self {
		plan.Handover = heir(in, s)
		plan.Steps = slices.Insert(plan.Steps, 1, fmt.Sprintf("the ownership goes from %s to %s", s.From, plan.Handover))
	}
	plan.Steps = append(plan.Steps, "one change of the configuration puts the new replica in the place of the old one",
		fmt.Sprintf("%s removes its replica", s.From))
	return plan, nil
}

// heir is who owns the group after the owner's own replica has moved. Where no other voter can take over, the new ones do, in the order
// of Desired.
func heir(in PlanInput, s Swap) ring.NodeID {
	p := newPicture(in)
	p.Move, p.wanted = &s, slices.DeleteFunc(slices.Clone(p.Desired), func(n ring.NodeID) bool { return n == s.From })
	if to, ok := p.successor(); ok {
		return to.Node
	}
	return append(p.wanted, s.To)[0]
}

// relieve starts a move that brings nodes nearer to their share, if Placement knows one for this group. One that an operator has just
// placed stays.
func (g *Group) relieve(now time.Time, in PlanInput) {
	if now.Sub(g.plan.settled) < manualRest {
		return
	}
	nodes := make([]ring.NodeID, len(in.Members))
	for i, m := range in.Members {
		nodes[i] = m.Node
	}
	from, to, ok := g.h.cfg.Placement.Relief(g.id, nodes)
	if !ok || !g.h.cfg.Placement.Takes(to) || !g.h.mayAsk(now, to) {
		return
	}
	if _, err := planMove(in, Swap{From: from, To: to}, true); err != nil {
		return
	}
	g.plan.move = &move{Swap: Swap{From: from, To: to}, begun: now, renewAt: now}
	g.reserve(g.plan.move)
}

// tendMove sees to the move under way: its grants, its end, its being given up.
func (g *Group) tendMove(now time.Time) {
	m := g.plan.move
	if m == nil {
		if c, ok := g.h.takeCarry(now, g.id); ok {
			// The one that handed over had the grants; they are asked for again in this node's name.
			g.plan.move = &move{Swap: c.swap, manual: c.manual, granted: true, begun: now, renewAt: now}
		}
		return
	}
	from, to, votes, voters := false, false, false, 0
	members := g.st.members()
	for _, mem := range members {
		from, to = from || mem.Node == m.From, to || mem.Node == m.To
		votes = votes || (mem.Node == m.To && !mem.Learner)
		if !mem.Learner {
			voters++
		}
	}
	// A learner is what was to come where no voter is missing.
	there := to && (votes || voters >= TargetVoters(len(members)))
	switch {
	case len(g.st.conf.GetVotersOutgoing()) > 0: // the change is being made
	case !from && there:
		g.log.Info("move is done", "from", m.From.String(), "to", m.To.String())
		g.endMove("")
		return
	case !from && !to, to && !m.granted:
		g.endMove("the members have changed")
		return
	case now.Sub(m.begun) > g.h.cfg.MoveTimeout:
		g.endMove("it took too long")
		return
	}
	if p := g.h.cfg.Placement; p.Takes(m.To) || (to && p.Alive(m.To)) {
		m.badSince = time.Time{}
	} else if m.badSince.IsZero() {
		m.badSince = now
	} else if now.Sub(m.badSince) > targetGrace {
		g.endMove("its target is away, cordoned or leaving")
		return
	}
	if !m.asking && !now.Before(m.renewAt) {
		g.reserve(m)
	}
}

// endMove forgets the move and tells both ends. why is empty where it was made.
func (g *Group) endMove(why string) {
	m := g.plan.move
	g.plan.move = nil
	if why == "" && m.manual {
		g.plan.settled = time.Now()
	}
	result := "done"
	if why != "" {
		result = "given up"
		if m.granted || m.manual {
			g.log.Info("move is given up", "from", m.From.String(), "to", m.To.String(), "reason", why)
		}
	}
	if !m.granted {
		return
	}
	g.h.metrics.moves.WithLabelValues(result).Inc()
	g.spawn(func() { g.tellEnds(reservation{Op: reserveDone, Group: g.id, Swap: m.Swap}, m.From, m.To) })
}

// tellEnds sends what needs no answer: grants that are not released expire.
func (g *Group) tellEnds(r reservation, nodes ...ring.NodeID) {
	ctx, cancel := context.WithTimeout(g.ctx, callTimeout)
	defer cancel()
	for _, n := range nodes {
		if _, err := g.h.cfg.Caller.Call(ctx, n, wire.ClassControl, wire.MethodReserve, encodeReservation(r)); err != nil {
			g.log.Debug("the end of a move was not told", "peer", n.String(), "err", err)
		}
	}
}

// callTimeout bounds a question to another node.
const callTimeout = 3 * time.Second

// reserve asks both ends for their agreement, or renews it.
func (g *Group) reserve(m *move) {
	m.asking = true
	r := reservation{Op: reserveIn, Group: g.id, Swap: m.Swap, Manual: m.manual}
	g.spawn(func() {
		ctx, cancel := context.WithTimeout(g.ctx, callTimeout)
		defer cancel()
		at := m.To
		_, err := g.h.cfg.Caller.Call(ctx, at, wire.ClassControl, wire.MethodReserve, encodeReservation(r))
		if err == nil {
			r.Op, at = reserveOut, m.From
			if _, err = g.h.cfg.Caller.Call(ctx, at, wire.ClassControl, wire.MethodReserve, encodeReservation(r)); err != nil {
				r.Op = reserveDone
				g.tellEnds(r, m.To)
			}
		}
		g.post(func() { g.reserved(m, at, err) })
	})
}

// reserved takes the answer of both ends. A move that has begun goes on without a source or target that does not answer: the grants only
// keep other moves away.
func (g *Group) reserved(m *move, at ring.NodeID, err error) {
	m.asking = false
	g.h.declined(at, err)
	if g.plan.move != m {
		if err == nil {
			g.spawn(func() { g.tellEnds(reservation{Op: reserveDone, Group: g.id, Swap: m.Swap}, m.From, m.To) })
		}
		return
	}
	now := time.Now()
	switch {
	case err == nil:
		if !m.granted {
			g.log.Info("move is agreed", "from", m.From.String(), "to", m.To.String(), "manual", m.manual)
			g.h.metrics.moves.WithLabelValues("begun").Inc()
		}
		m.granted, m.reason, m.renewAt = true, "", now.Add(renewEvery)
		g.plan.next = g.ticks
	case m.granted || m.manual:
		m.renewAt = now.Add(askAgain)
		m.reason = fmt.Sprintf("%s does not agree yet: %v", at, err)
	default:
		g.log.Debug("no move", "peer", at.String(), "err", err)
		g.h.metrics.moves.WithLabelValues("refused").Inc()
		g.plan.move = nil
	}
}

// carryOn hands the move over with the ownership: the next owner is told first.
func (g *Group) carryOn(m *move, s Step) {
	term, to := g.term, s.Node
	r := reservation{Op: reserveCarryOn, Group: g.id, Swap: m.Swap, Manual: m.manual}
	g.spawn(func() {
		ctx, cancel := context.WithTimeout(g.ctx, callTimeout)
		defer cancel()
		_, err := g.h.cfg.Caller.Call(ctx, to, wire.ClassControl, wire.MethodReserve, encodeReservation(r))
		g.post(func() {
			if g.term != term || g.role != raft.StateLeader || g.plan.move != m {
				return
			}
			if err != nil {
				g.log.Info("the next owner does not go on with a move", "peer", to.String(), "err", err)
				g.stepFailed()
				g.endMove("the next owner does not go on with it")
				return
			}
			m.told = true
			g.handTo(s)
		})
	})
}

// moveStatus is the move as others see it.
func (g *Group) moveStatus() *MoveStatus {
	m := g.plan.move
	if m == nil || g.role != raft.StateLeader || (!m.granted && !m.manual) {
		return nil
	}
	s := &MoveStatus{From: m.From, To: m.To, Phase: MoveReserving, Reason: m.reason}
	if !m.granted {
		return s
	}
	s.Phase = MoveCatchingUp
	if m.From == g.h.cfg.Self {
		s.Phase = MoveHandover
	}
	if len(g.st.conf.GetVotersOutgoing()) > 0 {
		s.Phase = MoveSwapping
	}
	if s.Reason == "" {
		s.Reason = g.plan.waits.Reason
	}
	return s
}
