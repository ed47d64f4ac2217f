package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/skeinmesh/skein/transport/wire"
	"golang.org/x/sys/unix"
)

// StoreConfig says where a PebbleStore is and what memory it may use. The zero of a field means its default.
type StoreConfig struct {
	// Dir is the directory, made where it does not exist.
	Dir string
	// CacheBytes bounds the blocks held in memory; default 8 MiB.
	CacheBytes int64
	// MemTableBytes is how much is gathered before it goes to disk; default 4 MiB, of which up to four are held at a time.
	MemTableBytes uint64
	// ReadOnly: nothing is written, no lock is taken, and a store that is not there is not made. Writes fail. Nobody else may write meanwhile.
	ReadOnly bool
	// Log gets Pebble's own messages at debug level, and its failures; default: discarded.
	Log *slog.Logger

	fs vfs.FS // tests: a file system that crashes
}

// PebbleStore is the Store on disk. It has no write-ahead log of its own: the journal is one.
type PebbleStore struct {
	db        *pebble.DB
	readOnly  bool
	stallAt   uint64 // bytes of memtables at which Pebble has writers wait for a flush
	log       *slog.Logger
	failed    chan struct{}
	failOnce  sync.Once
	err       error
	full      atomic.Bool   // a flush or compaction found the disk full, and no flush got through since
	closing   chan struct{} // closed when Close begins
	closeCtx  context.Context
	giveUp    context.CancelFunc // ends closeCtx: Close does not wait for space
	closeOnce sync.Once
	closeErr  error
}

var _ Store = (*PebbleStore)(nil)

// storeFormat is the newest format of the Pebble release in use. It is named, so that a newer release does not change what is on
// disk, and with it the way back, unasked.
const storeFormat = pebble.FormatValueSeparation

// OpenStore opens the store in cfg.Dir, or makes an empty one.
func OpenStore(cfg StoreConfig) (*PebbleStore, error) {
	if cfg.Dir == "" {
		return nil, wire.Errorf(wire.KindInvalid, "", "store: no directory given")
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = 8 << 20
	}
	if cfg.MemTableBytes == 0 {
		cfg.MemTableBytes = 4 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := newStore(cfg.Log)
	cache := pebble.NewCache(cfg.CacheBytes)
	defer cache.Unref()
	opts := &pebble.Options{
		Cache:                       cache,
		DisableWAL:                  true,
		FormatMajorVersion:          storeFormat,
		MemTableSize:                cfg.MemTableBytes,
		MemTableStopWritesThreshold: memTables,
		MaxOpenFiles:                256,
		Logger:                      &storeLogger{log: cfg.Log, fail: s.fail},
		FS:                          cfg.fs,
		EventListener: &pebble.EventListener{
			// A flush or compaction that found the disk full is tried again by Pebble, and the journal holds what it lacks.
			// Anything else means that the disk, or what is on it, is bad.
			BackgroundError: func(err error) {
				if IsDiskFull(err) {
					s.noteFull(err)
					return
				}
				s.fail(err)
			},
			FlushEnd: func(i pebble.FlushInfo) {
				if i.Err == nil {
					s.full.Store(false)
				}
			},
			DataCorruption: func(i pebble.DataCorruptionInfo) { s.fail(corruptStore(i.Details)) },
		},
	}
	opts.EnsureDefaults()
	opts.L0StopWritesThreshold = math.MaxInt // slow reads while nothing can be compacted, rather than writers that wait for it
	opts.FS = pacedFS{opts.FS, s}
	if s.readOnly = cfg.ReadOnly; s.readOnly {
		opts.ReadOnly, opts.FS = true, readFS{opts.FS}
	}
	db, err := pebble.Open(cfg.Dir, opts)
	if err != nil {
		s.giveUp()
		return nil, storeError("open store", err)
	}
	s.db, s.stallAt = db, memTables*cfg.MemTableBytes
	return s, nil
}

// memTables is how many memtables are held at a time.
const memTables = 4

// room is ENOSPC while nothing can be flushed and the memtables are full. Pebble would have its callers wait, for ever on a disk that stays
// full: a group's goroutine, which then neither speaks to its followers nor can be told to stop.
func (s *PebbleStore) room() error {
	if !s.full.Load() || s.db.Metrics().MemTable.Size < s.stallAt {
		return nil
	}
	return unix.ENOSPC
}

func newStore(log *slog.Logger) *PebbleStore {
	s := &PebbleStore{log: log, failed: make(chan struct{}), closing: make(chan struct{})}
	s.closeCtx, s.giveUp = context.WithCancel(context.Background())
	return s
}

// fullPause is how long a disk that is full, or fails, is left alone before the next file is begun: Pebble itself tries again at once, for ever.
const fullPause = time.Second

// noteFull is called for every try that found the disk full.
func (s *PebbleStore) noteFull(err error) {
	if s.full.CompareAndSwap(false, true) {
		s.log.Warn("small state waits for disk space", "err", storeError("store", err))
	}
	select {
	case <-s.closing:
		s.giveUp()
	default:
	}
}

// pace holds up what wants to write while the disk is full, or once the store failed.
func (s *PebbleStore) pace() {
	if !s.full.Load() && s.Err() == nil {
		return
	}
	t := time.NewTimer(fullPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.closing:
	}
}

// pacedFS begins files no faster than the store's pace.
type pacedFS struct {
	vfs.FS
	s *PebbleStore
}

func (f pacedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.s.pace()
	if err := spaceFor(name); err != nil {
		return nil, err
	}
	return f.FS.Create(name, category)
}

func (f pacedFS) Unwrap() vfs.FS { return f.FS }

func corruptStore(err error) error {
	return &wire.Error{Kind: wire.KindCorrupt, Op: "store", Err: err}
}

// storeError gives Pebble's errors a kind.
func storeError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pebble.ErrClosed):
		return ErrClosed
	case errors.Is(err, pebble.ErrCorruption):
		return &wire.Error{Kind: wire.KindCorrupt, Op: op, Err: err}
	}
	return ioError(op, err)
}

func (s *PebbleStore) fail(err error) {
	s.failOnce.Do(func() {
		s.err = storeError("store", err)
		close(s.failed)
	})
}

// Failed is closed when a background task met an error that does not pass. The process must stop; Err says why.
func (s *PebbleStore) Failed() <-chan struct{} { return s.failed }

// Err is the failure that closed Failed, or nil.
func (s *PebbleStore) Err() error {
	select {
	case <-s.failed:
		return s.err
	default:
		return nil
	}
}

// Get implements Store.
func (s *PebbleStore) Get(key []byte) (value []byte, ok bool, err error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, storeError("store get", err)
	}
	value = append([]byte{}, v...)
	return value, true, storeError("store get", closer.Close())
}

// Scan implements Store. It sees the store as it was when it began.
func (s *PebbleStore) Scan(prefix []byte, fn func(key, value []byte) error) (err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: PrefixEnd(prefix)})
	if err != nil {
		return storeError("store scan", err)
	}
	defer func() { err = firstError(err, storeError("store scan", it.Close())) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return storeError("store scan", err)
		}
		if err := fn(it.Key(), v); err != nil {
			return err
		}
	}
	return nil
}

// PrefixEnd is the first key after all keys with the prefix; nil where there is none.
func PrefixEnd(prefix []byte) []byte {
	end := append([]byte{}, prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// NewBatch implements Store.
func (s *PebbleStore) NewBatch() Batch { return &pebbleBatch{s: s, b: s.db.NewBatch()} }

// Flush implements Store. It returns early when ctx ends or the store fails.
func (s *PebbleStore) Flush(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	for s.room() != nil { // to begin one would wait as well, and not for ctx
		if !sleep(ctx, fullPause) {
			return ctx.Err()
		}
		if err := s.Err(); err != nil {
			return err
		}
	}
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		return storeError("store flush", err)
	}
	select {
	case <-flushed:
		return nil
	case <-s.failed:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements Store. Where the disk is full it closes without the flush: the journal has what is lacking then.
func (s *PebbleStore) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		defer s.giveUp()
		// Pebble's own Close leaves the latest memtable to the write-ahead log, which there is not.
		var err error
		if !s.readOnly {
			err = s.Flush(s.closeCtx)
		}
		full := errors.Is(err, context.Canceled)
		if full {
			err = nil
		}
		err = firstError(err, storeError("store close", s.db.Close()))
		if full || IsDiskFull(err) {
			s.log.Warn("closed on a full disk: the latest small state is left to the journal")
		}
		if !IsDiskFull(err) {
			s.closeErr = err
		}
	})
	return s.closeErr
}

// pebbleBatch keeps the first error for Commit.
type pebbleBatch struct {
	s   *PebbleStore
	b   *pebble.Batch
	err error
}

func (b *pebbleBatch) Set(key, value []byte) {
	b.err = firstError(b.err, b.b.Set(key, value, nil))
}

func (b *pebbleBatch) Delete(key []byte) {
	b.err = firstError(b.err, b.b.Delete(key, nil))
}

func (b *pebbleBatch) DeleteRange(lo, hi []byte) {
	b.err = firstError(b.err, b.b.DeleteRange(lo, hi, nil))
}

func (b *pebbleBatch) Commit() error {
	err := firstError(b.err, b.s.Err(), b.s.room()) // in a store that failed nothing makes room any more
	if err == nil {
		err = b.b.Commit(pebble.NoSync)
	}
	return storeError("store commit", firstError(err, b.b.Close()))
}

// storeLogger passes Pebble's messages on. Pebble calls Fatalf where going on could lose data, and expects the process to end.
type storeLogger struct {
	log  *slog.Logger
	fail func(error)
}

func (l *storeLogger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble", "text", fmt.Sprintf(format, args...))
	}
}

func (l *storeLogger) Errorf(format string, args ...any) {
	l.log.Warn("pebble", "text", fmt.Sprintf(format, args...))
}

func (l *storeLogger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	l.log.Error("small state cannot be kept safe; the process stops", "err", err)
	l.fail(err)
	panic(err)
}
