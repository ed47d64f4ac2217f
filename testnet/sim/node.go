package sim

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/credit"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/place"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
)

const shards = 2 // of the catalog

// mesh is the nodes of a run and what joins them. The loop owns it.
type mesh struct {
	w       *world
	id      ring.MeshID
	nodes   []*node
	links   map[[2]int]*link
	sound   link       // of a node with itself
	trouble *rand.Rand // chooses faults, and nothing else: they are the same whatever comes of them
	faults  []string   // what was chosen, and when
	calm    bool       // all is healed: gossip is fresh and whole
	history *check.History
	chance  *Chance
	logger  *slog.Logger
	weight  func(fault string, usual int) int // of Config

	over  atomic.Bool // all processes are to end for good
	mu    sync.Mutex
	fails []string
}

// node is a place where processes run, one after the other; its disk outlives them.
type node struct {
	m    *mesh
	i    int
	id   ring.NodeID
	disk *logtest.Disk
	med  *logtest.Medium
	proc atomic.Pointer[process] // serving; nil: none is

	// The loop owns what follows.
	run      uint64 // of how many processes this is the last
	up       bool   // a process is there, or on its way
	ending   bool   // one is not quite gone
	wanted   bool   // one should be there
	flags    view.Flags
	pending  []func()      // writes of the journal that are not complete
	slowDisk time.Duration // how much longer a write takes
	still    time.Duration // until when nothing goes in or out, and nothing is written
	failing  bool          // its disk is: the process ends by itself
	cramped  bool          // its disk has little room, or none: a process that starts ends by itself where it has something to complete
	full     atomic.Bool   // the node was told that its disk is full
	current  *process      // there, or on its way
	gossip   gossip
}

// process is one life of a node.
type process struct {
	m       *mesh
	nd      *node
	run     uint64
	host    *replica.Host
	broker  *flow.Broker
	place   *place.Directory
	dead    atomic.Bool
	life    context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup // host and broker
	serving sync.WaitGroup // handlers
	files   []io.Closer

	mu     sync.Mutex
	opened map[string]int // streams by key, to tell alike ones apart

	// The loop owns what follows.
	last    *call // that the loop took
	inbound map[*call]struct{}
	streams map[*stream]struct{}
}

func newMesh(w *world, n int, cfg Config) *mesh {
	seed := cfg.Chance.Seed
	m := &mesh{w: w, trouble: rand.New(rand.NewPCG(seed, 0x6661756c74)), id: ring.MeshID{7}, links: map[[2]int]*link{}, history: &check.History{}, chance: cfg.Chance, logger: cfg.Logger}
	for i := range n {
		nd := &node{m: m, i: i, id: ring.NodeID{byte(0x10 * (i + 1)), 15: byte(i + 1)}, med: logtest.NewMedium(seed*31 + uint64(i)), wanted: true}
		nd.disk = logtest.NewDisk(logtest.Config{Rand: rand.New(rand.NewPCG(seed, uint64(i))), Defer: nd.write})
		m.nodes = append(m.nodes, nd)
		for j := range n {
			if i != j {
				m.links[[2]int{i, j}] = &link{}
			}
		}
	}
	for _, nd := range m.nodes {
		nd.gossip.init(nd)
	}
	return m
}

func (m *mesh) link(from, to int) *link {
	if from == to {
		return &m.sound
	}
	return m.links[[2]int{from, to}]
}

func (m *mesh) node(id ring.NodeID) *node {
	for _, nd := range m.nodes {
		if nd.id == id {
			return nd
		}
	}
	return nil
}

func (m *mesh) digest(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b) // a hash has no errors
	return h.Sum64()
}

// fail notes what makes the run fail.
func (m *mesh) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails = append(m.fails, fmt.Sprintf("at %v: ", m.w.now())+fmt.Sprintf(format, args...))
}

// write is how long the disk takes for a write of the journal: what is asked for meanwhile becomes durable with it.
func (nd *node) write(complete func()) {
	run := nd.run
	nd.m.w.say(fmt.Sprintf("disk %d", nd.i), func() {
		if run != nd.run || !nd.up {
			return
		}
		nd.pending = append(nd.pending, complete)
		if len(nd.pending) > 1 {
			return
		}
		d := nd.m.w.between(300*time.Microsecond, 3*time.Millisecond) + nd.slowDisk + nd.stands()
		nd.m.w.after(d, func() {
			if run != nd.run || !nd.up {
				return
			}
			nd.m.w.note("synced %d", nd.i)
			all := nd.pending
			nd.pending = nil
			for _, c := range all {
				c()
			}
		})
	})
}

// stands is how long the node will stand still.
func (nd *node) stands() time.Duration { return max(0, nd.still-nd.m.w.now()) }

// start begins a life of the node. It serves once its replicas are recovered.
func (nd *node) start() {
	m := nd.m
	nd.up = true
	nd.run++
	nd.pending = nil
	nd.failing = false
	nd.disk.FailSync(nil)
	m.w.note("start %d", nd.i)
	p := &process{m: m, nd: nd, run: nd.run, opened: map[string]int{}, inbound: map[*call]struct{}{}, streams: map[*stream]struct{}{}}
	p.life, p.cancel = context.WithCancel(context.Background())
	nd.gossip.restart()
	if err := p.build(); err != nil {
		m.fail("node %d does not start: %v", nd.i, err)
		return
	}
	p.running.Go(func() { p.serve("host", p.host.Run) })
	p.running.Go(func() { p.serve("broker", p.broker.Run) })
	go func() {
		select {
		case <-p.host.Ready():
			m.w.say(fmt.Sprintf("ready %d", nd.i), func() {
				if !p.dead.Load() {
					m.w.note("ready %d", nd.i)
					nd.proc.Store(p)
				}
			})
		case <-p.life.Done():
		}
	}()
	nd.current = p
}

func (p *process) serve(what string, run func(context.Context) error) {
	err := run(p.life)
	p.m.w.say(fmt.Sprintf("end %d %s", p.nd.i, what), func() {
		if p.dead.Load() {
			return
		}
		if !p.nd.failing && !p.nd.cramped {
			p.m.fail("the %s of node %d ended by itself: %v", what, p.nd.i, err)
		}
		p.m.w.note("ended %d", p.nd.i)
		p.nd.kill(false)
		p.m.restart(p.nd, p.m.w.between(50*time.Millisecond, 2*time.Second))
	})
}

// build makes the parts of a node as package node does.
func (p *process) build() error {
	nd, m := p.nd, p.m
	mount := nd.med.Mount()
	if ok, err := mount.Exists("/data"); err != nil || !ok {
		if err := cmp.Or(err, mount.Mkdir("/data"), mount.SyncDir("/")); err != nil {
			return err
		}
	}
	if ok, err := mount.Exists("/data/p"); err != nil || !ok {
		if err := cmp.Or(err, mount.Mkdir("/data/p"), mount.SyncDir("/data")); err != nil {
			return err
		}
	}
	journal, store := nd.disk.OpenJournal(), nd.disk.OpenStore()
	p.files = []io.Closer{journal, store}
	logger := m.logger.With("node", nd.i, "run", p.run)
	p.place = place.New(place.Config{Self: nd.id, Name: name(nd.i), View: nd.gossip.view.Load, Rules: rules, Now: time.Now})
	parts := partition.Config{Dir: "/data/p", Store: store, Logger: logger, Segments: log.SegmentConfig{FS: mount, FileBytes: 64 << 10}}
	cfg := replica.DefaultConfig()
	cfg.Journal = journal
	cfg.Self, cfg.Store, cfg.Sender, cfg.Caller, cfg.Placement = nd.id, store, p, p, p.place
	cfg.Factories = map[replica.GroupKind]replica.Factory{
		replica.KindCatalog: catalog.NewFactory(store), replica.KindPartition: partition.NewFactory(parts)}
	cfg.SetAside = func(b replica.Birth) error { return partition.SetAside(parts, b.Group) }
	cfg.WantReplicas = wantReplicas
	cfg.OwnerHint = func(g ring.GroupID) ring.NodeID { owner, _, _ := p.place.Owner(g); return owner }
	cfg.ReplaceAfter = func() time.Duration { return rules().ReplaceAfter }
	// No two kinds of timers are due at one instant.
	cfg.TickInterval = 50*time.Millisecond + 7919*time.Nanosecond
	cfg.CheckpointInterval = 5*time.Second + 1237*time.Nanosecond
	cfg.HomeAfter = 5 * time.Second
	cfg.Rand = rand.New(rand.NewPCG(m.w.rng.Uint64(), 1))
	cfg.Logger = logger
	var err error
	if p.host, err = replica.NewHost(cfg); err != nil {
		return err
	}
	p.place.Listen(p.host.Silence)
	p.host.OnOwnerChanged(p.owned)
	p.broker, err = flow.NewBroker(flow.Config{Self: nd.id, Mesh: func() ring.MeshID { return m.id }, CatalogShards: shards, Peers: p,
		Groups: p.host, DiskFull: nd.full.Load, Directory: p.place, PublishBudget: credit.NewBudget(8 << 20), OwnerBudget: credit.NewBudget(8 << 20),
		ReadBudget: credit.NewBudget(8 << 20), MaintainEvery: 5*time.Second + 3331*time.Nanosecond, Logger: logger,
		Rand: m.chance.Int64N})
	return err
}

func name(i int) string { return fmt.Sprintf("n%d", i) }

func rules() place.Rules {
	return place.Rules{ReplaceAfter: 6 * time.Second, Rebalance: true, Telemetry: time.Second}
}

func wantReplicas(kind replica.GroupKind, spec []byte) int {
	if kind == replica.KindPartition {
		if s, err := partition.ParseSpec(spec); err == nil && s.Replicas > 0 {
			return s.Replicas
		}
	}
	return 3
}

// owned records who acts as owner.
func (p *process) owned(s replica.Status) {
	if s.Kind != replica.KindPartition || s.Role != replica.RoleOwner || !s.Ready {
		return
	}
	if spec, err := partition.ParseSpec(s.Spec); err == nil {
		p.m.history.Owned(spec.Partition, s.Term, name(p.nd.i))
		for _, m := range s.Members {
			p.m.history.Member(spec.Partition, m.ID, m.Node.String())
		}
	}
}

// kill ends the process at once, as SIGKILL does, or a loss of power, which takes what was not synced. For the loop.
func (nd *node) kill(power bool) {
	p := nd.current
	if !nd.up || p == nil {
		return
	}
	nd.m.w.note("kill %d %v", nd.i, power)
	nd.up, nd.current, nd.pending, nd.ending = false, nil, nil, true
	nd.proc.Store(nil)
	p.dead.Store(true)
	nd.disk.Crash()
	if power {
		nd.med.LosePower()
	} else {
		nd.med.Kill()
	}
	p.cancel()
	p.leaveOthers()
	go func() {
		p.running.Wait()
		p.serving.Wait()
		for _, f := range p.files {
			_ = f.Close() // its disk is gone
		}
		nd.m.w.say(fmt.Sprintf("gone %d", nd.i), func() {
			nd.m.w.note("gone %d", nd.i)
			nd.ending = false
		})
	}()
}

// leaveOthers has those who wait for the process notice in time that it is gone.
func (p *process) leaveOthers() {
	calls := make([]*call, 0, len(p.inbound))
	for c := range p.inbound {
		calls = append(calls, c)
	}
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.key, b.key) })
	for _, c := range calls {
		p.m.w.after(p.m.w.between(hop, giveUp), func() { c.end(answer{err: errLost}) })
	}
	for _, s := range p.sortedStreams() {
		p.m.w.after(p.m.w.between(hop, giveUp), func() { s.sever(errLost) })
	}
}

func (p *process) sortedStreams() []*stream {
	streams := make([]*stream, 0, len(p.streams))
	for s := range p.streams {
		streams = append(streams, s)
	}
	slices.SortFunc(streams, func(a, b *stream) int { return cmp.Compare(a.key, b.key) })
	return streams
}

// streamsOf are those that begin or end at a node, in an order that does not depend on chance.
func (m *mesh) streamsOf(i int) []*stream {
	if p := m.nodes[i].current; p != nil {
		return p.sortedStreams()
	}
	return nil
}
