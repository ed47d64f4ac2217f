package memnet

import (
	"sync"
	"time"

	"github.com/skeinmesh/skein/transport"
)

// Net is one virtual network. Safe for concurrent use.
type Net struct {
	mu    sync.Mutex
	nodes map[string]*endpoint
	links map[pair]*link
}

type pair struct{ from, to string }

// New returns a network without nodes, where every link is up and takes no time.
func New() *Net { return &Net{nodes: map[string]*endpoint{}, links: map[pair]*link{}} }

// Node returns the network as the node at addr sees it. Listening on an address that was killed or closed is a restart.
func (n *Net) Node(addr string) transport.Network { return node{n, addr} }

type node struct {
	net  *Net
	addr string
}

func (n node) Listen(o transport.ListenOptions) (transport.Endpoint, error) {
	return n.net.listen(n.addr, o)
}

// Cut stops both directions between a and b.
func (n *Net) Cut(a, b string) { n.OneWay(a, b); n.OneWay(b, a) }

// OneWay stops what from sends to to; the other direction is left as it is.
func (n *Net) OneWay(from, to string) { n.link(from, to).setCut() }

// Heal brings every link back.
func (n *Net) Heal() {
	n.mu.Lock()
	links := make([]*link, 0, len(n.links))
	for _, l := range n.links {
		links = append(links, l)
	}
	n.mu.Unlock()
	for _, l := range links {
		l.heal()
	}
}

// HealLink brings both directions between a and b back.
func (n *Net) HealLink(a, b string) { n.link(a, b).heal(); n.link(b, a).heal() }

// Delay makes each direction between a and b take d from now on.
func (n *Net) Delay(a, b string, d time.Duration) {
	for _, l := range []*link{n.link(a, b), n.link(b, a)} {
		l.mu.Lock()
		l.delay = d
		l.mu.Unlock()
	}
}

// Kill ends the node at addr as kill -9 would: nobody is told. Its peers notice by silence, or at once after a restart.
func (n *Net) Kill(addr string) {
	n.mu.Lock()
	e := n.nodes[addr]
	n.mu.Unlock()
	if e != nil {
		e.kill()
	}
}

func (n *Net) link(from, to string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := pair{from, to}
	l := n.links[p]
	if l == nil {
		l = &link{conns: map[*conn]struct{}{}}
		n.links[p] = l
	}
	return l
}

// link carries events in one direction, in order.
type link struct {
	mu       sync.Mutex
	cut      bool
	cuts     int // how often it was cut: tells a late timer that its cut is over
	delay    time.Duration
	queue    []event
	draining bool
	timer    *time.Timer
	conns    map[*conn]struct{} // local ends of connections that depend on this link
}

type event struct {
	at time.Time
	fn func()
}

// deliver runs fn on the far side after the link's delay. fn must not block. The caller holds no lock that fn takes.
func (l *link) deliver(fn func()) {
	l.mu.Lock()
	l.queue = append(l.queue, event{time.Now().Add(l.delay), fn})
	l.mu.Unlock()
	l.drain()
}

func (l *link) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return
	}
	l.draining = true
	for len(l.queue) > 0 && !l.cut {
		e := l.queue[0]
		if wait := time.Until(e.at); wait > 0 {
			if l.timer != nil {
				l.timer.Stop()
			}
			l.timer = time.AfterFunc(wait, l.drain)
			break
		}
		l.queue[0] = event{}
		l.queue = l.queue[1:]
		l.mu.Unlock()
		e.fn()
		l.mu.Lock()
	}
	l.draining = false
}

func (l *link) setCut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return
	}
	l.cut = true
	l.cuts++
	for c := range l.conns {
		l.watchLocked(c)
	}
}

// watchLocked ends c when this cut outlives c's idle timeout.
func (l *link) watchLocked(c *conn) {
	cut := l.cuts
	time.AfterFunc(c.idle, func() {
		l.mu.Lock()
		dead := l.cut && l.cuts == cut
		l.mu.Unlock()
		if dead {
			c.end(errSilent)
		}
	})
}

func (l *link) heal() {
	l.mu.Lock()
	l.cut = false
	l.mu.Unlock()
	l.drain()
}

func (l *link) add(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	if l.cut {
		l.watchLocked(c)
	}
}

func (l *link) remove(c *conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
}
