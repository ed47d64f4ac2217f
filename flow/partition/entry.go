package partition

import (
	"encoding/binary"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// entryKind is the first byte of an entry; a version follows. On disk: append only.
type entryKind uint8

const (
	entryBatch        entryKind = 1
	entryOpenSession  entryKind = 2
	entryCloseSession entryKind = 3
	entryTrim         entryKind = 4
	entryConfig       entryKind = 5
	entryClock        entryKind = 6
	// 7 to 11 are reserved for seal, open (a child's or a merged child's first entry), abort, lease and group offsets.
	entryImport entryKind = 12 // since wire.Version2; import.go
)

const (
	entryVersion = 1
	entryHead    = 2
)

// SessionID names one publish session for ever.
type SessionID [16]byte

// EncodeBatch appends an entry that stores a batch. The owner has set m.Session, m.Seq, m.Identities and m.Stamp, and has
// verified the payload against m: a batch whose payload fails its CRC when it is applied stops the replica.
func EncodeBatch(dst []byte, m *batch.Meta, payload []byte) []byte {
	dst = append(dst, byte(entryBatch), entryVersion)
	dst = batch.AppendMeta(dst, m)
	return append(dst, payload...)
}

// BatchEntrySize is the size of what EncodeBatch appends, in bytes.
func BatchEntrySize(m *batch.Meta, payload []byte) int {
	return entryHead + batch.MetaLen(m) + len(payload)
}

// EncodeOpenSession appends an entry that opens a publish session of a node at a time in Unix ms.
func EncodeOpenSession(dst []byte, id SessionID, node ring.NodeID, stamp int64) []byte {
	dst = append(dst, byte(entryOpenSession), entryVersion)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stamp))
	dst = append(dst, id[:]...)
	return append(dst, node[:]...)
}

// EncodeCloseSession appends an entry that closes a publish session.
func EncodeCloseSession(dst []byte, id SessionID, stamp int64) []byte {
	dst = append(dst, byte(entryCloseSession), entryVersion)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stamp))
	return append(dst, id[:]...)
}

// EncodeTrim appends an entry that makes start the first offset readers see.
func EncodeTrim(dst []byte, start uint64, stamp int64) []byte {
	dst = append(dst, byte(entryTrim), entryVersion)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stamp))
	return binary.LittleEndian.AppendUint64(dst, start)
}

// EncodeConfig appends an entry that replaces the limits. Errors: KindInvalid.
func EncodeConfig(dst []byte, l Limits, stamp int64) ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	body, err := wire.Marshal(&l)
	if err != nil {
		return nil, err
	}
	dst = append(dst, byte(entryConfig), entryVersion)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stamp))
	return append(dst, body...), nil
}

// EncodeClock appends an entry that only moves the partition's time, so that windows and sessions expire without traffic.
func EncodeClock(dst []byte, stamp int64) []byte {
	dst = append(dst, byte(entryClock), entryVersion)
	return binary.LittleEndian.AppendUint64(dst, uint64(stamp))
}

// entry is one decoded entry; which fields are set depends on its kind.
type entry struct {
	kind    entryKind
	stamp   int64
	meta    batch.Meta
	payload []byte // shared with the entry's data
	session SessionID
	node    ring.NodeID
	start   uint64
	limits  Limits
	imp     Import // of a batch: Export alone
}

// decodeEntry reads an entry. Errors: KindCorrupt when it is damaged or of a kind or version that this build does not know:
// to skip what others apply would make this replica differ.
func decodeEntry(data []byte) (entry, error) {
	if len(data) < entryHead {
		return entry{}, corrupt("entry of %d bytes", len(data))
	}
	en := entry{kind: entryKind(data[0])}
	if data[1] != entryVersion {
		return entry{}, corrupt("entry of kind %d has version %d: a newer build wrote it", data[0], data[1])
	}
	body := data[entryHead:]
	if en.kind == entryBatch {
		return decodeBatch(en, body)
	}
	if len(body) < 8 {
		return entry{}, corrupt("entry of kind %d is cut off", data[0])
	}
	en.stamp = int64(binary.LittleEndian.Uint64(body))
	body = body[8:]
	if en.kind == entryImport {
		return decodeImport(en, body)
	}
	want := 0
	switch en.kind {
	case entryOpenSession:
		if want = 32; len(body) == want {
			copy(en.session[:], body)
			copy(en.node[:], body[16:])
		}
	case entryCloseSession:
		if want = 16; len(body) == want {
			copy(en.session[:], body)
		}
	case entryTrim:
		if want = 8; len(body) == want {
			en.start = binary.LittleEndian.Uint64(body)
		}
	case entryConfig:
		want = len(body)
		if err := wire.Unmarshal(body, &en.limits); err != nil {
			return entry{}, err
		}
		if err := en.limits.Validate(); err != nil {
			return entry{}, corrupt("config entry: %v", err)
		}
	case entryClock:
	default:
		return entry{}, corrupt("entry of unknown kind %d: a newer build wrote it", data[0])
	}
	if len(body) != want {
		return entry{}, corrupt("entry of kind %d with a body of %d bytes, want %d", data[0], len(body), want)
	}
	return en, nil
}

func decodeBatch(en entry, body []byte) (entry, error) {
	m, n, err := batch.ParseMeta(body)
	if err != nil {
		return entry{}, err
	}
	if err := batch.VerifyPayload(&m, body[n:]); err != nil {
		return entry{}, err
	}
	en.meta, en.payload, en.stamp, en.session = m, body[n:], m.Stamp, m.Session
	return en, nil
}

func corrupt(format string, args ...any) error {
	return wire.Errorf(wire.KindCorrupt, "", format, args...)
}
