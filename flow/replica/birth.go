package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sync/errgroup"
)

// errJournal marks failures of the journal, after which this node must not answer anyone.
var errJournal = errors.New("journal failed")

// acquire waits until nobody else creates or removes the group.
func (h *Host) acquire(ctx context.Context, id ring.GroupID) (release func(), err error) {
	select {
	case <-h.ready:
	case <-h.ctx.Done():
		return nil, closedErr("create")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		h.mu.Lock()
		if h.closed {
			h.mu.Unlock()
			return nil, closedErr("create")
		}
		wait, taken := h.busy[id]
		if !taken {
			ch := make(chan struct{})
			h.busy[id] = ch
			h.children.Add(1) // Run waits: the journal is needed to the end
			h.mu.Unlock()
			return func() {
				h.mu.Lock()
				delete(h.busy, id)
				h.mu.Unlock()
				close(ch)
				h.children.Done()
			}, nil
		}
		h.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Create brings a replica into being from its birth record; doing it again changes nothing. It returns when the birth is
// durable and the replica runs. Errors: KindInvalid, KindFenced (at or below the group's tombstone, or older than the replica
// that is here), KindConflict (another member of the same configuration is here), KindUnavailable (the files of an earlier replica cannot be
// removed), KindClosed.
func (h *Host) Create(ctx context.Context, b Birth) error {
	if err := h.checkBirth(b); err != nil {
		return err
	}
	release, err := h.acquire(ctx, b.Group)
	if err != nil {
		return err
	}
	defer release()
	if g, ok := h.Group(b.Group); ok {
		if done, err := h.meets(g, b); done {
			return err
		}
		// The record names a newer replica here and not the one we hold: that one never came to be.
		if err := h.remove(g.id); err != nil {
			return err
		}
	}
	gs, known := h.cfg.Journal.Load(b.Group)
	if known && uint64(b.Self) <= gs.Tombstone {
		return &wire.Error{Kind: wire.KindFenced, Op: "create replica",
			Detail: fmt.Sprintf("replica %d is not above %d, which was removed here", b.Self, gs.Tombstone)}
	}
	if known && gs.Birth != nil {
		return wire.Errorf(wire.KindConflict, "", "group %s has a replica here that is not running", b.Group)
	}
	if err := h.dropForeign(b); err != nil {
		return err // before the birth is recorded: this one is refused, and nothing is half there
	}
	w := log.Write{Group: b.Group, Birth: encodeBirth(b), Reset: &log.Mark{}, HardState: &log.HardState{}}
	if !b.Empty {
		w.Reset = &log.Mark{Index: BirthIndex, Term: BirthTerm}
		w.HardState = &log.HardState{Term: BirthTerm, Commit: BirthIndex}
	}
	if err := h.writeSync(w); err != nil {
		return err
	}
	gs = log.GroupState{Group: b.Group, HardState: *w.HardState, Birth: w.Birth, First: w.Reset.Index + 1, Last: w.Reset.Index,
		Compacted: *w.Reset}
	g, err := h.open(b, gs)
	if err != nil {
		if log.IsDiskFull(err) {
			h.reopenLater(b) // it is born: who asks again is told of a conflict
		} else if h.staysClosed(err) {
			h.closeForGood(b, err)
		}
		return err
	}
	if !b.Empty && (b.Members[0].ID == b.Self) {
		g.campaigns = 6
		g.campaign()
	}
	return h.start(g)
}

func (h *Host) start(g *Group) error {
	g.inbox.signal()
	h.notForGood(g.id)
	if h.register(g) {
		return nil
	}
	g.cancel()
	g.sm.Close()
	return closedErr("create")
}

// holds reports whether the replica was born here, whether it runs or not. It waits until nobody creates or removes the group, so at the start
// until the replicas are open.
func (h *Host) holds(ctx context.Context, group ring.GroupID, id ring.ReplicaID) (bool, error) {
	release, err := h.acquire(ctx, group)
	if err != nil {
		return false, err
	}
	defer release()
	gs, known := h.cfg.Journal.Load(group)
	if !known || gs.Birth == nil {
		return false, nil
	}
	b, err := birthOf(gs)
	return b.Self == id, err
}

// birthOf is the birth record that the journal has of a group.
func birthOf(gs log.GroupState) (Birth, error) {
	b, err := decodeBirth(gs.Birth)
	if err != nil {
		return Birth{}, wire.Errorf(wire.KindCorrupt, "", "group %s: birth record is damaged", gs.Group)
	}
	return b, nil
}

func (h *Host) checkBirth(b Birth) error {
	bad := func(format string, args ...any) error { return wire.Errorf(wire.KindInvalid, "", format, args...) }
	if b.Group.IsZero() || len(b.Members) == 0 || len(b.Members) > maxMembers || len(b.Spec) > maxSpec {
		return bad("birth record is incomplete or too large")
	}
	if _, ok := h.cfg.Factories[b.Kind]; !ok {
		return bad("unknown group kind %d", b.Kind)
	}
	ids := map[ring.ReplicaID]bool{}
	self, voters := false, 0
	for _, m := range b.Members {
		if m.ID == 0 || m.ID >= 1<<62 || m.Node.IsZero() || ids[m.ID] {
			return bad("birth record has a bad member")
		}
		ids[m.ID] = true
		if !m.Learner {
			voters++
		}
		self = self || (m.ID == b.Self && m.Node == h.cfg.Self)
	}
	if !self {
		return bad("replica %d of the birth record is not on this node", b.Self)
	}
	if voters == 0 {
		return bad("birth record has no voter")
	}
	return nil
}

// meets compares a birth record with the replica that is here. done is false when that replica must give way: one that never came to
// be, for its owner lost the ownership first. The next owner may have given its id to another node. One that holds state does not: the
// record may be that of an owner that was cut off before the replica became a member.
func (h *Host) meets(g *Group, b Birth) (done bool, err error) {
	have := g.birth.Self
	switch {
	case have == b.Self:
		return true, nil
	case have > b.Self:
		return true, &wire.Error{Kind: wire.KindFenced, Op: "create replica", Detail: "a newer replica of the group is here"}
	case g.applied.Load() > 0 || slices.ContainsFunc(b.Members, func(m Member) bool { return m.ID == have && m.Node == h.cfg.Self }):
		return true, wire.Errorf(wire.KindConflict, "", "replica %d of the group is on this node already", have)
	}
	return false, nil
}

// writeSync writes to the journal and waits until it is durable.
func (h *Host) writeSync(w log.Write) error { return h.writeAll([]log.Write{w}, true) }

// writeAll writes to the journal and waits until that, and all that was on its way before, is there. It gives up only when the host
// stops: what is on disk then decides at the next start.
func (h *Host) writeAll(ws []log.Write, sync bool) error {
	ch := make(chan error, 1)
	h.appender.add(ws, sync, func(err error) { ch <- err })
	select {
	case err := <-ch:
		if err != nil {
			err = fmt.Errorf("%w: %w", errJournal, err)
			h.fail(err)
		}
		return err
	case <-h.ctx.Done():
		return closedErr("write to the journal")
	}
}

// open opens a replica's state machine and core from what the journal and the store hold, repairing what a crash left.
func (h *Host) open(b Birth, gs log.GroupState) (*Group, error) {
	if err := h.dropForeign(b); err != nil {
		return nil, err
	}
	st, ok, err := loadState(h.cfg.Store, b.Group)
	if err != nil {
		return nil, err
	}
	if !ok {
		st = bornState(b)
		batch := h.cfg.Store.NewBatch()
		st.save(batch, b.Group, true)
		batch.Set(ownKey(b.Group, keyBirth), encodeBirth(b))
		if err := batch.Commit(); err != nil {
			return nil, err
		}
	}
	if gs, err = h.reconcile(gs, &st); err != nil {
		return nil, err
	}
	sm, err := h.factory(b)
	if err != nil {
		return nil, err
	}
	if err := h.completeBulk(sm, gs, st.applied.Index); err != nil {
		sm.Close()
		return nil, err
	}
	g, err := newGroup(h, b, gs, st, sm)
	if err != nil {
		sm.Close()
		return nil, err
	}
	return g, nil
}

// dropForeign removes state that an earlier replica of the group left in the store: the store may have lost the removal in a
// crash that the journal, with the newer birth, survived.
func (h *Host) dropForeign(b Birth) error {
	if foreign, err := isForeign(h.cfg.Store, b); err != nil || !foreign {
		return err
	}
	return h.finishRemoval(b.Group)
}

// isForeign reports whether what the store holds of the group is another replica's than the one born from b.
func isForeign(store log.Store, b Birth) (bool, error) {
	raw, ok, err := store.Get(ownKey(b.Group, keyBirth))
	return ok && !bytes.Equal(raw, encodeBirth(b)), err
}

// reconcile brings journal and store together after a crash. The store may lag (entries are applied again); it may be ahead
// only when a snapshot was installed and the journal did not learn of it, and then the journal follows.
func (h *Host) reconcile(gs log.GroupState, st *state) (log.GroupState, error) {
	a := st.applied
	if a.Index < gs.Compacted.Index {
		return gs, wire.Errorf(wire.KindCorrupt, "", "group %s: state is at %d, but the journal begins after %d",
			gs.Group, a.Index, gs.Compacted.Index)
	}
	if a.Index == 0 {
		return gs, nil
	}
	if a.Index <= gs.Last || a.Index == gs.Compacted.Index {
		term, err := h.cfg.Journal.Term(gs.Group, a.Index)
		if err != nil && a.Index == gs.Compacted.Index {
			term, err = gs.Compacted.Term, nil
		}
		if err != nil {
			return gs, err
		}
		if term == a.Term {
			return gs, nil
		}
	}
	hs := gs.HardState
	if hs.Term < a.Term {
		hs.Term, hs.Vote = a.Term, 0
	}
	hs.Commit = max(hs.Commit, a.Index)
	if hs.Commit > a.Index {
		hs.Commit = a.Index
	}
	if err := h.writeSync(log.Write{Group: gs.Group, Reset: &a, HardState: &hs}); err != nil {
		return gs, err
	}
	h.log.Info("completed the installation of a snapshot", "group", gs.Group.String(), "index", a.Index)
	gs.HardState, gs.Compacted, gs.First, gs.Last = hs, a, a.Index+1, a.Index
	return gs, nil
}

// completeBulk gives the state machine entries whose bulk data a crash took.
func (h *Host) completeBulk(sm StateMachine, gs log.GroupState, applied uint64) error {
	have := sm.BulkIndex()
	if have >= applied {
		return nil
	}
	for from := max(have+1, gs.First); from <= applied; {
		es, err := h.cfg.Journal.Entries(gs.Group, from, applied+1, uint64(h.cfg.MaxApplyBytes))
		if err != nil {
			return fmt.Errorf("group %s: complete bulk data from %d: %w", gs.Group, from, err)
		}
		for _, e := range es {
			if pb.EntryType(e.Type) == pb.EntryNormal && len(e.Data) > 0 {
				if err := sm.Complete(e); err != nil {
					return fmt.Errorf("group %s: complete entry %d: %w", gs.Group, e.Index, err)
				}
			}
		}
		from = es[len(es)-1].Index + 1
	}
	return nil
}

// recoverAtOnce is how many replicas are opened at a time at the start: opening waits for the disk more than it works.
const recoverAtOnce = 16

// recover opens every replica that the journal knows and finishes what was being removed.
func (h *Host) recover(ctx context.Context) error {
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(recoverAtOnce)
	for _, gs := range h.cfg.Journal.Groups() {
		work.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return h.recoverOne(gs)
		})
	}
	return work.Wait()
}

func (h *Host) recoverOne(gs log.GroupState) error {
	if gs.Birth == nil {
		return h.finishOrLeave(gs.Group)
	}
	b, err := birthOf(gs)
	if err != nil {
		return err
	}
	g, err := h.open(b, gs)
	if wire.KindOf(err) == wire.KindCorrupt {
		// One damaged replica must not keep the others down; nothing of it is deleted.
		h.cfg.Journal.Release(gs.Group, gs.Last) // it would hold the files of all groups
		h.closeForGood(b, err)
		return nil
	}
	if errors.Is(err, errLeft) {
		h.closeForGood(b, err) // it has nothing yet, and nor must what an earlier one left keep the others down
		return nil
	}
	if err != nil {
		return err
	}
	g.wakeUp()
	return h.start(g)
}

// wakeUp decides who asks for ownership first after a restart: the only voter at once, the last owner early, others after
// their randomised timeout.
func (g *Group) wakeUp() {
	voters := g.st.conf.GetVoters()
	self := uint64(g.birth.Self)
	if len(voters) == 1 && voters[0] == self && len(g.st.conf.GetVotersOutgoing()) == 0 {
		g.campaign()
		return
	}
	if g.hard.Vote == self && slices.Contains(voters, self) {
		g.campaigns = 2
	}
}

// Remove destroys the replica of a group on this node and makes sure that it never comes back: no replica id up to its own
// is born here again. Files that the disk does not let go of are left for later, with a word in the log. Doing it again changes nothing.
func (h *Host) Remove(ctx context.Context, id ring.GroupID) error {
	release, err := h.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	return h.remove(id)
}

func (h *Host) remove(id ring.GroupID) error {
	gs, known := h.cfg.Journal.Load(id)
	if !known || gs.Birth == nil {
		return nil
	}
	b, err := birthOf(gs)
	if err != nil {
		return err
	}
	if g, ok := h.Group(id); ok {
		g.close()
		<-g.done
		h.unregister(g)
	}
	if err := h.writeSync(log.Write{Group: id, Tombstone: uint64(b.Self)}); err != nil {
		return err
	}
	return h.finishOrLeave(id)
}

// errLeft marks that the files of a removed replica are there still. They harm nobody until the group gets a replica here again.
var errLeft = errors.New("files of a removed replica cannot be removed or set aside")

// finishOrLeave is finishRemoval, but for files that cannot be removed: they are left until the next start, or until a replica of the
// group is to be created here, whichever is first.
func (h *Host) finishOrLeave(id ring.GroupID) error {
	err := h.finishRemoval(id)
	if !errors.Is(err, errLeft) {
		return err
	}
	h.log.Error("files of a removed replica are left: tried again at the next start, and before this node takes a replica of the group again",
		"group", id.String(), "err", err)
	return nil
}

// finishRemoval removes what the store and the state machine still hold of a removed group. The birth record in the store
// goes last, with all else, so that a crash before is finished at the next start.
func (h *Host) finishRemoval(id ring.GroupID) error {
	raw, ok, err := h.cfg.Store.Get(ownKey(id, keyBirth))
	if err != nil {
		return err
	}
	if !ok {
		h.notForGood(id)
		return nil
	}
	b, err := decodeBirth(raw)
	if err != nil {
		return wire.Errorf(wire.KindCorrupt, "", "group %s: birth record in the store is damaged", id)
	}
	batch := h.cfg.Store.NewBatch()
	why := h.whyClosed(b)
	var sm StateMachine
	if why == nil {
		sm, why = h.factory(b)
	}
	if why != nil {
		// Half of it may be gone since an earlier attempt; what the state machine cannot open it cannot remove either.
		h.logOf(b).Warn("removed replica was closed for good, or cannot be opened: its files are set aside", "err", why)
		err = h.setAside(b)
	} else {
		err = sm.Destroy(batch)
	}
	if err != nil {
		return &wire.Error{Kind: wire.KindUnavailable, Op: "remove group " + id.String(), Detail: "mend the disk, or the access to it", Err: fmt.Errorf("%w: %w", errLeft, err)}
	}
	dropKeys(batch, id)
	if err := batch.Commit(); err != nil {
		return err
	}
	h.notForGood(id)
	return nil
}
