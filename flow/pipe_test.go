package flow

import (
	"context"
	"io"
	"slices"
	"sync"

	"github.com/skeinmesh/skein/transport/wire"
)

// pipe is one end of a wire.Stream in memory. As over QUIC, an end with an error may take with it what was not read yet.
type pipe struct {
	in, out *lane
	gone    context.Context // ends with either end
	leave   context.CancelFunc
	once    sync.Once
}

type lane struct {
	mu     sync.Mutex
	wake   chan struct{} // closed at each change
	frames [][]byte
	end    error
}

func newPipe() (near, far *pipe) {
	a, b := &lane{wake: make(chan struct{})}, &lane{wake: make(chan struct{})}
	gone, leave := context.WithCancel(context.Background())
	return &pipe{in: a, out: b, gone: gone, leave: leave}, &pipe{in: b, out: a, gone: gone, leave: leave}
}

func (l *lane) change(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
	close(l.wake)
	l.wake = make(chan struct{})
}

func (l *lane) finish(err error, drop bool) {
	l.change(func() {
		if l.end == nil {
			l.end = err
			if drop {
				l.frames = nil
			}
		}
	})
}

const laneFrames = 32

func (p *pipe) Send(ctx context.Context, frame []byte) error {
	for {
		p.out.mu.Lock()
		end, room, wake := p.out.end, len(p.out.frames) < laneFrames, p.out.wake
		if end == nil && room {
			p.out.frames = append(p.out.frames, slices.Clone(frame))
			close(p.out.wake)
			p.out.wake = make(chan struct{})
		}
		p.out.mu.Unlock()
		switch {
		case end != nil:
			return wire.Errorf(wire.KindClosed, "", "the stream is closed")
		case room:
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return p.cancelled(ctx)
		}
	}
}

func (p *pipe) Recv(ctx context.Context) ([]byte, error) {
	for {
		p.in.mu.Lock()
		var frame []byte
		if len(p.in.frames) > 0 {
			frame, p.in.frames = p.in.frames[0], p.in.frames[1:]
			close(p.in.wake)
			p.in.wake = make(chan struct{})
		}
		end, wake := p.in.end, p.in.wake
		p.in.mu.Unlock()
		switch {
		case frame != nil:
			return frame, nil
		case end != nil:
			return nil, end
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, p.cancelled(ctx)
		}
	}
}

func (p *pipe) cancelled(ctx context.Context) error {
	_ = p.Close(nil)
	return &wire.Error{Kind: wire.KindClosed, Detail: "the stream's context ended", Err: context.Cause(ctx)}
}

func (p *pipe) CloseSend() error {
	p.out.finish(io.EOF, false)
	return nil
}

func (p *pipe) Close(err error) error {
	p.once.Do(func() {
		cause := wire.AsError(err)
		if cause == nil {
			cause = wire.Errorf(wire.KindClosed, "", "the stream was closed")
		}
		p.out.finish(cause, true)
		p.in.finish(cause, true)
		p.leave()
	})
	return nil
}

// sever drops what is under way, both ways.
func (p *pipe) sever(err error) {
	p.out.finish(err, true)
	p.in.finish(err, true)
	p.leave()
}
