package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/credit"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/gossip"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/api"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/node/place"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/quicnet"
	"github.com/skeinmesh/skein/transport/wire"
)

// catalogShards is the number of catalog shards of every mesh.
const catalogShards = 8

// weightUnit is a weight of 1 in gossip, which counts in whole numbers.
const weightUnit = 100

// Node is one node of a mesh. New opens its data directory and its sockets, Run serves until its context ends.
type Node struct {
	cfg      atomic.Pointer[config.Config] // replaced by Reload
	log      *slog.Logger
	data     *dataDir
	meshID   atomic.Pointer[ring.MeshID]
	registry *prometheus.Registry
	network  transport.Network

	dir     *place.Directory
	gossip  *gossip.Gossip
	peers   *transport.Peers
	journal *log.FileJournal
	store   *log.PebbleStore
	host    *replica.Host
	broker  *flow.Broker
	ops     *operator
	server  *api.Server
	ln      net.Listener

	founder  *founder
	said     said
	starts   *peerStarts
	verdicts chan verdict // why this node must not go on; the first one counts
	kept     []formerID   // whose data is in quarantine
	rates    rates
	full     atomic.Bool // the free-space reserve is reached
	leaving  atomic.Bool
	stopTime time.Duration // the constant of that name, but for tests
	flagsMu  sync.Mutex
	closers  []func() error // of what New opened, last first
}

// New opens everything and binds every address, so that a wrong configuration is told before anything runs. Errors name the
// configuration key and say what to do. Call Run, or Close.
func New(cfg config.Config, logger *slog.Logger) (*Node, error) {
	return newNode(cfg, logger, quicnet.New(cfg.QUIC.Addr))
}

// newNode is New on a given network: tests cut links in one.
func newNode(cfg config.Config, logger *slog.Logger, network transport.Network) (*Node, error) {
	n, err := openNode(cfg, logger, network)
	if errors.Is(err, ErrGaveUp) { // damage was found, and is set aside now
		logger.Error("what this node has on disk is damaged", "node", cfg.Name, "err", err)
		return openNode(cfg, logger, network)
	}
	return n, err
}

func openNode(cfg config.Config, logger *slog.Logger, network transport.Network) (*Node, error) {
	n := &Node{log: logger.With("node", cfg.Name), registry: prometheus.NewRegistry(), network: network, verdicts: make(chan verdict, 1),
		stopTime: stopTime}
	n.cfg.Store(&cfg)
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, step := range []func() error{n.openData, n.openHTTP, n.openTransport, n.openGossip, n.openDisk, n.openHost, n.openBroker, n.openOps, n.openServer} {
		if err := step(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// Close frees what New opened. Idempotent; Run does it too.
func (n *Node) Close() error {
	var errs []error
	for len(n.closers) > 0 {
		last := len(n.closers) - 1
		errs = append(errs, n.closers[last]())
		n.closers = n.closers[:last]
	}
	return errors.Join(errs...)
}

func (n *Node) onClose(fn func() error) { n.closers = append(n.closers, fn) }

// mesh is the mesh this node belongs to; zero while it has not joined.
func (n *Node) mesh() ring.MeshID {
	if m := n.meshID.Load(); m != nil {
		return *m
	}
	return ring.MeshID{}
}

func (n *Node) openData() (err error) {
	cfg := n.cfg.Load()
	if err := cfg.CheckRole(); err != nil {
		return err
	}
	if n.data, err = openDataDir(cfg.DataDir, cfg.ClusterID); err != nil {
		return err
	}
	n.onClose(n.data.close)
	if n.starts, err = openStarts(cfg.DataDir, n.log); err != nil {
		return err
	}
	if err := n.registerQuarantine(); err != nil {
		return err
	}
	if m := n.data.id.MeshID; !m.IsZero() {
		n.meshID.Store(&m)
		return nil
	}
	// A start that was cut short leaves an identity without a mesh: the directory is not empty, yet the node needs a role.
	if !cfg.Found && len(cfg.Seeds()) == 0 && n.data.record() == nil {
		return fmt.Errorf("%w: the node of %s belongs to no mesh yet; start it with --found (first node of a new mesh), --join HOST:PORT or --initial-members",
			config.ErrNoRole, cfg.DataDir)
	}
	return nil
}

// openHTTP binds the front door first: it is the address that people know, and most often taken.
func (n *Node) openHTTP() (err error) {
	if n.ln, err = api.Listen(n.apiConfig(), false); err != nil {
		return err
	}
	n.onClose(func() error {
		if err := n.ln.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return nil
}

func (n *Node) openTransport() error {
	own := n.cfg.Load()
	cred, err := transport.CredentialsFromSecret(n.data.id.NodeID, own.Secret, own.SecretPrevious)
	if err != nil {
		return err
	}
	cfg := transport.DefaultConfig()
	cfg.Self = transport.Identity{NodeID: n.data.id.NodeID, Name: own.Name, MeshID: n.mesh(), ClusterID: own.ClusterID,
		Boot: n.data.id.Boot, Nonce: n.data.id.Nonce, MinVersion: uint16(n.data.id.Format)}
	cfg.Known, cfg.OnStart, cfg.OnRefused = n.starts.transport(), n.starts.saw, n.refused
	cfg.Credentials = cred
	cfg.Network = n.network
	cfg.SendQueueBytes = sendQueue
	cfg.Logger, cfg.Registerer = n.log, n.registry
	if n.peers, err = transport.New(cfg); err != nil {
		return err
	}
	n.onClose(n.peers.Close)
	return nil
}

func (n *Node) openGossip() error {
	own := n.cfg.Load()
	host := own.AdvertiseHost()
	quic, err := n.peers.Listen()
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("quic.addr: %s is taken by another process; stop it or choose another port: %w", own.QUIC.Addr, syscall.EADDRINUSE)
		}
		return fmt.Errorf("quic.addr: %w", err)
	}
	cfg := gossip.DefaultConfig()
	cfg.Self = view.Identity{ID: n.data.id.NodeID, Name: own.Name, Zone: own.Zone, Version: Version, Cluster: own.ClusterID,
		Mesh: n.mesh(), HTTPAddr: withHost(n.ln.Addr().String(), host), QUICAddr: withHost(quic, host), Weight: uint32(max(own.Weight*weightUnit, 1)),
		Flags: n.data.marks().flags(false), Protocol: uint16(wire.Newest), Floor: uint16(n.data.id.Format), Former: n.data.former()}
	cfg.BindAddr, cfg.AdvertiseAddr, cfg.Seeds = own.Gossip.Addr, host, own.Seeds()
	cfg.Remembered = n.starts.addresses()
	cfg.Secret = own.Secret
	if len(own.SecretPrevious) > 0 {
		cfg.PreviousSecrets = [][]byte{own.SecretPrevious}
	}
	cfg.OnMesh = n.joinedMesh
	cfg.Logger, cfg.Registerer = n.log, n.registry
	if n.gossip, err = gossip.New(cfg); err != nil {
		return err
	}
	n.onClose(n.gossip.Close)
	n.dir = place.New(place.Config{Self: n.data.id.NodeID, Name: own.Name, View: n.gossip.View, Rules: n.placementRules,
		Now: time.Now, GivenUp: n.starts.isGivenUp})
	n.dir.Register(n.registry)
	return nil
}

func (n *Node) placementRules() place.Rules {
	cfg := n.cfg.Load()
	return place.Rules{ReplaceAfter: cfg.ReplaceAfter, Rebalance: cfg.DynamicRebalanceEnabled, Telemetry: cfg.TelemetryIntervalMS.Duration()}
}

// withHost replaces the host of a bound address by the advertised one. A loopback address stays: nobody else can reach it.
func withHost(addr, host string) string {
	h, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(h); ip != nil && ip.IsLoopback() {
		return addr
	}
	return net.JoinHostPort(host, port)
}

// joinedMesh is told once which mesh the seeds belong to.
func (n *Node) joinedMesh(m ring.MeshID) error {
	if err := n.data.setMesh(m, false); err != nil {
		return err
	}
	n.meshID.Store(&m)
	n.peers.SetMesh(m)
	return nil
}

func (n *Node) openDisk() (err error) {
	if n.journal, err = log.OpenJournal(log.JournalConfig{Dir: filepath.Join(n.data.path, "journal"), Log: n.log, Metrics: n.registry}); err != nil {
		return n.damaged(reasonDamagedJournal, err)
	}
	n.onClose(n.journal.Close)
	if n.store, err = log.OpenStore(log.StoreConfig{Dir: filepath.Join(n.data.path, "state"), Log: n.log}); err != nil {
		return n.damaged(reasonDamagedState, err)
	}
	n.onClose(n.store.Close)
	return makeDir(n.partitionsDir())
}

func (n *Node) partitionsDir() string { return filepath.Join(n.data.path, "partitions") }

func (n *Node) openHost() (err error) {
	cfg := replica.DefaultConfig()
	cfg.Self, cfg.Journal, cfg.Store = n.data.id.NodeID, n.journal, n.store
	parts := partition.Config{Dir: n.partitionsDir(), Store: n.store,
		Logger: n.log, Metrics: partition.NewMetrics(n.registry), Limit: partition.NewNodeLimit(identityLimit),
		Segments: log.SegmentConfig{Tails: log.NewTailBudget(tailBytes)}}
	cfg.Factories = map[replica.GroupKind]replica.Factory{
		replica.KindCatalog: catalog.NewFactory(n.store), replica.KindPartition: partition.NewFactory(parts)}
	cfg.SetAside = func(b replica.Birth) error { return partition.SetAside(parts, b.Group) } // the catalog has no files
	cfg.ReplaceAfter = func() time.Duration { return n.placementRules().ReplaceAfter }
	cfg.Sender, cfg.Caller, cfg.Placement = raftSender{n.peers}, n.peers, n.dir
	cfg.WantReplicas, cfg.Describe = wantReplicas, n.describe
	cfg.OwnerHint = func(g ring.GroupID) ring.NodeID { owner, _, _ := n.dir.Owner(g); return owner }
	cfg.PreferHome = n.cfg.Load().DynamicRebalanceEnabled
	cfg.OutboxBytes = outboxBytes
	// Two ticks a heartbeat: elections are spread twice as finely as owners speak, and quiet owners speak half as often.
	raft := n.cfg.Load().Raft
	cfg.TickInterval, cfg.HeartbeatTicks = raft.HeartbeatMS.Duration()/2, 2
	cfg.ElectionTicks = max(int(2*raft.ElectionMS/raft.HeartbeatMS), 4)
	cfg.Logger, cfg.Registerer = n.log, n.registry
	if n.host, err = replica.NewHost(cfg); err != nil {
		return err
	}
	n.dir.Listen(n.host.Silence)
	return nil
}

// raftSender sends the replica groups' messages through the transport.
type raftSender struct{ peers *transport.Peers }

func (s raftSender) Send(to ring.NodeID, class wire.Class, body []byte) bool {
	return s.peers.Send(to, class, wire.MethodRaft, body)
}

// wantReplicas is how many voters a group should have where there are enough nodes.
func wantReplicas(kind replica.GroupKind, spec []byte) int {
	if kind == replica.KindPartition {
		if s, err := partition.ParseSpec(spec); err == nil && s.Replicas > 0 {
			return s.Replicas
		}
	}
	return 3
}

// describe says which partition a group is: in logs, as the command line and the API call it.
func (n *Node) describe(b replica.Birth) []any {
	if b.Kind == replica.KindPartition {
		if s, err := partition.ParseSpec(b.Spec); err == nil {
			return []any{"stream", s.Name, "partition", s.Partition}
		}
		return nil
	}
	if i, ok := shardOf(n.mesh(), b.Group); ok {
		return []any{"stream", catalogStream, "partition", i}
	}
	return nil
}

func (n *Node) openBroker() (err error) {
	// Bodies, batches on the way out, batches on the way in and read-ahead each have a share of their own: none can wait for
	// bytes that it holds itself.
	budget := n.cfg.Load().MemoryBudget
	n.broker, err = flow.NewBroker(flow.Config{
		Self: n.data.id.NodeID, Mesh: n.mesh, CatalogShards: catalogShards,
		Cluster: n.cfg.Load().ClusterID, RequireVersion: n.RequireVersion,
		Peers: n.peers, Groups: n.host, Directory: n.dir,
		PublishBudget: credit.NewBudget(budget / 4), OwnerBudget: credit.NewBudget(budget / 4), ReadBudget: credit.NewBudget(budget / 4),
		DiskFull: n.diskFull, Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		return err
	}
	n.peers.Handle(wire.MethodRaft, n.host.HandleRaft)
	n.peers.HandleRequest(wire.MethodBirth, n.host.HandleBirth)
	n.peers.HandleRequest(wire.MethodUnfit, n.host.HandleUnfit)
	n.peers.HandleRequest(wire.MethodFounding, n.handleFounding)
	n.founder = newFounder(n)
	n.peers.HandleRequest(wire.MethodMembers, n.founder.handleMembers)
	n.peers.HandleRequest(wire.MethodRemoval, n.host.HandleRemoval)
	n.peers.HandleRequest(wire.MethodReserve, n.host.HandleReserve)
	n.peers.HandleStream(wire.MethodSnapshot, n.host.HandleSnapshot)
	n.peers.HandleRequest(wire.MethodCatalog, n.broker.HandleCatalog)
	n.peers.HandleRequest(wire.MethodPartition, n.broker.HandlePartition)
	n.peers.HandleRequest(wire.MethodImport, n.broker.HandleImport)
	n.peers.HandleStream(wire.MethodPublish, n.broker.HandlePublish)
	n.peers.HandleStream(wire.MethodSubscribe, n.broker.HandleSubscribe)
	return nil
}

// handleFounding creates a founding replica by the word of its catalog shard's owner. Also on a node that takes nothing new: the group counts
// on its founders, perhaps on this one alone, and moves the copy away as it does all others.
func (n *Node) handleFounding(ctx context.Context, _ ring.NodeID, body []byte) ([]byte, error) {
	var b replica.Birth
	if err := wire.Unmarshal(body, &b); err != nil {
		return nil, err
	}
	return nil, n.host.Create(ctx, b)
}

func (n *Node) apiConfig() api.Config {
	own, cfg := n.cfg.Load(), api.DefaultConfig()
	cfg.Addr, cfg.AllowedHosts, cfg.Version = own.HTTP.Addr, own.HTTP.AllowedHosts, Version
	cfg.Identity = api.Identity{Node: own.Name, Cluster: own.ClusterID}
	if n.data != nil {
		cfg.Identity.ID = n.data.id.NodeID
	}
	cfg.AutoCreate, cfg.Insecure = own.AutoCreateStreams, own.Insecure
	cfg.MaxConnections = maxConnections()
	cfg.MaxBodyBytes, cfg.PublishDeadline = own.MaxBodyBytes, own.PublishDeadlineMS.Duration()
	return cfg
}

// maxConnections leaves half of the files that this process may open to the disk and to the other nodes; 0 is the API's default.
func maxConnections() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Cur/2 >= uint64(api.DefaultConfig().MaxConnections) {
		return 0
	}
	return max(int(files.Cur/2), 1)
}

func (n *Node) openServer() (err error) {
	n.server, err = api.New(n.apiConfig(), api.Deps{Publisher: n.broker, Subscriber: n.broker, Streams: streamPages{n.broker, n}, Archives: n.broker,
		Mesh: meshPages{n}, Ops: n.ops, Owner: n.broker.OwnerName,
		Budget: credit.NewBudget(max(n.cfg.Load().MemoryBudget/4, 1<<20)), Log: n.log, Registerer: n.registry, Gatherer: n.registry})
	return err
}

// Version is this build's version; the linker sets it (make build).
var Version = "dev"

// HTTPAddr is the address that the front door is bound to.
func (n *Node) HTTPAddr() string { return n.ln.Addr().String() }

// diskFull reports whether the free-space reserve is reached.
func (n *Node) diskFull() bool { return n.full.Load() }

// leaveTime bounds how long a stopping node tells the others goodbye.
const leaveTime = 3 * time.Second
