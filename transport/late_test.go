package transport_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/memnet"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestCallToItselfEndsWithRun(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		const slow wire.Method = 2000
		var ended atomic.Bool
		a := startWith(t, b, "a", "", func(n *node) {
			n.HandleRequest(slow, func(ctx context.Context, _ ring.NodeID, _ []byte) ([]byte, error) {
				<-ctx.Done()
				virtual.Sleep(time.Second) // puts away what it has
				ended.Store(true)
				return nil, ctx.Err()
			})
		})
		synctest.Wait() // until it runs
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		called := make(chan error, 1)
		go func() {
			_, err := a.Call(ctx, a.id, wire.ClassBulk, slow, nil)
			called <- err
		}()
		synctest.Wait()
		a.stop()
		if !ended.Load() {
			t.Error("Run did not wait for a handler")
			cancel()
		}
		if err := <-called; wire.KindOf(err) != wire.KindOutcomeUnknown {
			t.Fatal(err)
		}
	})
}

// stuckNetwork is a network where no dial ends by itself.
type stuckNetwork struct {
	transport.Network
	mu     sync.Mutex
	dialed map[string]int // by address
}

type stuckEndpoint struct {
	transport.Endpoint
	net *stuckNetwork
}

func (n *stuckNetwork) Listen(o transport.ListenOptions) (transport.Endpoint, error) {
	ep, err := n.Network.Listen(o)
	return stuckEndpoint{ep, n}, err
}

func (e stuckEndpoint) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	e.net.mu.Lock()
	e.net.dialed[addr]++
	e.net.mu.Unlock()
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestNewAddressIsDialedAtOnceAlsoWhileADialBegins(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		var net *stuckNetwork
		a := start(t, b, "a", "", func(c *transport.Config) {
			net = &stuckNetwork{Network: c.Network, dialed: map[string]int{}}
			c.Network = net
		})
		peers := make([]ring.NodeID, 2)
		for i := range peers {
			peers[i] = ring.NewNodeID()
		}
		for round := range 2000 { // each is a race of a move with the dials that the one before began
			addrs := map[ring.NodeID]string{}
			for move := range 2 {
				for _, id := range peers {
					addrs[id] = fmt.Sprintf("%d.%d", round, move)
				}
				a.SetPeers(addrs)
				for range round % 64 {
					runtime.Gosched()
				}
			}
			synctest.Wait()
			net.mu.Lock()
			n := net.dialed[addrs[peers[0]]]
			net.mu.Unlock()
			if n < 2*len(peers) {
				t.Fatalf("round %d: %d of %d links dial the newest address", round, n, 2*len(peers))
			}
		}
	})
}

// watchedNetwork tells of each write to a stream opened here.
type watchedNetwork struct {
	transport.Network
	wrote func()
}

type (
	watchedEndpoint struct {
		transport.Endpoint
		wrote func()
	}
	watchedConn struct {
		transport.Conn
		wrote func()
	}
	watchedConduit struct {
		transport.Conduit
		wrote func()
	}
)

func (n watchedNetwork) Listen(o transport.ListenOptions) (transport.Endpoint, error) {
	ep, err := n.Network.Listen(o)
	return watchedEndpoint{ep, n.wrote}, err
}

func (e watchedEndpoint) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := e.Endpoint.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return watchedConn{c, e.wrote}, nil
}

func (c watchedConn) OpenStream(ctx context.Context) (transport.Conduit, error) {
	s, err := c.Conn.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	return watchedConduit{s, c.wrote}, nil
}

func (s watchedConduit) Write(b []byte) (int, error) {
	n, err := s.Conduit.Write(b)
	s.wrote()
	return n, err
}

func TestStreamOpenedWhenItsTimeIsOverIsNone(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var armed atomic.Bool
		over := errors.New("the time is over")
		a := start(t, b, "a", "", func(c *transport.Config) {
			c.Network = watchedNetwork{c.Network, func() {
				if armed.Load() {
					cancel(over)
				}
			}}
		})
		c := start(t, b, "c", "")
		meet(t, a, c)
		armed.Store(true)
		if s, err := a.Open(ctx, c.id, wire.ClassBulk, mMirror, nil); wire.KindOf(err) != wire.KindUnavailable || !errors.Is(err, over) {
			t.Fatalf("%v, %v", s, err)
		}
	})
}

func TestRequestOfACallerThatGaveUpHoldsNobodyUp(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		a := start(t, b, "a", "")
		c := start(t, b, "c", "", func(c *transport.Config) { c.InboundBytes = 1000 })
		meet(t, a, c)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		call := func(ctx context.Context, size int) {
			_, err := a.Call(ctx, c.id, wire.ClassBulk, mHang, make([]byte, size))
			if wire.KindOf(err) != wire.KindOutcomeUnknown {
				t.Error(err)
			}
		}
		go call(ctx, 600)
		synctest.Wait()
		impatient, giveUp := context.WithTimeout(ctx, time.Second)
		defer giveUp()
		call(impatient, 600) // waits for room, in vain
		if _, err := a.Call(within(t, 5*time.Second), c.id, wire.ClassBulk, mEcho, make([]byte, 100)); err != nil {
			t.Fatalf("there was room for it: %v", err)
		}
	})
}

// brokenNetwork is a network whose endpoint fails.
type brokenNetwork struct {
	transport.Network
	err error
}

type brokenEndpoint struct {
	transport.Endpoint
	err error
}

func (n brokenNetwork) Listen(o transport.ListenOptions) (transport.Endpoint, error) {
	ep, err := n.Network.Listen(o)
	return brokenEndpoint{ep, n.err}, err
}

func (e brokenEndpoint) Accept(context.Context) (transport.Conn, error) { return nil, e.err }

func TestRunEndsWhenNobodyCanConnectAnyMore(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		cfg := transport.DefaultConfig()
		cfg.Self = transport.Identity{NodeID: ring.NewNodeID(), ClusterID: "c"}
		cfg.Credentials = creds(t, cfg.Self.NodeID, "s")
		broken := errors.New("the socket broke")
		cfg.Network = brokenNetwork{b.node("a", ""), broken}
		p, err := transport.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		p.SetPeers(map[ring.NodeID]string{ring.NewNodeID(): "nowhere"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, broken) {
				t.Fatal(err)
			}
		default:
			t.Fatal("it runs on, deaf")
		}
	})
}
