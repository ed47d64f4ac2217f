package replica

import (
	"bytes"
	"errors"
	"slices"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Held is a replica on a node that does not run, with or without a state.
type Held struct {
	Birth Birth
	// Applied is the position of its state in the store, and zero where that holds none of this replica.
	Applied log.Mark
	// Last is the index of the last entry in the journal.
	Last uint64
	// Foreign: the store still holds the state of an earlier replica of the group, which the next start removes.
	Foreign bool
}

// HeldReplicas lists the replicas that the journal knows, by what log.ReadJournal returned, and those that the store alone knows: where
// the journal is damaged they are all that is left. store may be nil. What cannot be read is left out, and in the error: KindCorrupt; I/O.
func HeldReplicas(groups []log.GroupState, store log.Store) (held []Held, err error) {
	known := map[ring.GroupID]bool{}
	add := func(group ring.GroupID, raw []byte, last uint64) {
		b, derr := decodeBirth(raw)
		if derr != nil || b.Group != group {
			err = errors.Join(err, wire.Errorf(wire.KindCorrupt, "", "group %s: birth record is damaged", group))
			return
		}
		h, herr := heldState(store, Held{Birth: b, Last: last}, raw)
		err = errors.Join(err, herr)
		held = append(held, h)
	}
	for _, gs := range groups {
		if known[gs.Group] = true; gs.Birth != nil {
			add(gs.Group, gs.Birth, gs.Last)
		}
	}
	if store != nil {
		err = errors.Join(err, store.Scan(ownPrefix(ring.GroupID{})[:1], func(key, value []byte) error {
			var group ring.GroupID
			if len(key) != 1+len(group)+1 || key[len(key)-1] != keyBirth {
				return nil
			}
			if copy(group[:], key[1:]); !known[group] {
				add(group, bytes.Clone(value), 0)
			}
			return nil
		}))
	}
	slices.SortFunc(held, func(a, b Held) int { return a.Birth.Group.Compare(b.Birth.Group) })
	return held, err
}

// heldState adds what the store has of a replica.
func heldState(store log.Store, h Held, birth []byte) (Held, error) {
	if store == nil {
		return h, nil
	}
	raw, ok, err := store.Get(ownKey(h.Birth.Group, keyBirth))
	if err != nil || !ok {
		return h, err
	}
	if !bytes.Equal(raw, birth) {
		h.Foreign = true
		return h, nil
	}
	st, ok, err := loadState(store, h.Birth.Group)
	if ok {
		h.Applied = st.applied
	}
	return h, err
}
