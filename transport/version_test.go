package transport_test

import (
	"context"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/wire"
)

// mNew is a method that came with version 2.
const mNew wire.Method = 14

func speaking(v uint16) option {
	return func(c *transport.Config) { c.Self.Version, c.Self.MinVersion = v, 1 }
}

func serveNew(n *node) {
	n.HandleRequest(mNew, func(context.Context, ring.NodeID, []byte) ([]byte, error) { return []byte("new"), nil })
	n.HandleStream(mNew, func(context.Context, ring.NodeID, []byte, wire.Stream) error { return nil })
	n.Handle(mNew, func(ring.NodeID, []byte) error { return nil })
}

func TestPeersSpeakTheHighestCommonVersion(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		old := startWith(t, b, "old", "", serveNew, speaking(1))
		mid := startWith(t, b, "mid", "", serveNew, speaking(2))
		last := startWith(t, b, "last", "", serveNew, speaking(3))
		if v := mid.Version(last.id); v != 0 {
			t.Fatalf("version %d with a node that is not connected", v)
		}
		know(old, mid, last)
		until(t, "all are up", func() bool { return mid.Up(old.id) && old.Up(mid.id) && mid.Up(last.id) && last.Up(mid.id) })
		for _, c := range []struct {
			a, b *node
			want wire.Version
		}{{old, mid, 1}, {mid, old, 1}, {mid, last, 2}, {last, mid, 2}, {mid, mid, 2}} {
			if v := c.a.Version(c.b.id); v != c.want {
				t.Errorf("%s speaks version %d with %s, want %d", c.a.name, v, c.b.name, c.want)
			}
		}
		ctx := within(t, 5*time.Second)
		if answer, err := mid.Call(ctx, last.id, wire.ClassControl, mNew, nil); err != nil || string(answer) != "new" {
			t.Errorf("%q, %v", answer, err)
		}
		for _, c := range []struct{ from, to *node }{{mid, old}, {old, mid}, {old, old}} {
			if _, err := c.from.Call(ctx, c.to.id, wire.ClassControl, mNew, nil); !unsupported(err) {
				t.Errorf("a call from %s to %s: %v", c.from.name, c.to.name, err)
			}
			if _, err := c.from.Open(ctx, c.to.id, wire.ClassBulk, mNew, nil); !unsupported(err) {
				t.Errorf("a stream from %s to %s: %v", c.from.name, c.to.name, err)
			}
		}
		if mid.Send(old.id, wire.ClassControl, mNew, nil) {
			t.Error("a message that the peer does not know was sent")
		}
	})
}

func unsupported(err error) bool {
	return wire.KindOf(err) == wire.KindUnavailable && wire.CodeOf(err) == wire.CodeUnsupported
}

func TestFloorLeavesAndRefusesOlderVersions(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		old, mid, last := start(t, b, "old", "", speaking(1)), start(t, b, "mid", "", speaking(2)), start(t, b, "last", "", speaking(2))
		know(old, mid, last)
		until(t, "all are up", func() bool { return mid.Up(old.id) && old.Up(mid.id) && mid.Up(last.id) })
		mid.SetFloor(1) // as it is: nothing happens
		if !mid.Up(old.id) {
			t.Fatal("a floor that all meet cost a connection")
		}
		mid.SetFloor(2)
		until(t, "the older one is left", func() bool { return !mid.Up(old.id) && !old.Up(mid.id) })
		until(t, "both say so", func() bool {
			return mid.logs.has("protocol version", "upgrade the older one") && old.logs.has("protocol version", "upgrade the older one")
		})
		if !mid.Up(last.id) {
			t.Fatal("the floor cost the connection of a node that meets it")
		}
	})
}
