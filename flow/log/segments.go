package log

import (
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// SegmentConfig says how one partition's batches are kept. The zero of a field means its default.
type SegmentConfig struct {
	// FS holds the directory; default OS.
	FS FS
	// Root is a directory above, whose own name is durable already: the names of those below it become so with the first sync. Default:
	// the directory that holds the segments' one.
	Root string
	// FileBytes is the size at which a new file begins; default 64 MiB. Files grow as they are written.
	FileBytes int64
	// IndexBytes is the distance between two entries of the offset and time index; default 64 KiB. A lookup reads so much in vain
	// at most; an entry takes 24 bytes of memory.
	IndexBytes int64
	// TailBytes bounds the latest batches kept in memory for readers at the end; default 256 KiB. Below 0: none.
	TailBytes int64
	// Tails, where not nil, bounds the same over all partitions that share it.
	Tails *TailBudget
	// Log gets the few things an operator should know; default: discarded.
	Log *slog.Logger
}

func (c SegmentConfig) withDefaults(dir string) SegmentConfig {
	if c.FS == nil {
		c.FS = OS{}
	}
	if c.Root == "" {
		c.Root = filepath.Dir(dir)
	}
	if c.FileBytes == 0 {
		c.FileBytes = 64 << 20
	}
	if c.IndexBytes == 0 {
		c.IndexBytes = 64 << 10
	}
	if c.TailBytes == 0 {
		c.TailBytes = 256 << 10
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// TailBudget bounds the memory of the latest batches over many partitions. Safe for concurrent use.
type TailBudget struct {
	limit int64
	used  atomic.Int64
}

// NewTailBudget makes a budget of so many bytes.
func NewTailBudget(bytes int64) *TailBudget { return &TailBudget{limit: bytes} }

// Used is what is held now, in bytes.
func (b *TailBudget) Used() int64 { return b.used.Load() }

// Recovery is what the small state knows of a partition's segments when they are opened. The zero value is that of a new one.
type Recovery struct {
	// Start is the first offset that is kept; Next the offset after the last batch that was applied.
	Start, Next uint64
	// AppliedIndex is the raft index of the last entry applied. Batches of later entries are cut away: they are applied again.
	AppliedIndex uint64
	// Synced is what SyncedState returned, as the small state has it.
	Synced []byte
}

// StoredBatch is a batch as it is kept. Nobody may change it.
type StoredBatch struct {
	Meta    batch.Meta
	Payload []byte
}

// Segments holds one partition's applied batches, in files named by their first offset. One goroutine appends (Append, TrimTo, Reset),
// one syncs, and any number read, all at the same time.
//
// A batch is on disk as its header (batch.AppendMeta) and its payload. Files are never changed below the end that readers see.
type Segments struct {
	dir string
	cfg SegmentConfig

	appendMu sync.Mutex // one appender
	header   []byte     // its buffer

	syncMu sync.Mutex // one syncer; taken before mu

	hints hints

	mu        sync.RWMutex // guards what follows; never held across I/O
	segs      []*segment   // ascending, contiguous; the last one is written to
	start     uint64
	resetAt   uint64 // no file below it belongs here any more
	next      uint64
	lastIndex uint64
	synced    syncedPos
	tail      []StoredBatch // the latest batches
	tailBytes int64
	pins      map[*Pin]struct{}
	dirDirty  bool       // a file was made since the directory was synced
	above     []string   // directories above that were not synced since the start, the nearest first
	untrimmed bool       // files might be deleted
	marked    trimMark   // what the mark on disk says
	condemned []*segment // no longer part of the log, to be deleted
	err       error      // a failed sync: nothing is durable any more
	closed    bool
}

// segment is one file. Segments.mu guards all but path and base.
type segment struct {
	base   uint64
	path   string
	f      File  // for writing and syncing; nil once it is complete and synced
	size   int64 // what readers see
	synced int64
	next   uint64
	last   uint64 // raft index of the last batch
	stamp  int64  // of the last batch
	sealed bool   // a later file exists
	sparse []sparse
}

// sparse is one entry of the offset and time index.
type sparse struct {
	offset uint64
	pos    int64
	stamp  int64
}

// Next is the offset that the next batch must start at.
func (s *Segments) Next() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.next
}

// Start is the first offset that is kept.
func (s *Segments) Start() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.start
}

// LastIndex is the raft index of the last batch; 0 where there is none.
func (s *Segments) LastIndex() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.lastIndex
}

// Bytes is the size of the files that hold offsets from Start on.
func (s *Segments) Bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := int64(0)
	for _, seg := range s.segs {
		if seg.next > s.start {
			n += seg.size
		}
	}
	return n
}

// Runs calls fn for pieces of the log, in order: n bytes of batches, the first of which is at base. A piece is about IndexBytes long.
func (s *Segments) Runs(fn func(base uint64, n int64)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, seg := range s.segs {
		for i, e := range seg.sparse {
			end := seg.size
			if i+1 < len(seg.sparse) {
				end = seg.sparse[i+1].pos
			}
			fn(e.offset, end-e.pos)
		}
	}
}

// BytesFrom is about how many bytes the batches from an offset on have.
func (s *Segments) BytesFrom(from uint64) (n int64) {
	s.Runs(func(base uint64, size int64) {
		if base >= from {
			n += size
		}
	})
	return n
}

// usableLocked is the reason why nothing can be written, or nil.
func (s *Segments) usableLocked() error {
	if s.closed {
		return ErrClosed
	}
	return s.err
}

// Close closes the files without a sync. Idempotent.
func (s *Segments) Close() error {
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.dropTailLocked()
	var err error
	for _, list := range [][]*segment{s.segs, s.condemned} {
		for _, seg := range list {
			if seg.f != nil {
				err = firstError(err, seg.f.Close())
				seg.f = nil
			}
		}
	}
	return ioError("close segments", err)
}

// Remove closes the segments and deletes their directory with all that is in it.
func (s *Segments) Remove() error {
	err := s.Close()
	return firstError(ioError("remove segments", s.cfg.FS.RemoveAll(s.dir)), err)
}

// dropTailLocked empties the cache of latest batches.
func (s *Segments) dropTailLocked() {
	if s.cfg.Tails != nil {
		s.cfg.Tails.used.Add(-s.tailBytes)
	}
	s.tail, s.tailBytes = nil, 0
}

// Pin keeps the batches from an offset on, though they be trimmed, for an open reader or a checkpoint.
type Pin struct {
	s    *Segments
	from uint64
}

// Pin pins everything from offset from on, which must not be below Start (KindNotFound, offset-expired). It must be released.
func (s *Segments) Pin(from uint64) (*Pin, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from < s.start {
		return nil, s.expiredLocked(from)
	}
	p := &Pin{s: s, from: from}
	s.pins[p] = struct{}{}
	return p, nil
}

// Move lets go of what is below from. It never goes back.
func (p *Pin) Move(from uint64) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.from = max(p.from, from)
	p.s.untrimmed = true
}

// Release lets go of everything. Idempotent.
func (p *Pin) Release() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	delete(p.s.pins, p)
	p.s.untrimmed = true
}

// Read is Segments.Read, but goes down to what is pinned.
func (p *Pin) Read(from uint64, maxBytes int, buf []byte) ([]StoredBatch, error) {
	return p.s.read(from, maxBytes, buf, p)
}

// expiredLocked is the error for an offset that was trimmed.
func (s *Segments) expiredLocked(from uint64) error {
	return wire.Errorf(wire.KindNotFound, wire.CodeOffsetExpired, "offset %d is no longer kept; the earliest is %d", from, s.start)
}
