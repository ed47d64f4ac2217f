package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/api"
	"github.com/skeinmesh/skein/ring"
)

// meshPages answers the API's questions about the mesh from this node's view, its own replicas, and for partitions of other
// nodes the catalog. Safe for concurrent use.
type meshPages struct{ n *Node }

var _ api.Mesh = meshPages{}

func (p meshPages) head(now time.Time) api.View {
	v := api.View{Observer: p.n.cfg.Load().Name, ObserverID: p.n.data.id.NodeID, Cluster: p.n.cfg.Load().ClusterID, AsOf: now.UTC()}
	if m := p.n.mesh(); !m.IsZero() {
		v.Mesh = m.String()
	}
	return v
}

// notJoined is what a node without a mesh says about itself.
const notJoined = "this node has not joined a mesh yet: no join address has taken it in, and its log says why"

// Summary is the mesh on one screen.
func (p meshPages) Summary(ctx context.Context) (api.MeshSummary, error) {
	now := time.Now()
	s := api.MeshSummary{View: p.head(now), Reasons: []string{}, Hottest: []api.PartitionLoad{}, UnderReplicated: []api.UnderReplicated{}}
	for _, m := range p.n.gossip.View().Members() {
		s.Nodes++
		switch m.State {
		case view.StateAlive:
			s.Alive++
		case view.StateSuspect:
			s.Suspect++
		case view.StateLeft:
			s.Nodes--
			continue
		}
		s.Members = append(s.Members, api.Staleness{Node: p.n.dir.Name(m.ID), StalenessMS: p.staleness(m, now)})
	}
	if p.n.mesh().IsZero() {
		s.Reasons = append(s.Reasons, notJoined)
		p.judge(&s)
		return s, nil
	}
	streams, err := p.n.broker.List(ctx)
	if err != nil {
		s.Reasons = append(s.Reasons, "the catalog does not answer: "+err.Error())
	}
	s.Streams = len(streams)
	for i := range streams {
		p.sumStream(&s, &streams[i])
	}
	p.judge(&s)
	return s, nil
}

// sumStream adds a stream's partitions to a summary.
func (p meshPages) sumStream(s *api.MeshSummary, st *flow.StreamInfo) {
	for i := range st.Partitions {
		pt := &st.Partitions[i]
		s.Partitions++
		if !p.present(pt.Owner) { // not known, or gone and no other one elected
			s.Ownerless++
		}
		live := 0
		for _, name := range pt.Replicas {
			if p.present(name) {
				live++
			}
		}
		if want := st.Config.Replicas; live < want && len(s.UnderReplicated) < 100 {
			s.UnderReplicated = append(s.UnderReplicated, api.UnderReplicated{Stream: st.Name, Partition: pt.ID, Wanted: want, Live: live})
		}
		if rate := p.n.rates.of(pt.Group); rate > 0 {
			s.Hottest = append(s.Hottest, api.PartitionLoad{Stream: st.Name, Partition: pt.ID, Owner: pt.Owner, BytesPerSecond: rate})
		}
	}
	slices.SortFunc(s.Hottest, func(a, b api.PartitionLoad) int { return cmp.Compare(b.BytesPerSecond, a.BytesPerSecond) })
	s.Hottest = s.Hottest[:min(len(s.Hottest), 10)]
}

// present reports whether gossip holds the member of that name for alive.
func (p meshPages) present(name string) bool {
	m, ok := p.n.gossip.View().ByName(name)
	return ok && m.Present()
}

// judge puts the summary's health into a word.
func (p meshPages) judge(s *api.MeshSummary) {
	critical := s.Ownerless > 0 || len(s.Reasons) > 0
	if s.Ownerless > 0 {
		s.Reasons = append(s.Reasons, fmt.Sprintf("%d partitions have no known owner", s.Ownerless))
	}
	if gone := s.Nodes - s.Alive - s.Suspect; gone > 0 {
		s.Reasons = append(s.Reasons, fmt.Sprintf("dead nodes: %d of %d", gone, s.Nodes))
	}
	if n := len(s.UnderReplicated); n > 0 {
		s.Reasons = append(s.Reasons, fmt.Sprintf("%d partitions have fewer live copies than wanted", n))
	}
	if ofTwo(p.n.gossip.View()) {
		s.Reasons = append(s.Reasons, twoNodes)
	}
	switch {
	case critical:
		s.Health = "critical"
	case len(s.Reasons) > 0:
		s.Health = "degraded"
	default:
		s.Health = "ok"
	}
}

func (p meshPages) staleness(m view.Member, now time.Time) int64 {
	if m.ID == p.n.data.id.NodeID {
		return 0
	}
	if d, ok := m.Staleness(now); ok {
		return d.Milliseconds()
	}
	return now.Sub(m.Since).Milliseconds()
}

// Members lists the members that this node knows.
func (p meshPages) Members(context.Context) (api.MeshMembers, error) {
	now := time.Now()
	out := api.MeshMembers{View: p.head(now), Members: []api.Member{}}
	for _, m := range p.n.gossip.View().Members() {
		out.Members = append(out.Members, api.Member{Node: p.n.dir.Name(m.ID), ID: m.ID, State: m.State.String(), Zone: m.Zone,
			Weight: float64(m.Weight) / weightUnit, Version: m.Version, HTTP: m.HTTPAddr, QUIC: m.QUICAddr, Gossip: m.GossipAddr,
			Cordoned: m.Cordoned(), Draining: m.Draining(), Fatigue: float64(m.Load.Fatigue), CPUPercent: float64(m.Load.CPUPercent),
			MemPercent: float64(m.Load.MemPercent), Owned: int(m.Load.Owned), Replicas: int(m.Load.Partitions), StalenessMS: p.staleness(m, now)})
	}
	return out, nil
}

// Ring is the ring as this node computes it.
func (p meshPages) Ring(ctx context.Context) (api.MeshRing, error) {
	now := time.Now()
	r := p.n.dir.counted().Ring()
	out := api.MeshRing{View: p.head(now), Epoch: fmt.Sprintf("%016x", r.Epoch()), Slots: r.Slots(), Factor: ring.LoadFactor, Members: []api.RingShare{}}
	slots, homes := map[ring.NodeID]int{}, map[ring.NodeID]int{}
	for i := range r.Slots() {
		if id, ok := r.SlotHome(i); ok {
			slots[id]++
		}
	}
	streams, err := p.n.broker.List(ctx)
	if err != nil {
		return out, err
	}
	for i := range streams {
		for j := range streams[i].Partitions {
			if id, ok := r.Home(streams[i].Partitions[j].Group); ok {
				homes[id]++
			}
		}
	}
	for _, m := range r.Members() {
		share := api.RingShare{Node: p.n.dir.Name(m.ID), Zone: m.Zone, Weight: float64(m.Weight) / weightUnit, Slots: slots[m.ID], Homes: homes[m.ID]}
		if vm, ok := p.n.gossip.View().Member(m.ID); ok {
			share.StalenessMS = p.staleness(vm, now)
		}
		out.Members = append(out.Members, share)
	}
	return out, nil
}

// Partitions lists the partitions of one stream or of all.
func (p meshPages) Partitions(ctx context.Context, stream string) (api.MeshPartitions, error) {
	now := time.Now()
	out := api.MeshPartitions{View: p.head(now), Partitions: []api.MeshPartition{}, Members: []api.Staleness{}}
	var streams []flow.StreamInfo
	var err error
	if stream == "" {
		streams, err = p.n.broker.List(ctx)
	} else {
		var s flow.StreamInfo
		s, err = p.n.broker.Get(ctx, stream)
		streams = []flow.StreamInfo{s}
	}
	if err != nil {
		return out, err
	}
	for _, m := range p.n.gossip.View().Members() {
		out.Members = append(out.Members, api.Staleness{Node: p.n.dir.Name(m.ID), StalenessMS: p.staleness(m, now)})
	}
	r := p.n.dir.counted().Ring()
	for i := range streams {
		for j := range streams[i].Partitions {
			out.Partitions = append(out.Partitions, p.page(r, &streams[i], &streams[i].Partitions[j], now))
		}
	}
	return out, nil
}

func (p meshPages) page(r *ring.Ring, s *flow.StreamInfo, pt *flow.PartitionInfo, now time.Time) api.MeshPartition {
	mp := api.MeshPartition{Stream: s.Name, Partition: pt.ID, Group: pt.Group, State: pt.State, Owner: pt.Owner, Term: pt.Term,
		Replicas: pt.Replicas, BytesPerSecond: p.n.rates.of(pt.Group)}
	var current []ring.NodeID
	if g, ok := p.n.host.Group(pt.Group); ok {
		mp.Replicas = nil
		for _, m := range g.Status().Members {
			current = append(current, m.Node)
			if m.Learner {
				mp.Learners = append(mp.Learners, p.n.dir.Name(m.Node))
			} else {
				mp.Replicas = append(mp.Replicas, p.n.dir.Name(m.Node))
			}
		}
	}
	for _, id := range r.Replicas(pt.Group, s.Config.Replicas, current) {
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

// Readiness lists every condition for taking traffic.
func (p meshPages) Readiness(context.Context) []api.Check {
	var out []api.Check
	check := func(name string, ok bool, detail string) {
		if ok {
			detail = ""
		}
		out = append(out, api.Check{Name: name, OK: ok, Detail: detail})
	}
	joined := !p.n.mesh().IsZero()
	check("mesh", joined, notJoined)
	recovered := false
	select {
	case <-p.n.host.Ready():
		recovered = true
	default:
	}
	check("recovery", recovered, "replicas on this node are still being recovered")
	without := 0
	for i := range catalogShards {
		if !p.n.shardOwned(i) {
			without++
		}
	}
	check("catalog", joined && without == 0, fmt.Sprintf("%d of %d catalog shards have no known owner", without, catalogShards))
	check("disk", !p.n.diskFull(), "the free-space reserve of data_dir is reached: publishes to partitions owned here are refused")
	without = 0
	for _, g := range p.n.host.Groups() {
		if st := g.Status(); st.Kind == replica.KindPartition && !p.n.ownerKnown(st) {
			without++
		}
	}
	check("partitions", without == 0, fmt.Sprintf("%d partitions held here have no owner", without))
	check("drain", !p.n.leaving.Load(), "this node is stopping")
	return append(out, p.copies(), p.damage())
}

// damage tells which replicas here wait for bytes of others. It informs, as copies does: the node serves what is sound, and all else from
// other nodes.
func (p meshPages) damage() api.Check {
	c := api.Check{Name: "damage", OK: true}
	hurt := 0
	for _, g := range p.n.host.Groups() {
		st := g.Status()
		if st.Damage == nil {
			continue
		}
		if hurt++; hurt == 1 {
			c.Detail = fmt.Sprintf("group %s: %v", st.Group, st.Damage)
			if pt, ok := g.StateMachine().(*partition.Partition); ok {
				spec := pt.Spec()
				c.Detail = fmt.Sprintf("%s partition %d: %v", spec.Name, spec.Partition, st.Damage)
			}
		}
	}
	if hurt > 0 {
		c.Detail = fmt.Sprintf("%d damaged replicas here vote, and wait for their bytes from other nodes: %s", hurt, c.Detail)
	}
	return c
}

// copies tells which partitions held here lack copies. It informs; it does not make the node unready, for that would take
// working nodes out of service when one failed.
func (p meshPages) copies() api.Check {
	c := api.Check{Name: "copies", OK: true}
	short := 0
	for _, g := range p.n.host.Groups() {
		pt, ok := g.StateMachine().(*partition.Partition)
		if !ok {
			continue
		}
		live := 0
		for _, m := range g.Status().Members {
			if p.n.dir.Alive(m.Node) {
				live++
			}
		}
		if spec := pt.Spec(); live < spec.Replicas {
			if short++; short == 1 {
				c.Detail = fmt.Sprintf("%s partition %d has %d of %d copies alive", spec.Name, spec.Partition, live, spec.Replicas)
			}
		}
	}
	if short > 1 {
		c.Detail = fmt.Sprintf("%d partitions held here lack live copies, such as %s", short, c.Detail)
	}
	return c
}

// shardOwned reports whether a catalog shard has an owner that this node knows of.
func (n *Node) shardOwned(i int) bool {
	g := ring.CatalogGroup(n.mesh(), i)
	if lg, ok := n.host.Group(g); ok {
		return n.ownerKnown(lg.Status())
	}
	owner, _, ok := n.dir.Owner(g) // as it was heard last, and nobody takes it back when the owner dies
	return ok && n.dir.Alive(owner)
}

// ownerKnown reports whether a replica here has an owner to follow. A voter forgets an owner that fell silent; a learner, which stands
// for no election, remembers it for ever, so for learners gossip must know it as alive.
func (n *Node) ownerKnown(st replica.Status) bool {
	return !st.Owner.IsZero() && (st.Role != replica.RoleLearner || n.dir.Alive(st.Owner))
}
