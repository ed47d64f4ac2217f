package log

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// journalFile is one file with a sequence number. The writer alone uses durable, and end and f for writing; FileJournal.mu guards
// the rest.
type journalFile struct {
	seq, nonce uint64
	path       string
	f          File
	size       int64 // allocated
	prevEnd    int64 // where the file before ended
	end        int64 // of the last unit
	durable    int64 // everything before it was synced

	groups  map[*group]struct{} // which ever had entries here
	refs    int                 // readers
	retired bool                // close f with the last reader
}

// retire closes the file as soon as nobody reads it. FileJournal.mu is held.
func (f *journalFile) retire() {
	f.retired = true
	if f.refs == 0 {
		_ = f.f.Close()
	}
}

const (
	fileSuffix  = ".journal"
	sparePrefix = "spare-"
	tmpSuffix   = ".tmp"
)

func fileName(seq uint64) string { return fmt.Sprintf("%016x%s", seq, fileSuffix) }

// parseFileName is the inverse of fileName.
func parseFileName(name string) (seq uint64, ok bool) {
	hex, found := strings.CutSuffix(name, fileSuffix)
	if !found || len(hex) != 16 {
		return 0, false
	}
	seq, err := strconv.ParseUint(hex, 16, 64)
	return seq, err == nil
}

func randomNonce() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// spare is a zero-filled, or recycled, file on its way to a sequence number.
type spare struct {
	f    File
	path string
	err  error
}

// preparer keeps one file ready: writing zeros costs more than a commit may wait, and a file whose blocks are all written
// needs no metadata at an fsync.
type preparer struct {
	cfg      *JournalConfig
	ready    chan spare // unbuffered: the preparer holds the one that is ready
	recycled chan spare // bound 1: an old file instead of a new one; more are deleted
	ctx      context.Context
	stop     context.CancelFunc
	next     int
}

func (p *preparer) init(cfg *JournalConfig, first *spare) {
	p.cfg = cfg
	p.ready, p.recycled = make(chan spare), make(chan spare, 1)
	p.ctx, p.stop = context.WithCancel(context.Background())
	if first != nil {
		p.recycled <- *first
	}
}

func (p *preparer) run() {
	defer func() {
		select {
		case s := <-p.recycled:
			_ = s.f.Close()
		default:
		}
	}()
	for {
		var s spare
		select {
		case s = <-p.recycled:
		default:
			p.next++
			s = p.make(fmt.Sprintf("%snew-%d", sparePrefix, p.next), p.cfg.FileBytes)
		}
		select {
		case p.ready <- s:
		case <-p.ctx.Done():
			if s.f != nil {
				_ = s.f.Close()
			}
			return
		}
	}
}

// make makes a file of zeros. It bears its name only once it is complete.
func (p *preparer) make(name string, size int64) spare {
	fsys, path := p.cfg.FS, filepath.Join(p.cfg.Dir, name)
	if err := spaceFor(path); err != nil {
		return spare{err: err}
	}
	f, err := fsys.Open(path+tmpSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return spare{err: err}
	}
	err = zeroFill(p.ctx, f, size)
	if err == nil {
		err = firstError(f.Sync(), fsys.Rename(path+tmpSuffix, path))
	}
	if err != nil {
		return spare{err: firstError(err, f.Close(), fsys.Remove(path+tmpSuffix))}
	}
	return spare{f: f, path: path}
}

// zeroFill reserves the space, then writes it: reserved extents alone would be converted, with metadata, at each fsync.
func zeroFill(ctx context.Context, f File, size int64) error {
	if err := f.Allocate(size); err != nil {
		return err
	}
	zeros := make([]byte, min(size, 256<<10))
	for off := int64(0); off < size; off += int64(len(zeros)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.WriteV([][]byte{zeros[:min(size-off, int64(len(zeros)))]}, off); err != nil {
			return err
		}
	}
	return nil
}

// takeSpare returns a file of at least size bytes. While the disk is full it frees what was released, waits, and tries again:
// nothing has been written yet, so nothing is lost by it. It gives up when the journal closes, and at once while it opens.
func (w *writer) takeSpare(size int64) (spare, error) {
	j := w.j
	defer func() {
		if j.full.CompareAndSwap(true, false) {
			j.metrics.full.Set(0)
		}
	}()
	for {
		var s spare
		if size > j.cfg.FileBytes {
			s = j.prep.make(sparePrefix+"large", size)
		} else {
			select {
			case s = <-j.prep.ready:
			case <-j.prep.ctx.Done():
				return spare{}, ErrClosed
			}
		}
		if s.err == nil {
			return s, nil
		}
		if j.prep.ctx.Err() != nil {
			return spare{}, ErrClosed // the making was called off
		}
		if !IsDiskFull(s.err) {
			return spare{}, ioError("journal preallocate", s.err)
		}
		if !w.started {
			return spare{}, ioError("open journal", s.err)
		}
		if j.full.CompareAndSwap(false, true) {
			j.metrics.full.Set(1)
			j.log.Error("disk is full: the journal waits for space", "dir", j.cfg.Dir, "bytes", size)
		}
		if j.queue.isClosed() {
			return spare{}, ErrClosed
		}
		if freed, err := j.dropOldest(); err != nil {
			return spare{}, err
		} else if freed || !sleep(j.prep.ctx, time.Second) {
			continue
		}
	}
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// shrink drops old files, while they may go, until add more bytes fit the limit. Files without any entry go at once.
func (j *FileJournal) shrink(add int64) error {
	for {
		j.mu.RLock()
		drop := len(j.files) > 1 && (j.bytes+add > j.cfg.RetainBytes || j.files[0].empty())
		j.mu.RUnlock()
		if !drop {
			return nil
		}
		if freed, err := j.dropOldest(); err != nil || !freed {
			return err
		}
	}
}

// empty reports whether no live entry is in the file or in one before it.
func (f *journalFile) empty() bool {
	for g := range f.groups {
		if g.inFile(f.seq) > 0 {
			return false
		}
	}
	return true
}

// dropOldest gives up the oldest file, unless something in it was not released or it is the only one. What it knew of groups
// besides entries is in the checkpoint of the next.
func (j *FileJournal) dropOldest() (dropped bool, err error) {
	j.mu.Lock()
	if len(j.files) < 2 {
		j.mu.Unlock()
		return false, nil
	}
	f := j.files[0]
	for g := range f.groups {
		if g.holds(f.seq) {
			j.mu.Unlock()
			return false, nil
		}
	}
	for g := range f.groups {
		g.dropFile(f.seq)
		g.tail.compacted = max(g.tail.compacted, g.compacted.Index)
	}
	j.files = j.files[1:]
	j.bytes -= f.size
	j.metrics.fileBytes.Set(float64(j.bytes))
	recycle := f.refs == 0 && f.size == j.cfg.FileBytes
	if !recycle {
		f.retire()
	}
	j.mu.Unlock()
	return true, j.dispose(f, recycle)
}

// dispose deletes a dropped file or hands it to the preparer. The name goes, durably, before the bytes change.
func (j *FileJournal) dispose(f *journalFile, recycle bool) error {
	if !recycle || len(j.prep.recycled) == cap(j.prep.recycled) {
		if recycle {
			_ = f.f.Close()
		}
		return ioError("journal trim", firstError(j.cfg.FS.Remove(f.path), j.cfg.FS.SyncDir(j.cfg.Dir)))
	}
	s := spare{f: f.f, path: filepath.Join(j.cfg.Dir, fmt.Sprintf("%s%016x", sparePrefix, f.seq))}
	if err := firstError(j.cfg.FS.Rename(f.path, s.path), j.cfg.FS.SyncDir(j.cfg.Dir)); err != nil {
		return ioError("journal trim", err)
	}
	j.prep.recycled <- s // only this goroutine fills it, and it has room
	return nil
}
