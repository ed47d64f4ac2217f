package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/node/load"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// part is one running part of the node.
type part struct {
	name   string
	ground bool // the others speak through it to their end
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// runner starts parts and stops them in reverse order.
type runner struct {
	parts  []*part
	failed chan error // the first part that ended by itself
}

// start runs fn until stop. A part that ends before is a failure of the node.
func (r *runner) start(name string, fn func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{name: name, ctx: ctx, cancel: cancel, ended: make(chan struct{})}
	r.parts = append(r.parts, p)
	go func() {
		defer close(p.ended)
		err := fn(ctx)
		failed := ctx.Err() == nil
		if failed && err == nil {
			err = errors.New("ended without being told to")
		}
		if err != nil {
			p.err = fmt.Errorf("%s: %w", name, err)
		}
		if failed {
			select {
			case r.failed <- p.err:
			default: // the first failure is the one to tell
			}
		}
	}()
	return p
}

// halt tells a part to end before its turn, and does not wait for it.
func (r *runner) halt(name string) {
	for _, p := range r.parts {
		if p.name == name {
			p.cancel()
		}
	}
}

// stop ends all parts and waits for each. First the last one started, the front door: its requests need all others. Those are told at
// once, for one may wait for what another has to give up: a founding, or a birth, for the replicas to write to a journal that is full. In
// the end, one after the other, what they speak through. What was told already, the failure that made the node stop, is not told again.
func (r *runner) stop(told error) error {
	var errs []error
	for i, p := range slices.Backward(r.parts) {
		p.cancel()
		<-p.ended
		if p.err != nil && p.err != told && !errors.Is(p.err, context.Canceled) && wire.KindOf(p.err) != wire.KindClosed {
			errs = append(errs, p.err)
		}
		if i == len(r.parts)-1 {
			for _, other := range r.parts[:i] {
				if !other.ground {
					other.cancel()
				}
			}
		}
	}
	return errors.Join(errs...)
}

// left names the parts that were told to end and have not.
func (r *runner) left() (names []string) {
	for _, p := range r.parts {
		select {
		case <-p.ended:
		default:
			if p.ctx.Err() != nil {
				names = append(names, p.name)
			}
		}
	}
	return names
}

// Run serves until ctx ends, then hands partitions over (bounded) and stops everything. It returns nil after an orderly end,
// and the failure of a part that the node cannot go on without; ErrGaveUp when it is to be made anew. After an error that says that the
// node did not stop, some of it still runs, and the process must end. Call it once.
func (n *Node) Run(ctx context.Context) error {
	if err := n.chooseMesh(); err != nil {
		return errors.Join(err, n.Close())
	}
	r := &runner{failed: make(chan error, 1)}
	r.start("gossip", n.gossip.Run).ground = true
	r.start("transport", n.peers.Run).ground = true
	r.start("starts", n.starts.run)
	r.start("identity", n.watchIdentity)
	r.start("replicas", n.runReplicas)
	r.start("broker", n.broker.Run)
	r.start("hints", n.announceOwners)
	r.start("peers", n.followView)
	r.start("versions", n.followFloor)
	r.start("telemetry", n.measure)
	r.start("disk", n.watchDisk)
	r.start("founding", n.found)
	r.start("operations", n.ops.run)
	r.start("http", func(ctx context.Context) error { return n.server.Run(ctx, n.ln) })
	n.log.Info("node is up", "http", n.HTTPAddr(), "id", n.data.id.NodeID, "version", Version)

	var failure error
	select {
	case <-ctx.Done():
		n.leave()
	case failure = <-r.failed:
		n.log.Error("the node must stop", "err", failure)
		if errors.Is(failure, ErrGaveUp) || errors.Is(failure, errTwin) {
			r.halt("replicas") // it owns nothing from now on, whatever the others still have to end
		}
	}
	return n.end(r, failure)
}

// stopTime bounds the end of a node after it handed its partitions over: requests in flight have half of it. What takes longer waits for a
// disk that does not answer, and no process can call that off. Where it waits inside the kernel, the kernel keeps the process, with its lock
// and ports, until the disk answers.
const stopTime = 20 * time.Second

// end stops everything. What has not stopped in time is named and left: the process ends as by a kill, which loses nothing either.
func (n *Node) end(r *runner, failure error) error {
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(failure, r.stop(failure), n.Close()) }()
	t := time.NewTimer(n.stopTime)
	defer t.Stop()
	select {
	case err := <-ended:
		if err == nil {
			n.log.Info("stopped")
		}
		return err
	case <-t.C:
	}
	left := r.left()
	if len(left) == 0 {
		left = []string{"journal and store"}
	}
	err := fmt.Errorf("the node did not stop within %v: %s still waits, most likely for the disk that holds %s. The process ends without it; "+
		"nothing that was acknowledged is lost. See to the disk, then start the node again", n.stopTime, strings.Join(left, ", "), n.data.path)
	if failure != nil {
		err = fmt.Errorf("%v\n%w", failure, err) // not the failure itself: nothing may be started again in this process
	}
	return err
}

// leave hands the partitions owned here to other replicas, so that a planned stop costs no election timeout.
func (n *Node) leave() {
	n.log.Info("stopping: the partitions owned here are handed over")
	n.leaving.Store(true)
	n.announceFlags()
	n.server.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Load().HandoverTime)
	defer cancel()
	if left := n.host.Leave(ctx); left > 0 {
		n.log.Warn("not everything was handed over in time; elections decide", "groups", left)
	}
	if err := n.gossip.Leave(leaveTime); err != nil {
		n.log.Debug("the others were not told of this node's leaving; they will notice", "err", err)
	}
}

// announceOwners turns the groups owned here into gossip hints, whenever one changes.
func (n *Node) announceOwners(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	stop := n.host.OnOwnerChanged(func(replica.Status) {
		select {
		case wake <- struct{}{}:
		default: // one look sees all changes
		}
	})
	defer stop()
	for {
		var hints []view.Hint
		for _, g := range n.host.Groups() {
			if st := g.Status(); st.Role == replica.RoleOwner && st.Ready {
				hints = append(hints, view.Hint{Group: st.Group, Owner: n.data.id.NodeID, Term: st.Term})
			}
		}
		n.gossip.SetHints(hints)
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// twoNodes is what a mesh of two should know about itself.
const twoNodes = "two nodes: the loss of the node that holds a partition's only voter stops writes to it until that node is back; add a third node"

// ofTwo is true of a mesh of two nodes, but not of one of three that one left: there each partition keeps its three voters.
func ofTwo(v *view.View) bool { return v.Len() == 2 && v.CountPresent() == 2 }

// followView keeps the transport's peers in step with gossip, and warns of a mesh of two.
func (n *Node) followView(ctx context.Context) error {
	return warnOfTwo(ctx, n.log, func() (bool, <-chan struct{}) {
		changed := n.gossip.Changed()
		v := n.gossip.View()
		n.heedMembers()
		n.peers.SetPeers(n.dir.Addresses())
		return !n.mesh().IsZero() && ofTwo(v), changed
	})
}

// warnOfTwo says once that the mesh is one of two nodes, after it was so for a while. look is called again whenever the channel that it
// returned is closed.
func warnOfTwo(ctx context.Context, logger *slog.Logger, look func() (two bool, changed <-chan struct{})) error {
	const settle = 30 * time.Second // most meshes of two are on their way to three
	warn := time.NewTimer(settle)
	defer warn.Stop()
	warn.Stop()
	was := false
	for {
		two, changed := look()
		if !two {
			warn.Stop()
		} else if !was {
			warn.Reset(settle)
		}
		was = two
		select {
		case <-changed:
		case <-warn.C:
			logger.Warn(twoNodes)
		case <-ctx.Done():
			return nil
		}
	}
}

// measure samples load for gossip.
func (n *Node) measure(ctx context.Context) error {
	s := load.NewSampler("/")
	t := time.NewTicker(n.cfg.Load().TelemetryIntervalMS.Duration())
	defer t.Stop()
	for {
		now, cfg, groups := time.Now(), n.cfg.Load(), n.host.Groups()
		sample := s.Sample(now)
		l := view.Load{CPUPercent: float32(sample.CPUPercent), MemPercent: float32(sample.MemoryPercent),
			QueuedBytes: uint64(max(n.broker.QueuedBytes(), 0))}
		l.Fatigue = max(l.CPUPercent/float32(max(cfg.LoadThresholds.CPUMaxPercent, 1)), l.MemPercent/float32(max(cfg.LoadThresholds.MemoryMaxPercent, 1)))
		for _, g := range groups {
			l.Partitions++
			if g.Status().Role == replica.RoleOwner {
				l.Owned++
			}
		}
		l.BytesIn = uint64(n.rates.sample(now, groups))
		n.gossip.SetLoad(l)
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// reservePercent is the share of the disk that publishes leave free, for trims, membership changes and the operator.
const reservePercent = 5

// watchDisk notes when the free-space reserve is reached, and stops the node when the journal or the store failed: after a
// failed fsync nothing may be promised any more.
func (n *Node) watchDisk(ctx context.Context) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		free, total, err := log.DiskFree(n.data.path)
		full := err == nil && free < total/100*reservePercent
		if was := n.full.Swap(full); was != full {
			if full {
				n.log.Warn("the disk's free-space reserve is reached: publishes are refused until space is freed", "free_bytes", free, "total_bytes", total)
			} else {
				n.log.Info("the disk has space again: publishes are accepted", "free_bytes", free)
			}
		}
		select {
		case <-t.C:
		case <-n.journal.Failed():
			return errors.New("the journal failed; what was not acknowledged may be lost, what was is on disk: mend the disk, then start the node again")
		case <-n.store.Failed():
			return errors.New("the state store failed: mend the disk, then start the node again; the journal has what it lacks")
		case <-ctx.Done():
			return nil
		}
	}
}

// chooseMesh names the mesh that this node was told to found. It comes before gossip runs, so that the node cannot hear of another mesh
// meanwhile and join that too.
func (n *Node) chooseMesh() error {
	if !n.cfg.Load().Found || !n.mesh().IsZero() || n.data.record() != nil {
		return nil
	}
	m := ring.NewMeshID()
	if err := n.data.setMesh(m, true); err != nil {
		return err
	}
	n.meshID.Store(&m)
	n.peers.SetMesh(m)
	return n.gossip.AdoptMesh(m)
}

// found makes the catalog of a new mesh, or goes on where that was cut short; then it takes part in a founding by initial_members.
func (n *Node) found(ctx context.Context) error {
	select {
	case <-n.host.Ready():
	case <-ctx.Done():
		return nil
	}
	if n.data.founding() {
		m := n.mesh()
		n.log.Info("founding a new mesh", "mesh", m, "cluster", n.cfg.Load().ClusterID)
		for i := range catalogShards {
			b := replica.Birth{Group: ring.CatalogGroup(m, i), Kind: replica.KindCatalog, Self: 1,
				Members: []replica.Member{{ID: 1, Node: n.data.id.NodeID}}}
			if err := n.host.Create(ctx, b); err != nil {
				return fmt.Errorf("create catalog shard %d: %w", i, err)
			}
		}
		if err := n.data.setMesh(m, false); err != nil {
			return err
		}
	}
	return n.founder.run(ctx)
}

// Reload takes over the keys that a running node can change (config.Changed lists them); the others wait for a restart. Safe to
// call while Run runs. It tells which keys changed, and which of them need a restart.
func (n *Node) Reload(cfg config.Config) (taken, restart []string) {
	taken, restart = config.Changed(*n.cfg.Load(), cfg)
	cfg = config.Reloaded(*n.cfg.Load(), cfg)
	n.cfg.Store(&cfg)
	n.server.Reload(n.apiConfig())
	return taken, restart
}
