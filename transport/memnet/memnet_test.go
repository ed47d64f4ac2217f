package memnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// join returns a connection from a to c and its accepted side.
func join(t *testing.T, n *Net) (near, far transport.Conn) {
	t.Helper()
	listen := func(addr string) transport.Endpoint {
		cr, err := transport.CredentialsFromSecret(ring.NewNodeID(), nil)
		if err != nil {
			t.Fatal(err)
		}
		e, err := n.Node(addr).Listen(transport.ListenOptions{Credentials: cr, HandshakeTimeout: time.Second, IdleTimeout: 4 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	a, c := listen("a"), listen("c")
	near, err := a.Dial(context.Background(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if far, err = c.Accept(context.Background()); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func open(t *testing.T, near, far transport.Conn) (a, c transport.Conduit) {
	t.Helper()
	a, err := near.OpenStream(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if c, err = far.AcceptStream(context.Background()); err != nil {
		t.Fatal(err)
	}
	return a, c
}

func TestBytesTakeTheLinksDelayAndKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := join(t, n)
		a, c := open(t, near, far)
		n.Delay("a", "c", 30*time.Millisecond)
		begin := time.Now()
		want := bytes.Repeat([]byte("0123456789"), 200_000) // more than the window
		go func() {
			_, _ = a.Write(want)
			_ = a.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if d := time.Since(begin); d < 30*time.Millisecond {
			t.Fatalf("took %v", d)
		}
	})
}

func TestCutLinkHoldsBytesUntilItHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := join(t, n)
		a, c := open(t, near, far)
		n.OneWay("a", "c")
		if _, err := a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("a byte crossed a cut link")
		}
		_ = c.SetReadDeadline(time.Time{})
		n.HealLink("a", "c")
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		n.Cut("a", "c")
		virtual.Sleep(5 * time.Second)
		if near.Err() == nil || far.Err() == nil {
			t.Fatal("a connection outlived its idle timeout")
		}
	})
}

func TestResetAndStopReachTheOtherSide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := join(t, New())
		a, c := open(t, near, far)
		c.StopReading(7)
		if _, err := a.Write([]byte("x")); !reset(err, 7) {
			t.Fatalf("write after stop: %v", err)
		}
		if a.Context().Err() == nil {
			t.Fatal("the write context lives on")
		}
		c.Reset(8)
		if _, err := a.Read(make([]byte, 1)); !reset(err, 8) {
			t.Fatalf("read after reset: %v", err)
		}
		near.Close(3, "bye")
		ce, ok := errors.AsType[*transport.CloseError](far.Err())
		if !ok || ce.Code != 3 || ce.Reason != "bye" || !ce.Remote {
			t.Fatalf("close: %v", far.Err())
		}
		if _, err := far.OpenStream(context.Background()); err == nil {
			t.Fatal("a stream on a closed connection")
		}
	})
}

func reset(err error, code uint64) bool {
	r, ok := errors.AsType[*transport.ResetError](err)
	return ok && r.Code == code && r.Remote
}
