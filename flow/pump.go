package flow

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// pump is one connection of a session.
type pump struct {
	s      *session
	st     wire.Stream
	owner  ring.NodeID
	leave  func() // ends the connection
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
				return p.bye()
			}
			idle.Reset(sessionIdle)
		case <-life.Done():
			return p.drain(wire.AsError(context.Cause(life))) // it was left for another owner, or the node stops
		}
	}
}

// bye ends an idle session: the owner forgets it, and the next batch opens another.
func (p *pump) bye() error {
	p.s.mu.Lock()
	p.s.renewLocked()
	p.s.mu.Unlock()
	return p.st.CloseSend()
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
		select {
		case p.acks <- a:
		case <-ctx.Done(): // an owner that answers more than it was asked is not listened to for ever
			return
		}
	}
}

// resend gives the batches in flight to a new owner, under their numbers; those kept by a renewed session get new numbers first,
// all of them: a batch must not change its number once any of them is on its way.
func (p *pump) resend(ctx context.Context) error {
	if p.s.renewed {
		for _, o := range p.s.inflight {
			p.s.seq++
			if err := o.restamp(p.s.id, p.s.seq); err != nil {
				return wire.Errorf(wire.KindInternal, "", "batch cannot be numbered anew: %v", err)
			}
		}
		p.s.renewed = false
	}
	for _, o := range p.s.inflight {
		if err := p.transmit(ctx, o); err != nil {
			return err
		}
	}
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
		p.s.seq++
		o.seal(p.s.id, p.s.seq)
		if err := p.transmit(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// transmit sends one batch. To an owner that is dead it blocks once enough is under way: it ends when another is known.
func (p *pump) transmit(ctx context.Context, o *outBatch) error {
	o.sent = true
	p.credit -= int64(len(o.frame))
	before, _ := p.s.b.owners.guess(p.s.group)
	watch := p.s.b.watchOwner(p.s.group, p.owner, before, p.leave)
	defer watch.stop()
	return p.st.Send(ctx, o.frame)
}

// handle takes one answer. Answers come in order.
func (p *pump) handle(a *publishAck) error {
	s := p.s
	if a.Credit < 0 || a.Credit > maxCredit {
		return wire.Errorf(wire.KindInternal, "", "owner granted %d bytes of credit", a.Credit)
	}
	p.credit = min(p.credit+a.Credit, maxCredit)
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
	first := s.inflight[0]
	switch {
	case a.Err == nil:
		first.finish(s.part, a)
	case a.Err.Kind == wire.KindOutcomeUnknown: // applied, and what came of it forgotten: asking again does not help
		first.fail(unknownOutcome(a.Err))
	default:
		return &refusal{a.Seq, a.Err}
	}
	s.inflight[0] = nil
	s.inflight = s.inflight[1:]
	return nil
}
