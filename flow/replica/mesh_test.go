package replica

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mesh is a few hosts joined by a network in memory.
type mesh struct {
	t     testing.TB
	rand  *rand.Rand
	mu    sync.Mutex
	nodes []*node
	cut   map[[2]int]bool // from, to
	loss  float64
	delay time.Duration // up to
	tune  func(*Config)
	drop  func(from, to int, e envelope) bool // sees every message that arrives; true: it does not
	sink  bool                                // state machines keep nothing
	fixed bool                                // no growth: Desired is what the group has

	drained, lost, cordoned map[int]bool
	unheard                 map[int]bool // take nothing new, and gossip has not told yet
	balance                 bool         // Relief and Share even out what nodes hold
	owning                  func(n int) (count, mean, high int)
}

type node struct {
	m       *mesh
	i       int
	id      ring.NodeID
	journal *memJournal
	store   *memStore
	bulks   map[ring.GroupID]*bulk
	host    *Host
	cancel  context.CancelFunc
	ended   chan error
	up      bool
	failing func(log.Entry) error
	aside   int   // replicas whose bulk was set aside
	stuck   error // of the disk: bulk can be neither opened nor set aside
	old     bool  // of a version that knows no replicas that are closed for good

	declined []ring.NodeID
}

func newMesh(t testing.TB, n int, seed uint64) *mesh {
	m := &mesh{t: t, rand: rand.New(rand.NewPCG(seed, 1)), cut: map[[2]int]bool{}, delay: 2 * time.Millisecond,
		drained: map[int]bool{}, lost: map[int]bool{}, cordoned: map[int]bool{},
		unheard: map[int]bool{}}
	for i := range n {
		nd := &node{m: m, i: i, journal: newMemJournal(), store: newMemStore(), bulks: map[ring.GroupID]*bulk{}}
		nd.id[0], nd.id[15] = 0xaa, byte(i+1)
		m.nodes = append(m.nodes, nd)
	}
	return m
}

// inMesh runs fn in a bubble of virtual time with n running hosts, and stops them after it.
func inMesh(t *testing.T, n int, fn func(m *mesh)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, n, 7)
		for _, nd := range m.nodes {
			nd.start()
		}
		fn(m)
		m.stop()
	})
}

func (m *mesh) stop() {
	for _, nd := range m.nodes {
		if nd.up {
			nd.stop()
		}
		nd.journal.Close()
	}
	virtual.Sleep(time.Second) // deliveries under way
}

func (n *node) start() {
	n.launch()
	select {
	case <-n.host.Ready():
	case err := <-n.ended:
		n.m.t.Fatalf("node %d: %v", n.i, err)
	}
}

// launch is start without waiting until the replicas are there.
func (n *node) launch() {
	cfg := DefaultConfig()
	cfg.Self, cfg.Journal, cfg.Store = n.id, n.journal, n.store
	cfg.Sender, cfg.Caller, cfg.Placement = n, n, n
	cfg.Rand = rand.New(rand.NewPCG(n.m.draw(), 3))
	if os.Getenv("SKEIN_TEST_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", n.i)
	}
	cfg.Factories = map[GroupKind]Factory{KindPartition: func(b Birth, prefix []byte) (StateMachine, error) {
		if err := n.stuckBy(); err != nil {
			return nil, err
		}
		f := n.bulk(b.Group)
		r := &recorder{f: f, store: n.store, key: append(slices.Clone(prefix), 'n'), fail: n.failing}
		r.sink = n.m.sink
		if v, ok, _ := n.store.Get(r.key); ok {
			r.count = beUint64(v)
		}
		return r, nil
	}}
	cfg.SetAside = func(b Birth) error {
		n.m.mu.Lock()
		defer n.m.mu.Unlock()
		if n.stuck != nil {
			return n.stuck
		}
		n.aside++
		delete(n.bulks, b.Group)
		return nil
	}
	if n.m.tune != nil {
		n.m.tune(&cfg)
	}
	h, err := NewHost(cfg)
	if err != nil {
		n.m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	n.m.mu.Lock()
	n.host, n.cancel, n.ended, n.up = h, cancel, ended, true
	n.m.mu.Unlock()
	go func() { ended <- h.Run(ctx) }()
}

func (n *node) stuckBy() error {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	return n.stuck
}

func (n *node) stick(err error) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.stuck = err
}

func beUint64(b []byte) (v uint64) {
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

func (n *node) bulk(g ring.GroupID) *bulk {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if n.bulks[g] == nil {
		n.bulks[g] = &bulk{}
	}
	return n.bulks[g]
}

// stop ends the host in order.
func (n *node) stop() {
	n.m.mu.Lock()
	n.up = false
	n.m.mu.Unlock()
	n.cancel()
	if err := <-n.ended; err != nil {
		n.m.t.Errorf("node %d: %v", n.i, err)
	}
}

// crash ends the host as by a power cut: nothing that was not synced survives.
func (n *node) crash() {
	n.m.mu.Lock()
	n.up = false
	n.m.mu.Unlock()
	n.journal.crash()
	n.cancel()
	<-n.ended
	r := rand.New(rand.NewPCG(n.m.draw(), 4))
	n.store.crash(r)
	for _, g := range slices.SortedFunc(maps.Keys(n.bulks), ring.GroupID.Compare) {
		n.bulks[g].crash(r)
	}
	n.journal.start()
}

func (m *mesh) draw() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rand.Uint64()
}

func (m *mesh) find(id ring.NodeID) *node {
	for _, n := range m.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// reach gives the node when a message from n gets to it.
func (n *node) reach(to ring.NodeID) *node {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	d := n.m.find(to)
	if d == nil || !d.up || !n.up || n.m.cut[[2]int{n.i, d.i}] || n.m.rand.Float64() < n.m.loss {
		return nil
	}
	return d
}

// Send says, as the transport does, when there is no connection to a node that is down.
func (n *node) Send(to ring.NodeID, _ wire.Class, body []byte) bool {
	d := n.reach(to)
	if d == nil {
		n.m.mu.Lock()
		defer n.m.mu.Unlock()
		d = n.m.find(to)
		return d != nil && d.up
	}
	h := d.host
	if body = n.m.filter(n.i, d.i, body); len(body) <= 1 {
		return true
	}
	if n.m.delay == 0 {
		_ = h.HandleRaft(n.id, body)
		return true
	}
	n.m.mu.Lock()
	after := time.Duration(n.m.rand.Int64N(int64(n.m.delay)))
	n.m.mu.Unlock()
	time.AfterFunc(after, func() {
		n.m.mu.Lock()
		ok := d.up && d.host == h && !n.m.cut[[2]int{n.i, d.i}]
		n.m.mu.Unlock()
		if ok {
			_ = h.HandleRaft(n.id, body)
		}
	})
	return true
}

// filter takes what drop names out of a frame.
func (m *mesh) filter(from, to int, body []byte) []byte {
	m.mu.Lock()
	drop := m.drop
	m.mu.Unlock()
	if drop == nil {
		return body
	}
	out := []byte{frameVersion}
	if err := decodeFrame(body, func(e envelope) {
		if !drop(from, to, e) {
			out = appendEnvelope(out, e.group, e.msg)
		}
	}); err != nil {
		m.t.Error(err)
	}
	return out
}

func (m *mesh) dropping(fn func(from, to int, e envelope) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop = fn
}

func (n *node) Call(ctx context.Context, to ring.NodeID, _ wire.Class, m wire.Method, body []byte) ([]byte, error) {
	d := n.reach(to)
	if d == nil {
		return nil, wire.Errorf(wire.KindUnavailable, "", "unreachable")
	}
	switch m {
	case wire.MethodBirth:
		return d.host.HandleBirth(ctx, n.id, body)
	case wire.MethodRemoval:
		if r, _ := decodeRemoval(body); d.old && r.Op > removalAsked {
			return nil, wire.Errorf(wire.KindInvalid, "", "unknown kind of removal %d", r.Op)
		}
		return d.host.HandleRemoval(ctx, n.id, body)
	case wire.MethodReserve:
		return d.host.HandleReserve(ctx, n.id, body)
	}
	return nil, wire.Errorf(wire.KindInvalid, "", "unknown method %d", m)
}

func (n *node) Open(ctx context.Context, to ring.NodeID, _ wire.Class, m wire.Method, hello []byte) (wire.Stream, error) {
	d := n.reach(to)
	if d == nil || m != wire.MethodSnapshot {
		return nil, wire.Errorf(wire.KindUnavailable, "", "unreachable")
	}
	a, b := newPipe()
	go func() { b.Close(d.host.HandleSnapshot(context.Background(), n.id, hello, b)) }()
	return a, nil
}

// Desired: every node of the mesh that may hold something, current members first.
func (n *node) Desired(_ ring.GroupID, want int, current, avoid []ring.NodeID) []ring.NodeID {
	if n.m.fixed {
		return slices.Clone(current)
	}
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	var out []ring.NodeID
	for _, id := range current {
		if d := n.m.find(id); !n.m.drained[d.i] && !n.m.lost[d.i] {
			out = append(out, id)
		}
	}
	for _, shunned := range []bool{false, true} {
		for _, d := range n.m.nodes {
			if d.up && n.m.takesLocked(d.i) && !slices.Contains(out, d.id) && !slices.Contains(n.declined, d.id) && slices.Contains(avoid, d.id) == shunned {
				out = append(out, d.id)
			}
		}
	}
	return out[:min(len(out), want)]
}

func (m *mesh) takesLocked(i int) bool { return !m.drained[i] && !m.lost[i] && !m.cordoned[i] }

func (n *node) Alive(id ring.NodeID) bool {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	d := n.m.find(id)
	return d != nil && d.up
}

func (n *node) Takes(id ring.NodeID) bool {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	d := n.m.find(id)
	return d != nil && d.up && n.m.takesLocked(d.i) && !slices.Contains(n.declined, id) && !(d == n && n.m.unheard[d.i])
}

// declinedTo lists who said to a node that it takes nothing new.
func (m *mesh) declinedTo(i int) []ring.NodeID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.nodes[i].declined)
}

func (n *node) Declined(id ring.NodeID) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.declined = append(n.declined, id)
}

func (n *node) Leaving(id ring.NodeID) bool {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	d := n.m.find(id)
	return d != nil && n.m.drained[d.i]
}

// holding counts the replicas of each node that is up, and the mean.
func (m *mesh) holding() (held []int, mean float64) {
	total, up := 0, 0
	for _, d := range m.nodes {
		k := 0
		if d.up {
			k = len(d.host.Groups())
			if m.takesLocked(d.i) {
				up++
			}
		}
		held, total = append(held, k), total+k
	}
	return held, float64(total) / float64(max(up, 1))
}

// Relief: from the fullest of current to the emptiest node, where they differ by two.
func (n *node) Relief(_ ring.GroupID, current []ring.NodeID) (from, to ring.NodeID, ok bool) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if !n.m.balance {
		return from, to, false
	}
	held, _ := n.m.holding()
	most, least := -1, -1
	for _, d := range n.m.nodes {
		switch in := slices.Contains(current, d.id); {
		case in && (most < 0 || held[d.i] > held[most]):
			most = d.i
		case !in && d.up && n.m.takesLocked(d.i) && (least < 0 || held[d.i] < held[least]):
			least = d.i
		}
	}
	if most < 0 || least < 0 || held[most]-held[least] < 2 {
		return from, to, false
	}
	return n.m.nodes[most].id, n.m.nodes[least].id, true
}

func (n *node) Share() (low, high int) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if !n.m.balance {
		return 0, 1 << 30
	}
	_, mean := n.m.holding()
	return int(mean), int(mean + 0.999)
}

func (n *node) Owned(id ring.NodeID) (count, mean, high int) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if n.m.owning == nil {
		return 0, 1 << 30, 1 << 30
	}
	return n.m.owning(n.m.find(id).i)
}

// pipe is one end of a stream in memory.
type pipe struct {
	out, in chan []byte
	closed  chan struct{}
	once    *sync.Once
	sent    sync.Once
}

func newPipe() (a, b *pipe) {
	x, y, c, o := make(chan []byte, 4), make(chan []byte, 4), make(chan struct{}), new(sync.Once)
	return &pipe{out: x, in: y, closed: c, once: o}, &pipe{out: y, in: x, closed: c, once: o}
}

func (p *pipe) Send(ctx context.Context, f []byte) error {
	select {
	case p.out <- slices.Clone(f):
		return nil
	case <-p.closed:
		return closedErr("send")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pipe) Recv(ctx context.Context) ([]byte, error) {
	select {
	case f, ok := <-p.in:
		if !ok {
			return nil, io.EOF
		}
		return f, nil
	default:
	}
	select {
	case f, ok := <-p.in:
		if !ok {
			return nil, io.EOF
		}
		return f, nil
	case <-p.closed:
		return nil, closedErr("recv")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipe) CloseSend() error  { p.sent.Do(func() { close(p.out) }); return nil }
func (p *pipe) Close(error) error { p.once.Do(func() { close(p.closed) }); return nil }

// Helpers of the tests.

func testGroup(i byte) (g ring.GroupID) { g[0], g[15] = 0xbb, i; return g }

// birth is the record of a group founded on the given nodes, first one first.
func (m *mesh) birth(g ring.GroupID, on ...int) Birth {
	b := Birth{Group: g, Kind: KindPartition, Spec: []byte("spec")}
	for i, n := range on {
		b.Members = append(b.Members, Member{ID: ring.ReplicaID(i + 1), Node: m.nodes[n].id})
	}
	return b
}

// found creates the group on the given nodes.
func (m *mesh) found(g ring.GroupID, on ...int) {
	m.t.Helper()
	b := m.birth(g, on...)
	for i, n := range on {
		b.Self = ring.ReplicaID(i + 1)
		if err := m.nodes[n].host.Create(context.Background(), b); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *mesh) group(n int, g ring.GroupID) *Group {
	if !m.nodes[n].up {
		return nil
	}
	r, _ := m.nodes[n].host.Group(g)
	return r
}

// await polls until cond holds, in virtual time.
func (m *mesh) await(what string, cond func() bool) {
	m.t.Helper()
	for range 3000 {
		if cond() {
			return
		}
		virtual.Sleep(10 * time.Millisecond)
	}
	m.t.Fatalf("never: %s", what)
}

// owner waits for a ready owner among the nodes that are up (or those named).
func (m *mesh) owner(g ring.GroupID, among ...int) *Group {
	m.t.Helper()
	var out *Group
	m.await("an owner", func() bool {
		for i := range m.nodes {
			if len(among) > 0 && !slices.Contains(among, i) {
				continue
			}
			if r := m.group(i, g); r != nil && r.Status().Ready {
				out = r
				return true
			}
		}
		return false
	})
	return out
}

func (m *mesh) nodeOf(g *Group) *node { return m.find(g.h.cfg.Self) }

// foundOnThree makes a group on the first three nodes, with one entry on all of them.
func (m *mesh) foundOnThree() ring.GroupID {
	m.t.Helper()
	g := testGroup(1)
	m.found(g, 0, 1, 2)
	m.propose(g, "a")
	m.converge(g, 0, 1, 2)
	return g
}

// propose retries until one value is acknowledged.
func (m *mesh) propose(g ring.GroupID, v string) Outcome {
	m.t.Helper()
	for range 200 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		o := m.owner(g).ProposeWait(ctx, []byte(v))
		cancel()
		if o.Err == nil {
			return o
		}
		virtual.Sleep(20 * time.Millisecond)
	}
	m.t.Fatalf("%q was never acknowledged", v)
	return Outcome{}
}

// converge waits until the named nodes have applied the same, and gives it.
func (m *mesh) converge(g ring.GroupID, on ...int) []string {
	m.t.Helper()
	var first []string
	m.await("the same state everywhere", func() bool {
		first = m.nodes[on[0]].bulk(g).values()
		var applied uint64
		for _, n := range on {
			r := m.group(n, g)
			if r == nil {
				return false
			}
			st := r.Status()
			if applied == 0 {
				applied = st.Applied
			}
			if st.Applied != applied || st.Commit != applied || !slices.Equal(first, m.nodes[n].bulk(g).values()) {
				return false
			}
		}
		return true
	})
	return first
}

func (m *mesh) split(a, b int, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut[[2]int{a, b}], m.cut[[2]int{b, a}] = on, on
}

func (m *mesh) isolate(n int, on bool) {
	for i := range m.nodes {
		if i != n {
			m.split(n, i, on)
		}
	}
}

func value(i int) string { return fmt.Sprintf("v%04d", i) }
