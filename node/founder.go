package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/gossip"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

const (
	// foundEvery is how often the other members are asked, or told, while a founding is under way.
	foundEvery = 500 * time.Millisecond
	// foundRemind is how often a founding that still waits says so again.
	foundRemind = 10 * time.Minute
	// findSelfEvery is how often a node looks for itself in the list while it is not there: names may not resolve yet.
	findSelfEvery = 2 * time.Second
	foundTimeout  = 2 * time.Second // one question
	foundAtOnce   = 8
)

// membersRequest is the body of MethodMembers: where the asker stands, or the record of what was founded.
type membersRequest struct {
	Standing *standing       `msgpack:"s,omitempty"`
	Record   *foundingRecord `msgpack:"r,omitempty"`
}

// founder takes this node's part in a founding by a list of members. Everything but kick and at belongs to run's goroutine.
//
// Other members are asked directly, not read off gossip: an announcement may be minutes old, and the record must rest on what they are
// now.
type founder struct {
	n    *Node
	list []string
	kick chan struct{} // a record has come

	mu   sync.Mutex
	at   int    // this node's position in the list; -1: not known
	wait string // what it waits for, for people

	lookedAt  time.Time
	confirmed map[ring.NodeID]bool // who has the record
	born      bool
	told      string // what was logged last, and when
	toldAt    time.Time
}

func newFounder(n *Node) *founder {
	return &founder{n: n, list: n.cfg.Load().Founders(), kick: make(chan struct{}, 1), at: -1, confirmed: map[ring.NodeID]bool{}}
}

func (f *founder) position() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

// run asks, founds and tells until the mesh is there and everyone whom the record names has it; then it waits for the context's end.
func (f *founder) run(ctx context.Context) error {
	t := time.NewTicker(foundEvery)
	defer t.Stop()
	for {
		rec := f.n.data.record()
		var busy bool
		switch {
		case rec == nil && f.n.mesh().IsZero() && len(f.list) > 0:
			busy = true
			if err := f.ask(ctx); err != nil {
				return err
			}
		case rec != nil && !rec.Done:
			busy = true
			if err := f.complete(ctx, rec); err != nil {
				return err
			}
		}
		tick := t.C
		if !busy {
			tick = nil
		}
		select {
		case <-tick:
		case <-f.kick:
		case <-ctx.Done():
			return nil
		}
	}
}

// ask asks every node that gossip knows where it stands, and founds the mesh when that is this node's to do.
func (f *founder) ask(ctx context.Context) error {
	f.findSelf(ctx)
	own := f.standing()
	answers := f.askAll(ctx, own)
	g := gather(f.list, append(answers, own))
	if !f.n.mesh().IsZero() || f.n.data.record() != nil {
		return nil // it came meanwhile
	}
	for _, a := range g.differ {
		f.n.warnOnce("initial_members "+a.node.String(), "initial_members differs between two nodes: none founds a mesh until all have the same list",
			"ours", f.list, "theirs", a.Members, "peer_name", a.Name, "peer", a.node)
	}
	for _, a := range g.twice {
		f.n.warnOnce("position "+a.node.String(), "two nodes take themselves for the same one of initial_members: give each the address that the list names "+
			"(advertise, gossip.addr)", "member", f.list[a.At], "peer_name", a.Name, "peer", a.node)
	}
	switch {
	case g.founded: // gossip takes this node in, or says why not
	case g.nodes == nil:
		f.tell("waiting for the other founding members: a mesh is founded when all of initial_members are there", "missing", g.missing)
	case own.At == 0:
		return f.found(g.nodes)
	default:
		f.tell("all founding members are there: the first of them founds the mesh", "first", f.list[0])
	}
	return nil
}

// standing is where this node stands.
func (f *founder) standing() standing {
	s := standing{Name: f.n.cfg.Load().Name, Members: f.list, At: f.position(), Mesh: f.n.mesh(), node: f.n.data.id.NodeID}
	if rec := f.n.data.record(); rec != nil {
		s.Mesh = rec.Mesh
	}
	return s
}

// askAll asks all present nodes; those that do not answer are left out.
func (f *founder) askAll(ctx context.Context, own standing) []standing {
	body, err := wire.Marshal(membersRequest{Standing: &own})
	if err != nil {
		return nil
	}
	var mu sync.Mutex
	var out []standing
	var group errgroup.Group
	group.SetLimit(foundAtOnce)
	for _, m := range f.n.gossip.View().Members() {
		if m.ID == own.node || !m.Present() {
			continue
		}
		if !m.Mesh.IsZero() {
			out = append(out, standing{Name: m.Name, Mesh: m.Mesh, node: m.ID})
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, foundTimeout)
			defer cancel()
			answer, err := f.n.peers.Call(ctx, m.ID, wire.ClassControl, wire.MethodMembers, body)
			var s standing
			if err == nil {
				err = wire.Unmarshal(answer, &s)
			}
			if err != nil {
				f.n.log.Debug("a node did not say where it stands", "peer", m.ID, "err", err)
				return nil
			}
			s.node = m.ID
			mu.Lock()
			defer mu.Unlock()
			out = append(out, s)
			return nil
		})
	}
	_ = group.Wait() // those that did not answer are missing
	return out
}

// found writes the record: from here on there is a mesh, whatever happens to whom.
func (f *founder) found(nodes []ring.NodeID) error {
	cfg := f.n.cfg.Load()
	key, err := meshKey(cfg.Secret)
	if err != nil {
		return err
	}
	v := f.n.gossip.View()
	members := make([]ring.Member, len(nodes))
	for i, id := range nodes {
		m, ok := v.Member(id)
		if !ok {
			return nil // gone since it answered
		}
		members[i] = ring.Member{ID: id, Zone: m.Zone, Weight: int(m.Weight)}
	}
	rec := newFoundingRecord(key, cfg.ClusterID, f.list, members)
	if err := f.n.data.decide(rec); err != nil {
		return err
	}
	f.n.log.Info("founding a new mesh", "mesh", rec.Mesh, "cluster", cfg.ClusterID, "members", f.list)
	wakeUp(f.kick)
	return nil
}

// complete brings the replicas of this node into being and hands the record to all whom it names. The first member takes up the mesh
// only when a majority has the record: until then nobody else can have heard of it, and nothing can have been acknowledged.
func (f *founder) complete(ctx context.Context, rec *foundingRecord) error {
	body, err := wire.Marshal(membersRequest{Record: rec})
	if err != nil {
		return err
	}
	var missing []string
	have := 0
	for i, id := range rec.Nodes {
		if id == f.n.data.id.NodeID || f.confirmed[id] || f.hand(ctx, id, body) {
			f.confirmed[id] = true
			have++
		} else {
			missing = append(missing, rec.Members[i])
		}
	}
	if f.n.mesh().IsZero() {
		if have <= len(rec.Nodes)/2 {
			f.tell("the mesh is founded, and waits for a majority of its founding members to hear of it; if their disks were emptied since, "+
				"empty this node's data directory, too", "mesh", rec.Mesh, "missing", missing)
			return nil
		}
		if err := f.n.takeMesh(rec.Mesh); err != nil {
			return err
		}
	}
	if !f.born {
		if err := f.bear(ctx, rec); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		f.tell("the mesh is founded; some of its founding members were not told yet", "mesh", rec.Mesh, "missing", missing)
		return nil
	}
	f.n.log.Info("the founding is complete", "mesh", rec.Mesh)
	return f.n.data.recordDone()
}

// bear creates this node's founding replicas. Those that were removed here since stay removed.
func (f *founder) bear(ctx context.Context, rec *foundingRecord) error {
	select {
	case <-f.n.host.Ready():
	case <-ctx.Done():
		return nil
	}
	for _, b := range rec.births(f.n.data.id.NodeID) {
		switch err := f.n.host.Create(ctx, b); wire.KindOf(err) {
		case wire.KindFenced, wire.KindConflict:
			f.n.log.Debug("a founding replica is here in another form", "group", b.Group, "err", err)
		default:
			if err != nil {
				return fmt.Errorf("create founding replica of catalog group %s: %w", b.Group, err)
			}
		}
	}
	f.born = true
	return nil
}

// hand gives the record to a node; true when it has it, or had it.
func (f *founder) hand(ctx context.Context, id ring.NodeID, body []byte) bool {
	if !f.n.peers.Up(id) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, foundTimeout)
	defer cancel()
	_, err := f.n.peers.Call(ctx, id, wire.ClassControl, wire.MethodMembers, body)
	if wire.KindOf(err) == wire.KindConflict {
		f.n.warnOnce("record "+id.String(), "a founding member does not take part: it belongs to another mesh; to let it join this one, empty its data directory",
			"peer", id, "reason", err)
	}
	return err == nil
}

// handleMembers answers MethodMembers.
func (f *founder) handleMembers(_ context.Context, from ring.NodeID, body []byte) ([]byte, error) {
	var req membersRequest
	if err := wire.Unmarshal(body, &req); err != nil {
		return nil, err
	}
	switch {
	case req.Record != nil:
		return nil, f.take(req.Record)
	case req.Standing != nil:
		return wire.Marshal(f.standing())
	}
	return nil, wire.Errorf(wire.KindInvalid, "", "a question about founding from %s asks nothing", from)
}

// take keeps a record that names this node.
func (f *founder) take(rec *foundingRecord) error {
	cfg := f.n.cfg.Load()
	var keys [][]byte
	for _, secret := range [][]byte{cfg.Secret, cfg.SecretPrevious} {
		key, err := meshKey(secret)
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	if err := rec.check(keys, cfg.ClusterID); err != nil {
		return wire.Errorf(wire.KindInvalid, "", "%s", err)
	}
	if !slices.Contains(rec.Nodes, f.n.data.id.NodeID) {
		return wire.Errorf(wire.KindInvalid, "", "the founding record does not name node %s", f.n.data.id.NodeID)
	}
	rec.Done = false
	if err := f.n.data.take(rec); err != nil {
		return &wire.Error{Kind: wire.KindConflict, Op: "take founding record", Err: err, Detail: err.Error()}
	}
	if f.n.mesh().IsZero() {
		if err := f.n.takeMesh(rec.Mesh); err != nil {
			return &wire.Error{Kind: wire.KindConflict, Op: "take founding record", Err: err, Detail: err.Error()}
		}
	}
	wakeUp(f.kick)
	return nil
}

// tell logs what the founding waits for: when that changes, and now and then.
func (f *founder) tell(msg string, args ...any) {
	text := fmt.Sprint(append([]any{msg}, args...)...)
	if text == f.told && time.Since(f.toldAt) < foundRemind {
		return
	}
	f.told, f.toldAt = text, time.Now()
	f.n.log.Info(msg, args...)
	for i := 0; i+1 < len(args); i += 2 {
		msg += fmt.Sprintf("; %v: %v", args[i], args[i+1])
	}
	f.mu.Lock()
	f.wait = msg
	f.mu.Unlock()
}

// notJoined is why this node belongs to no mesh.
func (n *Node) notJoined() string {
	n.founder.mu.Lock()
	defer n.founder.mu.Unlock()
	if n.founder.wait != "" {
		return "this node belongs to no mesh yet: " + n.founder.wait
	}
	return notJoined
}

// findSelf looks for this node in the list.
func (f *founder) findSelf(ctx context.Context) {
	if f.position() >= 0 || time.Since(f.lookedAt) < findSelfEvery {
		return
	}
	f.lookedAt = time.Now()
	var found []int
	for i, m := range f.list {
		if f.n.isListedAs(ctx, m) {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 1:
		f.mu.Lock()
		f.at = found[0]
		f.mu.Unlock()
	case 0:
		f.tell("this node is none of initial_members, by name, advertise or address: it joins the mesh that they found", "members", f.list,
			"gossip_addr", f.n.gossip.Addr())
	default:
		var names []string
		for _, i := range found {
			names = append(names, f.list[i])
		}
		f.tell("several of initial_members are this node: name each node once", "members", names, "gossip_addr", f.n.gossip.Addr())
	}
}

// isListedAs reports whether a gossip address of the list is this node's: by the name or the host that this node goes by, or because it
// resolves to the address that this node advertises, or listens on.
func (n *Node) isListedAs(ctx context.Context, member string) bool {
	own, err := netip.ParseAddrPort(n.gossip.Addr())
	if err != nil {
		return false
	}
	host, port, err := net.SplitHostPort(member)
	if err != nil || port != strconv.Itoa(int(own.Port())) {
		return false
	}
	cfg := n.cfg.Load()
	if strings.EqualFold(host, cfg.Name) || strings.EqualFold(host, cfg.Advertise) {
		return true
	}
	addrs, err := gossip.Resolve(ctx, member)
	if err != nil {
		return false
	}
	if slices.Contains(addrs, own) {
		return true
	}
	bound, _, err := net.SplitHostPort(cfg.Gossip.Addr)
	if ip, perr := netip.ParseAddr(bound); err != nil || bound != "" && (perr != nil || !ip.IsUnspecified()) {
		return false
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(local, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && slices.ContainsFunc(addrs, func(x netip.AddrPort) bool { return x.Addr() == p.Addr().Unmap() })
	})
}

// takeMesh takes up the mesh that this node founded with others: durably, then towards peers and in gossip.
func (n *Node) takeMesh(m ring.MeshID) error {
	if err := n.joinedMesh(m); err != nil {
		return err
	}
	if err := n.gossip.AdoptMesh(m); err != nil && !errors.Is(err, gossip.ErrClosed) {
		return err
	}
	return nil
}

// wakeUp signals a channel of capacity 1.
func wakeUp(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
