package flow

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/credit"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mesh is a few nodes, each a broker and the host of its replicas, joined in memory.
type mesh struct {
	t     *testing.T
	id    ring.MeshID
	nodes []*node
	tune  func(*Config)

	mu    sync.Mutex
	cut   map[int]bool // nodes that reach nobody but themselves
	pipes map[*pipe][2]int

	noSnapshots atomic.Bool // streams of snapshots cannot be opened
	late        atomic.Pointer[lateAnswers]
}

// lateAnswers hold back what the catalog answers to one node.
type lateAnswers struct {
	to      int
	held    chan struct{} // one in it once an answer waits
	release chan struct{} // closed: they arrive
}

// wait holds up an answer to node i until it may arrive, or the asker gives up.
func (l *lateAnswers) wait(ctx context.Context, i int, m wire.Method) {
	if l == nil || i != l.to || m != wire.MethodCatalog {
		return
	}
	select {
	case l.held <- struct{}{}:
	default:
	}
	select {
	case <-l.release:
	case <-ctx.Done():
	}
}

// node is one of them; its disk outlives it.
type node struct {
	m    *mesh
	i    int
	id   ring.NodeID
	dir  string
	disk *logtest.Disk

	up      bool // under mesh.mu
	full    atomic.Bool
	lag     atomic.Int64  // of each journal write, in ns
	host    *replica.Host // of this life of the node, as the next; written under mesh.mu
	broker  *Broker
	cancel  context.CancelFunc
	life    context.Context
	running sync.WaitGroup // host and broker
	serving sync.WaitGroup // handlers
	files   []io.Closer
}

// inMesh runs fn in a mesh of n nodes, under a clock of its own.
func inMesh(t *testing.T, n int, tune func(*Config), fn func(t *testing.T, m *mesh)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &mesh{t: t, id: ring.MeshID{7}, tune: tune, cut: map[int]bool{}, pipes: map[*pipe][2]int{}}
		for i := range n {
			m.nodes = append(m.nodes, &node{m: m, i: i, id: ring.NodeID{0xaa, 15: byte(i + 1)}, dir: t.TempDir(),
				disk: logtest.NewDisk(logtest.Config{})})
		}
		defer func() {
			for _, nd := range m.nodes {
				nd.stop()
			}
		}()
		for _, nd := range m.nodes {
			nd.start()
		}
		m.found()
		fn(t, m)
	})
}

func (m *mesh) found() {
	b := replica.Birth{Group: ring.CatalogGroup(m.id, 0), Kind: replica.KindCatalog}
	for i, nd := range m.nodes {
		b.Members = append(b.Members, replica.Member{ID: ring.ReplicaID(i + 1), Node: nd.id})
	}
	for i, nd := range m.nodes {
		b.Self = ring.ReplicaID(i + 1)
		if err := nd.host.Create(m.t.Context(), b); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (nd *node) start() {
	twin, store := nd.disk.OpenJournal(), nd.disk.OpenStore()
	nd.files = []io.Closer{twin, store}
	journal := slowJournal{twin, &nd.lag}
	peers := &fakePeers{nd}
	logger := slog.New(slog.DiscardHandler)
	cfg := replica.DefaultConfig()
	cfg.Self, cfg.Journal, cfg.Store, cfg.Sender, cfg.Caller, cfg.Placement = nd.id, journal, store, peers, peers, placement{nd.m}
	cfg.PreferHome = false
	cfg.Factories = map[replica.GroupKind]replica.Factory{
		replica.KindCatalog:   catalog.NewFactory(store),
		replica.KindPartition: partition.NewFactory(partition.Config{Dir: filepath.Join(nd.dir, "p"), Store: store}),
	}
	cfg.WantReplicas = func(_ replica.GroupKind, spec []byte) int {
		if s, err := partition.ParseSpec(spec); err == nil && s.Replicas > 0 {
			return s.Replicas
		}
		return 3
	}
	host, err := replica.NewHost(cfg)
	if err != nil {
		nd.m.t.Fatal(err)
	}
	bc := Config{Self: nd.id, Mesh: func() ring.MeshID { return nd.m.id }, CatalogShards: 1, Peers: peers, Groups: host,
		Directory: directory{nd}, PublishBudget: credit.NewBudget(8 << 20), OwnerBudget: credit.NewBudget(8 << 20),
		ReadBudget: credit.NewBudget(8 << 20), DiskFull: nd.full.Load, Logger: logger}
	if nd.m.tune != nil {
		nd.m.tune(&bc)
	}
	broker, err := NewBroker(bc)
	if err != nil {
		nd.m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	nd.cancel = cancel
	nd.running.Go(func() { nd.run(host.Run, ctx) })
	nd.running.Go(func() { nd.run(broker.Run, ctx) })
	<-host.Ready()
	nd.m.mu.Lock()
	nd.host, nd.broker, nd.life, nd.up = host, broker, ctx, true
	nd.m.mu.Unlock()
}

// slowJournal is a journal whose disk takes lag longer for each write.
type slowJournal struct {
	log.Journal
	lag *atomic.Int64
}

func (j slowJournal) Append(ctx context.Context, writes []log.Write, sync bool, done func(error)) {
	j.Journal.Append(ctx, writes, sync, func(err error) {
		virtual.Sleep(time.Duration(j.lag.Load()))
		done(err)
	})
}

func (nd *node) run(fn func(context.Context) error, ctx context.Context) {
	if err := fn(ctx); err != nil {
		nd.m.t.Errorf("node %d: %v", nd.i, err)
	}
}

// stop ends the node; what it did not sync stays on its disk.
func (nd *node) stop() {
	nd.m.mu.Lock()
	up := nd.up
	nd.up = false
	nd.m.mu.Unlock()
	if !up {
		return
	}
	nd.m.sever(nd.i, errGone)
	nd.cancel()
	nd.running.Wait()
	nd.serving.Wait()
	for _, f := range nd.files {
		_ = f.Close()
	}
}

// isolate cuts a node off, or heals it.
func (m *mesh) isolate(i int, on bool) {
	m.mu.Lock()
	m.cut[i] = on
	m.mu.Unlock()
	if on {
		m.sever(i, errGone)
	}
}

var errGone = &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Detail: "the connection was lost"}

// sever breaks the streams between a node and all others.
func (m *mesh) sever(i int, err error) {
	m.mu.Lock()
	var broken []*pipe
	for p, ends := range m.pipes {
		if ends[0] != ends[1] && (ends[0] == i || ends[1] == i) {
			broken = append(broken, p)
		}
	}
	m.mu.Unlock()
	for _, p := range broken {
		p.sever(err)
	}
}

// reach gives the node with an id if messages from node i reach it.
func (m *mesh) reach(i int, to ring.NodeID) (*node, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.nodes[i].up {
		return nil, false
	}
	for j, nd := range m.nodes {
		if nd.id == to {
			return nd, nd.up && (i == j || !m.cut[i] && !m.cut[j])
		}
	}
	return nil, false
}

// serve runs a handler on the node; false when it is down.
func (nd *node) serve(fn func(ctx context.Context, host *replica.Host, b *Broker)) bool {
	nd.m.mu.Lock()
	defer nd.m.mu.Unlock()
	if !nd.up {
		return false
	}
	life, host, broker := nd.life, nd.host, nd.broker
	nd.serving.Go(func() { fn(life, host, broker) })
	return true
}

// takes has the node, which does not stop meanwhile, take a message; false when it is down.
func (nd *node) takes(fn func()) bool {
	nd.m.mu.Lock()
	up := nd.up
	if up {
		nd.serving.Add(1)
	}
	nd.m.mu.Unlock()
	if up {
		defer nd.serving.Done()
		fn()
	}
	return up
}

// create makes a stream and waits until each partition has an owner.
func (m *mesh) create(name string, cfg StreamConfig) StreamInfo {
	m.t.Helper()
	info, _, err := m.nodes[0].broker.Create(m.within(10*time.Second), name, cfg, CreateOrSame)
	if err != nil {
		m.t.Fatal(err)
	}
	for i := range info.Partitions {
		m.owner(info.Partitions[i].Group)
	}
	return info
}

// owner waits for a group's owner.
func (m *mesh) owner(g ring.GroupID) *node {
	m.t.Helper()
	for range 1000 {
		for _, nd := range m.nodes {
			if nd.isUp() {
				if lg, ok := nd.host.Group(g); ok && !m.isCut(nd.i) {
					if st := lg.Status(); st.Role == replica.RoleOwner && st.Ready {
						return nd
					}
				}
			}
		}
		virtual.Sleep(10 * time.Millisecond)
	}
	m.t.Fatalf("group %s has no owner", g)
	return nil
}

func (nd *node) isUp() bool {
	nd.m.mu.Lock()
	defer nd.m.mu.Unlock()
	return nd.up
}

// door is the broker of the node, for clients that do not know whether it is up.
func (nd *node) door() (b *Broker, up bool) {
	nd.m.mu.Lock()
	defer nd.m.mu.Unlock()
	return nd.broker, nd.up
}

func (m *mesh) isCut(i int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cut[i]
}

func (m *mesh) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), d)
	m.t.Cleanup(cancel)
	return ctx
}

func event(key, value string) batch.Record {
	return batch.Record{Key: []byte(key), HasKey: true, Value: []byte(value)}
}

// put publishes one event and wants it stored.
func (m *mesh) put(i int, stream, key, value string) PublishResult {
	m.t.Helper()
	res, err := m.nodes[i].broker.Publish(m.within(10*time.Second), stream, []batch.Record{event(key, value)}, PublishOptions{})
	if err != nil {
		m.t.Fatalf("publish %s=%s on node %d: %v", key, value, i, err)
	}
	return res[0]
}

// readAll reads a stream to its end through node i.
func (m *mesh) readAll(i int, stream string, req SubscribeRequest) []Event {
	m.t.Helper()
	req.UntilEnd = true
	sub, err := m.nodes[i].broker.Subscribe(m.within(20*time.Second), stream, req)
	if err != nil {
		m.t.Fatalf("subscribe to %s on node %d: %v", stream, i, err)
	}
	defer sub.Close() //nolint:errcheck // it returns nil
	return m.drain(sub, 0)
}

// drain reads until the end, or until n events came.
func (m *mesh) drain(sub Subscription, n int) (out []Event) {
	m.t.Helper()
	ctx := m.within(20 * time.Second)
	for n == 0 || len(out) < n {
		c, err := sub.Next(ctx, 0)
		if err != nil {
			m.t.Fatalf("after %d events: %v", len(out), err)
		}
		for _, e := range c.Events {
			e.Record = e.Record.Clone()
			out = append(out, e)
		}
		if c.End {
			return out
		}
	}
	return out
}

func earliest() SubscribeRequest { return SubscribeRequest{From: Position{Kind: FromEarliest}} }

func values(es []Event) (out []string) {
	for i := range es {
		out = append(out, string(es[i].Value))
	}
	return out
}
