package node

import (
	"context"
	"fmt"
	"time"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// restore takes up the drain that the node's disk tells of, under the id that it had.
func (o *operator) restore(now time.Time) error {
	m := o.n.data.marks()
	d := m.Drain
	if d.ID == "" {
		return nil
	}
	name := o.n.cfg.Load().Name
	op := ops.Operation{ID: d.ID, Kind: ops.Drain, State: ops.Running, Node: name, Started: ops.At(d.Started),
		Reason: "the node was started again; the drain goes on", Progress: &ops.Progress{ReplicasAtStart: d.Replicas}}
	if !d.Ended.IsZero() {
		op.State, op.Ended = ops.Done, ops.At(d.Ended)
		op.Progress.SafeToPowerDown = true
		op.Reason = op.Progress.Sentence(name)
	}
	if keeper, _ := ops.KeeperOf(d.ID); keeper == o.self() {
		o.table.Restore(now, op)
		return nil
	}
	// The node has given up the id that it had: its drain is another node's now, and any node must find it.
	op, err := o.table.Add(now, op)
	if err != nil {
		return err
	}
	m.Drain.ID = op.ID
	return o.n.data.setMarks(m)
}

// cordon sets or takes away the mark that keeps new work off this node.
func (o *operator) cordon(kind ops.Kind, dryRun bool) (ops.Operation, error) {
	o.acting.Lock()
	defer o.acting.Unlock()
	name, m := o.n.cfg.Load().Name, o.n.data.marks()
	want := kind == ops.Cordon
	op := ops.Operation{Kind: kind, Node: name}
	switch {
	case !want && m.draining():
		return op, wire.Errorf(wire.KindConflict, codeNodeDraining,
			"%s is draining: cancel that (DELETE /v1/nodes/%s/drain, or skein drain %s --cancel) to take it back into service", name, name, name)
	case m.Cordoned == want && want:
		op.Reason = name + " is cordoned already: it keeps what it has and gets nothing new"
	case m.Cordoned == want:
		op.Reason = name + " is not cordoned: it takes its share"
	case want:
		op.Steps = []string{"mark " + name + " as cordoned, on its disk and by gossip: it keeps what it has and gets no new copy and no new ownership"}
		op.Reason = name + " keeps what it has and gets nothing new"
	default:
		op.Steps = []string{"take the mark away: " + name + " gets its share again, as balancing goes"}
		op.Reason = name + " takes its share again"
	}
	if dryRun {
		return o.planned(op), nil
	}
	if m.Cordoned != want {
		m.Cordoned = want
		if err := o.mark(m); err != nil {
			return op, err
		}
	}
	return o.finished(op)
}

// mark writes this node's marks and has them told.
func (o *operator) mark(m marks) error {
	if err := o.n.data.setMarks(m); err != nil {
		return fmt.Errorf("remember what was asked: %w", err)
	}
	o.n.announceFlags()
	return nil
}

// drain begins to hand away all that this node holds, or tells of the drain that is under way or has ended.
func (o *operator) drain(ctx context.Context, dryRun bool) (ops.Operation, error) {
	o.acting.Lock()
	defer o.acting.Unlock()
	name, m := o.n.cfg.Load().Name, o.n.data.marks()
	if m.draining() && !dryRun {
		if op, err := o.kept(m.Drain.ID); err == nil && (!op.Over() || len(o.n.host.Groups())+len(o.n.host.Closed()) == 0) {
			return op, nil
		}
	}
	op := ops.Operation{Kind: ops.Drain, State: ops.Running, Node: name}
	if !o.othersStay() {
		return op, wire.Errorf(wire.KindConflict, codeLastNode,
			"%s is the only node left that holds data: all others are gone, draining or leaving. Add a node, or cancel another drain, first", name)
	}
	o.reports.refresh(ctx)
	w := o.n.world(time.Now())
	held := o.n.holdings(w, o.self())
	op.Steps, op.Reason = w.PlanDrain(o.self(), held)
	p := w.Progress(o.self(), len(held), held)
	op.Progress = &p
	if dryRun {
		return o.planned(op), nil
	}
	op.Reason = p.Sentence(name)
	op, err := o.add(op)
	if err != nil {
		return op, err
	}
	m.Drain = drainMark{ID: op.ID, Started: op.Started.Time(), Replicas: len(held)}
	if err := o.mark(m); err != nil {
		o.update(op.ID, func(op *ops.Operation) {
			op.State, op.Reason = ops.Failed, "it could not be written down; nothing was done"
		})
		return op, err
	}
	o.n.log.Info("draining: this node hands away what it holds and takes nothing new", "operation", op.ID, "replicas", len(held))
	wakeUp(o.wake)
	return op, nil
}

// othersStay reports whether another node is there that does not hand away what it has.
func (o *operator) othersStay() bool {
	for _, m := range o.n.gossip.View().Members() {
		if m.ID != o.self() && m.Present() && !m.Mesh.IsZero() && !m.Draining() && !m.Leaving() {
			return true
		}
	}
	return false
}

// cancelDrain takes this node back into service. A mark that cordon set stays.
func (o *operator) cancelDrain(dryRun bool) (ops.Operation, error) {
	o.acting.Lock()
	defer o.acting.Unlock()
	name, m := o.n.cfg.Load().Name, o.n.data.marks()
	op := ops.Operation{Kind: ops.CancelDrain, Node: name, Reason: name + " is not draining: there is nothing to cancel"}
	if m.draining() {
		op.Steps = []string{"stop handing away what " + name + " holds; copies that have left stay where they are, and balancing brings it its share again"}
		op.Reason = name + " is in service again"
		if m.Cordoned {
			op.Reason = name + " keeps what it has; it stays cordoned"
		}
	}
	if dryRun {
		return o.planned(op), nil
	}
	if id := m.Drain.ID; id != "" {
		m.Drain = drainMark{}
		if err := o.mark(m); err != nil {
			return op, err
		}
		o.update(id, func(op *ops.Operation) {
			op.State, op.Reason = ops.Cancelled, "cancelled: "+name+" keeps what it still has"
		})
	}
	return o.finished(op)
}

// watchDrain looks how far this node's drain is, and notes its end.
func (o *operator) watchDrain(ctx context.Context) {
	m := o.n.data.marks()
	if !m.draining() {
		return
	}
	op, err := o.kept(m.Drain.ID)
	if err != nil || op.Over() {
		return
	}
	select {
	case <-o.n.host.Ready():
	default:
		return // what it holds is not known yet
	}
	o.reports.refresh(ctx)
	w := o.n.world(time.Now())
	p := w.Progress(o.self(), m.Drain.Replicas, o.n.holdings(w, o.self()))
	if p.SafeToPowerDown {
		o.endDrain(op.ID)
	}
	o.update(op.ID, func(op *ops.Operation) {
		op.Progress, op.Reason = &p, p.Sentence(op.Node)
		if p.SafeToPowerDown {
			op.State = ops.Done
		}
	})
}

// endDrain writes down that the node is empty. Without that its next start would only look again.
func (o *operator) endDrain(id string) {
	o.acting.Lock()
	defer o.acting.Unlock()
	m := o.n.data.marks()
	if m.Drain.ID != id {
		return // cancelled meanwhile
	}
	m.Drain.Ended = time.Now()
	if err := o.n.data.setMarks(m); err != nil {
		o.n.log.Warn("the end of the drain could not be written down; it is looked for again after a restart", "err", err)
	}
}

// holdings are the copies on a node: of this one all that are here, of another one what its groups' owners say.
func (n *Node) holdings(w ops.World, of ring.NodeID) []ops.Holding {
	places := placesWithout(w, n.weights(), of)
	var out []ops.Holding
	for _, g := range n.host.Groups() {
		st := g.Status()
		rep, owner, _ := n.ops.reports.of(st.Group)
		h := ops.Holding{Owner: owner, Report: rep}
		h.Stream, h.Partition = n.nameOf(g, st)
		h.Targets = targets(w, places, rep, of)
		out = append(out, h)
	}
	for _, b := range n.host.Closed() {
		rep, owner, heard := n.ops.reports.of(b.Group)
		if !heard { // nobody says that others have it
			rep = ops.Report{Group: b.Group, Want: wantReplicas(b.Kind, b.Spec), Members: []ops.Copy{{ID: b.Self, Node: of}}}
		}
		h := ops.Holding{Owner: owner, Report: rep, Closed: true, Targets: targets(w, places, rep, of)}
		h.Stream, h.Partition = n.nameOf(nil, replica.Status{Group: b.Group, Kind: b.Kind, Spec: b.Spec})
		out = append(out, h)
	}
	return out
}

// targets are the nodes that should have a group without one of its nodes.
func targets(w ops.World, places *ring.Ring, rep ops.Report, without ring.NodeID) []ring.NodeID {
	var current []ring.NodeID
	for _, c := range rep.Members {
		if c.Node != without && w.Nodes[c.Node].Here {
			current = append(current, c.Node)
		}
	}
	return places.Replicas(rep.Group, rep.Want, current)
}

// specOf is what a partition's group says of itself; g is nil where it does not run.
func specOf(g *replica.Group, st replica.Status) (partition.Spec, bool) {
	if g != nil {
		if pt, ok := g.StateMachine().(*partition.Partition); ok {
			return pt.Spec(), true
		}
	}
	spec, err := partition.ParseSpec(st.Spec)
	return spec, err == nil && st.Kind == replica.KindPartition
}
