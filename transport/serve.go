package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// inbound is one accepted connection. It serves what the peer sends.
type inbound struct {
	p    *Peers
	conn Conn
	ctl  Conduit
	peer hello // guarded by Peers.mu: the mesh id may become known later
	from ring.NodeID
	// budget bounds request bodies in memory.
	budget *semaphore.Weighted
}

type inboundKey struct {
	node  ring.NodeID
	class wire.Class
}

// accept takes incoming connections until ctx ends, or with an error until the endpoint fails.
func (p *Peers) accept(ctx context.Context) error {
	slots := make(chan struct{}, p.cfg.MaxHandshakes)
	for {
		conn, err := p.ep.Accept(ctx)
		switch {
		case ctx.Err() != nil && err != nil:
			return nil
		case err != nil:
			return fmt.Errorf("transport: accept connections: %w", err)
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close(CloseBusy, "too many handshakes at once")
			p.m.handshake.WithLabelValues("busy").Inc()
			continue
		}
		started := p.spawn(func() {
			in := p.welcome(ctx, conn)
			<-slots
			if in != nil {
				in.run()
			}
		})
		if !started {
			conn.Close(CloseNormal, "closing")
			return nil
		}
	}
}

// welcome answers a hello; nil when it was refused.
func (p *Peers) welcome(ctx context.Context, conn Conn) *inbound {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close(CloseProtocol, "no hello in time") })
	defer stop()
	ctl, err := conn.AcceptStream(ctx)
	if err != nil {
		// Gone, or silent: when the time is up, stop may come before what closes the connection has begun.
		conn.Close(CloseProtocol, "no hello in time")
		return nil
	}
	h, err := readHello(ctl)
	if err != nil {
		conn.Close(CloseProtocol, "no valid hello")
		p.refused(conn.RemoteAddr(), err)
		return nil
	}
	self := p.self()
	r := self.check(h, conn.Peer())
	if r == nil {
		r = p.remember(ctx, h)
	}
	if r != nil {
		conn.Close(CloseRefused, r.closeReason())
		p.refused(conn.RemoteAddr(), r)
		return nil
	}
	in := &inbound{p: p, conn: conn, ctl: ctl, peer: h, from: h.Node, budget: semaphore.NewWeighted(p.cfg.InboundBytes)}
	b, err := wire.Marshal(self.hello(ring.NodeID{}, h.Class))
	if err == nil {
		_, err = writeFrame(ctl, wire.Header{Type: wire.FrameHello}, b)
	}
	if err != nil || !stop() {
		conn.Close(CloseProtocol, "the hello failed")
		return nil
	}
	p.arrived(in)
	return in
}

// run serves the connection until it ends and every handler has returned.
func (in *inbound) run() {
	defer in.p.departed(in)
	ctx := in.conn.Context()
	in.p.spawn(in.session)
	for {
		c, err := in.conn.AcceptStream(ctx)
		if err != nil {
			return
		}
		if !in.p.spawn(func() { in.stream(ctx, c) }) {
			in.conn.Close(CloseNormal, "closing")
			return
		}
	}
}

// session answers pings and takes later hellos.
func (in *inbound) session() {
	br := bufio.NewReaderSize(in.ctl, 512)
	for {
		h, err := wire.ReadHeader(br)
		if err != nil {
			break
		}
		if h.Type == wire.FramePing && h.Length == 0 {
			_ = in.ctl.SetWriteDeadline(time.Now().Add(in.p.cfg.PingTimeout))
			if _, err = writeFrame(in.ctl, wire.Header{Type: wire.FramePong, Arg: h.Arg}, nil); err == nil {
				continue
			}
			break
		}
		if h.Type != wire.FrameHello {
			break
		}
		again, err := readHelloBody(br, h)
		if err != nil || again.Node != in.from {
			break
		}
		if r := in.p.renewed(in, again); r != nil {
			in.conn.Close(CloseRefused, r.closeReason())
			in.p.refused(in.conn.RemoteAddr(), r)
			return
		}
	}
	in.conn.Close(CloseProtocol, "the hello's stream broke")
}

// stream serves one stream by its first frame.
func (in *inbound) stream(ctx context.Context, c Conduit) {
	_ = c.SetReadDeadline(time.Now().Add(in.p.cfg.HandshakeTimeout))
	br := readers.Get().(*bufio.Reader)
	br.Reset(c)
	h, err := wire.ReadHeader(br)
	if h.Type != wire.FrameOpen { // an open stream keeps its reader
		defer func() {
			br.Reset(nil)
			readers.Put(br)
		}()
	}
	if err == nil {
		_ = c.SetReadDeadline(time.Time{})
		switch h.Type {
		case wire.FrameMessage:
			err = in.messages(h, br)
		case wire.FrameRequest:
			err = in.request(c, h, br)
		case wire.FrameOpen:
			err = in.open(ctx, c, h, br)
		default:
			err = wire.Errorf(wire.KindCorrupt, "", "frame type %d at the start of a stream", h.Type)
		}
	}
	if err == nil {
		return
	}
	c.Reset(resetCode(wire.KindOf(err)))
	if wire.KindOf(err) == wire.KindCorrupt {
		in.conn.Close(CloseProtocol, err.Error())
		in.p.refused(in.conn.RemoteAddr(), err)
	}
}

// messages hands one-way messages to their handlers, in order. One that its handler cannot read is left out: the frames around it are whole,
// and what else the two nodes have to say to each other goes on.
func (in *inbound) messages(h wire.Header, br *bufio.Reader) error {
	for {
		if h.Type != wire.FrameMessage {
			return wire.Errorf(wire.KindCorrupt, "", "frame type %d among messages", h.Type)
		}
		body, err := wire.ReadBody(br, h.Length)
		if err != nil {
			return err
		}
		in.p.message(in.from, h.Method, body)
		if h, err = wire.ReadHeader(br); err != nil {
			return err
		}
	}
}

// request reads one request, runs its handler and answers.
func (in *inbound) request(c Conduit, h wire.Header, br *bufio.Reader) error {
	ctx := c.Context() // ends when the caller gives up or its connection does
	size := min(int64(h.Length), in.p.cfg.InboundBytes)
	if err := in.budget.Acquire(ctx, size); err != nil {
		return err
	}
	defer in.budget.Release(size)
	body, err := wire.ReadBody(br, h.Length)
	if err != nil {
		return err
	}
	gauge := in.p.m.serving.WithLabelValues("request")
	gauge.Inc()
	defer gauge.Dec()
	if h.Arg > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(h.Arg)*time.Millisecond)
		defer cancel()
	}
	answer, err := in.p.handle(ctx, in.from, h.Method, body)
	head := wire.Header{Type: wire.FrameResponse, Method: h.Method}
	if err != nil {
		head.Type, answer = wire.FrameError, wire.AppendError(nil, err)
	}
	if _, err := writeFrame(c, head, answer); err != nil {
		return err
	}
	_ = c.CloseWrite() // fails when the caller has what it wants
	c.StopReading(0)
	return nil
}

// maxOpen bounds the hello of an opened stream (bytes), so that it need not wait for the budget of requests.
const maxOpen = 64 << 10

// open runs the handler of a stream that the peer opened.
func (in *inbound) open(ctx context.Context, c Conduit, h wire.Header, br *bufio.Reader) error {
	if h.Length > maxOpen {
		return wire.Errorf(wire.KindCorrupt, wire.CodeTooLarge, "a stream's hello of %d bytes", h.Length)
	}
	first, err := wire.ReadBody(br, h.Length)
	if err != nil {
		return err
	}
	s := &stream{c: c, br: br}
	f := in.p.onStream[h.Method]
	if f == nil {
		return s.Close(unknownMethod(h.Method))
	}
	gauge := in.p.m.serving.WithLabelValues("stream")
	gauge.Inc()
	defer gauge.Dec()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.Context(), func() {
		if !s.sentLocally() {
			cancel() // the peer has closed the stream
		}
	})()
	if err := f(ctx, in.from, first, s); err != nil {
		return s.Close(err)
	}
	s.finish()
	return nil
}

func unknownMethod(m wire.Method) *wire.Error {
	return wire.Errorf(wire.KindUnavailable, wire.CodeUnsupported, "method %d is not served by this node; a newer version may", m)
}

// handle runs a request's handler.
func (p *Peers) handle(ctx context.Context, from ring.NodeID, m wire.Method, body []byte) ([]byte, error) {
	f := p.onRequest[m]
	if f == nil {
		return nil, unknownMethod(m)
	}
	answer, err := f(ctx, from, body)
	if err == nil && len(answer) > wire.MaxFrame {
		err = wire.Errorf(wire.KindInternal, wire.CodeTooLarge, "answer of %d bytes is larger than %d", len(answer), wire.MaxFrame)
	}
	return answer, err
}

// refused counts and logs a handshake that failed or a peer that broke the protocol: one clear line per peer and reason
// now and then for what an operator can mend, a debug line for what heals by itself.
func (p *Peers) refused(addr string, err error) {
	reason := ""
	switch r, ok := errors.AsType[*refusal](err); {
	case ok:
		reason = r.code
	case errors.Is(err, ErrOtherSecret):
		reason = "other-secret"
	case errors.Is(err, ErrCertificate):
		reason = "certificate"
	case errors.Is(err, ErrNotSkein):
		reason = "protocol"
	case wire.KindOf(err) == wire.KindCorrupt:
		reason = "corrupt"
	default:
		p.m.handshake.WithLabelValues("lost").Inc()
		p.log.Debug("a handshake did not end", "addr", addr, "reason", err)
		return
	}
	p.m.handshake.WithLabelValues(reason).Inc()
	p.warn(addr, reason, "refused a connection from another node", err)
}

// toldOff tells about a refusal by a peer.
func (p *Peers) toldOff(id ring.NodeID, addr string, r *refusal) {
	p.m.handshake.WithLabelValues(r.code).Inc()
	p.warn(id.String(), r.code, "cannot connect to a node", r, "peer_addr", addr, "peer", id)
	if r.remote && p.cfg.OnRefused != nil {
		p.cfg.OnRefused(id, r.code, r.detail)
	}
}
