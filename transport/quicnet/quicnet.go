package quicnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
)

// Receive windows (bytes). A stream that nobody reads holds at most streamWindow of its connection's window, so that
// dozens of them do not stop the others. 2 MiB per stream carries 20 MB/s over 100 ms, and memory speed within a site.
const (
	streamWindowStart = 512 << 10
	streamWindow      = 2 << 20
	connWindow        = 128 << 20
)

// maxStreams bounds the streams a peer may have open on one connection: requests in flight and sessions.
const maxStreams = 8192

// Network makes QUIC endpoints bound to one UDP address.
type Network struct{ bind string }

// New returns a network whose endpoint binds the UDP address bind ("127.0.0.1:0", ":8401").
func New(bind string) *Network { return &Network{bind: bind} }

// Listen binds the socket and starts accepting.
func (n *Network) Listen(o transport.ListenOptions) (transport.Endpoint, error) {
	addr, err := net.ResolveUDPAddr("udp", n.bind)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", n.bind, err)
	}
	sock, err := net.ListenUDP("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", n.bind, err)
	}
	raiseBuffers(sock, o.Notice)
	e := &endpoint{sock: sock, o: o}
	reset := quic.StatelessResetKey(o.Credentials.ResetKey())
	e.tr = &quic.Transport{
		Conn:                sock,
		StatelessResetKey:   &reset,
		ConnectionIDLength:  8,
		ConnContext:         e.admit,
		VerifySourceAddress: func(net.Addr) bool { return e.pending.Load() > int64(o.MaxHandshakes)/2 },
	}
	e.conf = &quic.Config{
		Versions:                       []quic.Version{quic.Version1},
		HandshakeIdleTimeout:           o.HandshakeTimeout,
		MaxIdleTimeout:                 o.IdleTimeout,
		KeepAlivePeriod:                o.IdleTimeout / 3,
		InitialStreamReceiveWindow:     streamWindowStart,
		MaxStreamReceiveWindow:         streamWindow,
		InitialConnectionReceiveWindow: connWindow,
		MaxConnectionReceiveWindow:     connWindow,
		MaxIncomingStreams:             maxStreams,
		MaxIncomingUniStreams:          -1,
	}
	if e.ln, err = e.tr.Listen(o.Credentials.ServerTLS(), e.conf); err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("listen on %s: %w", n.bind, err)
	}
	return e, nil
}

type endpoint struct {
	sock    *net.UDPConn
	tr      *quic.Transport
	ln      *quic.Listener
	conf    *quic.Config
	o       transport.ListenOptions
	pending atomic.Int64 // incoming handshakes that have not ended
	close   sync.Once
}

type handshakeKey struct{}

// handshake is one incoming connection until Accept has returned it or it failed.
type handshake struct {
	ended atomic.Bool
	e     *endpoint
}

func (h *handshake) end() bool {
	if h.ended.Swap(true) {
		return false
	}
	h.e.pending.Add(-1)
	return true
}

// admit bounds the handshakes under way and watches each: quic-go itself is silent about those that fail.
func (e *endpoint) admit(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	if e.pending.Add(1) > int64(e.o.MaxHandshakes) {
		e.pending.Add(-1)
		return nil, errors.New("too many handshakes")
	}
	h := &handshake{e: e}
	addr := info.RemoteAddr.String()
	context.AfterFunc(ctx, func() {
		if h.end() && e.o.Refused != nil {
			e.o.Refused(addr, translate(context.Cause(ctx)))
		}
	})
	return context.WithValue(ctx, handshakeKey{}, h), nil
}

func (e *endpoint) Addr() string { return e.sock.LocalAddr().String() }

func (e *endpoint) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := e.ln.Accept(ctx)
	if err != nil {
		return nil, translate(err)
	}
	if h, ok := c.Context().Value(handshakeKey{}).(*handshake); ok {
		h.end()
	}
	return e.wrap(c), nil
}

func (e *endpoint) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	to, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	c, err := e.tr.Dial(ctx, to, e.o.Credentials.ClientTLS(), e.conf)
	if err != nil {
		return nil, translate(err)
	}
	return e.wrap(c), nil
}

// resolve honours ctx, unlike net.ResolveUDPAddr.
func resolve(ctx context.Context, addr string) (*net.UDPAddr, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	ip := ips[0]
	for _, other := range ips { // IPv4 first: a socket for both families reaches it, one for IPv4 alone nothing else
		if other.IP.To4() != nil {
			ip = other
			break
		}
	}
	return &net.UDPAddr{IP: ip.IP, Zone: ip.Zone, Port: p}, nil
}

func (e *endpoint) Close() error {
	var err error
	e.close.Do(func() {
		_ = e.ln.Close()
		_ = e.tr.Close()
		err = e.sock.Close()
	})
	return err
}

func (e *endpoint) wrap(c *quic.Conn) *conn {
	return &conn{c: c, peer: e.o.Credentials.PeerID(c.ConnectionState().TLS.PeerCertificates), addr: c.RemoteAddr().String()}
}

type conn struct {
	c    *quic.Conn
	peer ring.NodeID
	addr string
}

func (c *conn) Peer() ring.NodeID        { return c.peer }
func (c *conn) RemoteAddr() string       { return c.addr }
func (c *conn) Context() context.Context { return c.c.Context() }

func (c *conn) Err() error { return translate(context.Cause(c.c.Context())) }

func (c *conn) OpenStream(ctx context.Context) (transport.Conduit, error) {
	s, err := c.c.OpenStreamSync(ctx)
	if err != nil {
		return nil, translate(err)
	}
	return conduit{s}, nil
}

func (c *conn) AcceptStream(ctx context.Context) (transport.Conduit, error) {
	s, err := c.c.AcceptStream(ctx)
	if err != nil {
		return nil, translate(err)
	}
	return conduit{s}, nil
}

func (c *conn) Close(code transport.CloseCode, reason string) {
	_ = c.c.CloseWithError(quic.ApplicationErrorCode(code), reason)
}

type conduit struct{ s *quic.Stream }

func (s conduit) Read(p []byte) (int, error) {
	n, err := s.s.Read(p)
	if err != nil && err != io.EOF {
		err = translate(err)
	}
	return n, err
}

func (s conduit) Write(p []byte) (int, error) {
	n, err := s.s.Write(p)
	return n, translate(err)
}

func (s conduit) CloseWrite() error { return s.s.Close() }

func (s conduit) Reset(code uint64) {
	s.s.CancelWrite(quic.StreamErrorCode(code))
	s.s.CancelRead(quic.StreamErrorCode(code))
}

func (s conduit) StopReading(code uint64)            { s.s.CancelRead(quic.StreamErrorCode(code)) }
func (s conduit) SetReadDeadline(t time.Time) error  { return s.s.SetReadDeadline(t) }
func (s conduit) SetWriteDeadline(t time.Time) error { return s.s.SetWriteDeadline(t) }
func (s conduit) Context() context.Context           { return s.s.Context() }
