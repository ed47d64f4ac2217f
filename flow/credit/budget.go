package credit

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/skeinmesh/skein/transport/wire"
)

// RetryAfter is the hint that goes with a reservation that was not served in time. Memory is freed as fast as the disk writes
// or the readers read, which is well below a second unless they stand still.
const RetryAfter = time.Second

// Budget is a number of bytes that may be held at once. Safe for concurrent use.
type Budget struct {
	limit int64

	mu    sync.Mutex
	used  int64
	queue list.List // of *waiter, first come first
}

type waiter struct {
	n      int64
	served chan struct{} // closed when its bytes are reserved
}

// NewBudget makes a budget of limit bytes; below 0 counts as 0.
func NewBudget(limit int64) *Budget { return &Budget{limit: max(limit, 0)} }

// Limit is the largest reservation there can be.
func (b *Budget) Limit() int64 { return b.limit }

// Used is what is reserved, in bytes.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// TryReserve reserves n bytes if it can at once, and if nobody waits who came before. n below 1 needs nothing.
func (b *Budget) TryReserve(n int64) bool {
	if n <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tryLocked(n)
}

// Reserve reserves n bytes, and waits for its turn until ctx ends. n below 1 needs nothing. Errors: KindNoCredit
// (CodeOverloaded, with RetryAfter) when ctx ended; KindInvalid (CodeTooLarge) when n is more than there can ever be.
func (b *Budget) Reserve(ctx context.Context, n int64) error {
	if n <= 0 {
		return nil
	}
	if n > b.limit {
		return wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "%d bytes do not fit a budget of %d", n, b.limit)
	}
	b.mu.Lock()
	if b.tryLocked(n) {
		b.mu.Unlock()
		return nil
	}
	if ctx.Err() != nil {
		b.mu.Unlock()
		return overloaded(ctx)
	}
	w := &waiter{n: n, served: make(chan struct{})}
	place := b.queue.PushBack(w)
	b.mu.Unlock()
	select {
	case <-w.served:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.served: // both at once: the bytes are reserved
		return nil
	default:
	}
	b.queue.Remove(place)
	b.serveLocked() // those behind may fit where this one did not
	return overloaded(ctx)
}

// Release gives back n bytes that were reserved. More than that is a bug of the caller's, and panics: the budget would no
// longer bound anything. n below 1 gives nothing back.
func (b *Budget) Release(n int64) {
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.used {
		panic("credit: more bytes released than reserved")
	}
	b.used -= n
	b.serveLocked()
}

func (b *Budget) tryLocked(n int64) bool {
	if b.queue.Len() > 0 || n > b.limit-b.used {
		return false
	}
	b.used += n
	return true
}

// serveLocked serves those at the head of the queue that fit.
func (b *Budget) serveLocked() {
	for front := b.queue.Front(); front != nil; front = b.queue.Front() {
		w := front.Value.(*waiter)
		if w.n > b.limit-b.used {
			return
		}
		b.used += w.n
		b.queue.Remove(front)
		close(w.served)
	}
}

func overloaded(ctx context.Context) error {
	return &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, Op: "reserve memory", RetryAfter: RetryAfter,
		Detail: "the memory for buffered events is in use; send again later", Err: context.Cause(ctx)}
}
