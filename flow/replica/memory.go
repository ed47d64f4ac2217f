package replica

import "sync/atomic"

// nodeBytes counts bytes held by all groups of a node against one bound. Safe for concurrent use; nil counts nothing and is
// never over. It is not exact: several groups may pass the bound at once, each by what it is about to add.
type nodeBytes struct {
	limit int64
	held  atomic.Int64
}

func (n *nodeBytes) add(d int64) {
	if n != nil {
		n.held.Add(d)
	}
}

func (n *nodeBytes) over() bool { return n != nil && n.held.Load() > n.limit }
