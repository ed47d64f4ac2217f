package log

import (
	"encoding/binary"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// smallData is copied next to its header: a system call's vector entry costs more than such a copy.
const smallData = 2 << 10

// staging is one group commit in the making: the bytes to write, and what becomes visible once they are durable.
type staging struct {
	nonce   uint64
	durable uint32
	start   int64 // offset in the file of the first byte

	arena []byte   // headers and small data
	run   int      // start of the part of arena that is not in vec yet
	vec   [][]byte // what to write, in order
	size  int64
	ops   []op

	pending     record // the unit's latest record: held back until it is known whether it is the last one
	pendingData []byte
	hasPending  bool
}

// op is one change of the visible state.
type op struct {
	kind  recordKind
	g     *group
	slot  slot
	entry Entry // recEntry; for marks and numbers Index and Term
	hs    HardState
	birth []byte
}

func (s *staging) begin(f *journalFile) {
	s.nonce, s.durable, s.start = f.nonce, uint32(f.durable), f.end
	s.arena, s.run, s.vec, s.size = s.arena[:0], 0, s.vec[:0], 0
	s.ops = s.ops[:0]
}

// clear drops references to callers' memory.
func (s *staging) clear() {
	clear(s.vec)
	clear(s.ops)
	s.vec, s.ops, s.pendingData = s.vec[:0], s.ops[:0], nil
	if cap(s.arena) > 4<<20 {
		s.arena = nil
	}
}

// record queues one record of the current unit and returns the offset it will have.
func (s *staging) record(r record, data []byte) (off int64) {
	s.flush(0)
	off = s.start + s.size
	s.pending, s.pendingData, s.hasPending = r, data, true
	return off
}

// flush encodes the record held back.
func (s *staging) flush(flags uint8) {
	if !s.hasPending {
		return
	}
	s.hasPending = false
	r := &s.pending
	r.nonce, r.durable, r.flags = s.nonce, s.durable, flags
	s.arena = r.append(s.arena, s.pendingData)
	if len(s.pendingData) <= smallData {
		s.arena = append(s.arena, s.pendingData...)
	} else {
		s.vec = append(s.vec, s.arena[s.run:], s.pendingData)
		s.run = len(s.arena)
	}
	s.size += recordSize + int64(len(s.pendingData))
}

// finish returns the buffers to write.
func (s *staging) finish() [][]byte {
	if s.run < len(s.arena) {
		s.vec = append(s.vec, s.arena[s.run:])
		s.run = len(s.arena)
	}
	return s.vec
}

// stage adds a unit. On an error nothing of it remains.
func (w *writer) stage(u *unit) error {
	s := &w.staging
	arena, run, vec, size, ops := len(s.arena), s.run, len(s.vec), s.size, len(s.ops)
	w.unit++
	w.touched = w.touched[:0]
	for i := range u.writes {
		if err := w.stageWrite(&u.writes[i]); err != nil {
			s.arena, s.run, s.vec, s.size, s.ops = s.arena[:arena], run, s.vec[:vec], size, s.ops[:ops]
			s.hasPending = false
			for _, g := range w.touched {
				g.tail = g.snapshot
			}
			return err
		}
	}
	s.flush(flagEnd)
	return nil
}

// group finds or makes the group, and keeps its tail for the case that the unit is refused.
func (w *writer) group(id ring.GroupID) *group {
	g := w.groups[id]
	if g == nil {
		g = &group{id: id}
		w.groups[id] = g
	}
	if g.unit != w.unit {
		g.unit, g.snapshot = w.unit, g.tail
		w.touched = append(w.touched, g)
	}
	return g
}

func (w *writer) stageWrite(wr *Write) error {
	g, s := w.group(wr.Group), &w.staging
	if err := checkWrite(&g.tail, wr); err != nil {
		return err
	}
	if wr.Tombstone > 0 {
		g.tail = tail{tombstone: max(g.tail.tombstone, wr.Tombstone)}
		s.record(record{kind: recTombstone, group: g.id, index: g.tail.tombstone}, nil)
		s.ops = append(s.ops, op{kind: recTombstone, g: g, entry: Entry{Index: g.tail.tombstone}})
		return nil
	}
	g.tail.born = true
	if wr.Birth != nil {
		s.record(record{kind: recBirth, group: g.id}, wr.Birth)
		s.ops = append(s.ops, op{kind: recBirth, g: g, birth: append([]byte{}, wr.Birth...)})
	}
	if m := wr.Reset; m != nil {
		g.tail.last, g.tail.compacted = m.Index, m.Index
		s.record(record{kind: recReset, group: g.id, index: m.Index, term: m.Term}, nil)
		s.ops = append(s.ops, op{kind: recReset, g: g, entry: Entry{Index: m.Index, Term: m.Term}})
	}
	w.stageEntries(g, wr.Entries)
	if hs := wr.HardState; hs != nil {
		var vote [8]byte
		binary.LittleEndian.PutUint64(vote[:], hs.Vote)
		w.votes = append(w.votes, vote[:]...)
		s.record(record{kind: recHardState, group: g.id, index: hs.Commit, term: hs.Term}, w.votes[len(w.votes)-8:])
		s.ops = append(s.ops, op{kind: recHardState, g: g, hs: *hs})
	}
	return nil
}

func (w *writer) stageEntries(g *group, entries []Entry) {
	if len(entries) == 0 {
		return
	}
	s := &w.staging
	if first := entries[0].Index; first <= g.tail.last {
		// The term of the entry before is written too: the file that holds it may be gone when this record is read again.
		m := Mark{Index: first - 1, Term: w.stagedTerm(g, first-1)}
		s.record(record{kind: recTruncate, group: g.id, index: m.Index, term: m.Term}, nil)
		s.ops = append(s.ops, op{kind: recTruncate, g: g, entry: Entry{Index: m.Index, Term: m.Term}})
	}
	for i := range entries {
		e := &entries[i]
		off := s.record(record{kind: recEntry, group: g.id, index: e.Index, term: e.Term, typ: e.Type}, e.Data)
		s.ops = append(s.ops, op{kind: recEntry, g: g, entry: *e,
			slot: slot{term: e.Term, file: uint32(w.file.seq), off: uint32(off), size: uint32(len(e.Data)), typ: e.Type}})
	}
	g.tail.last = entries[len(entries)-1].Index
}

// stagedTerm is the term at i, which the group holds, counting what is staged.
func (w *writer) stagedTerm(g *group, i uint64) uint64 {
	for k := len(w.staging.ops) - 1; k >= 0; k-- {
		o := &w.staging.ops[k]
		if o.g == g && o.kind == recTombstone {
			return 0 // the log began anew, and i is before its first entry
		}
		if o.g == g && (o.kind == recEntry || o.kind == recReset || o.kind == recTruncate) && o.entry.Index == i {
			return o.entry.Term
		}
	}
	w.j.mu.RLock()
	defer w.j.mu.RUnlock()
	if i == g.compacted.Index {
		return g.compacted.Term
	}
	return g.slots[i-g.compacted.Index-1].term
}

// checkWrite refuses what would leave a group's log with a hole, or bring a removed group back without a birth.
func checkWrite(t *tail, w *Write) error {
	refuse := func(format string, args ...any) error {
		return wire.Errorf(wire.KindInvalid, "", "journal write to group "+w.Group.String()+": "+format, args...)
	}
	if w.Tombstone > 0 {
		if w.Birth != nil || w.Reset != nil || w.HardState != nil || len(w.Entries) > 0 {
			return refuse("a tombstone goes alone")
		}
		return nil
	}
	if !t.born && t.tombstone > 0 && w.Birth == nil {
		return refuse("the group was removed")
	}
	if len(w.Birth) > maxRecordData-groupImageSize {
		return refuse("birth record of %d bytes is too large", len(w.Birth))
	}
	last, compacted := t.last, t.compacted
	if w.Reset != nil {
		last, compacted = w.Reset.Index, w.Reset.Index
	}
	for i := range w.Entries {
		e := &w.Entries[i]
		switch {
		case i == 0 && (e.Index <= compacted || e.Index > last+1):
			return refuse("entry %d does not follow: the log holds (%d, %d]", e.Index, compacted, last)
		case i > 0 && e.Index != w.Entries[i-1].Index+1:
			return refuse("entries %d and %d are not contiguous", w.Entries[i-1].Index, e.Index)
		case len(e.Data) > maxRecordData:
			return refuse("entry %d of %d bytes is too large", e.Index, len(e.Data))
		}
	}
	return nil
}
