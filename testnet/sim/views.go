package sim

import (
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/gossip/view"
)

// gossip is a node's picture of the mesh: what it says of itself, with what others believed at some time before.
type gossip struct {
	nd   *node
	view atomic.Pointer[view.View]

	// The loop owns what follows.
	past        []*view.View // the newest last
	incarnation uint64
	loads       uint64
	beliefs     uint64
	frozen      bool // hears nothing
}

// memory is how many old pictures of a node may be met by others.
const memory = 12

func (g *gossip) init(nd *node) {
	g.nd = nd
	g.restart()
	for _, o := range nd.m.nodes {
		g.believe(o, view.StateAlive)
	}
}

// restart forgets all but the node itself, as a process does.
func (g *gossip) restart() {
	g.incarnation++
	g.past = nil
	v := view.New(g.nd.id, view.Limits{})
	g.view.Store(v)
	g.hear(view.Update{Members: []view.Member{{Identity: g.identity()}}})
	g.believe(g.nd, view.StateAlive)
}

func (g *gossip) identity() view.Identity {
	return view.Identity{ID: g.nd.id, Name: name(g.nd.i), Zone: "z", Version: "sim", Mesh: g.nd.m.id, QUICAddr: name(g.nd.i), Weight: 100,
		Flags: g.nd.flags, Protocol: 2, Floor: 1, Incarnation: g.incarnation}
}

func (g *gossip) hear(u view.Update) {
	v, _ := g.view.Load().Merge(u)
	g.view.Store(v)
}

// believe is what the failure detector of this node thinks of another.
func (g *gossip) believe(o *node, s view.State) {
	if m, ok := g.view.Load().Member(o.id); ok && m.State == s {
		return
	}
	g.beliefs++
	g.hear(view.Update{Members: []view.Member{{Identity: view.Identity{ID: o.id}, State: s, Since: time.Now(), Observed: g.beliefs}}})
}

// announce says what the node is and owns.
func (g *gossip) announce() {
	p := g.nd.proc.Load()
	if p == nil {
		return
	}
	g.incarnation++
	g.loads++
	u := view.Update{}
	var load view.Load
	for _, rg := range p.host.Groups() {
		st := rg.Status()
		load.Partitions++
		if st.Role == replica.RoleOwner && st.Ready {
			load.Owned++
			u.Hints = append(u.Hints, view.HeardHint{Hint: view.Hint{Group: st.Group, Owner: g.nd.id, Term: st.Term}, At: time.Now()})
		}
	}
	u.Members = []view.Member{{Identity: g.identity(), Load: load, LoadSeq: g.loads, LoadAt: time.Now()}}
	g.hear(u)
	g.past = append(g.past, g.view.Load())
	g.past = g.past[max(0, len(g.past)-memory):]
}

// meet has the node hear a part of an old picture of another; whole: all of the newest.
func (g *gossip) meet(o *gossip, whole bool) {
	if len(o.past) == 0 || g.frozen && !whole {
		return
	}
	rng := g.nd.m.w.rng
	v := o.past[len(o.past)-1]
	if !whole {
		v = o.past[rng.IntN(len(o.past))]
	}
	u := view.Update{}
	for _, m := range v.Members() {
		if whole || rng.IntN(4) > 0 {
			m.State, m.Since, m.Observed = view.StateUnknown, time.Time{}, 0 // each believes for itself
			u.Members = append(u.Members, m)
		}
	}
	for _, h := range v.Hints() {
		if whole || rng.IntN(4) > 0 {
			u.Hints = append(u.Hints, h)
		}
	}
	g.hear(u)
}

// gossipForEver lets a node gossip at random intervals.
func (m *mesh) gossipForEver(nd *node) {
	m.w.after(m.w.between(100*time.Millisecond, 500*time.Millisecond), func() {
		m.gossipForEver(nd)
		g := &nd.gossip
		if nd.proc.Load() == nil {
			return
		}
		g.announce()
		for _, o := range m.nodes {
			if o == nd {
				continue
			}
			there := o.proc.Load() != nil && !m.link(nd.i, o.i).cut && !m.link(o.i, nd.i).cut
			switch r := m.w.rng.IntN(20); {
			case m.calm && there:
				g.believe(o, view.StateAlive)
				g.meet(&o.gossip, true)
			case m.calm:
				g.believe(o, view.StateDead)
			case g.frozen:
			case r == 0: // mistaken
				g.believe(o, view.StateDead)
			case r < 8 && there:
				g.believe(o, view.StateAlive)
				g.meet(&o.gossip, false)
			case r < 12 && !there:
				g.believe(o, view.StateSuspect)
			case r < 14 && !there:
				g.believe(o, view.StateDead)
			}
		}
	})
}
