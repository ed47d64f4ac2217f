package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// askOwner has a partition's owner carry out what is about it. Nodes are found here, by name; the owner gets ids.
func (o *operator) askOwner(ctx context.Context, req ops.Request) (ops.Operation, error) {
	g, err := o.groupOf(ctx, req.Stream, req.Partition)
	if err != nil {
		return ops.Operation{}, err
	}
	for _, name := range []*string{&req.From, &req.To} {
		if *name == "" {
			continue
		}
		m, err := o.resolve(*name)
		if err != nil {
			return ops.Operation{}, err
		}
		*name = m.ID.String()
	}
	body, err := wire.Marshal(&opsQuestion{Op: opsAsk, Request: req, Group: g})
	if err != nil {
		return ops.Operation{}, err
	}
	raw, err := o.n.broker.CallOwner(ctx, g, wire.MethodOps, body)
	if err != nil {
		return ops.Operation{}, err
	}
	var ans opsAnswer
	err = wire.Unmarshal(raw, &ans)
	return ans.first(), err
}

// groupOf finds a partition's group; the catalog's shards are the partitions of _mesh.
func (o *operator) groupOf(ctx context.Context, stream string, p ring.PartitionID) (ring.GroupID, error) {
	missing := func(have int) error {
		return wire.Errorf(wire.KindNotFound, codePartitionNotFound, "stream %s has no partition %d; it has %d", stream, p, have)
	}
	if stream == catalogStream {
		if p >= catalogShards {
			return ring.GroupID{}, missing(catalogShards)
		}
		return ring.CatalogGroup(o.n.mesh(), int(p)), nil
	}
	info, err := o.n.broker.Get(ctx, stream)
	if err != nil {
		return ring.GroupID{}, err
	}
	i := slices.IndexFunc(info.Partitions, func(pi flow.PartitionInfo) bool { return pi.ID == p })
	if i < 0 {
		return ring.GroupID{}, missing(len(info.Partitions))
	}
	return info.Partitions[i].Group, nil
}

// own carries out what is about a partition that this node owns.
func (o *operator) own(ctx context.Context, req ops.Request, group ring.GroupID) (ops.Operation, error) {
	g, err := o.n.broker.LocalOwner(group)
	if err != nil {
		return ops.Operation{}, err
	}
	op, from, to, err := o.about(req)
	if err != nil {
		return op, err
	}
	switch req.Kind {
	case ops.Transfer:
		return o.transfer(g, op, to, req.DryRun)
	case ops.Move:
		if r, ok := o.begunBy(ctx, from, req); ok {
			return r, nil
		}
		return o.move(ctx, g, op, from, to, req.DryRun)
	}
	return op, wire.Errorf(wire.KindInvalid, "", "operation %q is not known to this version", string(req.Kind))
}

// about is the operation that a request about a partition asks for, and the nodes that it names by their ids.
func (o *operator) about(req ops.Request) (op ops.Operation, from, to ring.NodeID, err error) {
	if to, err = ring.ParseNodeID(req.To); err != nil {
		return op, from, to, wire.Errorf(wire.KindInvalid, "", "the node to go to is no id")
	}
	op = ops.Operation{Kind: req.Kind, State: ops.Running, Stream: req.Stream, Partition: &req.Partition, To: o.n.dir.Name(to)}
	if req.Kind != ops.Move {
		return op, from, to, nil
	}
	if from, err = ring.ParseNodeID(req.From); err != nil {
		return op, from, to, wire.Errorf(wire.KindInvalid, "", "the node to leave is no id")
	}
	op.From = o.n.dir.Name(from)
	return op, from, to, nil
}

// transferWait is how long a hand-over may take before it counts as failed.
const transferWait = 5 * time.Second

// transfer hands a partition to another of its nodes.
func (o *operator) transfer(g *replica.Group, op ops.Operation, to ring.NodeID, dryRun bool) (ops.Operation, error) {
	st, what := g.Status(), fmt.Sprintf("%s partition %d", op.Stream, *op.Partition)
	op.From = o.n.cfg.Load().Name
	if to == o.self() {
		op.Reason = fmt.Sprintf("%s owns %s already", op.To, what)
		if dryRun {
			return o.planned(op), nil
		}
		return o.finished(op)
	}
	if why := o.unfit(g, st, to); why != "" {
		return op, wire.Errorf(wire.KindConflict, codeNotPossible, "%s cannot be handed to %s: %s", what, op.To, why)
	}
	op.Steps = []string{fmt.Sprintf("hand the ownership of %s from %s to %s, which has a caught-up copy: no bytes move, publishes wait for a moment", what, op.From, op.To)}
	op.Reason = fmt.Sprintf("%s is being handed to %s; balancing may hand it on later", what, op.To)
	if dryRun {
		return o.planned(op), nil
	}
	return o.begin(op, func(ctx context.Context, id string) {
		ctx, cancel := context.WithTimeout(ctx, transferWait)
		defer cancel()
		err := g.Transfer(ctx, to)
		o.update(id, func(op *ops.Operation) {
			op.State, op.Reason = ops.Done, fmt.Sprintf("%s owns %s; balancing may hand it on later", op.To, what)
			if err != nil {
				op.State, op.Reason = ops.Failed, "the hand-over did not happen: "+err.Error()
			}
		})
	})
}

// begin keeps an operation and runs it, unless an equal one is under way: then that is the answer.
func (o *operator) begin(op ops.Operation, run func(ctx context.Context, id string)) (ops.Operation, error) {
	o.mu.Lock()
	if r, ok := o.table.Running(op); ok {
		o.mu.Unlock()
		return r, nil
	}
	op, err := o.table.Add(time.Now(), op)
	o.mu.Unlock()
	if err != nil {
		return op, err
	}
	if !o.spawn(func(ctx context.Context) { run(ctx, op.ID) }) {
		return op, wire.Errorf(wire.KindUnavailable, wire.CodeDraining, "this node is stopping")
	}
	o.n.log.Info("an operation begins", "operation", op.ID, "kind", string(op.Kind), "stream", op.Stream, "partition", *op.Partition, "from", op.From, "to", op.To)
	return op, nil
}

// unfit says why a node cannot own a group; "" when it can.
func (o *operator) unfit(g *replica.Group, st replica.Status, to ring.NodeID) string {
	var voters []string
	rep := o.n.report(g, st)
	copyThere, held := rep.On(to)
	for _, c := range rep.Members {
		if !c.Learner && c.Node != o.self() {
			voters = append(voters, o.n.dir.Name(c.Node))
		}
	}
	others := "no other node has a copy that votes"
	if len(voters) > 0 {
		others = "copies that vote are on " + strings.Join(voters, ", ")
	}
	switch {
	case !held:
		return "it has no copy; " + others
	case copyThere.Learner:
		return "its copy is a learner, which does not vote; " + others
	case !o.n.dir.Alive(to):
		return "it is gone"
	case o.n.dir.Leaving(to):
		return "it is draining or leaving"
	case !o.n.dir.Takes(to):
		return "it is cordoned"
	case copyThere.Silent:
		return "its copy does not answer"
	case copyThere.Match+ops.CaughtUp < rep.Commit:
		return fmt.Sprintf("its copy is behind: %d of %d", copyThere.Match, rep.Commit)
	}
	return ""
}
