package flow

import (
	"context"
	crand "crypto/rand"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// run connects to the owner while there is something to send, until the session is idle, stopped, or the broker closes.
func (s *session) run(life context.Context) {
	defer s.retire()
	for {
		if s.idle() && !s.waitForWork(life) {
			return
		}
		if s.ended(life) {
			return
		}
		hinted := false
		err := s.attempt(life, &hinted)
		if err == nil {
			continue
		}
		s.b.log.Debug("publish session lost its owner", "stream", s.stream, "partition", s.part, "tries", s.tries, "err", err)
		if s.tries%8 == 3 {
			s.b.catalog.recheck(s.stream)
		}
		s.setState(false, err)
		s.settle(err)
		if !hinted || s.tries > 8 {
			_ = sleep(life, s.backoff()) // ended looks at life
		}
	}
}

// attempt makes one connection to the likeliest owner and stays on it. hinted: the error named another owner to ask at once.
func (s *session) attempt(life context.Context, hinted *bool) error {
	owner, ok := s.b.owners.guess(s.group)
	if !ok || s.tries%3 == 2 {
		owner, ok = s.b.anyOf(s.group, s.known, s.tries)
	}
	s.tries++
	if !ok {
		return noOwner(s.group, nil)
	}
	err := s.connect(life, owner)
	_, *hinted = s.b.judge(s.group, owner, err, true)
	return err
}

// backoff grows while no owner is found; jittered, because many sessions lose one owner at once.
func (s *session) backoff() time.Duration {
	d := min(retryFirst<<min(s.tries, 8), retryCap)
	return d/2 + rand.N(d/2+1)
}

func (s *session) ended(life context.Context) bool {
	s.mu.Lock()
	stopped := s.stopped != nil
	s.mu.Unlock()
	if stopped {
		return true
	}
	if life.Err() != nil {
		s.stop(context.Cause(life))
		return true
	}
	return false
}

// waitForWork returns false when the session was idle for long, and then takes no more.
func (s *session) waitForWork(life context.Context) bool {
	t := time.NewTimer(sessionIdle)
	defer t.Stop()
	select {
	case <-s.wake:
		return true
	case <-life.Done():
		return true // ended says the rest
	case <-t.C:
	}
	// Broker.session checks retired under the same lock.
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if !s.idle() {
		return true
	}
	s.retired = true
	if s.b.sessions[s.group] == s {
		delete(s.b.sessions, s.group)
	}
	return false
}

func (s *session) retire() {
	s.b.mu.Lock()
	s.retired = true
	if s.b.sessions[s.group] == s {
		delete(s.b.sessions, s.group)
	}
	s.b.mu.Unlock()
	s.stop(errClosing) // an event that came between the last look and retirement is refused, not lost
}

// settle decides what becomes of the batches in flight after a connection ended with err.
//
// Lost ownership or a lost connection: they stay, and go to the next owner under the same numbers. A refusal of the session
// or of the batch: what this connection sent for the first time is certainly not stored; what an earlier owner may have
// taken is unknown.
func (s *session) settle(err error) {
	e := wire.AsError(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.Kind == wire.KindFenced:
		keep := s.inflight[:0]
		for _, o := range s.inflight {
			if o.sends > 1 {
				o.fail(unknownOutcome(err))
				continue
			}
			keep = append(keep, o)
		}
		s.inflight = keep
		s.renewLocked()
	case e.Kind == wire.KindInternal && len(s.inflight) > 0: // a bug somewhere: repeating it would not end
		for _, o := range s.inflight {
			o.fail(unknownOutcome(err))
		}
		s.inflight = nil
		s.renewLocked()
	case refusesBatch(e):
		for _, o := range s.inflight {
			if o.sends > 1 {
				o.fail(unknownOutcome(err))
			} else {
				o.fail(err)
			}
		}
		s.inflight = nil
		s.renewLocked()
	default:
		for _, o := range s.inflight {
			if o.live() {
				return
			}
		}
		if len(s.inflight) > 0 { // nobody waits for any of them: do not store events long after their time
			s.inflight = nil
			s.renewLocked()
		}
	}
}

// refusesBatch: the owner said no to a batch before proposing it, having answered all that it proposed.
func refusesBatch(e *wire.Error) bool {
	switch e.Kind {
	case wire.KindInvalid, wire.KindNoCredit, wire.KindNotFound, wire.KindConflict, wire.KindCorrupt:
		return true
	case wire.KindUnavailable:
		return e.Code == wire.CodeDiskFull || e.Code == wire.CodeTooFewCopies
	}
	return false
}

// renewLocked forgets the session's name; the next connection opens a new one, and restamps what is kept.
func (s *session) renewLocked() {
	s.id, s.seq, s.renewed = [16]byte{}, 0, true
}

// connect opens the session at an owner, sends again what is in flight, and goes on until the connection ends. The error of
// a session that has nothing more to do is nil.
func (s *session) connect(life context.Context, owner ring.NodeID) error {
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	patience := time.AfterFunc(attemptTimeout, cancel)
	defer patience.Stop()
	watch := s.b.watchOwner(s.group, owner, cancel)
	defer watch.stop()
	hello := publishHello{Group: s.group, Session: s.id}
	if s.id == [16]byte{} {
		_, _ = crand.Read(hello.Session[:]) // never fails
		hello.New = true
	}
	body, err := wire.Marshal(&hello)
	if err != nil {
		return err
	}
	st, err := s.b.cfg.Peers.Open(ctx, owner, wire.ClassBulk, wire.MethodPublish, body)
	if err != nil {
		return err
	}
	defer st.Close(nil) //nolint:errcheck // the stream is over either way
	first, err := st.Recv(ctx)
	if err != nil {
		return err
	}
	opened, err := parseAnswer(first)
	if err != nil {
		return err
	}
	s.id = hello.Session
	patience.Stop()
	watch.stop()
	s.tries = 0
	s.b.owners.learn(s.group, owner, opened.Term)
	s.setState(true, nil)
	s.b.metrics.sessionsOpened.Inc()
	p := pump{s: s, st: st, owner: owner, credit: opened.Credit, acks: make(chan *publishAck, 2*maxInflight+4), failed: make(chan error, 1)}
	return p.run(ctx)
}

// pump is one connection of a session.
type pump struct {
	s      *session
	st     wire.Stream
	owner  ring.NodeID
	credit int64
	acks   chan *publishAck // never full: bounded by what is in flight
	failed chan error

	timer    *time.Timer
	glancing bool // timer is armed
}

func (p *pump) run(life context.Context) error {
	ctx, cancel := context.WithCancel(life) // the receiver's
	received := make(chan struct{})
	go func() {
		defer close(received)
		p.receive(ctx)
	}()
	defer func() {
		cancel()
		_ = p.st.Close(nil)
		<-received
		if p.timer != nil {
			p.timer.Stop()
		}
	}()
	if err := p.resend(ctx); err != nil {
		return p.cause(err)
	}
	idle := time.NewTimer(sessionIdle)
	defer idle.Stop()
	for {
		if err := p.send(ctx); err != nil {
			return p.cause(err)
		}
		var glance <-chan time.Time // while answers are awaited
		if len(p.s.inflight) > 0 {
			glance = p.glance()
		}
		select {
		case <-glance:
			p.glancing = false
			if now, known := p.s.b.owners.guess(p.s.group); known && now != p.owner {
				return p.drain(&wire.Error{Kind: wire.KindNotOwner, Owner: now, Detail: "another owner was elected"})
			}
		case a := <-p.acks:
			if err := p.handle(a); err != nil {
				return err
			}
			idle.Reset(sessionIdle)
		case <-p.s.wake:
			if p.s.isStopped() {
				return nil
			}
			idle.Reset(sessionIdle)
		case err := <-p.failed:
			return p.drain(err)
		case <-idle.C:
			if p.s.idle() {
				return p.st.CloseSend()
			}
			idle.Reset(sessionIdle)
		case <-life.Done():
			return context.Cause(life)
		}
	}
}

// glance arms the timer that looks for another owner, unless it is armed already.
func (p *pump) glance() <-chan time.Time {
	switch {
	case p.timer == nil:
		p.timer = time.NewTimer(ownerGlance)
	case !p.glancing:
		p.timer.Reset(ownerGlance)
	}
	p.glancing = true
	return p.timer.C
}

func (s *session) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped != nil
}

// drain handles the answers that came before the connection failed: what they answer is not in flight any more.
func (p *pump) drain(err error) error {
	for {
		select {
		case a := <-p.acks:
			if herr := p.handle(a); herr != nil {
				return herr
			}
		default:
			return err
		}
	}
}

// cause prefers the peer's reason over the local symptom of a failed send.
func (p *pump) cause(err error) error {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case peer := <-p.failed:
		return p.drain(peer)
	case <-t.C:
		return p.drain(err)
	}
}

func (p *pump) receive(ctx context.Context) {
	for {
		frame, err := p.st.Recv(ctx)
		var a *publishAck
		if err == nil {
			a, err = parseAnswer(frame)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = &wire.Error{Kind: wire.KindNotOwner, Detail: "the owner ended the session"}
			}
			p.failed <- err
			return
		}
		p.acks <- a
	}
}

// resend gives the batches in flight to a new owner, under their numbers; those kept by a renewed session get new numbers.
func (p *pump) resend(ctx context.Context) error {
	for _, o := range p.s.inflight {
		if p.s.renewed {
			p.s.seq++
			if err := o.restamp(p.s.id, p.s.seq); err != nil {
				return err
			}
		}
		if err := p.transmit(ctx, o); err != nil {
			return err
		}
	}
	p.s.renewed = false
	return nil
}

// send sends what may be sent: within the window, and while there is credit. One batch may overdraw the credit, so that a
// large event passes a small window.
func (p *pump) send(ctx context.Context) error {
	for p.credit > 0 && len(p.s.inflight) < maxInflight {
		o := p.s.next()
		if o == nil {
			return nil
		}
		if err := o.seal(p.s.id, p.s.seq+1); err != nil {
			p.s.dropLast(err)
			continue
		}
		p.s.seq++
		if err := p.transmit(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// dropLast fails the batch just taken, which could not be encoded.
func (s *session) dropLast(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.inflight) - 1
	s.inflight[last].fail(err)
	s.inflight = s.inflight[:last]
}

func (p *pump) transmit(ctx context.Context, o *outBatch) error {
	o.sends++
	p.credit -= int64(len(o.frame))
	return p.st.Send(ctx, o.frame)
}

// handle takes one answer. Answers come in order.
func (p *pump) handle(a *publishAck) error {
	s := p.s
	p.credit += a.Credit
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Accepted {
		for _, o := range s.inflight {
			if o.seq == a.Seq {
				o.accepted()
			}
		}
		return nil
	}
	if len(s.inflight) == 0 || s.inflight[0].seq != a.Seq {
		return wire.Errorf(wire.KindInternal, "", "owner answered batch %d out of turn", a.Seq)
	}
	if a.Err != nil {
		return a.Err
	}
	s.inflight[0].finish(s.part, a)
	s.inflight = s.inflight[1:]
	return nil
}
