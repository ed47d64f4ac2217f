package view

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// Hint says that Owner led Group in Term, as someone heard. A higher term wins.
type Hint struct {
	Group ring.GroupID
	Owner ring.NodeID
	Term  uint64
}

// HeardHint is a hint with the latest time at which its owner vouched for it, by the observer's clock.
type HeardHint struct {
	Hint
	At time.Time
}

// Newer reports whether h wins over o.
func (h Hint) Newer(o Hint) bool { return h.compare(o) > 0 }

// compare orders by term. Two owners in one term cannot both be right; the greater id wins so that all
// observers agree on where to ask first.
func (h Hint) compare(o Hint) int {
	return cmp.Or(cmp.Compare(h.Term, o.Term), h.Owner.Compare(o.Owner))
}

func (h HeardHint) compare(o HeardHint) int {
	return cmp.Or(h.Hint.compare(o.Hint), h.At.Compare(o.At))
}

// Limits bound a view. Beyond them the greatest ids are dropped: a choice that does not depend on the order of hearing, so
// the laws of Merge hold at the bound too.
type Limits struct {
	// Members and Hints are counts; 0 means the default of 4096 and 65,536.
	Members, Hints int
}

func (l Limits) orDefault() Limits {
	if l.Members <= 0 {
		l.Members = 4096
	}
	if l.Hints <= 0 {
		l.Hints = 65_536
	}
	return l
}

// shards is how many parts the hints are kept in, so that a merge copies only the parts that it touches.
const shards = 256

// View is an immutable picture of the mesh. The zero View is not valid; use New. Safe for concurrent use.
type View struct {
	observer ring.NodeID
	limits   Limits
	members  []Member // by id
	hints    [shards]map[ring.GroupID]HeardHint
	nhints   int
}

// New returns an empty view as seen by observer.
func New(observer ring.NodeID, limits Limits) *View {
	return &View{observer: observer, limits: limits.orDefault()}
}

// Members returns all members by id, dead and left ones included. The caller owns the slice.
func (v *View) Members() []Member { return slices.Clone(v.members) }

// Len is the number of members, dead and left ones included.
func (v *View) Len() int { return len(v.members) }

// CountPresent is the number of members that are alive or suspected.
func (v *View) CountPresent() int {
	n := 0
	for i := range v.members {
		if v.members[i].Present() {
			n++
		}
	}
	return n
}

// Member returns the member with the given id.
func (v *View) Member(id ring.NodeID) (Member, bool) {
	i, ok := v.find(id)
	if !ok {
		return Member{}, false
	}
	return v.members[i], true
}

func (v *View) find(id ring.NodeID) (int, bool) {
	return slices.BinarySearchFunc(v.members, id, func(m Member, id ring.NodeID) int { return m.ID.Compare(id) })
}

// ByName returns the member called name. Of several (a wiped node rejoins under a new id) a present one is preferred, then
// the one whose announcement is newest.
func (v *View) ByName(name string) (Member, bool) {
	var best Member
	found := false
	for _, m := range v.members {
		if m.Name != name {
			continue
		}
		if !found || cmp.Or(boolCompare(m.Present(), best.Present()), cmp.Compare(m.Incarnation, best.Incarnation)) > 0 {
			best, found = m, true
		}
	}
	return best, found
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

// Alive reports whether the observer believes that the member is there: alive, or suspected but not given up.
func (v *View) Alive(id ring.NodeID) bool {
	m, ok := v.Member(id)
	return ok && m.Present()
}

// Owner is the best hint about a group's owner.
func (v *View) Owner(g ring.GroupID) (Hint, bool) {
	h, ok := v.hints[g[0]][g]
	return h.Hint, ok
}

// Hints returns all hints, ordered by group. The caller owns the slice.
func (v *View) Hints() []HeardHint {
	out := make([]HeardHint, 0, v.nhints)
	for i := range v.hints {
		for _, h := range v.hints[i] {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b HeardHint) int { return bytes.Compare(a.Group[:], b.Group[:]) })
	return out
}

// CountHints is the number of hints.
func (v *View) CountHints() int { return v.nhints }

// Update is something heard. Members carry any subset of parts: identity, belief, load; a part with its number at 0 (and
// all else zero) adds nothing.
type Update struct {
	Members []Member
	Hints   []HeardHint
}

// Merge returns the picture after hearing u, and whether anything that a reader could act on changed (a later time of
// something known already does not count). It is idempotent, commutative and associative. Members and hints with a zero id
// are ignored.
func (v *View) Merge(u Update) (next *View, changed bool) {
	n := *v
	changed = n.mergeMembers(u.Members)
	if n.mergeHints(u.Hints) {
		changed = true
	}
	return &n, changed
}

func (v *View) mergeMembers(heard []Member) (changed bool) {
	if len(heard) == 0 {
		return false
	}
	v.members = slices.Clone(v.members)
	for _, m := range heard {
		if m.ID.IsZero() {
			continue
		}
		i, ok := v.find(m.ID)
		if !ok {
			v.members = slices.Insert(v.members, i, m)
			changed = true
			continue
		}
		old := v.members[i]
		merged := old.merge(m)
		v.members[i] = merged
		if merged != old {
			changed = true
		}
	}
	if over := len(v.members) - v.limits.Members; over > 0 {
		clear(v.members[v.limits.Members:])
		v.members = v.members[:v.limits.Members]
	}
	return changed
}

func (v *View) mergeHints(heard []HeardHint) (changed bool) {
	var copied [shards]bool
	for _, h := range heard {
		if h.Group == (ring.GroupID{}) || h.Owner.IsZero() {
			continue
		}
		s := h.Group[0]
		old, ok := v.hints[s][h.Group]
		if ok && old.compare(h) >= 0 {
			continue
		}
		if !copied[s] {
			v.hints[s] = cloneHints(v.hints[s])
			copied[s] = true
		}
		v.hints[s][h.Group] = h
		if !ok {
			v.nhints++
		}
		if !ok || old.Hint != h.Hint {
			changed = true
		}
	}
	v.trimHints(&copied)
	return changed
}

func cloneHints(m map[ring.GroupID]HeardHint) map[ring.GroupID]HeardHint {
	if m == nil {
		return make(map[ring.GroupID]HeardHint)
	}
	return maps.Clone(m)
}

// trimHints drops the greatest group ids until the limit holds. Group ids are hashes, so no stream is favoured.
func (v *View) trimHints(copied *[shards]bool) {
	for s := shards - 1; s >= 0 && v.nhints > v.limits.Hints; s-- {
		over := min(v.nhints-v.limits.Hints, len(v.hints[s]))
		if over == 0 {
			continue
		}
		if !copied[s] {
			v.hints[s] = cloneHints(v.hints[s])
			copied[s] = true
		}
		groups := slices.SortedFunc(maps.Keys(v.hints[s]), func(a, b ring.GroupID) int { return b.Compare(a) })
		for _, g := range groups[:over] {
			delete(v.hints[s], g)
		}
		v.nhints -= over
	}
}

// Expire forgets hints that nobody vouched for since before, and members that were dead or had left since before. It is
// not part of the merge: each observer forgets by its own clock.
func (v *View) Expire(hintsBefore, goneBefore time.Time) (next *View, changed bool) {
	n := *v
	n.members = slices.DeleteFunc(slices.Clone(v.members), func(m Member) bool {
		return !m.Present() && m.ID != v.observer && m.Since.Before(goneBefore)
	})
	changed = len(n.members) != len(v.members)
	for s := range n.hints {
		stale := 0
		for _, h := range n.hints[s] {
			if h.At.Before(hintsBefore) {
				stale++
			}
		}
		if stale == 0 {
			continue
		}
		n.hints[s] = maps.Clone(n.hints[s])
		maps.DeleteFunc(n.hints[s], func(_ ring.GroupID, h HeardHint) bool { return h.At.Before(hintsBefore) })
		n.nhints -= stale
		changed = true
	}
	return &n, changed
}

// CountState is the number of members in the given state.
func (v *View) CountState(s State) int {
	n := 0
	for i := range v.members {
		if v.members[i].State == s {
			n++
		}
	}
	return n
}
