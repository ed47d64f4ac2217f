package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// A catalog shard of which no survivor has a copy is made anew by one of them, with the definitions of the streams whose partitions the
// survivors have. Two things must never be: two new shards, or a new one beside an old copy. So one is only made where every node that any
// survivor knows is said to be lost, or gave its report: all who have these reports come to the same node, and the lost ones are let in no
// more. And the operator must ask for it: of a survivor that nobody here knows, only he can know; the new shard would take its partitions
// for those of streams that were deleted.

// Verdicts on a catalog shard without a copy here; RecoverElsewhere and RecoverBlocked, too: another survivor has one, or makes it; and the
// definitions cannot be made again.
const (
	RecoverUnknown = "unknown" // a node that is not lost gave no report: it may have a copy
	RecoverGone    = "gone"    // no survivor has a copy
	RecoverAnew    = "anew"    // the same, and it is made anew here
)

// RecoverShard is a catalog shard without a copy on this node.
type RecoverShard struct {
	Number  int    `json:"number"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	// Streams are those that a new shard knows.
	Streams []RecoverStream `json:"streams,omitempty"`
}

// RecoverStream is a stream whose definition is made again from its partitions.
type RecoverStream struct {
	Name       string        `json:"name"`
	ID         ring.StreamID `json:"stream_id"`
	Partitions int           `json:"partitions"`
	// Absent are those without a copy on any survivor: they get no owner any more. A copy that was removed from its group is none; Removed
	// are those of them that have such a one.
	Absent  []ring.PartitionID `json:"absent,omitempty"`
	Removed []ring.PartitionID `json:"removed,omitempty"`
	Config  flow.StreamConfig  `json:"config"`
}

// Name is what people call the shard.
func (s *RecoverShard) Name() string { return shardName(s.Number) }

func shardName(i int) string { return fmt.Sprintf("catalog shard %d", i) }

// lookForShards judges the catalog shards that have no copy here.
func (r *recovery) lookForShards() error {
	for _, i := range r.req.NewShards {
		if i < 0 || i >= catalogShards {
			return fmt.Errorf("there is no catalog shard %d: they are 0 to %d", i, catalogShards-1)
		}
	}
	for i := range catalogShards {
		if hasCopy(&r.report, i) {
			if slices.Contains(r.req.NewShards, i) {
				return fmt.Errorf("%s has a copy on this node: leave it out of the shards to make anew", shardName(i))
			}
			continue
		}
		s := r.judgeShard(i)
		if s.Verdict == RecoverGone && slices.Contains(r.req.NewShards, i) {
			s.Verdict = RecoverAnew
		}
		r.report.Shards = append(r.report.Shards, s)
	}
	for _, id := range r.req.Forget {
		known := func(g RecoverGroup) bool {
			return g.StreamID.String() == id && !hasCopy(&r.report, ring.CatalogShard(g.Stream, catalogShards))
		}
		if !slices.ContainsFunc(r.reports(), func(o RecoverReport) bool { return slices.ContainsFunc(o.Groups, known) }) {
			return fmt.Errorf("no survivor has a partition of a stream with the id %s whose catalog shard is missing here", id)
		}
	}
	return nil
}

// reports are those of all survivors.
func (r *recovery) reports() []RecoverReport { return append(slices.Clone(r.req.Others), r.report) }

// hasCopy reports whether a survivor has a replica of a catalog shard from which that could go on.
func hasCopy(r *RecoverReport, shard int) bool {
	return slices.ContainsFunc(r.Groups, func(g RecoverGroup) bool {
		return g.Kind == kindCatalog && g.Number == shard && g.memberOn(r.Node)
	})
}

// judgeShard decides about one catalog shard without a copy here.
func (r *recovery) judgeShard(i int) RecoverShard {
	s := RecoverShard{Number: i}
	verdict := func(v, format string, args ...any) RecoverShard {
		s.Verdict, s.Reason = v, fmt.Sprintf(format, args...)
		return s
	}
	for k := range r.req.Others {
		if hasCopy(&r.req.Others[k], i) {
			return verdict(RecoverElsewhere, "node %s has a copy", r.req.Others[k].Node)
		}
	}
	if len(r.report.Lost) == 0 {
		return verdict(RecoverUnknown, "nobody is said to be lost")
	}
	if why := r.unheard(); why != "" {
		return verdict(RecoverUnknown, "%s", why)
	}
	maker := r.report.Node
	for _, o := range r.req.Others {
		if o.Node.Compare(maker) < 0 {
			maker = o.Node
		}
	}
	if maker != r.report.Node {
		if slices.Contains(r.req.NewShards, i) {
			return verdict(RecoverElsewhere, "no survivor has a copy: node %s makes it anew, with the same --new-catalog-shards", maker)
		}
		return verdict(RecoverElsewhere, "no survivor has a copy: node %s can make it anew", maker)
	}
	restored, err := flow.Restore(r.remnants(i), r.report.Lost[0].ID, r.report.At.UnixMilli())
	if err != nil {
		return verdict(RecoverBlocked, "%s", err)
	}
	for _, d := range restored {
		s.Streams = append(s.Streams, RecoverStream{Name: d.Name, ID: d.ID, Partitions: d.Partitions, Absent: d.Absent, Removed: d.Removed, Config: d.Config})
		r.entries[i] = append(r.entries[i], d.Entry)
	}
	return verdict(RecoverGone, "no survivor has a copy")
}

// unheard says whose word is missing; "" where all survivors are heard. Whom the others know is known here, too (resolve).
func (r *recovery) unheard() string {
	var missing []string
	for _, n := range r.report.Survivors {
		i := slices.IndexFunc(r.req.Others, func(o RecoverReport) bool { return o.Node == n.ID })
		if i < 0 {
			missing = append(missing, strings.TrimSpace(n.Name+" "+n.ID.String()))
		} else if r.req.Others[i].Survivors == nil {
			return fmt.Sprintf("the report of node %s is of an older build: make it again with this one", n.ID)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("neither said to be lost nor heard, so that a copy may be there: %s", strings.Join(missing, ", "))
}

// remnants are all replicas that survivors have of partitions whose streams belong into a catalog shard, those from which a group would
// rather go on first.
func (r *recovery) remnants(shard int) []flow.Remnant {
	type held struct {
		*RecoverGroup
		node ring.NodeID
	}
	var all []held
	for _, o := range r.reports() {
		for i := range o.Groups {
			g := &o.Groups[i]
			if len(g.Spec) > 0 && ring.CatalogShard(g.Stream, catalogShards) == shard && !slices.Contains(r.req.Forget, g.StreamID.String()) {
				all = append(all, held{g, o.Node})
			}
		}
	}
	slices.SortFunc(all, func(a, b held) int { return a.compare(a.node, b.RecoverGroup, b.node) })
	var out []flow.Remnant
	for _, g := range all {
		// One that does not open cannot tell whether it was filled: nothing can be added to it.
		rem := flow.Remnant{Spec: g.Spec, Replica: replica.Member{ID: g.Replica, Node: g.node}, Removed: !g.memberOn(g.node), Filled: g.Next == nil}
		if g.Import != nil {
			rem.Export, rem.Filled = g.Import.Export, g.Import.Complete
		}
		out = append(out, rem)
	}
	return out
}

// checkNewShards refuses to begin where a shard that is asked for is not to be made anew, here or elsewhere.
func (r *recovery) checkNewShards() error {
	for _, s := range r.report.Shards {
		if !slices.Contains(r.req.NewShards, s.Number) {
			continue
		}
		copied := slices.ContainsFunc(r.req.Others, func(o RecoverReport) bool { return hasCopy(&o, s.Number) })
		if copied || s.Verdict != RecoverAnew && s.Verdict != RecoverElsewhere {
			return fmt.Errorf("nothing was changed: %s cannot be made anew: %s", s.Name(), s.Reason)
		}
	}
	return nil
}

// makeShards makes the catalog shards that are to be made here.
func (r *recovery) makeShards() error {
	for _, s := range r.report.Shards {
		if s.Verdict != RecoverAnew {
			continue
		}
		b := replica.Birth{Group: ring.CatalogGroup(r.report.Mesh, s.Number), Kind: replica.KindCatalog, Members: []replica.Member{{Node: r.report.Node}}}
		if err := replica.FoundAnew(r.journal, r.store, b, r.report.At, r.entries[s.Number]); err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
	}
	return nil
}
