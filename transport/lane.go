package transport

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/transport/wire"
)

// lane is the bounded queue of one-way messages of one session. put never blocks; take blocks until there is some or close.
type lane struct {
	maxBytes, maxFrames int
	queued              prometheus.Gauge

	mu      sync.Mutex
	some    sync.Cond
	waiting []message
	spare   []message // the other of two backing arrays
	bytes   int       // waiting or being written
	frames  int
	taken   int
	closed  bool
}

type message struct {
	method wire.Method
	body   []byte
}

// coalesce is how much one write carries unless one message is larger (bytes).
const coalesce = 256 << 10

func newLane(maxBytes, maxFrames int, queued prometheus.Gauge) *lane {
	l := &lane{maxBytes: maxBytes, maxFrames: maxFrames, queued: queued}
	l.some.L = &l.mu
	return l
}

// put queues a message and keeps body; false when the lane is full or closed.
func (l *lane) put(m wire.Method, body []byte) bool {
	size := len(body) + wire.HeaderSize
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.frames >= l.maxFrames || l.bytes+size > l.maxBytes && l.frames > 0 {
		return false
	}
	l.bytes += size
	l.frames++
	l.waiting = append(l.waiting, message{m, body})
	l.queued.Add(float64(size))
	l.some.Signal()
	return true
}

// take waits for messages and appends them to dst as frames, up to coalesce bytes; false after close. done must follow.
func (l *lane) take(dst []byte) ([]byte, bool) {
	l.mu.Lock()
	for len(l.waiting) == 0 && !l.closed {
		l.some.Wait()
	}
	if l.closed {
		l.mu.Unlock()
		return nil, false
	}
	n, size := 0, 0
	for n < len(l.waiting) {
		s := len(l.waiting[n].body) + wire.HeaderSize
		if n > 0 && size+s > coalesce {
			break
		}
		size += s
		n++
	}
	batch := append(l.spare[:0], l.waiting[:n]...)
	clear(l.waiting[:n])
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	l.taken = size
	l.frames -= n
	l.mu.Unlock()
	for _, m := range batch {
		dst = wire.AppendFrame(dst, wire.Header{Type: wire.FrameMessage, Method: m.method}, m.body)
	}
	clear(batch)
	l.spare = batch[:0] // only take uses it
	return dst, true
}

// done says that what take returned has been written: its bytes no longer count.
func (l *lane) done() {
	l.mu.Lock()
	l.bytes -= l.taken
	l.queued.Sub(float64(l.taken))
	l.taken = 0
	l.mu.Unlock()
}

// close drops what waits, returns how many messages that were, and wakes take.
func (l *lane) close() (dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0
	}
	dropped = l.frames
	l.closed = true
	l.waiting = nil
	l.queued.Sub(float64(l.bytes))
	l.bytes, l.taken = 0, 0
	l.some.Broadcast()
	return dropped
}
