package flow

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

const (
	// maxInflight bounds the batches sent and not acknowledged; the owner remembers the outcome of at least as many.
	maxInflight = 16
	// maxEager bounds the batches in flight up to which one that is not full is sent at once: below it an event waits for nobody,
	// above it waiting fills batches, which is what throughput lives on. Four in flight cover one commit after another.
	maxEager = 4
	// sessionIdle ends a session without traffic; the owner's replicated state forgets it much later.
	sessionIdle = time.Minute
)

// session is this node's publish session to one partition: events gather in batches, batches get sequence numbers and are
// sent again, under the same numbers, to whoever owns the partition next.
//
// run owns id, seq, inflight and the connection. The rest is under mu.
type session struct {
	b      *Broker
	stream string
	part   ring.PartitionID
	group  ring.GroupID
	known  []ring.NodeID // the founding replicas: whom to ask first

	queued  atomic.Int64 // raw bytes not yet sent
	retired bool         // under Broker.mu: no new events
	users   int          // under Broker.mu: requests that are adding events

	mu        sync.Mutex
	open      *outBatch   // gathering
	queue     []*outBatch // full or asked for, in order, not yet sent
	inflight  []*outBatch // sent, not answered; changed by run alone
	connected bool        // an owner has accepted the session: waiting means waiting for credit
	lastErr   error       // why it is not connected
	stopped   error

	wake chan struct{}

	id      [16]byte // zero: the next connection opens a new session
	seq     uint64   // last sequence number given
	renewed bool     // the session has a new id: what is in flight needs new numbers
	tries   int      // connection attempts since one was accepted
}

func newSession(b *Broker, stream string, p *catalog.Partition) *session {
	return &session{b: b, stream: stream, part: p.ID, group: p.Group, known: foundersOf(p), wake: make(chan struct{}, 1)}
}

// add appends an event to the gathering batch; flush must follow.
func (s *session) add(r *batch.Record, id batch.Identity, req *request, index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != nil {
		req.results[index].Err = s.stopped
		req.complete(1)
		return
	}
	if s.open == nil {
		s.open = newOutBatch()
	}
	before := s.open.builder.RawBytes()
	err := s.open.add(r, id, req, index)
	if err == batch.ErrFull {
		s.closeOpenLocked()
		s.open, before = newOutBatch(), 0
		err = s.open.add(r, id, req, index)
	}
	if err != nil {
		req.results[index].Err = err
		req.complete(1)
		return
	}
	s.queued.Add(int64(s.open.builder.RawBytes() - before))
	if s.open.builder.RawBytes() >= batch.TargetBytes {
		s.closeOpenLocked()
	}
}

func (s *session) closeOpenLocked() {
	if s.open != nil && s.open.builder.Len() > 0 {
		s.queue = append(s.queue, s.open)
	}
	s.open = nil
}

// flush tells run that there is something to send.
func (s *session) flush() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// next takes the next batch to send: a full one, or the gathering one while few are in flight. nil: nothing to send yet.
func (s *session) next() *outBatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if len(s.queue) == 0 {
			if s.open == nil || len(s.inflight) >= maxEager {
				return nil
			}
			s.closeOpenLocked()
			continue
		}
		o := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.queued.Add(-int64(o.builder.RawBytes()))
		if !o.live() {
			o.discard()
			continue
		}
		if err := o.prepare(); err != nil {
			o.fail(err)
			o.discard()
			continue
		}
		s.inflight = append(s.inflight, o) // from here on a request cannot take its events back
		return o
	}
}

// idle reports whether there is nothing to send or to wait for.
func (s *session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open == nil && len(s.queue) == 0 && len(s.inflight) == 0
}

// abandon gives up a request at its deadline: what was not sent is certainly not stored, and is let go of.
func (s *session) abandon(req *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.inflight {
		o.give(req, unknownOutcome(s.lastErr), true)
	}
	refusal := s.refusalLocked()
	s.queue = slices.DeleteFunc(s.queue, func(o *outBatch) bool { return !s.giveLocked(o, req, refusal) })
	if s.open != nil && !s.giveLocked(s.open, req, refusal) {
		s.open = nil
	}
}

// giveLocked takes a request's events out of a batch that was not sent, and reports whether any others are left. What is kept for
// them is at most twice their size: requests that give up while others wait must not pile up in memory.
func (s *session) giveLocked(o *outBatch, req *request, refusal error) bool {
	before := int64(o.builder.RawBytes())
	o.give(req, refusal, false)
	if !o.live() {
		s.queued.Add(-before)
		o.discard()
		return false
	}
	if 2*o.lost > o.builder.RawBytes() {
		if err := o.rebuild(); err != nil {
			s.queued.Add(-before)
			o.fail(err)
			o.discard()
			return false
		}
		s.queued.Add(int64(o.builder.RawBytes()) - before)
	}
	return true
}

// refusalLocked says why an event could not even be sent.
func (s *session) refusalLocked() error {
	if s.stopped != nil {
		return s.stopped
	}
	if s.connected {
		return &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, RetryAfter: time.Second,
			Detail: "the partition's owner takes no more events for now; nothing was stored, try again later"}
	}
	if e := wire.AsError(s.lastErr); s.lastErr != nil && e.Code != "" && (e.Kind == wire.KindUnavailable || e.Kind == wire.KindNoCredit) {
		return s.lastErr
	}
	if wire.KindOf(s.lastErr) == wire.KindOutcomeUnknown { // the outcome of what was sent
		return noAnswer(s.group, s.lastErr)
	}
	return noOwner(s.group, s.lastErr)
}

// stop ends the session: nothing more is taken, everything waiting fails.
func (s *session) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != nil {
		return
	}
	s.stopped = err
	for _, o := range s.inflight {
		o.fail(unknownOutcome(err))
	}
	s.closeOpenLocked()
	for _, o := range s.queue {
		o.fail(err)
	}
	s.queue = nil
	s.queued.Store(0)
	s.flush()
}

// setState notes whether an owner takes this session's events, for the error of those that wait.
func (s *session) setState(connected bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected, s.lastErr = connected, err
}
