package sim

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// stream is an ordered stream between two processes.
type stream struct {
	m      *mesh
	key    string
	method wire.Method
	ends   [2]*end // the opener's, the server's
	over   bool    // the loop's: no end hears anything more
}

// end is one end of a stream, a wire.Stream.
type end struct {
	s    *stream
	side int
	proc *process // the loop's until the stream is served; nil before
	gone context.Context
	quit context.CancelFunc

	mu     sync.Mutex
	wake   chan struct{} // closed at each change
	frames [][]byte      // arrived, not read
	in     error         // ends what arrives
	out    error         // ends what is sent
	sent   uint64        // frames, the end of them too
	unread int           // sent, and not read by the other end
	closed bool

	// The loop owns what follows.
	next  uint64            // number of the next frame to arrive
	early map[uint64][]byte // arrived before it; nil bytes: the end of all
}

func newEnd(s *stream, side int) *end {
	e := &end{s: s, side: side, wake: make(chan struct{}), early: map[uint64][]byte{}}
	e.gone, e.quit = context.WithCancel(context.Background())
	return e
}

// changeLocked wakes who waits.
func (e *end) changeLocked() {
	close(e.wake)
	e.wake = make(chan struct{})
}

func (e *end) other() *end { return e.s.ends[1-e.side] }

// Open implements flow.Peers and replica.Caller.
func (p *process) Open(_ context.Context, to ring.NodeID, _ wire.Class, method wire.Method, hello []byte) (wire.Stream, error) {
	if p.m.node(to) == nil {
		return nil, unreachable(to)
	}
	s := &stream{m: p.m, method: method}
	p.mu.Lock()
	key := fmt.Sprintf("stream %d.%d %s %d %x", p.nd.i, p.run, to, method, hello)
	p.opened[key]++
	s.key = fmt.Sprintf("%s #%d", key, p.opened[key])
	p.mu.Unlock()
	s.ends = [2]*end{newEnd(s, 0), newEnd(s, 1)}
	s.ends[0].proc = p
	hello = slices.Clone(hello)
	p.m.w.say(s.key, func() { p.m.open(p, p.m.node(to), s, method, hello) })
	return s.ends[0], nil
}

func (m *mesh) open(p *process, far *node, s *stream, method wire.Method, hello []byte) {
	m.w.note("open %d>%d %d %x", p.nd.i, far.i, method, m.digest(hello))
	p.streams[s] = struct{}{}
	m.reliably(p, far, func(q *process) {
		if s.over {
			return
		}
		m.w.note("open %d<%d %d %x", far.i, p.nd.i, method, m.digest(hello))
		e := s.ends[1]
		e.proc = q
		q.streams[s] = struct{}{}
		q.serving.Go(func() {
			ctx, cancel := context.WithCancel(q.life)
			defer cancel()
			defer context.AfterFunc(e.gone, cancel)()
			if err := q.streamHandler(method)(ctx, p.nd.id, hello, e); err != nil {
				_ = e.Close(err)
			} else {
				_ = e.CloseSend()
			}
		})
	}, func() { s.sever(unreachable(far.id)) })
}

// Send implements wire.Stream.
func (e *end) Send(ctx context.Context, frame []byte) error { return e.send(ctx, slices.Clone(frame)) }

func (e *end) send(ctx context.Context, frame []byte) error {
	for {
		e.mu.Lock()
		out, wake := e.out, e.wake
		room := out == nil && (frame == nil || e.unread < window)
		if room {
			n := e.sent
			e.sent++
			e.unread++
			if frame == nil {
				e.out = io.EOF
			}
			e.s.m.w.say(fmt.Sprintf("%s %d %09d", e.s.key, e.side, n), func() { e.transmit(n, frame, nil) })
		}
		e.mu.Unlock()
		switch {
		case room:
			return nil
		case out != nil:
			return wire.Errorf(wire.KindClosed, "", "the stream is closed")
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return e.cancelled(ctx)
		}
	}
}

// mark stands for a frame in the trace. A snapshot lists the identities of a partition in whatever order its map gives them; receivers put
// them into a map again. Of its frames the length counts alone.
func (s *stream) mark(frame []byte) uint64 {
	if s.method == wire.MethodSnapshot {
		return uint64(len(frame))
	}
	return s.m.digest(frame)
}

// transmit is the loop's part of sending a frame, nil for the end of all, or the end with an error.
func (e *end) transmit(n uint64, frame []byte, last error) {
	s := e.s
	if s.over || e.proc == nil || e.proc.dead.Load() {
		return
	}
	far := e.other().proc
	if far == nil { // not served yet: its opening will come, or end it
		s.m.w.after(resend, func() { e.transmit(n, frame, last) })
		return
	}
	s.m.w.note("frame %d>%d %d %x", e.proc.nd.i, far.nd.i, n, s.mark(frame))
	s.m.reliably(e.proc, far.nd, func(q *process) {
		if s.over || q != far {
			return
		}
		s.m.w.note("frame %d<%d %d %x", far.nd.i, e.proc.nd.i, n, s.mark(frame))
		if last != nil {
			s.finish()
			e.other().stop(last)
			return
		}
		e.other().arrive(n, frame)
	}, func() { s.sever(errLost) })
}

// arrive puts a frame where it belongs.
func (e *end) arrive(n uint64, frame []byte) {
	e.early[n] = frame
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		f, ok := e.early[e.next]
		if !ok {
			break
		}
		delete(e.early, e.next)
		e.next++
		switch {
		case e.in != nil:
		case f == nil:
			e.in = io.EOF
		default:
			e.frames = append(e.frames, f)
		}
	}
	e.changeLocked()
}

// Recv implements wire.Stream.
func (e *end) Recv(ctx context.Context) ([]byte, error) {
	for {
		e.mu.Lock()
		var frame []byte
		if len(e.frames) > 0 {
			frame, e.frames = e.frames[0], e.frames[1:]
		}
		in, wake := e.in, e.wake
		e.mu.Unlock()
		switch {
		case frame != nil:
			o := e.other()
			o.mu.Lock()
			o.unread--
			o.changeLocked()
			o.mu.Unlock()
			return frame, nil
		case in != nil:
			return nil, in
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, e.cancelled(ctx)
		}
	}
}

func (e *end) cancelled(ctx context.Context) error {
	_ = e.Close(nil)
	return &wire.Error{Kind: wire.KindClosed, Detail: "the stream's context ended", Err: context.Cause(ctx)}
}

// CloseSend implements wire.Stream.
func (e *end) CloseSend() error {
	_ = e.send(context.Background(), nil) // closed already: fine
	return nil
}

// Close implements wire.Stream.
func (e *end) Close(err error) error {
	cause := wire.AsError(err)
	if cause == nil {
		cause = wire.Errorf(wire.KindClosed, "", "the stream was closed")
	}
	e.mu.Lock()
	was := e.closed
	e.closed = true
	e.mu.Unlock()
	if !was {
		e.stop(cause)
		e.s.m.w.say(fmt.Sprintf("%s %d end", e.s.key, e.side), func() { e.transmit(1<<40, nil, cause) })
	}
	return nil
}

// stop ends both directions of this end; what was not read is gone.
func (e *end) stop(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.in == nil {
		e.in, e.frames = err, nil
	}
	if e.out == nil {
		e.out = err
	}
	e.quit()
	e.changeLocked()
}

// finish forgets the stream. For the loop.
func (s *stream) finish() {
	s.over = true
	for _, e := range s.ends {
		if e.proc != nil {
			delete(e.proc.streams, s)
		}
	}
}

// sever ends both ends of the stream. For the loop.
func (s *stream) sever(err error) {
	if s.over {
		return
	}
	s.finish()
	s.ends[0].stop(err)
	s.ends[1].stop(err)
}
