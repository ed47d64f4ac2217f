package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

func as(id ring.NodeID) option { return func(c *transport.Config) { c.Self.NodeID = id } }

func TestRestartedPeerIsReachedAgainQuickly(t *testing.T) {
	restarted := func(t *testing.T, b backend) time.Duration {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		c.stop()
		until(t, "a notices", func() bool { s := a.Status()[0]; return !s.Up && !s.BulkUp })
		if _, err := a.Call(within(t, 5*time.Second), c.id, wire.ClassControl, mEcho, nil); wire.KindOf(err) != wire.KindUnavailable {
			t.Fatalf("call to a stopped peer: %v", err)
		}
		if a.Send(c.id, wire.ClassBulk, mNote, []byte("x")) {
			t.Fatal("a message to a stopped peer was taken")
		}
		again := start(t, b, "c", c.addr, as(c.id))
		begin := time.Now()
		again.SetPeers(map[ring.NodeID]string{a.id: a.addr})
		until(t, "a is back", func() bool { return a.both(again) })
		back := time.Since(begin)
		if _, err := a.Call(within(t, 5*time.Second), c.id, wire.ClassControl, mEcho, nil); err != nil {
			t.Fatal(err)
		}
		return back
	}
	each(t, func(t *testing.T, b backend) { t.Logf("reached again after %v", restarted(t, b)) })
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		// An attempt that was under way when the peer came back is given 100 ms. until looks each millisecond.
		if d := restarted(t, b) - time.Millisecond; d > 100*time.Millisecond {
			t.Fatalf("it took %v", d)
		}
	})
}

func TestPendingCallsFailAsUnknownWhenThePeerStops(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		errs := make(chan error, 2)
		for _, class := range []wire.Class{wire.ClassControl, wire.ClassBulk} {
			go func() {
				_, err := a.Call(context.Background(), c.id, class, mHang, nil)
				errs <- err
			}()
		}
		until(t, "handlers run", func() bool { return c.hung.Load() == 2 })
		c.stop()
		for range 2 {
			if err := <-errs; wire.KindOf(err) != wire.KindOutcomeUnknown {
				t.Fatalf("pending call: %v", err)
			}
		}
	})
}

func TestCallersDeadlineReachesTheHandler(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		_, err := a.Call(within(t, 50*time.Millisecond), c.id, wire.ClassControl, mHang, nil)
		if wire.KindOf(err) != wire.KindOutcomeUnknown {
			t.Fatalf("a call that timed out: %v", err)
		}
		until(t, "handler is released by the deadline", func() bool { return c.freed.Load() == 1 })

		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() {
			_, err := a.Call(ctx, c.id, wire.ClassControl, mHang, nil)
			done <- err
		}()
		until(t, "second handler runs", func() bool { return c.hung.Load() == 2 })
		cancel()
		if err := <-done; wire.KindOf(err) != wire.KindOutcomeUnknown {
			t.Fatalf("a cancelled call: %v", err)
		}
		until(t, "handler is released by the cancellation", func() bool { return c.freed.Load() == 2 })
	})
}

func TestNeverReadStreamDoesNotStopOthers(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		for _, to := range []*node{c, a} {
			var stuck []wire.Stream
			for range 8 {
				s, err := a.Open(context.Background(), to.id, wire.ClassBulk, mDeaf, nil)
				if err != nil {
					t.Fatal(err)
				}
				stuck = append(stuck, s)
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for s.Send(ctx, make([]byte, 64<<10)) == nil {
					}
				}()
				t.Cleanup(func() { cancel(); <-ended })
			}
			until(t, "streams are open", func() bool { return to.hung.Load() >= 8 })
			for range 20 {
				if _, err := a.Call(within(t, 5*time.Second), to.id, wire.ClassBulk, mEcho, make([]byte, 100_000)); err != nil {
					t.Fatal(err)
				}
			}
			if !a.Send(to.id, wire.ClassBulk, mNote, []byte("through")) {
				t.Fatal("message refused")
			}
			until(t, "message is through", func() bool { return len(to.noted()) == 1 })
			for _, s := range stuck {
				_ = s.Close(nil)
			}
			until(t, "handlers see the close", func() bool { return to.freed.Load() >= 8 })
		}
	})
}

func TestStreamDiesWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		for _, to := range []*node{c, a} {
			s, err := a.Open(context.Background(), to.id, wire.ClassBulk, mDeaf, nil)
			if err != nil {
				t.Fatal(err)
			}
			until(t, "handler runs", func() bool { return to.hung.Load() == 1 }) // a reset may overtake what opens a stream
			to.hung.Store(0)
			if _, err := s.Recv(within(t, 20*time.Millisecond)); wire.KindOf(err) != wire.KindClosed {
				t.Fatalf("recv: %v", err)
			}
			if err := s.Send(context.Background(), nil); err == nil {
				t.Fatal("the stream outlived its context")
			}
			_ = s.Close(nil)
			until(t, "handler ended", func() bool { return to.freed.Load() == 1 })
			to.freed.Store(0)
		}
	})
}

func TestOpenStreamsFailWhenThePeerStops(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		s, err := a.Open(context.Background(), c.id, wire.ClassBulk, mMirror, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(context.Background()); err != nil {
			t.Fatal(err)
		}
		c.stop()
		if _, err := s.Recv(within(t, 5*time.Second)); err == nil || err == io.EOF {
			t.Fatalf("recv: %v", err)
		}
		_ = s.Close(nil)
	})
}

func TestFullQueueDropsAndNeverBlocks(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		small := func(c *transport.Config) { c.SendQueueBytes, c.SendQueueFrames = 64<<10, 100 }
		a, c := start(t, b, "a", "", small), start(t, b, "c", "")
		meet(t, a, c)
		release := make(chan struct{})
		c.blockNotes(release)
		dropped := 0
		for range 2000 {
			if !a.Send(c.id, wire.ClassBulk, mNote, make([]byte, 10<<10)) {
				dropped++
			}
		}
		if dropped == 0 {
			t.Fatal("20 MB went into a queue of 64 KiB")
		}
		if _, err := a.Call(within(t, 5*time.Second), c.id, wire.ClassBulk, mEcho, nil); err != nil {
			t.Fatalf("a stuck message handler stops requests: %v", err)
		}
		close(release)
	})
}

// blockNotes makes the handler of notes wait until release.
func (n *node) blockNotes(release chan struct{}) {
	n.mu.Lock()
	go func() {
		<-release
		n.mu.Unlock()
	}()
}

// The following run on virtual time.

func bubble(t *testing.T, f func(t *testing.T, net *memnet.Net, b backend)) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		f(t, net, backend{"mem", func(name, addr string) transport.Network {
			if addr == "" {
				addr = name
			}
			return net.Node(addr)
		}})
	})
}

func TestCutPeerIsNoticedAndReachedAgainAfterHealing(t *testing.T) {
	for _, cut := range []string{"both", "there", "back"} {
		t.Run(cut, func(t *testing.T) {
			bubble(t, func(t *testing.T, net *memnet.Net, b backend) {
				a, c := start(t, b, "a", ""), start(t, b, "c", "")
				meet(t, a, c)
				virtual.Sleep(3 * time.Second) // pings keep it up
				if !a.Up(c.id) || !c.Up(a.id) {
					t.Fatal("an idle peer went down")
				}
				pending := make(chan error, 1)
				go func() {
					_, err := a.Call(context.Background(), c.id, wire.ClassBulk, mHang, nil)
					pending <- err
				}()
				synctest.Wait()
				begin := time.Now()
				switch cut {
				case "both":
					net.Cut("a", "c")
				case "there":
					net.OneWay("a", "c")
				case "back":
					net.OneWay("c", "a")
				}
				err := <-pending
				if d := time.Since(begin); wire.KindOf(err) != wire.KindOutcomeUnknown || d > 2*time.Second {
					t.Fatalf("pending call after %v: %v", d, err)
				}
				until(t, "both noticed", func() bool { return !a.Up(c.id) && !c.Up(a.id) })
				if d := time.Since(begin); d > 2100*time.Millisecond {
					t.Fatalf("noticed after %v", d)
				}
				virtual.Sleep(time.Minute)
				net.Heal()
				begin = time.Now()
				until(t, "both back", func() bool { return a.both(c) && c.both(a) })
				if d := time.Since(begin); d > 4*time.Second {
					t.Fatalf("back after %v", d)
				}
			})
		})
	}
}

func TestKilledPeerIsNoticedAndReachedAtOnceAfterItsRestart(t *testing.T) {
	bubble(t, func(t *testing.T, net *memnet.Net, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		begin := time.Now()
		net.Kill("c")
		c.stop()
		until(t, "a notices", func() bool { return !a.Up(c.id) })
		if d := time.Since(begin); d > 2*time.Second {
			t.Fatalf("noticed after %v", d)
		}
		virtual.Sleep(time.Minute)
		again := start(t, b, "c", "c", as(c.id))
		begin = time.Now()
		know(a, again)
		until(t, "back", func() bool { return a.both(again) && again.both(a) })
		if d := time.Since(begin); d > 500*time.Millisecond {
			t.Fatalf("back after %v", d)
		}

		net.Kill("c") // and a restart quicker than any timeout
		again.stop()
		third := start(t, b, "c", "c", as(c.id))
		begin = time.Now()
		know(a, third)
		until(t, "back again", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			_, err := a.Call(ctx, c.id, wire.ClassControl, mEcho, nil)
			return err == nil
		})
		if d := time.Since(begin); d > 500*time.Millisecond {
			t.Fatalf("back again after %v", d)
		}
	})
}

func TestSlowLinkOnlySlows(t *testing.T) {
	bubble(t, func(t *testing.T, net *memnet.Net, b backend) {
		net.Delay("a", "c", 100*time.Millisecond)
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		begin := time.Now()
		if _, err := a.Call(context.Background(), c.id, wire.ClassControl, mEcho, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 200*time.Millisecond || d > 300*time.Millisecond {
			t.Fatalf("a round trip took %v", d)
		}
		virtual.Sleep(10 * time.Second)
		if !a.Up(c.id) {
			t.Fatal("a slow peer is not a dead peer")
		}
		if rtt := a.Status()[0].RTT; rtt < 190*time.Millisecond || rtt > 300*time.Millisecond {
			t.Fatalf("rtt %v", rtt)
		}
	})
}

func TestRemovedPeerIsLeft(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		a.SetPeers(nil)
		until(t, "left", func() bool { return !a.Up(c.id) && len(a.Status()) == 0 })
		if _, err := a.Call(within(t, time.Second), c.id, wire.ClassControl, mEcho, nil); wire.KindOf(err) != wire.KindUnavailable {
			t.Fatalf("call: %v", err)
		}
	})
}

// slowWrites is a network on which pause comes before each write.
type slowWrites struct {
	transport.Network
	pause func()
}

type (
	slowEndpoint struct {
		transport.Endpoint
		pause func()
	}
	slowConn struct {
		transport.Conn
		pause func()
	}
	slowConduit struct {
		transport.Conduit
		pause func()
	}
)

func (n slowWrites) Listen(o transport.ListenOptions) (transport.Endpoint, error) {
	ep, err := n.Network.Listen(o)
	return slowEndpoint{ep, n.pause}, err
}

func (e slowEndpoint) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := e.Endpoint.Accept(ctx)
	return slowConn{c, e.pause}, err
}

func (e slowEndpoint) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := e.Endpoint.Dial(ctx, addr)
	return slowConn{c, e.pause}, err
}

func (c slowConn) AcceptStream(ctx context.Context) (transport.Conduit, error) {
	s, err := c.Conn.AcceptStream(ctx)
	return slowConduit{s, c.pause}, err
}

func (c slowConn) OpenStream(ctx context.Context) (transport.Conduit, error) {
	s, err := c.Conn.OpenStream(ctx)
	return slowConduit{s, c.pause}, err
}

func (s slowConduit) Write(b []byte) (int, error) {
	s.pause()
	return s.Conduit.Write(b)
}

func TestNodeThatStoodStillDoesNotTakeItsPeersForSilent(t *testing.T) {
	bubble(t, func(t *testing.T, net *memnet.Net, b backend) {
		var still atomic.Bool
		a, c := start(t, b, "a", "", func(cfg *transport.Config) {
			cfg.Network = slowWrites{cfg.Network, func() {
				if still.Load() {
					virtual.Sleep(2 * time.Second)
				}
			}}
		}), start(t, b, "c", "")
		a.SetPeers(map[ring.NodeID]string{c.id: c.addr})
		until(t, "a reaches c", func() bool { return a.both(c) })
		since := a.Status()[0].Since
		virtual.Sleep(3 * time.Second)
		still.Store(true) // neither writes nor, for the link is cut, reads
		net.OneWay("c", "a")
		virtual.Sleep(2*time.Second + 600*time.Millisecond)
		still.Store(false)
		net.Heal()
		virtual.Sleep(10 * time.Second)
		if s := a.Status()[0]; !s.Up || !s.Since.Equal(since) {
			t.Fatalf("the connection did not last: %+v", s)
		}
	})
}

func TestStrangerThatIsMetWhileANodeLearnsItsMeshIsLeft(t *testing.T) {
	const delay = 10 * time.Millisecond
	for learned := time.Duration(0); learned < 20*delay; learned += delay / 2 {
		for _, side := range []string{"dials", "is dialed"} {
			t.Run(fmt.Sprint(side, " ", learned), func(t *testing.T) {
				bubble(t, func(t *testing.T, net *memnet.Net, b backend) {
					net.Delay("a", "d", delay)
					a, d := start(t, b, "a", ""), start(t, b, "d", "", func(c *transport.Config) {
						c.Self.MeshID, c.Network = ring.MeshID{}, slowWrites{c.Network, func() { virtual.Sleep(delay) }}
					})
					from, to := d, a
					if side == "is dialed" {
						from, to = a, d
					}
					from.SetPeers(map[ring.NodeID]string{to.id: to.addr})
					virtual.Sleep(learned)
					d.SetMesh(ring.MeshID{9})
					virtual.Sleep(time.Second)
					if s := from.Status()[0]; s.Up || s.BulkUp {
						t.Fatalf("two meshes are connected: %+v", s)
					}
				})
			})
		}
	}
}

func TestErrorReachesAnOpenerThatReadsSlowly(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, b backend) {
		const window = 512 << 10 // of memnet: the error has to wait until something is read
		a := start(t, b, "a", "")
		c := startWith(t, b, "c", "", func(n *node) {
			n.HandleStream(mFill, func(ctx context.Context, _ ring.NodeID, _ []byte, s wire.Stream) error {
				if err := s.Send(ctx, make([]byte, window-wire.HeaderSize)); err != nil {
					return err
				}
				return &wire.Error{Kind: wire.KindNotOwner, Owner: n.id, Term: 3}
			})
		})
		meet(t, a, c)
		s, err := a.Open(t.Context(), c.id, wire.ClassBulk, mFill, nil)
		if err != nil {
			t.Fatal(err)
		}
		virtual.Sleep(500 * time.Millisecond)
		if _, err := s.Recv(t.Context()); err != nil {
			t.Fatalf("what was sent before the error: %v", err)
		}
		_, err = s.Recv(t.Context())
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Kind != wire.KindNotOwner || e.Owner != c.id || e.Term != 3 {
			t.Fatalf("the error became %v", err)
		}
	})
}
