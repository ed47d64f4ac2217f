package log

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// damageName is the file that says that a directory of segments is damaged: why, on its first line, then the damaged files where they are
// known. What is read wrong once is not opened as sound again.
const damageName = "damaged"

// MarkDamaged notes, durably, that the segments in dir are damaged, and which files of them.
func MarkDamaged(fsys FS, dir string, why error, files []string) error {
	text := strings.ReplaceAll(why.Error(), "\n", " ") + "\n"
	for _, name := range files {
		text += name + "\n"
	}
	return ioError("mark damaged segments", replaceFile(fsys, filepath.Join(dir, damageName), []byte(text), true))
}

// Damaged reads what MarkDamaged noted; nil where dir is not marked.
func Damaged(fsys FS, dir string) (why error, files []string, err error) {
	raw, err := readFile(fsys, filepath.Join(dir, damageName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, ioError("open segments", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	return &wire.Error{Kind: wire.KindCorrupt, Detail: lines[0]}, lines[1:], nil
}

// SetAside moves a damaged directory of segments to dst, without the files that are sound. Where it is not known which are not, it keeps
// all. dst must not exist.
func SetAside(fsys FS, dir, dst string) error {
	_, files, err := Damaged(fsys, dir)
	if err != nil {
		return err
	}
	if len(files) > 0 {
		bad := map[string]bool{damageName: true}
		for _, name := range files {
			bad[name] = true
		}
		list, err := fsys.List(dir)
		if err != nil {
			return ioError("set damaged segments aside", err)
		}
		for _, name := range list {
			if bad[name] {
				continue
			}
			if err := fsys.Remove(filepath.Join(dir, name)); err != nil {
				return ioError("set damaged segments aside", err)
			}
		}
	}
	aside := filepath.Dir(dst)
	if err := makeDirs(fsys, aside); err != nil {
		return ioError("set damaged segments aside", err)
	}
	if err := fsys.SyncDir(filepath.Dir(aside)); err != nil { // else what goes there could be lost with its directory
		return ioError("set damaged segments aside", err)
	}
	return ioError("set damaged segments aside", firstError(fsys.Rename(dir, dst), fsys.SyncDir(aside)))
}

// Salvage is what is sound in a damaged directory of segments: found by reading all of it, header and payload of each batch. It changes
// nothing.
type Salvage struct {
	fsys FS
	runs []sound
	bad  []string // names of files with something else than sound batches
}

// sound is a row of sound batches in one file, each following the other.
type sound struct {
	path       string
	pos, end   int64
	base, next uint64
}

// OpenSalvage looks through the segments in dir for batches of entries up to applied.
func OpenSalvage(fsys FS, dir string, applied uint64) (*Salvage, error) {
	bases, err := listSegments(fsys, dir)
	if err != nil {
		return nil, err
	}
	v := &Salvage{fsys: fsys}
	for _, base := range bases {
		path := segmentPath(dir, base)
		if err := v.scan(path, applied); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Bad names the files that hold something else than sound batches.
func (v *Salvage) Bad() []string { return v.bad }

func (v *Salvage) scan(path string, applied uint64) (err error) {
	f, err := v.fsys.Open(path, os.O_RDONLY)
	if err != nil {
		return ioError("salvage segments", err)
	}
	defer func() { err = firstError(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return ioError("salvage segments", err)
	}
	sc := scanner{f: f, size: size, payloads: true}
	row := sound{path: path}
	flush := func() {
		if row.end > row.pos {
			v.runs = append(v.runs, row)
		}
	}
	bad := false
	for pos := int64(0); pos < sc.size; {
		m, n, why, err := sc.batch(pos)
		if err != nil {
			return err
		}
		if why == nil && (m.Index > applied || m.Offsets() == 0) {
			break
		}
		if why != nil {
			bad = true
			if pos, err = sc.resync(pos); err != nil {
				return err
			}
			continue
		}
		if row.end != pos || row.next != m.Base || row.end == 0 {
			flush()
			row = sound{path: path, pos: pos, base: m.Base}
		}
		pos += n
		row.end, row.next = pos, m.Next()
	}
	flush()
	if bad {
		v.bad = append(v.bad, filepath.Base(path))
	}
	return nil
}

// resync finds the next place after pos where a batch's header may begin.
func (sc *scanner) resync(pos int64) (int64, error) {
	for pos++; pos < sc.size; {
		n := int(min(64<<10, sc.size-pos))
		b, err := sc.bytes(pos, n)
		if err != nil {
			return 0, err
		}
		for i := 0; ; i++ {
			at := bytes.Index(b[i:], []byte(batch.Magic))
			if at < 0 {
				break
			}
			i += at
			if _, err := batch.MetaSize(b[i:]); err == nil {
				return pos + int64(i), nil
			}
		}
		pos += int64(max(n-batch.MinMeta+1, 1))
	}
	return sc.size, nil
}

// Holding is the offset at which the sound batches begin that hold an offset.
func (v *Salvage) Holding(offset uint64) (base uint64, ok bool) {
	for _, r := range v.runs {
		if offset >= r.base && offset < r.next {
			return r.base, true
		}
	}
	return 0, false
}

// After is the first offset after the given one at which sound batches begin; 0: none.
func (v *Salvage) After(offset uint64) (where uint64) {
	for _, r := range v.runs {
		if r.base > offset && (where == 0 || r.base < where) {
			where = r.base
		}
	}
	return where
}

// Copy calls fn for the sound batches from the one that begins at offset from on, as far as each follows the other, and says where they
// end. Payloads are good until fn returns. where is the offset at which the next sound batches begin, or 0 where there are none.
func (v *Salvage) Copy(from uint64, fn func(m *batch.Meta, payload []byte) error) (next, where uint64, err error) {
	for again := true; again; {
		again = false
		for _, r := range v.runs {
			if from < r.base || from >= r.next {
				continue
			}
			next, err := r.copy(v.fsys, from, fn)
			if err != nil {
				return next, 0, err
			}
			from, again = next, next > from
		}
	}
	return from, v.After(from), nil
}

func (r *sound) copy(fsys FS, from uint64, fn func(m *batch.Meta, payload []byte) error) (next uint64, err error) {
	f, err := fsys.Open(r.path, os.O_RDONLY)
	if err != nil {
		return from, ioError("salvage segments", err)
	}
	defer func() { err = firstError(err, f.Close()) }()
	sc := scanner{f: f, size: r.end, payloads: true}
	for pos := r.pos; pos < r.end; {
		m, n, why, err := sc.batch(pos)
		if err = firstError(err, why); err != nil {
			return from, err
		}
		if m.Base == from {
			payload, err := sc.bytes(pos+n-int64(m.PayloadLen), int(m.PayloadLen))
			if err != nil {
				return from, err
			}
			if err := fn(&m, payload); err != nil {
				return from, err
			}
			from = m.Next()
		}
		pos += n
	}
	return from, nil
}
