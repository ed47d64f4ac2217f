package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A snapshot travels apart from raft's messages. The owner's MsgSnap only announces it. The receiver then opens a
// MethodSnapshot stream, the sender captures the state at its applied index J (at or above the announced index), and the
// receiver stages what it reads. Only then does the receiver's raft see a MsgSnap, rewritten to J.
//
// Installing is crash-safe by order: (1) bulk data in place and synced; (2) state at J to the store, one batch, flushed;
// (3) journal reset to J, synced; (4) raft is told. A crash before (2) leaves the old replica with bulk data ahead of its
// state, as after any crash; between (2) and (3) the store is ahead of the journal, which recovery sees and completes by
// resetting the journal to the store's applied mark. The batch is not committed before the bulk data is durable, because the
// store may flush by itself, and no journal entry could make up for lost bulk data below J.

// fetch is one snapshot being read.
type fetch struct {
	announced uint64
	meta      state
	staged    any
}

type snapshotHello struct {
	group    ring.GroupID
	from, to ring.ReplicaID // sender, receiver
	least    uint64         // the index must be this at least
	have     []byte
}

func (s snapshotHello) encode() []byte {
	b := append([]byte{1}, s.group[:]...)
	for _, v := range [...]uint64{uint64(s.from), uint64(s.to), s.least} {
		b = binary.AppendUvarint(b, v)
	}
	return appendBytes(b, s.have)
}

func decodeSnapshotHello(raw []byte) (s snapshotHello, err error) {
	d := decoder{b: raw}
	if d.byte() != 1 {
		return s, errMalformed
	}
	s = snapshotHello{group: d.group(), from: ring.ReplicaID(d.uvarint()), to: ring.ReplicaID(d.uvarint()), least: d.uvarint()}
	s.have = d.bytes(maxSpec)
	return s, d.done()
}

func (st *state) encodeMeta() []byte {
	b := appendBytes([]byte{1}, encodeApplied(st.applied))
	return appendBytes(b, st.encodeConf())
}

func decodeMeta(raw []byte) (st state, err error) {
	d := decoder{b: raw}
	if d.byte() != 1 {
		return st, errMalformed
	}
	mark := decoder{b: d.bytes(32)}
	st.applied = log.Mark{Index: mark.uvarint(), Term: mark.uvarint()}
	conf := d.bytes(64 << 10)
	if err := d.done(); err != nil {
		return st, err
	}
	if err := mark.done(); err != nil {
		return st, err
	}
	return st, st.decodeConf(conf)
}

// startFetch answers an owner's announcement by reading the snapshot from it.
func (g *Group) startFetch(from ring.NodeID, m *pb.Message) {
	bs := g.rn.BasicStatus()
	index := m.GetSnapshot().GetMetadata().GetIndex()
	switch {
	case g.fetch != nil || g.installing || g.mend.running || g.ticks < g.fetchAfter:
		g.h.metrics.dropped.WithLabelValues("fetching").Inc()
		return
	case m.GetTerm() < bs.GetTerm() || index <= bs.GetCommit():
		g.stepCore(m) // raft answers with what we have; the place is ours already, so nothing is installed
		return
	}
	select {
	case g.h.snapRooms <- struct{}{}:
	default: // it is announced again
		g.h.metrics.dropped.WithLabelValues("fetching").Inc()
		return
	}
	f := &fetch{announced: index}
	g.fetch = f
	g.unsteady.Store(true)
	sources := append([]Member{{ID: ring.ReplicaID(m.GetFrom()), Node: from}},
		slices.DeleteFunc(g.others(), func(o Member) bool { return o.Node == from || o.Learner })...)
	g.log.Info("fetching a snapshot", "peer", from.String(), "index", index)
	g.spawn(func() {
		err := g.fetchFrom(sources, f)
		<-g.h.snapRooms
		g.post(func() { g.endFetch(m, f, err) }) // else stop discards it
	})
}

// fetchFrom reads a snapshot from the first of the replicas that has it. Each goes on where the one before broke off. Not the group's
// goroutine.
func (g *Group) fetchFrom(sources []Member, f *fetch) (err error) {
	for i, from := range sources {
		if err = g.runFetch(from, f); err == nil || g.ctx.Err() != nil {
			return err
		}
		if i+1 < len(sources) {
			g.log.Warn("fetching a snapshot goes on with another replica", "peer", from.Node.String(), "err", err)
		}
	}
	return err
}

// openSnapshot opens a stream of a replica's state, and reads of which entry it is. Who took all of it acknowledges.
func (g *Group) openSnapshot(ctx context.Context, from ring.NodeID, hello snapshotHello) (s wire.Stream, meta state, err error) {
	s, err = g.h.cfg.Caller.Open(ctx, from, wire.ClassBulk, wire.MethodSnapshot, hello.encode())
	if err != nil {
		return nil, meta, err
	}
	first, err := s.Recv(ctx)
	if err == nil {
		meta, err = decodeMeta(first)
	}
	if err != nil {
		err = fmt.Errorf("snapshot head: %w", err)
		return nil, meta, errors.Join(err, s.Close(err))
	}
	return paced{s, g.h}, meta, nil
}

// runFetch reads and stages a snapshot of one replica: bulk data alone while there is much of it, then the state with what came meanwhile.
func (g *Group) runFetch(from Member, f *fetch) error {
	for f.staged == nil {
		if err := g.fetchRound(from, f); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) fetchRound(from Member, f *fetch) (err error) {
	hello := snapshotHello{group: g.id, from: from.ID, to: g.birth.Self, least: f.announced, have: g.sm.BulkHave()}
	s, meta, err := g.openSnapshot(g.ctx, from.Node, hello)
	if err != nil {
		return err
	}
	defer func() { s.Close(err) }()
	if meta.applied.Index < hello.least {
		return wire.Errorf(wire.KindInvalid, "", "snapshot at %d is older than the announced %d", meta.applied.Index, hello.least)
	}
	staged, err := g.sm.Fetch(g.ctx, s)
	if err != nil {
		return err
	}
	// The sender waits for this frame: it tells raft that the snapshot arrived.
	if err := s.Send(g.ctx, []byte{1}); err != nil {
		discard(staged)
		return err
	}
	f.meta, f.staged = meta, staged
	return s.CloseSend()
}

func discard(staged any) {
	if c, ok := staged.(io.Closer); ok {
		c.Close()
	}
}

// endFetch hands a fetched snapshot to raft, which decides whether it is still news.
func (g *Group) endFetch(m *pb.Message, f *fetch, err error) {
	bs := g.rn.BasicStatus()
	lead := bs.Lead
	if bs.GetTerm() == m.GetTerm() || (m.GetTerm() > bs.GetTerm()) {
		lead = m.GetFrom()
	}
	if err == nil && lead == raft.None {
		err = noQuorum("fetch snapshot", "no owner is known any more")
	}
	if err != nil {
		g.h.metrics.snapshots.WithLabelValues("fetch-failed").Inc()
		g.fetchFails = min(g.fetchFails+1, 6)
		g.fetchAfter = g.ticks + 1<<g.fetchFails
		g.log.Warn("fetching a snapshot failed", "err", err)
		discard(f.staged)
		g.endUnsteady()
		return
	}
	g.fetchFails = 0
	md := &pb.SnapshotMetadata{Index: new(f.meta.applied.Index), Term: new(f.meta.applied.Term), ConfState: f.meta.conf}
	snap := &pb.Message{Type: pb.MsgSnap.Enum(), From: new(lead), To: new(uint64(g.birth.Self)),
		Term: new(max(m.GetTerm(), bs.GetTerm())), Snapshot: &pb.Snapshot{Metadata: md}}
	g.stepCore(snap)
	g.drainReady()
	if !g.installing { // raft had no use for it
		g.h.metrics.snapshots.WithLabelValues("fetch-unused").Inc()
		discard(f.staged)
		g.endUnsteady()
	}
}

func (g *Group) endUnsteady() {
	g.fetch = nil
	if !g.installing {
		g.unsteady.Store(g.mend.why != nil)
	}
}

// install replaces the state by the fetched snapshot. Raft has decided; m is its wish to store it.
func (g *Group) install(m *pb.Message) {
	f := g.fetch
	if f == nil || f.meta.applied.Index != m.GetSnapshot().GetMetadata().GetIndex() {
		panic("replica: raft installs a snapshot that was not fetched")
	}
	g.installing, g.fetch = true, nil
	for _, q := range g.applyQ { // all of it is below the snapshot
		for _, r := range q.GetResponses() {
			g.respond(r)
		}
	}
	g.applyQ, g.applyPos = nil, 0
	b := g.h.cfg.Store.NewBatch()
	if err := g.sm.Install(f.staged, b); err != nil {
		g.inbox.fail(fmt.Errorf("install snapshot: %w", err))
		return
	}
	f.meta.save(b, g.id, true)
	b.Set(ownKey(g.id, keyBirth), encodeBirth(g.birth))
	g.st = f.meta
	g.confSeq++
	g.forgetAbsent()
	g.spawn(func() {
		err := g.syncBulk(g.ctx)
		if err == nil {
			err = b.Commit()
		}
		if err == nil {
			err = g.h.cfg.Store.Flush(g.ctx)
		}
		g.post(func() { g.installed(m, err) })
	})
}

// installed continues an installation after the state became durable: the journal follows.
func (g *Group) installed(m *pb.Message, err error) {
	if err != nil && g.ctx.Err() != nil {
		return // the host stops: the next start finds how far it came
	}
	if err != nil {
		g.inbox.fail(fmt.Errorf("install snapshot: %w", err))
		return
	}
	mark := g.st.applied
	g.store.forget()
	g.installing = false
	g.write(m, &mark)
	g.applied.Store(mark.Index)
	g.unsteady.Store(g.mend.why != nil)
	held := g.heldAppends
	g.heldAppends = nil
	for _, h := range held {
		g.append(h)
	}
	if m, ok := g.sm.(Mender); ok && g.mend.why != nil && m.Damage() == nil {
		g.mended()
	}
	g.h.metrics.snapshots.WithLabelValues("installed").Inc()
	g.log.Info("installed a snapshot", "index", mark.Index, "term", mark.Term)
}

// syncBulk runs the state machine's Sync, one at a time.
func (g *Group) syncBulk(ctx context.Context) error {
	select {
	case g.syncSlot <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.syncSlot }()
	return g.sm.Sync()
}

// watchSnapshots resumes a follower to whom a snapshot was announced that nobody sends: its announcement was lost, or the
// follower gave up. Without this raft would wait for ever.
func (g *Group) watchSnapshots() {
	for _, p := range g.progress {
		id := uint64(p.id)
		if !p.snapshot || g.snapOut[id] > 0 {
			delete(g.snapIdle, id)
			continue
		}
		if g.snapIdle[id]++; g.snapIdle[id] > 2*uint64(g.h.cfg.ElectionTicks) {
			delete(g.snapIdle, id)
			g.rn.ReportSnapshot(id, raft.SnapshotFailure)
		}
	}
}

// capture is a state on its way out.
type capture struct {
	meta []byte
	cp   Checkpoint
	err  error
}

// HandleSnapshot serves a MethodSnapshot stream: it sends the group's current state to a replica of the group on the peer.
func (h *Host) HandleSnapshot(ctx context.Context, from ring.NodeID, hello []byte, s wire.Stream) error {
	req, err := decodeSnapshotHello(hello)
	if err != nil {
		return wire.Errorf(wire.KindInvalid, "", "malformed snapshot request")
	}
	g, ok := h.Group(req.group)
	if !ok {
		return wire.Errorf(wire.KindNotFound, "", "no replica of group %s here", req.group)
	}
	select {
	case h.snapSlots <- struct{}{}:
		defer func() { <-h.snapSlots }()
	default:
		return &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, Op: "send snapshot",
			Detail: "this node sends as many snapshots as it may", RetryAfter: time.Second}
	}
	err = g.sendSnapshot(ctx, from, req, s)
	result := "sent"
	if err != nil {
		result = "send-failed"
	}
	h.metrics.snapshots.WithLabelValues(result).Inc()
	return err
}

// sendSnapshot is the sender's side of one stream. Not the group's goroutine.
func (g *Group) sendSnapshot(ctx context.Context, from ring.NodeID, req snapshotHello, s wire.Stream) error {
	ch := make(chan capture, 1)
	if !g.post(func() { ch <- g.captureFor(from, req) }) {
		return closedErr("send snapshot")
	}
	var c capture
	select {
	case c = <-ch:
	case <-g.done: // not captured, or it would not be done
		return closedErr("send snapshot")
	}
	if c.err != nil {
		return c.err
	}
	defer g.children.Done() // counted by captureFor
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	err := stream(sctx, paced{s, g.h}, c, req.have)
	part, ok := c.cp.(interface{ Partial() bool })
	partial := ok && part.Partial()
	c.close()
	g.post(func() {
		id := uint64(req.to)
		if g.snapOut[id]--; g.snapOut[id] <= 0 {
			delete(g.snapOut, id)
		}
		switch {
		case err != nil:
			g.rn.ReportSnapshot(id, raft.SnapshotFailure)
		case !partial: // else the receiver asks again
			g.rn.ReportSnapshot(id, raft.SnapshotFinish)
		}
	})
	return err
}

func (c capture) close() {
	if c.cp != nil {
		c.cp.Close()
	}
}

// captureFor captures the state together with its place. In the group's goroutine.
func (g *Group) captureFor(from ring.NodeID, req snapshotHello) capture {
	switch {
	case req.from != g.birth.Self || !g.known(req.to, from):
		return capture{err: wire.Errorf(wire.KindFenced, "", "replica %d of group %s is not on node %s", req.to, g.id, from)}
	case g.fetch != nil || g.installing || g.mend.why != nil || g.st.applied.Index < req.least:
		return capture{err: wire.Errorf(wire.KindUnavailable, "", "the state here is not at index %d", req.least)}
	}
	cp, err := g.sm.Checkpoint()
	if err != nil {
		return capture{err: err}
	}
	g.snapOut[uint64(req.to)]++
	g.children.Add(1) // the state machine is not closed under a running stream
	return capture{meta: g.st.encodeMeta(), cp: cp}
}

func stream(ctx context.Context, s wire.Stream, c capture, have []byte) error {
	if err := s.Send(ctx, c.meta); err != nil {
		return err
	}
	if err := c.cp.WriteTo(ctx, s, have); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	_, err := s.Recv(ctx)
	return err
}
