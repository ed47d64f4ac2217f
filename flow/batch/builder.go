package batch

import (
	"github.com/klauspost/compress/s2"

	"github.com/skeinmesh/skein/transport/wire"
)

// ErrFull means that a record does not fit into a batch that has records already: finish it and add to the next.
var ErrFull = &wire.Error{Kind: wire.KindInvalid, Code: "batch-full", Detail: "the batch is full"}

// Builder frames records into a batch. It is reused through Reset and then does not allocate. One goroutine uses it. The
// zero Builder is ready.
type Builder struct {
	raw        []byte
	compressed []byte
	identities []Identity
	count      int
	identified bool
}

// Reset empties the builder. What Finish returned is no longer valid afterwards.
func (b *Builder) Reset() {
	b.raw, b.identities = b.raw[:0], b.identities[:0]
	b.count, b.identified = 0, false
}

// Add appends a copy of a record that has no identity. Errors: ErrFull; KindInvalid with CodeTooLarge naming what is too
// large. After an error the builder is as it was before.
func (b *Builder) Add(r *Record) error { return b.AddIdentified(r, Identity{}) }

// AddIdentified is Add for a record with an identity; the zero Hash means none.
func (b *Builder) AddIdentified(r *Record, id Identity) error {
	if err := r.Check(); err != nil {
		return err
	}
	if b.count == MaxRecords || len(b.raw)+r.Size() > MaxRaw {
		return ErrFull
	}
	b.raw = appendRecord(b.raw, r)
	b.identities = append(b.identities, id)
	b.identified = b.identified || id.Hash != [16]byte{}
	b.count++
	return nil
}

// Len is the number of records so far.
func (b *Builder) Len() int { return b.count }

// RawBytes is the size of the payload so far, uncompressed.
func (b *Builder) RawBytes() int { return len(b.raw) }

// Finish returns the batch: its header without session, sequence and what apply fills in, and its payload. With compress
// the payload is s2-compressed if that saves an eighth at least: less is not worth the reader's work. Both refer to the
// builder's memory and are valid until Reset. An empty builder gives a batch that no decoder takes.
func (b *Builder) Finish(compress bool) (Meta, []byte) {
	m := Meta{Count: uint32(b.count), RawLen: uint32(len(b.raw))}
	payload := b.raw
	if compress && len(b.raw) > 0 {
		if n := s2.MaxEncodedLen(len(b.raw)); cap(b.compressed) < n {
			b.compressed = make([]byte, n)
		}
		c := s2.Encode(b.compressed[:cap(b.compressed)], b.raw)
		if len(c) <= len(b.raw)-len(b.raw)/8 {
			payload, m.Codec = c, CodecS2
		}
	}
	m.PayloadLen = uint32(len(payload))
	m.PayloadCRC = crcOf(payload)
	if b.identified {
		m.Identities = b.identities
	}
	return m, payload
}
