package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/api"
	"github.com/skeinmesh/skein/ring"
)

// Readiness lists every condition for taking traffic.
func (p meshPages) Readiness(context.Context) []api.Check {
	var out []api.Check
	check := func(name string, ok bool, detail string) {
		if ok {
			detail = ""
		}
		out = append(out, api.Check{Name: name, OK: ok, Detail: detail})
	}
	joined := !p.n.mesh().IsZero()
	check("mesh", joined, p.n.notJoined())
	recovered := false
	select {
	case <-p.n.host.Ready():
		recovered = true
	default:
	}
	check("recovery", recovered, "replicas on this node are still being recovered")
	without := 0
	for i := range catalogShards {
		if !p.n.shardOwned(i) {
			without++
		}
	}
	check("catalog", joined && without == 0, fmt.Sprintf("%d of %d catalog shards have no known owner", without, catalogShards))
	check("disk", !p.n.diskFull(), "the free-space reserve of data_dir is reached: publishes to partitions owned here are refused")
	without = 0
	for _, g := range p.n.host.Groups() {
		if st := g.Status(); st.Kind == replica.KindPartition && !p.n.ownerKnown(st) {
			without++
		}
	}
	check("partitions", without == 0, fmt.Sprintf("%d partitions held here have no owner", without))
	check("drain", !p.n.leaving.Load(), "this node is stopping")
	return append(out, p.service(), p.copies(), p.damage())
}

// damage tells which replicas here wait for bytes of others, and which are closed for good. It informs, as copies does: the node serves what
// is sound, and all else from other nodes.
func (p meshPages) damage() api.Check {
	var hurt, closed []string
	for _, g := range p.n.host.Groups() {
		if st := g.Status(); st.Damage != nil {
			stream, id := p.n.nameOf(g, st)
			hurt = append(hurt, fmt.Sprintf("%s partition %d: %v", stream, id, st.Damage))
		}
	}
	for _, b := range p.n.host.Closed() {
		if b.Why != nil {
			stream, id := p.n.nameOf(nil, replica.Status{Group: b.Group, Kind: b.Kind, Spec: b.Spec})
			closed = append(closed, fmt.Sprintf("%s partition %d: %v", stream, id, b.Why))
		}
	}
	var told []string
	if n := len(hurt); n > 0 {
		told = append(told, fmt.Sprintf("%d damaged replicas here vote, and wait for their bytes from other nodes: %s", n, hurt[0]))
	}
	if n := len(closed); n > 0 {
		slices.Sort(closed)
		told = append(told, fmt.Sprintf("%d replicas here are closed for good, and replaced after replace_after (%s) unless a restart of this node brings "+
			"them back: %s", n, p.n.placementRules().ReplaceAfter, strings.Join(closed[:min(n, maxTold)], "; ")))
	}
	return api.Check{Name: "damage", OK: true, Detail: strings.Join(told, "; ")}
}

// maxTold is how many partitions a check tells of one by one.
const maxTold = 20

// copies tells which partitions held here lack copies, and why. It informs; it does not make the node unready, for that would take
// working nodes out of service when one failed. From memory alone: how far a learner is knows its owner.
func (p meshPages) copies() api.Check {
	w := p.n.world(time.Now())
	var told []string
	short := 0
	for _, g := range p.n.host.Groups() {
		st := g.Status()
		rep, _, _ := p.n.ops.reports.of(st.Group)
		if st.Kind == replica.KindCatalog && !w.Mendable(rep) {
			continue // a mesh of one or two has no more of them
		}
		lack := w.Lack(rep)
		if lack == "" {
			continue
		}
		short++
		stream, id := p.n.nameOf(g, st)
		told = append(told, fmt.Sprintf("%s partition %d has %d of %d: %s", stream, id, w.Live(rep), rep.Want, lack))
	}
	slices.Sort(told)
	c := api.Check{Name: "copies", OK: true}
	if short > 0 {
		c.Detail = fmt.Sprintf("%d partitions held here lack copies: %s", short, strings.Join(told[:min(short, maxTold)], "; "))
		if short > maxTold {
			c.Detail += "; and so on"
		}
	}
	return c
}

// service tells of an operator's marks. It informs: a node that drains serves all the same.
func (p meshPages) service() api.Check {
	c := api.Check{Name: "service", OK: true}
	switch m := p.n.data.marks(); {
	case m.draining():
		c.Detail = "this node is draining (operation " + m.Drain.ID + ")"
	case m.Cordoned:
		c.Detail = "this node is cordoned: it keeps what it has and gets nothing new"
	}
	return c
}

// shardOwned reports whether a catalog shard has an owner that this node knows of.
func (n *Node) shardOwned(i int) bool {
	g := ring.CatalogGroup(n.mesh(), i)
	if lg, ok := n.host.Group(g); ok {
		return n.ownerKnown(lg.Status())
	}
	owner, _, ok := n.dir.Owner(g) // as it was heard last, and nobody takes it back when the owner dies
	return ok && n.dir.Alive(owner)
}

// ownerKnown reports whether a replica here has an owner to follow. A voter forgets an owner that fell silent; a learner, which stands
// for no election, remembers it for ever, so for learners gossip must know it as alive.
func (n *Node) ownerKnown(st replica.Status) bool {
	return !st.Owner.IsZero() && (st.Role != replica.RoleLearner || n.dir.Alive(st.Owner))
}
