package view

import (
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"pgregory.net/rapid"
)

var epoch = time.Unix(1_700_000_000, 0)

func node(n int) ring.NodeID   { return ring.NodeID{15: byte(n)} }
func group(n int) ring.GroupID { return ring.GroupID{0: byte(n), 15: 1} }

func anyMember(t *rapid.T) Member {
	m := Member{Identity: Identity{ID: node(rapid.IntRange(0, 4).Draw(t, "node"))}}
	if rapid.Bool().Draw(t, "has identity") {
		m.Incarnation = rapid.Uint64Range(1, 3).Draw(t, "incarnation")
		m.Name = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
		m.Flags = Flags(rapid.IntRange(0, 3).Draw(t, "flags"))
	}
	if rapid.Bool().Draw(t, "has belief") {
		m.Observed = rapid.Uint64Range(1, 3).Draw(t, "observed")
		m.State = State(rapid.IntRange(1, 4).Draw(t, "state"))
		m.Since = epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "since")) * time.Second)
	}
	if rapid.Bool().Draw(t, "has load") {
		m.LoadSeq = rapid.Uint64Range(1, 3).Draw(t, "seq")
		m.Load.CPUPercent = float32(rapid.IntRange(0, 2).Draw(t, "cpu"))
		m.LoadAt = epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "at")) * time.Second)
	}
	return m
}

func anyUpdate() *rapid.Generator[Update] {
	return rapid.Custom(func(t *rapid.T) Update {
		var u Update
		for range rapid.IntRange(0, 5).Draw(t, "members") {
			u.Members = append(u.Members, anyMember(t))
		}
		for range rapid.IntRange(0, 8).Draw(t, "hints") {
			u.Hints = append(u.Hints, HeardHint{
				Hint: Hint{
					Group: group(rapid.IntRange(0, 6).Draw(t, "group")),
					Owner: node(rapid.IntRange(0, 3).Draw(t, "owner")),
					Term:  rapid.Uint64Range(0, 3).Draw(t, "term"),
				},
				At: epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "at")) * time.Second),
			})
		}
		return u
	})
}

// all merges updates in order into a view with bounds that bite.
func all(us ...Update) *View {
	v := New(node(1), Limits{Members: 3, Hints: 4})
	for _, u := range us {
		v, _ = v.Merge(u)
	}
	return v
}

// contents is the view as an update.
func (v *View) contents() Update { return Update{Members: v.Members(), Hints: v.Hints()} }

func same(a, b *View) bool {
	x, y := a.contents(), b.contents()
	return slices.Equal(x.Members, y.Members) && slices.Equal(x.Hints, y.Hints) && a.CountHints() == len(x.Hints) &&
		b.CountHints() == len(y.Hints)
}

func TestMergeIsCommutative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyUpdate().Draw(t, "a"), anyUpdate().Draw(t, "b")
		if x, y := all(a, b), all(b, a); !same(x, y) {
			t.Fatalf("order matters:\n%+v\n%+v", x.contents(), y.contents())
		}
	})
}

func TestMergeIsAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyUpdate().Draw(t, "a"), anyUpdate().Draw(t, "b"), anyUpdate().Draw(t, "c")
		if x, y := all(a, b, c), all(a, all(b, c).contents()); !same(x, y) {
			t.Fatalf("grouping matters:\n%+v\n%+v", x.contents(), y.contents())
		}
	})
}

func TestMergeIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyUpdate().Draw(t, "a"), anyUpdate().Draw(t, "b")
		v := all(a, b)
		again, changed := v.Merge(v.contents())
		if changed || !same(v, again) {
			t.Fatal("hearing the same again changes the view")
		}
	})
}

func TestMergeChangesNoOlderView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := all(anyUpdate().Draw(t, "a"))
		before := v.contents()
		_, _ = v.Merge(anyUpdate().Draw(t, "b"))
		_, _ = v.Expire(epoch.Add(2*time.Second), epoch.Add(2*time.Second))
		if after := v.contents(); !slices.Equal(before.Members, after.Members) || !slices.Equal(before.Hints, after.Hints) {
			t.Fatal("an older view changed")
		}
	})
}

func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := all(anyUpdate().Draw(t, "a"), anyUpdate().Draw(t, "b"), anyUpdate().Draw(t, "c"))
		if v.Len() > 3 || v.CountHints() > 4 {
			t.Fatalf("%d members, %d hints", v.Len(), v.CountHints())
		}
	})
}

func TestOwnerOfHigherTermWins(t *testing.T) {
	h := func(owner int, term uint64) Update {
		return Update{Hints: []HeardHint{{Hint: Hint{Group: group(1), Owner: node(owner), Term: term}, At: epoch}}}
	}
	for _, c := range []struct {
		name  string
		us    []Update
		owner int
		term  uint64
	}{
		{"newer after older", []Update{h(1, 1), h(2, 2)}, 2, 2},
		{"older after newer", []Update{h(2, 2), h(1, 1)}, 2, 2},
		{"two owners in one term", []Update{h(3, 2), h(2, 2)}, 3, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := all(c.us...).Owner(group(1))
			if !ok || got.Owner != node(c.owner) || got.Term != c.term {
				t.Errorf("owner %+v", got)
			}
		})
	}
	if _, ok := all().Owner(group(1)); ok {
		t.Error("an owner out of nothing")
	}
}

func TestExpireForgetsWhatNobodyVouchesFor(t *testing.T) {
	member := func(n int, s State, since time.Time) Member {
		return Member{Identity: Identity{ID: node(n), Incarnation: 1}, State: s, Observed: 1, Since: since}
	}
	v, _ := New(node(1), Limits{}).Merge(Update{
		Members: []Member{member(1, StateAlive, epoch), member(2, StateDead, epoch), member(3, StateLeft, epoch.Add(time.Hour)),
			member(4, StateSuspect, epoch)},
		Hints: []HeardHint{{Hint{group(1), node(2), 1}, epoch}, {Hint{group(2), node(4), 1}, epoch.Add(time.Hour)}},
	})
	v, changed := v.Expire(epoch.Add(time.Minute), epoch.Add(time.Minute))
	if !changed || v.Len() != 3 || v.CountHints() != 1 {
		t.Fatalf("%d members, %d hints", v.Len(), v.CountHints())
	}
	if _, ok := v.Member(node(2)); ok {
		t.Error("the dead member is still there")
	}
	if _, changed := v.Expire(epoch.Add(time.Minute), epoch.Add(time.Minute)); changed {
		t.Error("expiring again changes the view")
	}
}

func TestByNamePrefersTheMemberThatIsThere(t *testing.T) {
	m := func(n int, inc uint64, s State) Member {
		return Member{Identity: Identity{ID: node(n), Name: "x", Incarnation: inc}, State: s, Observed: 1}
	}
	v, _ := New(node(9), Limits{}).Merge(Update{Members: []Member{m(1, 9, StateDead), m(2, 3, StateAlive), m(3, 5, StateAlive)}})
	if got, ok := v.ByName("x"); !ok || got.ID != node(3) {
		t.Errorf("%v", got.ID)
	}
	if _, ok := v.ByName("y"); ok {
		t.Error("found nobody's name")
	}
}

func TestAliveCountsSuspectsAsThere(t *testing.T) {
	for s, want := range map[State]bool{StateUnknown: false, StateAlive: true, StateSuspect: true, StateDead: false, StateLeft: false} {
		v, _ := New(node(9), Limits{}).Merge(Update{Members: []Member{{Identity: Identity{ID: node(1)}, State: s, Observed: 1}}})
		if v.Alive(node(1)) != want {
			t.Errorf("%s: alive is %v", s, !want)
		}
	}
}

func TestStalenessIsByTheObserversClock(t *testing.T) {
	m := Member{LoadSeq: 1, LoadAt: epoch}
	if d, ok := m.Staleness(epoch.Add(3 * time.Second)); !ok || d != 3*time.Second {
		t.Errorf("%v %v", d, ok)
	}
	if d, _ := m.Staleness(epoch.Add(-time.Hour)); d != 0 {
		t.Errorf("after a clock step: %v", d)
	}
	if _, ok := (Member{}).Staleness(epoch); ok {
		t.Error("staleness of nothing")
	}
}

func TestLoadDiffersFromFivePercent(t *testing.T) {
	base := Load{CPUPercent: 50, QueuedBytes: 100 << 20, EventsIn: 10_000}
	for name, c := range map[string]struct {
		change func(*Load)
		want   bool
	}{
		"same":         {func(*Load) {}, false},
		"cpu +4":       {func(l *Load) { l.CPUPercent = 54 }, false},
		"cpu +5":       {func(l *Load) { l.CPUPercent = 55 }, true},
		"queue -5%":    {func(l *Load) { l.QueuedBytes = 95 << 20 }, true},
		"small queue":  {func(l *Load) { l.ReadLag = 10 }, false},
		"events +4%":   {func(l *Load) { l.EventsIn = 10_400 }, false},
		"one owned":    {func(l *Load) { l.Owned = 1 }, true},
		"fatigue +0.1": {func(l *Load) { l.Fatigue = 0.1 }, true},
	} {
		l := base
		c.change(&l)
		if base.Differs(l, 0.05) != c.want || l.Differs(base, 0.05) != c.want {
			t.Errorf("%s: differs is not %v", name, c.want)
		}
	}
}

func BenchmarkMergeDelta(b *testing.B) {
	var u Update
	for i := range 50_000 {
		u.Hints = append(u.Hints, HeardHint{Hint: Hint{Group: ring.PartitionGroup(ring.StreamID{1}, ring.PartitionID(i)),
			Owner: node(1), Term: 1}, At: epoch})
	}
	v, _ := New(node(1), Limits{}).Merge(u)
	term := uint64(1)
	for b.Loop() {
		term++
		delta := slices.Clone(u.Hints[:40])
		for i := range delta {
			delta[i].Term = term
		}
		v, _ = v.Merge(Update{Hints: delta})
	}
	b.ReportMetric(float64(v.CountHints()), "hints")
}
