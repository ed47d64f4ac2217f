package log

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// JournalConfig says where and how large a FileJournal is. The zero of a field means its default.
type JournalConfig struct {
	// Dir is the directory, made where it does not exist. One process at a time may have it open.
	Dir string
	// FS holds the directory; default OS.
	FS FS
	// FileBytes is the size of one file; default 64 MiB. A unit or a checkpoint that is larger gets a larger file.
	FileBytes int64
	// RetainBytes is how many bytes of files are kept for followers that lag; default 128 MiB. What was not released is kept
	// beyond it.
	RetainBytes int64
	// CacheBytes bounds the recent entries held in memory, over all groups; default 16 MiB.
	CacheBytes int64
	// QueueBytes bounds what waits for the writer; Append blocks beyond it. Default 32 MiB.
	QueueBytes int64
	// Log gets the few things an operator should know; default: discarded.
	Log *slog.Logger
	// Metrics, where not nil, gets the journal's metrics.
	Metrics prometheus.Registerer
}

func (c JournalConfig) withDefaults() JournalConfig {
	if c.FS == nil {
		c.FS = OS{}
	}
	if c.FileBytes == 0 {
		c.FileBytes = 64 << 20
	}
	if c.RetainBytes == 0 {
		c.RetainBytes = 128 << 20
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 16 << 20
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = 32 << 20
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports what is wrong with the configuration.
func (c JournalConfig) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Dir == "":
		return wire.Errorf(wire.KindInvalid, "", "journal: no directory given")
	case c.FileBytes < 4<<10 || c.FileBytes > 1<<30:
		return wire.Errorf(wire.KindInvalid, "", "journal: file size %d is not within 4 KiB and 1 GiB", c.FileBytes)
	case c.RetainBytes < 0 || c.CacheBytes < 0 || c.QueueBytes < 0:
		return wire.Errorf(wire.KindInvalid, "", "journal: sizes must not be negative")
	}
	return nil
}

// FileJournal is the Journal on files. It runs two goroutines from OpenJournal until Close returns: the writer, which owns
// the current file, and the preparer, which keeps one zero-filled file ahead of it.
type FileJournal struct {
	cfg     JournalConfig
	lock    io.Closer // holds the directory's lock
	metrics *journalMetrics
	log     *slog.Logger

	readOnly bool // recover leaves the directory as it is

	queue queue
	w     writer // the writer goroutine's own
	prep  preparer
	done  sync.WaitGroup

	failed   chan struct{} // closed after err was set
	failOnce sync.Once
	err      error // why nothing more is written

	full atomic.Bool // the writer waits for disk space

	// mu guards everything below: what is durable, and so visible. It is never held across I/O.
	mu     sync.RWMutex
	groups map[ring.GroupID]*group
	files  []*journalFile // ascending and contiguous sequence numbers; the last one is written to
	bytes  int64          // of all files
	cache  cache
	closed bool
}

var _ Journal = (*FileJournal)(nil)

// OpenJournal recovers the journal in cfg.Dir, or makes an empty one, and starts its goroutines. A torn tail is cut; damage in what was
// durable is an error of wire.KindCorrupt that names the file and the byte, and leaves everything as it is.
func OpenJournal(cfg JournalConfig) (*FileJournal, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	j := &FileJournal{cfg: cfg, log: cfg.Log, failed: make(chan struct{}), groups: map[ring.GroupID]*group{}}
	j.metrics = newJournalMetrics(cfg.Metrics, &j.queue)
	j.cache.limit = cfg.CacheBytes
	j.queue.init(cfg.QueueBytes)
	j.w.j = j
	err := makeDirs(cfg.FS, cfg.Dir)
	if err == nil {
		err = cfg.FS.SyncDir(filepath.Dir(cfg.Dir))
	}
	if err != nil {
		return nil, ioError("open journal", err)
	}
	if j.lock, err = cfg.FS.Lock(filepath.Join(cfg.Dir, "lock")); err != nil {
		return nil, err
	}
	spare, err := j.recover()
	if err != nil {
		j.closeFiles()
		return nil, err
	}
	j.prep.init(&j.cfg, spare)
	j.done.Go(j.prep.run)
	if err := j.w.roll(0); err != nil {
		j.prep.stop()
		j.done.Wait()
		j.closeFiles()
		return nil, err
	}
	j.done.Go(j.w.run)
	return j, nil
}

// Append implements Journal. The writes and what they refer to belong to the journal until done was called, entries' data also
// after it (it is cached, and never changed). done must not call Append: the writer would wait for itself.
func (j *FileJournal) Append(ctx context.Context, writes []Write, sync bool, done func(error)) {
	u := unit{writes: writes, sync: sync, done: done, size: unitSize(writes)}
	if err := j.queue.put(ctx, u); err != nil {
		done(err)
	}
}

// TryAppend is Append where that would not wait; false: nothing was queued, and done is not called.
func (j *FileJournal) TryAppend(writes []Write, sync bool, done func(error)) bool {
	return j.queue.tryPut(unit{writes: writes, sync: sync, done: done, size: unitSize(writes)})
}

// Failed is closed once a write or an fsync failed. Nothing is written after that: the process must stop. Err says why.
func (j *FileJournal) Failed() <-chan struct{} { return j.failed }

// Err is the failure that closed Failed, or nil.
func (j *FileJournal) Err() error {
	select {
	case <-j.failed:
		return j.err
	default:
		return nil
	}
}

// fail records the first failure; everything queued now and later gets it.
func (j *FileJournal) fail(err error) {
	j.failOnce.Do(func() {
		j.err = err
		j.log.Error("journal failed; nothing more is written", "err", err)
		close(j.failed)
	})
}

// Close implements Journal. What was queued is written before it returns, unless the disk is full.
func (j *FileJournal) Close() error {
	j.queue.close()
	full := j.full.Load()
	if full {
		j.prep.stop()
	}
	j.done.Wait()
	if full {
		j.log.Warn("closed on a full disk: what waited for space is not stored, and nobody was told that it is")
	}
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	j.mu.Unlock()
	if closed {
		return nil
	}
	j.closeFiles()
	return j.Err()
}

// closeFiles closes every file once its readers are done with it.
func (j *FileJournal) closeFiles() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.files {
		f.retire()
	}
	if j.lock != nil {
		_ = j.lock.Close()
		j.lock = nil
	}
}

// Release implements Journal.
func (j *FileJournal) Release(id ring.GroupID, i uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if g := j.groups[id]; g != nil {
		g.released = max(g.released, min(i, g.last()))
	}
}
