package batch

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/skeinmesh/skein/transport/wire"
)

// A batch header on disk and on the wire, little-endian. The numbers are on disk: append only, and any change of meaning
// is a new version.
//
//	 0  magic "SkB1"         32  session (16 bytes)
//	 4  version              48  sequence
//	 5  codec                56  stamp
//	 6  flags                64  base offset
//	 7  zero                 72  raft index
//	 8  header bytes         80  raft term
//	12  CRC-32C of all but   88  number of skipped positions
//	    these four bytes     92  skipped positions, 4 bytes each
//	16  records               …  identities, 24 bytes each (with flagIdentities: one per record)
//	20  raw bytes
//	24  payload bytes
//	28  payload CRC-32C
const (
	// Magic is what each header begins with.
	Magic          = "SkB1"
	metaVersion    = 1
	flagIdentities = 1
	identitySize   = 24

	// MinMeta is the fixed part of a header: MetaSize wants so many bytes.
	MinMeta = 92
	// MaxMeta is the largest header there can be.
	MaxMeta = MinMeta + MaxRecords*(4+identitySize)
)

// castagnoli is the CRC-32C polynomial, which amd64 and arm64 compute in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrShort means that the bytes end before the header or payload does: a torn tail where it is the end of a file.
var ErrShort = &wire.Error{Kind: wire.KindCorrupt, Code: "short", Detail: "the bytes end inside a batch"}

// MetaLen is the number of bytes that AppendMeta writes for m.
func MetaLen(m *Meta) int {
	return MinMeta + 4*len(m.Skip) + identitySize*len(m.Identities)
}

// AppendMeta appends m's header to dst. It does not check m: the caps are the builder's and the decoder's matter.
func AppendMeta(dst []byte, m *Meta) []byte {
	start := len(dst)
	le := binary.LittleEndian
	var flags byte
	if len(m.Identities) > 0 {
		flags |= flagIdentities
	}
	dst = append(dst, Magic...)
	dst = append(dst, metaVersion, byte(m.Codec), flags, 0)
	dst = le.AppendUint32(dst, uint32(MetaLen(m)))
	dst = le.AppendUint32(dst, 0) // the CRC, below
	dst = le.AppendUint32(dst, m.Count)
	dst = le.AppendUint32(dst, m.RawLen)
	dst = le.AppendUint32(dst, m.PayloadLen)
	dst = le.AppendUint32(dst, m.PayloadCRC)
	dst = append(dst, m.Session[:]...)
	dst = le.AppendUint64(dst, m.Seq)
	dst = le.AppendUint64(dst, uint64(m.Stamp))
	dst = le.AppendUint64(dst, m.Base)
	dst = le.AppendUint64(dst, m.Index)
	dst = le.AppendUint64(dst, m.Term)
	dst = le.AppendUint32(dst, uint32(len(m.Skip)))
	for _, pos := range m.Skip {
		dst = le.AppendUint32(dst, pos)
	}
	for i := range m.Identities {
		dst = append(dst, m.Identities[i].Hash[:]...)
		dst = le.AppendUint64(dst, m.Identities[i].Payload)
	}
	h := dst[start:]
	le.PutUint32(h[12:], metaCRC(h))
	return dst
}

// metaCRC is the CRC of a whole header without its CRC field.
func metaCRC(h []byte) uint32 {
	return crc32.Update(crc32.Checksum(h[:12], castagnoli), castagnoli, h[16:])
}

// MetaSize tells from the first MinMeta bytes how long the whole header is, for readers of files. The bytes are not yet
// verified: the answer is only certain to be within [MinMeta, MaxMeta]. Errors: ErrShort, KindCorrupt.
func MetaSize(b []byte) (int, error) {
	if len(b) < MinMeta {
		return 0, ErrShort
	}
	if string(b[:4]) != Magic {
		return 0, corrupt("no batch header here")
	}
	if b[4] != metaVersion {
		return 0, corrupt("batch header version %d is not known", b[4])
	}
	le := binary.LittleEndian
	count, skips := le.Uint32(b[16:]), le.Uint32(b[88:])
	if count == 0 || count > MaxRecords || skips > count {
		return 0, corrupt("batch header of %d records, %d skipped", count, skips)
	}
	size := MinMeta + 4*int(skips)
	if b[6]&flagIdentities != 0 {
		size += identitySize * int(count)
	}
	if le.Uint32(b[8:]) != uint32(size) {
		return 0, corrupt("batch header length %d, want %d", le.Uint32(b[8:]), size)
	}
	return size, nil
}

// ParseMeta reads the header at the start of b and returns how many bytes it takes. What it returns shares nothing with
// b. Errors: ErrShort, or KindCorrupt when the header fails its CRC or its bounds.
func ParseMeta(b []byte) (m Meta, n int, err error) {
	n, err = MetaSize(b)
	if err != nil {
		return Meta{}, 0, err
	}
	if len(b) < n {
		return Meta{}, 0, ErrShort
	}
	h := b[:n]
	le := binary.LittleEndian
	if le.Uint32(h[12:]) != metaCRC(h) {
		return Meta{}, 0, corrupt("batch header fails its CRC")
	}
	if h[6]&^flagIdentities != 0 || h[7] != 0 {
		return Meta{}, 0, corrupt("batch header with unknown flags %#x", h[6:8])
	}
	m = Meta{
		Codec:      Codec(h[5]),
		Count:      le.Uint32(h[16:]),
		RawLen:     le.Uint32(h[20:]),
		PayloadLen: le.Uint32(h[24:]),
		PayloadCRC: le.Uint32(h[28:]),
		Seq:        le.Uint64(h[48:]),
		Stamp:      int64(le.Uint64(h[56:])),
		Base:       le.Uint64(h[64:]),
		Index:      le.Uint64(h[72:]),
		Term:       le.Uint64(h[80:]),
	}
	copy(m.Session[:], h[32:])
	parseLists(&m, h)
	if err := m.check(); err != nil {
		return Meta{}, 0, err
	}
	return m, n, nil
}

// parseLists reads the two lists of a header whose length was verified.
func parseLists(m *Meta, h []byte) {
	le := binary.LittleEndian
	if skips := int(le.Uint32(h[88:])); skips > 0 {
		m.Skip = make([]uint32, skips)
		for i := range m.Skip {
			m.Skip[i] = le.Uint32(h[MinMeta+4*i:])
		}
	}
	if h[6]&flagIdentities == 0 {
		return
	}
	m.Identities = make([]Identity, m.Count)
	rest := h[MinMeta+4*len(m.Skip):]
	for i := range m.Identities {
		copy(m.Identities[i].Hash[:], rest[identitySize*i:])
		m.Identities[i].Payload = le.Uint64(rest[identitySize*i+16:])
	}
}

// check holds a header's fields against the caps and against each other.
func (m *Meta) check() error {
	switch {
	case m.Codec > CodecS2:
		return corrupt("batch codec %d is not known", m.Codec)
	case m.Count == 0 || m.Count > MaxRecords:
		return corrupt("batch of %d records", m.Count)
	case m.RawLen > MaxRaw || m.PayloadLen > MaxRaw:
		return corrupt("batch payload of %d bytes, %d raw", m.PayloadLen, m.RawLen)
	case m.Base > 1<<62:
		return corrupt("batch base offset %d", m.Base)
	}
	next := uint32(0)
	for _, pos := range m.Skip {
		if pos < next || pos >= m.Count {
			return corrupt("batch skips position %d of %d records", pos, m.Count)
		}
		next = pos + 1
	}
	return nil
}

func corrupt(format string, args ...any) error {
	return wire.Errorf(wire.KindCorrupt, "", format, args...)
}

// VerifyPayload checks a payload's length and CRC without decompressing it. Errors: KindCorrupt.
func VerifyPayload(m *Meta, payload []byte) error {
	if uint64(len(payload)) != uint64(m.PayloadLen) {
		return corrupt("batch payload of %d bytes, header says %d", len(payload), m.PayloadLen)
	}
	if crcOf(payload) != m.PayloadCRC {
		return corrupt("batch payload fails its CRC")
	}
	return nil
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
