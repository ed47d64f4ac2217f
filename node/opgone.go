package node

import (
	"context"
	"fmt"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// gone answers what is asked of a node that is not there: it keeps its marks itself and cannot be told. What a drain would do happens by
// itself, once the node was gone for long enough; a dry run tells.
func (o *operator) gone(ctx context.Context, req ops.Request, m view.Member) (ops.Operation, error) {
	name := o.n.dir.Name(m.ID)
	op := ops.Operation{Kind: req.Kind, Node: name}
	w := o.n.world(time.Now())
	at, due := w.ReplacedAt(w.Nodes[m.ID])
	will := fmt.Sprintf("its copies are replaced on other nodes by themselves at %s unless it comes back before", at.UTC().Format(time.RFC3339))
	if due {
		will = "its copies are being replaced on other nodes by themselves"
	}
	op.Reason = fmt.Sprintf("%s is gone since %s: %s", name, m.Since.UTC().Format(time.RFC3339), will)
	if !req.DryRun {
		return op, wire.Errorf(wire.KindConflict, codeNodeGone, "%s. It must be there to be told anything: start it, or leave it", op.Reason)
	}
	if req.Kind == ops.Drain {
		o.reports.refresh(ctx)
		steps, err := o.replacing(ctx, w, m.ID)
		if err != nil {
			return op, err
		}
		op.Steps = steps
	}
	return o.planned(op), nil
}

// replacing says where the copies of a node that is gone will come from and go to, as far as their owners have said.
func (o *operator) replacing(ctx context.Context, w ops.World, gone ring.NodeID) ([]string, error) {
	list, err := o.n.broker.List(ctx)
	if err != nil {
		return nil, err
	}
	places := placesWithout(w, o.n.weights(), gone)
	var steps []string
	look := func(stream string, p ring.PartitionID, g ring.GroupID) {
		rep, _, ok := o.reports.of(g)
		if !ok {
			return
		}
		h := ops.Holding{Stream: stream, Partition: p, Report: rep, Targets: targets(w, places, rep, gone)}
		if s := w.Replaced(gone, h); s != "" {
			steps = append(steps, s)
		}
	}
	for i := range catalogShards {
		look(catalogStream, ring.PartitionID(i), ring.CatalogGroup(o.n.mesh(), i))
	}
	for _, s := range list.Streams {
		for _, p := range s.Partitions {
			look(s.Name, p.ID, p.Group)
		}
	}
	if list.Incomplete != "" {
		steps = append(steps, "and what is not known: "+list.Incomplete)
	}
	return steps, nil
}
