package flow

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
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

// maxCursorPartitions bounds what a cursor may name: far above what a stream can have open at once.
const maxCursorPartitions = 4096

const cursorVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ParsePosition reads the text form of a position; now anchors relative times. An empty string is latest.
func ParsePosition(s string, now time.Time) (Position, error) {
	switch {
	case s == "" || s == "latest":
		return Position{Kind: FromLatest}, nil
	case s == "earliest":
		return Position{Kind: FromEarliest}, nil
	case s[0] == '@':
		at, err := time.Parse(time.RFC3339Nano, s[1:])
		if err != nil {
			return Position{}, badPosition(s, "the time after @ must be RFC 3339, such as @2026-01-31T12:00:00Z")
		}
		return Position{Kind: FromTime, At: at}, nil
	case s[0] == '-':
		d, err := time.ParseDuration(s[1:])
		if err != nil || d < 0 {
			return Position{}, badPosition(s, "the time after - must be a duration, such as -15m or -1h30m")
		}
		return Position{Kind: FromTime, At: now.Add(-d)}, nil
	case strings.Contains(s, ":"):
		return parseOffsets(s)
	}
	c, err := ParseCursor(s)
	if err != nil {
		return Position{}, err
	}
	return Position{Kind: FromCursor, Cursor: c}, nil
}

func parseOffsets(s string) (Position, error) {
	pos := Position{Kind: FromOffsets, Offsets: map[ring.PartitionID]uint64{}}
	for part := range strings.SplitSeq(s, ",") {
		ps, os, ok := strings.Cut(part, ":")
		p, err1 := strconv.ParseUint(ps, 10, 32)
		o, err2 := strconv.ParseUint(os, 10, 63)
		if !ok || err1 != nil || err2 != nil {
			return Position{}, badPosition(s, "expected PARTITION:OFFSET[,PARTITION:OFFSET…] in decimal, such as 0:120,3:7")
		}
		if _, twice := pos.Offsets[ring.PartitionID(p)]; twice || len(pos.Offsets) >= maxCursorPartitions {
			return Position{}, badPosition(s, "each partition may be named once, at most "+strconv.Itoa(maxCursorPartitions)+" of them")
		}
		pos.Offsets[ring.PartitionID(p)] = o
	}
	return pos, nil
}

func badPosition(s, want string) error {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return wire.Errorf(wire.KindInvalid, "invalid-position", "position %q: %s", s, want)
}

// IsZero reports whether the cursor names no stream.
func (c Cursor) IsZero() bool { return c.Stream.IsZero() }

// Clone returns a cursor that shares nothing with c.
func (c Cursor) Clone() Cursor { return Cursor{Stream: c.Stream, Next: maps.Clone(c.Next)} }

// String is the cursor's text form: base64url of version, incarnation, (partition, next) pairs and a CRC-32C.
func (c Cursor) String() string {
	if c.IsZero() {
		return ""
	}
	b := make([]byte, 0, 24+6*len(c.Next))
	b = append(b, cursorVersion)
	b = append(b, c.Stream[:]...)
	b = binary.AppendUvarint(b, uint64(len(c.Next)))
	for _, p := range slices.Sorted(maps.Keys(c.Next)) {
		b = binary.AppendUvarint(b, uint64(p))
		b = binary.AppendUvarint(b, c.Next[p])
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseCursor reads what String wrote. Errors are KindInvalid.
func ParseCursor(s string) (Cursor, error) {
	bad := func(why string) (Cursor, error) {
		return Cursor{}, badPosition(s, "not a cursor ("+why+"); use one as it was given, or earliest, latest, @TIME, -DURATION, PARTITION:OFFSET")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return bad("not base64url")
	}
	if len(b) < 1+16+1+4 {
		return bad("too short")
	}
	if b[0] != cursorVersion {
		return bad("unknown version")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return bad("checksum does not match")
	}
	c := Cursor{Stream: ring.StreamID(body[1:17])}
	body = body[17:]
	n, k := binary.Uvarint(body)
	if k <= 0 || n > maxCursorPartitions {
		return bad("bad count")
	}
	body = body[k:]
	c.Next = make(map[ring.PartitionID]uint64, n)
	for range n {
		p, k1 := binary.Uvarint(body)
		if k1 <= 0 || p > 1<<32-1 {
			return bad("bad partition")
		}
		o, k2 := binary.Uvarint(body[k1:])
		if k2 <= 0 || o > 1<<63-1 {
			return bad("bad offset")
		}
		if _, twice := c.Next[ring.PartitionID(p)]; twice {
			return bad("a partition twice")
		}
		c.Next[ring.PartitionID(p)] = o
		body = body[k1+k2:]
	}
	if len(body) != 0 {
		return bad("bytes left over")
	}
	return c, nil
}
