package catalog

import (
	"maps"
	"slices"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// state is the shard's content. It is pure: apply reads no clock and does no I/O. Streams in it are never changed, only replaced.
type state struct {
	version    uint64 // counts changes
	clockMS    int64  // the latest time that any entry carried; ages tombstones
	byName     map[string]*Stream
	byID       map[ring.StreamID]*Stream
	tombstones []Tombstone // ascending by version
	graves     map[ring.StreamID]struct{}
}

func newState() *state {
	return &state{
		byName: map[string]*Stream{},
		byID:   map[ring.StreamID]*Stream{},
		graves: map[ring.StreamID]struct{}{},
	}
}

// change is what one entry did to the state, for the store.
type change struct {
	version uint64
	clockMS int64
	put     *Stream    // written under its name
	removed string     // name whose stream is gone
	buried  *Tombstone // written
	expired []uint64   // versions of tombstones forgotten
}

func (s *state) streams() []*Stream { return slices.Collect(maps.Values(s.byName)) }

func (s *state) buried(id ring.StreamID) bool {
	_, ok := s.graves[id]
	return ok
}

// add indexes a stream, in place of an older definition of the same incarnation.
func (s *state) add(st *Stream) {
	s.byName[st.Name] = st
	s.byID[st.ID] = st
}

func (s *state) remove(st *Stream) {
	delete(s.byName, st.Name)
	delete(s.byID, st.ID)
}

func (s *state) bury(t Tombstone) {
	s.tombstones = append(s.tombstones, t)
	s.graves[t.Stream] = struct{}{}
}

// apply runs a command that passed check. A nil change means that the state is as before.
func (s *state) apply(c Command) (Result, *change) {
	switch c := c.(type) {
	case CreateStream:
		return s.create(&c)
	case UpdateStream:
		return s.update(&c)
	case DeleteStream:
		return s.drop(&c)
	case BeginImport:
		return s.beginImport(&c)
	case EndImport:
		return s.endImport(&c)
	}
	return refuse(invalid("catalog command %T is not known", c))
}

// next starts a change at the entry's time; time never goes back.
func (s *state) next(nowMS int64) *change {
	s.version++
	s.clockMS = max(s.clockMS, nowMS)
	return &change{version: s.version, clockMS: s.clockMS}
}

// create makes a stream, unless the name is taken. One that was made by an earlier copy of the command and deleted since is told so, for
// what another client made under the name meanwhile is no answer: it would deny that there was the first.
func (s *state) create(c *CreateStream) (Result, *change) {
	if cur := s.byName[c.Name]; cur != nil && !s.buried(c.ID) {
		return createExisting(cur, c), nil
	}
	return s.make(c, Open, [16]byte{})
}

// make adds a stream whose name is free, unless its incarnation was there before.
func (s *state) make(c *CreateStream, ps PartitionState, export [16]byte) (Result, *change) {
	if s.buried(c.ID) {
		return refuse(wire.Errorf(wire.KindConflict, CodeDeleted,
			"stream %s: incarnation %s was deleted; create the stream with a new one", c.Name, c.ID))
	}
	if cur := s.byID[c.ID]; cur != nil {
		return refuse(wire.Errorf(wire.KindConflict, CodeExists, "incarnation %s belongs to stream %s", c.ID, cur.Name))
	}
	if len(s.byName) >= MaxStreams {
		return refuse(wire.Errorf(wire.KindUnavailable, CodeTooManyStreams,
			"the catalog shard of stream %s holds %d streams, its limit; delete some first", c.Name, MaxStreams))
	}
	ch := s.next(c.NowMS)
	st := &Stream{
		Name: c.Name, ID: c.ID, Seed: c.Seed, Version: ch.version,
		CreatedMS: ch.clockMS, UpdatedMS: ch.clockMS,
		Config: c.Config, Partitions: slices.Clone(c.Partitions), Import: export,
	}
	for i := range st.Partitions {
		st.Partitions[i].State = ps
	}
	s.add(st)
	ch.put = st
	return Result{Stream: st, Created: true}, ch
}

// createExisting answers a creation whose name is taken. The same incarnation is an earlier copy of this very command.
func createExisting(cur *Stream, c *CreateStream) Result {
	switch {
	case cur.ID == c.ID:
		return Result{Stream: cur, Created: true}
	case c.Mode == CreateOnly:
		return Result{Err: wire.Errorf(wire.KindConflict, CodeExists, "stream %s exists", c.Name)}
	case !cur.Config.Equal(c.Config):
		return Result{Err: wire.Errorf(wire.KindConflict, CodeConfigDiffers,
			"stream %s exists with another config; change it instead of creating it again", c.Name)}
	}
	return Result{Stream: cur}
}

func (s *state) update(c *UpdateStream) (Result, *change) {
	cur := s.byName[c.Name]
	if cur == nil {
		return refuse(notFound(c.Name))
	}
	if cur.Config.Equal(c.Config) && (c.Version == 0 || c.Version <= cur.Version) {
		return Result{Stream: cur}, nil // as asked already: also what a retry of an applied update meets
	}
	if c.Version != 0 && c.Version != cur.Version {
		return refuse(wire.Errorf(wire.KindConflict, CodeVersionMismatch,
			"stream %s is at version %d, not %d; read it again", c.Name, cur.Version, c.Version))
	}
	if field := cur.Config.fixed(c.Config); field != "" {
		return refuse(wire.Errorf(wire.KindInvalid, CodeImmutable, "stream %s: %s cannot be changed after creation", c.Name, field))
	}
	ch := s.next(c.NowMS)
	st := *cur
	st.Version, st.UpdatedMS, st.Config = ch.version, ch.clockMS, c.Config
	s.add(&st)
	ch.put = &st
	return Result{Stream: &st}, ch
}

func (s *state) drop(c *DeleteStream) (Result, *change) {
	cur := s.byName[c.Name]
	if cur == nil {
		return refuse(notFound(c.Name))
	}
	if !c.ID.IsZero() && c.ID != cur.ID {
		return refuse(wire.Errorf(wire.KindConflict, CodeVersionMismatch,
			"stream %s is incarnation %s now, not %s", c.Name, cur.ID, c.ID))
	}
	if c.Importing && !cur.Importing() {
		return refuse(wire.Errorf(wire.KindConflict, CodeExists, "stream %s is imported", c.Name))
	}
	ch := s.next(c.NowMS)
	t := Tombstone{Stream: cur.ID, Name: cur.Name, DeletedMS: ch.clockMS, Version: ch.version}
	for i := range cur.Partitions {
		t.Groups = append(t.Groups, cur.Partitions[i].Group)
	}
	s.remove(cur)
	s.bury(t)
	ch.removed, ch.buried = cur.Name, &t
	ch.expired = s.expire()
	return Result{Stream: cur}, ch
}

// expire forgets tombstones beyond the bounds, oldest first, and returns their versions. A node that asks later is told
// FateUnknown behind a read barrier, which means the same.
func (s *state) expire() []uint64 {
	n := max(0, len(s.tombstones)-MaxTombstones)
	for n < len(s.tombstones) && s.clockMS-s.tombstones[n].DeletedMS > TombstoneAgeMS {
		n++
	}
	var out []uint64
	for _, t := range s.tombstones[:n] {
		out = append(out, t.Version)
		delete(s.graves, t.Stream)
	}
	s.tombstones = slices.Clone(s.tombstones[n:])
	return out
}

func refuse(err *wire.Error) (Result, *change) { return Result{Err: err}, nil }

func notFound(name string) *wire.Error {
	return wire.Errorf(wire.KindNotFound, wire.CodeStreamNotFound, "stream %s does not exist", name)
}
