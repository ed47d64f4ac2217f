package log

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// writer is the state of the one goroutine that writes the journal. Nobody else touches it.
type writer struct {
	j        *FileJournal
	file     *journalFile
	groups   map[ring.GroupID]*group // all ever written to, the visible ones among them
	staging  staging
	unit     uint64 // number of the unit being staged
	touched  []*group
	votes    []byte
	started  bool  // run began
	unsynced bool  // bytes were handed to the OS since the last fsync
	refused  error // why a unit was not stored: none that came after it may be
}

// commitBytes bounds one group commit, so that the first of a long queue does not wait for all of it.
const commitBytes = 8 << 20

// run takes whatever is queued and commits it, until the queue is closed and empty. While it syncs, the next group gathers.
func (w *writer) run() {
	defer w.j.prep.stop()
	w.started = true
	var units []unit
	for {
		clear(units)
		units = w.j.queue.take(units)
		if len(units) == 0 {
			w.finish()
			return
		}
		for left := units; len(left) > 0; {
			left = left[w.commit(left):]
		}
		if w.j.Err() == nil && w.j.queue.idle() {
			w.mark()
		}
	}
}

// commit writes as many of the units as fit into the file and one group commit, and returns how many it has dealt with.
func (w *writer) commit(units []unit) (n int) {
	j := w.j
	err := firstError(j.Err(), w.refused)
	if err == nil && !w.fits(units[0].size) {
		err = w.roll(units[0].size)
	}
	if err != nil {
		w.refused = err
		w.finishUnits(units, err)
		return len(units)
	}
	w.votes = w.votes[:0]
	w.staging.begin(w.file)
	sync := false
	for n < len(units) && (n == 0 || (w.staging.size+units[n].size <= commitBytes && w.fits(w.staging.size+units[n].size))) {
		u := &units[n]
		if u.err = w.stage(u); u.err == nil {
			sync = sync || u.sync
		}
		n++
	}
	if err := w.write(sync); err != nil {
		j.fail(err)
		w.staging.clear()
		w.finishUnits(units[:n], err)
		return n
	}
	w.publish()
	w.staging.clear()
	w.finishUnits(units[:n], nil)
	return n
}

// fits reports whether size more bytes, and a mark, fit into the current file.
func (w *writer) fits(size int64) bool { return w.file.end+size+recordSize <= w.file.size }

// write writes what is staged, and syncs it.
func (w *writer) write(sync bool) error {
	bufs := w.staging.finish()
	if len(bufs) > 0 {
		if err := w.file.f.WriteV(bufs, w.file.end); err != nil {
			return ioError("journal write", err)
		}
		w.file.end += w.staging.size
		w.unsynced = true
		w.j.metrics.bytes.Add(float64(w.staging.size))
	}
	w.j.metrics.commits.Inc()
	if !sync {
		return nil
	}
	return w.sync()
}

func (w *writer) sync() error {
	start := time.Now()
	if err := syncFile(w.file.f); err != nil {
		return ioError("journal sync", err)
	}
	w.j.metrics.fsync.Observe(time.Since(start).Seconds())
	w.file.durable, w.unsynced = w.file.end, false
	return nil
}

// publish makes what is staged visible to readers.
func (w *writer) publish() {
	j := w.j
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range w.staging.ops {
		o := &w.staging.ops[i]
		if _, known := j.groups[o.g.id]; !known {
			j.groups[o.g.id] = o.g
		}
		o.g.apply(o, &j.cache)
		if o.kind == recEntry {
			w.file.groups[o.g] = struct{}{}
		}
	}
	j.metrics.cacheBytes.Set(float64(j.cache.bytes))
}

// finishUnits tells the callers, in their order. A unit's own refusal goes before the common error.
func (w *writer) finishUnits(units []unit, err error) {
	size := int64(0)
	for i := range units {
		size += units[i].size
		units[i].done(firstError(units[i].err, err))
	}
	w.j.queue.release(size)
}

// mark writes, at the end of what was synced, a record that says so, and leaves it to the OS: after a crash of the process it
// lets damage in the last unit be told from a torn one. The next commit overwrites it.
func (w *writer) mark() {
	if w.unsynced {
		return
	}
	r := record{kind: recMark, nonce: w.file.nonce, durable: uint32(w.file.durable), flags: flagEnd}
	w.staging.arena = r.append(w.staging.arena[:0], nil)
	if err := w.file.f.WriteV([][]byte{w.staging.arena}, w.file.end); err != nil {
		w.j.fail(ioError("journal write", err))
	}
}

// finish leaves the file synced and marked.
func (w *writer) finish() {
	if w.j.Err() != nil {
		return
	}
	if err := w.sync(); err != nil {
		w.j.fail(err)
		return
	}
	w.mark()
	if err := w.file.f.Sync(); err != nil {
		w.j.fail(ioError("journal sync", err))
	}
}

// roll goes on in the next file, which starts with a checkpoint of all groups and has room for need more bytes. An old file
// goes first where the limit says so. It waits for disk space where there is none.
func (w *writer) roll(need int64) error {
	if w.file != nil && w.unsynced {
		if err := w.sync(); err != nil {
			w.j.fail(err)
			return err
		}
	}
	next := journalFile{seq: 1, nonce: randomNonce(), groups: map[*group]struct{}{}}
	header := fileHeader{seq: 1, nonce: next.nonce}
	if w.file != nil {
		next.seq = w.file.seq + 1
		header.seq, header.prevEnd = next.seq, uint64(w.file.end)
	}
	image := w.checkpoint(header)
	next.end, next.durable = int64(len(image)), int64(len(image))
	next.size = max(w.j.cfg.FileBytes, next.end+need+2*recordSize)
	if err := w.j.shrink(next.size); err != nil {
		w.j.fail(err)
		return err
	}
	spare, err := w.takeSpare(next.size)
	if err != nil {
		if !errors.Is(err, ErrClosed) {
			w.j.fail(err)
		}
		return err
	}
	next.f, next.path = spare.f, filepath.Join(w.j.cfg.Dir, fileName(next.seq))
	err = next.f.WriteV([][]byte{image}, 0)
	if err == nil {
		err = syncFile(next.f)
	}
	if err == nil {
		// Only a file that is whole gets a sequence number: one with a bad start is damage, never a torn creation.
		err = firstError(w.j.cfg.FS.Rename(spare.path, next.path), w.j.cfg.FS.SyncDir(w.j.cfg.Dir))
	}
	if err != nil {
		_ = next.f.Close()
		err = ioError("journal roll", err)
		w.j.fail(err)
		return err
	}
	w.install(&next)
	return nil
}

func (w *writer) install(next *journalFile) {
	j := w.j
	j.mu.Lock()
	defer j.mu.Unlock()
	w.file, w.unsynced = next, false
	j.files = append(j.files, next)
	j.bytes += next.size
	j.metrics.fileBytes.Set(float64(j.bytes))
}

// checkpoint encodes the start of a file: its header and every group's state, from which recovery starts where this is the
// oldest file left. Nothing is staged at this time, so what is visible is all there is.
func (w *writer) checkpoint(h fileHeader) []byte {
	j := w.j
	j.mu.RLock()
	defer j.mu.RUnlock()
	buf := h.append(nil)
	var data []byte
	for id, g := range j.groups {
		m := g.lastMark()
		img := groupImage{hardState: g.hardState, tombstone: g.tombstone, birth: g.birth}
		data = img.append(data[:0])
		r := record{kind: recGroup, nonce: h.nonce, group: id, index: m.Index, term: m.Term}
		buf = append(r.append(buf, data), data...)
	}
	r := record{kind: recCheckpoint, nonce: h.nonce, index: uint64(len(j.groups)), flags: flagEnd}
	return r.append(buf, nil)
}
