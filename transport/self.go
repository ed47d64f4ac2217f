package transport

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"sync"

	"github.com/skeinmesh/skein/transport/wire"
)

// addrHost is the host of host:port, or "".
func addrHost(s string) string {
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		return ""
	}
	return host
}

// loop hands the messages that this node sends to itself to their handlers.
func (p *Peers) loop(l *lane) {
	var buf []byte
	for {
		b, ok := l.take(buf[:0])
		if !ok {
			return
		}
		buf = b
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			h, body, err := wire.ReadFrame(r)
			if err != nil {
				break
			}
			p.message(p.cfg.Self.NodeID, h.Method, body)
		}
		l.done()
		if cap(buf) > maxPooled {
			buf = nil
		}
	}
}

func (p *Peers) running() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runningLocked()
}

func (p *Peers) runningLocked() error {
	if p.closed {
		return errClosed
	}
	if p.ctx == nil {
		return &wire.Error{Kind: wire.KindUnavailable, Detail: "this node is not running yet"}
	}
	return nil
}

// callSelf runs the handler in place, with errors as if they had travelled. Like any other its context ends with Run, which waits for it.
func (p *Peers) callSelf(ctx context.Context, m wire.Method, body []byte) ([]byte, error) {
	p.mu.Lock()
	if err := p.runningLocked(); err != nil {
		p.mu.Unlock()
		return nil, err
	}
	p.wg.Add(1)
	run := p.ctx
	p.mu.Unlock()
	defer p.wg.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(run, func() { cancel(errClosed) })()
	answer, err := p.handle(ctx, p.cfg.Self.NodeID, m, bytes.Clone(body))
	if err != nil {
		return nil, wire.AsError(err)
	}
	return answer, nil
}

// openSelf runs the handler at the other end of a pipe.
func (p *Peers) openSelf(m wire.Method, hello []byte) (wire.Stream, error) {
	if err := p.running(); err != nil {
		return nil, err
	}
	f := p.onStream[m]
	if f == nil {
		return nil, unknownMethod(m)
	}
	p.mu.Lock()
	run := p.ctx
	p.mu.Unlock()
	near, far := newPipe()
	first := bytes.Clone(hello)
	started := p.spawn(func() {
		ctx, cancel := context.WithCancel(run)
		defer cancel()
		defer context.AfterFunc(run, func() { _ = near.Close(errClosed); _ = far.Close(errClosed) })()
		defer context.AfterFunc(near.gone, cancel)()
		if err := f(ctx, p.cfg.Self.NodeID, first, far); err != nil {
			_ = far.Close(err)
			return
		}
		_ = far.CloseSend()
		far.finish()
	})
	if !started {
		return nil, errClosed
	}
	return near, nil
}

// pipeFrames and pipeBytes bound what waits in one direction of a pipe; one frame always fits.
const (
	pipeFrames = 64
	pipeBytes  = 1 << 20
)

// pipe is one end of an in-process wire.Stream.
type pipe struct {
	in, out *half
	gone    context.Context // ends with Close of this end
	leave   context.CancelFunc
	once    sync.Once
}

func newPipe() (near, far *pipe) {
	a, b := newHalf(), newHalf()
	near, far = &pipe{in: a, out: b}, &pipe{in: b, out: a}
	near.gone, near.leave = context.WithCancel(context.Background())
	far.gone, far.leave = context.WithCancel(context.Background())
	return near, far
}

// half is one direction.
type half struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change that someone may wait for
	frames  [][]byte
	bytes   int
	end     error // what Recv returns when frames is empty; nil: open
	stopped error // what Send returns; nil: open
}

func newHalf() *half { return &half{changed: make(chan struct{})} }

func (h *half) changeLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (s *pipe) Send(ctx context.Context, frame []byte) error {
	if len(frame) > wire.MaxFrame {
		return wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "frame of %d bytes is larger than %d", len(frame), wire.MaxFrame)
	}
	h := s.out
	for {
		h.mu.Lock()
		switch {
		case h.stopped != nil:
			h.mu.Unlock()
			return h.stopped
		case h.end != nil:
			h.mu.Unlock()
			return &wire.Error{Kind: wire.KindClosed, Op: "send", Detail: "the stream was closed for sending"}
		case len(h.frames) == 0 || len(h.frames) < pipeFrames && h.bytes+len(frame) <= pipeBytes:
			h.frames = append(h.frames, bytes.Clone(frame))
			h.bytes += len(frame)
			h.changeLocked()
			h.mu.Unlock()
			return nil
		}
		wait := h.changed
		h.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return s.cancelled(ctx)
		}
	}
}

func (s *pipe) Recv(ctx context.Context) ([]byte, error) {
	h := s.in
	for {
		h.mu.Lock()
		if len(h.frames) > 0 {
			f := h.frames[0]
			h.frames[0] = nil
			h.frames = h.frames[1:]
			h.bytes -= len(f)
			h.changeLocked()
			h.mu.Unlock()
			return f, nil
		}
		end, wait := h.end, h.changed
		h.mu.Unlock()
		if end != nil {
			return nil, end
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, s.cancelled(ctx)
		}
	}
}

func (s *pipe) cancelled(ctx context.Context) error {
	_ = s.Close(nil)
	return &wire.Error{Kind: wire.KindClosed, Detail: "the stream's context ended", Err: context.Cause(ctx)}
}

// finish sets how a direction ends for its reader, the first time; drop discards what waits.
func (h *half) finish(end error, drop bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end == nil {
		h.end = end
		if drop {
			h.frames, h.bytes = nil, 0
		}
	}
	h.changeLocked()
}

// abandon drops what waits: nobody will read it.
func (h *half) abandon(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frames, h.bytes, h.end = nil, 0, err
	h.changeLocked()
}

func (h *half) stop(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped == nil {
		h.stopped = err
	}
	h.changeLocked()
}

func (s *pipe) CloseSend() error {
	s.out.finish(io.EOF, false)
	return nil
}

func (s *pipe) Close(err error) error {
	s.once.Do(func() {
		cause := wire.AsError(err)
		here := &wire.Error{Kind: wire.KindClosed, Detail: "the stream was closed here"}
		s.out.finish(cause, err == nil)
		s.out.stop(here)
		s.in.stop(cause) // first: it says more than the end
		s.in.abandon(here)
		s.leave()
	})
	return nil
}

// finish ends the serving side after its handler returned: what was sent can still be read.
func (s *pipe) finish() {
	s.once.Do(func() {
		here := &wire.Error{Kind: wire.KindClosed, Detail: "the stream was closed"}
		s.out.stop(here)
		s.in.stop(here)
		s.in.abandon(here)
		s.leave()
	})
}

var _ wire.Stream = (*pipe)(nil)
var _ wire.Stream = (*stream)(nil)
