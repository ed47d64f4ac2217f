package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// session is one outgoing connection whose hello was accepted. It lives until its connection ends.
type session struct {
	conn  Conn
	ctl   Conduit // the hello's stream: pings and later hellos
	ctlmu sync.Mutex
	class wire.Class
	mesh  ring.MeshID // what the hello said of ours
	peer  hello
	out   *lane
	m     *metrics
	rtt   atomic.Int64 // of the last ping, nanoseconds
	asked atomic.Int64 // pings since the peer last answered
	start time.Time

	pongmu sync.Mutex
	pong   uint32        // what the last answered ping said
	ponged chan struct{} // closed and replaced at each answer
}

// call makes one request on a stream of its own. Errors are *wire.Error.
func (s *session) call(ctx context.Context, m wire.Method, body []byte) ([]byte, error) {
	c, err := s.conn.OpenStream(ctx)
	if err != nil {
		return nil, &wire.Error{Kind: wire.KindUnavailable, Op: "call", Detail: "no stream to the peer could be opened", Err: err}
	}
	stop := context.AfterFunc(ctx, func() { c.Reset(resetCode(wire.KindClosed)) })
	defer stop()
	short, err := writeFrame(c, wire.Header{Type: wire.FrameRequest, Method: m, Arg: remaining(ctx)}, body)
	if err != nil {
		c.Reset(resetCode(wire.KindClosed))
		return nil, callError(ctx, !short, err)
	}
	_ = c.CloseWrite() // fails when the answer was quicker
	s.m.bytesOut.WithLabelValues(className(s.class)).Add(float64(len(body) + wire.HeaderSize))
	br := readers.Get().(*bufio.Reader)
	defer readers.Put(br)
	br.Reset(c)
	h, answer, err := wire.ReadFrame(br)
	br.Reset(nil)
	c.StopReading(0)
	if err != nil {
		c.Reset(resetCode(wire.KindClosed))
		return nil, callError(ctx, true, err)
	}
	switch h.Type {
	case wire.FrameResponse:
		return answer, nil
	case wire.FrameError:
		e, err := wire.ParseError(answer)
		if err != nil {
			return nil, err
		}
		return nil, e
	}
	return nil, wire.Errorf(wire.KindCorrupt, "", "frame type %d where an answer was expected", h.Type)
}

// readers are reused read buffers of requests.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

// callError says what is known of a request that got no answer: sent tells whether the peer may have all of it.
func callError(ctx context.Context, sent bool, err error) *wire.Error {
	e := &wire.Error{Kind: wire.KindUnavailable, Op: "call", Detail: "the request was not delivered", Err: err}
	if sent {
		e.Kind, e.Code, e.Detail = wire.KindOutcomeUnknown, wire.CodeOutcomeUnknown, "the request was sent but its answer was lost"
	}
	if ctx.Err() != nil {
		e.Err = context.Cause(ctx)
	} else if errors.Is(err, io.EOF) {
		e.Err = io.ErrUnexpectedEOF
	}
	return e
}

// remaining is ctx's time left in the header's milliseconds; 0: no deadline.
func remaining(ctx context.Context) uint32 {
	d, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return uint32(min(max(time.Until(d).Milliseconds(), 1), math.MaxUint32))
}

// open starts a stream. Errors are *wire.Error of KindUnavailable.
func (s *session) open(ctx context.Context, m wire.Method, first []byte) (*stream, error) {
	c, err := s.conn.OpenStream(ctx)
	if err != nil {
		return nil, &wire.Error{Kind: wire.KindUnavailable, Op: "open stream", Detail: "no stream to the peer could be opened", Err: err}
	}
	stop := context.AfterFunc(ctx, func() { c.Reset(resetCode(wire.KindClosed)) })
	defer stop()
	_, err = writeFrame(c, wire.Header{Type: wire.FrameOpen, Method: m}, first)
	if err == nil && !stop() { // and so the stream is being reset
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Reset(resetCode(wire.KindClosed))
		return nil, &wire.Error{Kind: wire.KindUnavailable, Op: "open stream", Detail: "the stream could not be opened", Err: err}
	}
	return newStream(c), nil
}

// say sends a frame on the hello's stream.
func (s *session) say(h wire.Header, body []byte) error {
	s.ctlmu.Lock()
	defer s.ctlmu.Unlock()
	_ = s.ctl.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := writeFrame(s.ctl, h, body)
	return err
}

// run serves the session until its connection ends, and returns why. Its goroutines have ended when it returns.
func (s *session) run(interval, timeout time.Duration) error {
	var wg sync.WaitGroup
	wg.Go(s.listen)
	wg.Go(s.write)
	if s.class == wire.ClassControl {
		s.ping(interval, timeout)
	} else {
		<-s.conn.Context().Done()
	}
	s.m.dropped.WithLabelValues(className(s.class), "lost").Add(float64(s.out.close()))
	wg.Wait()
	return s.conn.Err()
}

// ping asks for a sign of life every interval, and closes the connection after timeout without one. It counts the intervals in which it
// asked, not the time: where this process stood still, the answers wait to be read, and the peer is not the silent one.
func (s *session) ping(interval, timeout time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	done := s.conn.Context().Done()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if silent := time.Duration(s.asked.Load()) * interval; silent >= timeout {
			s.conn.Close(CloseSilent, fmt.Sprintf("no answer to pings for %v", silent))
			return
		}
		s.asked.Add(1)
		if err := s.say(wire.Header{Type: wire.FramePing, Arg: uint32(time.Since(s.start).Microseconds())}, nil); err != nil {
			s.conn.Close(CloseSilent, "pings cannot be sent")
			return
		}
	}
}

// listen reads the answers to pings.
func (s *session) listen() {
	br := bufio.NewReaderSize(s.ctl, 256)
	for {
		h, err := wire.ReadHeader(br)
		if err != nil || h.Type != wire.FramePong || h.Length != 0 {
			if s.conn.Context().Err() == nil {
				s.conn.Close(CloseProtocol, "the hello's stream broke")
			}
			return
		}
		now := time.Since(s.start)
		s.asked.Store(0)
		s.heardPong(h.Arg)
		s.rtt.Store(int64(uint32(now.Microseconds())-h.Arg) * int64(time.Microsecond))
	}
}

// write moves queued one-way messages to their stream, many in one write.
func (s *session) write() {
	var c Conduit
	sent := s.m.bytesOut.WithLabelValues(className(s.class))
	buf := make([]byte, 0, readBuffer)
	for {
		batch, ok := s.out.take(buf[:0])
		if !ok {
			return
		}
		if c == nil {
			var err error
			if c, err = s.conn.OpenStream(s.conn.Context()); err != nil {
				s.conn.Close(CloseProtocol, "no stream for messages")
				return
			}
		}
		n, err := c.Write(batch)
		s.out.done()
		sent.Add(float64(n))
		if err != nil {
			s.conn.Close(CloseProtocol, "the messages' stream broke")
			return
		}
		if buf = batch; cap(buf) > maxPooled {
			buf = nil
		}
	}
}
