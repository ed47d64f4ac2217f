package replica

import (
	"time"

	"github.com/skeinmesh/skein/ring"
)

// grantTime is how long a grant holds unless it is asked for again: an owner that died blocks nobody for longer.
const grantTime = 60 * time.Second

// direction is a replica's way as seen from one end of its move.
type direction uint8

const (
	moveIn direction = iota
	moveOut
)

// grants are the moves that this node has agreed to, in and out. Pure: the caller says what time it is and what the node holds, and
// keeps calls apart.
type grants struct {
	to [2]map[ring.GroupID]grant
}

type grant struct {
	by    ring.NodeID // the owner that asked
	until time.Time
}

// held is what a node has when it is asked.
type held struct {
	replicas  int
	this      bool // one of them is of the group asked about
	low, high int
}

// ask gives a grant, or says why not. One move a direction at a time: what a node agreed to is then part of
// what it holds before it agrees to the next. A manual one is held against no share. Asking again renews, whoever owns the group now.
func (g *grants) ask(now time.Time, d direction, group ring.GroupID, by ring.NodeID, manual bool, h held) (refusal string) {
	g.expire(now)
	_, renewed := g.to[d][group]
	if !renewed && len(g.to[d]) > 0 {
		return [...]string{"another replica is moving there", "another replica is moving away from there"}[d]
	}
	if !renewed && !manual {
		switch {
		case d == moveIn && !h.this && h.replicas+1 > h.high:
			return "it would hold more than its share"
		case d == moveOut && h.this && h.replicas-1 < h.low:
			return "it would hold less than its share"
		}
	}
	if g.to[d] == nil {
		g.to[d] = map[ring.GroupID]grant{}
	}
	g.to[d][group] = grant{by: by, until: now.Add(grantTime)}
	return ""
}

// outLag is how long at most a move away counts as one after its owner said that it is over: the replica is removed a moment later, and
// until then the node counts one too many.
const outLag = 10 * time.Second

// release ends the grants for a group, if by is who has them. here: a replica of it is held still.
func (g *grants) release(now time.Time, group ring.GroupID, by ring.NodeID, here bool) {
	for d := range g.to {
		have, ok := g.to[d][group]
		switch {
		case !ok || have.by != by:
		case direction(d) == moveOut && here:
			if until := now.Add(outLag); until.Before(have.until) {
				have.until = until
				g.to[d][group] = have
			}
		default:
			delete(g.to[d], group)
		}
	}
}

// removed is told when a replica was removed here.
func (g *grants) removed(group ring.GroupID) { delete(g.to[moveOut], group) }

func (g *grants) expire(now time.Time) {
	for d := range g.to {
		for id, have := range g.to[d] {
			if !now.Before(have.until) {
				delete(g.to[d], id)
			}
		}
	}
}

// handedLately remembers whom this node handed ownership a moment ago: gossip tells of it later, and until then the next group would go to
// the same node. Pure, like grants.
type handedLately struct {
	last  time.Time
	given map[ring.NodeID][]time.Time // when each is believed to be told by gossip
}

const (
	// evenPause is the least time between two hand-overs that even out what nodes own.
	evenPause = time.Second
	// gossipLag is how long it takes at most until what a node owns is heard everywhere.
	gossipLag = 5 * time.Second
)

// may reports whether a hand-over for balance may be started now.
func (l *handedLately) may(now time.Time) bool { return now.Sub(l.last) >= evenPause }

// note remembers one that was.
func (l *handedLately) note(now time.Time, to ring.NodeID, even bool) {
	if even {
		l.last = now
	}
	if l.given == nil {
		l.given = map[ring.NodeID][]time.Time{}
	}
	for n := range l.given {
		l.count(now, n) // drops what is known by now, also of nodes that left
	}
	if len(l.given[to]) < maxHandedLately {
		l.given[to] = append(l.given[to], now.Add(gossipLag))
	}
}

const maxHandedLately = 4096

// count is how many groups were handed to a node that gossip does not tell of yet.
func (l *handedLately) count(now time.Time, to ring.NodeID) int {
	ts := l.given[to]
	for len(ts) > 0 && !now.Before(ts[0]) {
		ts = ts[1:]
	}
	if len(ts) == 0 {
		delete(l.given, to)
		return 0
	}
	l.given[to] = ts
	return len(ts)
}
