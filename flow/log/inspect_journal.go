package log

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

	"github.com/skeinmesh/skein/ring"
)

// JournalVisitor is told of what is in a journal, in order. An error that it returns ends the inspection.
type JournalVisitor struct {
	File    func(JournalFile) error
	Record  func(*JournalRecord) error // the record is good until it returns
	Finding func(Finding) error
	// End is told where the valid part of a file ends.
	End func(path string, end int64) error
}

// JournalFile is a file of a journal.
type JournalFile struct {
	Path     string
	Sequence uint64
	Bytes    int64
	PrevEnd  int64 // where the file before ended
}

// JournalRecord is a record whose checksum holds.
type JournalRecord struct {
	Path        string
	Pos         int64
	Kind        string
	Group       ring.GroupID // zero: it is of no group
	Index, Term uint64       // as the kind has it; see record.go
	Type        EntryType
	Bytes       int // of the data
	CRC         uint32
	Durable     int64 // everything before it in the file was durable when the record was made
	Last        bool  // of its unit
	// HardState and Tombstone are those of a group, where the kind has them; Birth: the group is born by it.
	HardState *HardState
	Tombstone uint64
	Birth     bool
}

// InspectJournal reads all files of the journal in dir. What it finds torn or damaged is what OpenJournal finds, but for records that
// check out and make no sense together: only ReadJournal knows them.
func InspectJournal(dir string, v JournalVisitor) error {
	seqs, _, err := listJournal(OS{}, dir)
	if err != nil {
		return err
	}
	for i, seq := range seqs {
		path := filepath.Join(dir, fileName(seq))
		if i > 0 && seq != seqs[i-1]+1 {
			lost := Finding{Path: filepath.Join(dir, fileName(seqs[i-1]+1)), Kind: FoundMissing,
				Detail: fmt.Sprintf("the file is missing, and all up to %s", fileName(seq))}
			if err := v.Finding(lost); err != nil {
				return err
			}
		}
		w := journalWalk{v: &v, limit: -1, last: i == len(seqs)-1}
		if !w.last && seqs[i+1] == seq+1 {
			w.limit = endBefore(filepath.Join(dir, fileName(seq+1)), seq+1)
		}
		if err := w.run(path, seq); err != nil {
			return err
		}
	}
	return nil
}

// endBefore is where a file says that the one before it ended; -1 where it cannot be read.
func endBefore(path string, seq uint64) int64 {
	f, _, err := openInspected(path)
	if err != nil {
		return -1
	}
	defer func() { _ = f.Close() }()
	jf := journalFile{seq: seq, path: path, f: f}
	if jf.readHeader() != nil {
		return -1
	}
	return jf.prevEnd
}

// journalWalk is the inspection of one file.
type journalWalk struct {
	recordReader
	v         *JournalVisitor
	limit     int64 // where the next file says that this one ended; -1: nobody knows
	last      bool
	unitStart int64
	sealed    bool // the checkpoint has been read
}

func (w *journalWalk) run(path string, seq uint64) (err error) {
	f, size, err := openInspected(path)
	if err != nil {
		return ioError("inspect journal", err)
	}
	defer func() { err = firstError(err, f.Close()) }()
	w.file = &journalFile{seq: seq, path: path, f: f, size: size}
	bad := w.file.readHeader()
	if err := w.v.File(JournalFile{Path: path, Sequence: seq, Bytes: size, PrevEnd: w.file.prevEnd}); err != nil {
		return err
	}
	if bad != nil {
		if err := w.found(FoundDamage, 0, fileHeaderSize, "the file header does not check out"); err != nil {
			return err
		}
		if err := w.guessNonce(); err != nil {
			return err
		}
	}
	return w.records()
}

// guessNonce takes the nonce from the first record: where the file's header is lost the record's own checksum has to do.
func (w *journalWalk) guessNonce() error {
	b, err := w.bytes(fileHeaderSize, recordSize)
	if err == nil && len(b) == recordSize {
		w.file.nonce = binary.LittleEndian.Uint64(b[8:])
	}
	return err
}

func (w *journalWalk) found(kind FindingKind, pos, end int64, format string, args ...any) error {
	return w.v.Finding(Finding{Path: w.file.path, Pos: pos, End: end, Kind: kind, Detail: fmt.Sprintf(format, args...)})
}

// records goes through the file, over what does not check out.
func (w *journalWalk) records() error {
	off := int64(fileHeaderSize)
	w.unitStart = off
	for w.limit < 0 || off < w.limit {
		rec, data, err := w.next(off)
		if err != nil {
			return err
		}
		if rec == nil {
			next, err := w.gap(off)
			if err != nil || next < 0 {
				return err
			}
			off, w.unitStart = next, next
			continue
		}
		if err := w.v.Record(describeRecord(w.file.path, off, rec, data)); err != nil {
			return err
		}
		w.sealed = w.sealed || rec.kind == recCheckpoint
		if off += recordSize + int64(len(data)); rec.flags&flagEnd != 0 {
			w.unitStart = off
		}
	}
	if w.unitStart != w.limit {
		if err := w.found(FoundDamage, w.unitStart, off, "no valid record ends at byte %d, where the file ended", w.limit); err != nil {
			return err
		}
	}
	return w.end()
}

// gap judges what is at off and is no valid record, and returns where to go on, or -1.
func (w *journalWalk) gap(off int64) (next int64, err error) {
	if next, err = w.after(off, func(*record) bool { return true }); err != nil {
		return -1, err
	}
	if w.limit >= 0 {
		end := min(w.limit, w.file.size)
		if next < 0 || next >= end {
			return -1, firstError(w.found(FoundDamage, off, end, "no valid record before the end at byte %d", w.limit), w.end())
		}
		return next, w.found(FoundDamage, off, next, "no valid record")
	}
	proof, err := w.provenAfter(off, w.unitStart)
	switch {
	case err != nil:
		return -1, err
	case proof >= 0:
		return next, w.found(FoundDamage, off, next, "no valid record, but one at byte %d that was written later", proof)
	case !w.last && next >= 0:
		return next, w.found(FoundDamage, off, next, "no valid record")
	case !w.last:
		// The next file would say whether this one ended here, and is missing or damaged.
	case next >= 0 || off > w.unitStart || w.begun(off):
		end := w.file.size
		if err := w.found(FoundTorn, w.unitStart, end, "the last write did not get whole"); err != nil {
			return -1, err
		}
	}
	return -1, w.end()
}

// begun reports whether a record of this file was begun at off. What a recycled file held before is none.
func (w *journalWalk) begun(off int64) bool {
	b, err := w.bytes(off, recordSize)
	return err == nil && len(b) == recordSize && binary.LittleEndian.Uint64(b[8:]) == w.file.nonce
}

// end says where the valid part ends.
func (w *journalWalk) end() error {
	if !w.sealed {
		// A file gets its name once its checkpoint is synced.
		if err := w.found(FoundDamage, fileHeaderSize, w.unitStart, "the checkpoint does not check out"); err != nil {
			return err
		}
	}
	return w.v.End(w.file.path, w.unitStart)
}

func describeRecord(path string, off int64, rec *record, data []byte) *JournalRecord {
	r := &JournalRecord{Path: path, Pos: off, Kind: rec.kind.String(), Group: rec.group, Index: rec.index, Term: rec.term, Type: rec.typ,
		Bytes: len(data), CRC: rec.crc, Durable: int64(rec.durable), Last: rec.flags&flagEnd != 0}
	switch rec.kind {
	case recHardState:
		if len(data) == 8 {
			r.HardState = &HardState{Term: rec.term, Commit: rec.index, Vote: binary.LittleEndian.Uint64(data)}
		}
	case recGroup:
		if img, ok := parseGroupImage(data); ok {
			r.HardState, r.Tombstone, r.Birth = &img.hardState, img.tombstone, img.birth != nil
		}
	case recBirth:
		r.Birth = true
	case recTombstone:
		r.Tombstone = rec.index
	}
	return r
}
