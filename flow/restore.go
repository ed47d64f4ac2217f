package flow

import (
	"cmp"
	"slices"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Remnant is a replica of a partition whose stream's definition is lost.
type Remnant struct {
	Spec    []byte         // the partition's, with the limits that were applied there last
	Replica replica.Member // what it is called in its group, and where it is
	// Removed: it is no member of its group any more, what it has is from before, and the group goes on without it.
	Removed bool
	// Export is from what the partition was filled by an import, and zero where it was not; Filled: to the end.
	Export [16]byte
	Filled bool
}

// Restored is a stream's definition as its remnants tell of it.
type Restored struct {
	Name       string
	ID         ring.StreamID
	Partitions int
	Absent     []ring.PartitionID // of which there is no replica to go on from
	Removed    []ring.PartitionID // those of them of which there is a removed one
	Config     StreamConfig
	Entry      []byte // for the catalog shard of its name
}

// remnant is one that was read.
type remnant struct {
	Remnant
	spec partition.Spec
}

// Restore makes the definitions of streams again from all replicas that are left of their partitions, by name. Those of a partition come in
// the order in which it would go on from them, the one that has most first. What a partition does not know has its default: order,
// min_partitions, max_partitions, hot_keys, affinity and pin. Partitions of which nothing is left to go on from are said to be on node lost,
// where nobody brings them into being: a partition never begins again at offset 0. Errors: KindCorrupt; KindInvalid and KindConflict, with
// what to do.
func Restore(remnants []Remnant, lost ring.NodeID, nowMS int64) ([]Restored, error) {
	streams := map[ring.StreamID][]remnant{}
	names := map[string]ring.StreamID{}
	for _, r := range remnants {
		spec, err := partition.ParseSpec(r.Spec)
		if err != nil {
			return nil, err
		}
		if other, ok := names[spec.Name]; ok && other != spec.Stream {
			return nil, wire.Errorf(wire.KindConflict, catalog.CodeExists, "there are partitions of two incarnations of stream %s, %s and %s: one was deleted; say which one to forget",
				spec.Name, min(other.String(), spec.Stream.String()), max(other.String(), spec.Stream.String()))
		}
		names[spec.Name] = spec.Stream
		streams[spec.Stream] = append(streams[spec.Stream], remnant{r, spec})
	}
	var out []Restored
	for _, rs := range streams {
		slices.SortStableFunc(rs, func(a, b remnant) int { return cmp.Compare(a.spec.Partition, b.spec.Partition) })
		s, err := restore(rs, lost, nowMS)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Restored) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// restore makes one stream's definition from its remnants, which are in the order of their partitions.
func restore(rs []remnant, lost ring.NodeID, nowMS int64) (Restored, error) {
	of := rs[0].spec
	ranges, err := rangesOf(rs)
	if err != nil {
		return Restored{}, err
	}
	members := slices.DeleteFunc(slices.Clone(rs), func(r remnant) bool { return r.Removed })
	tell := members
	if len(tell) == 0 {
		tell = rs
	}
	cmd := catalog.CreateStream{Name: of.Name, ID: of.Stream, Seed: of.Seed, Config: configOf(widest(tell), len(ranges)), NowMS: nowMS}
	if err := cmd.Config.Validate(); err != nil {
		return Restored{}, err
	}
	out := Restored{Name: of.Name, ID: of.Stream, Partitions: len(ranges), Config: cmd.Config}
	export := importOf(members)
	for i, r := range ranges {
		p := catalog.Partition{ID: ring.PartitionID(i), Range: r, Group: ring.PartitionGroup(of.Stream, ring.PartitionID(i)), State: catalog.Open}
		p.Birth = replica.Birth{Group: p.Group, Kind: replica.KindPartition}
		if p.Birth.Spec, err = specOf(&cmd, p.ID, r); err != nil {
			return Restored{}, err
		}
		of := func(r remnant) bool { return r.spec.Partition == p.ID }
		for ; len(members) > 0 && of(members[0]); members = members[1:] {
			p.Birth.Members = append(p.Birth.Members, replica.Member{ID: members[0].Replica.ID, Node: members[0].Replica.Node})
		}
		if len(p.Birth.Members) == 0 {
			out.Absent = append(out.Absent, p.ID)
			if slices.ContainsFunc(rs, of) {
				out.Removed = append(out.Removed, p.ID)
			}
			p.Birth.Members = []replica.Member{{ID: 1, Node: lost}}
		}
		cmd.Partitions = append(cmd.Partitions, p)
	}
	if export == [16]byte{} {
		out.Entry, err = catalog.Encode(cmd)
	} else {
		out.Entry, err = catalog.Encode(catalog.BeginImport{Create: cmd, Export: export})
	}
	return out, err
}

// rangesOf finds the ranges of all partitions of a stream. They are even, so that each one tells how many there are.
func rangesOf(rs []remnant) ([]ring.Range, error) {
	for n := 1; n <= catalog.MaxPartitions; n++ {
		ranges := ring.EvenRanges(n)
		if !slices.ContainsFunc(rs, func(r remnant) bool { return int(r.spec.Partition) >= n || ranges[r.spec.Partition] != r.spec.Range }) {
			return ranges, nil
		}
	}
	return nil, wire.Errorf(wire.KindInvalid, "", "what is left of stream %s does not tell how many partitions it had", rs[0].spec.Name)
}

// widest are the limits under which nothing goes sooner than under those of any of the replicas. They differ where one lags, or where the
// catalog was lost before a change had come to all partitions: nobody can tell then whether the longest retention is the older one, and
// what it kept too long can still be removed.
func widest(rs []remnant) partition.Limits {
	longer := func(a, b int64) int64 {
		if a <= 0 || b <= 0 {
			return -1 // without limit
		}
		return max(a, b)
	}
	l := rs[0].spec.Limits
	for _, r := range rs {
		o := r.spec.Limits
		l = partition.Limits{DedupeWindowMS: max(l.DedupeWindowMS, o.DedupeWindowMS), RetentionMS: longer(l.RetentionMS, o.RetentionMS),
			RetentionBytes: longer(l.RetentionBytes, o.RetentionBytes), MaxEventBytes: max(l.MaxEventBytes, o.MaxEventBytes),
			Replicas: max(l.Replicas, o.Replicas), MinCopies: max(l.MinCopies, o.MinCopies)} // which is at most its replicas in each of them
	}
	return l
}

// configOf is the config whose limits (limitsOf) each of n partitions has.
func configOf(l partition.Limits, n int) StreamConfig {
	cfg := StreamConfig{Partitions: n, Replicas: l.Replicas, MinCopies: l.MinCopies, RetentionMS: l.RetentionMS, RetentionBytes: l.RetentionBytes,
		DedupeWindowMS: l.DedupeWindowMS, MaxEventBytes: l.MaxEventBytes}
	if cfg.RetentionBytes > 0 {
		cfg.RetentionBytes *= int64(n)
	}
	return cfg.WithDefaults()
}

// importOf is the export from which a stream is still being filled, zero where none is. Its partitions are filled one after the other: all
// must be, each as the replica says from which it would go on, its first.
func importOf(rs []remnant) (export [16]byte) {
	whole := true
	for i, r := range rs {
		if r.Export != [16]byte{} {
			export = r.Export
		}
		if i == 0 || rs[i-1].spec.Partition != r.spec.Partition {
			whole = whole && r.Filled
		}
	}
	if whole {
		return [16]byte{}
	}
	return export
}
