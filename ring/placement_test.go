package ring

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// testID is a node id that looks like a random one.
func testID(n int) (id NodeID) {
	binary.BigEndian.PutUint64(id[:8], Hash(Seed{1}, fmt.Append(nil, n)))
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

func testGroup(n int) GroupID { return PartitionGroup(StreamID{7}, PartitionID(n)) }

// testMembers makes n members over the given number of zones.
func testMembers(n, zones int) []Member {
	ms := make([]Member, n)
	for i := range ms {
		ms[i] = Member{ID: testID(i), Zone: fmt.Sprintf("z%d", i%max(zones, 1)), Weight: 1}
	}
	return ms
}

// anyMembers generates members with any weights, few zones and sometimes doubled ids.
func anyMembers() *rapid.Generator[[]Member] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Member {
		return Member{
			ID:       testID(rapid.IntRange(0, 30).Draw(t, "id")),
			Zone:     rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "zone"),
			Weight:   rapid.OneOf(rapid.IntRange(-2, 5), rapid.SampledFrom([]int{math.MinInt, math.MaxInt, 100, 1 << 40})).Draw(t, "weight"),
			Cordoned: rapid.IntRange(0, 4).Draw(t, "cordoned") == 0,
			Leaving:  rapid.IntRange(0, 4).Draw(t, "leaving") == 0,
		}
	}), 0, 20)
}

func anyCurrent(ms []Member) *rapid.Generator[[]NodeID] {
	return rapid.Custom(func(t *rapid.T) []NodeID {
		var out []NodeID
		for range rapid.IntRange(0, 6).Draw(t, "current") {
			out = append(out, testID(rapid.IntRange(0, 33).Draw(t, "current id"))) // some are no members
		}
		return out
	})
}

func TestPlacementIsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := anyMembers().Draw(t, "members")
		slots := rapid.OneOf(rapid.IntRange(-1, 300), rapid.Just(math.MinInt)).Draw(t, "slots")
		r := New(ms, slots)
		g := testGroup(rapid.IntRange(0, 1000).Draw(t, "group"))
		eligible := slices.ContainsFunc(r.Members(), func(m Member) bool { return !m.Cordoned && !m.Leaving })
		if _, ok := r.Home(g); ok != eligible {
			t.Fatalf("home %v with eligible %v", ok, eligible)
		}
		n := rapid.OneOf(rapid.IntRange(-1, 8), rapid.SampledFrom([]int{math.MinInt, math.MaxInt})).Draw(t, "n")
		got := r.Replicas(g, n, anyCurrent(ms).Draw(t, "current"))
		if len(got) > max(n, 0) || len(got) > r.Len() {
			t.Fatalf("%d replicas of %d members", len(got), r.Len())
		}
	})
}

func TestHugeSlotsAreCut(t *testing.T) {
	if testing.Short() {
		t.Skip("a million slots take a second")
	}
	r := New(testMembers(2, 1), math.MaxInt)
	if r.Slots() != MaxSlots {
		t.Fatalf("%d slots", r.Slots())
	}
}

func TestPlacementIsIndependentOfJoinOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := anyMembers().Draw(t, "members")
		shuffled := rapid.Permutation(ms).Draw(t, "order")
		a, b := New(ms, 128), New(shuffled, 128)
		if a.Epoch() != b.Epoch() || !slices.Equal(a.slots, b.slots) {
			t.Fatal("rings differ")
		}
		g := testGroup(rapid.IntRange(0, 1000).Draw(t, "group"))
		current := anyCurrent(ms).Draw(t, "current")
		if !slices.Equal(a.Replicas(g, 3, current), b.Replicas(g, 3, rapid.Permutation(current).Draw(t, "current order"))) {
			t.Fatal("replicas differ")
		}
	})
}

func TestReplicasKeepTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := anyMembers().Draw(t, "members")
		r := New(ms, 64)
		g := testGroup(rapid.IntRange(0, 1000).Draw(t, "group"))
		n := rapid.IntRange(1, 6).Draw(t, "n")
		current := anyCurrent(ms).Draw(t, "current")
		got := r.Replicas(g, n, current)

		seen := map[NodeID]bool{}
		perZone := map[string]int{}
		for _, id := range got {
			m, ok := r.Member(id)
			switch {
			case !ok:
				t.Fatal("not a member")
			case seen[id]:
				t.Fatal("chosen twice")
			case m.Cordoned && !slices.Contains(current, id):
				t.Fatal("a cordoned member got something new")
			case m.Leaving:
				t.Fatal("a leaving member is to hold something")
			}
			seen[id] = true
			perZone[m.Zone]++
		}
		candidates := map[string]int{}
		total := 0
		for _, m := range r.Members() {
			if !m.Leaving && (!m.Cordoned || slices.Contains(current, m.ID)) {
				candidates[m.Zone]++
				total++
			}
		}
		if len(got) != min(n, total) {
			t.Fatalf("%d replicas with %d candidates, %d wanted", len(got), total, n)
		}
		for z, have := range candidates {
			for y, used := range perZone {
				if used > perZone[z]+1 && have > perZone[z] {
					t.Fatalf("zone %q holds %d and %q %d of %d", y, used, z, perZone[z], have)
				}
			}
		}
		if again := r.Replicas(g, n, got); !slices.Equal(again, got) {
			t.Fatalf("proposing again moves %v to %v", got, again)
		}
		if home, ok := r.Home(g); ok && slices.Contains(got, home) && got[0] != home {
			t.Fatal("the home is not first")
		}
	})
}

func TestNewGroupStartsAtItsHomeInDistinctZones(t *testing.T) {
	r := New(testMembers(9, 3), 0)
	for i := range 500 {
		g := testGroup(i)
		home, _ := r.Home(g)
		got := r.Replicas(g, 3, nil)
		zones := map[string]bool{}
		for _, id := range got {
			m, _ := r.Member(id)
			zones[m.Zone] = true
		}
		if got[0] != home || len(zones) != 3 {
			t.Fatalf("group %d: home %s, replicas %v in %d zones", i, home, got, len(zones))
		}
	}
}

func TestLostMemberMovesOnlyItsReplicas(t *testing.T) {
	ms := testMembers(9, 3)
	before := New(ms, 0)
	after := New(ms[1:], 0)
	for i := range 500 {
		g := testGroup(i)
		old := before.Replicas(g, 3, nil)
		kept := 0
		for _, id := range after.Replicas(g, 3, old) {
			if slices.Contains(old, id) {
				kept++
			}
		}
		want := 3
		if slices.Contains(old, ms[0].ID) {
			want = 2
		}
		if kept != want {
			t.Fatalf("group %d kept %d of %d", i, kept, want)
		}
	}
}

func TestJoiningMemberMovesNoReplica(t *testing.T) {
	ms := testMembers(10, 3)
	before, after := New(ms[:9], 0), New(ms, 0)
	for i := range 500 {
		old := before.Replicas(testGroup(i), 3, nil)
		got := after.Replicas(testGroup(i), 3, old)
		slices.SortFunc(old, NodeID.Compare)
		slices.SortFunc(got, NodeID.Compare)
		if !slices.Equal(old, got) {
			t.Fatalf("group %d moved", i)
		}
	}
}

func TestBetterZoneSpreadMovesOneReplica(t *testing.T) {
	ms := testMembers(6, 2)
	third := Member{ID: testID(99), Zone: "z9", Weight: 1}
	before, after := New(ms, 0), New(append(ms, third), 0)
	old := before.Replicas(testGroup(1), 3, nil)
	got := after.Replicas(testGroup(1), 3, old)
	kept := 0
	for _, id := range got {
		if slices.Contains(old, id) {
			kept++
		}
	}
	if kept != 2 || !slices.Contains(got, third.ID) {
		t.Fatalf("%v became %v", old, got)
	}
}

func TestFewHomesMoveWhenMembershipChanges(t *testing.T) {
	for _, n := range []int{3, 10, 50} {
		ms := testMembers(n+1, 3)
		small, large := New(ms[:n], 4096), New(ms, 4096)
		moved, toNew := 0, 0
		for s := range small.slots {
			a, _ := small.SlotHome(s)
			b, _ := large.SlotHome(s)
			if a != b {
				moved++
			}
			if b == ms[n].ID {
				toNew++
			}
		}
		// Ideal is the newcomer's share. Bounded loads push some further slots on; twice the largest share is plenty.
		ideal := 4096.0 / float64(n+1)
		t.Logf("%d members: %d moved, ideal %.0f, newcomer has %d", n, moved, ideal, toNew)
		if float64(moved) > 2*LoadFactor*ideal {
			t.Errorf("%d -> %d members: %d of 4096 slots moved, ideal %.0f", n, n+1, moved, ideal)
		}
	}
}

func TestNoMemberExceedsItsBound(t *testing.T) {
	ms := testMembers(10, 1)
	ms[3].Weight, ms[4].Weight = 2, 4
	total := 14
	count := map[NodeID]int{}
	r := New(ms, 4096)
	for s := range r.Slots() {
		id, _ := r.SlotHome(s)
		count[id]++
	}
	for _, m := range ms {
		most := m.Weight * int(math.Ceil(4096.0/float64(total)*LoadFactor))
		if count[m.ID] > most || count[m.ID] == 0 {
			t.Errorf("weight %d holds %d slots, bound %d", m.Weight, count[m.ID], most)
		}
	}
}

func TestEqualWeightsGiveOneRingWhateverTheirSize(t *testing.T) {
	a, b := testMembers(7, 2), testMembers(7, 2)
	for i := range b {
		b[i].Weight = 100
	}
	if !slices.Equal(New(a, 512).slots, New(b, 512).slots) {
		t.Error("weights 1 and 100 place differently")
	}
}

func TestFollowersSpreadByWeight(t *testing.T) {
	ms := testMembers(6, 1)
	ms[5].Weight = 3
	r := New(ms, 0)
	count := map[NodeID]int{}
	const groups = 3000
	for i := range groups {
		for _, id := range r.Replicas(testGroup(i), 3, nil) {
			count[id]++
		}
	}
	for i, m := range ms[:5] {
		if c := count[m.ID]; c < groups*3/8/2 || c > groups*3/8*2 {
			t.Errorf("member %d holds %d replicas", i, c)
		}
	}
	if count[ms[5].ID] <= count[ms[0].ID]*3/2 {
		t.Errorf("threefold weight holds %d, single %d", count[ms[5].ID], count[ms[0].ID])
	}
}

func TestEpochSeesEveryField(t *testing.T) {
	base := testMembers(3, 1)
	seen := map[uint64]string{New(base, 64).Epoch(): "base"}
	for name, change := range map[string]func([]Member){
		"zone":     func(m []Member) { m[1].Zone = "x" },
		"weight":   func(m []Member) { m[1].Weight = 9 },
		"cordoned": func(m []Member) { m[1].Cordoned = true },
		"leaving":  func(m []Member) { m[1].Leaving = true },
		"id":       func(m []Member) { m[1].ID = testID(77) },
	} {
		ms := slices.Clone(base)
		change(ms)
		e := New(ms, 64).Epoch()
		if other, ok := seen[e]; ok {
			t.Errorf("%s has the epoch of %s", name, other)
		}
		seen[e] = name
	}
	if _, ok := seen[New(base, 65).Epoch()]; ok {
		t.Error("slots do not count")
	}
}

// Placement is part of the contract between nodes of different versions: these values must never change.
func TestPlacementValuesAreFixed(t *testing.T) {
	if got := [...]int{CatalogShard("orders", 8), CatalogShard("payments", 8), CatalogShard("", 8), CatalogShard("x", 0), CatalogShard("x", -1)}; got != goldenShards {
		t.Errorf("catalog shards %v, want %v", got, goldenShards)
	}
	r := New(testMembers(5, 2), 4096)
	var got [8]int
	for i := range got {
		home, _ := r.Home(testGroup(i))
		got[i] = int(home[15])
	}
	if got != goldenHomes {
		t.Errorf("homes %v, want %v", got, goldenHomes)
	}
}

func TestEvenRangesCoverTheSpace(t *testing.T) {
	for _, n := range []int{math.MinInt, 0, 1, 2, 3, 8, 256, math.MaxInt} {
		rs := EvenRanges(n)
		if rs[0].Lo != 0 || rs[len(rs)-1].Hi != math.MaxUint64 {
			t.Fatalf("%d ranges do not cover the space", n)
		}
		for i := 1; i < len(rs); i++ {
			if rs[i].Lo != rs[i-1].Hi+1 {
				t.Fatalf("%d ranges: a gap before %d", n, i)
			}
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		ms := testMembers(n, 3)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				New(ms, 0)
			}
		})
	}
	ms := testMembers(100, 3)
	for i := range ms {
		ms[i].Weight = 1 + i%5
	}
	b.Run("100weighted", func(b *testing.B) {
		for b.Loop() {
			New(ms, 0)
		}
	})
}

func BenchmarkReplicas(b *testing.B) {
	for _, n := range []int{3, 100} {
		r := New(testMembers(n, 3), 0)
		current := r.Replicas(testGroup(0), 3, nil)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				r.Replicas(testGroup(rand.IntN(2)), 3, current)
			}
		})
	}
}

var (
	goldenShards = [...]int{5, 2, 2, 0, 0}
	goldenHomes  = [8]int{0, 1, 2, 3, 0, 2, 0, 4}
)
