package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// link is one direction between two nodes. The loop owns it.
type link struct {
	cut   bool
	loss  float64 // of each packet
	twice float64 // how often a message arrives again
	slow  time.Duration
}

const (
	hop      = 200 * time.Microsecond // the shortest way from node to node; the longest of a sound link is five times that
	resend   = 60 * time.Millisecond
	giveUp   = 2500 * time.Millisecond // how long a connection holds without an answer
	window   = 32                      // frames of a stream that are not read yet
	handling = 10 * time.Second        // for requests whose caller named no deadline
)

var errLost = &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Detail: "the connection was lost"}

func unreachable(to ring.NodeID) error {
	return &wire.Error{Kind: wire.KindUnavailable, Detail: fmt.Sprintf("node %s cannot be reached", to)}
}

// Send implements replica.Sender. What it takes may be lost, come twice, and come late.
func (p *process) Send(to ring.NodeID, class wire.Class, body []byte) bool {
	messages, err := replica.SplitFrame(body)
	if err != nil {
		p.m.fail("node %d sends a malformed frame: %v", p.nd.i, err)
		return false
	}
	for _, b := range messages {
		p.m.w.say(fmt.Sprintf("raft %d %s %d %x", p.nd.i, to, class, b), func() { p.m.message(p, to, b) })
	}
	return true
}

func (m *mesh) message(p *process, to ring.NodeID, body []byte) {
	far := m.node(to)
	if p.dead.Load() || far == nil {
		return
	}
	l := m.link(p.nd.i, far.i)
	m.w.note("raft %d>%d %x", p.nd.i, far.i, m.digest(body))
	copies := 1
	if m.w.rng.Float64() < l.twice {
		copies++
	}
	for range copies {
		if l.cut || m.w.rng.Float64() < l.loss {
			continue
		}
		m.carry(p.nd, far, l, func() {
			q := far.proc.Load()
			if q == nil || m.link(p.nd.i, far.i).cut {
				return
			}
			m.w.note("raft %d<%d %x", far.i, p.nd.i, m.digest(body))
			if err := q.host.HandleRaft(p.nd.id, slices.Clone(body)); err != nil {
				m.fail("node %d cannot read what node %d sent: %v", far.i, p.nd.i, err)
			}
		})
	}
}

func (m *mesh) delay(l *link) time.Duration {
	d := m.w.between(hop, 5*hop)
	if m.w.rng.IntN(20) == 0 {
		d *= 20
	}
	return d + l.slow
}

// carry has something arrive, after both ends stood still.
func (m *mesh) carry(from, to *node, l *link, arrive func()) {
	m.w.after(m.delay(l)+from.stands(), func() {
		if d := to.stands(); d > 0 {
			m.w.after(d+m.w.between(0, 5*hop), arrive)
			return
		}
		arrive()
	})
}

// reliably brings something over a link whose packets are lost: as loss, and as a cut that ends soon, it shows as delay. failed is called
// where the connection does not hold so long; arrive where it came to a node that runs.
func (m *mesh) reliably(p *process, far *node, arrive func(q *process), failed func()) {
	since := m.w.now()
	var try func()
	again := func() {
		if m.w.now()-since > giveUp {
			failed()
			return
		}
		m.w.after(m.w.between(resend/2, resend), try)
	}
	try = func() {
		l := m.link(p.nd.i, far.i)
		if p.dead.Load() {
			return
		}
		if p.nd != far && (l.cut || m.w.rng.Float64() < l.loss) {
			again()
			return
		}
		m.carry(p.nd, far, l, func() {
			q := far.proc.Load()
			if q == nil || p.nd != far && m.link(p.nd.i, far.i).cut {
				again()
				return
			}
			arrive(q)
		})
	}
	try()
}

type answer struct {
	body []byte
	err  error
}

// call is a request under way.
type call struct {
	key    string
	done   chan answer // bound 1
	method wire.Method

	// The loop owns what follows.
	at    time.Duration
	ended bool
	alike []*call // the same request by the same process at the same instant
}

func (c *call) end(a answer) {
	if !c.ended {
		c.ended = true
		c.done <- a
		for _, o := range c.alike {
			o.end(a)
		}
	}
}

// Call implements flow.Peers and replica.Caller. As over QUIC the handler goes on when the caller is gone, until its deadline.
func (p *process) Call(ctx context.Context, to ring.NodeID, _ wire.Class, method wire.Method, body []byte) ([]byte, error) {
	c := &call{done: make(chan answer, 1), method: method}
	patience := handling
	if d, ok := ctx.Deadline(); ok {
		patience = time.Until(d)
	}
	body = slices.Clone(body)
	c.key = fmt.Sprintf("call %d %s %d %x", p.nd.i, to, method, body)
	p.m.w.say(c.key, func() { p.m.request(p, to, c, body, patience) })
	select {
	case a := <-c.done:
		if a.err != nil {
			return nil, wire.AsError(a.err)
		}
		return a.body, nil
	case <-ctx.Done():
		return nil, &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Err: ctx.Err()}
	}
}

func (m *mesh) request(p *process, to ring.NodeID, c *call, body []byte, patience time.Duration) {
	far := m.node(to)
	if far == nil {
		c.end(answer{err: unreachable(to)})
		return
	}
	// Of goroutines that ask the same at one instant nobody can tell which came first: they are answered as one.
	c.at = m.w.now()
	if o := p.last; o != nil && o.at == c.at && o.key == c.key {
		o.alike = append(o.alike, c)
		return
	}
	p.last = c
	m.w.note("call %d>%d %d %x", p.nd.i, far.i, c.method, m.digest(body))
	m.reliably(p, far, func(q *process) {
		m.w.note("call %d<%d %d %x", far.i, p.nd.i, c.method, m.digest(body))
		q.inbound[c] = struct{}{}
		q.serving.Go(func() {
			ctx, cancel := context.WithTimeout(q.life, max(patience, time.Millisecond))
			defer cancel()
			b, err := q.handler(c.method)(ctx, p.nd.id, slices.Clone(body))
			m.w.say("answer "+c.key, func() { m.answer(q, p, c, answer{b, err}) })
		})
	}, func() { c.end(answer{err: unreachable(to)}) })
}

func (m *mesh) answer(q, p *process, c *call, a answer) {
	if q.dead.Load() {
		return // its end told of that
	}
	delete(q.inbound, c)
	m.w.note("answer %d>%d %d %x %v", q.nd.i, p.nd.i, c.method, m.digest(a.body), a.err != nil)
	m.reliably(q, p.nd, func(r *process) {
		if r == p {
			c.end(a)
		}
	}, func() { c.end(answer{err: errLost}) })
}

// handler is what answers a method on a node.
func (p *process) handler(method wire.Method) wire.RequestHandler {
	switch method {
	case wire.MethodBirth:
		return p.host.HandleBirth
	case wire.MethodUnfit:
		return p.host.HandleUnfit
	case wire.MethodRemoval:
		return p.host.HandleRemoval
	case wire.MethodReserve:
		return p.host.HandleReserve
	case wire.MethodCatalog:
		return p.broker.HandleCatalog
	case wire.MethodPartition:
		return p.broker.HandlePartition
	case wire.MethodImport:
		return p.broker.HandleImport
	case wire.MethodFounding:
		return func(ctx context.Context, _ ring.NodeID, body []byte) ([]byte, error) {
			var b replica.Birth
			if err := wire.Unmarshal(body, &b); err != nil {
				return nil, err
			}
			return nil, p.host.Create(ctx, b)
		}
	}
	return func(context.Context, ring.NodeID, []byte) ([]byte, error) {
		return nil, wire.Errorf(wire.KindInvalid, wire.CodeUnsupported, "method %d is not simulated", method)
	}
}

func (p *process) streamHandler(method wire.Method) wire.StreamHandler {
	switch method {
	case wire.MethodPublish:
		return p.broker.HandlePublish
	case wire.MethodSubscribe:
		return p.broker.HandleSubscribe
	default:
		return p.host.HandleSnapshot
	}
}
