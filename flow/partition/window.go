package partition

import (
	"encoding/binary"
	"slices"

	"github.com/skeinmesh/skein/flow/log"
)

const minuteMS = 60_000

// original is the event that an identity stands for.
type original struct {
	offset  uint64
	payload uint64 // batch.PayloadHash
}

// bucket holds the identities of one minute of entry time, or of a part of it.
type bucket struct {
	minute int64
	ids    map[[16]byte]original // nil: only in the store
	filter filter                // of a bucket that is only in the store; nil: ask the store about every identity
	newest [16]byte              // the identity inserted last, while ids has it
	sealed bool                  // takes no more; a checkpoint may be reading ids
	// spilled is how many identities are only in the store, and in filter where there is one.
	spilled int
}

// window is the dedupe window: every identity of the last DedupeWindowMS, and some of up to a minute before.
//
// All of it is in the store. In memory are the newest buckets, as many as the limits allow; for the others a small filter
// spares most lookups. So memory decides about speed only.
type window struct {
	keys  keyspace
	store log.Store
	gen   uint32 // of the keys: a snapshot is staged under the next one
	lim   memoryLimits

	buckets []*bucket // by minute; only the last one may be unsealed
	held    int       // identities in maps
	filters int       // words in filters
	expired int64     // minutes below it are forgotten: replicated state
	cleaned int64     // the store's keys of minutes below it are gone
	key     []byte    // scratch
}

// memoryLimits bound what a window holds in memory. They may differ between replicas.
type memoryLimits struct {
	identities  int // in maps
	filterWords int
	node        *NodeLimit // shared by the node's partitions; nil: none
	metrics     *Metrics
}

// find looks an identity up.
func (w *window) find(hash [16]byte) (original, bool, error) {
	asked := int64(-1)
	for i := len(w.buckets) - 1; i >= 0; i-- {
		bu := w.buckets[i]
		if bu.ids != nil {
			if o, ok := bu.ids[hash]; ok {
				return o, true, nil
			}
			continue
		}
		if bu.minute == asked || bu.filter != nil && !bu.filter.has(hash) {
			continue
		}
		asked = bu.minute
		w.lim.metrics.lookup()
		value, ok, err := w.store.Get(w.identityKey(bu.minute, hash))
		if err != nil {
			return original{}, false, err
		}
		if ok {
			o, err := parseOriginal(value)
			return o, true, err
		}
	}
	return original{}, false, nil
}

// insert remembers an identity that find did not know. Time never goes back.
func (w *window) insert(hash [16]byte, o original, now int64, b log.Batch) {
	w.hold(hash, o, now/minuteMS)
	var value [16]byte
	b.Set(w.identityKey(now/minuteMS, hash), appendOriginal(value[:0], o))
}

// hold puts an identity that is, or will be, in the store into memory.
func (w *window) hold(hash [16]byte, o original, minute int64) {
	var bu *bucket
	if n := len(w.buckets); n > 0 {
		bu = w.buckets[n-1]
	}
	if bu == nil || bu.sealed || bu.minute != minute {
		if bu != nil {
			bu.sealed = true
		}
		bu = &bucket{minute: minute, ids: make(map[[16]byte]original)}
		w.buckets = append(w.buckets, bu)
	}
	before := len(bu.ids)
	bu.ids[hash] = o
	bu.newest = hash
	w.count(len(bu.ids) - before)
}

// seal ends the newest bucket, so that its map does not change any more.
func (w *window) seal() {
	if n := len(w.buckets); n > 0 {
		w.buckets[n-1].sealed = true
	}
}

func (w *window) count(n int) {
	w.held += n
	w.lim.node.add(n)
	w.lim.metrics.hold(n)
}

// advance forgets the minutes that are over at time now. Their keys are removed unless a checkpoint still reads them.
func (w *window) advance(now, windowMS int64, pinned bool, b log.Batch) {
	w.expired = max(w.expired, (now-windowMS)/minuteMS)
	drop := 0
	for drop < len(w.buckets) && w.buckets[drop].minute < w.expired {
		w.forget(w.buckets[drop])
		drop++
	}
	if drop > 0 {
		w.buckets = append(w.buckets[:0:0], w.buckets[drop:]...)
	}
	if w.cleaned < w.expired && !pinned {
		b.DeleteRange(w.keys.minute(w.gen, 0), w.keys.minute(w.gen, w.expired))
		w.cleaned = w.expired
	}
}

// forget takes a bucket out of the memory accounts.
func (w *window) forget(bu *bucket) {
	w.count(-len(bu.ids))
	w.filters -= len(bu.filter)
}

// release gives all memory back, before the window is thrown away.
func (w *window) release() {
	for _, bu := range w.buckets {
		w.forget(bu)
	}
	w.buckets = nil
}

// shrink drops the oldest buckets from memory while there are too many identities in it. A bucket whose keys cannot be seen
// in the store yet, because the batch they are in is not committed, has to wait; stored says that all are.
func (w *window) shrink(stored bool) error {
	for i := 0; i < len(w.buckets) && w.crowded(); {
		bu := w.buckets[i]
		if bu.ids == nil {
			i++
			continue
		}
		if i == len(w.buckets)-1 {
			// A minute with more identities than fit: what it has so far becomes a bucket of its own, to go next time.
			bu.sealed = bu.sealed || len(bu.ids) > w.piece()
		}
		if !bu.sealed {
			return nil
		}
		if !stored {
			_, committed, err := w.store.Get(w.identityKey(bu.minute, bu.newest))
			if err != nil || !committed {
				return err
			}
		}
		w.spill(i)
	}
	return nil
}

// piece is how many identities of a minute that is not over stay together in memory.
func (w *window) piece() int {
	if w.lim.node.over() {
		return min(w.lim.identities, minHeld) / 2
	}
	return w.lim.identities / 2
}

func (w *window) crowded() bool {
	return w.held > w.lim.identities || w.lim.node.over() && w.held > minHeld
}

// minHeld is what every window may hold whatever its neighbours do.
const minHeld = 1024

// spill leaves a sealed bucket to the store, and a filter in its place while there is room for it. Pieces of one minute share
// filters, each twice as large as the one before, so that a lookup has few to ask.
func (w *window) spill(i int) {
	bu := w.buckets[i]
	w.forget(bu)
	room := len(bu.ids)
	if i > 0 && w.buckets[i-1].ids == nil && w.buckets[i-1].minute == bu.minute {
		prev := w.buckets[i-1]
		if prev.filter == nil || filterWords(prev.spilled+len(bu.ids)) <= len(prev.filter) {
			prev.leave(bu.ids)
			w.buckets = slices.Delete(w.buckets, i, i+1)
			return
		}
		room = max(room, 2*prev.spilled)
	}
	// A new bucket in its place, for a checkpoint may hold the old one.
	spilled := &bucket{minute: bu.minute, sealed: true}
	if w.filters+filterWords(room) <= w.lim.filterWords {
		spilled.filter = newFilter(room)
	}
	spilled.leave(bu.ids)
	w.filters += len(spilled.filter)
	w.buckets[i] = spilled
}

// leave notes identities that are in the store alone from now on.
func (bu *bucket) leave(ids map[[16]byte]original) {
	bu.spilled += len(ids)
	if bu.filter == nil {
		return
	}
	for hash := range ids {
		bu.filter.add(hash)
	}
}

// load reads the window from the store: oldest first, spilling on the way, so that memory stays within its limits.
func (w *window) load() error {
	prefix := w.keys.generation(keyIdentity, w.gen)
	inserted := 0
	return w.store.Scan(prefix, func(key, value []byte) error {
		minute, hash, err := splitIdentityKey(key[len(prefix):])
		if err != nil || minute < w.expired {
			return err
		}
		o, err := parseOriginal(value)
		if err != nil {
			return err
		}
		w.hold(hash, o, minute)
		if inserted++; inserted%minHeld != 0 {
			return nil
		}
		return w.shrink(true)
	})
}

func (w *window) identityKey(minute int64, hash [16]byte) []byte {
	w.key = append(w.key[:0], w.keys.prefix...)
	w.key = append(w.key, keyIdentity)
	w.key = binary.BigEndian.AppendUint32(w.key, w.gen)
	w.key = binary.BigEndian.AppendUint64(w.key, uint64(minute))
	w.key = append(w.key, hash[:]...)
	return w.key
}

func splitIdentityKey(rest []byte) (minute int64, hash [16]byte, err error) {
	if len(rest) != 24 {
		return 0, hash, corrupt("identity key of %d bytes", len(rest))
	}
	copy(hash[:], rest[8:])
	return int64(binary.BigEndian.Uint64(rest)), hash, nil
}

func appendOriginal(dst []byte, o original) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, o.offset)
	return binary.LittleEndian.AppendUint64(dst, o.payload)
}

func parseOriginal(b []byte) (original, error) {
	if len(b) != 16 {
		return original{}, corrupt("identity record of %d bytes", len(b))
	}
	return original{offset: binary.LittleEndian.Uint64(b), payload: binary.LittleEndian.Uint64(b[8:])}, nil
}
