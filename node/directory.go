package node

import (
	"sync"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// directory turns gossip's view into what flow and replica ask: names, hints, and placements by the ring (placement.go). Safe for
// concurrent use.
type directory struct {
	self ring.NodeID
	name string
	view func() *view.View
	// rules are those in force now; now is the time.
	rules func() placementRules
	now   func() time.Time
	// givenUp tells of node ids that nobody may use any more: what they held is lost, at once.
	givenUp func(ring.NodeID) bool

	mu sync.Mutex
	// silence is how long the replicas here have not heard of a node; nil: they are not open yet.
	silence func(ring.NodeID) time.Duration

	of     *view.View  // the view that what follows was made of
	at     time.Time   // and when: members grow old without any news
	tally  *ring.Tally // every member that something may still be on, and how much each holds
	recent []placed    // new groups that loads do not tell of yet
	gone   map[ring.NodeID]absence
	// declined are members that said themselves that they take nothing new, and when.
	declined map[ring.NodeID]time.Time
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
		if m.QUICAddr != "" && !d.isGivenUp(m.ID) && m.State != view.StateUnknown && (m.Present() || !taken[m.QUICAddr]) {
			out[m.ID] = m.QUICAddr
		}
	}
	return out
}

// Live lists the members held for alive, this node included.
func (d *directory) Live() []ring.NodeID {
	out := []ring.NodeID{d.self}
	for _, m := range d.view().Members() {
		if m.ID != d.self && m.Present() && !d.isGivenUp(m.ID) {
			out = append(out, m.ID)
		}
	}
	return out
}

// Alive reports whether gossip holds the node for alive.
func (d *directory) Alive(n ring.NodeID) bool {
	return n == d.self || d.view().Alive(n) && !d.isGivenUp(n)
}

func (d *directory) isGivenUp(n ring.NodeID) bool { return d.givenUp != nil && d.givenUp(n) }
