package api

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/skeinmesh/skein/flow/batch"
)

// Sizes of the pieces in which a batch body is taken.
const (
	chunkBytes   = 512 << 10 // of the body per chunk, unless one item is larger
	chunkRecords = 4096      // events per chunk
	// bufferCharge is what a buffer is charged per byte: itself and the records that point into it.
	bufferCharge = 2
	maxBadItems  = 1000 // malformed items after which a batch is given up
)

// chunk is a run of items that are published together. Its records are views of a buffer of the feed.
type chunk struct {
	recs  []batch.Record
	items []int // the item number of each record
	bad   []badItem
	first int // number of its first item
	n     int // items in it, bad ones included
	end   bool
	err   error // why nothing follows, where that is not the body's end

	free int64 // to release once published: the buffer and its charge
	buf  []byte
}

type badItem struct {
	item int
	p    *Problem
}

// feed reads a batch body piece by piece and makes records of its items. The cuts depend on the body's bytes alone, never on how
// they arrived: an Idempotency-Key counts positions within a chunk, and a retry must come to the same ones.
type feed struct {
	c     *Call
	r     io.Reader
	split splitter
	parse func(item []byte, rec *batch.Record) error
	size  int // of the first buffer
	most  int // largest item

	buf   []byte // nil: refill
	carry []byte // the beginning of an item, while buf is nil
	pos   int
	last  bool
	held  int64 // charge of buf
	item  int   // items so far
	bad   int
}

var chunkPool = sync.Pool{New: func() any { return new(chunk) }}

// next returns the next chunk; the one with end set is the last.
func (f *feed) next() *chunk {
	ch := chunkPool.Get().(*chunk)
	*ch = chunk{recs: ch.recs[:0], items: ch.items[:0], first: f.item}
	if f.buf == nil {
		if err := f.refill(); err != nil {
			return f.close(ch, err)
		}
	}
	for len(ch.recs) < chunkRecords {
		item, to, more, err := f.split.next(f.buf, f.pos, f.last)
		f.pos = to
		switch {
		case err != nil:
			return f.close(ch, err)
		case item != nil:
			if err := f.take(ch, item); err != nil {
				return f.close(ch, err)
			}
		case !more:
			return f.close(ch, nil)
		case ch.n > 0:
			f.rest(ch)
			return ch
		default:
			if err := f.refill(); err != nil {
				return f.close(ch, err)
			}
		}
	}
	return ch
}

// take parses one item into the chunk.
func (f *feed) take(ch *chunk, item []byte) error {
	if len(item) > f.most {
		return f.tooLong()
	}
	// Parsed in place: a record of its own would be an allocation per event.
	ch.recs = append(ch.recs, batch.Record{})
	if err := f.parse(item, &ch.recs[len(ch.recs)-1]); err != nil {
		ch.recs = ch.recs[:len(ch.recs)-1]
		if f.bad++; f.bad > maxBadItems {
			return invalid(fmt.Sprintf("more than %d malformed events; gave up", maxBadItems))
		}
		ch.bad = append(ch.bad, badItem{f.item, problemOf(err)})
	} else {
		ch.items = append(ch.items, f.item)
	}
	f.item++
	ch.n++
	return nil
}

// rest hands the buffer to the chunk that used it up and keeps the beginning of the next item.
func (f *feed) rest(ch *chunk) {
	ch.buf, ch.free = f.buf, f.held
	f.carry = append([]byte(nil), f.buf[f.pos:]...)
	f.buf, f.held = nil, 0
}

// refill fills a new buffer: what was left of the last one, then the body.
func (f *feed) refill() error {
	carry := f.carry
	if f.buf != nil {
		carry = f.buf[f.pos:]
	}
	if len(carry) > f.most {
		return f.tooLong()
	}
	size := max(f.size, 2*len(carry))
	charge := int64(size) * bufferCharge
	if err := f.c.reserveBriefly(charge); err != nil {
		return err
	}
	buf := takeBuffer(size)
	n := copy(buf, carry)
	f.release(f.buf, f.held)
	f.buf, f.pos, f.held, f.carry = buf, 0, charge, nil
	for n < size && !f.last {
		m, err := f.r.Read(buf[n:])
		n += m
		if errors.Is(err, io.EOF) {
			f.last = true
		} else if err != nil {
			return bodyError(err)
		}
	}
	f.buf = buf[:n]
	return nil
}

// bufferPool keeps buffers of the usual size.
var bufferPool = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

func takeBuffer(size int) []byte {
	if size == chunkBytes {
		return bufferPool.Get().(*[chunkBytes]byte)[:]
	}
	return make([]byte, size)
}

func (f *feed) release(buf []byte, charge int64) {
	f.c.s.budget.Release(charge)
	if cap(buf) == chunkBytes {
		bufferPool.Put((*[chunkBytes]byte)(buf[:chunkBytes]))
	}
}

func (f *feed) tooLong() error {
	return tooLarge(fmt.Sprintf("event %d is longer than %d bytes", f.item, f.most))
}

func (f *feed) close(ch *chunk, err error) *chunk {
	ch.end, ch.err = true, err
	ch.buf, ch.free = f.buf, f.held
	f.buf, f.held = nil, 0
	return ch
}

// done gives back what a published chunk held.
func (f *feed) done(ch *chunk) {
	f.release(ch.buf, ch.free)
	clear(ch.recs)
	ch.buf, ch.bad, ch.free = nil, nil, 0
	chunkPool.Put(ch)
}

// abandon gives back a buffer that no chunk took. Only when next is no longer called.
func (f *feed) abandon() {
	f.release(f.buf, f.held)
	f.buf, f.held = nil, 0
}

// nextSafely is next for a goroutine of its own, where a panic over a hostile body would end the process instead of the request.
func (f *feed) nextSafely() (ch *chunk) {
	defer func() {
		if v := recover(); v != nil {
			ch = &chunk{first: f.item, end: true, err: fmt.Errorf("parsing a batch panicked: %v\n%s", v, debug.Stack())}
		}
	}()
	return f.next()
}
