package log

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sort"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// SegmentVisitor is told of what is in a partition's segments, in order. An error that it returns ends the inspection.
type SegmentVisitor struct {
	File    func(path string, bytes int64) error
	Batch   func(*InspectedBatch) error
	Finding func(Finding) error
}

// InspectedBatch is a batch whose checksums hold. Its payload is good until the visitor returns.
type InspectedBatch struct {
	StoredBatch
	Path string
	Pos  int64
}

// InspectSegments reads all bytes of the files in dir that hold offset from and later ones, and judges what does not check out as
// OpenSegments would with r. Without r nobody knows what was durable: whatever does not check out is damage then.
func InspectSegments(dir string, r *Recovery, from uint64, v SegmentVisitor) error {
	bases, err := listSegments(OS{}, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w := segmentWalk{v: &v, dir: dir, r: r}
	if err := w.readNotes(); err != nil {
		return err
	}
	for ; len(bases) > 0 && bases[0] < w.mark.resetAt; bases = bases[1:] {
		if err := w.found(FoundLeftover, segmentPath(dir, bases[0]), 0, 0, "the file is from before a reset"); err != nil {
			return err
		}
	}
	w.next = w.mark.resetAt
	if first := max(sort.Search(len(bases), func(i int) bool { return bases[i] > from })-1, 0); len(bases) > 0 {
		if first > 0 || r == nil || bases[0] <= max(w.mark.start, r.Start) {
			w.next = bases[first] // those before it were trimmed, or are not asked for
		}
		bases = bases[first:]
	}
	for _, base := range bases {
		if err := w.begin(base); err != nil {
			return err
		}
		err := w.file(segmentPath(dir, base), base)
		if bad := (unreadable{}); errors.As(err, &bad) && !errors.Is(err, fs.ErrPermission) {
			w.jumped = true
			err = w.found(FoundDamage, segmentPath(dir, base), bad.pos, 0, "it cannot be read: %s", bad.error)
		}
		if err != nil {
			return err
		}
	}
	if r != nil && !w.cut && !w.jumped && w.durable() {
		return w.found(FoundMissing, segmentPath(dir, w.next), 0, 0, "the file is missing")
	}
	return nil
}

// InspectSegmentFile reads one file by itself.
func InspectSegmentFile(path string, v SegmentVisitor) error {
	w := segmentWalk{v: &v, jumped: true}
	return w.file(path, 0)
}

// segmentWalk is an inspection of segments.
type segmentWalk struct {
	v      *SegmentVisitor
	dir    string
	r      *Recovery // nil: not known
	mark   trimMark
	synced syncedPos

	next, last uint64 // offset and raft index that are wanted next
	jumped     bool   // something was left out: the next batch need not follow
	cut        bool   // what comes now is cut away at the next start
}

func (w *segmentWalk) found(kind FindingKind, path string, pos, end int64, format string, args ...any) error {
	return w.v.Finding(Finding{Path: path, Pos: pos, End: end, Kind: kind, Detail: fmt.Sprintf(format, args...)})
}

// readNotes reads the small records beside the batches, and that of the small state.
func (w *segmentWalk) readNotes() error {
	why, files, err := Damaged(OS{}, w.dir)
	if err != nil {
		return err
	}
	if why != nil {
		if err := w.found(FoundDamage, filepath.Join(w.dir, damageName), 0, 0, "the node noted damage before: %s %q", why, files); err != nil {
			return err
		}
	}
	if w.mark, err = readMark(OS{}, w.dir); err != nil {
		if wire.KindOf(err) != wire.KindCorrupt {
			return err
		}
		if err := w.found(FoundDamage, filepath.Join(w.dir, markName), 0, 0, "the trim mark does not check out"); err != nil {
			return err
		}
	}
	if w.r == nil {
		return nil
	}
	var ok bool
	if w.synced, ok = parseSynced(w.r.Synced); !ok {
		return w.found(FoundDamage, w.dir, 0, 0, "the synced position in the small state does not check out")
	}
	if w.synced.next <= w.mark.resetAt {
		w.synced = syncedPos{}
	}
	return nil
}

// durable reports whether offset next and on were durable, and still belong to what was applied; see opening.missing.
func (w *segmentWalk) durable() bool {
	return w.r == nil || w.next < w.synced.next && w.next < w.r.Next
}

// begin says what it means that a file is not the one that is wanted next.
func (w *segmentWalk) begin(base uint64) error {
	if base == w.next || w.cut || w.jumped {
		return nil
	}
	w.jumped = true
	if w.durable() {
		return w.found(FoundMissing, segmentPath(w.dir, w.next), 0, 0, "the file is missing: there is %s instead", filepath.Base(segmentPath(w.dir, base)))
	}
	w.cut = true
	return w.found(FoundLeftover, segmentPath(w.dir, base), 0, 0, "the file does not follow offset %d, and was never known to be durable", w.next)
}

// unreadable is an error of the file system, not of what the file holds.
type unreadable struct {
	error
	pos int64
}

func (u unreadable) Unwrap() error { return u.error }

// file goes through one file, over what does not check out.
func (w *segmentWalk) file(path string, base uint64) (err error) {
	f, size, err := openInspected(path)
	if err != nil {
		return unreadable{ioError("inspect segments", err), 0}
	}
	defer func() { err = firstError(err, f.Close()) }()
	if err := w.v.File(path, size); err != nil {
		return err
	}
	synced := size
	if w.r != nil {
		synced = w.synced.lengthOf(base, size)
	}
	sc := scanner{f: f, size: size, payloads: true}
	whole := true
	for pos := int64(0); pos < size; {
		m, n, why, err := sc.batch(pos)
		if err != nil {
			return unreadable{err, pos}
		}
		if why != nil {
			whole = false
			next, err := sc.nextSound(pos)
			if err != nil {
				return unreadable{err, next}
			}
			if err := w.bad(path, pos, next, pos < synced, why); err != nil {
				return err
			}
			pos = next
			continue
		}
		payload, err := sc.bytes(pos+n-int64(m.PayloadLen), int(m.PayloadLen))
		if err != nil {
			return unreadable{err, pos}
		}
		if err := w.check(path, pos, size, &m, pos < synced); err != nil {
			return err
		}
		if err := w.v.Batch(&InspectedBatch{StoredBatch: StoredBatch{Meta: m, Payload: payload}, Path: path, Pos: pos}); err != nil {
			return err
		}
		w.next, w.last, w.jumped = m.Next(), m.Index, false
		pos += n
	}
	if whole && size < synced && !w.cut && w.durable() {
		return w.found(FoundDamage, path, size, size, "the file ends, but %d bytes were synced", synced)
	}
	return nil
}

// check holds a sound batch against what came before.
func (w *segmentWalk) check(path string, pos, size int64, m *batch.Meta, synced bool) error {
	switch {
	case w.cut:
	case w.r != nil && m.Index > w.r.AppliedIndex:
		w.cut = true
		return w.found(FoundUnapplied, path, pos, size, "raft index %d is later than the state, which is at %d; the next start cuts it away, and writes it again from the journal", m.Index, w.r.AppliedIndex)
	case w.jumped:
	case m.Base != w.next || m.Offsets() == 0 || m.Index <= w.last:
		return w.bad(path, pos, pos, synced, fmt.Errorf("batch at offset %d, raft index %d does not follow %d, %d", m.Base, m.Index, w.next, w.last))
	}
	return nil
}

// bad tells of bytes that do not check out.
func (w *segmentWalk) bad(path string, pos, end int64, synced bool, why error) error {
	w.jumped = true
	switch {
	case w.cut:
		return w.found(FoundTorn, path, pos, end, "%s", why)
	case synced && w.durable():
		return w.found(FoundDamage, path, pos, end, "%s", why)
	}
	w.cut = true
	return w.found(FoundTorn, path, pos, end, "%s: it was never known to be durable; the next start cuts it away, and writes what was applied of it again from the journal", why)
}

// nextSound finds the next batch after pos whose checksums hold, or the end of the file.
func (sc *scanner) nextSound(pos int64) (int64, error) {
	for {
		var err error
		if pos, err = sc.resync(pos); err != nil || pos >= sc.size {
			return sc.size, err
		}
		_, _, why, err := sc.batch(pos)
		if err != nil || why == nil {
			return pos, err
		}
	}
}
