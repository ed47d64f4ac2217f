package place

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// sky is a directory under a view and a clock of the test's own; node 0 is the observer.
type sky struct {
	*Directory
	t     *testing.T
	ids   []ring.NodeID
	clock time.Time
	seen  *view.View
	rule  Rules
	seq   uint64
}

func newSky(t *testing.T, nodes int) *sky {
	s := &sky{t: t, clock: time.Unix(1e9, 0), rule: Rules{ReplaceAfter: 5 * time.Minute, Rebalance: true, Telemetry: time.Second}}
	for i := range nodes {
		s.ids = append(s.ids, ring.NodeID{byte(i + 1), 15: 1})
	}
	s.seen = view.New(s.ids[0], view.Limits{})
	s.Directory = New(Config{Self: s.ids[0], Name: "n1", View: func() *view.View { return s.seen },
		Rules: func() Rules { return s.rule }, Now: func() time.Time { return s.clock }})
	for i := range nodes {
		s.believe(i, view.StateAlive)
		s.load(i, 0, 0)
	}
	return s
}

// believe has the observer think so of a node from now on.
func (s *sky) believe(i int, state view.State) {
	s.seq++
	s.merge(view.Member{Identity: s.identity(i, 0), State: state, Since: s.clock, Observed: s.seq})
}

func (s *sky) identity(i int, f view.Flags) view.Identity {
	s.seq++
	return view.Identity{ID: s.ids[i], Mesh: ring.MeshID{1}, Weight: 100, Incarnation: s.seq, Flags: f}
}

func (s *sky) flag(i int, f view.Flags) { s.merge(view.Member{Identity: s.identity(i, f)}) }

func (s *sky) load(i, replicas, owned int) {
	s.seq++
	s.merge(view.Member{Identity: view.Identity{ID: s.ids[i]}, Load: view.Load{Partitions: uint32(replicas), Owned: uint32(owned)}, LoadSeq: s.seq, LoadAt: s.clock})
}

func (s *sky) merge(m view.Member) { s.seen, _ = s.seen.Merge(view.Update{Members: []view.Member{m}}) }

// pass lets time pass in which every node that is there measures its load again.
func (s *sky) pass(d time.Duration) {
	s.clock = s.clock.Add(d)
	for i, id := range s.ids {
		if m, ok := s.seen.Member(id); ok && m.Present() {
			s.load(i, int(m.Load.Partitions), int(m.Load.Owned))
		}
	}
}

// wants fails the test unless the group, which lives on the first three nodes, should live on exactly these.
func (s *sky) wants(what string, nodes ...int) {
	s.t.Helper()
	var want []ring.NodeID
	for _, i := range nodes {
		want = append(want, s.ids[i])
	}
	got := s.Desired(ring.GroupID{9}, 3, s.ids[:3], nil)
	slices.SortFunc(got, ring.NodeID.Compare)
	if !slices.Equal(got, want) {
		s.t.Errorf("%s: the group should live on %v, not on %v", what, want, got)
	}
}

// Gossip may be cut where data is not: a firewall that lets one port through.
func TestNodeThatGossipMissesIsNotReplacedWhileItsReplicasAreHeard(t *testing.T) {
	s := newSky(t, 4)
	silent := map[ring.NodeID]time.Duration{}
	s.Listen(func(n ring.NodeID) time.Duration { return silent[n] })
	s.believe(2, view.StateDead)
	s.pass(time.Hour)
	s.wants("dead for gossip, and heard", 0, 1, 2)
	silent[s.ids[2]] = 5*time.Minute - time.Second
	s.pass(2 * time.Second)
	s.wants("silent for less than replace_after", 0, 1, 2)
	silent[s.ids[2]] = 5 * time.Minute
	s.pass(2 * time.Second)
	s.wants("silent for replace_after", 0, 1, 3)
	s.seen = view.New(s.ids[0], view.Limits{})
	for _, i := range []int{0, 1, 3} {
		s.believe(i, view.StateAlive)
		s.load(i, 0, 0)
	}
	s.pass(time.Hour)
	silent[s.ids[2]] = 0
	s.wants("forgotten by gossip, and heard", 0, 1, 2)
	s.pass(time.Hour)
	silent[s.ids[2]] = math.MaxInt64
	s.wants("forgotten by gossip, and never heard", 0, 1, 3)
}

func TestDeadNodeIsReplacedAfterAWhileAndNeverOnSuspicion(t *testing.T) {
	s := newSky(t, 4)
	s.believe(2, view.StateSuspect)
	s.pass(time.Hour)
	s.wants("suspected for an hour", 0, 1, 2)
	s.believe(2, view.StateDead)
	s.pass(5*time.Minute - time.Second)
	s.wants("dead for less than replace_after", 0, 1, 2)
	s.pass(time.Second)
	s.wants("dead for replace_after", 0, 1, 3)
	s.believe(2, view.StateAlive)
	s.wants("back again", 0, 1, 2)
	s.believe(2, view.StateDead)
	s.pass(time.Minute)
	s.wants("dead again, for a minute", 0, 1, 2)
	s.rule.ReplaceAfter = 30 * time.Second
	s.pass(time.Second)
	s.wants("replace_after was lowered", 0, 1, 3)
}

func TestNodeToAvoidGetsACopyOnlyWhereNoOtherCan(t *testing.T) {
	for _, c := range []struct {
		nodes, third int // where the third copy is to be
	}{{4, 3}, {3, 2}} {
		s := newSky(t, c.nodes)
		got := s.Desired(ring.GroupID{9}, 3, s.ids[:2], s.ids[2:3])
		if want := []ring.NodeID{s.ids[0], s.ids[1], s.ids[c.third]}; !sameNodes(got, want) {
			t.Errorf("of %d nodes: %v, want %v", c.nodes, got, want)
		}
	}
}

// TestNodeThatLeftIsReplacedLikeADeadOne, from when it left; while it stops it keeps what it has and gets nothing.
func TestNodeThatLeftIsReplacedLikeADeadOne(t *testing.T) {
	s := newSky(t, 4)
	s.flag(2, view.Leaving)
	s.wants("stopping", 0, 1, 2)
	if s.Takes(s.ids[2]) || !s.Leaving(s.ids[2]) {
		t.Error("something may be handed to a node that stops")
	}
	s.believe(2, view.StateLeft)
	s.pass(4 * time.Minute)
	s.wants("gone for four minutes", 0, 1, 2)
	s.pass(time.Minute)
	s.wants("gone for five", 0, 1, 3)
}

// TestNodeThatNobodyKnowsIsReplaced: it may have died before this node started, or so long ago that gossip forgot it.
func TestNodeThatNobodyKnowsIsReplaced(t *testing.T) {
	s := newSky(t, 4)
	stranger := ring.NodeID{77}
	current := []ring.NodeID{s.ids[0], s.ids[1], stranger}
	if got := s.Desired(ring.GroupID{9}, 3, current, nil); !slices.Contains(got, stranger) || len(got) != 3 {
		t.Errorf("a node that was missed just now: %v", got)
	}
	s.pass(4 * time.Minute)
	if got := s.Desired(ring.GroupID{9}, 3, current, nil); !slices.Contains(got, stranger) {
		t.Errorf("missed for four minutes: %v", got)
	}
	s.pass(time.Minute)
	if got := s.Desired(ring.GroupID{9}, 3, current, nil); slices.Contains(got, stranger) || len(got) != 3 {
		t.Errorf("missed for five minutes: %v", got)
	}

	s.believe(2, view.StateDead)
	s.pass(10 * time.Minute)
	s.wants("dead for long", 0, 1, 3)
	s.seen, _ = s.seen.Expire(s.clock, s.clock.Add(-time.Minute))
	s.wants("and forgotten by gossip", 0, 1, 3)
}

func TestDrainingNodeIsToHoldNothing(t *testing.T) {
	s := newSky(t, 4)
	s.load(1, 12, 4)
	s.flag(1, view.Draining)
	s.wants("draining", 0, 2, 3)
	s.flag(1, 0)
	s.wants("no more draining", 0, 1, 2)
	s.flag(1, view.Cordoned)
	s.wants("cordoned", 0, 1, 2)
}

// TestMemberThatDeclinesIsPassedOverUntilGossipTells: what it said itself counts for a while, and not for longer.
func TestMemberThatDeclinesIsPassedOverUntilGossipTells(t *testing.T) {
	s := newSky(t, 4)
	groups := []ring.GroupID{{1}, {2}, {3}, {4}, {5}}
	placed := func() (on int) {
		for _, nodes := range s.Place(groups, 3) {
			if slices.Contains(nodes, s.ids[3]) {
				on++
			}
		}
		return on
	}
	if !s.Takes(s.ids[3]) || placed() == 0 {
		t.Fatal("nothing is placed on it anyhow")
	}
	s.flag(0, view.Draining)
	s.wants("one drains", 1, 2, 3)
	s.Declined(s.ids[3])
	s.wants("and another declines", 1, 2)
	if s.Takes(s.ids[3]) || placed() > 0 {
		t.Error("something new goes to a member that declined")
	}
	s.pass(declineAge)
	if !s.Takes(s.ids[3]) || placed() == 0 {
		t.Error("its word counts for ever")
	}
	s.wants("and it takes copies again", 1, 2, 3)
}

// TestStarvedNodeMovesNothing: a node short of CPU is suspected now and then, and its loads come late. Nothing is placed on it or taken
// from it for that, and nobody else moves anything.
func TestStarvedNodeMovesNothing(t *testing.T) {
	s := newSky(t, 4)
	loads := []int{30, 30, 30, 30}
	for minute := range 60 {
		s.believe(3, []view.State{view.StateSuspect, view.StateAlive, view.StateDead, view.StateAlive}[minute%4])
		for i, n := range loads {
			if i != 3 || minute%7 == 0 {
				s.load(i, n, 10)
			}
		}
		s.clock = s.clock.Add(time.Minute)
		for i := range loads {
			if i != 3 {
				s.load(i, loads[i], 10)
			}
		}
		for g := range byte(40) {
			current := []ring.NodeID{s.ids[g%4], s.ids[(g+1)%4], s.ids[(g+2)%4]}
			if from, to, ok := s.Relief(ring.GroupID{g}, current); ok {
				t.Fatalf("minute %d: a copy is to go from %v to %v", minute, from, to)
			}
			if got := s.Desired(ring.GroupID{g}, 3, current, nil); !sameNodes(got, current) {
				t.Fatalf("minute %d: a group is to live on %v and not on %v", minute, got, current)
			}
		}
	}
}

func sameNodes(a, b []ring.NodeID) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, ring.NodeID.Compare)
	slices.SortFunc(b, ring.NodeID.Compare)
	return slices.Equal(a, b)
}

func TestMemberWithAnOldLoadIsNoTarget(t *testing.T) {
	s := newSky(t, 4)
	full := func() {
		for i := range 3 {
			s.load(i, 40, 13)
		}
	}
	full()
	s.load(3, 0, 0)
	if _, to, ok := s.Relief(ring.GroupID{1}, s.ids[:3]); !ok || to != s.ids[3] {
		t.Fatalf("no copy is to go to the empty node: %v %v", to, ok)
	}
	if low, high := s.Share(); low != 30 || high != 30 {
		t.Errorf("the share is %d to %d", low, high)
	}
	s.rule.Rebalance = false
	if _, _, ok := s.Relief(ring.GroupID{1}, s.ids[:3]); ok {
		t.Error("copies move although rebalancing is off")
	}
	s.rule.Rebalance = true
	s.clock = s.clock.Add(time.Minute)
	full()
	if _, to, ok := s.Relief(ring.GroupID{1}, s.ids[:3]); ok {
		t.Errorf("a copy is to go to %v, which was not heard of for a minute", to)
	}
}

// TestStreamsCreatedOneAfterAnotherAreBornEven, also when the nodes' own counts have not come yet.
func TestStreamsCreatedOneAfterAnotherAreBornEven(t *testing.T) {
	s := newSky(t, 5)
	held, owned := map[ring.NodeID]int{}, map[ring.NodeID]int{}
	for stream := range byte(10) {
		var groups []ring.GroupID
		for p := range byte(3) {
			groups = append(groups, ring.PartitionGroup(ring.StreamID{stream}, ring.PartitionID(p)))
		}
		for _, nodes := range s.Place(groups, 3) {
			owned[nodes[0]]++
			for _, n := range nodes {
				held[n]++
			}
		}
		s.clock = s.clock.Add(50 * time.Millisecond)
	}
	for _, id := range s.ids {
		if held[id] != 18 || owned[id] < 5 || owned[id] > 7 {
			t.Errorf("%v has %d copies, not 18, and owns %d of 30", id, held[id], owned[id])
		}
	}
	// Once the nodes have said so themselves, nothing counts twice.
	s.clock = s.clock.Add(3 * time.Second)
	for i, id := range s.ids {
		s.load(i, held[id], owned[id])
	}
	s.load(4, 6, 2)
	for _, nodes := range s.Place([]ring.GroupID{{1}, {2}, {3}}, 3) {
		if nodes[0] != s.ids[4] {
			t.Errorf("a new group is owned by %v, not by the one with the most room", nodes[0])
		}
	}
}
