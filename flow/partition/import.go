package partition

import (
	"encoding/binary"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// Codes of refusals of imports.
const (
	CodeImporting   = "importing"    // the stream is being imported: it takes and gives nothing yet
	CodeOtherImport = "other-import" // the partition has events, or is filled from another export
	CodeImportGap   = "import-gap"   // a batch before this one is missing: send it first
)

// Import says from what, and how far, a partition is filled with the batches of an export. Until its end is reached it takes no other
// batches; there are only such below the end, so that a batch of the export that comes late or twice changes nothing.
type Import struct {
	Export [16]byte `msgpack:"x"`
	// Base is where the first batch begins, Start the first offset that readers see, End the offset after the last batch.
	Base  uint64 `msgpack:"b"`
	Start uint64 `msgpack:"s"`
	End   uint64 `msgpack:"e"`
}

func (im *Import) validate() error {
	if im.Base > im.Start || im.Start > im.End || im.End > 1<<62 || im.Export == [16]byte{} {
		return wire.Errorf(wire.KindInvalid, "", "import from offset %d, seen from %d, to %d", im.Base, im.Start, im.End)
	}
	return nil
}

// ImportResult is what became of an import's entry.
type ImportResult struct {
	Next uint64 // where the next batch must begin, or the import's end
	// Err, where not nil, says why nothing was done: KindConflict with CodeOtherImport or CodeImportGap.
	Err *wire.Error
}

// What an import's entry does, its first byte after the stamp. On disk: append only.
const (
	importBegin = 1
	importBatch = 2

	importHead = 8 + 1 + 16 // stamp, what it does, export
)

// EncodeImportBegin appends an entry that makes an empty partition take the batches of an export. Errors: KindInvalid. Propose it, as
// EncodeImportBatch's, only where the whole mesh knows wire.Version2.
func EncodeImportBegin(dst []byte, im Import) ([]byte, error) {
	if err := im.validate(); err != nil {
		return nil, err
	}
	dst = appendImport(dst, 0, importBegin, im.Export)
	for _, v := range []uint64{im.Base, im.Start, im.End} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return dst, nil
}

// EncodeImportBatch appends an entry that stores a batch of an export as it is: with its offsets, its time and the positions it skips.
// Its identities, where it has some, go into the dedupe window. The owner has verified the payload.
func EncodeImportBatch(dst []byte, export [16]byte, m *batch.Meta, payload []byte) []byte {
	dst = appendImport(dst, m.Stamp, importBatch, export)
	return append(batch.AppendMeta(dst, m), payload...)
}

func appendImport(dst []byte, stamp int64, what byte, export [16]byte) []byte {
	dst = append(dst, byte(entryImport), entryVersion)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stamp))
	return append(append(dst, what), export[:]...)
}

// decodeImport reads what follows an import entry's stamp.
func decodeImport(en entry, body []byte) (entry, error) {
	const head = importHead - 8
	if wire.Newest < wire.Version2 {
		return entry{}, corrupt("entry of unknown kind %d: a newer build wrote it", en.kind)
	}
	if len(body) < head {
		return entry{}, corrupt("import entry is cut off")
	}
	copy(en.imp.Export[:], body[1:])
	rest := body[head:]
	switch body[0] {
	case importBegin:
		if len(rest) != 3*8 {
			return entry{}, corrupt("import entry with a body of %d bytes", len(rest))
		}
		le := binary.LittleEndian
		en.imp.Base, en.imp.Start, en.imp.End = le.Uint64(rest), le.Uint64(rest[8:]), le.Uint64(rest[16:])
		if err := en.imp.validate(); err != nil {
			return entry{}, corrupt("import entry: %v", err)
		}
		return en, nil
	case importBatch:
		stamp := en.stamp
		en, err := decodeBatch(en, rest)
		if err == nil && stamp != en.stamp {
			err = corrupt("import entry of time %d with a batch of time %d", stamp, en.stamp)
		}
		return en, err
	}
	return entry{}, corrupt("import entry that does %d: a newer build wrote it", body[0])
}

// importing reports whether batches of an export are still to come.
func (st *state) importing() bool { return st.imp != nil && st.next < st.imp.End }

// applyImport begins an import, or takes its next batch.
func (p *Partition) applyImport(e log.Entry, en *entry, b log.Batch) (ImportResult, error) {
	if en.meta.Count > 0 {
		return p.importBatch(e, en, b)
	}
	st := &p.st
	switch {
	case st.imp != nil && *st.imp == en.imp:
		return ImportResult{Next: st.next}, nil
	case st.imp != nil || st.next > 0:
		return otherImport(), nil
	}
	raw, err := wire.Marshal(&en.imp)
	if err != nil {
		return ImportResult{}, err
	}
	if segs := p.v.segs; segs.Next() < en.imp.Base {
		// Durable when it returns, and so before the state that says so: a crash between both does it again.
		if err := segs.Reset(en.imp.Base); err != nil {
			return ImportResult{}, err
		}
	}
	b.Set(p.keys.imported(), raw)
	st.imp = &en.imp
	st.next, st.start = en.imp.Base, en.imp.Base
	return ImportResult{Next: st.next}, nil
}

func otherImport() ImportResult {
	return ImportResult{Err: wire.Errorf(wire.KindConflict, CodeOtherImport, "the partition has events, or is being filled from another export")}
}

func (p *Partition) importBatch(e log.Entry, en *entry, b log.Batch) (ImportResult, error) {
	st, m := &p.st, &en.meta
	switch {
	case st.imp == nil || st.imp.Export != en.imp.Export:
		return otherImport(), nil
	case m.Next() <= st.next:
		return ImportResult{Next: st.next}, nil // it came before
	case m.Base != st.next || m.Next() > st.imp.End:
		return ImportResult{Next: st.next, Err: wire.Errorf(wire.KindConflict, CodeImportGap,
			"a batch from offset %d to %d where %d is next and %d the end", m.Base, m.Next(), st.next, st.imp.End)}, nil
	}
	p.remember(m, b)
	m.Index, m.Term = e.Index, e.Term
	if err := p.store(m, en.payload); err != nil {
		return ImportResult{}, err
	}
	b.Set(p.keys.batch(e.Index), appendDecision(nil, m))
	st.sizes.add(m.Base, batch.MetaLen(m)+len(en.payload), st.spec.RetentionBytes)
	st.next = m.Next()
	if start := min(st.imp.Start, st.next); start > st.start {
		st.start = start
		st.sizes.trim(start)
		if err := p.v.segs.TrimTo(start); err != nil {
			return ImportResult{}, err
		}
	}
	return ImportResult{Next: st.next}, st.window.shrink(false)
}

// remember puts the identities of an imported batch into the window.
func (p *Partition) remember(m *batch.Meta, b log.Batch) {
	st, offset, skip := &p.st, m.Base, m.Skip
	for pos, id := range m.Identities {
		if len(skip) > 0 && skip[0] == uint32(pos) {
			skip = skip[1:]
			continue
		}
		if id.Hash != ([16]byte{}) {
			st.window.insert(id.Hash, original{offset: offset, payload: id.Payload}, st.stamp, b)
		}
		offset++
	}
}

// loadImport reads from the store what the partition is filled from.
func (st *state) loadImport(store log.Store, keys keyspace) error {
	raw, ok, err := store.Get(keys.imported())
	if err != nil || !ok {
		return err
	}
	im := new(Import)
	if err := wire.Unmarshal(raw, im); err != nil {
		return err
	}
	st.imp = im
	return im.validate()
}
