package ops

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// Report is what the owner of a group says of its copies.
type Report struct {
	Group   ring.GroupID `msgpack:"g"`
	Term    uint64       `msgpack:"t"`
	Commit  uint64       `msgpack:"c"`
	Want    int          `msgpack:"w"` // copies that it should have where there are nodes enough
	Members []Copy       `msgpack:"m"`
	// MoveFrom, MoveTo, MovePhase and MoveReason tell of a move under way.
	MoveFrom   ring.NodeID `msgpack:"mf"`
	MoveTo     ring.NodeID `msgpack:"mt"`
	MovePhase  string      `msgpack:"mp,omitempty"`
	MoveReason string      `msgpack:"mr,omitempty"`
	// Waits is what the owner waits for before the copies are as wanted.
	Waits string `msgpack:"ws,omitempty"`
}

// Copy is one copy of a group, as its owner knows it.
type Copy struct {
	ID      ring.ReplicaID `msgpack:"i"`
	Node    ring.NodeID    `msgpack:"n"`
	Learner bool           `msgpack:"l,omitempty"`
	Match   uint64         `msgpack:"m"`           // its acknowledged index
	Silent  bool           `msgpack:"s,omitempty"` // did not answer within the last election timeout
	Closed  int64          `msgpack:"x,omitempty"` // since when, in Unix seconds, its node says that it is closed for good; 0: it does not
}

// CaughtUp is how far behind the commit index a copy may be and still counts as one: what is in flight under load. It is what owners
// promote learners by (replica.CaughtUp), which this package does not import.
const CaughtUp = 512

// Behind tells how far a learner is from being a copy; 0: it is one.
func (r Report) Behind(c Copy) uint64 {
	if !c.Learner || c.Match+CaughtUp >= r.Commit {
		return 0
	}
	return r.Commit - c.Match
}

// Left reports whether a copy has left its node: its id is given to no other, so that this holds also when a new one has come there.
func (r Report) Left(id ring.ReplicaID) bool {
	return len(r.Members) > 0 && !slices.ContainsFunc(r.Members, func(c Copy) bool { return c.ID == id })
}

// On gives the copy on a node.
func (r Report) On(n ring.NodeID) (Copy, bool) {
	i := slices.IndexFunc(r.Members, func(c Copy) bool { return c.Node == n })
	if i < 0 {
		return Copy{}, false
	}
	return r.Members[i], true
}

// MoveSentence says how the move under way stands, with the names of its ends.
func (r Report) MoveSentence(from, to string) string {
	s := fmt.Sprintf("the copy on %s moves to %s: %s", from, to, r.MovePhase)
	for _, c := range r.Members {
		if c.Node == r.MoveTo && r.Behind(c) > 0 {
			s += fmt.Sprintf(", %d of %d", c.Match, r.Commit)
		}
	}
	if r.MoveReason != "" {
		s += "; " + r.MoveReason
	}
	return s
}

// World is what the observer knows of the nodes.
type World struct {
	Now time.Time
	// Nodes are all members that it knows, by id.
	Nodes map[ring.NodeID]Node
	// ReplaceAfter is how long the copies of a dead node wait for it.
	ReplaceAfter time.Duration
}

// Node is one member, as the observer sees it.
type Node struct {
	Name     string
	Zone     string
	Here     bool      // gossip holds it for alive
	Since    time.Time // since when the observer believes so
	Cordoned bool      // takes nothing new
	Draining bool      // hands away what it has
}

// name is the node's name, or its id.
func (w World) name(n ring.NodeID) string {
	if m, ok := w.Nodes[n]; ok && m.Name != "" {
		return m.Name
	}
	return n.String()
}

func (n Node) takes() bool { return n.Here && !n.Cordoned && !n.Draining }

// live reports whether a copy is there and caught up.
func (w World) live(r Report, c Copy) bool {
	return w.Nodes[c.Node].Here && c.Closed == 0 && r.Behind(c) == 0
}

// Live counts the copies that are there and caught up.
func (w World) Live(r Report) int {
	live := 0
	for _, c := range r.Members {
		if w.live(r, c) {
			live++
		}
	}
	return live
}

// Lack says why a group has fewer copies than it wants; "" when it lacks none.
func (w World) Lack(r Report) string {
	live := w.Live(r)
	if live >= r.Want {
		return ""
	}
	var why []string
	coming := live
	for _, c := range r.Members {
		m, known := w.Nodes[c.Node]
		switch behind := r.Behind(c); {
		case !known:
			why = append(why, fmt.Sprintf("node %s is not known any more; its copy is replaced", c.Node))
		case !m.Here:
			why = append(why, w.gone(m))
		case c.Closed != 0:
			why = append(why, w.closed(m, time.Unix(c.Closed, 0)))
			coming++ // on its own node where no other takes one
		case behind > 0:
			why = append(why, fmt.Sprintf("the learner on %s is catching up: %d of %d", m.Name, c.Match, r.Commit))
			coming++
		}
	}
	if coming < r.Want {
		if s := w.nowhere(r); s != "" {
			why = append(why, s)
		} else if len(r.Members) < r.Want {
			why = append(why, "a further copy is about to be placed")
		}
	}
	if len(why) == 0 {
		why = append(why, "its owner is about to mend it")
	}
	return strings.Join(why, "; ")
}

// ReplacedAt is when the copies of a node that is not there are made elsewhere, and whether that is now.
func (w World) ReplacedAt(m Node) (at time.Time, due bool) {
	at = m.Since.Add(w.ReplaceAfter)
	return at, !at.After(w.Now)
}

// gone says what is waited for about a node that is not there.
func (w World) gone(m Node) string {
	at, due := w.ReplacedAt(m)
	if due {
		return fmt.Sprintf("%s is gone since %s; its copy is being replaced", m.Name, clock(m.Since))
	}
	return fmt.Sprintf("%s is gone since %s; its copy is replaced at %s unless it comes back", m.Name, clock(m.Since), clock(at))
}

// closed says what is waited for about a copy that is closed for good on a node that is there.
func (w World) closed(m Node, since time.Time) string {
	s := fmt.Sprintf("the copy on %s is closed for good since %s; it is ", m.Name, clock(since))
	if at := since.Add(w.ReplaceAfter); at.After(w.Now) {
		return s + fmt.Sprintf("replaced at %s unless a restart of the node brings it back", clock(at))
	}
	return s + "due to be replaced, as soon as a node takes another one"
}

// clock is a moment in UTC to the second, for people.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// nowhere says why no node can take a further copy of a group; "" when one can.
func (w World) nowhere(r Report) string {
	var shut []string
	there := 0
	for id, m := range w.Nodes {
		if !m.Here {
			continue
		}
		there++
		holds := slices.ContainsFunc(r.Members, func(c Copy) bool { return c.Node == id })
		switch {
		case holds:
		case m.Draining:
			shut = append(shut, m.Name+" is draining")
		case m.Cordoned:
			shut = append(shut, m.Name+" is cordoned")
		default:
			return ""
		}
	}
	if len(shut) > 0 {
		slices.Sort(shut)
		return "no node takes a further copy: " + strings.Join(shut, ", ")
	}
	return fmt.Sprintf("too few nodes: %d are there, %d copies are wanted", there, r.Want)
}

// Mendable reports whether a group lacks copies for another reason than that there are too few nodes.
func (w World) Mendable(r Report) bool {
	if w.Live(r) >= r.Want {
		return false
	}
	for _, c := range r.Members {
		if !w.live(r, c) {
			return true
		}
	}
	return w.nowhere(r) == ""
}

// OneZone says that all live copies of a group lie in one zone; "" when not, or where nodes have no zones.
func (w World) OneZone(r Report) string {
	zone, copies := w.zoneOf(r)
	if copies < 2 || zone == "" {
		return ""
	}
	if other := w.otherZone(zone); other != "" {
		return fmt.Sprintf("all copies are in zone %s, and a node of zone %s could hold one", zone, other)
	}
	return fmt.Sprintf("all copies are in zone %s: no node in another zone takes one", zone)
}

// Spreadable reports whether all live copies of a group lie in one zone although a node elsewhere could hold one.
func (w World) Spreadable(r Report) bool {
	zone, copies := w.zoneOf(r)
	return copies > 1 && zone != "" && w.otherZone(zone) != ""
}

// zoneOf is the one zone of all live copies, and how many they are; "" when they are in several.
func (w World) zoneOf(r Report) (zone string, copies int) {
	for _, c := range r.Members {
		m := w.Nodes[c.Node]
		if !m.Here {
			continue
		}
		if copies > 0 && m.Zone != zone {
			return "", 0
		}
		zone = m.Zone
		copies++
	}
	return zone, copies
}

// otherZone names a zone other than that one with a node that takes copies.
func (w World) otherZone(zone string) string {
	best := ""
	for _, m := range w.Nodes {
		if m.takes() && m.Zone != zone && m.Zone != "" && (best == "" || m.Zone < best) {
			best = m.Zone
		}
	}
	return best
}
