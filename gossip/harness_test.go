package gossip

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
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

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 15 s: %s", what)
		}
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
