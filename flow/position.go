package flow

import (
	"time"

	"github.com/skeinmesh/skein/ring"
)

// PositionKind says how a Position names its place.
type PositionKind int

const (
	FromLatest PositionKind = iota // the default for live reading
	FromEarliest
	FromTime    // At
	FromOffsets // Offsets; partitions not named start at their earliest
	FromCursor  // Cursor
)

// Position is where a subscription starts: earliest, latest, @RFC3339, -15m, P:OFFSET[,…] or a cursor (API.md).
type Position struct {
	Kind    PositionKind
	At      time.Time
	Offsets map[ring.PartitionID]uint64
	Cursor  Cursor
}

// Cursor is a resume position over all partitions of one stream incarnation: the next offset to read of each partition not
// yet finished. Its text form is opaque and versioned.
type Cursor struct {
	Stream ring.StreamID
	Next   map[ring.PartitionID]uint64
}
