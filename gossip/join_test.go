package gossip

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// stayApart holds each node to one warning, and to itself as the only member that it knows.
func stayApart(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		if got := n.log.count("level=WARN"); got != 1 {
			t.Errorf("%s wrote %d warnings:\n%s", n.cfg.Self.Name, got, strings.Join(n.log.all(), "\n"))
		}
		if n.View().Len() != 1 {
			t.Errorf("%s took over members", n.cfg.Self.Name)
		}
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
	stayApart(t, a, b)
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
	stayApart(t, a, b)
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
			stayApart(t, a, b)
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
