package node

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/api"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
)

// Partitions lists the partitions of one stream or of all; those of _mesh are the catalog's shards.
func (p meshPages) Partitions(ctx context.Context, stream string) (api.MeshPartitions, error) {
	now := time.Now()
	out := api.MeshPartitions{View: p.head(now), Partitions: []api.MeshPartition{}, Members: []api.Staleness{}}
	list, err := p.streams(ctx, stream)
	if err != nil {
		return out, err
	}
	streams := list.Streams
	out.Incomplete = list.Incomplete
	p.n.ops.reports.refresh(ctx)
	for _, m := range p.n.gossip.View().Members() {
		out.Members = append(out.Members, api.Staleness{Node: p.n.dir.Name(m.ID), StalenessMS: p.staleness(m, now)})
	}
	w := p.n.world(now)
	for i := range streams {
		for j := range streams[i].Partitions {
			out.Partitions = append(out.Partitions, p.page(w, &streams[i], &streams[i].Partitions[j], now))
		}
	}
	return out, nil
}

// streams are the definitions of one stream or of all.
func (p meshPages) streams(ctx context.Context, name string) (list flow.StreamList, err error) {
	switch name {
	case "":
		return p.n.broker.List(ctx)
	case catalogStream:
		if !p.n.mesh().IsZero() {
			list.Streams = append(list.Streams, p.n.catalogInfo())
		}
		return list, nil
	}
	s, err := p.n.broker.Get(ctx, name)
	list.Streams = append(list.Streams, s)
	return list, err
}

// catalogInfo shows the catalog's shards as a stream.
func (n *Node) catalogInfo() flow.StreamInfo {
	out := flow.StreamInfo{Name: catalogStream, Config: flow.StreamConfig{Partitions: catalogShards, Replicas: wantReplicas(replica.KindCatalog, nil)}}
	for i := range catalogShards {
		g := ring.CatalogGroup(n.mesh(), i)
		pt := flow.PartitionInfo{ID: ring.PartitionID(i), Group: g, State: "open"}
		if owner, term, ok := n.dir.Owner(g); ok {
			pt.Owner, pt.Term = n.dir.Name(owner), term
		}
		out.Partitions = append(out.Partitions, pt)
	}
	return out
}

// page is one partition as its owner last told of it; where no owner did, with the members that the definition or a replica here names.
func (p meshPages) page(w ops.World, s *flow.StreamInfo, pt *flow.PartitionInfo, now time.Time) api.MeshPartition {
	rep, known := p.n.overlay(pt)
	mp := api.MeshPartition{Stream: s.Name, Partition: pt.ID, Group: pt.Group, State: pt.State, Owner: pt.Owner, Term: pt.Term,
		Replicas: pt.Replicas, Wanted: s.Config.Replicas, MembersKnown: known, BytesPerSecond: p.n.rates.of(pt.Group)}
	r := p.n.dir.Counted().Ring()
	var current []ring.NodeID
	if known {
		mp.Replicas, mp.Wanted, mp.Live, mp.Lack = []string{}, rep.Want, w.Live(rep), w.Lack(rep)
		if zone := w.OneZone(rep); zone != "" && mp.Lack == "" {
			mp.Lack = zone
		}
		for _, c := range rep.Members {
			current = append(current, c.Node)
			name := p.n.dir.Name(c.Node)
			if !c.Learner {
				mp.Replicas = append(mp.Replicas, name)
				continue
			}
			mp.Learners = append(mp.Learners, name)
			if rep.Behind(c) > 0 {
				mp.CatchingUp = append(mp.CatchingUp, api.CatchingUp{Node: name, Match: c.Match, Commit: rep.Commit})
			}
		}
		mp.Move = p.move(rep)
		mp.Waits = rep.Waits
	} else {
		for _, name := range pt.Replicas {
			if p.present(name) {
				mp.Live++
			}
		}
	}
	for _, id := range r.Replicas(pt.Group, mp.Wanted, current) {
		mp.Proposed = append(mp.Proposed, p.n.dir.Name(id))
	}
	if id, ok := r.Home(pt.Group); ok {
		mp.Home = p.n.dir.Name(id)
	}
	if m, ok := p.n.gossip.View().ByName(pt.Owner); ok {
		mp.StalenessMS = p.staleness(m, now)
	}
	return mp
}

func (p meshPages) move(rep ops.Report) *api.PartitionMove {
	if rep.MoveTo.IsZero() {
		return nil
	}
	return &api.PartitionMove{From: p.n.dir.Name(rep.MoveFrom), To: p.n.dir.Name(rep.MoveTo), Phase: rep.MovePhase, Reason: rep.MoveReason}
}

// overlay puts what a partition's owner last said in the place of what its definition says: that names the founders for ever. From memory
// alone; false where no owner is known.
func (n *Node) overlay(pt *flow.PartitionInfo) (ops.Report, bool) {
	rep, owner, ok := n.ops.reports.of(pt.Group)
	if !ok {
		return rep, false
	}
	pt.Replicas = nil
	for _, c := range rep.Members {
		pt.Replicas = append(pt.Replicas, n.dir.Name(c.Node))
	}
	if !owner.IsZero() && rep.Term >= pt.Term {
		pt.Owner, pt.Term = n.dir.Name(owner), rep.Term
	}
	return rep, true
}

// streamPages is the broker with definitions that tell of the members that partitions have now.
type streamPages struct {
	*flow.Broker
	n *Node
}

var _ flow.Streams = streamPages{}

// Get reads a stream's definition; see flow.Streams.
func (p streamPages) Get(ctx context.Context, name string) (flow.StreamInfo, error) {
	s, err := p.Broker.Get(ctx, name)
	if err == nil {
		p.now(ctx, &s)
	}
	return s, err
}

// List reads all definitions; see flow.Streams.
func (p streamPages) List(ctx context.Context) (flow.StreamList, error) {
	list, err := p.Broker.List(ctx)
	for i := range list.Streams {
		p.now(ctx, &list.Streams[i])
	}
	return list, err
}

// now asks the owners of partitions without a replica here, and has all partitions tell what is known of them.
func (p streamPages) now(ctx context.Context, s *flow.StreamInfo) {
	asked := false
	for i := range s.Partitions {
		pt := &s.Partitions[i]
		if _, here := p.n.host.Group(pt.Group); !here && !asked {
			p.n.ops.reports.refresh(ctx)
			asked = true
		}
		p.n.overlay(pt)
	}
}
