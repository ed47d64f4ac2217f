package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// moveGlance is how often it is looked how a move stands; moveLost is for how long nobody may say that it is under way: while the
// ownership changes hands nobody does.
const (
	moveGlance = 500 * time.Millisecond
	moveLost   = 15 * time.Second
)

// move has one copy of a group that is owned here go to another node.
func (o *operator) move(ctx context.Context, g *replica.Group, op ops.Operation, from, to ring.NodeID, dryRun bool) (ops.Operation, error) {
	st, what := g.Status(), fmt.Sprintf("%s partition %d", op.Stream, *op.Partition)
	group := st.Group
	leaves, _ := o.n.report(g, st).On(from)
	plan, err := o.n.host.Move(ctx, group, from, to, dryRun)
	if err != nil {
		return op, o.impossible(err, what, op)
	}
	op.Reason = fmt.Sprintf("the copy of %s on %s moves to %s", what, op.From, op.To)
	for _, s := range plan.Steps {
		op.Steps = append(op.Steps, o.named(s))
	}
	if dryRun {
		return o.planned(op), nil
	}
	return o.begin(op, func(ctx context.Context, id string) { o.followMove(ctx, id, group, leaves, to) })
}

// begunBy finds a move with the node that it leaves: an owner hands the ownership over before its own copy moves, and keeps the operation.
func (o *operator) begunBy(ctx context.Context, from ring.NodeID, req ops.Request) (ops.Operation, bool) {
	if req.DryRun || from == o.self() || !o.n.dir.Alive(from) {
		return ops.Operation{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	ans, err := o.call(ctx, from, opsQuestion{Op: opsRunning, Request: req})
	if err != nil { // then it cannot agree to a move either; or it is of an earlier version
		o.n.log.Debug("the node that a copy is to leave does not say whether that is under way", "peer", from.String(), "err", err)
	}
	return ans.first(), len(ans.Operations) > 0
}

// underWay is the move that a request asks for, where this node keeps it and it is not over.
func (o *operator) underWay(req ops.Request) ([]ops.Operation, error) {
	op, _, _, err := o.about(req)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if r, ok := o.table.Running(op); ok {
		return []ops.Operation{r}, nil
	}
	return nil, nil
}

// impossible is a refusal of a move in words: whoever is asked again would refuse again, so nobody is.
func (o *operator) impossible(err error, what string, op ops.Operation) error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return err
	}
	switch e.Kind {
	case wire.KindNotFound, wire.KindConflict, wire.KindUnavailable, wire.KindInvalid:
		return wire.Errorf(wire.KindConflict, codeNotPossible, "%s cannot move from %s to %s: %s", what, op.From, op.To, o.named(e.Detail))
	}
	return err
}

// named puts names in the place of the ids of nodes.
func (o *operator) named(text string) string {
	if text == "" {
		return ""
	}
	for _, m := range o.n.gossip.View().Members() {
		name := o.n.dir.Name(m.ID)
		text = strings.ReplaceAll(strings.ReplaceAll(text, "node "+m.ID.String(), name), m.ID.String(), name)
	}
	return text
}

// followMove notes how a move comes on, until the copies show that it was made or that it was not. The ownership may go to another node
// meanwhile, which goes on with it.
func (o *operator) followMove(ctx context.Context, id string, group ring.GroupID, leaves ops.Copy, to ring.NodeID) {
	t := time.NewTicker(moveGlance)
	defer t.Stop()
	var idle time.Time // since when nobody says that it is under way
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return // this node stops, and what it keeps is forgotten
		}
		if _, err := o.n.broker.LocalOwner(group); err != nil {
			o.reports.refresh(ctx)
		}
		rep, _, known := o.reports.of(group)
		switch {
		case known && rep.MoveFrom == leaves.Node && rep.MoveTo == to: // also once the copy has left, until the other one is what it was
			idle = time.Time{}
			o.update(id, func(op *ops.Operation) { op.Reason = rep.MoveSentence(op.From, op.To) })
		case known && rep.Left(leaves.ID):
			_, there := rep.On(to)
			o.update(id, func(op *ops.Operation) {
				op.State, op.Reason = ops.Done, fmt.Sprintf("%s has the copy that %s had", op.To, op.From)
				if !there {
					op.Reason = fmt.Sprintf("the copy has left %s, and is not on %s any more: it has moved on since", op.From, op.To)
				}
			})
			return
		case idle.IsZero():
			idle = time.Now()
		case time.Since(idle) > moveLost:
			o.update(id, func(op *ops.Operation) {
				op.State, op.Reason = ops.Failed, "the move was given up; the log of the partition's owner says why"
			})
			return
		}
	}
}
