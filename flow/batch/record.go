package batch

import (
	"encoding/binary"
	"strings"
	"unsafe"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// A record is one msgpack array: key (bin, or nil where there is none), value (bin), content type, id, source, type (str),
// time (int64), headers (array of str: name, value, name, value, …).
const recordFields = 8

// Clone copies everything a record refers to, so that it outlives the batch it was read from.
func (r *Record) Clone() Record {
	c := *r
	c.Key, c.Value = append([]byte(nil), r.Key...), append([]byte(nil), r.Value...)
	c.ContentType, c.ID = strings.Clone(r.ContentType), strings.Clone(r.ID)
	c.Source, c.Type = strings.Clone(r.Source), strings.Clone(r.Type)
	c.Headers = nil
	for _, h := range r.Headers {
		c.Headers = append(c.Headers, Header{Name: strings.Clone(h.Name), Value: strings.Clone(h.Value)})
	}
	return c
}

// PayloadHash is a 64-bit hash of what an event says: key, value, content type and type. Time and headers are left out, for
// a publisher's library may well stamp or trace each try anew. It is not secret, and the same on every node.
func PayloadHash(r *Record) uint64 {
	h := uint64(0)
	if r.HasKey {
		h = chain(1, r.Key)
	}
	h = chain(h, r.Value)
	h = chain(h, viewBytes(r.ContentType))
	return chain(h, viewBytes(r.Type))
}

// chain hashes part under what was hashed before it, so that no two sequences of parts look alike.
func chain(h uint64, part []byte) uint64 {
	var seed ring.Seed
	binary.LittleEndian.PutUint64(seed[:8], h)
	return ring.Hash(seed, part)
}

func viewBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Check holds a record against the caps and names what is too large. Errors: KindInvalid, CodeTooLarge.
func (r *Record) Check() error {
	switch {
	case len(r.Key) > MaxKey:
		return tooLarge("key", len(r.Key), MaxKey)
	case len(r.Key) > 0 && !r.HasKey:
		return wire.Errorf(wire.KindInvalid, "", "a record without a key has key bytes")
	case len(r.ContentType) > MaxAttr:
		return tooLarge("content type", len(r.ContentType), MaxAttr)
	case len(r.ID) > MaxAttr:
		return tooLarge("id", len(r.ID), MaxAttr)
	case len(r.Source) > MaxAttr:
		return tooLarge("source", len(r.Source), MaxAttr)
	case len(r.Type) > MaxAttr:
		return tooLarge("type", len(r.Type), MaxAttr)
	case len(r.Headers) > MaxHeaders:
		return wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "%d headers, at most %d", len(r.Headers), MaxHeaders)
	}
	for i := range r.Headers {
		if h := &r.Headers[i]; len(h.Name) > MaxAttr {
			return tooLarge("header name", len(h.Name), MaxAttr)
		} else if len(h.Value) > MaxAttr {
			return tooLarge("header "+h.Name, len(h.Value), MaxAttr)
		}
	}
	if n := r.Size(); n > MaxRaw {
		return tooLarge("event", n, MaxRaw)
	}
	return nil
}

func tooLarge(what string, n, limit int) error {
	return wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "%s of %d bytes, at most %d", what, n, limit)
}

// Size is an upper bound of the bytes that a record takes in a payload.
func (r *Record) Size() int {
	n := 32 + 9 + len(r.Key) + len(r.Value) + len(r.ContentType) + len(r.ID) + len(r.Source) + len(r.Type)
	for i := range r.Headers {
		n += 6 + len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return n
}

// appendRecord appends a record that Check has passed.
func appendRecord(dst []byte, r *Record) []byte {
	dst = append(dst, 0x90|recordFields)
	if r.HasKey {
		dst = appendBin(dst, r.Key)
	} else {
		dst = append(dst, 0xc0)
	}
	dst = appendBin(dst, r.Value)
	dst = appendStr(dst, r.ContentType)
	dst = appendStr(dst, r.ID)
	dst = appendStr(dst, r.Source)
	dst = appendStr(dst, r.Type)
	if r.Time >= 0 && r.Time < 128 {
		dst = append(dst, byte(r.Time))
	} else {
		dst = binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(r.Time))
	}
	if n := 2 * len(r.Headers); n < 16 {
		dst = append(dst, 0x90|byte(n))
	} else {
		dst = append(dst, 0xdc, byte(n>>8), byte(n))
	}
	for i := range r.Headers {
		dst = appendStr(dst, r.Headers[i].Name)
		dst = appendStr(dst, r.Headers[i].Value)
	}
	return dst
}

func appendBin(dst, b []byte) []byte {
	switch n := len(b); {
	case n < 1<<8:
		dst = append(dst, 0xc4, byte(n))
	case n < 1<<16:
		dst = append(dst, 0xc5, byte(n>>8), byte(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xc6), uint32(n))
	}
	return append(dst, b...)
}

func appendStr(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n < 1<<8:
		dst = append(dst, 0xd9, byte(n))
	default: // MaxAttr is below 1<<16
		dst = append(dst, 0xda, byte(n>>8), byte(n))
	}
	return append(dst, s...)
}

// decoder walks over one payload. ok turns false at the first byte that is out of bounds, and stays so.
type decoder struct {
	b  []byte
	ok bool
}

// record reads one record as views into the payload, reusing r.Headers.
func (d *decoder) record(r *Record) bool {
	if d.byte() != 0x90|recordFields {
		d.ok = false
		return false
	}
	r.HasKey = len(d.b) > 0 && d.b[0] != 0xc0
	if r.HasKey {
		r.Key = d.bin(MaxKey)
	} else {
		d.byte()
		r.Key = nil
	}
	r.Value = d.bin(MaxRaw)
	r.ContentType = d.str()
	r.ID = d.str()
	r.Source = d.str()
	r.Type = d.str()
	r.Time = d.int()
	n := d.array()
	if n%2 != 0 || n > 2*MaxHeaders {
		d.ok = false
	}
	r.Headers = r.Headers[:0]
	for i := 0; i < n && d.ok; i += 2 {
		name := d.str()
		r.Headers = append(r.Headers, Header{Name: name, Value: d.str()})
	}
	return d.ok
}

// take returns the next n bytes, or nil.
func (d *decoder) take(n int) []byte {
	if !d.ok || n > len(d.b) {
		d.ok = false
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// size reads a big-endian length of n bytes, at most limit.
func (d *decoder) size(n, limit int) int {
	v := 0
	for _, c := range d.take(n) {
		v = v<<8 | int(c)
	}
	if v > limit {
		d.ok = false
	}
	return v
}

func (d *decoder) bin(limit int) []byte {
	n := 0
	switch c := d.byte(); c {
	case 0xc4, 0xc5, 0xc6:
		n = d.size(1<<(c-0xc4), limit)
	default:
		d.ok = false
	}
	return d.take(n)
}

func (d *decoder) str() string {
	n := 0
	switch c := d.byte(); {
	case c&0xe0 == 0xa0:
		n = int(c & 0x1f)
	case c == 0xd9 || c == 0xda:
		n = d.size(1<<(c-0xd9), MaxAttr)
	default:
		d.ok = false
	}
	return viewString(d.take(n))
}

func (d *decoder) int() int64 {
	c := d.byte()
	if c < 0x80 {
		return int64(c)
	}
	b := d.take(8)
	if c != 0xd3 || b == nil {
		d.ok = false
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

func (d *decoder) array() int {
	switch c := d.byte(); {
	case c&0xf0 == 0x90:
		return int(c & 0x0f)
	case c == 0xdc:
		return d.size(2, 2*MaxHeaders)
	}
	d.ok = false
	return 0
}
