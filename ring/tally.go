package ring

import (
	"cmp"
	"math"
	"slices"
)

// Held is how much one member holds, as far as an observer knows.
type Held struct {
	// Replicas are the groups of which the member holds a copy, Owned those that it owns.
	Replicas, Owned int
}

// Tally is a ring together with what its members hold, and so with the share of each. Immutable and safe for concurrent use: those who
// count alike decide alike. A count that is a little old makes a proposal less good, never harmful: who is asked to take or to give
// checks it against what it holds.
//
// Shares divide the replicas by weight among the members that take part: those that may get something new and whose count is known. No
// share is more than one copy of each group, nor do the shares of a zone add up to more than an even spread over zones puts there. What
// leaving members hold is divided among the others; cordoned ones keep what they have and stand aside.
type Tally struct {
	r     *Ring
	held  []Held
	known []bool
	share []float64
	owner []float64 // share of what is owned
	// By zone: how far above its share the fullest member is, and how far below it, negative, the emptiest.
	peak, dip []float64
}

// maxHeld caps a count, so that sums of hostile ones stay exact.
const maxHeld = 1 << 32

// slack is what a share may be off by its computation in floating point.
const slack = 1e-6

// NewTally counts what members hold; of those not in held nothing is known, and they neither give nor take. It keeps nothing of held.
func NewTally(r *Ring, held map[NodeID]Held) *Tally {
	t := &Tally{r: r, held: make([]Held, len(r.members)), known: make([]bool, len(r.members))}
	for i, m := range r.members {
		h, ok := held[m.ID]
		t.held[i] = Held{Replicas: min(max(h.Replicas, 0), maxHeld), Owned: min(max(h.Owned, 0), maxHeld)}
		t.known[i] = ok
	}
	t.share, t.owner = t.shares(t.held, 0, 0)
	t.peak, t.dip = make([]float64, len(r.zones)), make([]float64, len(r.zones))
	for i := range r.members {
		if t.takes(int32(i)) {
			z := r.zoneOf[i]
			t.peak[z] = max(t.peak[z], t.over(int32(i)))
			t.dip[z] = min(t.dip[z], t.over(int32(i)))
		}
	}
	return t
}

// Ring is the ring that is counted on.
func (t *Tally) Ring() *Ring { return t.r }

// Known reports whether it is known how much a member holds.
func (t *Tally) Known(n NodeID) bool {
	i, ok := t.r.index[n]
	return ok && t.known[i]
}

// takes reports whether a member takes part: it may get something new, and how much it holds is known.
func (t *Tally) takes(i int32) bool { return t.r.members[i].taking() && t.known[i] }

// over is how far a member is above its share; negative below it.
func (t *Tally) over(i int32) float64 { return float64(t.held[i].Replicas) - t.share[i] }

// Share is how many replicas a member should hold: between low and high, which differ by one at most. A cordoned member should hold what
// it has, a leaving one nothing, one that nothing is known of what it has.
func (t *Tally) Share(n NodeID) (low, high int) {
	i, ok := t.r.index[n]
	if !ok {
		return 0, 0
	}
	if !t.takes(i) {
		if t.r.members[i].Leaving {
			return 0, 0
		}
		return t.held[i].Replicas, t.held[i].Replicas
	}
	return int(math.Floor(t.share[i] + slack)), int(math.Ceil(t.share[i] - slack))
}

// within reports whether a member that takes part holds its share, up or down to a whole number.
func (t *Tally) within(i int32) bool {
	over := t.over(i)
	return over > -1+slack && over < 1-slack
}

// Owned is how many groups a member owns, its share of them rounded up, and the most it should own: LoadFactor times its share.
func (t *Tally) Owned(n NodeID) (count, mean, high int) {
	i, ok := t.r.index[n]
	if !ok {
		return 0, 0, 0
	}
	return t.held[i].Owned, int(math.Ceil(t.owner[i] - slack)), int(math.Ceil(t.owner[i]*LoadFactor - slack))
}

// shares divides what is held, and so many replicas and groups more, among those that take part.
func (t *Tally) shares(held []Held, replicas, groups int) (share, owner []float64) {
	share, owner = make([]float64, len(held)), make([]float64, len(held))
	var weight, total, owned float64
	most := 0
	for i := range held {
		m := &t.r.members[i]
		if !t.known[i] || m.Cordoned && !m.Leaving {
			continue
		}
		total += float64(held[i].Replicas)
		owned += float64(held[i].Owned)
		if m.taking() {
			weight += t.r.weights[i]
			most = max(most, held[i].Replicas)
		}
	}
	if weight == 0 {
		return share, owner
	}
	total += float64(replicas)
	owned += float64(groups)
	for i := range held {
		if t.takes(int32(i)) {
			owner[i] = owned * t.r.weights[i] / weight
		}
	}
	t.divide(share, total, max(owned, float64(most+groups)))
	return share, owner
}

// divide gives each member that takes part its share of total, no more than most to each.
func (t *Tally) divide(share []float64, total, most float64) {
	zones := make([][]int32, 0, len(t.r.zones))
	members := 0
	for z := range t.r.zones {
		var in []int32
		for _, i := range t.r.zones[z].members {
			if t.takes(i) {
				in = append(in, i)
			}
		}
		if len(in) > 0 {
			zones = append(zones, in)
			members += len(in)
		}
	}
	most = max(most, total/float64(members))
	level := zoneLevel(zones, members, total/most)
	part := func(lambda float64, in []int32) (sum float64) {
		for _, i := range in {
			sum += min(most, lambda*t.r.weights[i])
		}
		return sum
	}
	limit := func(in []int32) float64 { return most * float64(min(len(in), level)) }
	lambda := t.solve(most, total, func(l float64) (sum float64) {
		for _, in := range zones {
			sum += min(limit(in), part(l, in))
		}
		return sum
	})
	for _, in := range zones {
		l := lambda
		if upper := limit(in); part(l, in) > upper {
			l = t.solve(most, upper, func(l float64) float64 { return part(l, in) })
		}
		for _, i := range in {
			share[i] = min(most, l*t.r.weights[i])
		}
	}
}

// zoneLevel is the most copies of one group that a zone gets where so many per group spread evenly. A tenth of a copy does not count:
// replicas on their way are counted twice.
func zoneLevel(zones [][]int32, members int, copies float64) int {
	for level := 1; level < members; level++ {
		room := 0
		for _, in := range zones {
			room += min(len(in), level)
		}
		if float64(room) >= copies-0.1 {
			return level
		}
	}
	return members
}

// solve is the multiple of weights at which sum, which grows with it, comes to total, or to as much of it as it can. Halving 128 times
// is exact to the precision of the numbers, whatever the weights.
func (t *Tally) solve(most, total float64, sum func(float64) float64) float64 {
	low, high := 0.0, most // every weight is at least 1
	for range 128 {
		mid := low + (high-low)/2
		if mid == low || mid == high {
			break
		}
		if sum(mid) < total {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// Replicas is Ring.Replicas with a view to what members hold: what is missing goes to those with the most room below their share, and
// where more are current than are wanted those above their share go first. Members that nothing is known of get nothing new, nor do those to
// avoid while others can take it.
func (t *Tally) Replicas(g GroupID, n int, current []NodeID, avoid ...NodeID) []NodeID {
	out := t.replicas(g, n, current, t.r.indexes(avoid))
	if len(out) >= n || len(avoid) == 0 {
		return out
	}
	for _, id := range t.replicas(g, len(t.r.members), out, nil) {
		if len(out) < n && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func (t *Tally) replicas(g GroupID, n int, current []NodeID, avoid map[int32]bool) []NodeID {
	return t.r.replicas(g, n, current, func(c candidate) (int, float64, bool) {
		over := t.over(c.member)
		switch {
		case !t.takes(c.member), avoid[c.member]:
			return 0, c.score, false
		case c.current && over <= slack:
			return 0, c.score, true
		case c.current:
			return 1 + int(over), c.score, true
		case over <= -1+slack:
			// By room: owners that decide at the same time choose different ones.
			return 0, t.roomScore(g, c.member, -over), true
		default:
			return 2 + int(math.Floor(over+slack)), c.score, true
		}
	})
}

// roomScore is the rendezvous of a group and a member, with the room as its weight.
func (t *Tally) roomScore(g GroupID, i int32, room float64) float64 {
	var buf [32]byte
	copy(buf[:16], g[:])
	copy(buf[16:], t.r.members[i].ID[:])
	return score(Hash(rendezvousSeed, buf[:]), room)
}

// Relief proposes one swap for a group that lives on current: from, which holds more than its share, gives its copy to to, which holds
// less and does not have the group. The spread over zones never gets worse by it. The two differ by so much that the swap brings both
// together nearer to their shares, so owners that swap one after another come to rest. False when there is no such pair, or when
// some current member leaves or is not known: then the group has more urgent things to do.
//
// Of all pairs one is chosen by rendezvous, weighted by what it gains, so that owners that decide at the same time choose different ones.
func (t *Tally) Relief(g GroupID, current []NodeID) (from, to NodeID, ok bool) {
	holds := t.r.indexes(current)
	perZone := make([]int, len(t.r.zones))
	for _, id := range current {
		i, known := t.r.index[id]
		if !known || t.r.members[i].Leaving || !t.known[i] {
			return NodeID{}, NodeID{}, false
		}
	}
	for i := range holds {
		perZone[t.r.zoneOf[i]]++
	}
	best := math.Inf(1)
	for a := range t.r.members {
		source := int32(a)
		if !holds[source] || !t.takes(source) || t.over(source) <= slack {
			continue
		}
		for b := range t.r.members {
			target := int32(b)
			if holds[target] || !t.takes(target) || t.crowds(perZone, source, target) || !t.worth(source, target) {
				continue
			}
			if s := t.pairScore(g, source, target); s < best {
				best, from, to, ok = s, t.r.members[a].ID, t.r.members[b].ID, true
			}
		}
	}
	return from, to, ok
}

// worth reports whether a swap from one that is above its share brings it and the target nearer to their shares, as far as whole numbers
// go, and is nobody else's to make: the fullest of their zones give first, and the emptiest take first. So few copies move twice.
func (t *Tally) worth(source, target int32) bool {
	if t.over(target) >= -slack || t.gain(source, target) <= slack || t.within(source) && t.within(target) {
		return false
	}
	from, to := t.r.zoneOf[source], t.r.zoneOf[target]
	if t.over(source) < max(t.peak[from], t.peak[to])-1-slack {
		return false
	}
	return !t.within(target) || min(t.dip[from], t.dip[to]) > -1+slack
}

// gain is how much nearer a swap brings two members to their shares; not above 0: none.
func (t *Tally) gain(source, target int32) float64 { return t.over(source) - t.over(target) - 1 }

// crowds reports whether the swap makes the spread over zones worse.
func (t *Tally) crowds(perZone []int, source, target int32) bool {
	from, to := t.r.zoneOf[source], t.r.zoneOf[target]
	return from != to && perZone[to] >= perZone[from]
}

func (t *Tally) pairScore(g GroupID, source, target int32) float64 {
	var buf [48]byte
	copy(buf[:16], g[:])
	copy(buf[16:], t.r.members[source].ID[:])
	copy(buf[32:], t.r.members[target].ID[:])
	return score(Hash(rendezvousSeed, buf[:]), t.gain(source, target))
}

// Place proposes n members for each of several new groups, the proposed owner first. Copies go to those with the most room below their
// share of what will be held then, and first owners likewise; homes and rendezvous decide among equals. Groups spread over zones as with
// Replicas. Members that nothing is known of come last.
func (t *Tally) Place(groups []GroupID, n int) [][]NodeID {
	held := slices.Clone(t.held)
	takers := 0
	for _, m := range t.r.members {
		takers += boolInt(m.taking())
	}
	out := make([][]NodeID, len(groups))
	if n = min(n, takers); n <= 0 {
		return out
	}
	share, owner := t.shares(held, n*len(groups), len(groups))
	for i, g := range groups {
		chosen := t.place(g, n, held, share)
		home := t.r.home(g)
		slices.SortFunc(chosen, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(boolInt(b.member == home), boolInt(a.member == home)), compareScore(a, b))
		})
		first := 0
		for k, c := range chosen {
			lead := chosen[first].member
			if owner[c.member]-float64(held[c.member].Owned) > owner[lead]-float64(held[lead].Owned)+slack {
				first = k
			}
		}
		lead := chosen[first]
		chosen = slices.Insert(slices.Delete(chosen, first, first+1), 0, lead)
		held[lead.member].Owned++
		out[i] = make([]NodeID, len(chosen))
		for k, c := range chosen {
			held[c.member].Replicas++
			out[i][k] = t.r.members[c.member].ID
		}
	}
	return out
}

// place chooses n members for one new group: always from a zone that has the fewest so far, the one with the most room.
func (t *Tally) place(g GroupID, n int, held []Held, share []float64) (chosen []candidate) {
	home := t.r.home(g)
	taken := make([]int, len(t.r.zones))
	var left []candidate
	for i := range t.r.members {
		if m := int32(i); t.r.members[i].taking() {
			left = append(left, candidate{member: m, home: m == home, tier: boolInt(!t.known[i]),
				fill: float64(held[i].Replicas) - share[i], score: t.r.memberScore(g, m)})
		}
	}
	for len(chosen) < n && len(left) > 0 {
		best := 0
		for k := range left {
			if t.rather(taken, left[k], left[best]) {
				best = k
			}
		}
		chosen = append(chosen, left[best])
		taken[t.r.zoneOf[left[best].member]]++
		left = slices.Delete(left, best, best+1)
	}
	return chosen
}

// rather reports whether a is a better place for a new copy than b.
func (t *Tally) rather(taken []int, a, b candidate) bool {
	if d := a.fill - b.fill; math.Abs(d) > slack && a.tier == b.tier && taken[t.r.zoneOf[a.member]] == taken[t.r.zoneOf[b.member]] {
		return d < 0
	}
	return cmp.Or(cmp.Compare(taken[t.r.zoneOf[a.member]], taken[t.r.zoneOf[b.member]]), cmp.Compare(a.tier, b.tier),
		cmp.Compare(boolInt(b.home), boolInt(a.home)), compareScore(a, b)) < 0
}
