package memnet

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/skeinmesh/skein/transport"
)

// window is how many bytes one stream carries that its reader has not read.
const window = 512 << 10

// conduit is one side of a stream. What the far side does arrives over the link as push, fin, stopped and credit.
type conduit struct {
	conn *conn
	peer *conduit

	ctx    context.Context // ends with the write direction
	cancel context.CancelFunc
	rwake  chan struct{}
	wwake  chan struct{}

	mu        sync.Mutex
	unread    [][]byte
	rend      error // io.EOF after fin, an error after a reset: what Read returns once unread is empty
	rdeadline time.Time
	credit    int
	wend      error // why no more can be written
	wdeadline time.Time
}

func newConduit(c *conn) *conduit {
	s := &conduit{conn: c, rwake: make(chan struct{}, 1), wwake: make(chan struct{}, 1), credit: window}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	return s
}

func (s *conduit) Read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		if len(s.unread) > 0 {
			n := copy(p, s.unread[0])
			if s.unread[0] = s.unread[0][n:]; len(s.unread[0]) == 0 {
				s.unread = s.unread[1:]
			}
			s.mu.Unlock()
			peer := s.peer
			s.conn.out.deliver(func() { peer.addCredit(n) })
			return n, nil
		}
		end, deadline := s.rend, s.rdeadline
		s.mu.Unlock()
		if end != nil {
			return 0, end
		}
		if err := wait(s.rwake, deadline); err != nil {
			return 0, err
		}
	}
}

func (s *conduit) Write(p []byte) (int, error) {
	written := 0
	for {
		s.mu.Lock()
		end, deadline := s.wend, s.wdeadline
		n := min(s.credit, len(p)-written)
		if end == nil {
			s.credit -= n
		}
		s.mu.Unlock()
		if end != nil {
			return written, end
		}
		if n > 0 {
			part, peer := append([]byte(nil), p[written:written+n]...), s.peer
			s.conn.out.deliver(func() { peer.push(part) })
			written += n
		}
		if written == len(p) {
			return written, nil
		}
		if err := wait(s.wwake, deadline); err != nil {
			return written, err
		}
	}
}

func wait(c chan struct{}, deadline time.Time) error {
	if deadline.IsZero() {
		<-c
		return nil
	}
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-c:
		return nil
	case <-t.C:
		return os.ErrDeadlineExceeded
	}
}

func (s *conduit) CloseWrite() error {
	s.mu.Lock()
	if s.wend != nil {
		s.mu.Unlock()
		return nil
	}
	s.wend = os.ErrClosed
	s.mu.Unlock()
	s.cancel()
	peer := s.peer
	s.conn.out.deliver(func() { peer.fin(io.EOF) })
	s.retire()
	return nil
}

func (s *conduit) Reset(code uint64) {
	s.mu.Lock()
	open := s.wend == nil
	if open {
		s.wend = &transport.ResetError{Code: code}
	}
	s.mu.Unlock()
	if open {
		s.cancel()
		wake(s.wwake)
		peer := s.peer
		s.conn.out.deliver(func() { peer.fin(&transport.ResetError{Code: code, Remote: true}) })
	}
	s.StopReading(code)
}

func (s *conduit) StopReading(code uint64) {
	s.mu.Lock()
	if s.rend == nil {
		peer := s.peer
		defer s.conn.out.deliver(func() { peer.stopped(code) })
	}
	if s.rend == nil || s.rend == io.EOF {
		s.rend, s.unread = &transport.ResetError{Code: code}, nil
	}
	s.mu.Unlock()
	wake(s.rwake)
	s.retire()
}

func (s *conduit) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	s.rdeadline = t
	s.mu.Unlock()
	wake(s.rwake)
	return nil
}

func (s *conduit) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	s.wdeadline = t
	s.mu.Unlock()
	wake(s.wwake)
	return nil
}

func (s *conduit) Context() context.Context { return s.ctx }

func (s *conduit) push(b []byte) {
	s.mu.Lock()
	if s.rend == nil {
		s.unread = append(s.unread, b)
	}
	s.mu.Unlock()
	wake(s.rwake)
}

// fin: the far side writes no more. A reset drops what was not read.
func (s *conduit) fin(end error) {
	s.mu.Lock()
	if s.rend == nil {
		s.rend = end
		if end != io.EOF {
			s.unread = nil
		}
	}
	s.mu.Unlock()
	wake(s.rwake)
	s.retire()
}

func (s *conduit) stopped(code uint64) {
	s.mu.Lock()
	if s.wend == nil {
		s.wend = &transport.ResetError{Code: code, Remote: true}
	}
	s.mu.Unlock()
	s.cancel()
	wake(s.wwake)
	s.retire()
}

func (s *conduit) addCredit(n int) {
	s.mu.Lock()
	s.credit += n
	s.mu.Unlock()
	wake(s.wwake)
}

// fail ends both directions with the connection.
func (s *conduit) fail(err error) {
	s.mu.Lock()
	if s.wend == nil {
		s.wend = err
	}
	if s.rend == nil || s.rend == io.EOF && len(s.unread) > 0 {
		s.rend, s.unread = err, nil
	}
	s.mu.Unlock()
	s.cancel()
	wake(s.rwake)
	wake(s.wwake)
}

// retire lets the connection forget a stream that has ended in both directions.
func (s *conduit) retire() {
	s.mu.Lock()
	over := s.wend != nil && s.rend != nil
	s.mu.Unlock()
	if over {
		s.conn.forget(s)
	}
}
