package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/skeinmesh/skein/flow"
)

const (
	pieceBytes = 64 << 10 // at which encoded events are handed to the writer
	pieces     = 2        // one being written, one being filled
	// settle is how long the status waits for the first events or the first error.
	settle = 100 * time.Millisecond
	// placeBytes is how much is sent at most before the place is told, although the source has not run dry: a reader that fails while it
	// catches up must not begin again.
	placeBytes = 256 << 10
)

// piece is encoded events on their way to the socket.
type piece struct {
	buf    []byte
	events int
	cursor string // after its last event; "" in the middle of a chunk
	end    bool   // nothing follows
	err    error  // why, where that is not the end that was asked for
}

// pump moves one subscription to one socket: a goroutine reads and encodes, the handler's writes. Both pass two buffers around: while
// the socket blocks, the second fills, and then nothing is read. It flushes as soon as
// the reader has nothing ready, and at the latest after placeBytes.
type pump struct {
	c    *Call
	p    readParams
	sub  flow.Subscription
	form framing
	ctl  *http.ResponseController

	free chan []byte
	full chan piece

	started bool   // the header was sent
	cursor  string // after what was written so far
	dirty   bool   // events were written since the last flush
	since   int    // bytes written since the last flush
}

// framing is how a format wraps events.
type framing interface {
	mediaType() string
	// start opens the answer; cursor is where it starts.
	start(b []byte, cursor string, quiet bool) []byte
	// event appends one event; cursor, which may be "", resumes after it.
	event(b []byte, enc *encoder, ev *flow.Event, cursor string) []byte
	// perEvent: cursors are wanted for each event, not only at flushes.
	perEvent() bool
	// flush ends what is flushed together.
	flush(b []byte, cursor string) []byte
	// idle shows that the connection lives.
	idle(b []byte, cursor string) []byte
	// end closes the answer: at the end that was asked for, with goodbye for a drain, or with a problem.
	end(b []byte, cursor string, goodbye bool, problem []byte) []byte
}

func newPump(c *Call, p readParams, sub flow.Subscription) *pump {
	var form framing = ndjson{}
	if p.format == formatSSE {
		form = sse{}
	}
	m := &pump{c: c, p: p, sub: sub, form: form, ctl: http.NewResponseController(c.w.ResponseWriter),
		free: make(chan []byte, pieces), full: make(chan piece, pieces), cursor: sub.Cursor().String()}
	for range pieces {
		m.free <- nil // made when it is needed: quiet subscriptions hold no buffer
	}
	return m
}

// run pumps until the client leaves, the source ends or the node drains. It returns once the reading goroutine has ended.
func (m *pump) run(ctx context.Context, cancel context.CancelCauseFunc) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.read(ctx)
	}()
	err := m.write(ctx)
	cancel(nil)
	<-done
	if errors.Is(err, os.ErrDeadlineExceeded) {
		m.c.s.met.goneSlow.Inc()
		m.c.s.log.Info("subscriber read nothing for too long", "request", m.c.ID, "stream", m.p.stream, "after", m.c.s.cfg.SlowReader)
	}
}

// write is the socket's side. Its error is that of the connection.
func (m *pump) write(ctx context.Context) error {
	beat := time.NewTimer(settle)
	defer beat.Stop()
	for {
		if m.c.s.draining() {
			return m.finish(true, nil)
		}
		var p piece
		select {
		case p = <-m.full:
		default:
			// The source has run dry for now.
			if err := m.flush(); err != nil {
				return err
			}
			select {
			case p = <-m.full:
			case <-beat.C:
				if err := m.quiet(); err != nil {
					return err
				}
				beat.Reset(m.c.s.cfg.Heartbeat)
				continue
			case <-m.c.s.drain.Done():
				return m.finish(true, nil)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if p.err != nil && !m.started {
			m.c.Fail(readError(ctx, p.err))
			return nil
		}
		if err := m.put(p); err != nil {
			return err
		}
		if p.end {
			return m.finish(false, p.err)
		}
		beat.Reset(m.c.s.cfg.Heartbeat)
	}
}

// quiet sends the header when nothing came at first, and a sign of life later.
func (m *pump) quiet() error {
	if !m.started {
		return m.begin(true)
	}
	if err := m.send(m.form.idle(nil, m.cursor)); err != nil {
		return err
	}
	return m.ctl.Flush()
}

func (m *pump) begin(quiet bool) error {
	m.started = true
	h := m.c.w.Header()
	h.Set("Content-Type", m.form.mediaType())
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // proxies must not collect what should arrive at once
	m.c.w.WriteHeader(http.StatusOK)
	if b := m.form.start(nil, m.cursor, quiet); len(b) > 0 {
		if err := m.send(b); err != nil {
			return err
		}
	}
	if !quiet {
		return nil
	}
	return m.ctl.Flush()
}

// put writes a piece and gives its buffer back.
func (m *pump) put(p piece) error {
	if !m.started {
		if err := m.begin(false); err != nil {
			return err
		}
		m.dirty = p.end // an answer without events still says where it ended
	}
	if len(p.buf) > 0 {
		if err := m.send(p.buf); err != nil {
			return err
		}
		m.dirty = true
		m.since += len(p.buf)
		m.c.s.met.delivered[m.p.format].Add(float64(p.events))
	}
	if p.cursor != "" {
		m.cursor = p.cursor
	}
	if cap(p.buf) > 4*pieceBytes {
		p.buf = nil // one large event must not be remembered for ever
	}
	m.free <- p.buf[:0]
	if m.since >= placeBytes && p.cursor != "" {
		return m.flush()
	}
	return nil
}

func (m *pump) send(b []byte) error {
	begun := time.Now()
	_ = m.ctl.SetWriteDeadline(begun.Add(m.c.s.cfg.SlowReader))
	_, err := m.c.w.Write(b)
	if took := time.Since(begun); took > time.Millisecond {
		m.c.s.met.blocked.Add(took.Seconds())
	}
	return err
}

func (m *pump) flush() error {
	if !m.dirty {
		return nil
	}
	m.dirty, m.since = false, 0
	if b := m.form.flush(nil, m.cursor); len(b) > 0 {
		if err := m.send(b); err != nil {
			return err
		}
	}
	return m.ctl.Flush()
}

func (m *pump) finish(goodbye bool, err error) error {
	if !m.started {
		if err := m.begin(false); err != nil {
			return err
		}
		m.dirty = true // an answer without events still says where it ended
	}
	if err := m.flush(); err != nil {
		return err
	}
	var problem []byte
	if err != nil {
		p := problemOf(err)
		if p.Status == http.StatusInternalServerError {
			m.c.s.log.Error("subscription failed", "request", m.c.ID, "stream", m.p.stream, "err", err)
		}
		m.c.problem = p.Code
		problem = appendProblem(nil, p, m.c.s.cfg.Identity.Node, m.c.ID)
	}
	if b := m.form.end(nil, m.cursor, goodbye, problem); len(b) > 0 {
		if err := m.send(b); err != nil {
			return err
		}
	}
	return m.ctl.Flush()
}

// read is the source's side: it ends by a piece with end set, or with ctx.
func (m *pump) read(ctx context.Context) {
	defer func() {
		if v := recover(); v != nil { // in a goroutine of its own it would end the process
			m.full <- piece{end: true, err: fmt.Errorf("reading panicked: %v\n%s", v, debug.Stack())}
		}
	}()
	r := reader{m: m, ids: m.form.perEvent()}
	if r.ids {
		r.at = m.sub.Cursor().Clone()
	}
	left := m.p.limit
	for {
		if !r.take(ctx) {
			return
		}
		chunk, err := m.sub.Next(ctx, left)
		if err != nil {
			if ctx.Err() == nil {
				m.full <- piece{buf: r.buf[:0], end: true, err: err}
			}
			return
		}
		if !r.encode(ctx, &chunk) {
			return
		}
		end := chunk.End
		if m.p.limit > 0 {
			if left -= len(chunk.Events); left <= 0 {
				end = true
			}
		}
		m.full <- piece{buf: r.buf, events: r.n, cursor: chunk.Cursor.String(), end: end}
		if end {
			return
		}
	}
}

// reader is the state of the reading goroutine.
type reader struct {
	m   *pump
	enc encoder
	buf []byte
	n   int // events in buf
	ids bool
	at  flow.Cursor // after the event before, while ids are wanted
}

// take waits for a free buffer; false: ctx ended.
func (r *reader) take(ctx context.Context) bool {
	select {
	case b := <-r.m.free:
		r.buf, r.n = b[:0], 0
		return true
	case <-ctx.Done():
		return false
	}
}

// encode fills buffers with a chunk; the last one is left in r.buf.
func (r *reader) encode(ctx context.Context, chunk *flow.Chunk) bool {
	if r.buf == nil && len(chunk.Events) > 0 {
		r.buf = make([]byte, 0, pieceBytes+pieceBytes/4)
	}
	exact := r.ids
	for i := range chunk.Events {
		ev := &chunk.Events[i]
		if len(r.buf) >= pieceBytes {
			r.m.full <- piece{buf: r.buf, events: r.n}
			if !r.take(ctx) {
				return false
			}
		}
		id := ""
		if r.ids {
			id, exact = r.id(ev, chunk, i == len(chunk.Events)-1, exact)
		}
		r.buf = r.m.form.event(r.buf, &r.enc, ev, id)
		r.n++
	}
	if r.ids {
		r.at = chunk.Cursor.Clone()
	}
	return true
}

// id is the cursor after ev. Inside a chunk it is known as long as events come from partitions that were open before: where a child
// of a reshape begins, only the chunk's own cursor says what is finished, and events before it go without an id.
func (r *reader) id(ev *flow.Event, chunk *flow.Chunk, last, exact bool) (string, bool) {
	if last {
		return chunk.Cursor.String(), exact
	}
	if exact {
		_, exact = r.at.Next[ev.Partition]
	}
	if !exact {
		return "", false
	}
	r.at.Next[ev.Partition] = ev.Offset + 1
	return r.at.String(), true
}
