package impair

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/testnet/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice, bob = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

// host is one end of the network: what it sends is handed in, and what it gets is kept with the time.
type host struct {
	sends  chan []byte
	closed chan struct{}
	got    []arrival
}

type arrival struct {
	after time.Duration
	data  []byte
}

var began time.Time // of the bubble

func newHost() *host { return &host{sends: make(chan []byte), closed: make(chan struct{})} }

func (h *host) Read(b []byte) (int, error) {
	select {
	case p := <-h.sends:
		return copy(b, p), nil
	case <-h.closed:
		return 0, io.EOF
	}
}

func (h *host) Write(b []byte) (int, error) {
	h.got = append(h.got, arrival{time.Since(began), bytes.Clone(b)})
	return len(b), nil
}

func (h *host) Close() error { close(h.closed); return nil }

// packet is the nth one to an address.
func packet(to netip.Addr, n uint32) []byte {
	p := make([]byte, 24)
	p[0] = 4<<4 | 5
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint32(p[20:], n)
	return p
}

// pair runs f over two hosts in virtual time.
func pair(t *testing.T, f func(n *Net, a, b *host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := New(7)
		a, b := newHost(), newHost()
		began = time.Now()
		n.Plug(alice, a)
		n.Plug(bob, b)
		f(n, a, b)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Errorf("closed again: %v", err)
		}
	})
}

// send hands in count packets at once and waits until they have arrived.
func send(from *host, to netip.Addr, count uint32) {
	for i := range count {
		from.sends <- packet(to, i)
	}
	virtual.Sleep(time.Minute)
	synctest.Wait()
}

func (h *host) order() (out []uint32) {
	for _, a := range h.got {
		out = append(out, binary.BigEndian.Uint32(a.data[20:]))
	}
	return out
}

func TestPerfectLinkDeliversAllInOrderAtOnce(t *testing.T) {
	pair(t, func(n *Net, a, b *host) {
		send(a, bob, 100)
		if len(b.got) != 100 || !slices.IsSorted(b.order()) || b.got[99].after != 0 {
			t.Errorf("%d packets arrived, in the order %v, the last after %v", len(b.got), b.order(), b.got[len(b.got)-1].after)
		}
		if want := (Counts{Delivered: 100}); n.Counts() != want {
			t.Errorf("counts %+v, want %+v", n.Counts(), want)
		}
	})
}

func TestDelayIsKeptAndJitterReorders(t *testing.T) {
	pair(t, func(n *Net, a, b *host) {
		n.Set(alice, bob, Link{Delay: 20 * time.Millisecond})
		send(a, bob, 50)
		for _, got := range b.got {
			if got.after != 20*time.Millisecond {
				t.Fatalf("a packet arrived after %v", got.after)
			}
		}
		if len(b.got) != 50 || !slices.IsSorted(b.order()) {
			t.Errorf("with the same delay for all, the order is %v", b.order())
		}

		b.got, began = nil, time.Now()
		n.Set(alice, bob, Link{Delay: 20 * time.Millisecond, Jitter: 10 * time.Millisecond})
		send(a, bob, 50)
		if len(b.got) != 50 || slices.IsSorted(b.order()) {
			t.Errorf("with jitter, the order is %v", b.order())
		}
		for _, got := range b.got {
			if got.after < 20*time.Millisecond || got.after > 30*time.Millisecond {
				t.Errorf("a packet arrived after %v", got.after)
			}
		}
	})
}

func TestLossDuplicatesAndDamageComeAsOftenAsAsked(t *testing.T) {
	pair(t, func(n *Net, a, b *host) {
		n.Set(alice, bob, Link{Loss: 0.1, Duplicate: 0.1, Damage: 0.1})
		send(a, bob, 10_000)
		c := n.Counts()
		near := func(what string, got uint64, want float64) {
			if f := float64(got); f < 0.85*want || f > 1.15*want {
				t.Errorf("%d %s, want about %v", got, what, want)
			}
		}
		near("lost", c.Lost, 1000)
		near("duplicated", c.Duplicated, 900)
		near("damaged", c.Damaged, 990)
		if uint64(len(b.got)) != c.Delivered || c.Delivered != 10_000-c.Lost+c.Duplicated {
			t.Errorf("%d arrived: %+v", len(b.got), c)
		}
		damaged := uint64(0)
		for _, got := range b.got {
			sent := packet(bob, binary.BigEndian.Uint32(got.data[20:]))
			if !bytes.Equal(got.data, sent) || binary.BigEndian.Uint32(got.data[20:]) >= 10_000 {
				damaged++
			}
		}
		if damaged == 0 || damaged > c.Damaged { // a flipped bit of the number is not seen here
			t.Errorf("%d packets arrived damaged, of %d", damaged, c.Damaged)
		}
	})
}

func TestLinksAreCutAndHealedInOneDirection(t *testing.T) {
	pair(t, func(n *Net, a, b *host) {
		n.Set(alice, bob, Link{Loss: 1})
		send(a, bob, 10)
		send(b, alice, 10)
		if len(b.got) != 0 || len(a.got) != 10 {
			t.Errorf("through the cut came %d packets, the other way %d of 10", len(b.got), len(a.got))
		}
		n.Heal()
		send(a, bob, 10)
		if len(b.got) != 10 {
			t.Errorf("after healing %d of 10 packets arrived", len(b.got))
		}
	})
}

func TestPortIsSilencedBothWays(t *testing.T) {
	pair(t, func(n *Net, a, b *host) {
		udp := func(to netip.Addr, from, port uint16, fragment byte) []byte {
			p := packet(to, uint32(from)<<16|uint32(port))
			p[7], p[9] = fragment, 17
			return p
		}
		n.Silence(alice, 8402)
		for _, p := range [][]byte{udp(bob, 8402, 8402, 0), udp(bob, 8402, 9, 0), udp(bob, 9, 8402, 0), udp(bob, 8401, 8401, 0), udp(bob, 8402, 8402, 1)} {
			a.sends <- p
		}
		b.sends <- udp(alice, 9, 8402, 0)
		b.sends <- udp(alice, 9, 8401, 0)
		virtual.Sleep(time.Second)
		synctest.Wait()
		if len(b.got) != 2 || len(a.got) != 1 {
			t.Errorf("%d and %d packets passed the silent port", len(b.got), len(a.got))
		}
		n.Heal()
		a.sends <- udp(bob, 8402, 8402, 0)
		virtual.Sleep(time.Second)
		synctest.Wait()
		if len(b.got) != 3 {
			t.Error("the port is still silent after healing")
		}
	})
}

func TestSeedDecidesWhatHappensToThePackets(t *testing.T) {
	run := func() (order []uint32) {
		pair(t, func(n *Net, a, b *host) {
			n.Set(alice, bob, Link{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.2, Duplicate: 0.2, Damage: 0.2})
			send(a, bob, 200)
			order = b.order()
		})
		return order
	}
	if first, second := run(), run(); !slices.Equal(first, second) {
		t.Errorf("the same seed gave\n%v and\n%v", first, second)
	}
}

func TestWhatGoesNowhereOrIsTooMuchIsLost(t *testing.T) {
	pair(t, func(n *Net, a, b *host) {
		a.sends <- nil
		a.sends <- []byte{4 << 4}
		a.sends <- append([]byte{6 << 4}, packet(bob, 0)[1:]...)
		send(a, netip.MustParseAddr("10.0.0.3"), 1)
		if n.Counts() != (Counts{}) {
			t.Errorf("packets to nobody were counted: %+v", n.Counts())
		}
		n.Set(alice, bob, Link{Delay: time.Second})
		send(a, bob, maxUnderWay+5)
		if want := (Counts{Delivered: maxUnderWay, Overflowed: 5}); n.Counts() != want {
			t.Errorf("counts %+v, want %+v", n.Counts(), want)
		}
	})
}
