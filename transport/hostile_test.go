package transport_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/wire"
)

// intruder holds the secret but breaks the protocol.
type intruder struct {
	t    *testing.T
	conn transport.Conn
	id   ring.NodeID
}

func intrude(t *testing.T, b backend, n *node) *intruder {
	t.Helper()
	in := &intruder{t: t, id: ring.NewNodeID()}
	ep, err := b.node("intruder "+in.id.String(), "").Listen(transport.ListenOptions{Credentials: creds(t, in.id, "s"),
		HandshakeTimeout: 5 * time.Second, IdleTimeout: 10 * time.Second, MaxHandshakes: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ep.Close() })
	if in.conn, err = ep.Dial(within(t, 5*time.Second), n.addr); err != nil {
		t.Fatal(err)
	}
	return in
}

// say opens a stream and writes b to it.
func (in *intruder) say(b []byte) transport.Conduit {
	in.t.Helper()
	s, err := in.conn.OpenStream(context.Background())
	if err != nil {
		in.t.Fatal(err)
	}
	if _, err := s.Write(b); err != nil {
		in.t.Fatal(err)
	}
	return s
}

func (in *intruder) greet() {
	in.t.Helper()
	b, err := wire.Marshal(map[string]any{"n": in.id, "h": "intruder", "c": "c", "v": 1, "w": 1, "k": 1})
	if err != nil {
		in.t.Fatal(err)
	}
	s := in.say(wire.AppendFrame(nil, wire.Header{Type: wire.FrameHello}, b))
	if h, _, err := wire.ReadFrame(s); err != nil || h.Type != wire.FrameHello {
		in.t.Fatalf("hello refused: %+v %v", h, err)
	}
}

func (in *intruder) thrownOut(what string) {
	in.t.Helper()
	until(in.t, what+": thrown out", func() bool { return in.conn.Context().Err() != nil })
}

func TestHostileHellosAreThrownOut(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		n := start(t, b, "n", "", func(c *transport.Config) { c.HandshakeTimeout = 300 * time.Millisecond })
		huge := wire.AppendHeader(nil, wire.Header{Type: wire.FrameHello, Length: wire.MaxFrame})
		for name, first := range map[string][]byte{
			"4 GiB frame":   {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0},
			"8 MiB hello":   huge,
			"unknown frame": {0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0},
			"4 GiB msgpack": wire.AppendFrame(nil, wire.Header{Type: wire.FrameHello}, []byte{0xdd, 0xff, 0xff, 0xff, 0xff}),
			"no hello":      wire.AppendFrame(nil, wire.Header{Type: wire.FrameRequest, Method: mEcho}, nil),
			"half a hello":  {0, 0},
		} {
			in := intrude(t, b, n)
			in.say(first)
			in.thrownOut(name)
		}
		silent := make([]*intruder, 50) // each is a race of the time limit with what it ends
		for i := range silent {
			silent[i] = intrude(t, b, n)
		}
		for _, in := range silent {
			in.thrownOut("silence")
		}
	})
}

func TestHostileFramesAreThrownOutWithoutMemory(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		n := start(t, b, "n", "")
		for name, first := range map[string][]byte{
			"4 GiB frame":       {0xff, 0xff, 0xff, 0xff, 5, 0, 0, 0, 0, 0, 0, 0},
			"unknown type":      {0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0},
			"answer at start":   wire.AppendFrame(nil, wire.Header{Type: wire.FrameResponse}, nil),
			"mixed in messages": wire.AppendFrame(wire.AppendFrame(nil, wire.Header{Type: wire.FrameMessage, Method: mNote}, nil), wire.Header{Type: wire.FrameData}, nil),
		} {
			in := intrude(t, b, n)
			in.greet()
			in.say(first)
			in.thrownOut(name)
		}
		// Lengths without bytes: 200 requests of 8 MiB each that never come must not hold 1.6 GB.
		in := intrude(t, b, n)
		in.greet()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 200 {
			in.say(wire.AppendHeader(nil, wire.Header{Type: wire.FrameRequest, Method: mEcho, Length: wire.MaxFrame}))
		}
		// Others are not harmed.
		peer := start(t, b, "peer", "")
		meet(t, peer, n)
		if _, err := peer.Call(within(t, 5*time.Second), n.id, wire.ClassBulk, mEcho, []byte("x")); err != nil {
			t.Fatal(err)
		}
		// By now all of the headers have long been read.
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 32<<20 {
			t.Fatalf("memory grew by %d MiB", grown>>20)
		}
	})
}

func TestPeerThatNeverReadsAnswersHarmsOnlyItself(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		n, peer := start(t, b, "n", ""), start(t, b, "peer", "")
		meet(t, n, peer)
		in := intrude(t, b, n)
		in.greet()
		for range 50 {
			in.say(wire.AppendFrame(nil, wire.Header{Type: wire.FrameRequest, Method: mEcho}, make([]byte, 100<<10)))
		}
		if _, err := peer.Call(within(t, 5*time.Second), n.id, wire.ClassBulk, mEcho, []byte("x")); err != nil {
			t.Fatal(err)
		}
	})
}

func TestIdleStreamsAreEndedAloneInTime(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		n, peer := start(t, b, "n", "", func(c *transport.Config) { c.HandshakeTimeout = time.Second }), start(t, b, "peer", "")
		meet(t, n, peer)
		in := intrude(t, b, n)
		in.greet()
		idle := make([]transport.Conduit, 500)
		for i := range idle {
			idle[i] = in.say([]byte{0}) // a header that stops there
		}
		if _, err := peer.Call(within(t, 5*time.Second), n.id, wire.ClassBulk, mEcho, []byte("x")); err != nil {
			t.Fatal(err)
		}
		for i, s := range idle {
			_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
			_, err := s.Read(make([]byte, 1))
			if e, ok := errors.AsType[*transport.ResetError](err); !ok || !e.Remote {
				t.Fatalf("stream %d ended with %v", i, err)
			}
		}
		s := in.say(wire.AppendFrame(nil, wire.Header{Type: wire.FrameRequest, Method: mEcho}, []byte("y"))) // the connection goes on
		if h, body, err := wire.ReadFrame(s); err != nil || h.Type != wire.FrameResponse || string(body) != "y" {
			t.Errorf("a whole request is answered %+v %q %v", h, body, err)
		}
	})
}

func TestMessagesThatCannotBeReadAreLeftOutAndSaidSeldom(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		for _, to := range []*node{c, a} {
			for _, body := range slices.Concat(slices.Repeat([]string{"malformed"}, 100), []string{"whole"}) {
				if !a.Send(to.id, wire.ClassBulk, mNote, []byte(body)) {
					t.Fatal("a message was refused")
				}
			}
			until(t, "the message behind them", func() bool { return slices.Equal(to.noted(), []string{"whole"}) })
			if n := to.logs.count("level=WARN"); n != 1 || !to.logs.has("level=WARN", "left out a message", "cannot be read", a.id.String()) {
				t.Errorf("%s logged %d warnings:\n%s", to.name, n, to.logs.b.String())
			}
		}
	})
}
