package flow

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/transport/wire"
)

func newRequest(n int) *request {
	req := &request{results: make([]PublishResult, n), done: make(chan struct{})}
	req.pending.Store(int64(n))
	return req
}

func (r *request) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Whatever is given up before it is sent is refused and not in a batch; everything else is in a batch once, in order.
func TestOnlyWhatNobodyGaveUpIsSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSession(&Broker{}, "orders", &catalog.Partition{})
		var reqs []*request
		gone := map[*request]bool{}
		want := map[string]bool{}
		n := 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(reqs) > 0 && rapid.Bool().Draw(t, "give up") {
				req := reqs[rapid.IntRange(0, len(reqs)-1).Draw(t, "request")]
				s.abandon(req)
				gone[req] = true
				continue
			}
			req := newRequest(rapid.IntRange(1, 4).Draw(t, "events"))
			for i := range req.results {
				r := event("k", fmt.Sprintf("%04d%*s", n, rapid.IntRange(0, 20_000).Draw(t, "size"), ""))
				s.add(&r, batch.Identity{}, req, i)
				n++
			}
			reqs = append(reqs, req)
		}
		next := 0
		for _, req := range reqs {
			for range req.results {
				want[fmt.Sprintf("%04d", next)] = !gone[req]
				next++
			}
			if gone[req] && (!req.over() || wire.KindOf(req.results[0].Err) != wire.KindUnavailable) {
				t.Fatalf("given up: %v", req.results[0].Err)
			}
		}
		got := sentValues(t, s)
		last := ""
		for _, v := range got {
			if !want[v] || v <= last {
				t.Fatalf("%s after %s in %v", v, last, got)
			}
			last = v
			delete(want, v)
		}
		for v, w := range want {
			if w {
				t.Fatalf("%s is missing", v)
			}
		}
		if s.queued.Load() != 0 || s.open != nil || len(s.queue) != 0 {
			t.Fatalf("%d bytes queued", s.queued.Load())
		}
		for _, req := range reqs {
			if !gone[req] && (!req.over() || req.results[0].Err != nil) {
				t.Fatalf("answered: %v", req.results[0].Err)
			}
		}
	})
}

// sentValues takes all that a session would send, answers it, and gives the first four bytes of each value.
func sentValues(t *rapid.T, s *session) (out []string) {
	for {
		s.inflight = nil
		o := s.next()
		if o == nil {
			return out
		}
		s.seq++
		o.seal([16]byte{1}, s.seq)
		m, n, err := batch.ParseMeta(o.frame[2:])
		if err != nil {
			t.Fatal(err)
		}
		payload := o.frame[2+n:]
		if err := batch.VerifyPayload(&m, payload); err != nil {
			t.Fatal(err)
		}
		var rd batch.Reader
		if err := rd.Open(&m, payload, nil); err != nil {
			t.Fatal(err)
		}
		var rec batch.Record
		for rd.Next(&rec) {
			out = append(out, string(rec.Value[:4]))
		}
		o.finish(0, &publishAck{Seq: o.seq})
	}
}

func TestBytesOfThoseWhoGaveUpAreLetGo(t *testing.T) {
	s := newSession(&Broker{}, "orders", &catalog.Partition{})
	stay := newRequest(200)
	for i := range 200 {
		r := event("k", "stays")
		s.add(&r, batch.Identity{}, stay, i)
		for range 4 {
			req := newRequest(1)
			r := event("k", noise(i, 16<<10))
			s.add(&r, batch.Identity{}, req, 0)
			s.abandon(req)
		}
	}
	held := 0
	for _, o := range append(s.queue, s.open) {
		if o != nil {
			held += o.builder.RawBytes()
		}
	}
	if held > 200<<10 || s.queued.Load() != int64(held) {
		t.Errorf("%d bytes held (%d counted) for 200 small events", held, s.queued.Load())
	}
}

func inFlight(s *session, n int) []*request {
	var reqs []*request
	for range n {
		req := newRequest(1)
		r := event("k", "v")
		s.add(&r, batch.Identity{}, req, 0)
		s.mu.Lock()
		s.closeOpenLocked()
		s.mu.Unlock()
		o := s.next()
		s.seq++
		o.seal(s.id, s.seq)
		o.sent = true
		reqs = append(reqs, req)
	}
	return reqs
}

func TestSettle(t *testing.T) {
	lost := &wire.Error{Kind: wire.KindOutcomeUnknown}
	full := &refusal{1, &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeDiskFull}}
	fenced := &refusal{1, &wire.Error{Kind: wire.KindFenced}}
	cases := []struct {
		name   string
		errs   []error
		kept   int
		result wire.Kind // of those not kept
		renew  bool
	}{
		{"a lost connection says nothing", []error{lost}, 2, 0, false},
		{"an error that is no answer says nothing", []error{full.err}, 2, 0, false},
		{"a refusal is certain", []error{full}, 0, wire.KindUnavailable, true},
		{"a refusal after a lost connection is not", []error{lost, full}, 0, wire.KindOutcomeUnknown, true},
		{"a session that is over keeps its batches", []error{fenced}, 2, 0, true},
		{"unless an earlier owner may have them", []error{lost, fenced}, 0, wire.KindOutcomeUnknown, true},
		{"a broken protocol is not repeated", []error{&wire.Error{Kind: wire.KindInternal}}, 0, wire.KindOutcomeUnknown, true},
		{"nor another batch under the same number", []error{&refusal{1, &wire.Error{Kind: wire.KindConflict}}}, 0, wire.KindOutcomeUnknown, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newSession(&Broker{}, "orders", &catalog.Partition{})
			s.id = [16]byte{1}
			reqs := inFlight(s, 2)
			for _, err := range c.errs {
				s.settle(err)
			}
			if len(s.inflight) != c.kept || s.renewed != c.renew {
				t.Errorf("%d kept, renewed %v", len(s.inflight), s.renewed)
			}
			for _, req := range reqs {
				if c.kept == 0 && (!req.over() || wire.KindOf(req.results[0].Err) != c.result) {
					t.Errorf("result %v", req.results[0].Err)
				}
			}
		})
	}
}

func TestBatchesThatNobodyWaitsForEndWithTheirConnection(t *testing.T) {
	s := newSession(&Broker{}, "orders", &catalog.Partition{})
	s.id = [16]byte{1}
	for _, req := range inFlight(s, 3) {
		s.abandon(req)
		if wire.KindOf(req.results[0].Err) != wire.KindOutcomeUnknown {
			t.Errorf("got %v", req.results[0].Err)
		}
	}
	s.settle(&wire.Error{Kind: wire.KindNotOwner})
	if len(s.inflight) != 0 || s.id != [16]byte{} {
		t.Errorf("%d batches still in flight", len(s.inflight))
	}
}

// It is left when another owner is known, which may be just when a send that had blocked goes through.
func TestBatchesOfAConnectionThatIsLeftAreKept(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		for range 20 { // what ends the connection is seen in any order
			st, _ := scripted(t)
			s := newSession(m.nodes[0].broker, "orders", &catalog.Partition{})
			s.id = [16]byte{1}
			inFlight(s, 2)
			ctx, leave := context.WithCancel(t.Context())
			leave()
			p := pump{s: s, st: st, credit: 1, leave: leave, acks: make(chan *publishAck, 2), failed: make(chan error, 1)}
			s.settle(p.run(ctx))
			if len(s.inflight) != 2 || s.renewed {
				t.Fatalf("%d batches are kept", len(s.inflight))
			}
		}
	})
}

func TestEventsThatWereNotSentAreNotUnknown(t *testing.T) {
	s := newSession(&Broker{}, "orders", &catalog.Partition{})
	rec, req := event("k", "v"), newRequest(1)
	s.add(&rec, batch.Identity{}, req, 0)
	s.setState(false, errGone)
	s.abandon(req)
	if err := req.results[0].Err; wire.CodeOf(err) != wire.CodeNoQuorum {
		t.Errorf("got %v", err)
	}
}

func TestForgottenOutcomeEndsItsBatchAlone(t *testing.T) {
	s := newSession(&Broker{}, "orders", &catalog.Partition{})
	s.id = [16]byte{1}
	reqs := inFlight(s, 2)
	p := pump{s: s}
	if err := p.handle(&publishAck{Seq: 1, Err: &wire.Error{Kind: wire.KindOutcomeUnknown}}); err != nil {
		t.Fatal(err)
	}
	if !reqs[0].over() || wire.KindOf(reqs[0].results[0].Err) != wire.KindOutcomeUnknown || reqs[1].over() || len(s.inflight) != 1 {
		t.Errorf("first %v, %d in flight", reqs[0].results[0].Err, len(s.inflight))
	}
	if err := p.handle(&publishAck{Seq: 2, Base: 7}); err != nil || reqs[1].results[0].Offset != 7 {
		t.Errorf("%v, %+v", err, reqs[1].results[0])
	}
	if err := p.handle(&publishAck{Seq: 9}); wire.KindOf(err) != wire.KindInternal {
		t.Errorf("answer out of turn: %v", err)
	}
}

// scripted is a wire.Stream whose other end is a test.
func scripted(t *testing.T) (st, far *pipe) {
	st, far = newPipe()
	t.Cleanup(func() { _ = far.Close(nil) })
	return st, far
}

func TestOwnerThatFloodsWithAnswersIsLeft(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		st, far := scripted(t)
		s := newSession(m.nodes[0].broker, "orders", &catalog.Partition{})
		p := pump{s: s, st: st, credit: 1, leave: func() {}, acks: make(chan *publishAck, 2), failed: make(chan error, 1)}
		go func() {
			a := publishAck{Seq: 9}
			frame, _ := a.encode()
			for far.Send(t.Context(), frame) == nil { // until the stream is closed
			}
		}()
		if err := p.run(t.Context()); wire.KindOf(err) != wire.KindInternal {
			t.Errorf("got %v", err)
		}
	})
}

func TestOwnerThatGrantsNonsenseIsLeft(t *testing.T) {
	s := newSession(&Broker{}, "orders", &catalog.Partition{})
	for _, n := range []int64{-1, 1 << 62} {
		p := pump{s: s}
		if err := p.handle(&publishAck{Credit: n}); wire.KindOf(err) != wire.KindInternal {
			t.Errorf("credit %d: %v", n, err)
		}
	}
}
