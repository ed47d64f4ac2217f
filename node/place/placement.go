package place

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// Rules are what configuration says about placement.
type Rules struct {
	// ReplaceAfter is how long a node must have been dead, as this one saw it, and its replicas not heard of, before its copies are made
	// elsewhere.
	ReplaceAfter time.Duration
	// Rebalance lets copies move for the sake of even shares.
	Rebalance bool
	// Telemetry is how often a node measures its load.
	Telemetry time.Duration
}

// placed is one copy of a new group that this node proposed.
type placed struct {
	at    time.Time
	node  ring.NodeID
	owner bool
}

// absence is since when a node that groups name is not there, and when it was last asked for.
type absence struct {
	since, asked time.Time
}

const (
	// tallyAge is how long a tally may be used when gossip brings nothing new.
	tallyAge = time.Second
	// staleLoad is how old a load may be on up to 32 members; gossip sends it every 5 s there, and more rarely in proportion above.
	staleLoad = 30 * time.Second
	// settle is how long a new group's copies take to come into being, and placedAge how long they are counted as proposed at most:
	// a load measured later has them.
	settle    = 2 * time.Second
	placedAge = 15 * time.Second
	// maxPlaced bounds what is remembered of proposals; the oldest are forgotten first.
	maxPlaced = 1 << 14
	// declineAge is how long a member's own word is believed that it takes nothing new. Gossip tells of that long before, and of its end.
	declineAge = 15 * time.Second
	// absenceAge is how long an absence is remembered that nobody asks for.
	absenceAge = time.Hour
)

// Desired proposes where a group should live, keeping what it has. Nodes that drain, and those that are lost, are not among them. One that
// gossip does not know (its death may be older than this node's memory) is lost once it was missed for long enough. Those to avoid are there
// only where no others can be.
func (d *Directory) Desired(g ring.GroupID, want int, current, avoid []ring.NodeID) []ring.NodeID {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.cfg.Now()
	tally := d.tallyLocked(now)
	var awaited []ring.NodeID
	for _, n := range current {
		if lost, known := d.lostLocked(n, now); !lost && !known {
			awaited = append(awaited, n)
		}
	}
	awaited = awaited[:min(len(awaited), max(want, 0))]
	return append(tally.Replicas(g, want-len(awaited), current, avoid...), awaited...)
}

// Place proposes n nodes for each of several new groups, the proposed owner first. It counts what it proposed a moment ago, for the nodes'
// own counts come by gossip.
func (d *Directory) Place(groups []ring.GroupID, n int) [][]ring.NodeID {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.cfg.Now()
	tally := d.tallyLocked(now)
	held := d.heldLocked(now)
	for _, p := range d.recentLocked(now) {
		if h, ok := held[p.node]; ok {
			h.Replicas++
			if p.owner {
				h.Owned++
			}
			held[p.node] = h
		}
	}
	out := ring.NewTally(tally.Ring(), held).Place(groups, n)
	for _, nodes := range out {
		for i, node := range nodes {
			d.recent = append(d.recent, placed{at: now, node: node, owner: i == 0})
		}
	}
	d.recent = slices.Delete(d.recent, 0, max(0, len(d.recent)-maxPlaced))
	return out
}

// recentLocked forgets the proposals that the nodes' loads count by now, and returns the others.
func (d *Directory) recentLocked(now time.Time) []placed {
	d.recent = slices.DeleteFunc(d.recent, func(p placed) bool {
		m, ok := d.of.Member(p.node)
		return !ok || m.LoadAt.After(p.at.Add(settle)) || now.Sub(p.at) > placedAge
	})
	return d.recent
}

// Takes reports whether something new may go to the node.
func (d *Directory) Takes(n ring.NodeID) bool {
	m, ok := d.cfg.View().Member(n)
	return ok && m.Present() && !m.Cordoned() && !m.Leaving() && !d.declines(n)
}

// Declined notes that a member said itself that it takes nothing new; see replica.Placement.
func (d *Directory) Declined(n ring.NodeID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.declined[n] = d.cfg.Now()
	d.of = nil // the tally had it
}

func (d *Directory) declines(n ring.NodeID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.declined[n]
	return ok && d.cfg.Now().Sub(at) < declineAge
}

// Leaving reports whether the node hands away what it owns.
func (d *Directory) Leaving(n ring.NodeID) bool {
	m, ok := d.cfg.View().Member(n)
	return ok && (m.Draining() || m.Leaving())
}

// Relief proposes one swap that brings nodes nearer to their shares. A group that waits for a node that is not there makes none.
func (d *Directory) Relief(g ring.GroupID, current []ring.NodeID) (from, to ring.NodeID, ok bool) {
	if !d.cfg.Rules().Rebalance {
		return ring.NodeID{}, ring.NodeID{}, false
	}
	return d.Counted().Relief(g, current)
}

// Share is how many replicas this node should hold.
func (d *Directory) Share() (low, high int) { return d.Counted().Share(d.cfg.Self) }

// Owned is how many groups a node said that it owns, what it should own, and what at most.
func (d *Directory) Owned(n ring.NodeID) (count, mean, high int) { return d.Counted().Owned(n) }

// lostLocked reports whether a node is lost, and whether the ring knows it. Of one that is not there it notes since when: by the view
// while that remembers, and for longer than that here.
func (d *Directory) lostLocked(n ring.NodeID, now time.Time) (lost, known bool) {
	_, known = d.tally.Ring().Member(n)
	m, seen := d.of.Member(n)
	if d.cfg.GivenUp(n) {
		return true, known
	}
	if known && m.Present() {
		delete(d.gone, n)
		return false, true
	}
	a, noted := d.gone[n]
	switch {
	case known && seen && !m.Present():
		a.since = m.Since
	case !noted:
		a.since = now
	}
	a.asked = now
	d.gone[n] = a
	return d.missedLocked(n, now.Sub(a.since)) >= d.cfg.Rules().ReplaceAfter, known
}

// Listen has the directory ask how long the replicas of this node have not heard of another. silence is called with a lock held: it must
// not block, nor call the directory. Without it gossip's word counts alone.
func (d *Directory) Listen(silence func(ring.NodeID) time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silence = silence
}

// missedLocked is how long nothing was heard of a node that gossip has missed for so long: where gossip alone is cut, copies need not be
// made anew of what answers.
func (d *Directory) missedLocked(n ring.NodeID, gone time.Duration) time.Duration {
	if d.silence == nil {
		return gone
	}
	return min(gone, d.silence(n))
}

// Counted is the ring as of now, and what each member said that it holds; it never changes.
func (d *Directory) Counted() *ring.Tally {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tallyLocked(d.cfg.Now())
}

// tallyLocked is the tally of the newest view.
func (d *Directory) tallyLocked(now time.Time) *ring.Tally {
	v := d.cfg.View()
	if d.of == v && now.Sub(d.at) < tallyAge && !now.Before(d.at) {
		return d.tally
	}
	for n, a := range d.gone {
		if now.Sub(a.asked) > absenceAge {
			delete(d.gone, n)
		}
	}
	maps.DeleteFunc(d.declined, func(_ ring.NodeID, at time.Time) bool { return now.Sub(at) >= declineAge })
	var members []ring.Member
	replaceAfter := d.cfg.Rules().ReplaceAfter
	for _, m := range v.Members() {
		if m.State == view.StateUnknown || m.Mesh.IsZero() && m.ID != d.cfg.Self {
			continue // a node that is still joining holds nothing
		}
		there := m.Present() && !d.cfg.GivenUp(m.ID)
		_, declined := d.declined[m.ID]
		members = append(members, ring.Member{ID: m.ID, Zone: m.Zone, Weight: int(m.Weight),
			// One that stops or is dead keeps what it has, and gets nothing new.
			Cordoned: m.Cordoned() || declined || !there || m.Leaving(),
			Leaving:  m.Draining() || d.cfg.GivenUp(m.ID) || !there && d.missedLocked(m.ID, now.Sub(m.Since)) >= replaceAfter})
	}
	d.of, d.at = v, now
	var r *ring.Ring
	if d.tally != nil {
		r = d.tally.Ring()
	}
	r = remake(r, members)
	d.tally = ring.NewTally(r, d.heldLocked(now))
	return d.tally
}

// heldLocked is what the members that are there said they hold. Nothing is known of those whose load was not heard lately: they are
// starved, or cut off, or new.
func (d *Directory) heldLocked(now time.Time) map[ring.NodeID]ring.Held {
	members := d.of.Members()
	old := max(staleLoad, 3*d.cfg.Rules().Telemetry) * time.Duration(max(32, d.of.CountPresent())) / 32
	held := make(map[ring.NodeID]ring.Held, len(members))
	for _, m := range members {
		if age, ok := m.Staleness(now); ok && m.Present() && (age <= old || m.ID == d.cfg.Self) {
			held[m.ID] = ring.Held{Replicas: int(m.Load.Partitions), Owned: int(m.Load.Owned)}
		}
	}
	return held
}

// Register makes what placement believes readable. Call it once for a registerer.
func (d *Directory) Register(reg prometheus.Registerer) {
	gauge := func(name, help string, labels prometheus.Labels, value func(*ring.Tally) int) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(d.Counted())) }))
	}
	gauge("skein_placement_share", "Replicas that this node should hold at most, as it computes its share.", nil,
		func(t *ring.Tally) int { _, high := t.Share(d.cfg.Self); return high })
	const members = "Members that placement treats in a special way, by state."
	gauge("skein_placement_members", members, prometheus.Labels{"state": "leaving"},
		func(t *ring.Tally) int { return count(t, func(m ring.Member) bool { return m.Leaving }) })
	gauge("skein_placement_members", members, prometheus.Labels{"state": "cordoned"},
		func(t *ring.Tally) int { return count(t, func(m ring.Member) bool { return m.Cordoned && !m.Leaving }) })
	gauge("skein_placement_members", members, prometheus.Labels{"state": "unheard"},
		func(t *ring.Tally) int {
			return count(t, func(m ring.Member) bool { return !m.Cordoned && !m.Leaving && !t.Known(m.ID) })
		})
}

func count(t *ring.Tally, is func(ring.Member) bool) (n int) {
	for _, m := range t.Ring().Members() {
		if is(m) {
			n++
		}
	}
	return n
}

// remake keeps a ring whose members did not change: most views differ in loads alone.
func remake(old *ring.Ring, members []ring.Member) *ring.Ring {
	if old != nil && sameMembers(old.Members(), members) {
		return old
	}
	return ring.New(members, 0)
}

// sameMembers compares with members in the view's order, which is by id as in a ring.
func sameMembers(a, b []ring.Member) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		want := b[i]
		want.Weight = max(want.Weight, 1)
		if a[i] != want {
			return false
		}
	}
	return true
}
