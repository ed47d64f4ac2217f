package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

func TestJoinersLearnTheMeshAndPersistIt(t *testing.T) {
	var persisted sync.Map
	nodes := mesh(t, 3, func(i int, c *Config) {
		c.OnMesh = func(id ring.MeshID) error { persisted.Store(i, id); return nil }
		c.Self.Zone = fmt.Sprintf("z%d", i)
		c.Secret = bytes.Repeat([]byte{7}, 32)
	})
	for i, n := range nodes {
		id, ok := n.MeshID()
		if !ok || id != testMesh {
			t.Errorf("node %d belongs to mesh %s", i, id)
		}
		got, called := persisted.Load(i)
		if called != (i > 0) || called && got != testMesh {
			t.Errorf("node %d persisted %v", i, got)
		}
		m, ok := nodes[0].View().ByName(n.cfg.Self.Name)
		if !ok || m.ID != n.cfg.Self.ID || m.Zone != n.cfg.Self.Zone || m.GossipAddr != n.Addr() || m.Weight != 1 {
			t.Errorf("node 0 sees %+v", m)
		}
		for _, line := range n.log.all() {
			if strings.Contains(line, "memberlist") || strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
				t.Errorf("alarming line for a newcomer: %s", line)
			}
		}
	}
}

func TestFailedPersistenceOfTheMeshEndsRun(t *testing.T) {
	boom := errors.New("disk on fire")
	first := start(t, func() Config { c := fastConfig("n0"); c.Self.Mesh = testMesh; return c }())
	c := fastConfig("n1")
	c.Seeds = []string{first.Addr()}
	c.OnMesh = func(ring.MeshID) error { return boom }
	if err := start(t, c).runErr(); !errors.Is(err, boom) {
		t.Fatalf("Run ended with %v", err)
	}
}

func TestHintOfHigherTermWinsEverywhere(t *testing.T) {
	nodes := mesh(t, 3, nil)
	g := ring.GroupID{9}
	nodes[0].SetHints([]view.Hint{{Group: g, Term: 3}})
	eventually(t, "all hear of term 3", func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool { h, ok := n.View().Owner(g); return !ok || h.Term != 3 })
	})
	nodes[1].SetHints([]view.Hint{{Group: g, Term: 5}})
	nodes[2].SetHints([]view.Hint{{Group: g, Term: 4}})
	want := view.Hint{Group: g, Owner: nodes[1].cfg.Self.ID, Term: 5}
	eventually(t, "term 5 wins", func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool { h, _ := n.View().Owner(g); return h != want })
	})
}

func TestManyHintsReachALateJoiner(t *testing.T) {
	nodes := mesh(t, 2, nil)
	hints := make([]view.Hint, 5000)
	for i := range hints {
		hints[i] = view.Hint{Group: ring.PartitionGroup(ring.StreamID{1}, ring.PartitionID(i)), Term: uint64(i)}
	}
	nodes[1].SetHints(hints)
	c := fastConfig("late")
	c.Seeds = []string{nodes[0].Addr()}
	late := start(t, c)
	eventually(t, "all hints everywhere", func() bool {
		return late.View().CountHints() == len(hints) && nodes[0].View().CountHints() == len(hints)
	})
}

func TestLoadSpreadsAndIsNotStale(t *testing.T) {
	nodes := mesh(t, 3, nil)
	changed := nodes[2].Changed()
	nodes[0].SetLoad(view.Load{CPUPercent: 40, Owned: 2, Partitions: 3})
	sees := func(n *node, cpu float32) bool {
		m, _ := n.View().Member(nodes[0].cfg.Self.ID)
		age, ok := m.Staleness(time.Now())
		return ok && m.Load.CPUPercent == cpu && age < 10*time.Second
	}
	eventually(t, "first load everywhere", func() bool { return sees(nodes[0], 40) && sees(nodes[1], 40) && sees(nodes[2], 40) })
	select {
	case <-changed:
	default:
		t.Error("no change was signalled")
	}
	nodes[0].SetLoad(view.Load{CPUPercent: 80, Owned: 2, Partitions: 3})
	eventually(t, "newer load everywhere", func() bool { return sees(nodes[1], 80) && sees(nodes[2], 80) })
}

func TestLoadTravelsWithItsOwnAgeAlsoBeforeTheViewHasIt(t *testing.T) {
	g, err := New(fastConfig("n0"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.SetLoad(view.Load{CPUPercent: 40})
	m, err := decodeMessage(g.fullState(time.Now().Add(time.Minute)))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.reports) != 1 || m.reports[0].seq == 0 || m.reports[0].age < time.Minute || m.reports[0].age > time.Hour {
		t.Fatalf("got %+v", m.reports)
	}
}

func TestFlagsSpread(t *testing.T) {
	nodes := mesh(t, 2, nil)
	nodes[1].SetFlags(view.Cordoned)
	eventually(t, "the flag arrives", func() bool {
		m, _ := nodes[0].View().Member(nodes[1].cfg.Self.ID)
		return m.Cordoned()
	})
}

func TestLeavingIsToldFromDying(t *testing.T) {
	nodes := mesh(t, 3, nil)
	if err := nodes[1].Leave(3 * time.Second); err != nil {
		t.Error(err)
	}
	nodes[1].stop()
	nodes[2].stop() // without a word
	state := func(i int) view.State {
		m, _ := nodes[0].View().Member(nodes[i].cfg.Self.ID)
		return m.State
	}
	eventually(t, "one left, one dead", func() bool { return state(1) == view.StateLeft && state(2) == view.StateDead })
	if nodes[0].View().Alive(nodes[2].cfg.Self.ID) {
		t.Error("a dead member counts as alive")
	}
}

// The race detector is what looks here: a node that leaves raises its flag first, so that two announcements meet.
func TestAnnouncementsDoNotMeet(t *testing.T) {
	nodes := mesh(t, 2, nil)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				_ = nodes[1].say(nodes[1].lib, time.Microsecond) // too short to be out: it is only begun
			}
		})
	}
	all.Wait()
}

func TestCloseWithoutRunFreesThePort(t *testing.T) {
	g, err := New(fastConfig("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal("second Close:", err)
	}
	if err := g.Run(context.Background()); !errors.Is(err, ErrClosed) {
		t.Fatalf("Run after Close: %v", err)
	}
	if err := g.Leave(time.Second); err != nil {
		t.Fatal("Leave after Close:", err)
	}
	c := fastConfig("b")
	c.BindAddr = g.Addr()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
}

func TestAdoptMeshOnlyOnce(t *testing.T) {
	a := start(t, fastConfig("a"))
	if err := a.AdoptMesh(testMesh); err != nil {
		t.Fatal(err)
	}
	if err := a.AdoptMesh(testMesh); err != nil {
		t.Fatal("again:", err)
	}
	if err := a.AdoptMesh(ring.MeshID{8}); !errors.Is(err, ErrOtherMesh) {
		t.Fatalf("another: %v", err)
	}
	eventually(t, "the own view has it", func() bool {
		m, _ := a.View().Member(a.cfg.Self.ID)
		return m.Mesh == testMesh
	})
}

func TestKilledMemberIsSuspectedThenDead(t *testing.T) {
	nodes := mesh(t, 3, func(_ int, c *Config) { c.SuspicionMult = 20 })
	nodes[2].stop()
	var seen []view.State
	eventually(t, "dead", func() bool {
		changed := nodes[0].Changed()
		m, _ := nodes[0].View().Member(nodes[2].cfg.Self.ID)
		if len(seen) == 0 || seen[len(seen)-1] != m.State {
			seen = append(seen, m.State)
		}
		if m.State != view.StateDead {
			<-changed
		}
		return m.State == view.StateDead
	})
	if want := []view.State{view.StateAlive, view.StateSuspect, view.StateDead}; !slices.Equal(seen, want) {
		t.Errorf("states %v", seen)
	}
}

func TestMembersOfOneNameAreToldOf(t *testing.T) {
	nodes := mesh(t, 2, func(_ int, c *Config) { c.Self.Name = "same" })
	for _, n := range nodes {
		eventually(t, "a warning about the name", func() bool {
			return slices.ContainsFunc(n.log.all(), func(l string) bool { return strings.Contains(l, "two nodes have the same name") })
		})
	}
}
