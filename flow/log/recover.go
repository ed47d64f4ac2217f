package log

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/skeinmesh/skein/ring"
)

// recover rebuilds the index from the files, oldest first, and returns a spare file where one was left.
func (j *FileJournal) recover() (*spare, error) {
	seqs, spares, err := listJournal(j.cfg.FS, j.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var kept *spare
	if !j.readOnly {
		if kept, err = j.keepSpares(spares); err != nil {
			return nil, err
		}
	}
	for i, seq := range seqs {
		path := filepath.Join(j.cfg.Dir, fileName(seq))
		if i > 0 && seq != seqs[i-1]+1 {
			return nil, corrupt(path, 0, "the file before it is missing")
		}
		if err := j.openFile(seq, path); err != nil {
			return nil, err
		}
	}
	for i, f := range j.files {
		r := recovery{recordReader: recordReader{file: f}, j: j, first: i == 0, limit: -1}
		if i+1 < len(j.files) {
			r.limit = j.files[i+1].prevEnd
		}
		if err := r.run(); err != nil {
			return nil, err
		}
	}
	j.w.groups = make(map[ring.GroupID]*group, len(j.groups))
	for id, g := range j.groups {
		g.tail = tail{last: g.last(), compacted: g.compacted.Index, tombstone: g.tombstone,
			born: g.birth != nil || g.last() > 0 || g.hardState != HardState{}}
		j.w.groups[id] = g
	}
	if n := len(j.files); n > 0 {
		// A killed process may have left its last bytes to the OS alone, and they count from now on.
		j.w.file, j.w.unsynced = j.files[n-1], true
	}
	return kept, nil
}

// listJournal returns the sequence numbers present, ascending, and the paths of spare files.
func listJournal(fsys FS, dir string) (seqs []uint64, spares []string, err error) {
	list, err := fsys.List(dir)
	if err != nil {
		return nil, nil, ioError("open journal", err)
	}
	for _, name := range list {
		if seq, ok := parseFileName(name); ok {
			seqs = append(seqs, seq)
		}
		if strings.HasPrefix(name, sparePrefix) {
			spares = append(spares, filepath.Join(dir, name))
		}
	}
	sort.Slice(seqs, func(a, b int) bool { return seqs[a] < seqs[b] })
	return seqs, spares, nil
}

// keepSpares removes spare files, but for one of the right size.
func (j *FileJournal) keepSpares(paths []string) (kept *spare, err error) {
	for _, path := range paths {
		if kept == nil && !strings.HasSuffix(path, tmpSuffix) {
			kept = j.keepSpare(path)
		}
		if kept != nil && path == kept.path {
			continue
		}
		if err := removeIfThere(j.cfg.FS, path); err != nil {
			return nil, ioError("open journal", err)
		}
	}
	return kept, nil
}

// keepSpare gives a spare file that an earlier run left a name that the preparer does not use; nil where it is of no use.
func (j *FileJournal) keepSpare(path string) *spare {
	f, err := j.cfg.FS.Open(path, os.O_RDWR)
	if err != nil {
		return nil
	}
	kept := filepath.Join(j.cfg.Dir, sparePrefix+"kept")
	if size, err := f.Size(); err != nil || size != j.cfg.FileBytes || j.cfg.FS.Rename(path, kept) != nil {
		_ = f.Close()
		return nil
	}
	return &spare{f: f, path: kept}
}

func (j *FileJournal) openFile(seq uint64, path string) error {
	open := func() (File, error) { return j.cfg.FS.Open(path, os.O_RDWR) }
	if j.readOnly {
		open = func() (File, error) { f, _, err := openInspected(path); return f, err }
	}
	f, err := open()
	if err != nil {
		return ioError("open journal", err)
	}
	jf := &journalFile{seq: seq, path: path, f: f, groups: map[*group]struct{}{}}
	j.files = append(j.files, jf)
	if err := jf.readHeader(); err != nil {
		return err
	}
	j.bytes += jf.size
	return nil
}

// readHeader learns the file's size, and from its header all else that is known before its records are read.
func (f *journalFile) readHeader() error {
	size, err := f.f.Size()
	if err != nil {
		return ioError("open journal", err)
	}
	f.size = size
	buf := make([]byte, fileHeaderSize)
	if _, err := io.ReadFull(io.NewSectionReader(f.f, 0, f.size), buf); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ioError("open journal", err)
	}
	h, ok := parseFileHeader(buf)
	if !ok || h.seq != f.seq {
		return corrupt(f.path, 0, "the file header does not check out")
	}
	f.nonce, f.prevEnd = h.nonce, int64(h.prevEnd)
	return nil
}

// recordReader finds the records of one file.
type recordReader struct {
	file   *journalFile
	buf    []byte // bytes of the file from bufOff on
	bufOff int64
}

// recovery reads one file.
type recovery struct {
	recordReader
	j     *FileJournal
	first bool  // the oldest file: its checkpoint counts
	limit int64 // where the next file says that this one ended; -1: this is the last file

	unitStart int64
	ops       []recoveredOp
	sealed    bool // the checkpoint has been read
}

// recoveredOp is a change whose group is looked up, or made, once its unit turns out to be complete.
type recoveredOp struct {
	op
	id ring.GroupID
}

func (r *recovery) run() error {
	off := int64(fileHeaderSize)
	r.unitStart = off
	for r.limit < 0 || off < r.limit {
		rec, data, err := r.next(off)
		if err != nil {
			return err
		}
		if rec == nil {
			break
		}
		if err := r.take(rec, data, off); err != nil {
			return err
		}
		off += recordSize + int64(len(data))
		if rec.flags&flagEnd != 0 {
			if err := r.applyUnit(); err != nil {
				return err
			}
			r.unitStart = off
		}
	}
	return r.end(off)
}

// end decides what the first byte that is not a valid record means.
func (r *recovery) end(off int64) error {
	f := r.file
	f.end = r.unitStart
	switch {
	case r.limit >= 0 && r.unitStart != r.limit:
		return corrupt(f.path, off, "no valid record before the end at byte %d", r.limit)
	case !r.sealed:
		// A file gets its name once its checkpoint is synced.
		return corrupt(f.path, off, "the checkpoint does not check out")
	case r.limit >= 0:
		return nil
	}
	proof, err := r.provenAfter(off, r.unitStart)
	if err != nil {
		return err
	}
	if proof >= 0 {
		return corrupt(f.path, off, "no valid record, but one at byte %d that was written later", proof)
	}
	return nil
}

// next returns the valid record at off and its data, which stay good until the next call, or nil.
func (r *recordReader) next(off int64) (*record, []byte, error) {
	b, err := r.bytes(off, recordSize)
	if err != nil || len(b) < recordSize {
		return nil, nil, err
	}
	h, ok := parseRecord(b, r.file.nonce)
	if !ok {
		return nil, nil, nil
	}
	n := recordSize + int(h.length)
	if b, err = r.bytes(off, n); err != nil || len(b) < n || !checkRecord(b[:n]) {
		return nil, nil, err
	}
	return &h, b[recordSize:n], nil
}

// bytes returns the n bytes at off, or fewer at the end of the file.
func (r *recordReader) bytes(off int64, n int) ([]byte, error) {
	if off >= r.bufOff && off+int64(n) <= r.bufOff+int64(len(r.buf)) {
		return r.buf[off-r.bufOff:][:n], nil
	}
	const window = 256 << 10
	want := min(int64(max(n, window)), r.file.size-off)
	if want <= 0 {
		return nil, nil
	}
	if int64(cap(r.buf)) < want {
		r.buf = make([]byte, want)
	}
	r.buf, r.bufOff = r.buf[:want], off
	if _, err := r.file.f.ReadAt(r.buf, off); err != nil {
		return nil, ioError("read journal", err)
	}
	return r.buf[:min(n, len(r.buf))], nil
}

// take queues the change that a record stands for.
func (r *recovery) take(rec *record, data []byte, off int64) error {
	bad := func(why string) error { return corrupt(r.file.path, off, "%s", why) }
	o := recoveredOp{id: rec.group}
	o.op = op{kind: rec.kind, entry: Entry{Index: rec.index, Term: rec.term}}
	switch rec.kind {
	case recMark:
		return nil
	case recCheckpoint:
		r.sealed = true
		return nil
	case recGroup:
		img, ok := parseGroupImage(data)
		if !ok || r.sealed {
			return bad("the group in the checkpoint cannot be read")
		}
		if !r.first {
			return nil
		}
		o.hs, o.birth, o.slot.term = img.hardState, img.birth, img.tombstone
	case recEntry:
		o.slot = slot{term: rec.term, file: uint32(r.file.seq), off: uint32(off), size: rec.length, typ: rec.typ}
	case recHardState:
		if len(data) != 8 {
			return bad("the hard state cannot be read")
		}
		o.hs = HardState{Term: rec.term, Commit: rec.index, Vote: binary.LittleEndian.Uint64(data)}
	case recBirth:
		o.birth = append([]byte{}, data...)
	}
	r.ops = append(r.ops, o)
	return nil
}

// applyUnit makes a complete unit part of the state.
func (r *recovery) applyUnit() error {
	for i := range r.ops {
		o := &r.ops[i]
		g := r.j.groups[o.id]
		if g == nil {
			g = &group{id: o.id}
			r.j.groups[o.id] = g
		}
		switch o.kind {
		case recGroup:
			g.hardState, g.birth, g.tombstone, g.compacted = o.hs, o.birth, o.slot.term, Mark{Index: o.entry.Index, Term: o.entry.Term}
			continue
		case recTruncate:
			if o.entry.Index <= g.compacted.Index {
				// The entries it follows were in files that are gone.
				g.reset(Mark{Index: o.entry.Index, Term: o.entry.Term})
				continue
			}
		case recEntry:
			if o.entry.Index != g.last()+1 {
				return corrupt(r.file.path, int64(o.slot.off), "entry %d of group %s does not follow %d", o.entry.Index, g.id, g.last())
			}
			r.file.groups[g] = struct{}{}
		}
		g.apply(&o.op, nil)
	}
	clear(r.ops)
	r.ops = r.ops[:0]
	return nil
}

// provenAfter looks beyond off for a valid record which proves that the unit at unitStart had been synced: the offset of that record,
// or -1. Records of the same group commit prove nothing, for a disk may write its blocks in any order.
func (r *recordReader) provenAfter(off, unitStart int64) (int64, error) {
	return r.after(off, func(rec *record) bool { return int64(rec.durable) > unitStart })
}

// after looks beyond off for a valid record that is wanted: its offset, or -1.
func (r *recordReader) after(off int64, want func(*record) bool) (int64, error) {
	var nonce [8]byte
	binary.LittleEndian.PutUint64(nonce[:], r.file.nonce)
	const window = 256 << 10
	for pos := off; pos < r.file.size; pos += window {
		b, err := r.bytes(pos, int(min(window+int64(len(nonce)), r.file.size-pos)))
		if err != nil {
			return -1, err
		}
		var found []int64 // where records might start
		for i := 0; ; {
			n := bytes.Index(b[i:], nonce[:])
			if n < 0 {
				break
			}
			found = append(found, pos+int64(i+n)-8)
			i += n + 1
		}
		for _, at := range found {
			if at <= off {
				continue
			}
			rec, _, err := r.next(at)
			if err != nil {
				return -1, err
			}
			if rec != nil && want(rec) {
				return at, nil
			}
		}
	}
	return -1, nil
}
