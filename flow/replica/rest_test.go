package replica

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
)

// atRest founds groups on all nodes, in turn, and waits until all their replicas rest.
func (m *mesh) atRest(groups int) (terms map[ring.GroupID]uint64) {
	m.t.Helper()
	n := len(m.nodes)
	for i := range groups {
		on := make([]int, n)
		for j := range on {
			on[j] = (i + j) % n
		}
		m.found(testGroup(byte(i)), on...)
	}
	terms = map[ring.GroupID]uint64{}
	for i := range groups {
		g := testGroup(byte(i))
		m.propose(g, "first")
		terms[g] = m.owner(g).Status().Term
	}
	m.restAll()
	return terms
}

func (m *mesh) restAll() {
	m.t.Helper()
	m.await("rest", func() bool { return m.awake() == 0 })
}

func (m *mesh) awake() (n int) {
	for _, nd := range m.nodes {
		if !nd.up {
			continue
		}
		for _, g := range nd.host.Groups() {
			if g.resting.Load() == nil {
				n++
			}
		}
	}
	return n
}

// owned waits until every group has a ready owner among the nodes, and says how long that took.
func (m *mesh) owned(groups int, among ...int) time.Duration {
	m.t.Helper()
	begin := time.Now()
	for i := range groups {
		m.owner(testGroup(byte(i)), among...)
	}
	return time.Since(begin)
}

func TestRestingGroupsExchangeBeatsOnly(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.atRest(30)
		virtual.Sleep(50 * time.Millisecond) // what is under way
		var beats, words, others atomic.Int64
		asked := make([]map[time.Time]bool, 3) // when, by the node that asks
		for i := range asked {
			asked[i] = map[time.Time]bool{}
		}
		m.dropping(func(from, _ int, e envelope) bool {
			switch {
			case e.group.IsZero():
				beats.Add(1)
			case isWord(e.msg):
				words.Add(1)
				if e.msg.GetType() == pb.MsgHeartbeatResp {
					asked[from][time.Now()] = true
				}
			default:
				others.Add(1)
			}
			return false
		})
		virtual.Sleep(30 * time.Second)
		if n := others.Load(); n != 0 {
			t.Errorf("%d messages of groups at rest", n)
		}
		if n := beats.Load(); n < 3500 || n > 3700 {
			t.Errorf("%d beats in 30 s: three nodes send two each 20 times a second", n)
		}
		// 60 followers ask every 5 to 15 s and are answered.
		if n := words.Load(); n == 0 || n > 60*2*30/5 {
			t.Errorf("%d words", n)
		}
		for i, at := range asked {
			if n := len(at); n > 30*20/askTogether+1 {
				t.Errorf("node %d asks at %d instants: its questions do not leave together", i, n)
			}
		}
		if n := m.awake(); n != 0 {
			t.Errorf("%d replicas woke up", n)
		}
	})
}

func TestRestingGroupWakesForAProposalOrARead(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		terms := m.atRest(1)
		g := testGroup(0)
		own := m.owner(g)
		for name, ask := range map[string]func() error{
			"read":     func() error { return own.ReadIndex(context.Background()) },
			"proposal": func() error { return own.ProposeWait(context.Background(), []byte("x")).Err },
		} {
			begin := time.Now()
			if err := ask(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if d := time.Since(begin); d > 20*time.Millisecond {
				t.Errorf("%s took %v", name, d)
			}
			if m.awake() == 0 {
				t.Errorf("%s: nobody woke up", name)
			}
			m.converge(g, 0, 1, 2)
			m.restAll()
		}
		if s := own.Status(); s.Role != RoleOwner || s.Term != terms[g] || time.Since(s.OwnerSeen) > time.Second {
			t.Errorf("%+v", s)
		}
	})
}

func TestOwnerKilledWhileItsGroupsRestIsReplacedInTheUsualTime(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			inMesh(t, n, func(m *mesh) {
				const groups = 60
				terms := m.atRest(groups)
				m.nodes[0].crash()
				left := []int{1, 2, 3, 4}[:n-1]
				if d := m.owned(groups, left...); d > 1100*time.Millisecond { // two election timeouts and a round of votes: none is split
					t.Errorf("took %v", d)
				}
				for g, was := range terms {
					if now := m.owner(g, left...).Status().Term; now > was+1 {
						t.Errorf("group %s went from term %d to %d", g, was, now)
					}
				}
				m.nodes[0].start()
				m.restAll()
			})
		})
	}
}

func TestNodeStartedAgainAtOnceFindsOwnersForItsGroups(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		const groups = 30
		terms := m.atRest(groups)
		m.nodes[0].crash()
		m.nodes[0].start()
		if d := m.owned(groups); d > 1100*time.Millisecond {
			t.Errorf("took %v", d)
		}
		for i := range groups {
			g := testGroup(byte(i))
			if now := m.owner(g).Status().Term; now > terms[g]+3 {
				t.Errorf("group %d went from term %d to %d", i, terms[g], now)
			}
		}
		m.restAll()
	})
}

func TestReplicaThatStopsAloneIsReplacedThoughItsNodeLives(t *testing.T) {
	told := func(e envelope) bool { return e.msg.GetType() == pb.MsgTimeoutNow }
	over := func(e envelope) bool { return e.msg.GetType() == pb.MsgHeartbeat && e.msg.GetIndex() == overMark }
	for name, tt := range map[string]struct {
		lost  func(envelope) bool
		limit time.Duration
	}{
		"told":                              {func(envelope) bool { return false }, 100 * time.Millisecond},
		"the one that is to stand does not": {told, 600 * time.Millisecond}, // an election timeout has passed for them: one more at most
		"the others do not hear of it":      {over, 100 * time.Millisecond},
		"the words are lost":                {func(e envelope) bool { return told(e) || over(e) }, 18 * time.Second}, // asked for in 15, and four times in vain
	} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, 3, func(m *mesh) {
				m.atRest(2) // beats come from its node for the other group
				g := testGroup(0)
				own := m.nodeOf(m.owner(g))
				m.dropping(func(_, _ int, e envelope) bool { return tt.lost(e) })
				if err := own.host.Remove(context.Background(), g); err != nil {
					t.Fatal(err)
				}
				if d := m.owned(1); d > tt.limit {
					t.Errorf("took %v", d)
				}
			})
		})
	}
}

func TestRestingOwnerThatIsCutOffServesNoReadAndGivesUp(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.atRest(1)
		g := testGroup(0)
		old := m.owner(g)
		cut := m.nodeOf(old)
		m.isolate(cut.i, true)
		read := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			read <- old.ReadIndex(ctx)
		}()
		virtual.Sleep(2 * time.Second)
		if s := old.Status(); s.Role == RoleOwner {
			t.Errorf("still calls itself owner: %+v", s)
		}
		if err := <-read; wire.KindOf(err) != wire.KindUnavailable {
			t.Errorf("the read gave %v", err)
		}
		if o := m.propose(g, "second"); o.Err != nil {
			t.Fatal(o.Err)
		}
		m.isolate(cut.i, false)
		m.converge(g, 0, 1, 2)
		m.restAll()
	})
}

// An owner whose group rests and who was cut off never serves what is not the latest: not in the time before it notices either.
func TestNoReadIsServedUnderBeatsOfThePast(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.atRest(1)
		g := testGroup(0)
		old := m.owner(g)
		cut := m.nodeOf(old)
		m.dropping(func(from, to int, e envelope) bool { // beats still pass, for the worst
			return !e.group.IsZero() && (from == cut.i || to == cut.i)
		})
		for i := range m.nodes {
			if i != cut.i {
				m.group(i, g).Campaign()
			}
		}
		for range 40 {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			if err := old.ReadIndex(ctx); err == nil {
				t.Fatal("a read was served that nobody confirmed")
			}
			cancel()
		}
	})
}

func TestOneWayCutsWhileGroupsRest(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		terms := m.atRest(1)
		g := testGroup(0)
		own := m.nodeOf(m.owner(g))
		a, b := (own.i+1)%3, (own.i+2)%3
		cut := func(from, to int, on bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.cut[[2]int{from, to}] = on
		}
		for _, dir := range [][2]int{{own.i, a}, {a, own.i}} {
			cut(dir[0], dir[1], true)
			virtual.Sleep(3 * time.Second)
			if s := m.group(own.i, g).Status(); s.Role != RoleOwner || s.Term != terms[g] {
				t.Errorf("one follower cut off one way, and the owner is lost: %+v", s)
			}
			m.propose(g, "x")
			cut(dir[0], dir[1], false)
			m.restAll()
		}
		cut(a, own.i, true) // the owner is heard and hears nobody
		cut(b, own.i, true)
		virtual.Sleep(3 * time.Second)
		if s := m.group(own.i, g).Status(); s.Role == RoleOwner {
			t.Errorf("an owner that hears nobody goes on: %+v", s)
		}
		m.owner(g, a, b)
	})
}

func TestGroupWithAMemberOfAVersionWithoutBeatsStaysAwake(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.dropping(func(from, to int, e envelope) bool { return e.group.IsZero() && (from == 2 || to == 2) })
		g := testGroup(0)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		m.converge(g, 0, 1, 2)
		term := m.owner(g).Status().Term
		for range 20 {
			virtual.Sleep(500 * time.Millisecond)
			if n := m.awake(); n != 3 {
				t.Fatalf("%d replicas are awake", n)
			}
		}
		if now := m.owner(g).Status().Term; now != term {
			t.Errorf("from term %d to %d", term, now)
		}
		m.dropping(nil) // it was upgraded
		m.restAll()
	})
}

func TestFollowerThatMissedTheWordAsksForIt(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		var lost atomic.Int64
		m.dropping(func(_, _ int, e envelope) bool {
			return !e.group.IsZero() && e.msg.GetType() == pb.MsgHeartbeat && isWord(e.msg) && lost.Add(1) <= 2
		})
		terms := m.atRest(1)
		if lost.Load() < 3 {
			t.Fatal("no word was lost")
		}
		if now := m.owner(testGroup(0)).Status().Term; now != terms[testGroup(0)] {
			t.Errorf("from term %d to %d", terms[testGroup(0)], now)
		}
	})
}

func TestRestingOwnerStillLooksAfterItsMembership(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.fixed = true
		g := testGroup(0)
		m.found(g, 0)
		m.propose(g, "a")
		m.restAll()
		m.mu.Lock()
		m.fixed = false
		m.mu.Unlock()
		m.await("three voters", func() bool { return voters(m.owner(g).Status()) == 3 })
		m.restAll()
	})
}

func TestGroupsRestWithoutTheirMembersOnANodeThatIsDown(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		const groups = 9
		m.fixed = true
		m.atRest(groups)
		m.nodes[0].crash()
		m.owned(groups, 1, 2)
		m.restAll()
		for i := range groups / 2 {
			m.propose(testGroup(byte(i)), "second")
		}
		m.restAll()
		m.nodes[0].start()
		m.restAll()
		for i := range groups {
			m.converge(testGroup(byte(i)), 0, 1, 2)
		}
		// Both that are left must hear each other: with one of them cut off and alive there is no majority, and no rest.
		m.nodes[0].crash()
		m.owned(groups, 1, 2)
		m.restAll()
		m.split(1, 2, true)
		virtual.Sleep(3 * time.Second)
		for i := range groups {
			for n := 1; n < 3; n++ {
				if g := m.group(n, testGroup(byte(i))); g.resting.Load() != nil || g.Status().Role == RoleOwner {
					t.Fatalf("group %d on node %d: %+v", i, n, g.Status())
				}
			}
		}
	})
}

func TestRestCanBeTurnedOff(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		for _, n := range m.nodes {
			n.stop()
		}
		m.tune = func(c *Config) { c.RestTicks = 0 }
		for _, n := range m.nodes {
			n.start()
		}
		g := testGroup(0)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		virtual.Sleep(10 * time.Second)
		if n := m.awake(); n != 3 {
			t.Errorf("%d replicas are awake", n)
		}
	})
}

// A replica that finds, when it is to rest, that it lacks something has its owner wake up.
func TestFollowerThatIsBehindDoesNotRest(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		m.atRest(1)
		g := testGroup(0)
		own := m.owner(g)
		slow := m.nodes[(m.nodeOf(own).i+1)%3]
		slow.journal.hold(true)
		if o := own.ProposeWait(context.Background(), []byte("b")); o.Err != nil {
			t.Fatal(o.Err)
		}
		virtual.Sleep(5 * time.Second)
		if m.group(slow.i, g).resting.Load() != nil || own.resting.Load() != nil {
			t.Error("a group rests while a member's disk is behind")
		}
		slow.journal.hold(false)
		m.converge(g, 0, 1, 2)
		m.restAll()
	})
}

func TestManyGroupsThatWakeTogetherElectOnceEach(t *testing.T) {
	inMesh(t, 5, func(m *mesh) {
		const groups = 100
		terms := m.atRest(groups)
		r := rand.New(rand.NewPCG(1, 1))
		for range 4 {
			down := m.nodes[r.IntN(5)]
			down.crash()
			virtual.Sleep(2 * time.Second)
			down.start()
			virtual.Sleep(3 * time.Second)
		}
		m.restAll()
		for g, was := range terms {
			if now := m.owner(g).Status().Term; now > was+8 {
				t.Errorf("group %s went from term %d to %d in four failovers", g, was, now)
			}
		}
	})
}
