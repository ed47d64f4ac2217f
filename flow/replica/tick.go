package replica

import (
	"slices"

	"github.com/skeinmesh/skein/ring"
)

// tickState is what the ticking goroutine keeps from tick to tick.
type tickState struct {
	groups  *[]*Group
	peers   []ring.NodeID // with whom this node shares groups
	peersAt uint64
	leases  map[ring.NodeID]lease
	boots   map[ring.NodeID]uint64 // runs of the peers' processes at the last tick
}

// tick is one tick of the node: beats go out, groups that are awake are told, and those that rest are looked after.
func (h *Host) tick(t *tickState) {
	now := h.clock.Add(1)
	groups := h.list.Load()
	if t.groups != groups || now >= t.peersAt {
		t.groups, t.peersAt = groups, now+peersEvery
		t.peers = h.sharing(t.peers[:0], *groups)
		h.outbox.retain(t.peers)
	}
	if beating && now%uint64(h.cfg.HeartbeatTicks) == 0 {
		for _, n := range t.peers {
			h.outbox.add(n, ring.GroupID{}, beatMessage(h.beats.next(n)), true)
		}
	}
	h.beats.leases(now, t.leases)
	lease := func(n ring.NodeID) lease {
		if l, ok := t.leases[n]; ok {
			return l
		}
		return (*peerBeats)(nil).lease(now)
	}
	spared := t.steady(uint64(h.cfg.ElectionTicks)) && now%allEvery != 0
	for _, g := range *groups {
		r := g.resting.Load()
		switch {
		case r == nil:
			g.inbox.put(func(in *input) { in.tick = true })
		case !(spared && len(r.off) == 0) && r.lapsed(lease, uint64(h.cfg.ElectionTicks)):
			g.inbox.put(func(in *input) { in.lapsed = true })
		case now >= r.look.Load():
			g.inbox.put(func(in *input) { in.look = true })
		}
	}
}

// allEvery is how many ticks pass before all rests are looked through though beats are steady: a group may have lain down by a beat that was
// the last of its run.
const allEvery = 4

// steady says whether beats come and go with every peer, from the same runs of their processes as at the last tick: then no rest lapsed
// that relies on them alone.
func (t *tickState) steady(limit uint64) bool {
	steady := len(t.leases) == len(t.boots)
	for n, l := range t.leases {
		steady = steady && l.boot == t.boots[n] && l.silence < limit && l.unheard < limit
		t.boots[n] = l.boot
	}
	if len(t.leases) != len(t.boots) {
		clear(t.boots) // some peer is forgotten: the next tick looks at all again
	}
	return steady
}

// peersEvery is how many ticks pass before it is looked up again with whom this node shares groups, when no group came or went.
const peersEvery = 20

// sharing lists the other nodes that hold a member of a group here.
func (h *Host) sharing(out []ring.NodeID, groups []*Group) []ring.NodeID {
	for _, g := range groups {
		for _, m := range g.status.Load().Members {
			if m.Node != h.cfg.Self && !slices.Contains(out, m.Node) {
				out = append(out, m.Node)
			}
		}
	}
	return out
}
