package node

import (
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// rates measures how fast the partitions held here grow, in bytes a second as stored. Safe for concurrent use.
type rates struct {
	mu   sync.Mutex
	at   time.Time
	seen map[ring.GroupID]growth
}

// idleRate in bytes a second is no traffic.
const idleRate = 0.5

type growth struct {
	bytes int64
	rate  float64
}

// of is a partition's rate when it was last sampled; 0 for one not held here.
func (r *rates) of(g ring.GroupID) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[g].rate
}

// sample measures since the last call and returns the sum. A partition that shrank was trimmed: it keeps its last rate.
func (r *rates) sample(now time.Time, groups []*replica.Group) (sum float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	span := now.Sub(r.at).Seconds()
	next := make(map[ring.GroupID]growth, len(groups))
	for _, g := range groups {
		p, ok := g.StateMachine().(*partition.Partition)
		if !ok {
			continue
		}
		old, known := r.seen[p.Group()]
		cur := growth{bytes: p.Bytes(), rate: old.rate}
		if known && span > 0 && cur.bytes >= old.bytes {
			cur.rate = smooth(old.rate, float64(cur.bytes-old.bytes)/span)
		}
		next[p.Group()] = cur
		sum += cur.rate
	}
	r.seen, r.at = next, now
	return sum
}

// smooth is the moving average of a rate (EMA 0.5). It comes down to zero, which halving alone would not.
func smooth(before, now float64) float64 {
	if rate := (before + now) / 2; rate >= idleRate {
		return rate
	}
	return 0
}
