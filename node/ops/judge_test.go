package ops

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// ids gives each node of a test an id by its name.
type ids map[string]ring.NodeID

func (i ids) of(name string) ring.NodeID {
	if _, ok := i[name]; !ok {
		i[name] = ring.NewNodeID()
	}
	return i[name]
}

// world makes one of words such as "a b@east c:cordoned d:draining e:gone"; a node is gone since a minute.
func (i ids) world(text string) World {
	w := World{Now: start, Nodes: map[ring.NodeID]Node{}, ReplaceAfter: 5 * time.Minute}
	for _, word := range strings.Fields(text) {
		word, state, _ := strings.Cut(word, ":")
		name, zone, _ := strings.Cut(word, "@")
		n := Node{Name: name, Zone: zone, Here: state != "gone", Cordoned: state == "cordoned" || state == "draining", Draining: state == "draining"}
		if !n.Here {
			n.Since = start.Add(-time.Minute)
		}
		w.Nodes[i.of(name)] = n
	}
	return w
}

// report makes one of words such as "a b l:40 c!" (a learner that has 40 of 1000; one that is closed for good since a minute).
func (i ids) report(want int, text string) Report {
	r := Report{Want: want, Commit: 1000}
	for _, word := range strings.Fields(text) {
		word, closed := strings.CutSuffix(word, "!")
		name, match, learner := strings.Cut(word, ":")
		c := Copy{Node: i.of(name), Learner: learner, Match: 1000}
		if closed {
			c.Closed = start.Add(-time.Minute).Unix()
		}
		if learner {
			c.Match = 0
			for _, d := range match {
				c.Match = 10*c.Match + uint64(d-'0')
			}
		}
		r.Members = append(r.Members, c)
	}
	return r
}

func (i ids) nodes(text string) (out []ring.NodeID) {
	for _, name := range strings.Fields(text) {
		out = append(out, i.of(name))
	}
	return out
}

func TestLackingCopiesAreExplained(t *testing.T) {
	for _, tc := range []struct {
		nodes, members string
		want           int
		lack           string
	}{
		{"a b c", "a b c", 3, ""},
		{"a b c", "a b c:900", 3, ""},
		{"a b c", "a b c:40", 3, "the learner on c is catching up: 40 of 1000"},
		{"a b c:gone d", "a b c", 3, "c is gone since 2026-05-04T03:01:01Z; its copy is replaced at 2026-05-04T03:06:01Z unless it comes back"},
		{"a b", "a b:1000", 3, "too few nodes: 2 are there, 3 copies are wanted"},
		{"a b c:cordoned d:draining", "a b", 3, "no node takes a further copy: c is cordoned, d is draining"},
		{"a b c", "a b", 3, "a further copy is about to be placed"},
		{"a b c", "a b c!", 3, "the copy on c is closed for good since 2026-05-04T03:01:01Z; it is replaced at 2026-05-04T03:06:01Z unless a restart of the node brings it back"},
		{"a b c:gone d", "a b c!", 3, "c is gone since 2026-05-04T03:01:01Z; its copy is replaced at 2026-05-04T03:06:01Z unless it comes back"},
		{"a b c:gone", "a b c", 3, "c is gone since 2026-05-04T03:01:01Z; its copy is replaced at 2026-05-04T03:06:01Z unless it comes back; too few nodes: 2 are there, 3 copies are wanted"},
	} {
		i := ids{}
		if got := i.world(tc.nodes).Lack(i.report(tc.want, tc.members)); got != tc.lack {
			t.Errorf("%s holding %s: %q, want %q", tc.nodes, tc.members, got, tc.lack)
		}
	}
}

func TestANodeGoneForLongIsSaidToBeReplaced(t *testing.T) {
	i := ids{}
	w := i.world("a b c:gone d")
	w.Now = start.Add(time.Hour)
	if got := w.Lack(i.report(3, "a b c")); !strings.Contains(got, "its copy is being replaced") {
		t.Errorf("%q", got)
	}
	if got := i.world("a b").Lack(i.report(3, "a b z")); !strings.Contains(got, "is not known any more") {
		t.Errorf("%q", got)
	}
}

func TestCopiesInOneZoneAreNoted(t *testing.T) {
	for _, tc := range []struct{ nodes, members, want string }{
		{"a b c", "a b c", ""},
		{"a@x b@y c@z", "a b c", ""},
		{"a@x b@x c@x", "a b c", "all copies are in zone x: no node in another zone takes one"},
		{"a@x b@x c@x d@y", "a b c", "all copies are in zone x, and a node of zone y could hold one"},
		{"a@x b@x c@x d@y:cordoned", "a b c", "all copies are in zone x: no node in another zone takes one"},
		{"a@x b@x", "a", ""},
	} {
		i := ids{}
		if got := i.world(tc.nodes).OneZone(i.report(3, tc.members)); got != tc.want {
			t.Errorf("%s holding %s: %q", tc.nodes, tc.members, got)
		}
	}
}

func TestADrainSaysWhatRemainsAndWhy(t *testing.T) {
	for _, tc := range []struct {
		what                           string
		nodes, members, targets, owner string
		stuck                          bool
		reason                         string
	}{
		{"no copy placed", "a:draining b c d", "a b c", "b c d", "b", false, "its owner b has still to place a copy on d"},
		{"catching up", "a:draining b c d", "a b c d:40", "b c d", "b", false, "the learner on d is catching up: 40 of 1000"},
		{"owner", "a:draining b c d", "a b c d:1000", "b c d", "a", false, "its ownership has still to be handed over"},
		{"not let go", "a:draining b c d", "a b c d:1000", "b c d", "b", false, "its owner b has still to let this copy go"},
		{"only copy, nobody takes it", "a:draining b:cordoned", "a", "", "a", true, "nowhere to go: no node takes a further copy: b is cordoned"},
		{"no owner", "a:draining b:gone c:gone", "a b c", "", "", true, "it has no owner: a majority of its copies does not answer (b is gone, c is gone)"},
	} {
		i := ids{}
		h := Holding{Stream: "s", Report: i.report(3, tc.members), Targets: i.nodes(tc.targets)}
		if tc.owner != "" {
			h.Owner = i.of(tc.owner)
		}
		w := i.world(tc.nodes)
		got := w.Remains(i.of("a"), h)
		if got.Stuck != tc.stuck || got.Reason != tc.reason {
			t.Errorf("%s: %+v, want %q", tc.what, got, tc.reason)
		}
	}
}

func TestProgressSaysWhatPoweringDownWouldDo(t *testing.T) {
	i := ids{}
	w := i.world("a:draining b c")
	a := i.of("a")
	hold := func(members, owner, targets string) Holding {
		return Holding{Stream: "s", Report: i.report(3, members), Owner: i.of(owner), Targets: i.nodes(targets)}
	}
	if p := w.Progress(a, 7, nil); !p.SafeToPowerDown || p.ReplicasAtStart != 7 || p.Sentence("a") != "a holds nothing any more: it is safe to power it down" {
		t.Errorf("%+v %s", p, p.Sentence("a"))
	}
	p := w.Progress(a, 3, []Holding{hold("a b c", "b", "b c"), hold("a b:1000", "a", "b c"), hold("a", "a", "")})
	if p.GoOn != 1 || p.Stop != 1 || p.OnlyCopy != 1 || p.Owned != 2 || p.Stuck != 1 || p.SafeToPowerDown || !p.Remaining[0].Stuck {
		t.Errorf("%+v", p)
	}
	want := "a still holds 3 copies of 3, owner of 2; 1 has no way out; not safe to power down: doing so now takes the only copy of 1 partition away and stops writes to 1 partition until it is back"
	if got := p.Sentence("a"); got != want {
		t.Errorf("%s", got)
	}
	closed := hold("a", "", "b c")
	closed.Owner, closed.Closed = ring.NodeID{}, true
	if p := w.Progress(a, 3, []Holding{closed}); p.SafeToPowerDown || p.OnlyCopy != 1 || p.Stuck != 1 {
		t.Errorf("a copy that is closed, of which no other is known: %+v", p)
	}
	p = w.Progress(a, 3, []Holding{hold("a b c", "b", "b c")})
	if got := p.Sentence("a"); got != "a still holds 1 copy of 3, owner of 0; powering it down now stops nothing, and leaves 1 partition with a copy less" {
		t.Errorf("%s", got)
	}
}

func TestAPlanOfADrainNamesStepsTargetsAndShortfalls(t *testing.T) {
	i := ids{}
	a := i.of("a")
	hold := func(stream, members, owner, targets string) Holding {
		return Holding{Stream: stream, Report: i.report(3, members), Owner: i.of(owner), Targets: i.nodes(targets)}
	}
	steps, reason := i.world("a b c d").PlanDrain(a, []Holding{hold("s", "a b c", "a", "b c d"), hold("s", "a b c", "b", "b c d")})
	all := strings.Join(steps, "\n")
	if reason != "a would become empty, and then be safe to power down" || !strings.Contains(all, "place 2 copies on d") || !strings.Contains(all, "hand over the ownership of 1 partition") {
		t.Errorf("%s\n%s", reason, all)
	}
	steps, reason = i.world("a b c").PlanDrain(a, []Holding{hold("s", "a b c", "a", "b c")})
	all = strings.Join(steps, "\n")
	if !strings.Contains(reason, "1 stream would be left with fewer copies than wanted") || !strings.Contains(all, "s keeps 2 copies of the 3 that it wants: no further node can take one") {
		t.Errorf("%s\n%s", reason, all)
	}
	steps, reason = i.world("a b:cordoned").PlanDrain(a, []Holding{hold("s", "a", "a", "")})
	if !strings.HasPrefix(reason, "a would not become empty: 1 has no way out") || !slices.ContainsFunc(steps, func(s string) bool {
		return s == "s partition 0 cannot leave: nowhere to go: no node takes a further copy: b is cordoned"
	}) {
		t.Errorf("%s\n%q", reason, steps)
	}
	if _, reason = i.world("a b").PlanDrain(a, nil); reason != "a holds nothing: it would be safe to power down at once" {
		t.Errorf("%s", reason)
	}
}

func TestADeadNodesCopiesAreSaidToBeReplaced(t *testing.T) {
	i := ids{}
	w := i.world("a:gone b c d")
	a := i.of("a")
	for members, want := range map[string]string{
		"a b c": "s partition 0: a new copy goes to d, as the ring proposes now",
		"a":     "s partition 0: its only copy is on the node that is gone; nothing can replace it",
		"b c d": "",
	} {
		h := Holding{Stream: "s", Report: i.report(3, members), Targets: i.nodes("b c d")}
		if got := w.Replaced(a, h); got != want {
			t.Errorf("%s: %q", members, got)
		}
	}
}

func TestACopyThatLeftIsTold(t *testing.T) {
	i := ids{}
	r := i.report(3, "a b c:40")
	for n := range r.Members {
		r.Members[n].ID = ring.ReplicaID(n + 1)
	}
	if r.Left(2) || !r.Left(9) || (Report{}).Left(2) {
		t.Error("a copy that is there has left, or one that is not has not, or nothing tells of none")
	}
	// A new copy on the node that it left is another one.
	r.Members[1].ID = 4
	if c, ok := r.On(i.of("b")); !ok || c.ID != 4 || !r.Left(2) {
		t.Errorf("%+v %v", c, ok)
	}
	if _, ok := r.On(i.of("z")); ok {
		t.Error("a node without a copy has one")
	}
	r.MoveTo, r.MovePhase, r.MoveReason = i.of("c"), "catching up", "it waits"
	if got := r.MoveSentence("b", "c"); got != "the copy on b moves to c: catching up, 40 of 1000; it waits" {
		t.Errorf("%s", got)
	}
}

func TestAShardOfASmallMeshIsNotCalledShort(t *testing.T) {
	for _, tc := range []struct {
		nodes, members string
		want           bool
	}{{"a", "a", false}, {"a b", "a b:1000", false}, {"a b c", "a b:1000", true}, {"a b:gone", "a b", true}, {"a b c", "a b c", false}, {"a b c:cordoned", "a b", false}} {
		i := ids{}
		if got := i.world(tc.nodes).Mendable(i.report(3, tc.members)); got != tc.want {
			t.Errorf("%s holding %s: %v", tc.nodes, tc.members, got)
		}
	}
}
