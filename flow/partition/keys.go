package partition

import "encoding/binary"

// Keys of a partition in the store, each after the group's prefix. On disk: append only.
//
//	a                             the state record, written with each entry
//	c                             the limits, once a Config entry changed them
//	s session(16)                 an open session
//	o session(16) slot(1)         an outcome of a session, at its sequence number modulo the number remembered
//	d gen(4) minute(8) hash(16)   an identity in the dedupe window
//	b index(8)                    what apply decided about a batch whose segment bytes may not be durable yet
//	g                             there is, or was, a staged snapshot to clean up after
//	m                             how many bytes came before some of the offsets
//	y gen(4)                      what the segments of a generation had synced
//	i                             what the partition is, or was, filled from
//
// Numbers in keys are big-endian, so that they sort.
const (
	keyState    = 'a'
	keyLimits   = 'c'
	keySession  = 's'
	keyOutcome  = 'o'
	keyIdentity = 'd'
	keyBatch    = 'b'
	keyStaging  = 'g'
	keySizes    = 'm'
	keySynced   = 'y'
	keyImported = 'i'
)

// keyspace makes keys with a group's prefix. Every method returns a new slice: several goroutines use it.
type keyspace struct{ prefix []byte }

func (k keyspace) plain(kind byte) []byte {
	key := make([]byte, 0, len(k.prefix)+32)
	key = append(key, k.prefix...)
	return append(key, kind)
}

func (k keyspace) state() []byte  { return k.plain(keyState) }
func (k keyspace) limits() []byte { return k.plain(keyLimits) }

func (k keyspace) sizes() []byte { return k.plain(keySizes) }

func (k keyspace) imported() []byte { return k.plain(keyImported) }

func (k keyspace) staging() []byte { return k.plain(keyStaging) }

func (k keyspace) session(id SessionID) []byte { return append(k.plain(keySession), id[:]...) }

func (k keyspace) outcomes(id SessionID) []byte { return append(k.plain(keyOutcome), id[:]...) }

func (k keyspace) outcome(id SessionID, seq uint64) []byte {
	return append(k.outcomes(id), byte(seq%outcomesKept))
}

func (k keyspace) generation(kind byte, gen uint32) []byte {
	return binary.BigEndian.AppendUint32(k.plain(kind), gen)
}

func (k keyspace) synced(gen uint32) []byte { return k.generation(keySynced, gen) }

func (k keyspace) minute(gen uint32, minute int64) []byte {
	return binary.BigEndian.AppendUint64(k.generation(keyIdentity, gen), uint64(minute))
}

func (k keyspace) batch(index uint64) []byte {
	return binary.BigEndian.AppendUint64(k.plain(keyBatch), index)
}
