package replica

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"golang.org/x/sync/errgroup"
)

// removalOp is what a MethodRemoval request is about. The numbers travel between nodes: append only.
type removalOp uint8

const (
	removalTold  removalOp = 1 // the replica on this node was removed from its group
	removalAsked removalOp = 2 // is the replica of the asking node still a member?
	// removalClosed asks the same, of a replica that is closed for good there. Since wire.Version2; others call it invalid.
	removalClosed removalOp = 3
)

// fate is the answer to removalAsked. The numbers travel between nodes: append only.
type fate uint8

const (
	fateUnknown fate = 0 // this node cannot tell
	fateMember  fate = 1 // as far as this node has applied
	fateRemoved fate = 2 // for good: replica ids never come back
	fateNever   fate = 3 // never a member, and nobody is about to make it one: the owner that wanted it is no more
)

// removal is the body of a MethodRemoval request.
type removal struct {
	Op      removalOp
	Group   ring.GroupID
	Replica ring.ReplicaID
}

const removalVersion = 1

func encodeRemoval(r removal) []byte {
	out := append(make([]byte, 0, 32), removalVersion, byte(r.Op))
	out = append(out, r.Group[:]...)
	return binary.AppendUvarint(out, uint64(r.Replica))
}

func decodeRemoval(raw []byte) (removal, error) {
	d := decoder{b: raw}
	if d.byte() != removalVersion {
		return removal{}, errMalformed
	}
	r := removal{Op: removalOp(d.byte()), Group: d.group(), Replica: ring.ReplicaID(d.uvarint())}
	return r, d.done()
}

// HandleRemoval answers a MethodRemoval request. What it acts on and answers is always a quorum's word: a configuration that was applied,
// so committed, without the replica. Since an id is never given out twice, that it is gone can never become untrue.
func (h *Host) HandleRemoval(ctx context.Context, from ring.NodeID, body []byte) ([]byte, error) {
	r, err := decodeRemoval(body)
	if err != nil || r.Group.IsZero() || r.Replica == 0 {
		return nil, wire.Errorf(wire.KindInvalid, "", "malformed removal")
	}
	switch {
	case r.Op == removalTold:
		return nil, h.removeReplica(ctx, r.Group, r.Replica, from)
	case r.Op == removalAsked, r.Op == removalClosed && tellsClosed:
		g, ok := h.Group(r.Group)
		if !ok {
			return []byte{byte(fateUnknown)}, nil
		}
		f := g.tellFate(ctx, r.Replica, from)
		if r.Op == removalClosed && f == fateMember && g.status.Load().Ready {
			g.post(func() { g.hearClosed(r.Replica) })
		}
		return []byte{byte(f)}, nil
	}
	return nil, wire.Errorf(wire.KindInvalid, "", "unknown kind of removal %d", r.Op)
}

// tellFate is fateOf, and of a replica that no configuration has named yet the owner's word: once a quorum has confirmed it, it has applied
// whatever an earlier owner left in the log, and knows itself what it is about.
func (g *Group) tellFate(ctx context.Context, id ring.ReplicaID, node ring.NodeID) fate {
	f := g.fateOf(id, node)
	if s := g.status.Load(); f != fateUnknown || !s.Ready || g.ReadIndex(ctx) != nil {
		return f
	}
	if err := g.ask(ctx, "fate", func() error {
		p := &g.plan
		// An id that was tried and is not in the log came to nothing once no step is under way: it is not given out again.
		gaveUp := !p.pending && g.st.applied.Index >= p.confIndex
		if f = g.fateOf(id, node); f == fateUnknown && g.isReady && id > g.st.lastID && (id > p.tried || gaveUp) {
			f = fateNever
		}
		return nil
	}); err != nil {
		return fateUnknown
	}
	return f
}

// fateOf says what became of a replica, as far as it is applied here.
func (g *Group) fateOf(id ring.ReplicaID, node ring.NodeID) fate {
	s := g.status.Load()
	switch {
	case g.applied.Load() == 0:
		return fateUnknown // nothing is known yet but the record of birth
	case slices.ContainsFunc(s.Members, func(m Member) bool { return m.ID == id && m.Node == node }):
		return fateMember
	case id <= s.lastID:
		return fateRemoved
	}
	return fateUnknown
}

// removeReplica removes a replica that is a member no longer, and no other: a newer one may have been born here.
func (h *Host) removeReplica(ctx context.Context, group ring.GroupID, id ring.ReplicaID, by ring.NodeID) error {
	release, err := h.acquire(ctx, group)
	if err != nil {
		return err
	}
	defer release()
	gs, known := h.cfg.Journal.Load(group)
	if !known || gs.Birth == nil {
		return nil
	}
	b, err := birthOf(gs)
	if err != nil {
		return err
	}
	if b.Self != id {
		return nil
	}
	if err := h.remove(group); err != nil {
		return err
	}
	h.movesMu.Lock()
	h.grants.removed(group)
	h.movesMu.Unlock()
	h.metrics.removed.Inc()
	h.log.Info("replica was removed from its group, and from this node", "group", group.String(), "replica", uint64(id), "peer", by.String())
	return nil
}

// maxGone bounds the removed replicas that are still to be told: the last ones, for the first may be on nodes that never come back. Those
// beyond it, and all after a restart, ask by themselves.
const maxGone = 64

// noteGone remembers the replicas that a change took out of the configuration.
func (g *Group) noteGone(before map[ring.ReplicaID]ring.NodeID) {
	for id, node := range before {
		if _, in := g.st.nodes[id]; !in && id != g.birth.Self {
			g.plan.gone = append(g.plan.gone, Member{ID: id, Node: node})
		}
	}
	g.plan.gone = slices.Delete(g.plan.gone, 0, max(0, len(g.plan.gone)-maxGone))
}

// forgetAbsent drops what was noted of replicas that the configuration names no more, or never will: ids are not used again, so that a
// group whose members come and go would keep a note of each that ever was.
func (g *Group) forgetAbsent() {
	maps.DeleteFunc(g.strangers, func(id ring.ReplicaID, _ ring.NodeID) bool { return id <= g.st.lastID })
	for _, notes := range []map[ring.ReplicaID]uint64{g.heard, g.unfitUntil, g.plan.refused, g.plan.born} {
		maps.DeleteFunc(notes, func(id ring.ReplicaID, _ uint64) bool { return g.absent(id) })
	}
	maps.DeleteFunc(g.snapIdle, func(id, _ uint64) bool { return g.absent(ring.ReplicaID(id)) })
	g.plan.dead = slices.DeleteFunc(g.plan.dead, g.absent)
}

func (g *Group) absent(id ring.ReplicaID) bool {
	_, known := g.nodeOf(uint64(id))
	return !known
}

// tellGone tells removed replicas' nodes, until each has answered. Only the owner does.
func (g *Group) tellGone() {
	p := &g.plan
	if p.telling || len(p.gone) == 0 || g.ticks < p.tellNext {
		return
	}
	todo := slices.Clone(p.gone)
	todo = slices.DeleteFunc(todo, func(m Member) bool { return !g.h.cfg.Placement.Alive(m.Node) && m.Node != g.h.cfg.Self })
	p.tellNext = g.ticks + 4*p.every + g.h.jitter(4*p.every)
	if len(todo) == 0 {
		return
	}
	p.telling = true
	g.spawn(func() {
		var told []Member
		for _, m := range todo {
			ctx, cancel := context.WithTimeout(g.ctx, callTimeout)
			_, err := g.h.cfg.Caller.Call(ctx, m.Node, wire.ClassControl, wire.MethodRemoval,
				encodeRemoval(removal{Op: removalTold, Group: g.id, Replica: m.ID}))
			cancel()
			if err != nil {
				g.log.Debug("a node was not told that its replica was removed", "peer", m.Node.String(), "err", err)
				continue
			}
			told = append(told, m)
		}
		g.post(func() {
			p.telling = false
			p.gone = slices.DeleteFunc(p.gone, func(m Member) bool { return slices.Contains(told, m) })
		})
	})
}

// unheardTicks is how long a learner may be silent, on a node that is alive, before the owner asks whether it is there at all.
const unheardTicks = 200

// probeLearners has the nodes of silent learners create them again, which changes nothing where they are. One that was removed there is
// refused for ever: its node took the word of an owner that did not know of it. Nor is one made again where nothing new is taken; that alone
// does not say that it is gone: its node must have looked.
func (g *Group) probeLearners() {
	p := &g.plan
	for _, m := range g.st.members() {
		if !m.Learner || g.active(m.ID) || g.ticks < p.born[m.ID]+unheardTicks || !g.h.cfg.Placement.Alive(m.Node) {
			continue
		}
		if p.born == nil {
			p.born = map[ring.ReplicaID]uint64{}
		}
		if _, noted := p.born[m.ID]; !noted {
			p.born[m.ID] = g.ticks
			continue
		}
		p.born[m.ID] = g.ticks
		b := Birth{Group: g.id, Kind: g.birth.Kind, Spec: g.birth.Spec, Members: g.st.members(), Self: m.ID, Empty: true}
		g.spawn(func() {
			ctx, cancel := context.WithTimeout(g.ctx, callTimeout)
			defer cancel()
			_, err := g.h.cfg.Caller.Call(ctx, m.Node, wire.ClassControl, wire.MethodBirth, encodeBirth(b))
			declined, kind := g.h.declined(m.Node, err), wire.KindOf(err)
			if kind == wire.KindFenced || (declined && kind == wire.KindNotFound) {
				g.log.Info("a learner is on its node no more, and cannot be made there again; it is replaced", "peer", m.Node.String(), "learner", uint64(m.ID))
				g.post(func() {
					if !slices.Contains(p.dead, m.ID) {
						p.dead = append(p.dead, m.ID)
					}
				})
			}
		})
	}
}

// asking is what the host remembers of a replica that hears of no owner.
type asking struct {
	next time.Time
	wait time.Duration
}

const (
	lonelyLook  = time.Second // between looks
	closedLooks = 10          // looks between those at replicas that do not run
	askAtOnce   = 8
	maxAskWait  = time.Minute
)

// askFates looks for replicas here that hear of no owner, and asks the other members whether they are members still. One whose group has
// no quorum asks in vain, less and less often. Replicas that do not run hear of nobody.
func (h *Host) askFates(ctx context.Context) {
	t := time.NewTicker(lonelyLook)
	defer t.Stop()
	memory := map[ring.GroupID]asking{}
	for looks := 1; ; looks++ {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-h.closedNow:
			looks = 0
		}
		now := time.Now()
		known := make(map[ring.GroupID]asking, len(memory))
		var work errgroup.Group
		work.SetLimit(askAtOnce)
		for _, g := range h.Groups() {
			if !g.lonely(now) {
				continue
			}
			a := memory[g.id]
			if !now.Before(a.next) {
				a.wait = min(max(2*a.wait, h.cfg.AskAfter), maxAskWait)
				a.next = now.Add(a.wait/2 + time.Duration(h.jitter(uint64(a.wait/2))))
				work.Go(func() error { h.askFate(ctx, g); return nil })
			}
			known[g.id] = a
		}
		if looks%closedLooks == 0 {
			for _, c := range h.Closed() {
				work.Go(func() error { h.askClosedFate(ctx, c); return nil })
			}
		}
		_ = work.Wait() // the functions return no error
		memory = known
	}
}

// lonely is true of a replica that has heard of no owner for a while. A learner never looks for one by itself, so silence is enough.
func (g *Group) lonely(now time.Time) bool {
	s := g.Status()
	if s.Role == RoleOwner || g.resting.Load() != nil || (!s.Owner.IsZero() && s.Role != RoleLearner) {
		return false
	}
	seen := g.opened
	if s.OwnerSeen.After(seen) {
		seen = s.OwnerSeen
	}
	return now.Sub(seen) >= g.h.cfg.AskAfter
}

func (h *Host) askFate(ctx context.Context, g *Group) {
	h.askFateOf(ctx, removalAsked, g.birth, g.Status().Members, func() bool { return g.applied.Load() == 0 })
}

// askFateOf asks one after the other of those that may know until one says that the replica was removed; or that it never was one of its
// group, which counts where it has nothing.
func (h *Host) askFateOf(ctx context.Context, op removalOp, b Birth, members []Member, empty func() bool) {
	var whom []ring.NodeID
	add := func(n ring.NodeID) {
		if !n.IsZero() && n != h.cfg.Self && !slices.Contains(whom, n) && h.cfg.Placement.Alive(n) {
			whom = append(whom, n)
		}
	}
	if h.cfg.OwnerHint != nil {
		add(h.cfg.OwnerHint(b.Group))
	}
	for _, m := range slices.Concat(members, b.Members) {
		add(m.Node)
	}
	for _, n := range whom {
		f := h.fateBy(ctx, n, removal{Op: op, Group: b.Group, Replica: b.Self})
		if f != fateRemoved && (f != fateNever || !empty()) {
			continue
		}
		if err := h.removeReplica(ctx, b.Group, b.Self, n); err != nil {
			h.logOf(b).Warn("a removed replica cannot be removed here yet", "err", err)
		}
		return
	}
}

// fateBy is what one node says of a replica here. One of a version that knows no closed replicas is asked as it always was.
func (h *Host) fateBy(ctx context.Context, n ring.NodeID, r removal) fate {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	raw, err := h.cfg.Caller.Call(ctx, n, wire.ClassControl, wire.MethodRemoval, encodeRemoval(r))
	if r.Op == removalClosed && wire.KindOf(err) == wire.KindInvalid {
		r.Op = removalAsked
		raw, err = h.cfg.Caller.Call(ctx, n, wire.ClassControl, wire.MethodRemoval, encodeRemoval(r))
	}
	if err != nil || len(raw) != 1 {
		return fateUnknown
	}
	return fate(raw[0])
}
