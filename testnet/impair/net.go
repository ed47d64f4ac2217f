package impair

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Link is how packets fare in one direction between two hosts. The zero Link is perfect.
type Link struct {
	Delay     time.Duration // of every packet
	Jitter    time.Duration // up to this much more, drawn for each packet: packets overtake each other
	Loss      float64       // part of the packets that never arrive: 1 cuts the link
	Duplicate float64       // part of those that arrive twice, each with a delay of its own
	Damage    float64       // part of those with one flipped bit
}

func (l Link) String() string {
	return fmt.Sprintf("delay %v to %v, loss %.1f %%, duplicates %.1f %%, damage %.1f %%", l.Delay, l.Delay+l.Jitter, 100*l.Loss, 100*l.Duplicate, 100*l.Damage)
}

// Counts is what became of the packets so far.
type Counts struct {
	Delivered, Lost, Duplicated, Damaged uint64
	Overflowed                           uint64 // lost because too many were under way
}

// maxUnderWay bounds the packets that are under way at once, as the queue of a router does: about 24 MiB.
const maxUnderWay = 16 << 10

// maxPacket is the longest IPv4 packet.
const maxPacket = 1<<16 - 1

// Net joins hosts by links. All methods may be called at any time and at once.
type Net struct {
	seed  uint64
	wake  chan struct{}  // the earliest packet under way has changed
	ended chan struct{}  // closed by Close
	loops sync.WaitGroup // of the hosts, and the one that delivers

	mu       sync.Mutex
	closed   bool
	hosts    map[netip.Addr]io.ReadWriteCloser
	links    map[direction]*link
	silent   map[netip.AddrPort]bool
	counts   Counts
	underWay queue
	sent     uint64 // orders packets that are due at the same time
}

type direction struct{ from, to netip.Addr }

type link struct {
	Link
	rng *rand.Rand
}

// New returns a network without hosts. Close ends it.
func New(seed uint64) *Net {
	n := &Net{seed: seed, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		hosts: map[netip.Addr]io.ReadWriteCloser{}, links: map[direction]*link{}, silent: map[netip.AddrPort]bool{}}
	n.loops.Go(n.deliver)
	return n
}

// Plug connects the host at addr. Each Read of host gives one packet that it sends, each Write is one that it gets; Net closes it.
func (n *Net) Plug(addr netip.Addr, host io.ReadWriteCloser) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.hosts[addr] != nil {
		panic(fmt.Sprintf("impair: plug %v into a network that is closed, or that has it", addr))
	}
	n.hosts[addr] = host
	n.loops.Go(func() { n.take(addr, host) })
}

// Set makes the direction from one host to another l, for packets that are sent from now on.
func (n *Net) Set(from, to netip.Addr, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(direction{from, to}).Link = l
}

// Silence loses all packets of a host, to it and from it, that go from or to that port on either side, over TCP or UDP.
func (n *Net) Silence(host netip.Addr, port uint16) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent[netip.AddrPortFrom(host, port)] = true
}

// Heal makes all links perfect, and no port silent. Packets that are under way still arrive.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.Link = Link{}
	}
	clear(n.silent)
}

// Counts returns what became of the packets so far.
func (n *Net) Counts() Counts {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}

// Close closes the hosts and waits until nothing is read from or written to them any more. Packets under way are lost.
func (n *Net) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	close(n.ended)
	var errs []error
	for _, host := range n.hosts {
		errs = append(errs, host.Close())
	}
	n.mu.Unlock()
	n.loops.Wait()
	return errors.Join(errs...)
}

// link returns the state of a direction, with dice of its own: what happens on one link leaves the others as they are.
func (n *Net) link(d direction) *link {
	l := n.links[d]
	if l == nil {
		from, to := d.from.As4(), d.to.As4()
		var both uint64
		for _, b := range append(from[:], to[:]...) {
			both = both<<8 | uint64(b)
		}
		l = &link{rng: rand.New(rand.NewPCG(n.seed, both))}
		n.links[d] = l
	}
	return l
}

// take sends what a host hands in, until it is closed.
func (n *Net) take(from netip.Addr, host io.Reader) {
	buf := make([]byte, maxPacket)
	for {
		size, err := host.Read(buf)
		if err != nil {
			return
		}
		if to, ok := destination(buf[:size]); ok {
			n.send(direction{from, to}, buf[:size])
		}
	}
}

// destination is where an IPv4 packet goes; anything else goes nowhere (RFC 791, section 3.1).
func destination(packet []byte) (netip.Addr, bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(packet[16:20])), true
}

// ports are where a TCP or UDP packet comes from and goes to (RFC 791, 768, 9293). Later fragments of one do not tell.
func ports(packet []byte) (from, to uint16, ok bool) {
	const tcp, udp = 6, 17
	header := 4 * int(packet[0]&0xf)
	if later := binary.BigEndian.Uint16(packet[6:])&0x1fff != 0; later || (packet[9] != tcp && packet[9] != udp) || len(packet) < header+4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(packet[header:]), binary.BigEndian.Uint16(packet[header+2:]), true
}

// silenced reports whether a packet goes from or to a silent port.
func (n *Net) silenced(d direction, packet []byte) bool {
	if len(n.silent) == 0 {
		return false
	}
	from, to, ok := ports(packet)
	for _, host := range []netip.Addr{d.from, d.to} {
		for _, port := range []uint16{from, to} {
			if ok && n.silent[netip.AddrPortFrom(host, port)] {
				return true
			}
		}
	}
	return false
}

// send draws a packet's lot and has each copy of it arrive in its time.
func (n *Net) send(d direction, packet []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.hosts[d.to] == nil {
		return
	}
	l := n.link(d)
	if lost := l.chance(l.Loss); lost || n.silenced(d, packet) {
		n.counts.Lost++
		return
	}
	copies := 1
	if l.chance(l.Duplicate) {
		n.counts.Duplicated++
		copies = 2
	}
	now := time.Now()
	for range copies {
		if len(n.underWay) == maxUnderWay {
			n.counts.Overflowed++
			return
		}
		data := append([]byte(nil), packet...)
		if l.chance(l.Damage) {
			n.counts.Damaged++
			bit := l.rng.IntN(8 * len(data))
			data[bit/8] ^= 1 << (bit % 8)
		}
		n.sent++
		heap.Push(&n.underWay, flight{due: now.Add(l.delay()), order: n.sent, to: d.to, data: data})
	}
	select {
	case n.wake <- struct{}{}:
	default: // it is awake
	}
}

// chance draws for every packet, whatever p is: a link that is changed and changed back goes on as it would have.
func (l *link) chance(p float64) bool { return l.rng.Float64() < p }

func (l *link) delay() time.Duration {
	return l.Delay + time.Duration(l.rng.Float64()*float64(l.Jitter))
}

// deliver hands packets to their hosts when they are due.
func (n *Net) deliver() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(n.deliverDue())
		select {
		case <-timer.C:
		case <-n.wake:
		case <-n.ended:
			return
		}
	}
}

// deliverDue delivers what is due and returns how long nothing will be.
func (n *Net) deliverDue() time.Duration {
	const idle = time.Hour
	for {
		n.mu.Lock()
		if n.closed || len(n.underWay) == 0 {
			n.mu.Unlock()
			return idle
		}
		if early := time.Until(n.underWay[0].due); early > 0 {
			n.mu.Unlock()
			return early
		}
		f := heap.Pop(&n.underWay).(flight)
		host := n.hosts[f.to]
		n.counts.Delivered++
		n.mu.Unlock()
		_, _ = host.Write(f.data) // a host that takes nothing, or is closed, loses it as a real one does
	}
}

// flight is a packet under way.
type flight struct {
	due   time.Time
	order uint64
	to    netip.Addr
	data  []byte
}

// queue is a heap of what is due first.
type queue []flight

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(f any)   { *q = append(*q, f.(flight)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	f := (*q)[last]
	(*q)[last] = flight{}
	*q = (*q)[:last]
	return f
}
