package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"go.etcd.io/raft/v3"
)

// A replica whose bulk data is damaged votes and takes entries: its journal is sound. It neither leads nor applies nor serves until it has
// the damaged bytes from another replica. Damage that is found while it runs stops it, once it has handed its ownership over, and it is
// opened again as a damaged one.

// Mender is a StateMachine that can be open although its bulk data is damaged, and get that from other replicas.
type Mender interface {
	// Damage is why the bulk data cannot be used; nil: it is sound. Called while neither Mend nor Fetch runs.
	Damage() error
	// OnDamage has fn called when damage is found later, from any goroutine; fn does not block. Called before all else.
	OnDamage(fn func(error))
	// Condemn has the next open find the bulk data damaged. Called from the group's goroutine.
	Condemn(why error) error
	// Mend gathers the bulk data again; open asks one other replica, for what have describes. It runs in a goroutine of its own, while
	// nothing is applied or fetched. What it got before an error stays for the next time.
	Mend(ctx context.Context, open func(ctx context.Context, have []byte) (wire.Stream, error)) error
	// Mended takes what Mend gathered into use, and adds what goes with it to b. Called from the group's goroutine.
	Mended(b log.Batch) error
}

// errDamaged is what a replica stops with when its bulk data was found damaged.
var errDamaged = errors.New("bulk data is damaged")

// mend is what a damaged replica knows of its mending. The group's goroutine owns it.
type mend struct {
	why     error  // nil: it is sound
	running bool   // a goroutine gathers
	after   uint64 // tick before which it does not try again
	tries   uint64
	told    uint64 // tick at which the owner was told
	alone   bool   // that nobody can help was said
	// doom is damage that was met while running, and by when the replica stops for it.
	doom   error
	doomAt uint64
}

// noteDamage takes a state machine that was opened damaged.
func (g *Group) noteDamage() {
	m, ok := g.sm.(Mender)
	if !ok {
		return
	}
	m.OnDamage(func(err error) { g.post(func() { g.foundDamage(err) }) })
	if err := m.Damage(); err != nil {
		g.mend.why = err
		g.campaigns = 0
		g.unsteady.Store(true) // nothing to make durable
		g.h.metrics.damaged.Inc()
		g.log.Error("replica is damaged: it votes, and neither leads nor serves until it has the bytes from another one", "err", err)
	}
}

// foundDamage starts the end of a replica whose bulk data was read wrong. The only member goes on with what is sound: nobody could help.
func (g *Group) foundDamage(err error) {
	if g.mend.why != nil || g.mend.doom != nil {
		return
	}
	if len(g.others()) == 0 {
		g.log.Error("bytes on disk are damaged, and this replica is the only one: what they held is lost", "err", err)
		return
	}
	g.log.Error("bytes on disk are damaged; the replica stops serving until it has them from another one", "err", err)
	if cerr := g.sm.(Mender).Condemn(err); cerr != nil {
		g.log.Warn("the damage could not be noted", "err", cerr)
	}
	g.mend.doom, g.mend.doomAt = err, g.ticks+2*uint64(g.h.cfg.ElectionTicks)
	if to, ok := g.successor(); ok {
		g.rn.TransferLeader(uint64(to))
	}
	g.endDoomed()
}

// endDoomed stops a replica that was found damaged, once it owns nothing or nobody took over in time.
func (g *Group) endDoomed() {
	if m := &g.mend; m.doom != nil && (g.rn.BasicStatus().RaftState != raft.StateLeader || g.ticks >= m.doomAt) {
		g.inbox.fail(fmt.Errorf("%w: %w", errDamaged, m.doom))
	}
}

// others are the other members.
func (g *Group) others() []Member {
	return slices.DeleteFunc(g.st.members(), func(m Member) bool { return m.ID == g.birth.Self })
}

// successor is the voter that is best fit to take over, if this replica is owner.
func (g *Group) successor() (best ring.ReplicaID, ok bool) {
	if g.rn.BasicStatus().RaftState != raft.StateLeader {
		return 0, false
	}
	g.loadProgress()
	var match uint64
	for _, p := range g.progress {
		if p.id != g.birth.Self && !p.learner && p.replicating && g.active(p.id) && !g.unfit(p.id) && (!ok || p.match > match) {
			best, match, ok = p.id, p.match, true
		}
	}
	return best, ok
}

// tickDamaged is a damaged replica's tick. Raft's own would make it stand for election. What else that does for a follower is done here:
// to forget an owner that is silent, so that it may vote for another.
func (g *Group) tickDamaged() {
	if g.ticks%32 == 0 {
		g.store.refresh()
	}
	bs := g.rn.BasicStatus()
	owner := ring.ReplicaID(bs.Lead)
	if bs.Lead != raft.None && !g.active(owner) {
		if err := g.rn.ForgetLeader(); err != nil {
			g.log.Debug("the owner is not forgotten", "err", err)
		}
	}
	g.evict()
	if node, ok := g.nodeOf(bs.Lead); ok && g.ticks >= g.mend.told {
		g.mend.told = g.ticks + unfitTicks/3
		g.tellUnfit(node)
	}
	if !g.mend.running && g.ticks >= g.mend.after && g.fetch == nil && !g.installing {
		g.startMend()
	}
}

// startMend asks the other members for the damaged bytes, one after the other, the owner first. A damaged replica applies no change of
// members, so that those it knows of may all be gone: whoever speaks to it as one that came since is asked, too.
func (g *Group) startMend() {
	m := &g.mend
	others := g.others()
	for _, id := range slices.Sorted(maps.Keys(g.strangers)) {
		others = append(others, Member{ID: id, Node: g.strangers[id]})
	}
	if len(others) == 0 {
		m.after = g.ticks + 1<<10
		if !m.alone {
			m.alone = true
			g.h.cfg.Journal.Release(g.id, g.st.applied.Index) // nothing else would let go of it
			g.log.Error("replica is damaged and the only one: it stays closed; what the damaged files held has to come from a backup",
				"err", m.why)
		}
		return
	}
	lead := ring.ReplicaID(g.rn.BasicStatus().Lead)
	if i := slices.IndexFunc(others, func(o Member) bool { return o.ID == lead }); i > 0 {
		others[0], others[i] = others[i], others[0]
	}
	m.running = true
	m.tries++
	sm := g.sm.(Mender)
	g.spawn(func() {
		var err error
		for _, from := range others {
			if err = g.mendFrom(sm, from); err == nil || g.ctx.Err() != nil {
				break
			}
			err = fmt.Errorf("from node %s: %w", from.Node, err)
			g.log.Warn("the damaged bytes did not come", "peer", from.Node.String(), "err", err)
		}
		g.post(func() { g.endMend(err) })
	})
}

func (g *Group) mendFrom(sm Mender, from Member) error {
	return sm.Mend(g.ctx, func(ctx context.Context, have []byte) (wire.Stream, error) {
		hello := snapshotHello{group: g.id, from: from.ID, to: g.birth.Self, have: have}
		s, _, err := g.openSnapshot(ctx, from.Node, hello)
		return s, err
	})
}

// endMend goes on as a sound replica, or tries again later.
func (g *Group) endMend(err error) {
	m := &g.mend
	m.running = false
	if err == nil {
		b := g.h.cfg.Store.NewBatch()
		if err = g.sm.(Mender).Mended(b); err == nil {
			if err := b.Commit(); err != nil {
				g.inbox.fail(fmt.Errorf("store: %w", err))
				return
			}
			g.mended()
			return
		}
	}
	m.after = g.ticks + 5<<min(m.tries, 6) + g.h.jitter(5)
	g.h.metrics.snapshots.WithLabelValues("mend-failed").Inc()
}

// mended ends the time as a damaged replica.
func (g *Group) mended() {
	g.mend = mend{}
	g.unsteady.Store(false)
	g.unsynced.Store(true)
	g.h.metrics.damaged.Dec()
	g.h.metrics.snapshots.WithLabelValues("mended").Inc()
	g.log.Info("replica is mended: it has the damaged bytes from another one, and what was damaged is set aside")
	g.wakeUp()
	g.publish()
}

// reopenDamaged brings a replica back that stopped because it was found damaged.
func (h *Host) reopenDamaged(b Birth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.children.Go(func() {
		if log.IsDiskFull(h.reopen(b)) {
			h.reopenLater(b)
		}
	})
}

// unfitTicks is how long an owner believes what it was told of a damaged replica.
const unfitTicks = 60

// unfit reports whether a replica said lately that it cannot lead.
func (g *Group) unfit(id ring.ReplicaID) bool {
	until, ok := g.unfitUntil[id]
	if ok && g.ticks >= until {
		delete(g.unfitUntil, id)
		return false
	}
	return ok
}

// tellUnfit tells the owner that this replica cannot lead, so that it is not given the ownership.
func (g *Group) tellUnfit(owner ring.NodeID) {
	body := encodeUnfit(g.id, g.birth.Self)
	g.spawn(func() {
		ctx, cancel := context.WithTimeout(g.ctx, 2*time.Second)
		defer cancel()
		if _, err := g.h.cfg.Caller.Call(ctx, owner, wire.ClassControl, wire.MethodUnfit, body); err != nil {
			g.log.Debug("the owner was not told of the damage", "peer", owner.String(), "err", err)
		}
	})
}

func encodeUnfit(group ring.GroupID, id ring.ReplicaID) []byte {
	b := append([]byte{1}, group[:]...)
	return binary.AppendUvarint(b, uint64(id))
}

func decodeUnfit(raw []byte) (group ring.GroupID, id ring.ReplicaID, err error) {
	d := decoder{b: raw}
	if d.byte() != 1 {
		return group, id, errMalformed
	}
	group, id = d.group(), ring.ReplicaID(d.uvarint())
	return group, id, d.done()
}

// HandleUnfit answers a MethodUnfit request: a replica tells its owner that it is damaged and cannot lead for a while.
func (h *Host) HandleUnfit(_ context.Context, from ring.NodeID, body []byte) ([]byte, error) {
	group, id, err := decodeUnfit(body)
	if err != nil {
		return nil, wire.Errorf(wire.KindInvalid, "", "malformed message of a damaged replica")
	}
	g, ok := h.Group(group)
	if !ok || !g.post(func() {
		if node, ok := g.st.nodes[id]; ok && node == from {
			g.unfitUntil[id] = g.ticks + unfitTicks
		}
	}) {
		return nil, wire.Errorf(wire.KindNotFound, "", "no replica of group %s here", group)
	}
	return nil, nil
}
