package log

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// SegmentSuffix ends the names of segment files.
const SegmentSuffix = ".seg"

func segmentPath(dir string, base uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", base, SegmentSuffix))
}

// Append writes a batch at the end, which must be m.Base, and makes it readable. It hands the bytes to the OS and syncs nothing. m is
// copied; payload, and the slices in m, are kept for readers and must not change. A batch without offsets (all duplicates) is not kept.
//
// Errors: KindInvalid (wrong base or length, nothing written), KindUnavailable with code disk-full (nothing visible was
// written; it may be tried again), KindClosed, or the error of an earlier failed sync.
func (s *Segments) Append(m *batch.Meta, payload []byte) error { return s.append(m, payload, true) }

// AppendCold is Append of a batch that readers at the end do not wait for: nothing of it is kept in memory, and payload is the caller's
// again.
func (s *Segments) AppendCold(m *batch.Meta, payload []byte) error {
	return s.append(m, payload, false)
}

func (s *Segments) append(m *batch.Meta, payload []byte, keep bool) error {
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	seg, err := s.appendable(m, payload)
	if err != nil || seg == nil {
		return err
	}
	s.header = batch.AppendMeta(s.header[:0], m)
	total := int64(len(s.header) + len(payload))
	if seg.f == nil || (seg.size > 0 && seg.size+total > s.cfg.FileBytes) {
		if seg, err = s.roll(m.Base); err != nil {
			return err
		}
	}
	if err := seg.f.WriteV([][]byte{s.header, payload}, seg.size); err != nil {
		return ioError("segment write", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seg.note(m, seg.size, s.cfg.IndexBytes)
	seg.size += total
	s.next, s.lastIndex = m.Next(), m.Index
	if keep {
		s.keepTailLocked(StoredBatch{Meta: *m, Payload: payload})
	} else {
		s.dropTailLocked()
	}
	return nil
}

// appendable checks the batch and returns the file at the end (with f nil where a new one is needed), or nil for a batch without offsets.
func (s *Segments) appendable(m *batch.Meta, payload []byte) (*segment, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usableLocked(); err != nil {
		return nil, err
	}
	switch {
	case m.Base != s.next:
		return nil, wire.Errorf(wire.KindInvalid, "", "batch at offset %d does not follow: the next offset is %d", m.Base, s.next)
	case len(payload) != int(m.PayloadLen):
		return nil, wire.Errorf(wire.KindInvalid, "", "batch payload of %d bytes, its header says %d", len(payload), m.PayloadLen)
	case m.Offsets() == 0:
		return nil, nil
	case len(s.segs) == 0:
		return &segment{}, nil
	}
	return s.segs[len(s.segs)-1], nil
}

// roll starts a new file. The one before stays open until it is synced.
func (s *Segments) roll(base uint64) (*segment, error) {
	seg := &segment{base: base, path: segmentPath(s.dir, base), next: base}
	f, err := s.cfg.FS.Open(seg.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, ioError("segment create", err)
	}
	seg.f = f
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.segs); n > 0 {
		s.segs[n-1].sealed = true
	}
	s.segs = append(s.segs, seg)
	s.dirDirty = true
	return seg, nil
}

// note counts a batch at pos in, and indexes it where the last entry is far enough.
func (seg *segment) note(m *batch.Meta, pos, every int64) {
	if n := len(seg.sparse); n == 0 || pos-seg.sparse[n-1].pos >= every {
		seg.sparse = append(seg.sparse, sparse{offset: m.Base, pos: pos, stamp: m.Stamp})
	}
	seg.next, seg.last, seg.stamp = m.Next(), m.Index, m.Stamp
}

// keepTailLocked adds the latest batch to the cache and drops the oldest beyond the bounds.
func (s *Segments) keepTailLocked(b StoredBatch) {
	size := tailSize(&b)
	s.tail = append(s.tail, b)
	s.tailBytes += size
	if s.cfg.Tails != nil {
		s.cfg.Tails.used.Add(size)
	}
	drop := 0
	for ; drop < len(s.tail); drop++ {
		over := s.tailBytes > s.cfg.TailBytes || (s.cfg.Tails != nil && s.cfg.Tails.used.Load() > s.cfg.Tails.limit)
		if !over {
			break
		}
		size := tailSize(&s.tail[drop])
		s.tail[drop] = StoredBatch{}
		s.tailBytes -= size
		if s.cfg.Tails != nil {
			s.cfg.Tails.used.Add(-size)
		}
	}
	s.tail = s.tail[drop:]
}

// tailSize is what a batch takes in memory.
func tailSize(b *StoredBatch) int64 {
	return int64(len(b.Payload)+len(b.Meta.Identities)*24+len(b.Meta.Skip)*4) + 160
}

// TrimTo moves Start up to offset, which is at most Next. The files below go at the next Sync, those that are pinned later.
func (s *Segments) TrimTo(offset uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usableLocked(); err != nil {
		return err
	}
	if offset > s.next {
		return wire.Errorf(wire.KindInvalid, "", "trim to offset %d, but the next offset is %d", offset, s.next)
	}
	if offset > s.start {
		s.start, s.untrimmed = offset, true
	}
	return nil
}

// Reset drops everything and goes on at offset next, as after a snapshot that starts beyond what is here. It is durable when it
// returns: after a crash Start and Next are next at least, whatever the small state says.
func (s *Segments) Reset(next uint64) error {
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	if err := s.usableLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	if next < s.next {
		s.mu.Unlock()
		return wire.Errorf(wire.KindInvalid, "", "reset to offset %d, but the next offset is %d", next, s.next)
	}
	dirs := s.above
	s.mu.Unlock()
	if err := writeMark(s.cfg.FS, s.dir, trimMark{start: next, resetAt: next}); err != nil {
		return err
	}
	if err := syncDirs(s.cfg.FS, dirs); err != nil {
		return ioError("segment reset", err)
	}
	s.mu.Lock()
	s.above = nil
	s.marked = trimMark{start: next, resetAt: next}
	s.condemned = append(s.condemned, s.segs...)
	s.segs = nil
	s.start, s.resetAt, s.next, s.synced = next, next, next, syncedPos{}
	s.lastIndex = 0
	s.untrimmed = true
	s.dropTailLocked()
	s.mu.Unlock()
	return s.trim()
}

// Sync makes everything appended before the call durable, and deletes what was trimmed and is not pinned. It runs next to Append and
// readers. After a failed sync nothing can be written any more: the same error comes back from then on.
func (s *Segments) Sync() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	work, dirs, err := s.syncWork()
	if err != nil {
		return err
	}
	if err := s.syncFiles(work, dirs); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = ioError("segment sync", err)
		return s.err
	}
	return s.trim()
}

// syncTask is one file as it was when the sync began.
type syncTask struct {
	seg   *segment
	f     File
	image segment // size, next, last, stamp, sparse
	dirty bool
}

// syncWork lists the files that are open, and the directories whose names are to be synced after them.
func (s *Segments) syncWork() (work []syncTask, dirs []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usableLocked(); err != nil {
		return nil, nil, err
	}
	for _, seg := range s.segs {
		if seg.f != nil {
			work = append(work, syncTask{seg: seg, f: seg.f, image: *seg, dirty: seg.synced < seg.size})
		}
	}
	if len(work) > 0 && s.dirDirty {
		dirs = append([]string{s.dir}, s.above...)
		s.dirDirty, s.above = false, nil
	}
	return work, dirs, nil
}

func (s *Segments) syncFiles(work []syncTask, dirs []string) error {
	for i := range work {
		t := &work[i]
		if t.dirty {
			if err := syncFile(t.f); err != nil {
				return err
			}
		}
		if t.image.sealed {
			// The index only saves time at the next start: it is checked there, so it needs no sync.
			if err := writeIndex(s.cfg.FS, s.dir, &t.image); err != nil {
				s.cfg.Log.Warn("segment index not written", "path", t.seg.path, "err", err)
			}
		}
	}
	if err := syncDirs(s.cfg.FS, dirs); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range work {
		t := &work[i]
		t.seg.synced = t.image.size
		s.synced = syncedPos{base: t.image.base, length: t.image.size, next: t.image.next}
		if t.image.sealed {
			_ = t.f.Close() // synced: nothing can be lost
			t.seg.f = nil
		}
	}
	return nil
}

// trim deletes the files that are neither wanted nor pinned. The mark that says so is durable before the first one goes; where the disk
// has no room for it, the next trim tries again. s.syncMu is held.
func (s *Segments) trim() error {
	s.mu.Lock()
	if !s.untrimmed {
		s.mu.Unlock()
		return nil
	}
	s.untrimmed = false
	floor := s.start
	for p := range s.pins {
		floor = min(floor, p.from)
	}
	gone := s.condemned
	s.condemned = nil
	for len(s.segs) > 1 && s.segs[0].next <= floor {
		gone = append(gone, s.segs[0])
		s.segs = s.segs[1:]
	}
	mark := trimMark{start: s.start, resetAt: s.resetAt}
	write := len(gone) > 0 && mark != s.marked
	s.mu.Unlock()
	var err error
	if write {
		err = writeMark(s.cfg.FS, s.dir, mark)
	}
	if IsDiskFull(err) {
		s.cfg.Log.Warn("trimmed segments stay until the disk has space to note that they go", "dir", s.dir, "err", err)
		s.mu.Lock()
		s.condemned, s.untrimmed = append(gone, s.condemned...), true
		s.mu.Unlock()
		return nil
	}
	for _, seg := range gone {
		if seg.f != nil {
			_ = seg.f.Close()
		}
		if err == nil {
			err = s.removeSegment(seg.base)
		}
	}
	if err != nil {
		return ioError("segment trim", err)
	}
	if write {
		s.mu.Lock()
		s.marked = mark
		s.mu.Unlock()
	}
	return nil
}

// removeSegment deletes a file and its index.
func (s *Segments) removeSegment(base uint64) error {
	for _, path := range []string{indexPath(s.dir, base), segmentPath(s.dir, base)} {
		if err := removeIfThere(s.cfg.FS, path); err != nil {
			return err
		}
	}
	return nil
}

// SyncedState says, for the small state, up to where the files are durable. Opaque; nil where nothing is. The caller puts it into its
// store after each Sync, and once after OpenSegments before it applies anything.
func (s *Segments) SyncedState() []byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced.encode()
}
