package partition

import "github.com/skeinmesh/skein/transport/wire"

// Codes of refusals that are born here.
const (
	CodeSessionUnknown = "session-unknown" // never opened, closed, expired or evicted: open a new one
	CodeSequenceGap    = "sequence-gap"    // an earlier batch of the session is missing: send it first
)

// BatchResult is what became of a batch. A retry of the same session and sequence gets the result of the first try.
type BatchResult struct {
	Base  uint64 // offset of the first record that got one
	Count uint32 // records in the batch, duplicates too
	Stamp int64  // the batch's time in Unix ms
	// Dups are the records that got no offset, by position.
	Dups []Dup
	// Retry: the batch had been applied before, and this is what came of it then.
	Retry bool
	// Err, where not nil, says why nothing was stored: KindFenced (CodeSessionUnknown, CodeSequenceGap), KindConflict (the
	// sequence number was used for another batch), KindOutcomeUnknown (applied so long ago that the outcome is forgotten).
	Err *wire.Error
}

// Dup is a record that was not stored because its identity is in the dedupe window.
type Dup struct {
	Pos    uint32 `msgpack:"p"`           // in the batch
	Offset uint64 `msgpack:"o"`           // of the event that has the identity
	Reused bool   `msgpack:"r,omitempty"` // that event has other content
}

// SessionResult is what became of opening or closing a session.
type SessionResult struct {
	// Last is the highest sequence number applied in the session: the next batch has Last+1.
	Last uint64
	// Stamp is the entry's time in Unix ms.
	Stamp int64
}

// TrimResult is what became of a trim.
type TrimResult struct {
	Start uint64 // the first offset there is
}

// ConfigResult is what became of a change of limits.
type ConfigResult struct {
	Limits Limits
}
