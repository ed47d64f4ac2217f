package replica

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"pgregory.net/rapid"
)

// world is one group on a few nodes that come, go, and are drained. It follows the plan of whoever owns the group.
type world struct {
	want    int
	nodes   []worldNode // node i+1
	members []PlanMember
	self    ring.ReplicaID
	last    ring.ReplicaID
	move    *Swap
	closed  map[ring.ReplicaID]bool // for good
}

type worldNode struct{ there, lost, drained bool }

func (w *world) node(n ring.NodeID) *worldNode { return &w.nodes[n[15]-1] }

// works is true of a member that runs.
func (w *world) works(m PlanMember) bool { return w.node(m.Node).there && !w.closed[m.ID] }

// moving is true while the move can go on: its owner gives it up else.
func (w *world) moving() bool {
	return w.move != nil && holds(w.members, w.move.From) && w.node(w.move.To).there && !w.node(w.move.To).drained
}

// desired keeps what may stay, then adds what is there, and nodes that closed their copy only if no others are.
func (w *world) desired() (out []ring.NodeID, alive []bool) {
	add := func(n ring.NodeID, ok bool) {
		if d := w.node(n); ok && !d.lost && !d.drained && len(out) < w.want && !slices.Contains(out, n) {
			out, alive = append(out, n), append(alive, d.there)
		}
	}
	moving := w.moving()
	shunned := func(n ring.NodeID) bool {
		return slices.ContainsFunc(w.members, func(m PlanMember) bool { return m.Node == n && w.closed[m.ID] && w.node(n).there })
	}
	for _, learner := range []bool{false, true} {
		for _, m := range w.members {
			if m.Learner == learner && !(moving && w.move.To == m.Node) && !shunned(m.Node) {
				add(m.Node, true)
			}
		}
	}
	for _, last := range []bool{false, true} {
		for i := range w.nodes {
			if n := pnode(byte(i + 1)); shunned(n) == last {
				add(n, w.nodes[i].there)
			}
		}
	}
	return out, alive
}

// input is what the owner sees.
func (w *world) input() PlanInput {
	in := PlanInput{Self: w.self, Commit: 10_000, Want: w.want}
	in.Desired, in.DesiredAlive = w.desired()
	for _, m := range w.members {
		d := w.node(m.Node)
		m.Alive, m.Active, m.Leaving, m.Closed = d.there, w.works(m), d.drained, d.there && w.closed[m.ID]
		in.Members = append(in.Members, m)
	}
	if w.moving() {
		in.Move = w.move
	}
	return in
}

func (w *world) member(id ring.ReplicaID) *PlanMember {
	i := slices.IndexFunc(w.members, func(m PlanMember) bool { return m.ID == id })
	return &w.members[i]
}

// quorum reports whether a majority of the voters is there.
func (w *world) quorum() bool {
	n, there := 0, 0
	for _, m := range w.members {
		if !m.Learner {
			n++
			if w.works(m) {
				there++
			}
		}
	}
	return there > n/2
}

// elect gives the group an owner that is there and has caught up.
func (w *world) elect() {
	if w.works(*w.member(w.self)) {
		return
	}
	for _, m := range w.members {
		if !m.Learner && w.works(m) && m.Match == 10_000 {
			w.self = m.ID
		}
	}
}

func (w *world) catchUp(id ring.ReplicaID) {
	m := w.member(id)
	m.Match, m.Replicating = 10_000, true
}

// do performs a step and holds it against the rules.
func (w *world) do(t *rapid.T, s Step) {
	before := w.input()
	switch s.Kind {
	case StepNone:
	case StepAddLearner:
		if holds(w.members, s.Node) {
			t.Fatalf("a second replica on %v", s.Node)
		}
		w.last++
		w.members = append(w.members, PlanMember{Member: Member{ID: w.last, Node: s.Node, Learner: true}, Owned: 3, Mean: 4, High: 5})
	case StepTransfer:
		if m := w.member(s.IDs[0]); m.Learner || !w.works(*m) || w.node(m.Node).drained {
			t.Fatalf("ownership goes to %+v", m)
		}
		w.self = s.IDs[0]
	default:
		w.change(t, s, before)
	}
}

func (w *world) change(t *rapid.T, s Step, before PlanInput) {
	if slices.Contains(append(slices.Clone(s.Remove), s.Demote...), w.self) {
		t.Fatal("the owner removes itself")
	}
	copies := func(voters bool) (n int) {
		for _, m := range w.members {
			if w.works(m) && m.Match > 0 && (!m.Learner || !voters) {
				n++
			}
		}
		return n
	}
	had, renewed := copies(true), 0 // voters closed for good that are to come anew on their nodes
	for _, m := range w.members {
		if slices.Contains(s.Remove, m.ID) && !m.Learner && w.closed[m.ID] && slices.Contains(before.wanted(), m.Node) {
			renewed++
		}
	}
	if renewed > 0 && len(s.Remove)+len(s.Demote)+len(s.IDs) > 1 {
		t.Fatalf("%+v renews more than one copy at a time", s)
	}
	for i := range w.members {
		m := &w.members[i]
		switch {
		case slices.Contains(s.IDs, m.ID):
			if !m.Learner || m.Match == 0 {
				t.Fatalf("promotes %+v", *m)
			}
			m.Learner = false
		case slices.Contains(s.Demote, m.ID):
			m.Learner = true
		}
	}
	w.members = slices.DeleteFunc(w.members, func(m PlanMember) bool { return slices.Contains(s.Remove, m.ID) })
	if !w.quorum() {
		t.Fatalf("%+v leaves no majority: %+v", s, w.members)
	}
	if n := copies(false); n < min(had, len(before.wanted())) {
		t.Fatalf("%+v leaves %d copies of %d", s, n, had)
	}
	if n := planVoters(PlanInput{Members: w.members}); n%2 == 0 && n != planVoters(before) && (n != 2 || len(before.wanted()) != 1) && renewed == 0 {
		t.Fatalf("%d voters after %+v, wanted %v, members %+v", n, s, before.wanted(), before.Members)
	}
}

// trouble changes something about a node, but takes no group its majority.
func (w *world) trouble(t *rapid.T) {
	i := rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node")
	was := w.nodes[i]
	wasClosed := maps.Clone(w.closed)
	switch d := &w.nodes[i]; rapid.IntRange(0, 7).Draw(t, "what") {
	case 0:
		d.there = false
	case 1, 2:
		d.there, d.lost = true, false
	case 3:
		d.lost = !d.there
	case 4:
		d.drained = !d.drained
	case 5:
		w.want = rapid.SampledFrom([]int{1, 2, 3, 5}).Draw(t, "want")
	case 6:
		from := rapid.SampledFrom(w.members).Draw(t, "from").Node
		if to := pnode(byte(i + 1)); !holds(w.members, to) && d.there && !d.drained {
			w.move = &Swap{From: from, To: to}
		}
	case 7:
		w.closed[rapid.SampledFrom(w.members).Draw(t, "closed").ID] = true
	}
	if !w.quorum() || (!w.works(*w.member(w.self)) && !slices.ContainsFunc(w.members, func(m PlanMember) bool {
		return !m.Learner && w.works(m) && m.Match == 10_000
	})) {
		w.nodes[i], w.closed = was, wasClosed
	}
	w.elect()
}

// Whatever comes and goes, no step takes the group its majority, its owner, or a copy that it needs; and once things are quiet it
// reaches the wanted shape, leaves the drained nodes, and rests.
func TestPlanIsSafeAndConvergesWhateverComesAndGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{want: rapid.SampledFrom([]int{1, 2, 3, 5}).Draw(t, "want"), self: 1, last: 1, closed: map[ring.ReplicaID]bool{}}
		for range rapid.IntRange(1, 7).Draw(t, "nodes") {
			w.nodes = append(w.nodes, worldNode{there: true})
		}
		w.members = []PlanMember{pm(1, false)}
		w.catchUp(1)
		now := time.Unix(0, 0)
		for range rapid.IntRange(0, 60).Draw(t, "rounds") {
			switch rapid.IntRange(0, 2).Draw(t, "turn") {
			case 0:
				w.trouble(t)
			case 1:
				if m := rapid.SampledFrom(w.members).Draw(t, "id"); w.works(m) {
					w.catchUp(m.ID)
				}
			default:
				w.do(t, Plan(now, w.input()))
			}
		}
		if len(w.nodes) > 1 && slices.ContainsFunc(w.nodes, func(d worldNode) bool { return !d.there && !d.lost }) {
			for i := range w.nodes { // who is away comes back or is given up
				w.nodes[i].lost = !w.nodes[i].there
			}
		}
		w.settle(t, now)
	})
}

func (w *world) settle(t *rapid.T, now time.Time) {
	for range 80 {
		for _, m := range w.members {
			if w.works(m) {
				w.catchUp(m.ID)
			}
		}
		s := Plan(now, w.input())
		if s.Kind != StepNone {
			w.do(t, s)
			continue
		}
		in := w.input()
		want := in.wanted()
		if len(want) == 0 {
			return // nobody may hold it: it stays where it is
		}
		kept := 0
		for _, m := range in.Members {
			switch {
			case m.Closed:
				t.Fatalf("rests with a copy on %v that is closed for good: %+v, wanted %v", m.Node, in.Members, want)
			case slices.Contains(want, m.Node):
			case m.Alive:
				t.Fatalf("rests with a copy on %v that should go: %+v, wanted %v", m.Node, in.Members, want)
			case len(in.Desired) >= in.Want:
				t.Fatalf("rests with a lost copy that can be replaced: %+v", in.Members)
			default:
				kept++
			}
		}
		if len(in.Members) != len(want)+kept {
			t.Fatalf("rests at %+v, wanted %v", in.Members, want)
		}
		if v := planVoters(in); kept == 0 && v != TargetVoters(len(want)) {
			t.Fatalf("rests with %d voters: %+v", v, in.Members)
		}
		return
	}
	t.Fatal("never rests")
}

// Owners that give groups to their homes and away from nodes that own too much come to rest: no group goes to and fro, and whoever
// owns more than the bound then has nobody lighter to hand to.
func TestOwnershipEvensOutAndRests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 8).Draw(t, "nodes")
		type group struct {
			home, owner int
			voters      []int
		}
		groups := make([]group, rapid.IntRange(1, 60).Draw(t, "groups"))
		owned := make([]int, nodes)
		for i := range groups {
			g := &groups[i]
			perm := rapid.Permutation(upTo(nodes)).Draw(t, "voters")
			g.voters = perm[:min(3, nodes)]
			g.home, g.owner = g.voters[0], rapid.SampledFrom(g.voters).Draw(t, "owner")
			owned[g.owner]++
		}
		mean := (len(groups) + nodes - 1) / nodes
		high := (5*len(groups) + 4*nodes - 1) / (4 * nodes)
		step := func(g *group) bool {
			in := PlanInput{Self: ring.ReplicaID(g.owner + 1), Commit: 100, PreferHome: true, EvenOut: true, HomeSince: time.Unix(0, 0)}
			in.Desired, in.DesiredAlive = desired(byte(g.home + 1))
			for _, n := range g.voters {
				m := pm(ring.ReplicaID(n+1), false)
				m.Owned, m.Mean, m.High = owned[n], mean, high
				in.Members = append(in.Members, m)
			}
			s, ok := planOwner(time.Unix(1e6, 0), in)
			if !ok || s.Kind != StepTransfer {
				return false
			}
			owned[g.owner]--
			g.owner = int(s.IDs[0]) - 1
			owned[g.owner]++
			return true
		}
		limit, moved := 4*len(groups), 0
		for quiet := false; !quiet; {
			quiet = true
			for _, i := range rapid.Permutation(upTo(len(groups))).Draw(t, "order") {
				if step(&groups[i]) {
					quiet = false
					moved++
				}
			}
			if moved > limit {
				t.Fatalf("%d hand-overs of %d groups, and no end", moved, len(groups))
			}
		}
		for i := range groups {
			g := &groups[i]
			for _, n := range g.voters {
				if owned[g.owner] > high && owned[n] < mean {
					t.Fatalf("group %d rests on a node that owns %d of at most %d, beside one that owns %d", i, owned[g.owner], high, owned[n])
				}
			}
		}
	})
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
