package flow

import (
	"maps"
	"sync"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// confirmations remembers which births were confirmed, in which term of the shard's owner: a new ownership asks again.
type confirmations struct {
	mu   sync.Mutex
	seen map[ring.GroupID]*confirmedBirth
}

type confirmedBirth struct {
	term    uint64
	members map[ring.ReplicaID]bool
}

func newConfirmations() *confirmations {
	return &confirmations{seen: map[ring.GroupID]*confirmedBirth{}}
}

func (c *confirmations) add(g ring.GroupID, r ring.ReplicaID, term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cb := c.seen[g]
	if cb == nil || cb.term != term {
		cb = &confirmedBirth{term: term, members: map[ring.ReplicaID]bool{}}
		c.seen[g] = cb
	}
	cb.members[r] = true
}

func (c *confirmations) has(g ring.GroupID, r ring.ReplicaID, term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cb := c.seen[g]
	return cb != nil && cb.term == term && cb.members[r]
}

// retain forgets the groups that none of births is of.
func (c *confirmations) retain(births map[ring.GroupID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.seen, func(g ring.GroupID, _ *confirmedBirth) bool { return !births[g] })
}

func (c *confirmations) all(b replica.Birth, term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cb := c.seen[b.Group]
	if cb == nil || cb.term != term {
		return false
	}
	for _, m := range b.Members {
		if !cb.members[m.ID] {
			return false
		}
	}
	return true
}
