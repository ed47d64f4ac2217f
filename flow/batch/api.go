package batch

import (
	"encoding/binary"

	"github.com/skeinmesh/skein/ring"
)

// Header is one name and value that travel with an event, in the publisher's order.
type Header struct{ Name, Value string }

// Record is one event as published. Slices are views into the batch where a reader gives them out.
type Record struct {
	Key         []byte
	HasKey      bool // an empty key is a key
	Value       []byte
	ContentType string
	// ID, Source, Type are CloudEvents attributes; (Source, ID) is the event's identity where both are given.
	ID, Source, Type string
	// Time is the publisher's own time for the event, in Unix milliseconds; 0: none given.
	Time int64
	// Headers holds everything else that is kept: ce-subject, ce-dataschema, extensions (as "ce-…"), traceparent, tracestate.
	Headers []Header
}

// Identity names an event in the dedupe window: Hash is 128 bits keyed by the stream, Payload a 64-bit hash of the
// content (to notice that one identity came with other content). The zero Hash means "no identity".
type Identity struct {
	Hash    [16]byte
	Payload uint64
}

// Codec says how a payload is stored. On disk: append only.
type Codec uint8

const (
	CodecNone Codec = 0
	CodecS2   Codec = 1
)

// Meta is everything about a batch but its payload. The first part is fixed by the ingest node, the second is filled in by
// the owner (Stamp) and by apply (the rest); the payload's CRC does not cover it, its own CRC does.
type Meta struct {
	Codec      Codec
	Count      uint32 // records in the payload
	RawLen     uint32 // payload bytes once decompressed
	PayloadLen uint32
	PayloadCRC uint32 // CRC-32C
	Session    [16]byte
	Seq        uint64
	Identities []Identity // nil, or one per record

	Stamp int64    // owner's time in Unix ms, never going back within a partition
	Base  uint64   // offset of the first record that is not skipped
	Skip  []uint32 // ascending positions of records that were duplicates: they have no offset and no reader sees them
	Index uint64   // raft position of the entry
	Term  uint64
}

// Offsets is how many offsets the batch takes.
func (m *Meta) Offsets() uint64 { return uint64(m.Count) - uint64(len(m.Skip)) }

// Next is the offset after the batch.
func (m *Meta) Next() uint64 { return m.Base + m.Offsets() }

// Limits that every decoder checks before it allocates.
const (
	MaxRecords  = 16384   // records in a batch
	MaxRaw      = 4 << 20 // bytes of a payload once decompressed
	MaxKey      = 64 << 10
	MaxHeaders  = 64
	MaxAttr     = 8 << 10   // bytes of one attribute or header value
	TargetBytes = 128 << 10 // a full batch: larger ones gain little more throughput, and cost readers memory
)

// IdentityOf hashes an event's identity under its stream's seed. The source's length goes first, so that no two different
// pairs are hashed as the same bytes. Pure. The result is never the zero Hash, which means "no identity".
func IdentityOf(seed ring.Seed, source, id string) (h [16]byte) {
	buf := make([]byte, 0, 128)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(source)))
	buf = append(buf, source...)
	buf = append(buf, id...)
	hi, lo := ring.Hash128(seed, buf)
	binary.LittleEndian.PutUint64(h[:8], hi)
	binary.LittleEndian.PutUint64(h[8:], lo)
	if h == ([16]byte{}) {
		h[0] = 1
	}
	return h
}
