package gossip

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
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

// probes counts the probes that a node had answered.
type probes struct {
	memberlist.PingDelegate
	answered *atomic.Int64
}

func (p probes) NotifyPingComplete(n *memberlist.Node, rtt time.Duration, payload []byte) {
	p.answered.Add(1)
	p.PingDelegate.NotifyPingComplete(n, rtt, payload)
}

// TestPurgedPeersAreFoundAgainAfterALongCut: the library forgets the dead after a while and tells nobody of them any more. Here the
// seed's name is gone, too, by the time of the cut.
func TestPurgedPeersAreFoundAgainAfterALongCut(t *testing.T) {
	var cut, gone atomic.Bool
	var answered atomic.Int64
	var nodes []*node
	for i := range 3 {
		c := fastConfig(fmt.Sprintf("n%d", i))
		c.SuspicionMult = 2
		c.ProbeInterval, c.ProbeTimeout = 20*time.Millisecond, 15*time.Millisecond
		if i == 0 {
			c.Self.Mesh = testMesh
		} else {
			_, port, _ := net.SplitHostPort(nodes[0].Addr())
			c.Seeds = []string{"seed.example:" + port}
		}
		n := start(t, c, func(g *Gossip) {
			g.lookup = func(_ context.Context, _, host string) ([]netip.Addr, error) {
				if gone.Load() {
					return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
				}
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}
			g.net.blocked = func(addr string) bool { return cut.Load() && (i == 2 || addr == nodes[2].Addr()) }
			g.tune = func(lib *memberlist.Config) {
				lib.GossipToTheDeadTime = time.Millisecond
				lib.Ping = probes{lib.Ping, &answered}
			}
		})
		nodes = append(nodes, n)
	}
	formed(t, nodes)
	gone.Store(true)
	cut.Store(true)
	eventually(t, "both parts take each other for dead", func() bool {
		return nodes[0].View().CountPresent() == 2 && nodes[1].View().CountPresent() == 2 && nodes[2].View().CountPresent() == 1
	})
	from := answered.Load() // the library clears its list at every turn of its probes: a turn is two probes at most here
	eventually(t, "the library forgets the dead", func() bool { return answered.Load() >= from+20 })
	cut.Store(false)
	formed(t, nodes)
}

// TestSeedNameIsResolvedAgainForEver: a name may be unknown for long, and stand for another address later.
func TestSeedNameIsResolvedAgainForEver(t *testing.T) {
	ca := fastConfig("a")
	ca.Self.Mesh = testMesh
	a := start(t, ca)
	_, port, _ := net.SplitHostPort(a.Addr())
	var answer atomic.Pointer[netip.Addr] // nil: no such host
	var asked atomic.Int64
	c := fastConfig("b")
	c.SuspicionMult = 2
	c.Seeds = []string{"seed.example:" + port}
	b := start(t, c, func(g *Gossip) {
		g.lookup = func(_ context.Context, _, host string) ([]netip.Addr, error) {
			asked.Add(1)
			if ip := answer.Load(); ip != nil {
				return []netip.Addr{*ip}, nil
			}
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
	})
	resolved := func(to string) {
		if to != "" {
			ip := netip.MustParseAddr(to)
			answer.Store(&ip)
		}
		from := asked.Load()
		eventually(t, "the name is resolved again and again", func() bool { return asked.Load() >= from+5 })
	}
	resolved("") // unknown
	eventually(t, "one line", func() bool { return b.log.count("join address does not answer", "seed.example") == 1 })
	resolved("127.0.0.77") // an address where nobody is
	if n := b.log.count("level=WARN"); n != 1 {
		t.Errorf("%d warnings", n)
	}
	resolved("127.0.0.1")
	formed(t, []*node{a, b})

	// The seed comes back at another address, and knows nobody.
	c2 := a.cfg
	a.stop()
	c2.BindAddr, c2.AdvertiseAddr, c2.Registerer = "127.0.0.78:"+port, "", nil
	a = start(t, c2)
	resolved("127.0.0.78")
	formed(t, []*node{a, b})
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
