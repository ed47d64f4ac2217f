package partition

import "sync/atomic"

// NodeLimit bounds the identities that all partitions of one node hold in memory together. Safe for concurrent use. It is not
// exact: a partition that finds it passed lets go of what it can when it applies its next entry.
type NodeLimit struct {
	limit int64
	held  atomic.Int64
}

// NewNodeLimit makes a limit of so many identities; each takes about 100 bytes.
func NewNodeLimit(identities int) *NodeLimit { return &NodeLimit{limit: int64(identities)} }

// Held is the number of identities in memory.
func (l *NodeLimit) Held() int { return int(l.held.Load()) }

func (l *NodeLimit) add(n int) {
	if l != nil {
		l.held.Add(int64(n))
	}
}

func (l *NodeLimit) over() bool { return l != nil && l.held.Load() > l.limit }
