package batch

import "github.com/klauspost/compress/s2"

// Reader gives out the records of one batch as views, without allocation per record. It is reused through Open. One goroutine
// uses it. The zero Reader is ready for Open.
type Reader struct {
	m    *Meta
	own  []byte // decompressed bytes where Open was given no scratch; reused
	d    decoder
	pos  uint32 // of the next record
	skip int    // index into m.Skip of the next position to skip
	err  error
}

// Open verifies a payload against its header and starts at its first record. A compressed payload is decompressed into scratch
// where that is large enough; nil means the reader's own memory. m, payload and scratch must not change while records of
// them are in use. Errors: KindCorrupt.
func (r *Reader) Open(m *Meta, payload, scratch []byte) error {
	*r = Reader{own: r.own, m: m}
	r.err = r.open(payload, scratch)
	return r.err
}

func (r *Reader) open(payload, scratch []byte) error {
	if err := r.m.check(); err != nil {
		return err
	}
	if err := VerifyPayload(r.m, payload); err != nil {
		return err
	}
	raw := payload
	if r.m.Codec == CodecS2 {
		n, err := s2.DecodedLen(payload)
		if err != nil || n != int(r.m.RawLen) {
			return corrupt("batch payload decompresses to %d bytes, header says %d", n, r.m.RawLen)
		}
		if cap(scratch) < n {
			if cap(r.own) < n {
				r.own = make([]byte, n)
			}
			scratch = r.own
		}
		if raw, err = s2.Decode(scratch[:n], payload); err != nil {
			return corrupt("batch payload does not decompress: %v", err)
		}
	}
	if len(raw) != int(r.m.RawLen) {
		return corrupt("batch payload of %d raw bytes, header says %d", len(raw), r.m.RawLen)
	}
	r.d = decoder{b: raw, ok: true}
	return nil
}

// Next reads the next record that has an offset into rec, reusing rec.Headers. All slices and strings in rec are views: they
// are valid until the payload, the scratch or the reader is reused (Record.Clone outlives them). false: no more, or Err.
func (r *Reader) Next(rec *Record) bool {
	for r.err == nil && r.m != nil && r.pos < r.m.Count {
		if !r.d.record(rec) {
			r.err = corrupt("record %d of a batch is malformed", r.pos)
			return false
		}
		r.pos++
		if r.pos == r.m.Count && len(r.d.b) > 0 {
			r.err = corrupt("%d bytes follow the last record of a batch", len(r.d.b))
			return false
		}
		if r.skip < len(r.m.Skip) && r.m.Skip[r.skip] == r.pos-1 {
			r.skip++
			continue
		}
		return true
	}
	return false
}

// Position is the place in the batch of the record that Next gave last, from 0, skipped ones counted.
func (r *Reader) Position() uint32 { return r.pos - 1 }

// Offset is the offset of the record that Next gave last.
func (r *Reader) Offset() uint64 { return r.m.Base + uint64(r.pos-1) - uint64(r.skip) }

// Err is why Next stopped before the end: nil, or KindCorrupt.
func (r *Reader) Err() error { return r.err }
