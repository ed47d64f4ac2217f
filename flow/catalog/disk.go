package catalog

import (
	"encoding/binary"
	"fmt"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// Keys below the group's prefix. On disk: append only.
//
//	m            head: format, version, clock
//	s NAME       one stream
//	t VERSION    one tombstone, VERSION as 8 bytes big-endian
const (
	keyHead      = 'm'
	keyStream    = 's'
	keyTombstone = 't'

	diskFormat = 1
)

// head is what a shard keeps besides streams and tombstones.
type head struct {
	Format  uint8  `msgpack:"f"`
	Version uint64 `msgpack:"v"`
	ClockMS int64  `msgpack:"c"`
}

// disk maps the state to the store.
type disk struct {
	store  log.Store
	prefix []byte
}

func (d disk) key(space byte, rest ...byte) []byte {
	k := make([]byte, 0, len(d.prefix)+1+len(rest))
	return append(append(append(k, d.prefix...), space), rest...)
}

func (d disk) streamKey(name string) []byte { return d.key(keyStream, []byte(name)...) }

func (d disk) tombstoneKey(version uint64) []byte {
	return d.key(keyTombstone, binary.BigEndian.AppendUint64(nil, version)...)
}

// write adds one change to b.
func (d disk) write(b log.Batch, ch *change) error {
	if err := put(b, d.key(keyHead), head{diskFormat, ch.version, ch.clockMS}); err != nil {
		return err
	}
	if ch.removed != "" {
		b.Delete(d.streamKey(ch.removed))
	}
	if ch.put != nil {
		if err := put(b, d.streamKey(ch.put.Name), ch.put); err != nil {
			return err
		}
	}
	if ch.buried != nil {
		if err := put(b, d.tombstoneKey(ch.buried.Version), ch.buried); err != nil {
			return err
		}
	}
	for _, v := range ch.expired {
		b.Delete(d.tombstoneKey(v))
	}
	return nil
}

// replace adds the removal of everything and then the whole of st to b.
func (d disk) replace(b log.Batch, st *state) error {
	d.clear(b)
	if st.version == 0 {
		return nil // an untouched shard has no head either
	}
	if err := put(b, d.key(keyHead), head{diskFormat, st.version, st.clockMS}); err != nil {
		return err
	}
	for _, s := range st.byName {
		if err := put(b, d.streamKey(s.Name), s); err != nil {
			return err
		}
	}
	for i := range st.tombstones {
		if err := put(b, d.tombstoneKey(st.tombstones[i].Version), &st.tombstones[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d disk) clear(b log.Batch) {
	b.Delete(d.key(keyHead))
	b.DeleteRange(d.key(keyStream), d.key(keyStream+1))
	b.DeleteRange(d.key(keyTombstone), d.key(keyTombstone+1))
}

// load reads the state back. An empty store is an empty shard.
func (d disk) load() (*state, error) {
	st := newState()
	raw, ok, err := d.store.Get(d.key(keyHead))
	if err != nil || !ok {
		return st, err
	}
	var h head
	if err := wire.Unmarshal(raw, &h); err != nil {
		return nil, corrupt("head", err)
	}
	if h.Format != diskFormat {
		return nil, fmt.Errorf("state has format %d, this release reads %d", h.Format, diskFormat)
	}
	st.version, st.clockMS = h.Version, h.ClockMS
	err = d.store.Scan(d.key(keyStream), func(_, value []byte) error {
		s := new(Stream)
		if err := wire.Unmarshal(value, s); err != nil {
			return corrupt("stream", err)
		}
		return st.restore(s)
	})
	if err != nil {
		return nil, err
	}
	err = d.store.Scan(d.key(keyTombstone), func(_, value []byte) error {
		var t Tombstone
		if err := wire.Unmarshal(value, &t); err != nil {
			return corrupt("tombstone", err)
		}
		return st.restoreTombstone(t)
	})
	return st, err
}

// restore adds a stream read from disk or from a peer, refusing what no sequence of entries could have made.
func (s *state) restore(st *Stream) error {
	if err := CheckName(st.Name); err != nil {
		return corrupt("stream", err)
	}
	if s.byName[st.Name] != nil || s.byID[st.ID] != nil {
		return corrupt("stream "+st.Name, fmt.Errorf("it is there twice"))
	}
	if st.Version == 0 || st.Version > s.version {
		return corrupt("stream "+st.Name, fmt.Errorf("its version %d is 0 or above the shard's %d", st.Version, s.version))
	}
	if len(st.Partitions) == 0 || len(s.byName) >= MaxStreams {
		return corrupt("stream "+st.Name, fmt.Errorf("it has no partitions, or there are too many streams"))
	}
	s.add(st)
	return nil
}

func (s *state) restoreTombstone(t Tombstone) error {
	n := len(s.tombstones)
	if t.Version == 0 || n > 0 && t.Version <= s.tombstones[n-1].Version || t.Version > s.version || n > MaxTombstones {
		return corrupt("tombstone", fmt.Errorf("version %d is out of order", t.Version))
	}
	s.bury(t)
	return nil
}

func put(b log.Batch, key []byte, v any) error {
	raw, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	b.Set(key, raw)
	return nil
}

func corrupt(what string, err error) error {
	return &wire.Error{Kind: wire.KindCorrupt, Detail: "stored " + what + " is damaged", Err: err}
}
