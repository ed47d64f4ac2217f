package catalog

import (
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// PartitionState says whether a partition takes events. The numbers are on disk: append only.
type PartitionState uint8

const (
	Open   PartitionState = 1
	Sealed PartitionState = 2 // a reshape closed it; its children go on
	// Importing partitions are being filled from an export. Since wire.Version2.
	Importing PartitionState = 3
)

func (s PartitionState) String() string {
	switch s {
	case Open:
		return "open"
	case Sealed:
		return "sealed"
	case Importing:
		return "importing"
	}
	return "unknown"
}

// Partition is one partition of a stream's lineage.
type Partition struct {
	ID       ring.PartitionID   `msgpack:"i"`
	Range    ring.Range         `msgpack:"r"`
	Group    ring.GroupID       `msgpack:"g"`
	State    PartitionState     `msgpack:"s"` // in a CreateStream: ignored, always Open
	Parents  []ring.PartitionID `msgpack:"pa,omitempty"`
	Children []ring.PartitionID `msgpack:"ch,omitempty"`
	// Birth is what the partition's founding replicas come into being from. Self is 0 here: each founder fills in its own.
	Birth replica.Birth `msgpack:"b"`
}

// Stream is one incarnation of a stream. Values given out are shared snapshots: nobody may change them.
type Stream struct {
	Name string        `msgpack:"n"`
	ID   ring.StreamID `msgpack:"i"`
	Seed ring.Seed     `msgpack:"k"`
	// Version changes with each change of the definition and never repeats within the shard, so an old incarnation's version
	// cannot match a new one's.
	Version    uint64       `msgpack:"v"`
	CreatedMS  int64        `msgpack:"c"` // Unix ms, as the proposer saw it
	UpdatedMS  int64        `msgpack:"u"`
	Config     StreamConfig `msgpack:"cf"`
	Partitions []Partition  `msgpack:"p"` // the lineage, ascending by id
	// Import is the export that the stream is being filled from, and zero once it is. Since wire.Version2.
	Import [16]byte `msgpack:"im"`
}

// Partition returns the partition of that id.
func (s *Stream) Partition(p ring.PartitionID) (*Partition, bool) {
	for i := range s.Partitions {
		if s.Partitions[i].ID == p {
			return &s.Partitions[i], true
		}
	}
	return nil, false
}

// For returns the open partition whose range holds hash h; nil where none is (in a valid lineage only while it is imported).
func (s *Stream) For(h uint64) *Partition {
	for i := range s.Partitions {
		if p := &s.Partitions[i]; p.State == Open && p.Range.Contains(h) {
			return p
		}
	}
	return nil
}

// Tombstone remembers a deleted incarnation, so that nodes which still hold replicas of it learn that they may go.
type Tombstone struct {
	Stream    ring.StreamID  `msgpack:"s"`
	Name      string         `msgpack:"n"`
	Groups    []ring.GroupID `msgpack:"g"`
	DeletedMS int64          `msgpack:"d"` // Unix ms
	Version   uint64         `msgpack:"v"` // shard version of the deletion; orders tombstones
}

// Fate is what a shard knows of a stream incarnation.
type Fate uint8

const (
	// FateUnknown: neither alive nor remembered. Behind a read barrier it means gone, because no replica is born before its
	// stream's entry is committed; on a replica that may lag it means nothing.
	FateUnknown Fate = iota
	FateAlive
	FateDeleted
)

// Result is what Apply answers to the proposer. Exactly one of Stream and Err is set, except that a no-op has neither.
type Result struct {
	// Stream is the definition after the entry (of DeleteStream: the last one before it). Shared: nobody may change it.
	Stream *Stream
	// Created: the stream exists since this entry (or since an earlier copy of it: a retry with the same StreamID).
	Created bool
	// Err: KindInvalid, KindNotFound (stream-not-found), KindConflict (the Code… constants below), KindUnavailable.
	Err *wire.Error
}

// Codes of refusals that are born here.
const (
	CodeExists          = "exists"           // CreateOnly, and the stream exists
	CodeConfigDiffers   = "config-differs"   // CreateOrSame, and it exists with another config
	CodeVersionMismatch = "version-mismatch" // the version or incarnation asked for is not the present one
	CodeDeleted         = "deleted"          // a late retry of a creation whose stream was deleted since
	CodeImmutable       = "immutable"        // the field cannot be changed after creation
	CodeTooManyStreams  = "too-many-streams" // the shard is full
)

// Bounds of one shard. They are part of the replicated state's rules: changing one needs a new entry version.
const (
	MaxStreams       = 10_000 // alive streams
	MaxTombstones    = 4_096
	TombstoneAgeMS   = 7 * 24 * 60 * 60 * 1000 // by the entries' own time
	MaxNameBytes     = 249
	MaxSpecBytes     = 4 << 10 // of one birth record
	MaxBirthMembers  = 16
	MaxEntryBytes    = 2 << 20
	maxRecordBytes   = MaxEntryBytes + 4<<10 // one stream or tombstone in the store or in a checkpoint
	checkpointFrame  = 256 << 10
	maxCheckpointLen = 1 << 30
)
