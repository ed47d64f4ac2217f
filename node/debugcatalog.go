package node

import (
	"context"
	"fmt"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// DebugShard is a copy of a catalog shard, before its streams and tombstones. It is what this node's state holds: others may be ahead, and
// so may this node's own journal.
type DebugShard struct {
	Item    string       `json:"item"` // shard
	Shard   int          `json:"shard"`
	Group   ring.GroupID `json:"group"`
	Version uint64       `json:"version"`  // counts changes
	ClockMS int64        `json:"clock_ms"` // the latest time that an entry carried
	// Applied is the position of the state, Last the last entry in this node's journal, or 0 where that is not known: what lies between is
	// not shown.
	Applied     uint64 `json:"applied_index"`
	AppliedTerm uint64 `json:"applied_term"`
	Last        uint64 `json:"journal_index"`
}

// DebugStream is a stream's definition. Its hash seed is a secret and left out.
type DebugStream struct {
	Item        string                 `json:"item"` // stream
	Shard       int                    `json:"shard"`
	Name        string                 `json:"name"`
	Incarnation ring.StreamID          `json:"incarnation"`
	Version     uint64                 `json:"version"`
	CreatedMS   int64                  `json:"created_ms"`
	UpdatedMS   int64                  `json:"updated_ms"`
	Importing   bool                   `json:"importing,omitempty"`
	Config      catalog.StreamConfig   `json:"config"`
	Partitions  []DebugStreamPartition `json:"partitions"`
}

// DebugStreamPartition is a partition in a stream's definition.
type DebugStreamPartition struct {
	Partition ring.PartitionID   `json:"partition"`
	Group     ring.GroupID       `json:"group"`
	State     string             `json:"state"`
	RangeLo   string             `json:"range_lo"`
	RangeHi   string             `json:"range_hi"`
	Parents   []ring.PartitionID `json:"parents,omitempty"`
	Children  []ring.PartitionID `json:"children,omitempty"`
	Founders  []ring.NodeID      `json:"founders"` // where it was born; it may have moved
}

// DebugTombstone remembers a deleted stream.
type DebugTombstone struct {
	Item        string         `json:"item"` // tombstone
	Shard       int            `json:"shard"`
	Name        string         `json:"name"`
	Incarnation ring.StreamID  `json:"incarnation"`
	Version     uint64         `json:"version"`
	DeletedMS   int64          `json:"deleted_ms"`
	Groups      []ring.GroupID `json:"groups"`
}

// DebugCatalog shows the copies of catalog shards that a stopped node has.
func DebugCatalog(ctx context.Context, dataDir string, emit func(item any) error) error {
	d, err := openDebug(dataDir, false, emit)
	if err != nil {
		return err
	}
	return d.end(d.catalog(ctx))
}

func (d *debugging) catalog(ctx context.Context) error {
	for i := range d.held {
		h := &d.held[i]
		if h.Birth.Kind != replica.KindCatalog {
			continue
		}
		if err := d.shard(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// shard shows one copy. Where the state cannot be read the shard alone is shown: that there is one.
func (d *debugging) shard(ctx context.Context, h *replica.Held) error {
	_, n := d.nameOf(h)
	out := &DebugShard{Item: "shard", Shard: n, Group: h.Birth.Group, Applied: h.Applied.Index, AppliedTerm: h.Applied.Term, Last: h.Last}
	if d.store == nil || h.Foreign {
		return d.emit(out)
	}
	state := d.path("state")
	err := catalog.Inspect(d.store, replica.StatePrefix(h.Birth.Group), catalog.Visitor{
		Head: func(version uint64, clockMS int64) error {
			out.Version, out.ClockMS = version, clockMS
			return d.emit(out)
		},
		Stream: func(s *catalog.Stream) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return d.emit(describeStream(n, s))
		},
		Tombstone: func(t *catalog.Tombstone) error { return d.emit(describeTombstone(n, t)) },
		Damaged: func(err error) error {
			return d.found(log.Finding{Path: state, Kind: log.FoundDamage, Detail: fmt.Sprintf("catalog shard %d: %s", n, err)})
		},
	})
	if wire.KindOf(err) == wire.KindCorrupt {
		return d.unreadable(state, err)
	}
	return err
}

func describeStream(shard int, s *catalog.Stream) *DebugStream {
	out := &DebugStream{Item: "stream", Shard: shard, Name: s.Name, Incarnation: s.ID, Version: s.Version, CreatedMS: s.CreatedMS, UpdatedMS: s.UpdatedMS,
		Importing: s.Importing(), Config: s.Config, Partitions: []DebugStreamPartition{}}
	for i := range s.Partitions {
		p := &s.Partitions[i]
		d := DebugStreamPartition{Partition: p.ID, Group: p.Group, State: p.State.String(), RangeLo: fmt.Sprintf("%016x", p.Range.Lo),
			RangeHi: fmt.Sprintf("%016x", p.Range.Hi), Parents: p.Parents, Children: p.Children, Founders: []ring.NodeID{}}
		for _, m := range p.Birth.Members {
			d.Founders = append(d.Founders, m.Node)
		}
		out.Partitions = append(out.Partitions, d)
	}
	return out
}

func describeTombstone(shard int, t *catalog.Tombstone) *DebugTombstone {
	return &DebugTombstone{Item: "tombstone", Shard: shard, Name: t.Name, Incarnation: t.Stream, Version: t.Version, DeletedMS: t.DeletedMS, Groups: t.Groups}
}
