package node

import (
	"math"
	"sync"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// directory turns gossip's view into what flow and replica ask: names, hints, and placements by the ring. Placements are
// computed once for each set of members. Safe for concurrent use.
type directory struct {
	self ring.NodeID
	name string
	view func() *view.View

	mu      sync.Mutex
	of      *view.View // the view that the rings below were made of
	all     *ring.Ring // every member: what holds data counts until it is replaced
	present *ring.Ring // those held for alive: where something new may go
}

// Owner is gossip's best hint.
func (d *directory) Owner(g ring.GroupID) (ring.NodeID, uint64, bool) {
	h, ok := d.view().Owner(g)
	return h.Owner, h.Term, ok
}

// Name is a member's name, or its id. A member that is gone and whose name another one took over, as a wiped node does when it comes
// back under a new id, is told apart by the beginning of its id: the copies that it held are not the newcomer's.
func (d *directory) Name(n ring.NodeID) string {
	if n == d.self {
		return d.name
	}
	v := d.view()
	m, ok := v.Member(n)
	if !ok || m.Name == "" {
		return n.String()
	}
	if !m.Present() && (m.Name == d.name || d.takenOver(v, m)) {
		return m.Name + "~" + n.String()[:8]
	}
	return m.Name
}

func (d *directory) takenOver(v *view.View, m view.Member) bool {
	by, ok := v.ByName(m.Name)
	return ok && by.ID != m.ID && by.Present()
}

// Addresses are where the transport finds the other members. One that is gone has none once another member listens there.
func (d *directory) Addresses() map[ring.NodeID]string {
	members := d.view().Members()
	taken := map[string]bool{}
	for _, m := range members {
		if m.Present() {
			taken[m.QUICAddr] = true
		}
	}
	out := map[ring.NodeID]string{}
	for _, m := range members {
		if m.QUICAddr != "" && m.State != view.StateUnknown && (m.Present() || !taken[m.QUICAddr]) {
			out[m.ID] = m.QUICAddr
		}
	}
	return out
}

// Live lists the members held for alive.
func (d *directory) Live() []ring.NodeID {
	var out []ring.NodeID
	for _, m := range d.view().Members() {
		if m.Present() {
			out = append(out, m.ID)
		}
	}
	return out
}

// Alive reports whether gossip holds the node for alive.
func (d *directory) Alive(n ring.NodeID) bool { return n == d.self || d.view().Alive(n) }

// Replicas proposes n live nodes for a new group.
func (d *directory) Replicas(g ring.GroupID, n int) []ring.NodeID {
	_, present := d.rings()
	return present.Replicas(g, n, nil)
}

// Desired proposes where a group should live, keeping what it has.
func (d *directory) Desired(g ring.GroupID, want int, current []ring.NodeID) []ring.NodeID {
	all, _ := d.rings()
	return all.Replicas(g, want, current)
}

// Takes reports whether something new may go to the node.
func (d *directory) Takes(n ring.NodeID) bool {
	m, ok := d.view().Member(n)
	return ok && m.Present() && !m.Cordoned() && m.Flags&view.Leaving == 0
}

// Leaving reports whether the node hands away what it owns.
func (d *directory) Leaving(n ring.NodeID) bool {
	m, ok := d.view().Member(n)
	return ok && m.Flags&(view.Draining|view.Leaving) != 0
}

// Relief proposes no swap: what a group has stays while it is where it may be.
func (d *directory) Relief(ring.GroupID, []ring.NodeID) (from, to ring.NodeID, ok bool) {
	return ring.NodeID{}, ring.NodeID{}, false
}

// Share bounds nothing: any number of replicas is this node's share.
func (d *directory) Share() (low, high int) { return 0, math.MaxInt }

// Owned counts by what the nodes said of themselves.
func (d *directory) Owned(n ring.NodeID) (count, mean, high int) {
	total, nodes := 0, 0
	for _, m := range d.view().Members() {
		if m.ID == n {
			count = int(m.Load.Owned)
		}
		if m.Present() && m.Flags&(view.Draining|view.Leaving) == 0 {
			total, nodes = total+int(m.Load.Owned), nodes+1
		}
	}
	nodes = max(nodes, 1)
	return count, (total + nodes - 1) / nodes, (5*total + 4*nodes - 1) / (4 * nodes)
}

// rings are the placements of the newest view. Only members of the mesh count: a node that is still joining holds nothing.
func (d *directory) rings() (all, present *ring.Ring) {
	v := d.view()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == v {
		return d.all, d.present
	}
	var everyone, there []ring.Member
	for _, m := range v.Members() {
		if m.State == view.StateUnknown || m.Mesh.IsZero() && m.ID != d.self {
			continue
		}
		rm := ring.Member{ID: m.ID, Zone: m.Zone, Weight: int(m.Weight), Cordoned: m.Cordoned()}
		if m.Present() {
			there = append(there, rm)
		} else {
			rm.Cordoned = true // it keeps what it has, and gets nothing new
		}
		everyone = append(everyone, rm)
	}
	d.of = v
	d.all = remake(d.all, everyone)
	d.present = remake(d.present, there)
	return d.all, d.present
}

// remake keeps a ring whose members did not change: most views differ in loads alone.
func remake(old *ring.Ring, members []ring.Member) *ring.Ring {
	if old != nil && sameMembers(old.Members(), members) {
		return old
	}
	return ring.New(members, 0)
}

// sameMembers compares with members in the view's order, which is by id as in a ring.
func sameMembers(a, b []ring.Member) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		want := b[i]
		want.Weight = max(want.Weight, 1)
		if a[i] != want {
			return false
		}
	}
	return true
}
