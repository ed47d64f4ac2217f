package transport_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/memnet"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestMovedPeerIsFollowed(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		c.stop()
		moved := start(t, b, "c2", "", as(c.id))
		meet(t, a, moved)
		s := a.Status()
		if len(s) != 1 || s[0].Addr != moved.addr || !s[0].Up || s[0].Name != "c2" || s[0].Err != nil {
			t.Fatalf("%+v", s)
		}
	})
}

func TestConfigurationIsChecked(t *testing.T) {
	id := ring.NewNodeID()
	good := transport.DefaultConfig()
	good.Self = transport.Identity{NodeID: id, ClusterID: "c"}
	good.Credentials, good.Network = creds(t, id, "s"), memnet.New().Node("a")
	if _, err := transport.New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*transport.Config){
		"no node":               func(c *transport.Config) { c.Self.NodeID = ring.NodeID{} },
		"no cluster":            func(c *transport.Config) { c.Self.ClusterID = "" },
		"no credentials":        func(c *transport.Config) { c.Credentials = nil },
		"another's credentials": func(c *transport.Config) { c.Credentials = creds(t, ring.NewNodeID(), "s") },
		"no network":            func(c *transport.Config) { c.Network = nil },
		"negative timeout":      func(c *transport.Config) { c.DialTimeout = -1 },
		"ping slower than its timeout": func(c *transport.Config) {
			c.PingInterval, c.PingTimeout = time.Second, time.Second
		},
	} {
		bad := good
		spoil(&bad)
		if _, err := transport.New(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestMetricsAreRegisteredOncePerRegistry(t *testing.T) {
	id := ring.NewNodeID()
	cfg := transport.DefaultConfig()
	cfg.Self = transport.Identity{NodeID: id, ClusterID: "c"}
	cfg.Credentials, cfg.Network, cfg.Registerer = creds(t, id, "s"), memnet.New().Node("a"), prometheus.NewRegistry()
	if _, err := transport.New(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := transport.New(cfg); err == nil {
		t.Fatal("two Peers share one registry's metrics")
	}
}

func TestNothingWorksBeforeRunOrAfterIt(t *testing.T) {
	id := ring.NewNodeID()
	cfg := transport.DefaultConfig()
	cfg.Self = transport.Identity{NodeID: id, ClusterID: "c"}
	cfg.Credentials, cfg.Network = creds(t, id, "s"), memnet.New().Node("a")
	p, err := transport.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Call(within(t, time.Second), id, wire.ClassControl, mEcho, nil); wire.KindOf(err) != wire.KindUnavailable {
		t.Fatalf("before: %v", err)
	}
	if _, err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Fatal("Close must be idempotent")
	}
	if _, err := p.Open(within(t, time.Second), id, wire.ClassControl, mMirror, nil); wire.KindOf(err) != wire.KindClosed {
		t.Fatalf("after: %v", err)
	}
	if err := p.Run(within(t, time.Second)); wire.KindOf(err) != wire.KindClosed {
		t.Fatalf("Run after Close: %v", err)
	}
	b := backends()[1]
	n := start(t, b, "n", "")
	n.stop()
	if _, err := n.Call(within(t, time.Second), n.id, wire.ClassControl, mEcho, nil); wire.KindOf(err) != wire.KindClosed {
		t.Fatalf("after Run: %v", err)
	}
	if n.Send(n.id, wire.ClassControl, mNote, nil) {
		t.Fatal("a message was taken after Run")
	}
}

func TestPeersToldWhileRunBeginsAreKept(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		for i := range 100 { // each is a race of Run with SetPeers
			n := start(t, b, fmt.Sprint("n", i), "")
			for size := range 10 {
				addrs := map[ring.NodeID]string{}
				for range size {
					addrs[ring.NewNodeID()] = "nowhere"
				}
				n.SetPeers(addrs)
			}
			synctest.Wait()
			if got := len(n.Status()); got != 9 {
				t.Fatalf("node %d was told of 9 peers and knows %d", i, got)
			}
			n.stop()
		}
	})
}

func TestCallToAnUnknownNodeFailsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		a := start(t, b, "a", "")
		begin := time.Now()
		if _, err := a.Call(context.Background(), ring.NewNodeID(), wire.ClassControl, mEcho, nil); wire.KindOf(err) != wire.KindUnavailable {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != 0 {
			t.Fatalf("it took %v", d)
		}
	})
}
