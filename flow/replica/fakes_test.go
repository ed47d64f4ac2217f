package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// memJournal is a journal in memory. crash forgets what was not synced.
type memJournal struct {
	mu       sync.Mutex
	cond     *sync.Cond
	groups   map[ring.GroupID]*memLog
	unsynced [][]log.Write
	queue    []memUnit
	closed   bool
	ended    chan struct{}
	trim     atomic.Bool  // Release drops at once
	noAppend bool         // hold the disk
	noRoom   bool         // hold who appends
	syncTime atomic.Int64 // how long the disk takes, in ns
}

type memUnit struct {
	w    []log.Write
	sync bool
	done func(error)
}

type memLog struct {
	log.GroupState
	entries []log.Entry
}

func newMemJournal() *memJournal {
	j := &memJournal{groups: map[ring.GroupID]*memLog{}}
	j.cond = sync.NewCond(&j.mu)
	j.start()
	return j
}

func (j *memJournal) start() {
	j.closed, j.ended = false, make(chan struct{})
	go j.run(j.ended)
}

func (j *memJournal) run(ended chan struct{}) {
	defer close(ended)
	for {
		j.mu.Lock()
		for (len(j.queue) == 0 || j.noAppend) && !j.closed {
			j.cond.Wait()
		}
		if j.closed {
			j.mu.Unlock()
			return
		}
		batch := j.queue
		j.queue = nil
		if d := time.Duration(j.syncTime.Load()); d > 0 {
			j.mu.Unlock()
			virtual.Sleep(d)
			j.mu.Lock()
			if j.closed {
				j.mu.Unlock()
				return
			}
		}
		for _, u := range batch {
			j.unsynced = append(j.unsynced, u.w)
			if u.sync {
				j.syncLocked()
			}
		}
		j.mu.Unlock()
		for _, u := range batch {
			u.done(nil)
		}
	}
}

func (j *memJournal) syncLocked() {
	for _, unit := range j.unsynced {
		for _, w := range unit {
			j.applyLocked(w)
		}
	}
	j.unsynced = nil
}

func (j *memJournal) applyLocked(w log.Write) {
	l := j.groups[w.Group]
	if l == nil {
		l = &memLog{GroupState: log.GroupState{Group: w.Group, First: 1}}
		j.groups[w.Group] = l
	}
	if w.Tombstone > 0 {
		*l = memLog{GroupState: log.GroupState{Group: w.Group, First: 1, Tombstone: max(l.Tombstone, w.Tombstone)}}
		return
	}
	if w.Birth != nil {
		l.Birth = w.Birth
	}
	if w.HardState != nil {
		l.HardState = *w.HardState
	}
	if w.Reset != nil {
		l.entries, l.Compacted, l.First, l.Last = nil, *w.Reset, w.Reset.Index+1, w.Reset.Index
	}
	if len(w.Entries) > 0 {
		at := w.Entries[0].Index
		if at > l.Last+1 || at < l.First {
			panic("journal: gap")
		}
		l.entries = append(l.entries[:at-l.First:at-l.First], w.Entries...)
		l.Last = w.Entries[len(w.Entries)-1].Index
	}
}

func (j *memJournal) Append(ctx context.Context, w []log.Write, sync bool, done func(error)) {
	defer context.AfterFunc(ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.cond.Broadcast()
	})()
	j.mu.Lock()
	for j.noRoom && !j.closed && ctx.Err() == nil {
		j.cond.Wait()
	}
	refused := j.noRoom && !j.closed
	if !refused && !j.closed {
		j.queue = append(j.queue, memUnit{w, sync, done})
		j.cond.Broadcast()
	}
	j.mu.Unlock()
	if refused {
		done(ctx.Err())
	}
}

// full has Append wait as it does while the queue is full.
func (j *memJournal) full(v bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noRoom = v
	j.cond.Broadcast()
}

func (j *memJournal) hold(v bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noAppend = v
	j.cond.Broadcast()
}

// crash stops the journal and forgets what was not synced.
func (j *memJournal) crash() {
	j.mu.Lock()
	j.queue, j.unsynced, j.closed, j.noAppend, j.noRoom = nil, nil, true, false, false
	j.cond.Broadcast()
	j.mu.Unlock()
	<-j.ended
}

func (j *memJournal) Groups() (out []log.GroupState) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.groups {
		out = append(out, l.GroupState)
	}
	return out
}

func (j *memJournal) Load(g ring.GroupID) (log.GroupState, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l, ok := j.groups[g]
	if !ok {
		return log.GroupState{}, false
	}
	return l.GroupState, true
}

func (j *memJournal) Entries(g ring.GroupID, lo, hi, maxBytes uint64) ([]log.Entry, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := j.groups[g]
	switch {
	case l == nil || hi > l.Last+1:
		return nil, log.ErrUnavailable
	case lo < l.First:
		return nil, log.ErrCompacted
	}
	var out []log.Entry
	var size uint64
	for _, e := range l.entries[lo-l.First : hi-l.First] {
		size += uint64(len(e.Data))
		if len(out) > 0 && size > maxBytes {
			break
		}
		out = append(out, e)
	}
	return out, nil
}

func (j *memJournal) Term(g ring.GroupID, i uint64) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := j.groups[g]
	switch {
	case l == nil || i > l.Last:
		return 0, log.ErrUnavailable
	case i == l.Compacted.Index:
		return l.Compacted.Term, nil
	case i < l.First:
		return 0, log.ErrCompacted
	}
	return l.entries[i-l.First].Term, nil
}

func (j *memJournal) Release(g ring.GroupID, i uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := j.groups[g]
	if !j.trim.Load() || l == nil || i < l.First || i > l.Last {
		return
	}
	l.Compacted = log.Mark{Index: i, Term: l.entries[i-l.First].Term}
	l.entries = slices.Clone(l.entries[i+1-l.First:])
	l.First = i + 1
}

func (j *memJournal) Close() error { j.crash(); return nil }

// memStore is a store in memory. crash loses a suffix of the unflushed commits.
type memStore struct {
	mu      sync.Mutex
	flushed map[string][]byte
	seen    map[string][]byte
	tail    [][]func(map[string][]byte)
	loseAll bool
	noFlush atomic.Bool // Flush waits for ctx
}

func newMemStore() *memStore {
	return &memStore{flushed: map[string][]byte{}, seen: map[string][]byte{}}
}

func (s *memStore) Get(k []byte) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.seen[string(k)]
	return bytes.Clone(v), ok, nil
}

func (s *memStore) Scan(prefix []byte, fn func(k, v []byte) error) error {
	s.mu.Lock()
	m := maps.Clone(s.seen)
	s.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if bytes.HasPrefix([]byte(k), prefix) {
			if err := fn([]byte(k), m[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *memStore) Flush(ctx context.Context) error {
	if s.noFlush.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushed, s.tail = maps.Clone(s.seen), nil
	return nil
}

func (s *memStore) Close() error { return nil }

func (s *memStore) crash(r *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = maps.Clone(s.flushed)
	keep := r.IntN(len(s.tail) + 1)
	if s.loseAll {
		keep = 0
	}
	for _, ops := range s.tail[:keep] {
		for _, op := range ops {
			op(s.seen)
		}
	}
	s.flushed, s.tail = maps.Clone(s.seen), nil
}

func (s *memStore) NewBatch() log.Batch { return &memBatch{s: s} }

type memBatch struct {
	s   *memStore
	ops []func(map[string][]byte)
}

func (b *memBatch) Set(k, v []byte) {
	k, v = bytes.Clone(k), bytes.Clone(v)
	b.ops = append(b.ops, func(m map[string][]byte) { m[string(k)] = v })
}

func (b *memBatch) Delete(k []byte) {
	k = bytes.Clone(k)
	b.ops = append(b.ops, func(m map[string][]byte) { delete(m, string(k)) })
}

func (b *memBatch) DeleteRange(lo, hi []byte) {
	l, h := string(lo), string(hi)
	b.ops = append(b.ops, func(m map[string][]byte) {
		maps.DeleteFunc(m, func(k string, _ []byte) bool { return k >= l && k < h })
	})
}

func (b *memBatch) Commit() error {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for _, op := range b.ops {
		op(b.s.seen)
	}
	b.s.tail = append(b.s.tail, b.ops)
	return nil
}

// bulk is the "segment file" of one recorder.
type bulk struct {
	mu     sync.Mutex
	es     []log.Entry
	synced int
}

func (f *bulk) crash(r *rand.Rand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.es = f.es[:f.synced+r.IntN(len(f.es)-f.synced+1)]
	f.synced = len(f.es)
}

func (f *bulk) values() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.es {
		out = append(out, string(e.Data))
	}
	return out
}

// recorder is a state machine that keeps every entry: small state is the count, bulk is the entries.
type recorder struct {
	f     *bulk
	store log.Store
	key   []byte
	count uint64
	fail  func(log.Entry) error
	sink  bool
}

func (r *recorder) Apply(e log.Entry, b log.Batch) (any, error) {
	if r.fail != nil {
		if err := r.fail(e); err != nil {
			return nil, err
		}
	}
	if !r.sink {
		r.put(e)
	}
	r.count++
	b.Set(r.key, binary.BigEndian.AppendUint64(nil, r.count))
	return r.count, nil
}

func (r *recorder) put(e log.Entry) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	for i, have := range r.f.es {
		if have.Index >= e.Index { // written before a crash that lost the small state
			r.f.es = r.f.es[:i]
			r.f.synced = min(r.f.synced, i)
			break
		}
	}
	r.f.es = append(r.f.es, e)
}

type recorded struct {
	count uint64
	es    []log.Entry
}

func (r *recorder) Checkpoint() (Checkpoint, error) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return &recorded{r.count, slices.Clone(r.f.es)}, nil
}

func (c *recorded) Close() error { return nil }

func (c *recorded) WriteTo(ctx context.Context, s wire.Stream, have []byte) error {
	from := binary.BigEndian.Uint64(have)
	if err := s.Send(ctx, binary.BigEndian.AppendUint64(nil, c.count)); err != nil {
		return err
	}
	for _, e := range c.es {
		if e.Index <= from {
			continue
		}
		b := binary.BigEndian.AppendUint64(nil, e.Index)
		b = binary.BigEndian.AppendUint64(b, e.Term)
		if err := s.Send(ctx, append(b, e.Data...)); err != nil {
			return err
		}
	}
	return nil
}

func (r *recorder) Fetch(ctx context.Context, s wire.Stream) (any, error) {
	head, err := s.Recv(ctx)
	if err != nil {
		return nil, err
	}
	out := recorded{count: binary.BigEndian.Uint64(head)}
	for {
		f, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out.es = append(out.es, log.Entry{Index: binary.BigEndian.Uint64(f), Term: binary.BigEndian.Uint64(f[8:]), Data: f[16:]})
	}
}

// BulkHave names only entries that are applied: bulk ahead of the small state may be of a term that lost.
func (r *recorder) BulkHave() []byte {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	var have uint64
	if n := min(int(r.count), len(r.f.es)); n > 0 {
		have = r.f.es[n-1].Index
	}
	return binary.BigEndian.AppendUint64(nil, have)
}

func (r *recorder) Install(staged any, b log.Batch) error {
	c := staged.(recorded)
	for _, e := range c.es {
		r.put(e)
	}
	r.count = c.count
	b.Set(r.key, binary.BigEndian.AppendUint64(nil, r.count))
	return nil
}

func (r *recorder) BulkIndex() uint64 {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if len(r.f.es) == 0 {
		return 0
	}
	return r.f.es[len(r.f.es)-1].Index
}

func (r *recorder) Complete(e log.Entry) error { r.put(e); return nil }

func (r *recorder) Sync() error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.f.synced = len(r.f.es)
	return nil
}

func (r *recorder) Close() error { return nil }

func (r *recorder) Destroy(b log.Batch) error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.f.es, r.f.synced = nil, 0
	b.Delete(r.key)
	return nil
}
