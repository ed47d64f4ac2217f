package gossip

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// libConfig is memberlist's configuration for a LAN, tuned as Config says.
func (g *Gossip) libConfig(d *delegate) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.cfg.Self.ID.String()
	c.Transport = g.net
	c.Label = g.cfg.Self.Cluster
	c.ProtocolVersion = memberlist.ProtocolVersionMax
	c.TCPTimeout = 5 * time.Second
	c.ProbeInterval = g.cfg.ProbeInterval
	c.ProbeTimeout = g.cfg.ProbeTimeout
	c.SuspicionMult = g.cfg.SuspicionMult
	// From five members on a suspicion waits for others to confirm it, at most so many times as long.
	c.SuspicionMaxTimeoutMult = 3
	c.GossipInterval = g.cfg.GossipInterval
	c.PushPullInterval = g.cfg.PushPullInterval
	// A node that restarts elsewhere takes its id along as soon as its old address is known to be dead.
	c.DeadNodeReclaimTime = time.Millisecond
	c.EnableCompression = false // ids and varints do not shrink, and LZW costs CPU per packet
	c.Keyring = g.keyring
	c.Delegate, c.Events, c.Merge, c.Alive, c.Conflict, c.Ping = d, d, d, d, d, d
	c.Logger = log.New(&libLog{g: g, d: d}, "", 0)
	if g.tune != nil {
		g.tune(c)
	}
	return c
}

// run starts the children, loops, and ends the children.
func (g *Gossip) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &delegate{g: g, suspected: make(map[ring.NodeID]bool)}
	g.net.run()
	lib, err := memberlist.Create(g.libConfig(d))
	if err != nil {
		_ = g.net.Shutdown()
		return fmt.Errorf("gossip: start: %w", err)
	}
	g.libMu.Lock()
	g.lib = lib
	g.libMu.Unlock()

	var children sync.WaitGroup
	children.Go(func() { newJoiner(g, lib).run(ctx) })
	err = newLoop(g, lib).run(ctx)

	cancel()
	g.libMu.Lock() // waits for a Leave in progress
	g.lib = nil
	_ = lib.Shutdown() // closes all connections, so that a join in progress ends
	g.libMu.Unlock()
	children.Wait()
	g.notices.flush(g.log)
	return err
}

// publishPause bounds how often readers are woken.
const publishPause = 50 * time.Millisecond

// sayAgain is how often an announcement is repeated, and sayAgainAfter after how many rounds of spreading news each. Few packets carry an
// announcement, and the full exchange that makes up for lost ones comes late: a node that stops or drains has to be known by then.
const (
	sayAgain      = 3
	sayAgainAfter = 5
)

// expirePause is how often old hints and gone members are looked for.
const expirePause = 30 * time.Second

// loop owns the view. All fields belong to the goroutine in run.
type loop struct {
	g    *Gossip
	lib  *memberlist.Memberlist
	view *view.View

	dirty   bool // the view has what readers have not seen
	publish *time.Timer
	armed   bool

	again      int // repetitions of the last announcement that are due
	againTimer *time.Timer

	sentLoad   report // as last broadcast
	sentLoadAt time.Time
	loadTimer  *time.Timer
	sentHints  map[ring.GroupID]uint64 // own hints as broadcast: term
	mesh       ring.MeshID             // as last seen announced
}

func newLoop(g *Gossip, lib *memberlist.Memberlist) *loop {
	return &loop{g: g, lib: lib, view: g.View(), sentHints: make(map[ring.GroupID]uint64), mesh: g.Self().Mesh}
}

func (l *loop) run(ctx context.Context) error {
	l.publish = time.NewTimer(publishPause)
	l.armed = true
	l.loadTimer = time.NewTimer(l.g.cfg.LoadMinGap)
	l.againTimer = time.NewTimer(time.Hour)
	expire := time.NewTicker(expirePause)
	defer l.againTimer.Stop()
	defer l.publish.Stop()
	defer l.loadTimer.Stop()
	defer expire.Stop()
	l.takeLocal(time.Now())
	for {
		select {
		case <-l.g.inbox.wake:
			l.takeInbox(time.Now())
		case <-l.g.localCh:
			l.takeLocal(time.Now())
		case <-l.g.announceCh:
			l.announce(sayAgain)
		case <-l.againTimer.C:
			if l.again > 0 {
				l.announce(l.again - 1)
			}
		case <-l.loadTimer.C:
			l.sendLoad(time.Now())
			l.loadTimer.Reset(l.loadPause())
		case n := <-l.g.notices.ch:
			l.g.notices.write(l.g.log, n)
		case <-l.g.meshCh:
			if err := l.takeMesh(); err != nil {
				return err
			}
		case now := <-expire.C:
			l.expire(now)
		case <-l.publish.C:
			l.armed = false
		case <-l.g.stop:
			return nil
		case <-ctx.Done():
			return nil
		}
		l.publishIfDue()
	}
}

// announce says what this node is, and so many times more.
func (l *loop) announce(again int) {
	// The timeout bounds only the wait for the news to be out, and this loop does not need to know: it is queued.
	_ = l.g.say(l.lib, time.Millisecond)
	l.again = again
	if again > 0 {
		l.againTimer.Reset(sayAgainAfter * l.g.cfg.GossipInterval)
	}
}

// publishIfDue shows readers the view, at once after a quiet time and else after publishPause.
func (l *loop) publishIfDue() {
	if l.armed {
		return
	}
	// What did not change anything for readers still goes into the snapshot: full exchanges are made from it.
	old := l.g.current.Load()
	if old.view == l.view {
		return
	}
	if !l.dirty {
		l.g.current.Store(&published{view: l.view, next: old.next})
	} else {
		l.g.current.Store(&published{view: l.view, next: make(chan struct{})})
		close(old.next)
	}
	l.dirty = false
	l.publish.Reset(publishPause)
	l.armed = true
}

func (l *loop) merge(u view.Update) {
	next, changed := l.view.Merge(u)
	l.view = next
	l.dirty = l.dirty || changed
}

func (l *loop) expire(now time.Time) {
	next, changed := l.view.Expire(now.Add(-l.g.cfg.HintTTL), now.Add(-l.g.cfg.GoneTTL))
	if changed {
		l.view, l.dirty = next, true
	}
	// Vouch for what this node still owns.
	l.g.mu.Lock()
	own := l.g.hints
	l.g.mu.Unlock()
	l.merge(view.Update{Hints: heard(own, now)})
}

func heard(hints []view.Hint, now time.Time) []view.HeardHint {
	out := make([]view.HeardHint, len(hints))
	for i, h := range hints {
		out[i] = view.HeardHint{Hint: h, At: now}
	}
	return out
}

// takeMesh persists the mesh that a peer named, then announces it.
func (l *loop) takeMesh() error {
	g := l.g
	g.mu.Lock()
	id := g.pending
	g.mu.Unlock()
	if id.IsZero() {
		return nil
	}
	if g.cfg.OnMesh != nil {
		if err := g.cfg.OnMesh(id); err != nil {
			return fmt.Errorf("gossip: joining mesh %s: %w", id, err)
		}
	}
	if err := g.AdoptMesh(id); err != nil {
		return err
	}
	g.log.Info("joined a mesh", "mesh", id.String(), "cluster_id", g.cfg.Self.Cluster)
	return nil
}

// takeLocal takes over what this node's own setters brought.
func (l *loop) takeLocal(now time.Time) {
	g := l.g
	g.mu.Lock()
	self, load, loadAt, hints := g.self, g.load, g.loadAt, g.hints
	g.mu.Unlock()
	m := view.Member{Identity: self}
	if load.seq > 0 {
		m.Load, m.LoadSeq, m.LoadAt = load.load, load.seq, loadAt
	}
	l.merge(view.Update{Members: []view.Member{m}, Hints: heard(hints, now)})
	l.sendHints(hints)
	if self.Mesh != l.mesh {
		l.mesh = self.Mesh
		l.dropOtherMeshes(now)
	}
	l.sendLoad(now)
}

// dropOtherMeshes marks members of other meshes as left: a node without a mesh may have heard of several.
func (l *loop) dropOtherMeshes(now time.Time) {
	for _, m := range l.view.Members() {
		if m.Present() && !m.Mesh.IsZero() && m.Mesh != l.mesh {
			l.g.inbox.putMember(view.Member{Identity: view.Identity{ID: m.ID}, State: view.StateLeft, Since: now})
		}
	}
}

// scaled stretches an interval in proportion to the mesh above 32 members, so that the bytes per node stay level.
func (l *loop) scaled(d time.Duration) time.Duration {
	return d * time.Duration(max(32, l.view.CountPresent())) / 32
}

// loadPause is the jittered time until the load is looked at again.
func (l *loop) loadPause() time.Duration {
	d := l.scaled(l.g.cfg.LoadMinGap)
	return d - d/10 + rand.N(d/5+1)
}

// sendLoad broadcasts the newest load when it differs from what others know, or when that is old.
func (l *loop) sendLoad(now time.Time) {
	g := l.g
	g.mu.Lock()
	r, mesh := g.reportLocked(now), g.self.Mesh
	g.mu.Unlock()
	if r.seq == 0 || r.seq == l.sentLoad.seq {
		return
	}
	pause := g.cfg.LoadInterval
	if r.load.Differs(l.sentLoad.load, g.cfg.LoadChange) {
		pause = g.cfg.LoadMinGap
	}
	if now.Sub(l.sentLoadAt) < l.scaled(pause) {
		return
	}
	l.sentLoad, l.sentLoadAt = r, now
	g.broadcastLoad(mesh, r)
}

// sendHints broadcasts own hints that are new or have another term.
func (l *loop) sendHints(own []view.Hint) {
	var fresh []agedHint
	current := make(map[ring.GroupID]uint64, len(own))
	for _, h := range own {
		current[h.Group] = h.Term
		if term, ok := l.sentHints[h.Group]; !ok || term != h.Term {
			fresh = append(fresh, agedHint{group: h.Group, term: h.Term})
		}
	}
	l.sentHints = current
	l.g.broadcastHints(ownerHints{owner: l.g.cfg.Self.ID, hints: fresh})
}
