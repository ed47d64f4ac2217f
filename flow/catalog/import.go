package catalog

import (
	"slices"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// BeginImport makes a stream that is filled from an export: it takes and gives nothing until EndImport. Since wire.Version2.
type BeginImport struct {
	Create CreateStream `msgpack:"c"` // its Mode is ignored: the name must be free
	Export [16]byte     `msgpack:"x"` // which export it is filled from; the same again finds the import that is under way
}

// EndImport opens a stream whose events are all there. Since wire.Version2.
type EndImport struct {
	Name  string        `msgpack:"n"`
	ID    ring.StreamID `msgpack:"i"` // the incarnation meant
	NowMS int64         `msgpack:"t"`
}

func (BeginImport) kind() EntryKind { return EntryBeginImport }
func (EndImport) kind() EntryKind   { return EntryEndImport }

// decodeImport reads the entries that came with imports.
func decodeImport(data []byte) (Command, error) {
	switch {
	case wire.Newest < wire.Version2:
	case EntryKind(data[0]) == EntryBeginImport:
		return decodeBody[BeginImport](data[2:])
	case EntryKind(data[0]) == EntryEndImport:
		return decodeBody[EndImport](data[2:])
	}
	return nil, unknownEntry(data)
}

// Importing reports whether the stream is being filled from an export.
func (s *Stream) Importing() bool { return s.Import != [16]byte{} }

func (s *state) beginImport(c *BeginImport) (Result, *change) {
	cur := s.byName[c.Create.Name]
	switch {
	case cur != nil && cur.Importing() && cur.Import == c.Export:
		return Result{Stream: cur, Created: cur.ID == c.Create.ID}, nil
	case cur != nil && cur.Importing():
		return refuse(wire.Errorf(wire.KindConflict, CodeExists,
			"stream %s is being imported from another export; go on with that one, or delete the stream", c.Create.Name))
	case cur != nil:
		return refuse(wire.Errorf(wire.KindConflict, CodeExists, "stream %s exists; import under another name, or delete it first", c.Create.Name))
	}
	return s.make(&c.Create, Importing, c.Export)
}

func (s *state) endImport(c *EndImport) (Result, *change) {
	cur := s.byName[c.Name]
	switch {
	case cur == nil:
		return refuse(notFound(c.Name))
	case cur.ID != c.ID:
		return refuse(wire.Errorf(wire.KindConflict, CodeVersionMismatch, "stream %s is incarnation %s now, not %s", c.Name, cur.ID, c.ID))
	case !cur.Importing():
		return Result{Stream: cur}, nil
	}
	ch := s.next(c.NowMS)
	st := *cur
	st.Version, st.UpdatedMS, st.Import = ch.version, ch.clockMS, [16]byte{}
	st.Partitions = slices.Clone(cur.Partitions)
	for i := range st.Partitions {
		st.Partitions[i].State = Open
	}
	s.add(&st)
	ch.put = &st
	return Result{Stream: &st}, ch
}
