package ring

import (
	"cmp"
	"math"
	"slices"
)

// candidate is a member that may hold a group.
type candidate struct {
	member  int32
	current bool
	home    bool
	tier    int // a lower one goes first; 0 where what members hold does not count
	fill    float64
	score   float64
}

// zonePick is the candidates of one zone, best first, of which the first taken are chosen.
type zonePick struct {
	zone  int32
	cands []candidate
	taken int
	score float64
}

// ranker says how welcome a member is as one that holds the group: the tier, and within it the lowest fill. ok is false for one that
// gets nothing new.
type ranker func(c candidate) (tier int, fill float64, ok bool)

// Replicas proposes at most n distinct members for a group, the preferred owner first.
//
// Members spread over zones as evenly as the candidates allow (all in distinct zones where there are enough), and within
// that bound as many of current as possible stay; what is missing is filled with the group's home first, then by weighted
// rendezvous. Cordoned members stay but are not added, leaving ones do not even stay. The order is home first where it was chosen, then
// by rendezvous; the order of current has no influence, and proposing again from the answer gives the same answer.
// Without current it is where a new group belongs.
func (r *Ring) Replicas(g GroupID, n int, current []NodeID) []NodeID {
	return r.replicas(g, n, current, func(c candidate) (int, float64, bool) { return 0, c.score, true })
}

func (r *Ring) replicas(g GroupID, n int, current []NodeID, rank ranker) []NodeID {
	n = min(n, len(r.members))
	if n <= 0 {
		return nil
	}
	picks := r.picks(g, current, rank)
	chosen := make([]candidate, 0, n)
	for len(chosen) < n {
		best := nextZone(picks)
		if best < 0 {
			break
		}
		p := &picks[best]
		chosen = append(chosen, p.cands[p.taken])
		p.taken++
	}
	slices.SortFunc(chosen, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(boolInt(b.home), boolInt(a.home)), compareScore(a, b))
	})
	out := make([]NodeID, len(chosen))
	for i, c := range chosen {
		out[i] = r.members[c.member].ID
	}
	return out
}

// compareScore orders by rendezvous, and by member index (the order of ids) where scores tie.
func compareScore(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.member, b.member))
}

// compareFill orders those of one zone: current ones first, then by tier, the home first in it, then by fill.
func compareFill(a, b candidate) int {
	return cmp.Or(cmp.Compare(boolInt(b.current), boolInt(a.current)), cmp.Compare(a.tier, b.tier),
		cmp.Compare(boolInt(b.home), boolInt(a.home)), cmp.Compare(a.fill, b.fill), compareScore(a, b))
}

// picks lists the candidates per zone, best first.
func (r *Ring) picks(g GroupID, current []NodeID, rank ranker) []zonePick {
	home := r.home(g)
	isCurrent := r.indexes(current)
	picks := make([]zonePick, 0, len(r.zones))
	all := make([]candidate, 0, len(r.members))
	for z := range r.zones {
		start := len(all)
		for _, i := range r.zones[z].members {
			c := candidate{member: i, current: isCurrent[i], home: i == home}
			if r.members[i].Leaving || r.members[i].Cordoned && !c.current {
				continue
			}
			c.score = r.memberScore(g, i)
			takes := false
			if c.tier, c.fill, takes = rank(c); takes || c.current {
				all = append(all, c)
			}
		}
		cands := all[start:len(all):len(all)]
		if len(cands) == 0 {
			continue
		}
		slices.SortFunc(cands, compareFill)
		p := zonePick{zone: int32(z), cands: cands, score: r.zoneScore(g, int32(z))}
		if home >= 0 && r.zoneOf[home] == int32(z) {
			p.score = math.Inf(-1) // the home's zone comes before any other
		}
		picks = append(picks, p)
	}
	return picks
}

// indexes are the members among the given nodes.
func (r *Ring) indexes(nodes []NodeID) map[int32]bool {
	out := make(map[int32]bool, len(nodes))
	for _, id := range nodes {
		if i, ok := r.index[id]; ok {
			out[i] = true
		}
	}
	return out
}

// nextZone is the index of the zone that gets the next replica, or -1 when no zone has a candidate left: the emptiest, then
// one that holds a current replica not yet taken, then the one with the lowest tier, the home's, and by rendezvous. Filling the emptiest
// first makes the spread even; preferring current ones matters only in the last, partial round, and there it keeps the most.
func nextZone(picks []zonePick) int {
	best := -1
	for i := range picks {
		p := &picks[i]
		if p.taken == len(p.cands) {
			continue
		}
		if best < 0 || p.before(&picks[best]) {
			best = i
		}
	}
	return best
}

func (p *zonePick) before(q *zonePick) bool {
	a, b := p.cands[p.taken], q.cands[q.taken]
	return cmp.Or(cmp.Compare(p.taken, q.taken), cmp.Compare(boolInt(b.current), boolInt(a.current)), cmp.Compare(a.tier, b.tier),
		cmp.Compare(p.score, q.score), cmp.Compare(p.zone, q.zone)) < 0
}
