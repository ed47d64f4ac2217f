package gossip

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// scriptConn reads fixed bytes, a few at a time.
type scriptConn struct {
	net.Conn
	r     io.Reader
	chunk int
}

func (c *scriptConn) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), c.chunk)]) }
func (c *scriptConn) RemoteAddr() net.Addr       { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func label(s string) []byte { return append([]byte{labelMark, byte(len(s))}, s...) }

func TestDialerLearnsTheOtherClusterFromItsAnswer(t *testing.T) {
	for _, chunk := range []int{1, 3, 100} {
		var heard string
		tr := &transport{cluster: "mine", onOther: func(_ net.Addr, theirs string) { heard = theirs }}
		c := &clusterConn{Conn: &scriptConn{r: bytes.NewReader(label("theirs")), chunk: chunk}, t: tr}
		_, err := io.ReadAll(c)
		if !errors.Is(err, errOtherCluster) || heard != "theirs" {
			t.Errorf("chunks of %d: %v, heard %q", chunk, err, heard)
		}
	}
}

// endless reads zeros, and never closes.
type endless struct{ net.Conn }

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) RemoteAddr() net.Addr       { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (endless) Close() error               { return nil }

func TestIncomingStreamsTogetherAreBoundedInBytes(t *testing.T) {
	excess := 0
	tr := &transport{cluster: "mine", onExcess: func() { excess++ }}
	one, two := &clusterConn{Conn: endless{}, t: tr, inbound: true}, &clusterConn{Conn: endless{}, t: tr, inbound: true}
	if _, err := io.CopyN(io.Discard, one, maxHeld-1<<20); err != nil {
		t.Fatal(err)
	}
	if n, err := io.CopyN(io.Discard, two, maxHeld); !errors.Is(err, errHeld) || n > 1<<20 || excess != 1 {
		t.Errorf("a second stream brought %d bytes more, %v, counted %d times", n, err, excess)
	}
	_, _ = one.Close(), two.Close()
	if _, err := io.CopyN(io.Discard, two, 1<<20); err != nil || tr.held.Load() != 1<<20 {
		t.Errorf("closed streams make no room: %v, %d bytes held", err, tr.held.Load())
	}
}

func TestNoiseInPlaceOfALabelIsNoCluster(t *testing.T) {
	tr := &transport{cluster: "mine", onOther: func(_ net.Addr, theirs string) { t.Errorf("told of cluster %q", theirs) }}
	c := &clusterConn{Conn: &scriptConn{r: bytes.NewReader(label("\rEP\xf5P")), chunk: 100}, t: tr, inbound: true}
	if _, err := io.ReadAll(c); err != nil {
		t.Fatal(err)
	}
}

func FuzzClusterConnPassesOnWhatItReads(f *testing.F) {
	f.Add(append(label("mine"), 1, 2, 3), 2)
	f.Add(label("theirs"), 1)
	f.Add([]byte{labelMark}, 1)
	f.Add([]byte{6, 7, 8}, 3)
	f.Add(append(label("mine"), compressed, 1), 6)
	f.Add([]byte{compressed}, 1)
	f.Fuzz(func(t *testing.T, b []byte, chunk int) {
		tr := &transport{cluster: "mine"}
		c := &clusterConn{Conn: &scriptConn{r: bytes.NewReader(b), chunk: max(1, chunk)}, t: tr, inbound: true}
		got, err := io.ReadAll(c)
		if errors.Is(err, errCompressed) && bytes.HasPrefix(b, got) {
			behind := 0
			if b[0] == labelMark {
				behind = 2 + int(b[1])
			}
			if b[behind] != compressed || len(got) > behind {
				t.Fatalf("read %x of %x", got, b)
			}
			return
		}
		if err != nil || !bytes.Equal(got, b) {
			t.Fatalf("read %x, %v", got, err)
		}
		if c.refused && bytes.HasPrefix(b, label("mine")) {
			t.Fatal("refused its own cluster")
		}
	})
}
