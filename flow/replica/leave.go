package replica

import (
	"context"
	"time"
)

// leavePoll is how often a leaving node looks what it still owns.
const leavePoll = 10 * time.Millisecond

// Leave hands everything that is owned here to other nodes, all groups at once, each to another voter when one does not take it. It returns
// when nothing is left that another replica could take over, or when ctx ends, and says how many such groups are left. From its call on
// nothing can be handed to this node. Call it before the end of Run, once.
func (h *Host) Leave(ctx context.Context) (left int) {
	h.leaving.Store(true)
	for _, g := range h.Groups() {
		g.post(func() {
			g.plan.next = g.ticks
			if g.plan.pending && g.plan.handing == 0 {
				g.plan.pending = false // a change of members is the next owner's now
			}
			g.rouse("membership")
		})
	}
	t := time.NewTicker(leavePoll)
	defer t.Stop()
	for {
		if left = h.owing(); left == 0 {
			return 0
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return left
		case <-h.stopped:
			return left
		}
	}
}

// owing counts the groups owned here that have another voter within reach, on a node that does not leave as well.
func (h *Host) owing() (n int) {
	place := h.cfg.Placement
	for _, g := range h.Groups() {
		s := g.Status()
		if s.Role != RoleOwner {
			continue
		}
		for _, m := range s.Members {
			if m.ID != s.Self && !m.Learner && s.Active[m.ID] && place.Alive(m.Node) && !place.Leaving(m.Node) {
				n++
				break
			}
		}
	}
	return n
}
