package log

import (
	"errors"
	"os"
	"sort"
	"sync"

	"github.com/skeinmesh/skein/flow/batch"
)

// Read returns whole batches, the first of which holds offset from or starts at it, of maxBytes altogether but at least one; none where
// from is Next or beyond. It may return fewer than there are. The latest batches come from memory; others are read into buf, which is
// grown where it is too small, and verified. What is returned shares memory with buf, or with the log: nobody may change it, and it
// is good until the caller uses buf again.
//
// Errors: KindNotFound with code offset-expired (from is below Start), KindCorrupt (names file and byte), KindClosed.
func (s *Segments) Read(from uint64, maxBytes int, buf []byte) ([]StoredBatch, error) {
	return s.read(from, maxBytes, buf, nil)
}

// place is where to start reading.
type place struct {
	path string
	base uint64
	pos  int64
	size int64 // what readers may see of the file
}

func (s *Segments) read(from uint64, maxBytes int, buf []byte, pin *Pin) ([]StoredBatch, error) {
	out, p, err := s.find(from, maxBytes, pin)
	if err != nil || out != nil || p.path == "" {
		return out, err
	}
	f, err := s.cfg.FS.Open(p.path, os.O_RDONLY)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			s.mu.RLock()
			defer s.mu.RUnlock()
			if from < s.start {
				return nil, s.expiredLocked(from)
			}
			return nil, corrupt(p.path, 0, "the file is missing")
		}
		return nil, ioError("segment read", err)
	}
	out, end, err := readBatches(f, &p, from, maxBytes, buf)
	if err = firstError(err, f.Close()); err != nil {
		return nil, err
	}
	if n := len(out); n > 0 {
		s.hints.put(hint{next: out[n-1].Meta.Next(), base: p.base, pos: end})
	}
	return out, nil
}

// find serves from the latest batches, or else says where to read.
func (s *Segments) find(from uint64, maxBytes int, pin *Pin) ([]StoredBatch, place, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.closed:
		return nil, place{}, ErrClosed
	case from < s.start && (pin == nil || from < pin.from):
		return nil, place{}, s.expiredLocked(from)
	case from >= s.next:
		return nil, place{}, nil
	}
	if len(s.tail) > 0 && from >= s.tail[0].Meta.Base {
		return tailFrom(s.tail, from, maxBytes), place{}, nil
	}
	i := sort.Search(len(s.segs), func(i int) bool { return s.segs[i].next > from })
	if i == len(s.segs) || s.segs[i].base > from {
		return nil, place{}, s.expiredLocked(from)
	}
	seg := s.segs[i]
	p := place{path: seg.path, base: seg.base, size: seg.size}
	k := sort.Search(len(seg.sparse), func(k int) bool { return seg.sparse[k].offset > from })
	p.pos = seg.sparse[k-1].pos
	if h, ok := s.hints.get(from); ok && h.base == seg.base {
		p.pos = h.pos
	}
	return nil, p, nil
}

// tailFrom returns the batches of the cache from the one that holds offset from on.
func tailFrom(tail []StoredBatch, from uint64, maxBytes int) []StoredBatch {
	i := sort.Search(len(tail), func(i int) bool { return tail[i].Meta.Next() > from })
	n, size := i+1, len(tail[i].Payload)
	for n < len(tail) && size+len(tail[n].Payload) <= maxBytes {
		size += len(tail[n].Payload)
		n++
	}
	return append([]StoredBatch(nil), tail[i:n]...)
}

// readBatches reads from p.pos, skips what ends at or before from, and returns the position after the last batch returned.
func readBatches(f File, p *place, from uint64, maxBytes int, buf []byte) (out []StoredBatch, end int64, err error) {
	pos, want := p.pos, int64(max(maxBytes, 4<<10))
	for pos < p.size {
		n := min(want, p.size-pos)
		if int64(cap(buf)) < n {
			buf = make([]byte, n)
		}
		b := buf[:n]
		if _, err := f.ReadAt(b, pos); err != nil {
			return nil, 0, ioError("segment read", err)
		}
		r := batchReader{path: p.path, pos: pos, from: from, maxBytes: maxBytes}
		if err := r.run(b); err != nil {
			return nil, 0, err
		}
		if len(r.out) > 0 {
			return r.out, r.pos, nil
		}
		if pos = r.pos; r.need > p.size-pos {
			return nil, 0, corrupt(p.path, pos, "a batch goes beyond the end of the file")
		}
		want = max(r.need, int64(maxBytes))
	}
	return nil, 0, corrupt(p.path, p.size, "offset %d is not in the file", from)
}

// batchReader takes batches apart that were read in one piece.
type batchReader struct {
	path     string
	pos      int64 // in the file, of the next batch
	from     uint64
	maxBytes int
	out      []StoredBatch
	need     int64 // bytes that the next batch, or its header, takes
}

// run goes on until b ends or maxBytes are gathered.
func (r *batchReader) run(b []byte) error {
	size := 0
	for {
		m, n, err := batch.ParseMeta(b)
		if errors.Is(err, batch.ErrShort) {
			r.need = batch.MinMeta
			if full, err := batch.MetaSize(b); err == nil {
				r.need = int64(full)
			}
			return nil
		}
		if err != nil {
			return corrupt(r.path, r.pos, "%s", err)
		}
		total := n + int(m.PayloadLen)
		if m.Next() <= r.from {
			r.pos += int64(total)
			b = b[min(total, len(b)):]
			continue
		}
		r.need = int64(total)
		if total > len(b) || (len(r.out) > 0 && size+int(m.PayloadLen) > r.maxBytes) {
			return nil
		}
		payload := b[n:total:total]
		if err := batch.VerifyPayload(&m, payload); err != nil {
			return corrupt(r.path, r.pos, "%s", err)
		}
		r.out = append(r.out, StoredBatch{Meta: m, Payload: payload})
		size += len(payload)
		r.pos += int64(total)
		b = b[total:]
	}
}

// SeekTime returns the first offset, from Start on, whose batch has a stamp of at least t (Unix ms), or Next where there is none. Where
// the disk cannot be read it returns an earlier offset.
func (s *Segments) SeekTime(t int64) uint64 {
	s.mu.RLock()
	start, next, segs := s.start, s.next, s.segs
	if n := len(segs); n > 0 && segs[n-1].size == 0 {
		segs = segs[:n-1] // its first batch is being written: it has no time yet, which would mislead the search
	}
	i := sort.Search(len(segs), func(i int) bool { return segs[i].stamp >= t })
	if i == len(segs) {
		s.mu.RUnlock()
		return next
	}
	seg := segs[i]
	k := max(sort.Search(len(seg.sparse), func(k int) bool { return seg.sparse[k].stamp >= t })-1, 0)
	from := seg.sparse[k]
	p := place{path: seg.path, base: seg.base, size: seg.size}
	s.mu.RUnlock()
	return max(start, s.seekTime(&p, from, t))
}

// seekTime goes from header to header.
func (s *Segments) seekTime(p *place, from sparse, t int64) uint64 {
	f, err := s.cfg.FS.Open(p.path, os.O_RDONLY)
	if err != nil {
		return from.offset
	}
	defer func() { _ = f.Close() }()
	sc := scanner{f: f, size: p.size}
	offset := from.offset
	for pos := from.pos; pos < p.size; {
		m, n, why, err := sc.batch(pos)
		if why != nil || err != nil || m.Stamp >= t {
			if why == nil && err == nil {
				return m.Base
			}
			return offset
		}
		offset = m.Next()
		pos += n
	}
	return offset
}

// hint remembers where a reader stopped, so that it need not search when it goes on.
type hint struct {
	next uint64
	base uint64
	pos  int64
}

// hints are the latest few.
type hints struct {
	mu   sync.Mutex
	ring [8]hint
	at   int
}

func (h *hints) put(n hint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring[h.at] = n
	h.at = (h.at + 1) % len(h.ring)
}

func (h *hints) get(next uint64) (hint, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.ring {
		if h.ring[i].next == next && next != 0 {
			return h.ring[i], true
		}
	}
	return hint{}, false
}
