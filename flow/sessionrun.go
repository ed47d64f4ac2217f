package flow

import (
	"context"
	crand "crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// run connects to the owner while there is something to send, until the session is idle, stopped, or the broker closes.
func (s *session) run(life context.Context) {
	defer s.retire()
	for {
		if s.idle() && !s.waitForWork(life) || s.ended(life) {
			return
		}
		if s.idle() {
			continue
		}
		hinted := false
		err := s.attempt(life, &hinted)
		if err == nil {
			continue
		}
		s.b.log.Debug("publish session lost its owner", "stream", s.stream, "partition", s.part, "tries", s.tries, "err", err)
		if s.tries%8 == 3 {
			s.b.catalog.recheck(s.stream, s.group)
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
	before, ok := s.b.owners.guess(s.group)
	owner := before
	if !ok || s.tries%3 == 2 {
		owner, ok = s.b.anyOf(s.known, s.tries)
	}
	s.tries++
	if !ok {
		return noOwner(s.group, nil)
	}
	err := s.connect(life, owner, before)
	_, *hinted = s.b.judge(s.group, owner, err, true)
	return err
}

// backoff grows while no owner is found; jittered, because many sessions lose one owner at once.
func (s *session) backoff() time.Duration {
	return s.b.jittered(min(retryFirst<<min(s.tries, 8), retryCap))
}

func (s *session) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped != nil
}

func (s *session) ended(life context.Context) bool {
	if s.isStopped() {
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
	// Broker.session checks retired and counts users under the same lock, so no event slips in between.
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.users > 0 || !s.idle() {
		return true
	}
	s.retireLocked()
	return false
}

// retireLocked takes the session out of the table, under Broker.mu: the next event opens another one.
func (s *session) retireLocked() {
	s.retired = true
	if s.b.sessions[s.group] == s {
		delete(s.b.sessions, s.group)
	}
}

func (s *session) retire() {
	s.b.mu.Lock()
	s.retireLocked()
	s.b.mu.Unlock()
	s.stop(errClosing) // an event that came between the last look and retirement is refused, not lost
}

// refusal is an owner's answer to a batch that it did not store. Nothing that came behind the batch was stored either: its
// sequence number is missing. An error that is no refusal says nothing about what was sent.
type refusal struct {
	seq uint64 // of the batch; on the owner
	err *wire.Error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// settle decides what becomes of the batches in flight after a connection ended with err.
//
// Lost ownership or a lost connection: they stay, and go to the next owner under the same numbers. A refusal: what this
// connection sent for the first time is certainly not stored; what an earlier owner may have taken is unknown.
func (s *session) settle(err error) {
	r, refused := errors.AsType[*refusal](err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case refused && r.err.Kind == wire.KindFenced: // the session is over, the batches are fine
		s.inflight = slices.DeleteFunc(s.inflight, func(o *outBatch) bool {
			if o.unsure {
				o.fail(unknownOutcome(r.err))
			}
			return o.unsure
		})
		s.renewLocked()
	case refused && refusesBatch(r.err):
		for _, o := range s.inflight {
			if o.unsure {
				o.fail(unknownOutcome(r.err))
			} else {
				o.fail(r.err)
			}
		}
		s.inflight = nil
		s.renewLocked()
	case refused || wire.KindOf(err) == wire.KindInternal && len(s.inflight) > 0: // a bug somewhere: repeating it would not end
		for _, o := range s.inflight {
			o.fail(unknownOutcome(err))
		}
		s.inflight = nil
		s.renewLocked()
	default:
		wanted := false
		for _, o := range s.inflight {
			o.unsure, o.sent = o.unsure || o.sent, false
			wanted = wanted || o.wanted()
		}
		if !wanted && len(s.inflight) > 0 { // nobody waits for any of them: do not store events long after their time
			s.inflight = nil
			s.renewLocked()
		}
	}
}

// refusesBatch: the owner did not take the batch, and would not take it again for now.
func refusesBatch(e *wire.Error) bool {
	switch e.Kind {
	case wire.KindInvalid, wire.KindCorrupt:
		return true
	case wire.KindUnavailable:
		return e.Code == wire.CodeDiskFull || e.Code == wire.CodeTooFewCopies
	}
	return false
}

// renewLocked forgets the session's name; the next connection opens a new one, and restamps what is kept.
func (s *session) renewLocked() {
	s.id, s.seq, s.renewed = [16]byte{}, 0, true
	for _, o := range s.inflight {
		o.sent = false
	}
}

// openPatience bounds the opening of a session. It takes a commit, which on a slow disk takes seconds; that the owner died is noticed
// by its silence, and that it was replaced by the watch, long before.
const openPatience = 15 * time.Second

// connect opens the session at an owner, sends again what is in flight, and goes on until the connection ends. The error of
// a session that has nothing more to do is nil. before is who was believed to be the owner.
func (s *session) connect(life context.Context, owner, before ring.NodeID) error {
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	patience := time.AfterFunc(openPatience, cancel)
	defer patience.Stop()
	watch := s.b.watchOwner(s.group, owner, before, cancel)
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
	p := pump{s: s, st: st, owner: owner, leave: cancel, credit: opened.Credit, acks: make(chan *publishAck, 2*maxInflight+4), failed: make(chan error, 1)}
	return p.run(ctx)
}
