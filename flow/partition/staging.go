package partition

import (
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
)

// staging are batches that were fetched and are not part of the partition yet: what the next fetch goes on from, from whichever replica,
// when one breaks, also after a restart. They stand in a generation of segments that the state does not name. Whether they are of any use
// is for the sender to say, who compares the last of them with its own.
type staging struct {
	segs *log.Segments
	gen  uint32
}

// adopt opens what an earlier run staged. Anything in it that does not check out is cut away, with all that follows.
func (p *Partition) adopt() {
	gen := p.leftover
	p.leftover = 0
	if gen == 0 || p.staging != nil {
		return
	}
	segs, err := log.OpenSegments(p.segmentDir(gen), p.segmentConfig(), log.Recovery{AppliedIndex: math.MaxUint64})
	if err != nil {
		p.log.Warn("what was fetched before the restart cannot be used", "err", err)
		p.retireDir(gen)
		return
	}
	p.staging = &staging{segs: segs, gen: gen}
}

// stageFrom begins to stage batches at an offset, instead of those that are staged.
func (p *Partition) stageFrom(base, applied uint64) (*staging, error) {
	if err := p.dropStaging(); err != nil {
		return nil, err
	}
	p.lastGen++
	dir := p.segmentDir(p.lastGen)
	if err := p.fs().RemoveAll(dir); err != nil {
		return nil, err
	}
	segs, err := log.OpenSegments(dir, p.segmentConfig(), log.Recovery{Start: base, Next: base, AppliedIndex: applied})
	if err != nil {
		return nil, err
	}
	if segs.Next() != base {
		if err := segs.Reset(base); err != nil {
			return nil, errors.Join(err, segs.Close())
		}
	}
	p.staging = &staging{segs: segs, gen: p.lastGen}
	return p.staging, nil
}

// dropStaging removes what is staged, while nobody else can be using it.
func (p *Partition) dropStaging() error {
	if gen := p.leftover; gen != 0 {
		p.leftover = 0
		if err := p.fs().RemoveAll(p.segmentDir(gen)); err != nil {
			return err
		}
	}
	s := p.staging
	p.staging = nil
	if s == nil {
		return nil
	}
	return s.segs.Remove()
}

// abandonStaging has the next Syncs remove what is staged: entries are applied again, so there is a log to follow.
func (p *Partition) abandonStaging() {
	if p.leftover != 0 {
		p.retireDir(p.leftover)
		p.leftover = 0
	}
	if s := p.staging; s != nil {
		p.staging = nil
		p.mu.Lock()
		p.retired = append(p.retired, retired{segs: s.segs})
		p.mu.Unlock()
	}
}

func (p *Partition) retireDir(gen uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = append(p.retired, retired{dir: p.segmentDir(gen)})
}

// sizesOf counts what segments hold.
func sizesOf(segs *log.Segments, limit int64) (s sizes) {
	segs.Runs(func(base uint64, n int64) { s.add(base, int(n), limit) })
	s.dirty = true
	return s
}

// sortDirs goes through the generations of segments at start: the state's stays, and the newest that was being staged. Those that were
// replaced go, the damaged ones among them to the quarantine.
func (p *Partition) sortDirs() error {
	names, err := p.fs().List(p.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.lastGen = p.st.dirGen
	var others []uint32
	for _, name := range names {
		gen, err := strconv.ParseUint(name, 16, 32)
		if err != nil || uint32(gen) == p.st.dirGen {
			continue
		}
		others = append(others, uint32(gen))
		p.lastGen = max(p.lastGen, uint32(gen))
	}
	for _, gen := range others {
		if gen == p.lastGen {
			if why, _, err := log.Damaged(p.fs(), p.segmentDir(gen)); err == nil && why == nil {
				p.leftover = gen
				continue
			}
		}
		p.log.Info("remove segments that were replaced", "dir", filepath.Base(p.segmentDir(gen)))
		if err := p.removeDir(p.segmentDir(gen)); err != nil {
			return err
		}
	}
	return nil
}

// quarantineName is the directory for damaged segments, beside those of the partitions. Nothing reads it, and nothing is deleted in it.
const quarantineName = "quarantine"

// removeDir removes a generation that was replaced. What is damaged of it is kept in the quarantine.
func (p *Partition) removeDir(dir string) error {
	why, _, err := log.Damaged(p.fs(), dir)
	if err != nil {
		return err
	}
	if why == nil {
		return p.fs().RemoveAll(dir)
	}
	name := filepath.Join(p.cfg.Dir, quarantineName, p.group.String()+"-"+filepath.Base(dir))
	dst := name
	for i := 1; ; i++ {
		kept, err := p.fs().Exists(dst)
		if err != nil {
			return err
		}
		if !kept {
			break
		}
		dst = name + "." + strconv.Itoa(i)
	}
	p.log.Info("set damaged segments aside", "dir", dst)
	return log.SetAside(p.fs(), dir, dst)
}

// SetAside moves the files of a partition that is closed for good to the quarantine, so that a later replica finds none of them. Of each
// partition the first ones are kept, and while they are there later ones are deleted: one that is closed again and again does not fill the
// disk. Files without segments are deleted too. Doing it again changes nothing.
func SetAside(cfg Config, group ring.GroupID) error {
	cfg = cfg.withDefaults()
	dir, dst := filepath.Join(cfg.Dir, group.String()), filepath.Join(cfg.Dir, quarantineName, group.String()+"-closed")
	fsys := cfg.Segments.FS
	found, err := hasSegments(fsys, dir)
	if err != nil {
		return err
	}
	kept, err := fsys.Exists(dst)
	if err != nil {
		return err
	}
	if kept || !found {
		return fsys.RemoveAll(dir)
	}
	cfg.Logger.Info("set the files of a closed partition aside", "group", group.String(), "dir", dst)
	return log.SetAside(fsys, dir, dst)
}

// hasSegments reports whether a partition's directory holds a segment file. One that is not there holds none; one that cannot be read is an
// error, for nobody knows what is in it.
func hasSegments(fsys log.FS, dir string) (found bool, err error) {
	gens, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for _, gen := range gens {
		names, err := fsys.List(filepath.Join(dir, gen))
		if errors.Is(err, syscall.ENOTDIR) {
			continue // a file that is not ours
		}
		if err != nil {
			return false, err
		}
		for _, name := range names {
			if filepath.Ext(name) == log.SegmentSuffix {
				return true, nil
			}
		}
	}
	return false, err
}

// filler appends batches to segments, and has them synced behind it, piece by piece: so that no sync has much to do, and that a crash
// costs little of what was fetched.
type filler struct {
	segs     *log.Segments
	unsynced int
	due      chan struct{}
	done     sync.WaitGroup
	err      error // of the syncs; read after done
}

// fillSync is how many bytes are appended between two syncs.
const fillSync = 64 << 20

func newFiller(segs *log.Segments) *filler {
	w := &filler{segs: segs, due: make(chan struct{}, 1)}
	w.done.Go(func() {
		for range w.due {
			if w.err == nil {
				w.err = w.segs.Sync()
			}
		}
	})
	return w
}

func (w *filler) append(m *batch.Meta, payload []byte) error {
	if err := w.segs.AppendCold(m, payload); err != nil {
		return err
	}
	if w.unsynced += len(payload); w.unsynced >= fillSync {
		select {
		case w.due <- struct{}{}:
			w.unsynced = 0
		default: // the disk is busy with the piece before
		}
	}
	return nil
}

// close waits for the syncs under way.
func (w *filler) close() error {
	close(w.due)
	w.done.Wait()
	return w.err
}
