package log

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/skeinmesh/skein/ring"
)

// castagnoli is the polynomial of every checksum on disk: CPUs compute it in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordKind says what a journal record is. On disk: append only.
type recordKind uint8

const (
	recEntry      recordKind = 1 // index, term, type; data: the entry's
	recHardState  recordKind = 2 // index: commit, term; data: vote
	recTruncate   recordKind = 3 // entries after the mark (index, term) are dropped
	recReset      recordKind = 4 // all entries are dropped, the log starts after the mark
	recBirth      recordKind = 5 // data: the birth record
	recTombstone  recordKind = 6 // index: highest removed replica id
	recGroup      recordKind = 7 // checkpoint of one group: mark of its last entry; data: groupImage
	recCheckpoint recordKind = 8 // ends a checkpoint; index: number of groups
	recMark       recordKind = 9 // nothing but the durable field: everything before it was synced
)

func (k recordKind) String() string {
	names := [...]string{recEntry: "entry", recHardState: "hard-state", recTruncate: "truncate", recReset: "reset", recBirth: "birth",
		recTombstone: "tombstone", recGroup: "group", recCheckpoint: "checkpoint", recMark: "mark"}
	return names[k]
}

const (
	flagEnd = 1 // the record is the last one of its unit

	recordSize = 56
	// maxRecordData bounds one record's data. Entries are batches of a few MiB at most; births and checkpoints are smaller.
	maxRecordData = 64 << 20
)

// record is the fixed header of everything in a journal file, little-endian:
//
//	0 crc u32 | 4 length u32 | 8 nonce u64 | 16 group [16] | 32 index u64 | 40 term u64 | 48 durable u32 | 52 kind | 53 flags | 54 type | 55 zero
//
// crc is CRC-32C of the bytes after it and of the data. nonce is drawn anew each time a file gets a sequence number, so that
// neither what a recycled file held before nor bytes made up by a publisher pass for a record of this file's sequence.
// durable is the offset in this file up to which everything was known to be synced when the record was made: a valid record
// proves that whatever precedes its durable field had been written whole.
type record struct {
	crc     uint32 // as read
	length  uint32
	nonce   uint64
	group   ring.GroupID
	index   uint64
	term    uint64
	durable uint32
	kind    recordKind
	flags   uint8
	typ     EntryType
}

// append adds the header, with the checksum over it and data, to dst. It does not add data.
func (r *record) append(dst, data []byte) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, recordSize)...)
	b := dst[n : n+recordSize]
	binary.LittleEndian.PutUint32(b[4:], uint32(len(data)))
	binary.LittleEndian.PutUint64(b[8:], r.nonce)
	copy(b[16:32], r.group[:])
	binary.LittleEndian.PutUint64(b[32:], r.index)
	binary.LittleEndian.PutUint64(b[40:], r.term)
	binary.LittleEndian.PutUint32(b[48:], r.durable)
	b[52], b[53], b[54] = byte(r.kind), r.flags, byte(r.typ)
	crc := crc32.Update(crc32.Checksum(b[4:], castagnoli), castagnoli, data)
	binary.LittleEndian.PutUint32(b, crc)
	return dst
}

// parseRecord reads a header. ok is false where it cannot be one of the sequence with this nonce; the checksum is not yet checked.
func parseRecord(b []byte, nonce uint64) (r record, ok bool) {
	if len(b) < recordSize {
		return r, false
	}
	r.crc = binary.LittleEndian.Uint32(b)
	r.length = binary.LittleEndian.Uint32(b[4:])
	r.nonce = binary.LittleEndian.Uint64(b[8:])
	copy(r.group[:], b[16:32])
	r.index = binary.LittleEndian.Uint64(b[32:])
	r.term = binary.LittleEndian.Uint64(b[40:])
	r.durable = binary.LittleEndian.Uint32(b[48:])
	r.kind, r.flags, r.typ = recordKind(b[52]), b[53], EntryType(b[54])
	ok = r.nonce == nonce && r.length <= maxRecordData && r.kind >= recEntry && r.kind <= recMark
	return r, ok
}

// checkRecord verifies the checksum of a header and its data, which together are b.
func checkRecord(b []byte) bool {
	return binary.LittleEndian.Uint32(b) == crc32.Checksum(b[4:], castagnoli)
}

// groupImage is one group's state in a checkpoint, next to the mark of its last entry in the record's header.
type groupImage struct {
	hardState HardState
	tombstone uint64
	birth     []byte
}

const groupImageSize = 4*8 + 1

func (g *groupImage) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, g.hardState.Term)
	dst = binary.LittleEndian.AppendUint64(dst, g.hardState.Vote)
	dst = binary.LittleEndian.AppendUint64(dst, g.hardState.Commit)
	dst = binary.LittleEndian.AppendUint64(dst, g.tombstone)
	if g.birth == nil {
		return append(dst, 0)
	}
	return append(append(dst, 1), g.birth...)
}

// parseGroupImage reads what append wrote; birth is a copy.
func parseGroupImage(b []byte) (g groupImage, ok bool) {
	if len(b) < groupImageSize || b[32] > 1 || (b[32] == 0 && len(b) > groupImageSize) {
		return g, false
	}
	g.hardState = HardState{
		Term:   binary.LittleEndian.Uint64(b),
		Vote:   binary.LittleEndian.Uint64(b[8:]),
		Commit: binary.LittleEndian.Uint64(b[16:]),
	}
	g.tombstone = binary.LittleEndian.Uint64(b[24:])
	if b[32] == 1 {
		g.birth = append([]byte{}, b[groupImageSize:]...)
	}
	return g, true
}

// fileHeader starts every journal file:
//
//	0 magic [8] | 8 version u32 | 12 zero u32 | 16 sequence u64 | 24 nonce u64 | 32 end of the file before u64 | 40 crc u32
type fileHeader struct {
	seq, nonce, prevEnd uint64
}

const (
	fileMagic      = "SKEINJNL"
	fileVersion    = 1
	fileHeaderSize = 44
)

func (h *fileHeader) append(dst []byte) []byte {
	n := len(dst)
	dst = append(dst, fileMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, fileVersion)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint64(dst, h.seq)
	dst = binary.LittleEndian.AppendUint64(dst, h.nonce)
	dst = binary.LittleEndian.AppendUint64(dst, h.prevEnd)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[n:], castagnoli))
}

func parseFileHeader(b []byte) (h fileHeader, ok bool) {
	if len(b) < fileHeaderSize || string(b[:8]) != fileMagic || binary.LittleEndian.Uint32(b[8:]) != fileVersion ||
		binary.LittleEndian.Uint32(b[40:]) != crc32.Checksum(b[:40], castagnoli) {
		return h, false
	}
	h.seq = binary.LittleEndian.Uint64(b[16:])
	h.nonce = binary.LittleEndian.Uint64(b[24:])
	h.prevEnd = binary.LittleEndian.Uint64(b[32:])
	return h, true
}
