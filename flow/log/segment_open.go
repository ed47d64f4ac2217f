package log

import (
	"errors"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// OpenSegments opens the files in dir, which is made where it does not exist. What was never synced and does not check out is cut, and
// so is everything later than r says was applied. Next may then be below r.Next: the missing batches are in the journal.
//
// Bad or missing bytes among those that were synced are an error of wire.KindCorrupt that names the file and the byte; then nothing is
// changed. Payloads of complete files are not read; their checksums are verified when they are.
func OpenSegments(dir string, cfg SegmentConfig, r Recovery) (*Segments, error) {
	s := &Segments{dir: dir, cfg: cfg.withDefaults(dir), pins: map[*Pin]struct{}{}}
	if err := makeDirs(s.cfg.FS, dir); err != nil {
		return nil, ioError("open segments", err)
	}
	o := opening{s: s, r: r, scanned: map[*segment]bool{}}
	if err := o.run(); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// opening is the work of OpenSegments. It looks first and changes afterwards, so that damage leaves all as it was.
type opening struct {
	s      *Segments
	r      Recovery
	synced syncedPos

	remove  []uint64          // bases of files that go
	cutAt   int64             // new length of the last kept file; -1: as it is
	scanned map[*segment]bool // whose index was missing or of no use
}

func (o *opening) run() error {
	mark, err := readMark(o.s.cfg.FS, o.s.dir)
	if err != nil {
		return err
	}
	var ok bool
	if o.synced, ok = parseSynced(o.r.Synced); !ok {
		return &wire.Error{Kind: wire.KindCorrupt, Op: "open segments", Detail: "the synced position in the small state does not check out"}
	}
	if o.synced.next <= mark.resetAt {
		o.synced = syncedPos{}
	}
	bases, err := listSegments(o.s.cfg.FS, o.s.dir)
	if err != nil {
		return err
	}
	s := o.s
	s.marked, s.resetAt, s.start = mark, mark.resetAt, max(mark.start, o.r.Start)
	for len(bases) > 0 && bases[0] < mark.resetAt {
		o.remove = append(o.remove, bases[0])
		bases = bases[1:]
	}
	if err := o.load(bases); err != nil {
		return err
	}
	return o.change()
}

// listSegments returns the bases of all files, ascending.
func listSegments(fsys FS, dir string) ([]uint64, error) {
	list, err := fsys.List(dir)
	if err != nil {
		return nil, ioError("open segments", err)
	}
	var bases []uint64
	for _, name := range list {
		if digits, ok := strings.CutSuffix(name, SegmentSuffix); ok && len(digits) == 20 {
			if base, err := strconv.ParseUint(digits, 10, 64); err == nil {
				bases = append(bases, base)
			}
		}
	}
	sort.Slice(bases, func(a, b int) bool { return bases[a] < bases[b] })
	return bases, nil
}

// load reads what the files hold, up to the first batch that is to be cut.
func (o *opening) load(bases []uint64) error {
	s := o.s
	o.cutAt = -1
	s.next = s.resetAt
	if len(bases) > 0 && bases[0] <= s.start {
		s.next = bases[0] // those before it were trimmed
	}
	for i, base := range bases {
		if base != s.next || o.cutAt >= 0 {
			if o.cutAt < 0 && o.missing(s.next) {
				return corrupt(segmentPath(s.dir, s.next), 0, "the file is missing")
			}
			o.remove = append(o.remove, bases[i:]...)
			return nil
		}
		seg := &segment{base: base, path: segmentPath(s.dir, base), next: base}
		cut, err := o.loadFile(seg, i == len(bases)-1)
		if err != nil {
			return err
		}
		s.segs = append(s.segs, seg)
		s.next = seg.next
		if seg.last > 0 {
			s.lastIndex = seg.last
		}
		if cut >= 0 {
			o.cutAt = cut
		}
	}
	if o.cutAt < 0 && o.missing(s.next) {
		return corrupt(segmentPath(s.dir, s.next), 0, "the file is missing")
	}
	return nil
}

// missing reports whether bytes at offset next and on were durable, and still belong to what was applied. Batches beyond what the small
// state has applied are cut at each start, and written again, so that a synced position may be ahead of the files for a while.
func (o *opening) missing(next uint64) bool {
	return next < o.synced.next && next < o.r.Next
}

// loadFile fills seg and returns the position from which it is to be cut, or -1.
func (o *opening) loadFile(seg *segment, last bool) (cut int64, err error) {
	f, err := o.s.cfg.FS.Open(seg.path, os.O_RDONLY)
	if err != nil {
		return -1, ioError("open segments", err)
	}
	defer func() { err = firstError(err, f.Close()) }()
	if seg.size, err = f.Size(); err != nil {
		return -1, ioError("open segments", err)
	}
	durable := o.synced.lengthOf(seg.base, seg.size)
	if !last && durable == seg.size {
		if b, err := readFile(o.s.cfg.FS, indexPath(o.s.dir, seg.base)); err == nil && parseIndex(b, seg) && seg.last <= o.r.AppliedIndex {
			seg.synced, seg.sealed = seg.size, true
			return -1, nil
		}
		seg.next, seg.last, seg.sparse = seg.base, 0, nil
	}
	o.scanned[seg] = true
	sc := scanner{f: f, size: seg.size, payloads: last || durable < seg.size}
	pos, why, err := sc.run(seg, o.r.AppliedIndex, o.s.cfg.IndexBytes)
	if err != nil {
		return -1, err
	}
	if why != nil && pos < durable && o.missing(seg.next) {
		return -1, corrupt(seg.path, pos, "%s", why)
	}
	cut = -1
	if pos < seg.size {
		cut = pos
	} else if !last {
		seg.sealed = true
	}
	if pos < durable && why == nil && !sc.later && o.missing(seg.next) {
		return -1, corrupt(seg.path, pos, "the file ends, but %d bytes were synced", durable)
	}
	seg.size, seg.synced = pos, min(pos, durable)
	return cut, nil
}

// change cuts and removes what load decided on, and opens the end for writing.
func (o *opening) change() error {
	s := o.s
	for i := len(o.remove) - 1; i >= 0; i-- { // the last ones first: what is left is contiguous at each moment
		if err := s.removeSegment(o.remove[i]); err != nil {
			return ioError("open segments", err)
		}
	}
	// A file that is empty now goes, unless it alone tells where the log goes on, now that those before it were trimmed.
	if n := len(s.segs); n > 0 && s.segs[n-1].size == 0 && (n > 1 || s.segs[0].base == s.resetAt) {
		if err := s.removeSegment(s.segs[n-1].base); err != nil {
			return ioError("open segments", err)
		}
		s.segs = s.segs[:n-1]
		o.cutAt = -1
	}
	for i, seg := range s.segs {
		seg.sealed = i < len(s.segs)-1
		if seg.sealed && seg.synced == seg.size {
			if o.scanned[seg] {
				_ = writeIndex(s.cfg.FS, s.dir, seg) // only saves time
			}
			continue
		}
		f, err := s.cfg.FS.Open(seg.path, os.O_RDWR)
		if err != nil {
			return ioError("open segments", err)
		}
		seg.f = f
		if !seg.sealed && o.cutAt >= 0 {
			if err := firstError(removeIfThere(s.cfg.FS, indexPath(s.dir, seg.base)), f.Truncate(o.cutAt), syncFile(f)); err != nil {
				return ioError("open segments", err)
			}
		}
	}
	s.above = above(s.dir, s.cfg.Root)
	var dirs []string
	if len(o.remove) > 0 || o.cutAt >= 0 {
		dirs = []string{s.dir}
	}
	if s.resetAt > 0 && s.resetAt >= o.r.Next {
		// Whoever reset it was stopped before the mark was known to be durable, and from now on it counts.
		dirs = append([]string{s.dir}, s.above...)
	}
	if err := syncDirs(s.cfg.FS, dirs); err != nil {
		return ioError("open segments", err)
	}
	for _, seg := range s.segs {
		if seg.synced > 0 {
			s.synced = syncedPos{base: seg.base, length: seg.synced, next: seg.next}
		}
		if seg.synced < seg.size {
			if seg.synced > 0 {
				s.synced.next = min(seg.next, o.synced.next)
			}
			break
		}
	}
	s.dirDirty, s.untrimmed = true, true
	return nil
}

// scanner goes through the batches of one file.
type scanner struct {
	f        File
	size     int64
	payloads bool // verify them, too
	later    bool // it stopped at a batch that was not applied yet

	buf    []byte
	bufOff int64
}

// run notes every batch into seg until the end, the first batch later than applied, or the first bytes that do not check out: why then
// says what is wrong with them. pos is where it stopped.
func (sc *scanner) run(seg *segment, applied uint64, every int64) (pos int64, why, err error) {
	for pos < sc.size {
		m, n, why, err := sc.batch(pos)
		if err != nil || why != nil {
			return pos, why, err
		}
		if m.Index > applied {
			sc.later = true
			return pos, nil, nil
		}
		if m.Base != seg.next || m.Offsets() == 0 || m.Index <= seg.last {
			return pos, wire.Errorf(wire.KindCorrupt, "", "batch at offset %d, raft index %d does not follow %d, %d", m.Base, m.Index, seg.next, seg.last), nil
		}
		seg.note(&m, pos, every)
		pos += n
	}
	return pos, nil, nil
}

// batch reads the header at pos and, where wanted, verifies the payload. n is the length of both.
func (sc *scanner) batch(pos int64) (m batch.Meta, n int64, why, err error) {
	b, err := sc.bytes(pos, batch.MinMeta)
	if err != nil {
		return m, 0, nil, err
	}
	size, why := batch.MetaSize(b)
	if why != nil {
		return m, 0, why, nil
	}
	if b, err = sc.bytes(pos, size); err != nil {
		return m, 0, nil, err
	}
	if m, _, why = batch.ParseMeta(b); why != nil {
		return m, 0, why, nil
	}
	n = int64(size) + int64(m.PayloadLen)
	if pos+n > sc.size {
		return m, 0, batch.ErrShort, nil
	}
	if sc.payloads {
		if b, err = sc.bytes(pos+int64(size), int(m.PayloadLen)); err != nil {
			return m, 0, nil, err
		}
		why = batch.VerifyPayload(&m, b)
	}
	return m, n, why, nil
}

// bytes returns the n bytes at pos, or fewer at the end of the file.
func (sc *scanner) bytes(pos int64, n int) ([]byte, error) {
	if pos >= sc.bufOff && pos+int64(n) <= sc.bufOff+int64(len(sc.buf)) {
		return sc.buf[pos-sc.bufOff:][:n], nil
	}
	window := 4 << 10 // headers alone are far apart
	if sc.payloads {
		window = 256 << 10
	}
	want := min(int64(max(n, window)), sc.size-pos)
	if int64(cap(sc.buf)) < want {
		sc.buf = make([]byte, want)
	}
	sc.buf, sc.bufOff = sc.buf[:want], pos
	if _, err := sc.f.ReadAt(sc.buf, pos); err != nil && !errors.Is(err, io.EOF) {
		return nil, ioError("read segment", err)
	}
	return sc.buf[:min(n, len(sc.buf))], nil
}
