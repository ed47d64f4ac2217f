package gossip

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
)

// packetBound is what the library sends of news in packets, at most, in bytes per second and node.
func packetBound(g *Gossip) float64 {
	c := g.libConfig(&delegate{g: g})
	return float64(c.UDPBufferSize*c.GossipNodes) / c.GossipInterval.Seconds()
}

// measured is a load unlike any measured in another step.
func measured(step int) view.Load {
	return view.Load{CPUPercent: 50, MemPercent: 40, Fatigue: 0.6, FsyncMicros: 700, QueuedBytes: 3 << 20, BytesIn: 20 << 20,
		BytesOut: 20 << 20, EventsIn: 20_000, EventsOut: 20_000, Partitions: uint32(1000 + step), Owned: 33}
}

// loopOf is the loop of a node in a mesh of so many; nothing runs.
func loopOf(members int) *loop {
	c := DefaultConfig()
	c.Self = view.Identity{ID: ring.NodeID{1}, Name: "n", Cluster: "c", Mesh: testMesh}
	var u view.Update
	for i := range members {
		id := view.Identity{ID: ring.NodeID{1, byte(i >> 8), byte(i)}, Name: fmt.Sprint(i), Mesh: testMesh}
		u.Members = append(u.Members, view.Member{Identity: id, State: view.StateAlive, Since: time.Unix(0, 0), Observed: 1})
	}
	v, _ := view.New(c.Self.ID, c.Limits).Merge(u)
	g := &Gossip{cfg: c, self: c.Self}
	g.load.node = c.Self.ID
	g.metrics = newMetrics(nil, func() *view.View { return v })
	g.queue = &memberlist.TransmitLimitedQueue{NumNodes: func() int { return members }, RetransmitMult: 3}
	return &loop{g: g, view: v, mesh: testMesh, sentHints: map[ring.GroupID]uint64{}}
}

// loadsSent runs the loop's two ways of sending a load for d, with a measure every second, and tells when it sent one.
func (l *loop) loadsSent(d time.Duration, load func(step int) view.Load) (at []time.Duration) {
	begin := time.Unix(1_000_000, 0)
	sent := func(now time.Time) {
		if l.sentLoadAt.Equal(now) {
			at = append(at, now.Sub(begin))
		}
	}
	timer := begin.Add(l.loadPause())
	for step := range int(d / time.Second) {
		measure := begin.Add(time.Duration(step) * time.Second)
		for ; !timer.After(measure); timer = timer.Add(l.loadPause()) {
			l.sendLoad(timer)
			sent(timer)
		}
		l.g.load.seq++
		l.g.load.load, l.g.loadAt = load(step), measure
		l.takeLocal(measure)
		sent(measure)
	}
	return at
}

// The mesh as a whole sends no more loads than one of 32 members, however large it is: each member hears of all.
func TestLoadsOfAllMembersTogetherAreLevelAbove32(t *testing.T) {
	for _, members := range []int{3, 32, 100, 1000} {
		l := loopOf(members)
		gap, interval := l.g.cfg.LoadMinGap, l.g.cfg.LoadInterval
		if members > 32 {
			gap, interval = gap*time.Duration(members)/32, interval*time.Duration(members)/32
		}
		if l.scaled(l.g.cfg.LoadMinGap) != gap || l.scaled(l.g.cfg.LoadInterval) != interval {
			t.Errorf("%d members: gap %v and interval %v, want %v and %v", members, l.scaled(l.g.cfg.LoadMinGap), l.scaled(l.g.cfg.LoadInterval), gap, interval)
		}
		for range 1000 {
			if p := l.loadPause(); p < gap*9/10 || p > gap*11/10 {
				t.Fatalf("%d members: looked at the load after %v, want %v to a tenth", members, p, gap)
			}
		}
		for _, tc := range []struct {
			what string
			load func(int) view.Load
			// each is sent not before least and, there being a measure to send, not after most.
			least, most time.Duration
			of32        float64 // what 32 members together send a second, at most
		}{
			{"changing", measured, gap, gap + time.Second, 32},
			{"unchanged", func(int) view.Load { return measured(0) }, interval, interval + gap*11/10 + time.Second, 6.4},
		} {
			at := loopOf(members).loadsSent(20*interval, tc.load)
			size := float64(len(encodeLoad(testMesh, report{node: ring.NodeID{1}, incarnation: 1_780_000_000_000, seq: 1_780_000_000_000, load: measured(1)})))
			for i := 1; i < len(at); i++ {
				if d := at[i] - at[i-1]; d < tc.least || d > tc.most {
					t.Fatalf("%d members, %s load: sent after %v, want %v to %v", members, tc.what, d, tc.least, tc.most)
				}
			}
			perSecond := float64(members*(len(at)-1)) / (at[len(at)-1] - at[0]).Seconds()
			if bound := tc.of32; perSecond > bound*1.001 {
				t.Errorf("%d members, %s loads: %.1f a second in the mesh, want at most %.1f", members, tc.what, perSecond, bound)
			}
			// Every member sends each load on as often as the library repeats news.
			repeats := float64(l.g.queue.RetransmitMult) * math.Ceil(math.Log10(float64(members+1)))
			perNode := perSecond * repeats * size
			t.Logf("%4d members, %s loads of %.0f bytes: %.1f a second in the mesh, %.1f kB/s per node", members, tc.what, size, perSecond, perNode/1000)
			if bound := packetBound(l.g); tc.what == "unchanged" && perNode > bound/2 {
				t.Errorf("%d members: unchanged loads alone take %.0f bytes per second and node, of %.0f that packets have room for", members, perNode, bound)
			}
		}
	}
}

// ether is the network of a mesh in memory.
type ether struct {
	mu    sync.Mutex
	ports map[string]*port
}

// port is one node's end of an ether, and counts what it sends.
type port struct {
	ether          *ether
	addr           netip.AddrPort
	in             chan *memberlist.Packet
	dialed         chan net.Conn
	down           chan struct{}
	shut           func()
	packets, bytes atomic.Int64 // sent in packets, of bytes
	streamed       atomic.Int64 // bytes sent in streams
}

func (w *ether) port(addr netip.AddrPort) *port {
	p := &port{ether: w, addr: addr, in: make(chan *memberlist.Packet, 1024), dialed: make(chan net.Conn), down: make(chan struct{})}
	p.shut = sync.OnceFunc(func() { close(p.down) })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ports[addr.String()] = p
	return p
}

func (w *ether) at(addr string) (*port, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.ports[addr]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("nobody is at %s", addr)
}

func (p *port) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return p.addr.Addr().AsSlice(), int(p.addr.Port()), nil
}

func (p *port) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := p.ether.at(addr)
	if err != nil {
		return time.Time{}, err
	}
	p.packets.Add(1)
	p.bytes.Add(int64(len(b)))
	select {
	case to.in <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(p.addr), Timestamp: time.Now()}:
	default: // lost, as on a full socket
	}
	return time.Now(), nil
}

func (p *port) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, err := p.ether.at(addr)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	select {
	case to.dialed <- &countedConn{far, &to.streamed}:
		return &countedConn{near, &p.streamed}, nil
	case <-to.down:
	case <-time.After(timeout):
	}
	return nil, fmt.Errorf("%s does not answer", addr)
}

func (p *port) PacketCh() <-chan *memberlist.Packet { return p.in }
func (p *port) StreamCh() <-chan net.Conn           { return p.dialed }
func (p *port) Shutdown() error                     { p.shut(); return nil }

type countedConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(int64(n))
	return n, err
}

// What the library has room for bounds gossip, however much there is to tell: 21 kB per second and node.
func TestBytesPerNodeStayBelowTheBoundInAMeshOf30(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const members, groups, seconds, bound = 30, 20, 30, 21_000
		w := &ether{ports: map[string]*port{}}
		nodes, ports := make([]*node, members), make([]*port, members)
		for i := range nodes {
			c := DefaultConfig()
			c.Self = view.Identity{ID: ring.NewNodeID(), Name: fmt.Sprintf("node-%d", i), Zone: "zone-a", Version: "v1.2.3", Cluster: "production",
				HTTPAddr: fmt.Sprintf("10.0.0.%d:8400", i+1), QUICAddr: fmt.Sprintf("10.0.0.%d:8401", i+1)}
			c.BindAddr, c.AdvertiseAddr = "127.0.0.1:0", fmt.Sprintf("10.0.0.%d:8402", i+1)
			if i == 0 {
				c.Self.Mesh = testMesh
			} else {
				c.Seeds = []string{nodes[0].Addr()}
			}
			nodes[i] = start(t, c, func(g *Gossip) {
				g.net.closeSockets() // a goroutine that reads from one would stop the bubble's time
				ports[i] = w.port(g.net.adv)
				g.tune = func(c *memberlist.Config) { c.Transport = ports[i] }
			})
			hints := make([]view.Hint, groups)
			for j := range hints {
				hints[j] = view.Hint{Group: ring.PartitionGroup(ring.StreamID{byte(i + 1)}, ring.PartitionID(j)), Term: 7}
			}
			nodes[i].SetHints(hints)
		}
		whole := func(n *node) bool {
			return n.View().CountPresent() == members && n.View().CountHints() == members*groups
		}
		for waited := time.Duration(0); slices.ContainsFunc(nodes, func(n *node) bool { return !whole(n) }); waited += time.Second {
			if waited > 5*time.Minute {
				t.Fatal("a node does not hear of all members and owners")
			}
			virtual.Sleep(time.Second)
		}
		virtual.Sleep(time.Minute) // the news of the start are through
		if room := packetBound(nodes[0].Gossip); room > bound {
			t.Errorf("the library has room for %.0f bytes per second and node, the bound is %d", room, bound)
		}
		step := 0
		for _, phase := range []struct {
			what   string
			change bool
			share  float64 // of the bound, at most
		}{{"unchanged loads", false, 0.5}, {"loads that change at every measure", true, 1}} {
			before := make([][3]int64, members)
			for i, p := range ports {
				before[i] = [3]int64{p.packets.Load(), p.bytes.Load(), p.streamed.Load()}
			}
			for range seconds {
				if phase.change {
					step++
				}
				for _, n := range nodes { // not all at the same moment
					n.SetLoad(measured(step))
					virtual.Sleep(time.Second / members)
				}
			}
			var packets, bytes, streamed, most float64
			for i, p := range ports {
				own := float64(p.bytes.Load()-before[i][1]) / seconds
				packets, bytes, most = packets+float64(p.packets.Load()-before[i][0]), bytes+own, max(most, own)
				streamed += float64(p.streamed.Load()-before[i][2]) / seconds
			}
			t.Logf("%s: per node and second %.1f packets of %.0f bytes together (the busiest: %.0f), and %.0f bytes of full exchanges",
				phase.what, packets/members/seconds, bytes/members, most, streamed/members)
			if most > bound*phase.share {
				t.Errorf("%s: a node sent %.0f bytes per second in packets, the bound is %.0f", phase.what, most, bound*phase.share)
			}
			if total := (bytes + streamed) / members; total > bound {
				t.Errorf("%s: %.0f bytes per second and node with full exchanges, the bound is %d", phase.what, total, bound)
			}
		}
	})
}
