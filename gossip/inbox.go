package gossip

import (
	"sync"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// Bounds of the inbox between memberlist's callbacks and the loop.
const (
	maxInboxMembers  = 8192
	maxInboxMessages = 4096
	maxInboxHints    = 2 * maxStateHints
)

// inbox takes what memberlist's callbacks bring; its loop drains it. Putting never blocks: what finds it full is dropped
// and counted. News of one member replaces older news of it, so membership is lost only beyond maxInboxMembers.
type inbox struct {
	metrics *metrics
	wake    chan struct{}

	mu       sync.Mutex
	observed uint64
	members  map[ring.NodeID]view.Member
	messages []message
	hints    int
}

func newInbox(m *metrics) *inbox {
	// Number 1 is this node's belief about itself.
	return &inbox{metrics: m, wake: make(chan struct{}, 1), observed: 1, members: make(map[ring.NodeID]view.Member)}
}

// putMember takes a belief about a member and numbers it. The caller's calls for one member are in order: memberlist makes
// them under its lock.
func (b *inbox) putMember(m view.Member) {
	b.mu.Lock()
	old, ok := b.members[m.ID]
	if !ok && len(b.members) >= maxInboxMembers {
		b.mu.Unlock()
		b.metrics.dropped.WithLabelValues("members").Inc()
		return
	}
	b.observed++
	m.Observed = b.observed
	if m.Incarnation == 0 && ok {
		m.Identity = old.Identity
	}
	b.members[m.ID] = m
	b.mu.Unlock()
	wake(b.wake)
}

// putMessage takes a decoded message.
func (b *inbox) putMessage(m message) {
	n := 0
	for i := range m.hints {
		n += len(m.hints[i].hints)
	}
	b.mu.Lock()
	if len(b.messages) >= maxInboxMessages || b.hints+n > maxInboxHints {
		b.mu.Unlock()
		b.metrics.dropped.WithLabelValues("messages").Inc()
		return
	}
	b.messages = append(b.messages, m)
	b.hints += n
	b.mu.Unlock()
	wake(b.wake)
}

// take empties the inbox.
func (b *inbox) take() (members map[ring.NodeID]view.Member, messages []message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	members, messages = b.members, b.messages
	b.members, b.messages, b.hints = make(map[ring.NodeID]view.Member), nil, 0
	return members, messages
}
