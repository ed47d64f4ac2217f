package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/api"
	"github.com/skeinmesh/skein/node/ops"
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
	s := api.MeshSummary{View: p.head(now), Reasons: []string{}, Notes: []string{}, Hottest: []api.PartitionLoad{}, UnderReplicated: []api.UnderReplicated{}}
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
		if note := p.note(m); note != "" {
			s.Notes = append(s.Notes, note)
		}
	}
	s.Notes = append(s.Notes, sharedNames(p.n.gossip.View().Members())...)
	if p.n.mesh().IsZero() {
		s.Reasons = append(s.Reasons, p.n.notJoined())
		p.judge(&s, 0)
		return s, nil
	}
	list, err := p.n.broker.List(ctx)
	if err != nil {
		list.Incomplete = "the catalog does not answer, and how many streams there are is not known: " + err.Error()
	}
	if s.Incomplete = list.Incomplete; s.Incomplete != "" {
		s.Reasons = append(s.Reasons, s.Incomplete)
	}
	streams := list.Streams
	s.Streams = len(streams)
	p.n.ops.reports.refresh(ctx)
	w := p.n.world(now)
	sum := summing{p: p, s: &s, w: w}
	for i := range streams {
		sum.stream(&streams[i])
	}
	sum.catalog()
	sum.end()
	p.judge(&s, sum.short)
	return s, nil
}

// note says what a member is about that is no fault; "" when nothing.
func (p meshPages) note(m view.Member) string {
	name := p.n.dir.Name(m.ID)
	switch {
	case !m.Present():
		return ""
	case m.Draining() && m.Load.Partitions == 0:
		return name + " is drained: it holds nothing"
	case m.Draining():
		return fmt.Sprintf("%s is draining: copies left: %d, owner of: %d", name, m.Load.Partitions, m.Load.Owned)
	case m.Leaving():
		return name + " is stopping"
	case m.Cordoned():
		return name + " is cordoned: it gets nothing new"
	}
	return ""
}

// sharedNames notes names that several nodes have: lists cannot tell those apart.
func sharedNames(members []view.Member) (notes []string) {
	count := map[string]int{}
	for _, m := range members {
		if m.Present() && m.Name != "" {
			count[m.Name]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if count[name] > 1 {
			notes = append(notes, fmt.Sprintf("%d nodes are named %s: give each a name of its own", count[name], name))
		}
	}
	return notes
}

// summing adds partitions to a summary.
type summing struct {
	p     meshPages
	s     *api.MeshSummary
	w     ops.World
	short int // partitions that lack copies, also those beyond the list
	moves int
	zones int // partitions whose copies could be spread over more zones
}

// maxUnderReplicated bounds the list in a summary.
const maxUnderReplicated = 100

func (m *summing) stream(st *flow.StreamInfo) {
	for i := range st.Partitions {
		pt := &st.Partitions[i]
		m.s.Partitions++
		rep, known := m.p.n.overlay(pt)
		if !m.p.present(pt.Owner) { // not known, or gone and no other one elected
			m.s.Ownerless++
		}
		if known {
			m.group(st.Name, pt.ID, rep)
		} else {
			m.unknown(st, pt)
		}
		if rate := m.p.n.rates.of(pt.Group); rate > 0 {
			m.s.Hottest = append(m.s.Hottest, api.PartitionLoad{Stream: st.Name, Partition: pt.ID, Owner: pt.Owner, BytesPerSecond: rate})
		}
	}
}

// group judges the copies of a group whose members are known.
func (m *summing) group(stream string, p ring.PartitionID, rep ops.Report) {
	if lack := m.w.Lack(rep); lack != "" {
		m.lacks(api.UnderReplicated{Stream: stream, Partition: p, Wanted: rep.Want, Live: m.w.Live(rep), Reason: lack})
	} else if m.w.Spreadable(rep) {
		m.zones++
	}
	if !rep.MoveTo.IsZero() {
		m.moves++
	}
}

// unknown judges a partition of which only the definition is known: it names the founding members.
func (m *summing) unknown(st *flow.StreamInfo, pt *flow.PartitionInfo) {
	live := 0
	for _, name := range pt.Replicas {
		if m.p.present(name) {
			live++
		}
	}
	if want := st.Config.Replicas; live < want {
		m.lacks(api.UnderReplicated{Stream: st.Name, Partition: pt.ID, Wanted: want, Live: live,
			Reason: "its owner does not tell of its copies; of the founding ones so many are there"})
	}
}

func (m *summing) lacks(u api.UnderReplicated) {
	if m.short++; len(m.s.UnderReplicated) < maxUnderReplicated {
		m.s.UnderReplicated = append(m.s.UnderReplicated, u)
	}
}

// catalog adds the shards whose copies could be mended. That a mesh of one or two has fewer is told of its streams.
func (m *summing) catalog() {
	info := m.p.n.catalogInfo()
	for i := range info.Partitions {
		if rep, ok := m.p.n.overlay(&info.Partitions[i]); ok && m.w.Mendable(rep) {
			m.group(catalogStream, info.Partitions[i].ID, rep)
		}
	}
}

func (m *summing) end() {
	s := m.s
	if m.zones > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("%d partitions have all copies in one zone, although another zone could hold one", m.zones))
	}
	if m.moves > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("copies that are moving: %d", m.moves))
	}
	slices.SortFunc(s.Hottest, func(a, b api.PartitionLoad) int { return cmp.Compare(b.BytesPerSecond, a.BytesPerSecond) })
	s.Hottest = s.Hottest[:min(len(s.Hottest), 10)]
}

// present reports whether gossip holds the member of that name for alive.
func (p meshPages) present(name string) bool {
	m, ok := p.n.gossip.View().ByName(name)
	return ok && m.Present()
}

// judge puts the summary's health into a word; short partitions lack copies.
func (p meshPages) judge(s *api.MeshSummary, short int) {
	critical := s.Ownerless > 0 || len(s.Reasons) > 0
	if s.Ownerless > 0 {
		s.Reasons = append(s.Reasons, fmt.Sprintf("%d partitions have no known owner", s.Ownerless))
	}
	if gone := s.Nodes - s.Alive - s.Suspect; gone > 0 {
		s.Reasons = append(s.Reasons, fmt.Sprintf("dead nodes: %d of %d", gone, s.Nodes))
	}
	if short > 0 {
		s.Reasons = append(s.Reasons, fmt.Sprintf("%d partitions have fewer live copies than wanted: %s", short, s.UnderReplicated[0].Reason))
	}
	if !p.n.mesh().IsZero() && ofTwo(p.n.gossip.View()) {
		s.Reasons = append(s.Reasons, twoNodes)
	}
	s.Reasons = append(s.Reasons, p.n.gaveUp()...)
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
		out.Members = append(out.Members, p.member(m, now))
	}
	return out, nil
}

func (p meshPages) member(m view.Member, now time.Time) api.Member {
	out := api.Member{Node: p.n.dir.Name(m.ID), ID: m.ID, State: m.State.String(), Since: m.Since.UTC(), Zone: m.Zone,
		Weight: float64(m.Weight) / weightUnit, Version: m.Version, HTTP: m.HTTPAddr, QUIC: m.QUICAddr, Gossip: m.GossipAddr,
		Cordoned: m.Cordoned(), Draining: m.Draining(), Leaving: m.Leaving(),
		Fatigue: float64(m.Load.Fatigue), CPUPercent: float64(m.Load.CPUPercent), MemPercent: float64(m.Load.MemPercent),
		Owned: int(m.Load.Owned), Replicas: int(m.Load.Partitions), StalenessMS: p.staleness(m, now)}
	if !m.Present() && m.State != view.StateUnknown {
		at := m.Since.Add(p.n.cfg.Load().ReplaceAfter).UTC()
		out.ReplacedAt = &at
	}
	return out
}

// Ring is the ring as this node computes it.
func (p meshPages) Ring(ctx context.Context) (api.MeshRing, error) {
	now := time.Now()
	r := p.n.dir.Counted().Ring()
	out := api.MeshRing{View: p.head(now), Epoch: fmt.Sprintf("%016x", r.Epoch()), Slots: r.Slots(), Factor: ring.LoadFactor, Members: []api.RingShare{}}
	slots, homes := map[ring.NodeID]int{}, map[ring.NodeID]int{}
	for i := range r.Slots() {
		if id, ok := r.SlotHome(i); ok {
			slots[id]++
		}
	}
	list, err := p.n.broker.List(ctx)
	if err != nil {
		return out, err
	}
	out.Incomplete = list.Incomplete
	for _, s := range list.Streams {
		for i := range s.Partitions {
			if id, ok := r.Home(s.Partitions[i].Group); ok {
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
