package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world is groups with the members that hold them, the owner first.
type world struct {
	members []Member
	groups  []GroupID
	want    int
	holders map[GroupID][]NodeID
	moves   int // copies made
	ring    *Ring
}

// newWorld places streams of eight partitions, one after another, each as its ingest node would.
func newWorld(members []Member, streams, want int) *world {
	w := &world{members: members, want: want, holders: map[GroupID][]NodeID{}}
	for s := range streams {
		var batch []GroupID
		for p := range 8 {
			batch = append(batch, testGroup(8*s+p))
		}
		for i, nodes := range w.tally().Place(batch, want) {
			w.holders[batch[i]] = nodes
		}
		w.groups = append(w.groups, batch...)
	}
	return w
}

func (w *world) held() map[NodeID]Held {
	held := map[NodeID]Held{}
	for _, m := range w.members {
		held[m.ID] = Held{}
	}
	for _, nodes := range w.holders {
		for i, n := range nodes {
			h := held[n]
			h.Replicas++
			h.Owned += boolInt(i == 0)
			held[n] = h
		}
	}
	return held
}

func (w *world) tally() *Tally {
	if w.ring == nil || !slices.Equal(w.ring.members, canonical(w.members)) {
		w.ring = New(w.members, 0)
	}
	return NewTally(w.ring, w.held())
}

// rest lets owners act one step at a time until none has anything to do: what is to be replaced first, then swaps.
func (w *world) rest(t *testing.T) {
	t.Helper()
	order := rand.New(rand.NewPCG(1, 2))
	for range 20 * len(w.groups) {
		acted := false
		for _, i := range order.Perm(len(w.groups)) {
			g := w.groups[i]
			tally := w.tally()
			if next := tally.Replicas(g, w.want, w.holders[g]); !sameSet(next, w.holders[g]) {
				w.take(g, next)
				acted = true
			} else if from, to, ok := tally.Relief(g, w.holders[g]); ok {
				w.take(g, swap(w.holders[g], from, to))
				acted = true
			}
		}
		if !acted {
			return
		}
	}
	t.Fatal("owners move copies for ever")
}

func (w *world) take(g GroupID, next []NodeID) {
	for _, n := range next {
		if !slices.Contains(w.holders[g], n) {
			w.moves++
		}
	}
	w.holders[g] = next
}

func swap(nodes []NodeID, from, to NodeID) []NodeID {
	out := slices.Clone(nodes)
	out[slices.Index(out, from)] = to
	return out
}

func sameSet(a, b []NodeID) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, NodeID.Compare)
	slices.SortFunc(b, NodeID.Compare)
	return slices.Equal(a, b)
}

// check holds the world against the bound on what a member holds, and against the spread over zones.
func (w *world) check(t *testing.T) {
	t.Helper()
	tally, held := w.tally(), w.held()
	zones := map[string]bool{}
	for _, m := range w.members {
		if m.taking() {
			zones[m.Zone] = true
		}
	}
	for i, m := range tally.r.members {
		switch most := int(math.Ceil(LoadFactor * tally.share[i])); {
		case m.Leaving && held[m.ID].Replicas > 0:
			t.Errorf("a leaving member holds %d", held[m.ID].Replicas)
		case m.taking() && held[m.ID].Replicas > most:
			t.Errorf("a member of weight %d holds %d, more than %d", m.Weight, held[m.ID].Replicas, most)
		}
	}
	for g, nodes := range w.holders {
		in := map[string]int{}
		for _, n := range nodes {
			m, _ := tally.Ring().Member(n)
			in[m.Zone]++
		}
		if len(nodes) != w.want || len(in) != min(w.want, len(zones)) {
			t.Fatalf("group %v has %d copies in %d zones", g, len(nodes), len(in))
		}
	}
}

// least is how many copies must be made at least until each member has its share, and nobody who leaves has anything.
func (w *world) least() int {
	tally, held := w.tally(), w.held()
	missing, surplus := 0, 0
	for _, m := range w.members {
		low, high := tally.Share(m.ID)
		missing += max(0, low-held[m.ID].Replicas)
		surplus += max(0, held[m.ID].Replicas-high)
	}
	return max(missing, surplus)
}

// TestFewestMovesWhenANodeComesAndGoes: replica moves are at most 1.2 times the least possible, and the bound on what one holds is kept.
func TestFewestMovesWhenANodeComesAndGoes(t *testing.T) {
	for _, c := range []struct {
		nodes, zones, streams int
		weights               []int
		zone                  string // of the newcomer
	}{
		{nodes: 3, zones: 1, streams: 8},
		{nodes: 3, zones: 3, streams: 8, zone: "z0"},
		{nodes: 5, zones: 1, streams: 12},
		{nodes: 5, zones: 3, streams: 12, zone: "z2"},
		{nodes: 20, zones: 1, streams: 40},
		{nodes: 20, zones: 3, streams: 40, zone: "z2"},
		{nodes: 20, zones: 4, streams: 40, zone: "z0"},
		{nodes: 5, zones: 1, streams: 12, weights: []int{1, 2, 1, 2, 1, 2}},
		{nodes: 20, zones: 1, streams: 40, weights: []int{1, 2, 3}},
		{nodes: 20, zones: 4, streams: 40, weights: []int{2, 1, 2, 2, 2}, zone: "z0"},
	} {
		name := fmt.Sprintf("%d to %d nodes in %d zones, weights %v", c.nodes, c.nodes+1, c.zones, c.weights)
		t.Run(name, func(t *testing.T) {
			ms := testMembers(c.nodes+1, c.zones)
			for i := range ms {
				if c.weights != nil {
					ms[i].Weight = c.weights[i%len(c.weights)]
				}
			}
			if c.zone != "" {
				ms[c.nodes].Zone = c.zone
			}
			w := newWorld(slices.Clone(ms[:c.nodes]), c.streams, 3)
			w.check(t)
			if w.rest(t); w.moves > len(w.groups)/50 {
				t.Errorf("%d of %d new groups did not stay where they were placed", w.moves, len(w.groups))
			}
			for _, change := range []struct {
				name string
				do   func()
			}{
				{"came", func() { w.members = ms }},
				{"left", func() { w.members[c.nodes].Leaving = true }},
			} {
				change.do()
				w.moves = 0
				least := w.least()
				w.rest(t)
				w.check(t)
				t.Logf("a node %s: %d moves, the least is %d", change.name, w.moves, least)
				if float64(w.moves) > 1.2*float64(least) {
					t.Errorf("a node %s: %d moves, more than 1.2 times %d", change.name, w.moves, least)
				}
			}
		})
	}
}

// TestOwnersThatDecideAtOnceOvershootNoShare: counts are as old as a round, and each member lets one copy in and one out a round, as long as
// it stays within its share.
func TestOwnersThatDecideAtOnceOvershootNoShare(t *testing.T) {
	for _, zones := range []int{1, 3} {
		ms := testMembers(9, zones)
		w := newWorld(slices.Clone(ms[:6]), 20, 3)
		w.members = ms
		least := w.least()
		rounds := 0
		for ; rounds < 400; rounds++ {
			old := w.tally()
			asked, in, out := 0, map[NodeID]bool{}, map[NodeID]bool{}
			for _, g := range w.groups {
				from, to, ok := old.Relief(g, w.holders[g])
				if !ok {
					continue
				}
				asked++
				now, held := w.tally(), w.held()
				low, _ := now.Share(from)
				_, high := now.Share(to)
				if in[to] || out[from] || held[from].Replicas-1 < low || held[to].Replicas+1 > high {
					continue
				}
				in[to], out[from] = true, true
				w.take(g, swap(w.holders[g], from, to))
			}
			if asked == 0 {
				break
			}
			if rounds == 0 && len(in) < 3 {
				t.Errorf("all owners chose the same %d of 3 newcomers", len(in))
			}
		}
		w.check(t)
		t.Logf("%d zones: %d moves in %d rounds, the least is %d", zones, w.moves, rounds, least)
		if float64(w.moves) > 1.2*float64(least) {
			t.Errorf("%d moves, more than 1.2 times %d", w.moves, least)
		}
	}
}

// anyTally generates members, some of which nothing is known of.
func anyTally(t *rapid.T) *Tally {
	held := map[NodeID]Held{}
	ms := anyMembers().Draw(t, "members")
	count := rapid.OneOf(rapid.IntRange(0, 20), rapid.SampledFrom([]int{-5, math.MinInt, math.MaxInt}))
	for _, m := range ms {
		if rapid.IntRange(0, 5).Draw(t, "known") > 0 {
			held[m.ID] = Held{Replicas: count.Draw(t, "replicas"), Owned: count.Draw(t, "owned")}
		}
	}
	return NewTally(New(ms, 64), held)
}

func TestTallyIsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tally := anyTally(t)
		current := anyCurrent(nil).Draw(t, "current")
		n := rapid.OneOf(rapid.IntRange(-1, 8), rapid.SampledFrom([]int{math.MinInt, math.MaxInt})).Draw(t, "n")
		for _, m := range tally.Ring().Members() {
			low, high := tally.Share(m.ID)
			if low < 0 || high < low || m.taking() && high > low+1 {
				t.Fatalf("a share between %d and %d", low, high)
			}
			if m.Leaving && high != 0 {
				t.Fatal("a leaving member has a share")
			}
			if count, mean, high := tally.Owned(m.ID); count < 0 || mean < 0 || high < mean {
				t.Fatalf("%d owned, %d on average, %d at most", count, mean, high)
			}
		}
		g := testGroup(rapid.IntRange(0, 1000).Draw(t, "group"))
		got := tally.Replicas(g, n, current)
		for _, id := range got {
			m, ok := tally.Ring().Member(id)
			if !ok || m.Leaving || m.Cordoned && !slices.Contains(current, id) {
				t.Fatalf("%v is to hold a group", m)
			}
		}
		if len(got) > 0 && !slices.Equal(tally.Replicas(g, n, got), got) {
			t.Fatal("proposing again moves copies")
		}
		avoid := anyCurrent(nil).Draw(t, "avoid")
		kept := slices.DeleteFunc(slices.Clone(got), func(id NodeID) bool { return slices.Contains(avoid, id) })
		holders := tally.Replicas(g, n, kept, avoid...)
		if without := tally.Replicas(g, len(tally.Ring().Members()), kept); slices.ContainsFunc(holders, func(id NodeID) bool {
			return slices.Contains(avoid, id)
		}) && slices.ContainsFunc(without, func(id NodeID) bool { return !slices.Contains(avoid, id) && !slices.Contains(holders, id) }) {
			t.Fatalf("%v are to hold a group, %v avoided, although others of %v could", holders, avoid, without)
		}
		if could := tally.Replicas(g, n, kept); len(holders) != len(could) {
			t.Fatalf("%v are to hold a group, %v avoided, where %v could", holders, avoid, could)
		}
		for _, nodes := range tally.Place([]GroupID{g, testGroup(1001)}, n) {
			for _, id := range nodes {
				if m, ok := tally.Ring().Member(id); !ok || !m.taking() {
					t.Fatalf("a new group on %v", m)
				}
			}
		}
	})
}

func TestReliefIsASwapThatHelps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tally := anyTally(t)
		g := testGroup(rapid.IntRange(0, 1000).Draw(t, "group"))
		current := tally.Ring().Replicas(g, rapid.IntRange(1, 5).Draw(t, "n"), anyCurrent(nil).Draw(t, "current"))
		from, to, ok := tally.Relief(g, current)
		if !ok {
			return
		}
		if !slices.Contains(current, from) || slices.Contains(current, to) {
			t.Fatal("not a swap")
		}
		source, _ := tally.Ring().Member(from)
		target, _ := tally.Ring().Member(to)
		if !source.taking() || !target.taking() {
			t.Fatalf("a swap between %v and %v", source, target)
		}
		a, b := tally.held[tally.r.index[from]].Replicas, tally.held[tally.r.index[to]].Replicas
		if low, _ := tally.Share(from); a-1 < low {
			t.Fatalf("the source of %d falls below %d", a, low)
		}
		if _, high := tally.Share(to); b+1 > high {
			t.Fatalf("the target of %d comes above %d", b, high)
		}
		if before, after := unevenness(tally.Ring(), current), unevenness(tally.Ring(), swap(current, from, to)); after > before {
			t.Fatalf("the spread over zones gets worse: %d after %d", after, before)
		}
		if other, another, _ := tally.Relief(g, rapid.Permutation(current).Draw(t, "order")); other != from || another != to {
			t.Fatal("the order of current counts")
		}
	})
}

// unevenness grows with every two copies that share a zone.
func unevenness(r *Ring, nodes []NodeID) (sum int) {
	in := map[string]int{}
	for _, n := range nodes {
		m, _ := r.Member(n)
		in[m.Zone]++
	}
	for _, n := range in {
		sum += n * n
	}
	return sum
}

// TestOwnersThatSwapComeToRest: from any distribution, whatever the weights and zones.
func TestOwnersThatSwapComeToRest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ms := anyMembers().Draw(rt, "members")
		for i := range ms {
			ms[i].Weight = rapid.IntRange(1, 4).Draw(rt, "weight")
		}
		w := &world{members: New(ms, 64).Members(), want: rapid.IntRange(1, 4).Draw(rt, "copies"), holders: map[GroupID][]NodeID{}}
		r := New(w.members, 64)
		for i := range rapid.IntRange(1, 12).Draw(rt, "groups") {
			w.groups = append(w.groups, testGroup(i))
			w.holders[testGroup(i)] = r.Replicas(testGroup(i), w.want, anyCurrent(nil).Draw(rt, "current"))
		}
		for range 10 * len(w.groups) * len(ms) {
			acted := false
			for _, g := range w.groups {
				if from, to, ok := NewTally(r, w.held()).Relief(g, w.holders[g]); ok {
					w.take(g, swap(w.holders[g], from, to))
					acted = true
				}
			}
			if !acted {
				return
			}
		}
		if len(ms) > 0 {
			rt.Fatal("owners swap for ever")
		}
	})
}

func TestNewStreamIsBornEven(t *testing.T) {
	for _, nodes := range []int{3, 4, 5, 7} {
		w := newWorld(testMembers(nodes, 1), 1, 3)
		for _, m := range w.members {
			h := w.held()[m.ID]
			if most := (8*3 + nodes - 1) / nodes; h.Replicas > most {
				t.Errorf("%d nodes: one holds %d copies, more than %d", nodes, h.Replicas, most)
			}
			if most := (8 + nodes - 1) / nodes; h.Owned > most {
				t.Errorf("%d nodes: one owns %d, more than %d", nodes, h.Owned, most)
			}
		}
	}
}

func TestStandingAsideMovesNothing(t *testing.T) {
	w := newWorld(testMembers(5, 1), 10, 3)
	w.rest(t)
	w.moves = 0
	w.members[2].Cordoned = true
	w.rest(t)
	if w.moves != 0 {
		t.Errorf("%d copies moved off or onto a cordoned member", w.moves)
	}
	if low, high := w.tally().Share(w.members[2].ID); low != high || low != w.held()[w.members[2].ID].Replicas {
		t.Errorf("a cordoned member should hold %d to %d", low, high)
	}
}

// TestMemberOfWhichNothingIsKnownGetsNothing, and owners do not count on its room either.
func TestMemberOfWhichNothingIsKnownGetsNothing(t *testing.T) {
	w := newWorld(testMembers(3, 1), 4, 3)
	held := w.held()
	w.members = testMembers(4, 1)
	tally := NewTally(New(w.members, 0), held)
	for _, g := range w.groups {
		if _, _, ok := tally.Relief(g, w.holders[g]); ok {
			t.Fatal("a swap with a member that nobody has heard of")
		}
		if got := tally.Replicas(g, 4, w.holders[g]); len(got) != 3 {
			t.Fatalf("a fourth copy on %v", got)
		}
	}
	if low, high := tally.Share(w.members[3].ID); low != 0 || high != 0 {
		t.Errorf("it should hold %d to %d", low, high)
	}
}

// TestZoneThatAppearsLaterGetsACopyOfEachGroup: one swap a group mends the spread, and no swap breaks it afterwards.
func TestZoneThatAppearsLaterGetsACopyOfEachGroup(t *testing.T) {
	w := newWorld(testMembers(4, 2), 8, 3)
	w.rest(t)
	w.moves = 0
	w.members = append(w.members, Member{ID: testID(70), Zone: "z8", Weight: 1}, Member{ID: testID(71), Zone: "z8", Weight: 1})
	w.rest(t)
	w.check(t)
	if w.moves > len(w.groups)*6/5 {
		t.Errorf("%d moves for %d groups", w.moves, len(w.groups))
	}
}

func BenchmarkTally(b *testing.B) {
	for _, n := range []int{5, 100, 1000} {
		r := New(testMembers(n, 3), 0)
		held := map[NodeID]Held{}
		for i, m := range r.Members() {
			held[m.ID] = Held{Replicas: 30 + i%7, Owned: 10}
		}
		b.Run(fmt.Sprintf("count/%d", n), func(b *testing.B) {
			for b.Loop() {
				NewTally(r, held)
			}
		})
		tally := NewTally(r, held)
		current := r.Replicas(testGroup(0), 3, nil)
		b.Run(fmt.Sprintf("relief/%d", n), func(b *testing.B) {
			for b.Loop() {
				tally.Relief(testGroup(0), current)
			}
		})
		b.Run(fmt.Sprintf("replicas/%d", n), func(b *testing.B) {
			for b.Loop() {
				tally.Replicas(testGroup(0), 3, current)
			}
		})
	}
}
