package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testMesh is the mesh of most tests.
var testMesh = ring.MeshID{1, 2, 3}

// lines collects a node's log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.buf.String()), "\n")
}

func (l *lines) count(all ...string) int {
	n := 0
	for _, line := range l.all() {
		if !slices.ContainsFunc(all, func(s string) bool { return !strings.Contains(line, s) }) {
			n++
		}
	}
	return n
}

// node is a running Gossip with its log.
type node struct {
	*Gossip
	log    *lines
	stop   func()
	runErr func() error
}

// fastConfig is a configuration on loopback with short pauses.
func fastConfig(name string) Config {
	c := DefaultConfig()
	c.Self = view.Identity{ID: ring.NewNodeID(), Name: name, Cluster: "test-cluster", Version: "v0"}
	c.BindAddr = "127.0.0.1:0"
	c.ProbeInterval = 100 * time.Millisecond
	c.ProbeTimeout = 80 * time.Millisecond
	c.GossipInterval = 20 * time.Millisecond
	c.PushPullInterval = 500 * time.Millisecond
	c.LoadMinGap = 50 * time.Millisecond
	c.LoadInterval = 200 * time.Millisecond
	c.SeedMinPause = 20 * time.Millisecond
	c.SeedMaxPause = 200 * time.Millisecond
	c.SeedSilence = 200 * time.Millisecond
	return c
}

func start(t *testing.T, c Config, mods ...func(*Gossip)) *node {
	t.Helper()
	log := &lines{}
	c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mods {
		m(g)
	}
	ctx, cancel := context.WithCancel(context.Background())
	errc := make(chan error, 1)
	go func() { errc <- g.Run(ctx) }()
	n := &node{Gossip: g, log: log}
	n.runErr = sync.OnceValue(func() error { return <-errc })
	n.stop = sync.OnceFunc(func() {
		cancel()
		_ = n.runErr()
		_ = g.Close()
	})
	t.Cleanup(func() {
		n.stop()
		if t.Failed() {
			t.Logf("log of %s:\n%s", c.Self.Name, strings.Join(log.all(), "\n"))
		}
	})
	return n
}

// counter adds up a counter or gauge over all its labels, or those of one label value.
func (n *node) counter(t *testing.T, name, value string) float64 {
	t.Helper()
	families, err := n.cfg.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if value == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == value {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// waitTries waits for so many more tries of seeds.
func (n *node) waitTries(t *testing.T, more float64) {
	t.Helper()
	from := n.counter(t, "skein_gossip_joins_total", "")
	eventually(t, "more tries", func() bool { return n.counter(t, "skein_gossip_joins_total", "") >= from+more })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// mesh starts n nodes: the first founded testMesh, the others join it.
func mesh(t *testing.T, n int, mod func(i int, c *Config)) []*node {
	t.Helper()
	nodes := make([]*node, n)
	for i := range nodes {
		c := fastConfig(fmt.Sprintf("n%d", i))
		if i == 0 {
			c.Self.Mesh = testMesh
		} else {
			c.Seeds = []string{nodes[0].Addr()}
		}
		if mod != nil {
			mod(i, &c)
		}
		nodes[i] = start(t, c)
	}
	formed(t, nodes)
	return nodes
}

func formed(t *testing.T, nodes []*node) {
	t.Helper()
	eventually(t, "every node sees every node in one mesh", func() bool {
		for _, n := range nodes {
			v := n.View()
			for _, m := range nodes {
				got, ok := v.Member(m.cfg.Self.ID)
				if !ok || got.State != view.StateAlive || got.Mesh != testMesh || got.Name != m.cfg.Self.Name {
					return false
				}
			}
		}
		return true
	})
}

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

func TestOtherClusterIsRefusedWithOneLineOnBothSides(t *testing.T) {
	a := start(t, func() Config { c := fastConfig("a"); c.Self.Mesh = testMesh; return c }())
	c := fastConfig("b")
	c.Self.Cluster = "other-cluster"
	c.Seeds = []string{a.Addr()}
	b := start(t, c)
	eventually(t, "both sides name both clusters", func() bool {
		return a.log.count("refused", "test-cluster", "other-cluster") > 0 && b.log.count("refused", "test-cluster", "other-cluster") > 0
	})
	b.waitTries(t, 5)
	for _, n := range []*node{a, b} {
		if got := n.log.count("level=WARN"); got != 1 {
			t.Errorf("%s wrote %d warnings:\n%s", n.cfg.Self.Name, got, strings.Join(n.log.all(), "\n"))
		}
		if n.View().Len() != 1 {
			t.Errorf("%s took over members", n.cfg.Self.Name)
		}
	}
}

func TestOtherMeshIsRefusedWithOneLineOnBothSides(t *testing.T) {
	a := start(t, func() Config { c := fastConfig("a"); c.Self.Mesh = testMesh; return c }())
	c := fastConfig("b")
	c.Self.Mesh = ring.MeshID{4, 5, 6}
	c.Seeds = []string{a.Addr()}
	b := start(t, c)
	eventually(t, "both sides name both meshes", func() bool {
		return a.log.count("refused", testMesh.String(), c.Self.Mesh.String()) > 0 &&
			b.log.count("refused", testMesh.String(), c.Self.Mesh.String()) > 0
	})
	b.waitTries(t, 5)
	for _, n := range []*node{a, b} {
		if got := n.log.count("level=WARN"); got != 1 {
			t.Errorf("%s wrote %d warnings:\n%s", n.cfg.Self.Name, got, strings.Join(n.log.all(), "\n"))
		}
		if n.View().Len() != 1 {
			t.Errorf("%s took over members", n.cfg.Self.Name)
		}
	}
}

func TestOtherSecretIsRefusedWithOneLineOnBothSides(t *testing.T) {
	for name, secret := range map[string][]byte{"another": bytes.Repeat([]byte{2}, 32), "none": nil} {
		t.Run(name, func(t *testing.T) {
			ca := fastConfig("a")
			ca.Self.Mesh, ca.Secret = testMesh, bytes.Repeat([]byte{1}, 32)
			a := start(t, ca)
			c := fastConfig("b")
			c.Secret, c.Seeds = secret, []string{a.Addr()}
			b := start(t, c)
			eventually(t, "both sides say so", func() bool {
				return a.log.count("another secret", "127.0.0.1") > 0 && b.log.count("another secret", "127.0.0.1") > 0
			})
			b.waitTries(t, 5)
			for _, n := range []*node{a, b} {
				if got := n.log.count("level=WARN"); got != 1 || n.View().Len() != 1 {
					t.Errorf("%s: %d warnings, %d members", n.cfg.Self.Name, got, n.View().Len())
				}
			}
		})
	}
}

func TestPreviousSecretIsAccepted(t *testing.T) {
	oldKey, newKey := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	mesh(t, 2, func(i int, c *Config) {
		c.Secret = oldKey
		if i == 1 {
			c.Secret, c.PreviousSecrets = newKey, [][]byte{oldKey}
		} else {
			c.PreviousSecrets = [][]byte{newKey}
		}
	})
}

func TestSilentSeedGivesOneLineAndIsJoinedLater(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	c := fastConfig("b")
	c.Seeds = []string{addr}
	b := start(t, c)
	eventually(t, "one line", func() bool { return b.log.count("join address does not answer", addr) == 1 })
	b.waitTries(t, 5)
	if n := b.log.count("level=WARN"); n != 1 {
		t.Errorf("%d warnings", n)
	}
	ca := fastConfig("a")
	ca.BindAddr, ca.Self.Mesh = addr, testMesh
	a := start(t, ca)
	formed(t, []*node{a, b})
	if b.log.count("answers now") != 1 {
		t.Error("no line that the address answers")
	}
}

func TestRestartedNodeIsJoinedAgain(t *testing.T) {
	nodes := mesh(t, 3, nil)
	c := nodes[0].cfg
	c.BindAddr = nodes[0].Addr()
	nodes[0].stop()
	c.Registerer = nil
	nodes[0] = start(t, c) // has no seeds: the others come back to it
	formed(t, nodes)
}

func TestCutMeshHealsUnaided(t *testing.T) {
	var cut atomic.Bool
	nodes := make([]*node, 0, 3)
	for i := range 3 {
		c := fastConfig(fmt.Sprintf("n%d", i))
		c.SuspicionMult = 2
		if i == 0 {
			c.Self.Mesh = testMesh
		} else {
			c.Seeds = []string{nodes[0].Addr()}
		}
		nodes = append(nodes, start(t, c, func(g *Gossip) { g.net.blocked = func(string) bool { return cut.Load() } }))
	}
	formed(t, nodes)
	cut.Store(true)
	eventually(t, "everyone is alone", func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool { return n.View().CountPresent() != 1 })
	})
	cut.Store(false)
	formed(t, nodes)
}

func TestTakenPortIsNamedWithItsKey(t *testing.T) {
	a := start(t, fastConfig("a"))
	c := fastConfig("b")
	c.BindAddr = a.Addr()
	_, err := New(c)
	if err == nil || !strings.Contains(err.Error(), a.Addr()) || !strings.Contains(err.Error(), "gossip.addr") {
		t.Fatalf("New: %v", err)
	}
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

func TestSeedNameStandsForAllItsAddresses(t *testing.T) {
	a := start(t, func() Config { c := fastConfig("a"); c.Self.Mesh = testMesh; return c }())
	_, port, _ := net.SplitHostPort(a.Addr())
	c := fastConfig("b")
	c.Seeds = []string{net.JoinHostPort("localhost", port)} // ::1 as well, where nobody listens
	b := start(t, c)
	formed(t, []*node{a, b})
}

func TestSeedThatAdvertisesAnotherAddressIsNotJoinedEndlessly(t *testing.T) {
	ca := fastConfig("a")
	ca.Self.Mesh, ca.BindAddr, ca.AdvertiseAddr = testMesh, "0.0.0.0:0", "127.0.0.1"
	a := start(t, ca)
	_, port, _ := net.SplitHostPort(a.Addr())
	c := fastConfig("b")
	c.Seeds = []string{net.JoinHostPort("127.0.0.2", port)}
	c.SeedMaxPause = time.Hour
	c.SeedMinPause = 20 * time.Minute // three rounds at most before the pause is an hour
	b := start(t, c)
	formed(t, []*node{a, b})
	if n := b.counter(t, "skein_gossip_joins_total", "ok"); n > 1 {
		t.Errorf("joined %v times", n)
	}
}

func TestClockSetBackBeforeARestartDoesNotSilenceANode(t *testing.T) {
	nodes := mesh(t, 2, nil)
	nodes[1].SetLoad(view.Load{CPUPercent: 10})
	sees := func(cpu float32, f view.Flags) func() bool {
		return func() bool {
			m, _ := nodes[0].View().Member(nodes[1].cfg.Self.ID)
			return m.Load.CPUPercent == cpu && m.Flags == f
		}
	}
	eventually(t, "the load arrives", sees(10, 0))
	nodes[1].stop()
	c := nodes[1].cfg
	c.Registerer = nil
	c.Self.Flags = view.Cordoned
	nodes[1] = start(t, c, func(g *Gossip) { g.self.Incarnation = 5; g.load.seq = 7; g.load.load.CPUPercent = 90 })
	eventually(t, "what it says now counts", sees(90, view.Cordoned))
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
