package node

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
)

const (
	// reportPage is how many groups one answer tells of: at most 8 members of some 60 bytes each.
	reportPage = 1000
	// reportsFresh is how old the word of another node may be before it is asked again, reportsWait how long that is waited for.
	reportsFresh = time.Second
	reportsWait  = time.Second
	// reportsKept is how long a word counts that nobody renews.
	reportsKept = time.Minute
)

// reports is what the owners of groups say of their members: of the groups owned here at once, of the others as each node said last. Safe for
// concurrent use.
type reports struct {
	n *Node

	mu    sync.Mutex
	asked map[ring.NodeID]time.Time
	heard map[ring.GroupID]heardReport
}

type heardReport struct {
	ops.Report
	owner ring.NodeID
	at    time.Time
}

func newReports(n *Node) *reports {
	return &reports{n: n, asked: map[ring.NodeID]time.Time{}, heard: map[ring.GroupID]heardReport{}}
}

// refresh asks the nodes whose word is old for the groups that they own, and waits for them a while.
func (r *reports) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportsWait)
	defer cancel()
	now := time.Now()
	r.n.ops.eachPeer(func(m view.Member) {
		r.mu.Lock()
		old := now.Sub(r.asked[m.ID]) >= reportsFresh
		if old {
			r.asked[m.ID] = now
		}
		r.mu.Unlock()
		if old {
			r.ask(ctx, m.ID)
		}
	})
	r.expire(now)
}

// ask reads all that one node owns. What does not come is missed: the next refresh asks again.
func (r *reports) ask(ctx context.Context, node ring.NodeID) {
	var after ring.GroupID
	for {
		ans, err := r.n.ops.call(ctx, node, opsQuestion{Op: opsReports, After: after})
		if err != nil {
			r.n.log.Debug("a node did not say what it owns", "peer", node, "err", err)
			return
		}
		r.hear(node, ans.Reports)
		if !ans.More || len(ans.Reports) == 0 {
			return
		}
		next := ans.Reports[len(ans.Reports)-1].Group
		if next.Compare(after) <= 0 {
			return // a peer that does not go on in order
		}
		after = next
	}
}

func (r *reports) hear(owner ring.NodeID, list []ops.Report) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rep := range list {
		if old, ok := r.heard[rep.Group]; !ok || rep.Term >= old.Term {
			r.heard[rep.Group] = heardReport{rep, owner, now}
		}
	}
}

func (r *reports) expire(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g, h := range r.heard {
		if now.Sub(h.at) > reportsKept {
			delete(r.heard, g)
		}
	}
	for n, at := range r.asked {
		if now.Sub(at) > reportsKept {
			delete(r.asked, n)
		}
	}
}

// of is the newest word on a group: by its owner, or where none was heard by the replica here, which knows the members only. owner is zero
// where none is known. From memory alone.
func (r *reports) of(g ring.GroupID) (rep ops.Report, owner ring.NodeID, ok bool) {
	r.mu.Lock()
	h, heard := r.heard[g]
	r.mu.Unlock()
	lg, here := r.n.host.Group(g)
	if !here {
		return h.Report, h.owner, heard
	}
	st := lg.Status()
	if heard {
		rep, owner = h.or(st, func() ops.Report { return r.n.report(lg, st) })
		return rep, owner, true
	}
	return r.n.report(lg, st), st.Owner, true
}

// or is what an owner said, or what a replica here knows where that is newer. The owner goes with the report, for the one that the replica
// follows may be that of another term.
func (h heardReport) or(st replica.Status, here func() ops.Report) (ops.Report, ring.NodeID) {
	if st.Role != replica.RoleOwner && h.Term >= st.Term {
		return h.Report, h.owner
	}
	return here(), st.Owner
}

// own pages through the groups that this node owns.
func (r *reports) own(after ring.GroupID) (list []ops.Report, more bool) {
	for _, g := range r.n.host.Groups() {
		if st := g.Status(); st.Role == replica.RoleOwner && st.Ready && bytes.Compare(st.Group[:], after[:]) > 0 {
			list = append(list, r.n.report(g, st))
		}
	}
	slices.SortFunc(list, func(a, b ops.Report) int { return a.Group.Compare(b.Group) })
	if len(list) > reportPage {
		return list[:reportPage], true
	}
	return list, false
}

// Owners and those who judge their reports mean the same by "caught up": this does not compile where they do not.
var _ = [1]struct{}{}[ops.CaughtUp-replica.CaughtUp]

// report is what a replica here knows of its group; only an owner knows how far its members are.
func (n *Node) report(g *replica.Group, st replica.Status) ops.Report {
	rep := ops.Report{Group: st.Group, Term: st.Term, Commit: st.Commit, Want: n.wantOf(g, st)}
	if st.Role == replica.RoleOwner {
		rep.Waits = n.ops.named(st.Waits.Reason)
		if mv := st.Move; mv != nil {
			rep.MoveFrom, rep.MoveTo, rep.MovePhase, rep.MoveReason = mv.From, mv.To, string(mv.Phase), n.ops.named(mv.Reason)
		}
	}
	for _, m := range st.Members {
		c := ops.Copy{ID: m.ID, Node: m.Node, Learner: m.Learner, Match: st.Commit}
		if st.Role == replica.RoleOwner {
			c.Match, c.Silent = st.Match[m.ID], m.ID != st.Self && !st.Active[m.ID]
			if at, ok := st.Closed[m.ID]; ok {
				c.Closed = at.Unix()
			}
		}
		rep.Members = append(rep.Members, c)
	}
	return rep
}

// wantOf is how many copies a group should have.
func (n *Node) wantOf(g *replica.Group, st replica.Status) int {
	if s, ok := g.StateMachine().(replica.Sizer); ok {
		if want := s.WantReplicas(); want > 0 {
			return want
		}
	}
	return wantReplicas(st.Kind, st.Spec)
}
