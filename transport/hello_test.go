package transport

import (
	"bytes"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestStartsOfNodesThatComeAndGoAreBounded(t *testing.T) {
	given, here, gone := ring.NewNodeID(), ring.NewNodeID(), ring.NewNodeID()
	p := &Peers{starts: map[ring.NodeID]heardStart{}, peers: map[ring.NodeID]*peer{here: {}}}
	p.noteStartLocked(given, GivenUp)
	p.noteStartLocked(here, Start{Boot: 1})
	p.noteStartLocked(gone, Start{Boot: 1})
	var last ring.NodeID
	for range maxStarts {
		last = ring.NewNodeID()
		p.noteStartLocked(last, Start{Boot: 1})
	}
	if n := len(p.starts); n != maxStarts {
		t.Fatalf("%d starts are remembered", n)
	}
	for id, kept := range map[ring.NodeID]bool{given: true, here: true, gone: false, last: true} {
		if _, ok := p.starts[id]; ok != kept {
			t.Errorf("a start is remembered: %t, should be: %t", ok, kept)
		}
	}
}

func FuzzHello(f *testing.F) {
	id := Identity{NodeID: ring.NewNodeID(), Name: "n", ClusterID: "c", Version: 1, MinVersion: 1, Boot: 2, Nonce: 3}
	b, err := wire.Marshal(id.hello(ring.NewNodeID(), wire.ClassBulk))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire.AppendFrame(nil, wire.Header{Type: wire.FrameHello}, b))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		if r := id.check(h, ring.NodeID{}); r != nil {
			reason := r.closeReason()
			if len(reason) > 700 {
				t.Fatalf("close reason of %d bytes", len(reason))
			}
			back := asRefusal(&CloseError{Code: CloseRefused, Reason: reason, Remote: true})
			if back.code != r.code {
				t.Fatalf("%q became %q", r.code, back.code)
			}
		}
	})
}

func TestRefusalsReadTheSameOnBothSides(t *testing.T) {
	a := Identity{NodeID: ring.NodeID{1}, Name: strings.Repeat("ä", 200), ClusterID: strings.Repeat("x", 250), Version: 1, MinVersion: 1}
	c := Identity{NodeID: ring.NodeID{2}, Name: "c", ClusterID: strings.Repeat("y", 250), Version: 1, MinVersion: 1}
	r := a.check(c.hello(a.NodeID, 0), c.NodeID)
	if r == nil || r.code != RefusedCluster {
		t.Fatalf("got %v", r)
	}
	back := asRefusal(&CloseError{Code: CloseRefused, Reason: r.closeReason(), Remote: true})
	if back == nil || back.code != r.code || !strings.HasPrefix(r.detail, back.detail) {
		t.Fatalf("%q became %q", r.detail, back.detail)
	}
	if asRefusal(&CloseError{Code: CloseRefused, Reason: "x"}) != nil {
		t.Fatal("our own close is no refusal by the peer")
	}
}

func TestLaneBoundsBytesAndFrames(t *testing.T) {
	m, _ := newMetrics(nil)
	l := newLane(1000, 3, m.queued.WithLabelValues("bulk"))
	if !l.put(1, make([]byte, 5000)) {
		t.Fatal("one message always fits")
	}
	if l.put(1, nil) {
		t.Fatal("bytes are not bounded")
	}
	b, ok := l.take(nil)
	if !ok || len(b) != 5000+wire.HeaderSize {
		t.Fatalf("took %d bytes", len(b))
	}
	l.done()
	for i := range 4 {
		if got := l.put(1, []byte{1}); got != (i < 3) {
			t.Fatalf("message %d: %v", i, got)
		}
	}
	if dropped := l.close(); dropped != 3 {
		t.Fatalf("dropped %d", dropped)
	}
	if _, ok := l.take(nil); ok || l.put(1, nil) {
		t.Fatal("a closed lane works")
	}
}
