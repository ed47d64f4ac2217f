package flow

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Windows of publish sessions, in bytes. The node's budget is divided over the sessions that are open; a session never has
// less than one full batch on the way, and gains nothing beyond a few.
const (
	minWindow = batch.TargetBytes
	maxWindow = 1 << 20
)

// grants divides the owner side's budget over the open sessions.
type grants struct{ open atomic.Int64 }

// window is what one session may have granted and not yet acknowledged.
func (g *grants) window(budget int64) int64 {
	return min(max(budget/(2*max(g.open.Load(), 1)), minWindow), maxWindow)
}

// served is the owner's side of one publish session's connection. The reader proposes, the group's goroutine reports outcomes,
// the writer answers.
type served struct {
	b       *Broker
	group   *replica.Group
	part    *partition.Partition
	session partition.SessionID
	st      wire.Stream

	slots chan struct{}    // bounds what is proposed and not answered
	acks  chan *publishAck // never full: bounded by slots
	gone  chan struct{}    // closed with why when the session cannot go on here
	once  sync.Once
	why   error
	stop  context.CancelFunc // ends read

	mu          sync.Mutex
	outstanding int64 // granted and not received
	processing  int64 // received and not answered
}

// HandlePublish serves a MethodPublish stream on the partition's owner.
func (b *Broker) HandlePublish(ctx context.Context, from ring.NodeID, hello []byte, st wire.Stream) error {
	var h publishHello
	if err := wire.Unmarshal(hello, &h); err != nil {
		return err
	}
	g, err := b.localOwner(h.Group)
	if err != nil {
		return err
	}
	p, ok := g.StateMachine().(*partition.Partition)
	if !ok {
		return wire.Errorf(wire.KindInvalid, "", "group %s is no partition", h.Group)
	}
	if h.New {
		entry := partition.EncodeOpenSession(nil, h.Session, from, b.cfg.Now().UnixMilli())
		if out := g.ProposeWait(ctx, entry); out.Err != nil {
			return out.Err
		}
	}
	b.granted.open.Add(1)
	defer b.granted.open.Add(-1)
	s := &served{b: b, group: g, part: p, session: h.Session, st: st, slots: make(chan struct{}, 2*maxInflight),
		acks: make(chan *publishAck, 4*maxInflight+1), gone: make(chan struct{})}
	return s.serve(ctx)
}

func (s *served) serve(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	s.stop = stop
	s.acks <- &publishAck{Credit: s.grant(0), Term: s.group.Status().Term}
	var writer sync.WaitGroup
	writer.Go(func() { s.answer(ctx) })
	err := s.read(ctx, working)
	s.settle()
	if r, ok := errors.AsType[*refusal](err); ok && !s.ended() {
		s.acks <- &publishAck{Seq: r.seq, Err: r.err}
		s.end(r)
	}
	close(s.acks) // the reader has stopped and nothing is proposed any more: nobody sends
	writer.Wait()
	switch {
	case s.ended():
		return s.farewell()
	case errors.Is(err, io.EOF):
		s.close()
		return nil
	}
	return err
}

// farewell is how the stream ends once the session has: without an error after a refusal, for the last answer says it all, and
// an error may overtake the answers before it.
func (s *served) farewell() error {
	if _, answered := errors.AsType[*refusal](s.why); answered {
		return nil
	}
	return s.why
}

// read takes batches until the stream or the ownership ends. working ends with the session.
func (s *served) read(ctx, working context.Context) error {
	for {
		frame, err := s.st.Recv(ctx)
		if err != nil {
			return err
		}
		select {
		case s.slots <- struct{}{}:
		case <-working.Done():
			return working.Err()
		}
		if err := s.take(working, frame); err != nil {
			<-s.slots
			return err
		}
	}
}

// take checks one batch and proposes it. An error means that it was not proposed; a refusal is an answer to this batch.
func (s *served) take(ctx context.Context, frame []byte) error {
	if s.ended() {
		return s.why
	}
	if len(frame) < 2 || frame[0] != frameBatch {
		return wire.Errorf(wire.KindInvalid, "", "publish frame of unknown kind")
	}
	m, n, err := batch.ParseMeta(frame[2:])
	if err != nil {
		return err
	}
	payload := frame[2+n:]
	if err := batch.VerifyPayload(&m, payload); err != nil {
		return &refusal{m.Seq, wire.AsError(err)}
	}
	if err := s.admit(ctx); err != nil {
		return &refusal{m.Seq, wire.AsError(err)}
	}
	size := int64(len(frame))
	if err := s.b.cfg.OwnerBudget.Reserve(ctx, min(size, s.b.cfg.OwnerBudget.Limit())); err != nil {
		return err
	}
	s.received(size)
	m.Session, m.Stamp = s.session, s.b.cfg.Now().UnixMilli()
	entry := partition.EncodeBatch(make([]byte, 0, partition.BatchEntrySize(&m, payload)), &m, payload)
	if err := s.propose(ctx, entry, m.Seq, size); err != nil {
		s.answered(size)
		return err
	}
	if frame[1]&flagAccept != 0 {
		s.acks <- &publishAck{Seq: m.Seq, Accepted: true}
	}
	return nil
}

// copiesGrace is how long a batch waits for replicas that are out of reach: a new owner has not heard from all of them yet.
const copiesGrace = 500 * time.Millisecond

// admit refuses what could not be stored as promised.
func (s *served) admit(ctx context.Context) error {
	if s.b.cfg.DiskFull != nil && s.b.cfg.DiskFull() {
		return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeDiskFull, RetryAfter: 10 * time.Second,
			Detail: "the owner's disk has reached its free-space reserve; free some space or shorten the retention"}
	}
	want := s.part.Spec().Limits.MinCopies
	if want <= 1 {
		return nil
	}
	for begin := time.Now(); s.reachable() < want; {
		if time.Since(begin) >= copiesGrace || sleep(ctx, copiesGrace/10) != nil {
			return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeTooFewCopies, RetryAfter: time.Second,
				Detail: "fewer replicas are reachable than the stream's min_copies asks for; nothing was stored"}
		}
	}
	return nil
}

// reachable counts the replicas that answer.
func (s *served) reachable() int {
	st := s.group.Status()
	n := 0
	for _, m := range st.Members {
		if m.ID == st.Self || st.Active[m.ID] {
			n++
		}
	}
	return n
}

// propose hands the entry to the group. It waits while the group's own bound on uncommitted bytes is reached.
func (s *served) propose(ctx context.Context, entry []byte, seq uint64, size int64) error {
	for {
		err := s.group.Propose(entry, func(out replica.Outcome) { s.outcome(seq, size, out) })
		if wire.KindOf(err) != wire.KindNoCredit {
			return err
		}
		s.b.metrics.ownerWaits.Inc()
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// outcome is called by the group's goroutine, in order; it must not block.
func (s *served) outcome(seq uint64, size int64, out replica.Outcome) {
	credit := s.answered(size)
	res, ok := out.Result.(partition.BatchResult)
	switch {
	case s.ended(): // an earlier batch failed: this one was refused with it, or goes to the next owner again
	case out.Err != nil:
		s.end(s.handover(out.Err))
	case !ok:
		s.end(wire.Errorf(wire.KindInternal, "", "partition answered %T", out.Result))
	}
	if s.ended() {
		<-s.slots
		return
	}
	s.acks <- &publishAck{slot: true, Seq: seq, Credit: credit, Base: res.Base, Stamp: res.Stamp, Copies: out.Copies, Dups: res.Dups, Err: res.Err}
	if res.Err != nil {
		s.end(&refusal{seq, res.Err})
	}
}

// handover is the error that sends a session to the next owner, keeping its batches.
func (s *served) handover(err error) error {
	e := wire.AsError(err)
	st := s.group.Status()
	out := &wire.Error{Kind: wire.KindNotOwner, Term: st.Term, Detail: "ownership was lost", Err: e}
	if st.Owner != s.b.cfg.Self {
		out.Owner = st.Owner
	}
	return out
}

func (s *served) end(err error) {
	s.once.Do(func() {
		s.why = err
		close(s.gone)
		s.stop()
	})
}

// settle waits until everything proposed has its outcome and its answer: outcomes always come, at the latest when the group closes.
func (s *served) settle() {
	for range cap(s.slots) {
		s.slots <- struct{}{}
	}
}

func (s *served) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// answer writes answers until acks is closed, and frees the slot of each batch answered. When the session ends it writes those
// that are due, then ends the stream, which wakes the reader; whatever comes later only frees its slot.
func (s *served) answer(ctx context.Context) {
	gone, over := s.gone, false
	write := func(a *publishAck) {
		if !over {
			b, err := a.encode()
			if err == nil {
				err = s.st.Send(ctx, b)
			}
			if err != nil {
				s.end(err)
				over = true
			}
		}
		if a.slot {
			<-s.slots
		}
	}
	for {
		select {
		case a, ok := <-s.acks:
			if !ok {
				return
			}
			write(a)
		case <-gone:
			for len(s.acks) > 0 {
				if a, ok := <-s.acks; ok {
					write(a)
				}
			}
			gone, over = nil, true
			s.hangUp()
		}
	}
}

// hangUp ends the stream behind the last answer.
func (s *served) hangUp() {
	err := s.farewell()
	if err == nil {
		_ = s.st.CloseSend() // it fails when the peer is gone already
	}
	_ = s.st.Close(err)
}

// close forgets the session in the replicated state; it would expire anyway.
func (s *served) close() {
	entry := partition.EncodeCloseSession(nil, s.session, s.b.cfg.Now().UnixMilli())
	if err := s.group.Propose(entry, func(replica.Outcome) {}); err != nil {
		s.b.log.Debug("publish session not closed; it expires", "err", err)
	}
}

// grant returns the credit to give on top, done bytes having been answered.
func (s *served) grant(done int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processing -= done
	more := s.b.granted.window(s.b.cfg.OwnerBudget.Limit()) - s.outstanding - s.processing
	more = max(more, 0)
	s.outstanding += more
	return more
}

func (s *served) received(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outstanding -= n
	s.processing += n
}

// answered gives the budget back and returns the credit to give.
func (s *served) answered(n int64) int64 {
	s.b.cfg.OwnerBudget.Release(min(n, s.b.cfg.OwnerBudget.Limit()))
	return s.grant(n)
}
