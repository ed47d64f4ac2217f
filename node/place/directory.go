package place

import (
	"sync"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// Config says whose picture of the mesh a Directory is and where it comes from. Its functions are called by many goroutines at a time,
// also with the Directory's lock held: they must neither block nor call it.
type Config struct {
	Self ring.NodeID
	// Name is this node's own.
	Name string
	// View is gossip's newest; one value never changes.
	View func() *view.View
	// Rules are those in force now.
	Rules func() Rules
	// Now is the wall clock.
	Now func() time.Time
	// GivenUp tells of node ids that nobody may use any more: what they held is lost, at once. nil: there are none.
	GivenUp func(ring.NodeID) bool
}

// Directory turns gossip's view into what flow and replica ask: names, hints, and placements by the ring. It hints and proposes, and
// grants nothing. All methods are safe for concurrent use and never block.
type Directory struct {
	cfg Config

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

// New makes a directory; of its configuration only GivenUp may be nil. It starts nothing, and needs no end.
func New(cfg Config) *Directory {
	if cfg.GivenUp == nil {
		cfg.GivenUp = func(ring.NodeID) bool { return false }
	}
	return &Directory{cfg: cfg, gone: map[ring.NodeID]absence{}, declined: map[ring.NodeID]time.Time{}}
}

// Owner is gossip's best hint.
func (d *Directory) Owner(g ring.GroupID) (ring.NodeID, uint64, bool) {
	h, ok := d.cfg.View().Owner(g)
	return h.Owner, h.Term, ok
}

// Name is a member's name, or its id. A member that is gone and whose name another one took over, as a wiped node does when it comes
// back under a new id, is told apart by the beginning of its id: the copies that it held are not the newcomer's.
func (d *Directory) Name(n ring.NodeID) string {
	if n == d.cfg.Self {
		return d.cfg.Name
	}
	v := d.cfg.View()
	m, ok := v.Member(n)
	if !ok || m.Name == "" {
		return n.String()
	}
	if !m.Present() && (m.Name == d.cfg.Name || d.takenOver(v, m)) {
		return m.Name + "~" + n.String()[:8]
	}
	return m.Name
}

func (d *Directory) takenOver(v *view.View, m view.Member) bool {
	by, ok := v.ByName(m.Name)
	return ok && by.ID != m.ID && by.Present()
}

// Addresses are where the transport finds the other members. One that is gone has none once another member listens there.
func (d *Directory) Addresses() map[ring.NodeID]string {
	members := d.cfg.View().Members()
	taken := map[string]bool{}
	for _, m := range members {
		if m.Present() {
			taken[m.QUICAddr] = true
		}
	}
	out := map[ring.NodeID]string{}
	for _, m := range members {
		if m.QUICAddr != "" && !d.cfg.GivenUp(m.ID) && m.State != view.StateUnknown && (m.Present() || !taken[m.QUICAddr]) {
			out[m.ID] = m.QUICAddr
		}
	}
	return out
}

// Live lists the members held for alive, this node included.
func (d *Directory) Live() []ring.NodeID {
	out := []ring.NodeID{d.cfg.Self}
	for _, m := range d.cfg.View().Members() {
		if m.ID != d.cfg.Self && m.Present() && !d.cfg.GivenUp(m.ID) {
			out = append(out, m.ID)
		}
	}
	return out
}

// Alive reports whether gossip holds the node for alive.
func (d *Directory) Alive(n ring.NodeID) bool {
	return n == d.cfg.Self || d.cfg.View().Alive(n) && !d.cfg.GivenUp(n)
}
