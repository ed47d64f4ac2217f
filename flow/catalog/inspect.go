package catalog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// Visitor is told what a replica of a shard has in the store, in this order. An error that it returns ends the inspection.
type Visitor struct {
	Head      func(version uint64, clockMS int64) error
	Stream    func(*Stream) error
	Tombstone func(*Tombstone) error
	// Damaged is told of each record that cannot be read, or does not fit the others.
	Damaged func(error) error
}

// Inspect reads a shard's state for people who look at a node that does not run. It goes on after a damaged record and holds one at a time.
// Errors: the visitor's; the store's.
func Inspect(store log.Store, prefix []byte, v Visitor) error {
	d := disk{store: store, prefix: prefix}
	raw, ok, err := store.Get(d.key(keyHead))
	if err != nil {
		return err
	}
	var h head
	if ok {
		if err := wire.Unmarshal(raw, &h); err != nil {
			err = v.Damaged(corrupt("head", err))
			if err != nil {
				return err
			}
		} else if h.Format != diskFormat {
			return v.Damaged(fmt.Errorf("state has format %d, this release reads %d", h.Format, diskFormat))
		}
	}
	if err := v.Head(h.Version, h.ClockMS); err != nil {
		return err
	}
	err = store.Scan(d.key(keyStream), func(key, value []byte) error {
		name := string(key[len(prefix)+1:])
		s := new(Stream)
		if err := wire.Unmarshal(value, s); err != nil {
			return v.Damaged(corrupt(fmt.Sprintf("stream %q", name), err))
		}
		if err := s.stored(name, h.Version); err != nil {
			if err := v.Damaged(corrupt(fmt.Sprintf("stream %q", name), err)); err != nil {
				return err
			}
		}
		return v.Stream(s)
	})
	if err != nil {
		return err
	}
	return store.Scan(d.key(keyTombstone), func(key, value []byte) error {
		t := new(Tombstone)
		err := wire.Unmarshal(value, t)
		if rest := key[len(prefix)+1:]; err == nil && (len(rest) != 8 || binary.BigEndian.Uint64(rest) != t.Version || t.Version > h.Version) {
			err = errors.New("its version is not that of its key, or above the shard's")
		}
		if err != nil {
			return v.Damaged(corrupt("tombstone", err))
		}
		return v.Tombstone(t)
	})
}

// stored checks what a stream's record alone, and its key, tell.
func (s *Stream) stored(name string, version uint64) error {
	switch {
	case s.Name != name:
		return fmt.Errorf("it is of %q", s.Name)
	case s.Version == 0 || s.Version > version:
		return fmt.Errorf("its version %d is 0 or above the shard's %d", s.Version, version)
	case len(s.Partitions) == 0:
		return errors.New("it has no partitions")
	}
	return nil
}
