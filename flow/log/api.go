package log

import (
	"context"

	"github.com/skeinmesh/skein/ring"
)

// HardState is what raft must remember before it may answer: term, vote, and (lazily) commit.
type HardState struct{ Term, Vote, Commit uint64 }

// EntryType mirrors raft's entry types. Append only.
type EntryType uint8

const (
	EntryNormal EntryType = 0
	EntryConf   EntryType = 1 // ConfChange (v1)
	EntryConfV2 EntryType = 2
)

// Entry is one raft log entry. Data is shared, not copied: nobody may change it.
type Entry struct {
	Index, Term uint64
	Type        EntryType
	Data        []byte
}

// Mark is a position in a group's log.
type Mark struct{ Index, Term uint64 }

// Write is one atomic change to one group in the journal.
type Write struct {
	Group ring.GroupID
	// HardState, where not nil, replaces the group's.
	HardState *HardState
	// Entries are contiguous; those at or above Entries[0].Index that were there before are dropped.
	Entries []Entry
	// Reset, where not nil, drops all entries and makes the log start after this mark (birth, snapshot).
	Reset *Mark
	// Birth, where not nil, is the group's creation record: opaque here, given back at Load. Kept until removal.
	Birth []byte
	// Tombstone, where above 0, removes the group and remembers the highest removed replica id for ever.
	Tombstone uint64
}

// GroupState is what the journal knows of one group after recovery.
type GroupState struct {
	Group       ring.GroupID
	HardState   HardState
	Birth       []byte // nil: removed or never born
	First, Last uint64 // entries held are [First, Last]; Last = First-1 when none
	Compacted   Mark   // the position just before First
	Tombstone   uint64
}

// Journal is a node's shared raft log: one append writer, one fsync stream, group commit across all groups.
// All methods are safe for concurrent use. Two implementations: the files of this package, and the deterministic twin
// in logtest; one conformance suite covers both.
type Journal interface {
	// Append queues writes as one atomic unit and returns at once, or waits while the queue is full, until ctx ends: then nothing was
	// queued, and done gets why. done is called from the writer's goroutine, in order of the calls, once the unit is durable (sync) or
	// handed to the OS (not sync); it must not block. A unit without writes only waits for those before it. After an fsync error every
	// later done gets the error: nothing is retried, the process must stop.
	Append(ctx context.Context, writes []Write, sync bool, done func(error))
	// Groups lists every group known, removed ones with their tombstone.
	Groups() []GroupState
	// Load returns one group's state.
	Load(g ring.GroupID) (GroupState, bool)
	// Entries returns entries [lo, hi) up to maxBytes of data but at least one. Errors: ErrCompacted, ErrUnavailable.
	// Only what is already durable is visible.
	Entries(g ring.GroupID, lo, hi, maxBytes uint64) ([]Entry, error)
	// Term returns the term of the entry at i (also of Compacted). Errors as Entries.
	Term(g ring.GroupID, i uint64) (uint64, error)
	// Release says that entries up to i are applied and durable elsewhere: they may be dropped when space is wanted. The
	// journal keeps what it can, bounded by its size limit, for followers that lag.
	Release(g ring.GroupID, i uint64)
	// Close waits for the queue, then closes. Idempotent.
	Close() error
}

// Store holds small state: ordered keys, atomic batches, no sync of its own. What was committed but not flushed may be
// lost in a crash, always as a suffix of the commits; the journal then replays it.
type Store interface {
	// Get returns a copy of the value, or ok=false.
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan calls fn for each key with the prefix, in order; key and value are only valid during the call.
	Scan(prefix []byte, fn func(key, value []byte) error) error
	// NewBatch starts an atomic batch. A batch is used by one goroutine.
	NewBatch() Batch
	// Flush makes everything committed before the call durable.
	Flush(ctx context.Context) error
	// Close flushes and closes. Idempotent.
	Close() error
}

// Batch gathers changes that become visible together at Commit.
type Batch interface {
	Set(key, value []byte)
	Delete(key []byte)
	// DeleteRange removes all keys in [lo, hi).
	DeleteRange(lo, hi []byte)
	// Commit applies the batch and frees it.
	Commit() error
}
