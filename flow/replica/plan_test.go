package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"pgregory.net/rapid"
)

func pnode(i byte) ring.NodeID { return ring.NodeID{0: 1, 15: i} }

// pm is a healthy member on node id.
func pm(id ring.ReplicaID, learner bool) PlanMember {
	return PlanMember{Member: Member{ID: id, Node: pnode(byte(id)), Learner: learner}, Match: 100, Active: true, Replicating: true, Alive: true,
		Owned: 3, Mean: 4, High: 5}
}

func desired(ns ...byte) (out []ring.NodeID, alive []bool) {
	for _, n := range ns {
		out, alive = append(out, pnode(n)), append(alive, true)
	}
	return out, alive
}

func TestPlan(t *testing.T) {
	now := time.Unix(1000, 0)
	behind := func(m PlanMember) PlanMember { m.Match, m.Replicating = 0, false; return m }
	away := func(m PlanMember) PlanMember { m.Alive, m.Active = false, false; return m }
	leaving := func(m PlanMember) PlanMember { m.Leaving = true; return m }
	refused := func(m PlanMember) PlanMember { m.Refused = true; return m }
	dead := func(m PlanMember) PlanMember { m.Dead, m.Active = true, false; return m }
	closed := func(m PlanMember) PlanMember { m.Closed, m.Active = true, false; return m }
	owns := func(m PlanMember, n int) PlanMember { m.Owned = n; return m }
	cases := []struct {
		name           string
		want           int
		on             []byte
		ms             []PlanMember
		edit           func(*PlanInput)
		kind           StepKind
		node           byte
		ids            []ring.ReplicaID
		demote, remove []ring.ReplicaID
	}{
		{name: "one node is content with one voter", want: 3, on: []byte{1}, ms: []PlanMember{pm(1, false)}},
		{name: "a second node gets a learner", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false)}, kind: StepAddLearner, node: 2},
		{name: "two nodes are one voter and one learner", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false), pm(2, true)}},
		{name: "a third node gets a learner", want: 3, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false), pm(2, true)}, kind: StepAddLearner, node: 3},
		{name: "both learners are promoted at once", want: 3, on: []byte{1, 2, 3},
			ms: []PlanMember{pm(1, false), pm(2, true), pm(3, true)}, kind: StepPromote, ids: []ring.ReplicaID{2, 3}},
		{name: "never to an even number of voters", want: 3, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false), pm(2, true), behind(pm(3, true))}},
		{name: "three voters are content", want: 3, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false)}},
		{name: "five where wanted", want: 5, on: []byte{1, 2, 3, 4, 5}, ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false), pm(4, true), pm(5, true)},
			kind: StepPromote, ids: []ring.ReplicaID{4, 5}},
		{name: "a single copy is wanted", want: 1, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false)}},
		{name: "a voter that is away is not replaced while its node is wanted", want: 3, on: []byte{1, 2, 3},
			ms: []PlanMember{pm(1, false), pm(2, false), away(pm(3, false)), pm(4, true)}, kind: StepNone},
		{name: "a lost node's copy is made elsewhere first", want: 3, on: []byte{1, 2, 4},
			ms: []PlanMember{pm(1, false), pm(2, false), away(pm(3, false))}, kind: StepAddLearner, node: 4},
		{name: "then both are swapped in one change", want: 3, on: []byte{1, 2, 4},
			ms:   []PlanMember{pm(1, false), pm(2, false), away(pm(3, false)), pm(4, true)},
			kind: StepSwap, ids: []ring.ReplicaID{4}, remove: []ring.ReplicaID{3}},
		{name: "not before the learner has caught up", want: 3, on: []byte{1, 2, 4},
			ms: []PlanMember{pm(1, false), pm(2, false), away(pm(3, false)), behind(pm(4, true))}},
		{name: "a lost voter that no node can replace stays", want: 3, on: []byte{1, 2},
			ms: []PlanMember{pm(1, false), pm(2, false), away(pm(3, false))}},
		{name: "lost voters go where three are left", want: 5, on: []byte{1, 2, 3},
			ms:   []PlanMember{pm(1, false), pm(2, false), pm(3, false), away(pm(4, false)), away(pm(5, false))},
			kind: StepSwap, remove: []ring.ReplicaID{4, 5}},
		{name: "one of three drained: one voter and one learner stay", want: 3, on: []byte{1, 2},
			ms:   []PlanMember{pm(1, false), pm(2, false), leaving(pm(3, false))},
			kind: StepSwap, demote: []ring.ReplicaID{2}, remove: []ring.ReplicaID{3}},
		{name: "not while the one that would stay is away", want: 3, on: []byte{1, 2},
			ms: []PlanMember{pm(1, false), away(pm(2, false)), leaving(pm(3, false))}},
		{name: "a drained voter waits for its replacement", want: 3, on: []byte{1, 2, 4},
			ms: []PlanMember{pm(1, false), pm(2, false), leaving(pm(3, false)), behind(pm(4, true))}},
		{name: "a drained owner hands over first", want: 3, on: []byte{2, 3, 4},
			ms: []PlanMember{leaving(pm(1, false)), pm(2, false), pm(3, false)}, kind: StepTransfer, ids: []ring.ReplicaID{2}},
		{name: "to one that took it over when it was asked", want: 3, on: []byte{2, 3, 4},
			ms:   []PlanMember{leaving(pm(1, false)), refused(pm(2, false)), pm(3, false), pm(4, true)},
			kind: StepTransfer, ids: []ring.ReplicaID{3}},
		{name: "a stopping owner hands over and changes no members", want: 3, on: []byte{1, 2, 3},
			ms: []PlanMember{leaving(pm(1, false)), pm(2, true), pm(3, true)}},
		{name: "nobody is handed the group that stops as well", want: 3, on: []byte{1, 2, 3},
			ms: []PlanMember{leaving(pm(1, false)), leaving(pm(2, false)), pm(3, false)}, kind: StepTransfer, ids: []ring.ReplicaID{3}},
		{name: "the only voter that is drained brings up two others", want: 3, on: []byte{2, 3},
			ms: []PlanMember{leaving(pm(1, false)), pm(2, true), pm(3, true)}, kind: StepPromote, ids: []ring.ReplicaID{2, 3}},
		{name: "the only voter that is drained of two nodes brings up the other one", want: 3, on: []byte{2},
			ms: []PlanMember{leaving(pm(1, false)), pm(2, true)}, kind: StepPromote, ids: []ring.ReplicaID{2}},
		{name: "which then removes it", want: 3, on: []byte{1},
			ms: []PlanMember{pm(1, false), leaving(pm(2, false))}, kind: StepSwap, remove: []ring.ReplicaID{2}},
		{name: "a drain that ends between the two leaves no two voters", want: 3, on: []byte{1, 2},
			ms: []PlanMember{pm(1, false), pm(2, false)}, kind: StepSwap, demote: []ring.ReplicaID{2}},
		{name: "all drained: nothing to be done", want: 3, ms: []PlanMember{leaving(pm(1, false)), leaving(pm(2, false)), leaving(pm(3, false))}},
		{name: "a learner that is not wanted goes", want: 3, on: []byte{1, 2, 3},
			ms:   []PlanMember{pm(1, false), pm(2, false), pm(3, false), pm(4, true)},
			kind: StepRemove, remove: []ring.ReplicaID{4}},
		{name: "not while it is the second copy", want: 2, on: []byte{1, 3},
			ms: []PlanMember{pm(1, false), leaving(pm(2, true)), behind(pm(3, true))}},
		{name: "a lost learner that no node can replace may come back", want: 3, on: []byte{1}, ms: []PlanMember{pm(1, false), away(pm(2, true))}},
		{name: "a learner that its node has no more goes", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false), dead(pm(2, true))},
			kind: StepRemove, remove: []ring.ReplicaID{2}},
		{name: "a voter that is closed for good is made elsewhere first", want: 3, on: []byte{1, 2, 4},
			ms: []PlanMember{pm(1, false), pm(2, false), closed(pm(3, false))}, kind: StepAddLearner, node: 4},
		{name: "then both are swapped", want: 3, on: []byte{1, 2, 4},
			ms:   []PlanMember{pm(1, false), pm(2, false), closed(pm(3, false)), pm(4, true)},
			kind: StepSwap, ids: []ring.ReplicaID{4}, remove: []ring.ReplicaID{3}},
		{name: "a learner that is there anyway takes its place", want: 4, on: []byte{1, 2, 4, 3},
			ms:   []PlanMember{pm(1, false), pm(2, false), closed(pm(3, false)), pm(4, true)},
			kind: StepSwap, ids: []ring.ReplicaID{4}, demote: []ring.ReplicaID{3}},
		{name: "without a spare node it goes, to come anew", want: 3, on: []byte{1, 2, 3},
			ms: []PlanMember{pm(1, false), pm(2, false), closed(pm(3, false))}, kind: StepRemove, node: 3, remove: []ring.ReplicaID{3}},
		{name: "its node then gets a learner", want: 3, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false), pm(2, false)}, kind: StepAddLearner, node: 3},
		{name: "the two voters that are left wait for it", want: 3, on: []byte{1, 2, 4}, ms: []PlanMember{pm(1, false), pm(2, false), behind(pm(4, true))}},
		{name: "it votes when it has caught up", want: 3, on: []byte{1, 2, 4}, ms: []PlanMember{pm(1, false), pm(2, false), pm(4, true)},
			kind: StepPromote, ids: []ring.ReplicaID{4}},
		{name: "it stays where those that work are no majority without it", want: 3, on: []byte{1, 2, 3},
			ms: []PlanMember{pm(1, false), away(pm(2, false)), closed(pm(3, false))}},
		{name: "of two one goes", want: 5, on: []byte{1, 2, 3, 4, 5},
			ms:   []PlanMember{pm(1, false), pm(2, false), pm(3, false), closed(pm(4, false)), closed(pm(5, false))},
			kind: StepRemove, remove: []ring.ReplicaID{4}},
		{name: "and the other one waits for what comes in its place", want: 5, on: []byte{1, 2, 3, 5, 6},
			ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false), closed(pm(5, false)), behind(pm(6, true))}},
		{name: "which makes the voters odd again", want: 5, on: []byte{1, 2, 3, 5, 6},
			ms:   []PlanMember{pm(1, false), pm(2, false), pm(3, false), closed(pm(5, false)), pm(6, true)},
			kind: StepPromote, ids: []ring.ReplicaID{6}},
		{name: "a learner that is closed for good goes", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false), closed(pm(2, true))},
			kind: StepRemove, remove: []ring.ReplicaID{2}},
		{name: "a lost learner is replaced", want: 2, on: []byte{1, 3},
			ms: []PlanMember{pm(1, false), away(pm(2, true)), pm(3, true)}, kind: StepRemove, remove: []ring.ReplicaID{2}},
		{name: "fewer copies are wanted: surplus voters go evenly", want: 3, on: []byte{1, 2, 3},
			ms:   []PlanMember{pm(1, false), pm(2, false), pm(3, false), pm(4, false), pm(5, false)},
			kind: StepSwap, remove: []ring.ReplicaID{4, 5}},
		{name: "a move adds at its target", want: 3, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false)},
			edit: func(in *PlanInput) { in.Move = &Swap{From: pnode(3), To: pnode(4)} }, kind: StepAddLearner, node: 4},
		{name: "then swaps", want: 3, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false), pm(4, true)},
			edit: func(in *PlanInput) { in.Move = &Swap{From: pnode(3), To: pnode(4)} },
			kind: StepSwap, ids: []ring.ReplicaID{4}, remove: []ring.ReplicaID{3}},
		{name: "a learner that is closed for good stays while it moves", want: 2, on: []byte{1, 2}, ms: []PlanMember{pm(1, false), closed(pm(2, true)), behind(pm(4, true))},
			edit: func(in *PlanInput) { in.Move = &Swap{From: pnode(2), To: pnode(4)} }},
		{name: "but not where the move is void", want: 2, on: []byte{4, 2}, ms: []PlanMember{leaving(pm(1, false)), closed(pm(2, true)), pm(4, true)},
			edit: func(in *PlanInput) { in.Move = &Swap{From: pnode(2), To: pnode(4)} }, kind: StepRemove, remove: []ring.ReplicaID{2}},
		{name: "a voter that is closed for good does too", want: 3, on: []byte{1, 2, 3}, ms: []PlanMember{pm(1, false), pm(2, false), closed(pm(3, false)), behind(pm(4, true))},
			edit: func(in *PlanInput) { in.Move = &Swap{From: pnode(3), To: pnode(4)} }},
		{name: "a move away from the owner hands over first", want: 3, on: []byte{1, 2, 3},
			ms:   []PlanMember{pm(1, false), pm(2, false), pm(3, false)},
			edit: func(in *PlanInput) { in.Move = &Swap{From: pnode(1), To: pnode(4)} }, kind: StepTransfer, ids: []ring.ReplicaID{2}},
		{name: "who owns too much hands over to who owns less than the mean", want: 3, on: []byte{1, 2, 3},
			ms:   []PlanMember{owns(pm(1, false), 6), owns(pm(2, false), 4), owns(pm(3, false), 1)},
			edit: func(in *PlanInput) { in.EvenOut = true }, kind: StepTransfer, ids: []ring.ReplicaID{3}},
		{name: "a home that owns enough waits", want: 3, on: []byte{2, 1, 3},
			ms:   []PlanMember{pm(1, false), owns(pm(2, false), 5), pm(3, false)},
			edit: func(in *PlanInput) { in.HomeSince = now.Add(-time.Hour) }},
		{name: "a dead node gets no learner", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false)},
			edit: func(in *PlanInput) { in.DesiredAlive[1] = false }},
		{name: "one change at a time", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false)}, edit: func(in *PlanInput) { in.Pending = true }},
		{name: "not while joint", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false)}, edit: func(in *PlanInput) { in.Joint = true }},
		{name: "not within the pause", want: 3, on: []byte{1, 2}, ms: []PlanMember{pm(1, false)},
			edit: func(in *PlanInput) { in.LastStep, in.Pause = now.Add(-time.Second), 2*time.Second }},
		{name: "home takes over after it was fit for long", want: 3, on: []byte{2, 1, 3}, ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false)},
			edit: func(in *PlanInput) { in.HomeSince = now.Add(-31 * time.Second) }, kind: StepTransfer, ids: []ring.ReplicaID{2}},
		{name: "home waits", want: 3, on: []byte{2, 1, 3}, ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false)},
			edit: func(in *PlanInput) { in.HomeSince = now.Add(-29 * time.Second) }},
		{name: "home is not preferred", want: 3, on: []byte{2, 1, 3}, ms: []PlanMember{pm(1, false), pm(2, false), pm(3, false)},
			edit: func(in *PlanInput) { in.HomeSince, in.PreferHome = now.Add(-time.Hour), false }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := PlanInput{Self: 1, Members: c.ms, Commit: 100, Want: c.want, PreferHome: true, HomeAfter: 30 * time.Second}
			in.Desired, in.DesiredAlive = desired(c.on...)
			if in.Commit = 100; slices.ContainsFunc(c.ms, func(m PlanMember) bool { return m.Match == 0 }) {
				in.Commit = 10_000
				for i := range in.Members {
					if in.Members[i].Match == 100 {
						in.Members[i].Match = in.Commit
					}
				}
			}
			if c.edit != nil {
				c.edit(&in)
			}
			got := Plan(now, in)
			if got.Kind != c.kind || !slices.Equal(got.IDs, c.ids) || !slices.Equal(got.Demote, c.demote) || !slices.Equal(got.Remove, c.remove) || (c.node != 0 && got.Node != pnode(c.node)) {
				t.Fatalf("got %+v", got)
			}
		})
	}
}

// Whatever the start, following the plan reaches the wanted shape, never passes an even number of voters, and then rests.
func TestPlanConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 7).Draw(t, "nodes")
		want := rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "want")
		in := PlanInput{Self: 1, Commit: 100, Want: want, Members: []PlanMember{pm(1, false)}}
		for i := range nodes {
			in.Desired, in.DesiredAlive = append(in.Desired, pnode(byte(i+1))), append(in.DesiredAlive, true)
		}
		now := time.Unix(0, 0)
		for range 20 {
			s := Plan(now, in)
			switch s.Kind {
			case StepAddLearner:
				in.Members = append(in.Members, pm(ring.ReplicaID(s.Node[15]), true))
			case StepPromote:
				for i := range in.Members {
					if slices.Contains(s.IDs, in.Members[i].ID) {
						in.Members[i].Learner = false
					}
				}
			case StepNone:
				copies := min(nodes, want)
				if len(in.Members) != copies || planVoters(in) != TargetVoters(copies) {
					t.Fatalf("rests at %+v", in.Members)
				}
				return
			default:
				t.Fatalf("planned %v", s.Kind)
			}
			if planVoters(in)%2 == 0 {
				t.Fatalf("%d voters", planVoters(in))
			}
		}
		t.Fatal("never rests")
	})
}

func planVoters(in PlanInput) (n int) {
	for _, m := range in.Members {
		if !m.Learner {
			n++
		}
	}
	return n
}
