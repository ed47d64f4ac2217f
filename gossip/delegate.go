package gossip

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// Why memberlist is told to leave a node out. The texts must not occur in other errors: see refused.
var (
	errRefused      = errors.New("not admitted to this mesh")
	errOtherCluster = errors.New("belongs to another cluster")
)

// delegate is what memberlist calls, partly under its lock: every method copies what it needs, enqueues and returns.
type delegate struct {
	g *Gossip

	mu sync.Mutex
	// suspected has the present members, true for those that failed a probe of this node.
	suspected map[ring.NodeID]bool
}

var (
	_ memberlist.Delegate         = (*delegate)(nil)
	_ memberlist.EventDelegate    = (*delegate)(nil)
	_ memberlist.MergeDelegate    = (*delegate)(nil)
	_ memberlist.AliveDelegate    = (*delegate)(nil)
	_ memberlist.ConflictDelegate = (*delegate)(nil)
	_ memberlist.PingDelegate     = (*delegate)(nil)
)

// NodeMeta is this node's announcement. Config.Validate keeps it below limit.
func (d *delegate) NodeMeta(limit int) []byte {
	b := encodeMeta(d.g.Self())
	if len(b) > limit {
		return nil
	}
	return b
}

// NotifyMsg takes a broadcast of a peer.
func (d *delegate) NotifyMsg(b []byte) {
	m, err := decodeMessage(b)
	if err != nil || m.kind == kindState {
		d.g.metrics.invalid.WithLabelValues("message").Inc()
		return
	}
	if d.g.sameMesh(m.mesh) {
		d.g.inbox.putMessage(m)
	}
}

// GetBroadcasts hands memberlist what is queued.
func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.g.queue.GetBroadcasts(overhead, limit)
}

// LocalState is everything this node knows, for a full exchange.
func (d *delegate) LocalState(bool) []byte { return d.g.fullState(time.Now()) }

// MergeRemoteState takes the other side of a full exchange.
func (d *delegate) MergeRemoteState(b []byte, _ bool) {
	if len(b) == 0 {
		return
	}
	m, err := decodeMessage(b)
	if err != nil || m.kind != kindState {
		d.g.metrics.invalid.WithLabelValues("state").Inc()
		return
	}
	if d.g.sameMesh(m.mesh) {
		d.g.inbox.putMessage(m)
	}
}

// NotifyMerge looks at all nodes that a peer knows before any is taken over.
func (d *delegate) NotifyMerge(peers []*memberlist.Node) error {
	for _, p := range peers {
		if err := d.NotifyAlive(p); err != nil {
			return err
		}
	}
	return nil
}

// NotifyAlive refuses nodes of other clusters and meshes. A node without a mesh takes the first that it hears of.
func (d *delegate) NotifyAlive(peer *memberlist.Node) error {
	id, err := identityOf(peer)
	if err != nil {
		d.g.metrics.invalid.WithLabelValues("announcement").Inc()
		return err
	}
	if id.ID == d.g.cfg.Self.ID {
		return nil // another node with this id is NotifyConflict's concern
	}
	return d.g.admit(id)
}

// NotifyJoin hears of a member that is new, or back.
func (d *delegate) NotifyJoin(n *memberlist.Node) {
	id, ok := d.other(n)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.suspected[id.ID] = false
	d.g.inbox.putMember(view.Member{Identity: id, State: view.StateAlive, Since: time.Now()})
}

// NotifyUpdate hears of a member that announces something else.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.NotifyJoin(n) }

// NotifyLeave hears of a member that is dead or left; which of both, its last announcement says.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	id, ok := d.other(n)
	if !ok {
		return
	}
	state := view.StateDead
	if id.Flags&view.Leaving != 0 {
		state = view.StateLeft
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.suspected, id.ID)
	d.g.inbox.putMember(view.Member{Identity: id, State: state, Since: time.Now()})
}

// NotifyConflict hears of a node that announces the id of another.
func (d *delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.g.notices.conflict(existing.Name, existing.Address(), other.Address())
}

// AckPayload adds nothing to acknowledgements of probes.
func (d *delegate) AckPayload() []byte { return nil }

// NotifyPingComplete hears that a member answered a probe.
func (d *delegate) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	id, err := ring.ParseNodeID(n.Name)
	if err != nil {
		return
	}
	d.setSuspect(id, false)
}

// setSuspect notes that a present member failed a probe, or answered one again.
func (d *delegate) setSuspect(id ring.NodeID, suspect bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was, present := d.suspected[id]; !present || was == suspect {
		return
	}
	d.suspected[id] = suspect
	state := view.StateAlive
	if suspect {
		state = view.StateSuspect
		d.g.metrics.suspicions.Inc()
	}
	d.g.inbox.putMember(view.Member{Identity: view.Identity{ID: id}, State: state, Since: time.Now()})
}

// other is the identity of a node that is not this one.
func (d *delegate) other(n *memberlist.Node) (view.Identity, bool) {
	id, err := identityOf(n)
	if err != nil {
		d.g.metrics.invalid.WithLabelValues("announcement").Inc()
		return id, false
	}
	return id, id.ID != d.g.cfg.Self.ID
}

// identityOf puts together what memberlist carries and what the node announced.
func identityOf(n *memberlist.Node) (view.Identity, error) {
	id, err := decodeMeta(n.Meta)
	if err != nil {
		return view.Identity{}, err
	}
	if id.ID, err = ring.ParseNodeID(n.Name); err != nil {
		return view.Identity{}, fmt.Errorf("node id: %w", err)
	}
	id.GossipAddr = net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
	return id, nil
}

// admit checks cluster, version and mesh of a peer, and takes over its mesh where this node has none.
func (g *Gossip) admit(peer view.Identity) error {
	host := hostOf(peer.GossipAddr)
	if peer.Cluster != g.cfg.Self.Cluster {
		g.notices.refuseCluster(host, g.cfg.Self.Cluster, peer.Cluster)
		return fmt.Errorf("%w: cluster %q, not %q", errRefused, peer.Cluster, g.cfg.Self.Cluster)
	}
	self := g.Self()
	if newest, floor := max(peer.Protocol, 1), self.Floor; newest < floor {
		g.notices.refuseVersion(peer.GossipAddr, peer.Name, floor, newest)
		return fmt.Errorf("%w: version %d, below %d", errRefused, newest, floor)
	}
	if peer.Mesh.IsZero() {
		return nil
	}
	g.mu.Lock()
	own := g.self.Mesh
	if own.IsZero() {
		own = g.pending
	}
	if own.IsZero() {
		g.pending, own = peer.Mesh, peer.Mesh
		wake(g.meshCh)
	}
	g.mu.Unlock()
	if own != peer.Mesh {
		g.notices.refuseMesh(peer.GossipAddr, peer.Name, own.String(), peer.Mesh.String())
		return fmt.Errorf("%w: mesh %s, not %s", errRefused, peer.Mesh, own)
	}
	return nil
}

// sameMesh reports whether a message of mesh id may be heard: one side may not know its mesh yet.
func (g *Gossip) sameMesh(id ring.MeshID) bool {
	if id.IsZero() {
		return true
	}
	g.mu.Lock()
	own := g.self.Mesh
	if own.IsZero() {
		own = g.pending
	}
	g.mu.Unlock()
	if own.IsZero() || own == id {
		return true
	}
	g.metrics.refused.WithLabelValues("message").Inc()
	return false
}

// reportLocked is the newest load as it travels. The view may not have it yet.
func (g *Gossip) reportLocked(now time.Time) report {
	r := g.load
	r.incarnation, r.age = g.self.Incarnation, now.Sub(g.loadAt)
	return r
}

// fullState encodes this node's hints and everything that it heard from others.
func (g *Gossip) fullState(now time.Time) []byte {
	g.mu.Lock()
	mesh, own, load := g.self.Mesh, g.hints, g.reportLocked(now)
	g.mu.Unlock()
	v := g.View()
	var reports []report
	for _, m := range v.Members() {
		switch {
		case m.ID == load.node:
			reports = append(reports, load)
		case m.Present():
			reports = append(reports, report{node: m.ID, incarnation: m.Incarnation, seq: m.LoadSeq, age: now.Sub(m.LoadAt),
				load: m.Load})
		}
	}
	hints := []ownerHints{{owner: load.node}}
	byOwner := map[ring.NodeID]int{load.node: 0}
	mine := make(map[ring.GroupID]bool, len(own))
	for _, h := range own {
		mine[h.Group] = true
		hints[0].hints = append(hints[0].hints, agedHint{group: h.Group, term: h.Term})
	}
	total := len(own)
	for _, h := range v.Hints() {
		if total >= maxStateHints {
			break
		}
		if h.Owner == load.node && mine[h.Group] {
			continue
		}
		i, ok := byOwner[h.Owner]
		if !ok {
			i = len(hints)
			byOwner[h.Owner] = i
			hints = append(hints, ownerHints{owner: h.Owner})
		}
		hints[i].hints = append(hints[i].hints, agedHint{group: h.Group, term: h.Term, age: now.Sub(h.At)})
		total++
	}
	return encodeState(mesh, reports, hints)
}
