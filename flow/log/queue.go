package log

import (
	"context"
	"sync"
)

// unit is one Append: its writes become durable together or not at all.
type unit struct {
	writes []Write
	sync   bool
	done   func(error)
	size   int64 // at most so many bytes in the file
	err    error // refused: set while it is staged
}

// unitSize bounds what the writes take in a journal file.
func unitSize(writes []Write) int64 {
	n := int64(0)
	for i := range writes {
		w := &writes[i]
		n += 5*recordSize + 8 + int64(len(w.Birth))
		for k := range w.Entries {
			n += recordSize + int64(len(w.Entries[k].Data))
		}
	}
	return n
}

// queue holds units on their way to the writer. It is bounded by bytes: put waits while what is queued or being written
// is at the bound, but one unit always fits.
type queue struct {
	mu       sync.Mutex
	notEmpty sync.Cond
	notFull  sync.Cond
	units    []unit
	bytes    int64 // queued and being written
	limit    int64
	closed   bool
}

func (q *queue) init(limit int64) {
	q.limit = limit
	q.notEmpty.L, q.notFull.L = &q.mu, &q.mu
}

func (q *queue) put(ctx context.Context, u unit) error {
	if q.tryPut(u) {
		return nil
	}
	defer context.AfterFunc(ctx, q.wakeWaiting)()
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && !q.fitsLocked(u) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		q.notFull.Wait()
	}
	if q.closed {
		return ErrClosed
	}
	q.addLocked(u)
	return nil
}

// wakeWaiting has those who wait for room look again.
func (q *queue) wakeWaiting() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.notFull.Broadcast()
}

// tryPut is put where that would not wait; false: full or closed.
func (q *queue) tryPut(u unit) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !q.fitsLocked(u) {
		return false
	}
	q.addLocked(u)
	return true
}

func (q *queue) fitsLocked(u unit) bool { return q.bytes == 0 || q.bytes+u.size <= q.limit }

func (q *queue) addLocked(u unit) {
	q.units = append(q.units, u)
	q.bytes += u.size
	q.notEmpty.Signal()
}

// take waits for units and returns all of them, or none once the queue is closed and empty. spare becomes the next queue.
func (q *queue) take(spare []unit) []unit {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.units) == 0 && !q.closed {
		q.notEmpty.Wait()
	}
	units := q.units
	q.units = spare[:0]
	return units
}

// release gives back the bytes of units that were written.
func (q *queue) release(n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= n
	q.notFull.Broadcast()
}

// idle reports whether nothing waits.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.units) == 0
}

func (q *queue) size() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// close lets nothing more in; what is queued is still taken.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.notEmpty.Broadcast()
	q.notFull.Broadcast()
}
