package transport

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/skeinmesh/skein/transport/wire"
)

// buffers are reused write buffers, so that header and body leave in one write.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 72<<10); return &b }}

// maxPooled is the largest buffer worth keeping (bytes).
const maxPooled = 1 << 20

func putBuffer(b *[]byte) {
	if cap(*b) <= maxPooled {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// writeFrame writes one frame; short tells that not all of it left.
func writeFrame(w io.Writer, h wire.Header, body []byte) (short bool, err error) {
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	*b = wire.AppendFrame((*b)[:0], h, body)
	n, err := w.Write(*b)
	return n < len(*b), err
}

// Codes of reset streams: resetKind plus the error's kind.
const resetKind = 0x100

func resetCode(k wire.Kind) uint64 { return resetKind + uint64(k) }

// lostError turns what a Conduit returned into an *wire.Error: a reset carries its kind; anything else is a lost
// connection, after which it is not known how far the peer got.
func lostError(op string, err error) error {
	if r, ok := errors.AsType[*ResetError](err); ok {
		kind := wire.KindClosed
		if r.Code >= resetKind && r.Code < resetKind+0x100 {
			kind = wire.Kind(r.Code - resetKind)
		}
		return &wire.Error{Kind: kind, Op: op, Detail: "the stream was closed"}
	}
	if _, ok := errors.AsType[*wire.Error](err); ok {
		return err
	}
	return &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Op: op, Detail: "the connection to the peer was lost", Err: err}
}

// stream is wire.Stream over a Conduit.
type stream struct {
	c  Conduit
	br *bufio.Reader

	sending  sync.Mutex // held while a frame is written
	mu       sync.Mutex
	sendOver bool  // CloseSend or Close was called
	closed   bool  // Close was called
	ended    error // why: what Send and Recv return from then on
}

// readBuffer is what a stream or request reads ahead (bytes); larger bodies bypass it.
const readBuffer = 4 << 10

func newStream(c Conduit) *stream { return &stream{c: c, br: bufio.NewReaderSize(c, readBuffer)} }

func (s *stream) Send(ctx context.Context, frame []byte) error {
	if len(frame) > wire.MaxFrame {
		return wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "frame of %d bytes is larger than %d", len(frame), wire.MaxFrame)
	}
	defer s.watch(ctx)()
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.sendable(); err != nil {
		return err
	}
	if _, err := writeFrame(s.c, wire.Header{Type: wire.FrameData}, frame); err != nil {
		return s.sendFailed(err)
	}
	return nil
}

// sendFailed leaves the read side alone when the peer has ended the stream: the peer's full error waits there for Recv.
func (s *stream) sendFailed(err error) error {
	if r, ok := errors.AsType[*ResetError](err); !ok || !r.Remote {
		return s.fail("send", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendOver = true
	if s.ended != nil {
		return s.ended
	}
	return lostError("send", err)
}

func (s *stream) sendable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	if s.sendOver {
		return &wire.Error{Kind: wire.KindClosed, Op: "send", Detail: "the stream was closed for sending"}
	}
	return nil
}

func (s *stream) Recv(ctx context.Context) ([]byte, error) {
	defer s.watch(ctx)()
	h, err := wire.ReadHeader(s.br)
	if err == io.EOF {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ended != nil {
			return nil, s.ended
		}
		return nil, io.EOF
	}
	var body []byte
	if err == nil {
		body, err = wire.ReadBody(s.br, h.Length)
	}
	if err != nil {
		return nil, s.fail("receive", err)
	}
	switch h.Type {
	case wire.FrameData:
		return body, nil
	case wire.FrameError:
		e, err := wire.ParseError(body)
		if err != nil {
			return nil, s.fail("receive", err)
		}
		return nil, s.fail("receive", e)
	}
	return nil, s.fail("receive", wire.Errorf(wire.KindCorrupt, "", "frame type %d within a stream", h.Type))
}

// watch kills the stream when ctx ends; the returned function stops watching.
func (s *stream) watch(ctx context.Context) func() {
	if ctx.Done() == nil {
		return func() {}
	}
	stop := context.AfterFunc(ctx, func() {
		s.end(&wire.Error{Kind: wire.KindClosed, Detail: "the stream's context ended", Err: context.Cause(ctx)})
		s.c.Reset(resetCode(wire.KindClosed))
	})
	return func() { stop() }
}

// end records the first reason for the stream's death, and returns it.
func (s *stream) end(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = err
	}
	return s.ended
}

// fail ends the stream after an I/O error.
func (s *stream) fail(op string, err error) error {
	err = s.end(lostError(op, err))
	s.c.Reset(resetCode(wire.KindClosed))
	return err
}

func (s *stream) CloseSend() error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	over := s.sendOver || s.ended != nil
	s.sendOver = true
	s.mu.Unlock()
	if over {
		return nil
	}
	return s.c.CloseWrite()
}

// sentLocally reports whether the write direction ended from this side.
func (s *stream) sentLocally() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sendOver
}

// farewell bounds how long Close waits to hand its error over (a stuck peer gets the bare kind instead): what is only slow, this process
// included, should not cost the peer the owner that the error names.
const farewell = time.Second

func (s *stream) Close(err error) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	over := s.sendOver || s.ended != nil
	s.sendOver = true
	s.mu.Unlock()
	cause := wire.AsError(err)
	s.end(&wire.Error{Kind: wire.KindClosed, Detail: "the stream was closed here"})
	code := resetCode(cause.Kind)
	if over {
		s.c.StopReading(code)
		return nil
	}
	if err == nil || !s.sending.TryLock() {
		s.c.Reset(code)
		return nil
	}
	defer s.sending.Unlock()
	if s.sendError(err) != nil {
		s.c.Reset(code)
		return nil
	}
	s.c.StopReading(code)
	return nil
}

func (s *stream) sendError(err error) error {
	_ = s.c.SetWriteDeadline(time.Now().Add(farewell))
	if _, err := writeFrame(s.c, wire.Header{Type: wire.FrameError}, wire.AppendError(nil, err)); err != nil {
		return err
	}
	return s.c.CloseWrite()
}

// finish ends the serving side after its handler returned without an error: the peer reads all that was sent, then EOF.
func (s *stream) finish() {
	_ = s.CloseSend()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end(&wire.Error{Kind: wire.KindClosed, Detail: "the stream was closed here"})
	s.c.StopReading(resetCode(wire.KindClosed))
}
