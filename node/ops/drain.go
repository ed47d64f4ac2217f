package ops

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/skeinmesh/skein/ring"
)

// Holding is one copy on a node that drains or may.
type Holding struct {
	Stream    string
	Partition ring.PartitionID
	Owner     ring.NodeID // zero: none is known
	Report    Report      // as its owner says, or as far as the node itself knows
	// Targets are the nodes that should have the group without this one, as the ring proposes; those that hold it already included.
	Targets []ring.NodeID
	// Closed: the copy does not run, for it is damaged or the disk is full.
	Closed bool
}

// role is what self is in the group.
func (h Holding) role(self ring.NodeID) string {
	if h.Owner == self {
		return "owner"
	}
	for _, c := range h.Report.Members {
		if c.Node == self && !c.Learner {
			return "voter"
		}
	}
	return "learner"
}

// missing are the targets that hold no copy yet.
func (h Holding) missing() []ring.NodeID {
	var out []ring.NodeID
	for _, t := range h.Targets {
		if !slices.ContainsFunc(h.Report.Members, func(c Copy) bool { return c.Node == t }) {
			out = append(out, t)
		}
	}
	return out
}

// Remains judges one copy that a draining node still holds: what is waited for, or why there is no way.
func (w World) Remains(self ring.NodeID, h Holding) Remaining {
	out := Remaining{Stream: h.Stream, Partition: h.Partition, Role: h.role(self)}
	for _, c := range h.Report.Members {
		m := w.Nodes[c.Node]
		if behind := h.Report.Behind(c); c.Node != self && behind > 0 && m.Here {
			out.Reason = fmt.Sprintf("the learner on %s is catching up: %d of %d", m.Name, c.Match, h.Report.Commit)
			return out
		}
	}
	missing := h.missing()
	switch {
	case h.Owner.IsZero():
		out.Stuck = true
		out.Reason = "it has no owner: a majority of its copies does not answer"
		if gone := w.absent(h.Report); gone != "" {
			out.Reason += " (" + gone + ")"
		}
	case h.Closed:
		out.Reason = fmt.Sprintf("the copy is closed, the node's log says why; its owner %s has still to let it go", w.name(h.Owner))
	case !h.Report.MoveTo.IsZero() && h.Report.MoveReason != "":
		out.Reason = fmt.Sprintf("it moves to %s: %s", w.name(h.Report.MoveTo), h.Report.MoveReason)
	case len(missing) > 0:
		out.Reason = fmt.Sprintf("its owner %s has still to place a copy on %s", w.name(h.Owner), w.names(missing))
	case len(h.Targets) == 0:
		out.Stuck = true
		out.Reason = "nowhere to go: " + w.nowhere(h.Report)
	case out.Role == "owner":
		out.Reason = "its ownership has still to be handed over"
	default:
		out.Reason = fmt.Sprintf("its owner %s has still to let this copy go", w.name(h.Owner))
	}
	return out
}

// absent names the members that are not there.
func (w World) absent(r Report) string {
	var gone []string
	for _, c := range r.Members {
		if !w.Nodes[c.Node].Here {
			gone = append(gone, w.name(c.Node)+" is gone")
		}
	}
	return strings.Join(gone, ", ")
}

func (w World) names(ids []ring.NodeID) string {
	var out []string
	for _, id := range ids {
		out = append(out, w.name(id))
	}
	return strings.Join(out, ", ")
}

// Progress sums a drain up.
func (w World) Progress(self ring.NodeID, atStart int, held []Holding) Progress {
	p := Progress{ReplicasAtStart: max(atStart, len(held)), Replicas: len(held), SafeToPowerDown: len(held) == 0}
	for _, h := range held {
		r := w.Remains(self, h)
		if r.Role == "owner" {
			p.Owned++
		}
		if r.Stuck {
			p.Stuck++
		}
		switch w.without(self, h.Report) {
		case goesOn:
			p.GoOn++
		case stops:
			p.Stop++
		case onlyCopy:
			p.OnlyCopy++
		}
		p.Remaining = append(p.Remaining, r)
	}
	slices.SortStableFunc(p.Remaining, func(a, b Remaining) int {
		stuck := func(r Remaining) int {
			if r.Stuck {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(stuck(a), stuck(b)), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Partition, b.Partition))
	})
	p.Remaining = p.Remaining[:min(len(p.Remaining), MaxRemaining)]
	return p
}

type fate int

const (
	goesOn fate = iota
	stops
	onlyCopy
)

// without says what becomes of a group while self is powered down.
func (w World) without(self ring.NodeID, r Report) fate {
	voters, live, copies := 0, 0, 0
	for _, c := range r.Members {
		there := c.Node != self && w.Nodes[c.Node].Here
		if there && r.Behind(c) == 0 {
			copies++
		}
		if c.Learner {
			continue
		}
		voters++
		if there && !c.Silent {
			live++
		}
	}
	switch {
	case copies == 0:
		return onlyCopy
	case live > voters/2:
		return goesOn
	default:
		return stops
	}
}

// Replaced says what becomes of a gone node's copy of one group; "" when it has none.
func (w World) Replaced(gone ring.NodeID, h Holding) string {
	if !slices.ContainsFunc(h.Report.Members, func(c Copy) bool { return c.Node == gone }) {
		return ""
	}
	what := fmt.Sprintf("%s partition %d", h.Stream, h.Partition)
	switch missing := h.missing(); {
	case w.without(gone, h.Report) == onlyCopy:
		return what + ": its only copy is on the node that is gone; nothing can replace it"
	case w.without(gone, h.Report) == stops:
		return what + ": it has no majority without the node that is gone; nothing can be replaced until that is back"
	case len(missing) > 0:
		return fmt.Sprintf("%s: a new copy goes to %s, as the ring proposes now", what, w.names(missing))
	default:
		return fmt.Sprintf("%s: it keeps %s, for no further node can take one", what, count(len(h.Targets), "copy", "copies"))
	}
}

// Sentence says how a drain of that node stands.
func (p Progress) Sentence(node string) string {
	if p.SafeToPowerDown {
		return node + " holds nothing any more: it is safe to power it down"
	}
	s := fmt.Sprintf("%s still holds %s of %d, owner of %d", node, count(p.Replicas, "copy", "copies"), p.ReplicasAtStart, p.Owned)
	if p.Stuck > 0 {
		s += fmt.Sprintf("; %s no way out", have(p.Stuck))
	}
	return s + "; " + p.PowerDown()
}

// PowerDown says what powering the node down now would do.
func (p Progress) PowerDown() string {
	switch {
	case p.Replicas == 0:
		return "powering it down now does no harm"
	case p.Stop == 0 && p.OnlyCopy == 0:
		return fmt.Sprintf("powering it down now stops nothing, and leaves %s with a copy less", count(p.GoOn, "partition", "partitions"))
	}
	var parts []string
	if p.OnlyCopy > 0 {
		parts = append(parts, fmt.Sprintf("takes the only copy of %s away", count(p.OnlyCopy, "partition", "partitions")))
	}
	if p.Stop > 0 {
		parts = append(parts, fmt.Sprintf("stops writes to %s", count(p.Stop, "partition", "partitions")))
	}
	return "not safe to power down: doing so now " + strings.Join(parts, " and ") + " until it is back"
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func have(n int) string {
	if n == 1 {
		return "1 has"
	}
	return fmt.Sprintf("%d have", n)
}

// PlanDrain says what a drain of self would do to what it holds: steps with their reasons, and whether it can come to its end.
func (w World) PlanDrain(self ring.NodeID, held []Holding) (steps []string, reason string) {
	name := w.name(self)
	if len(held) == 0 {
		return []string{"mark " + name + " as draining: it takes nothing new"}, name + " holds nothing: it would be safe to power down at once"
	}
	steps = append(steps, "mark "+name+" as draining, on its disk and by gossip: it takes nothing new and owns nothing new")
	owned, stuck := 0, 0
	to := map[ring.NodeID]int{}
	shrink := map[string][2]int{} // stream -> copies left, copies wanted
	var nowhere []string
	for _, h := range held {
		if h.Owner == self {
			owned++
		}
		missing := h.missing()
		switch left := len(h.Targets); {
		case left == 0:
			stuck++
			nowhere = append(nowhere, fmt.Sprintf("%s partition %d cannot leave: %s", h.Stream, h.Partition, w.Remains(self, h).Reason))
		case left < h.Report.Want:
			shrink[h.Stream] = [2]int{left, h.Report.Want}
		}
		for _, t := range missing {
			to[t]++
		}
	}
	if owned > 0 {
		steps = append(steps, fmt.Sprintf("hand over the ownership of %s to other copies that are caught up: no publish fails for it", count(owned, "partition", "partitions")))
	}
	for _, t := range slices.SortedFunc(maps.Keys(to), func(a, b ring.NodeID) int { return cmp.Compare(w.name(a), w.name(b)) }) {
		steps = append(steps, fmt.Sprintf("place %s on %s, as the ring proposes now: learners first, voters in exchange for %s once they have caught up",
			count(to[t], "copy", "copies"), w.name(t), name))
	}
	for _, s := range slices.Sorted(maps.Keys(shrink)) {
		steps = append(steps, fmt.Sprintf("%s keeps %s of the %d that it wants: %s", s, count(shrink[s][0], "copy", "copies"), shrink[s][1],
			"no further node can take one"))
	}
	steps = append(steps, nowhere...)
	if stuck > 0 {
		return steps, fmt.Sprintf("%s would not become empty: %s no way out. %s", name, have(stuck), w.Progress(self, len(held), held).PowerDown())
	}
	steps = append(steps, fmt.Sprintf("let the %s on %s go, each once its group does without it", count(len(held), "copy", "copies"), name))
	reason = fmt.Sprintf("%s would become empty, and then be safe to power down", name)
	if len(shrink) > 0 {
		reason += fmt.Sprintf("; %s would be left with fewer copies than wanted, until a node is added", count(len(shrink), "stream", "streams"))
	}
	return steps, reason
}
