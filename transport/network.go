package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// Network makes a node's endpoint. Safe for concurrent use.
type Network interface {
	Listen(o ListenOptions) (Endpoint, error)
}

// ListenOptions is what an endpoint needs to authenticate and bound its peers.
type ListenOptions struct {
	Credentials *Credentials
	// HandshakeTimeout bounds each handshake; IdleTimeout is how long a silent connection lives.
	HandshakeTimeout time.Duration
	IdleTimeout      time.Duration
	// MaxHandshakes bounds incoming connections whose handshake has not ended; more are refused.
	MaxHandshakes int
	// Notice is told once per listen about what an operator should know; Refused about each incoming handshake that failed.
	// Both may be called from any goroutine and must not block.
	Notice  func(msg string, args ...any)
	Refused func(addr string, err error)
}

// Endpoint accepts and dials connections on one address. Safe for concurrent use. Close ends all of its connections and
// waits for what it started.
type Endpoint interface {
	Addr() string
	Accept(ctx context.Context) (Conn, error)
	// Dial returns an authenticated connection. Errors that wrap ErrOtherSecret tell that the peer is not of this mesh.
	Dial(ctx context.Context, addr string) (Conn, error)
	Close() error
}

// Conn is one authenticated connection. Safe for concurrent use.
type Conn interface {
	// Peer is the node id in the peer's certificate; zero when its own certificate names none.
	Peer() ring.NodeID
	RemoteAddr() string
	// OpenStream blocks while the peer's limit of open streams is reached. The peer sees the stream with its first byte.
	OpenStream(ctx context.Context) (Conduit, error)
	// AcceptStream returns the peer's streams in the order they were opened.
	AcceptStream(ctx context.Context) (Conduit, error)
	// Context ends with the connection; Err is then why, and nil before.
	Context() context.Context
	Err() error
	// Close tells the peer code and reason and ends every stream. Idempotent; the first call counts.
	Close(code CloseCode, reason string)
}

// Conduit is one bidirectional, flow-controlled byte stream of a connection. One goroutine may read while another writes.
type Conduit interface {
	// Read and Write return *ResetError, *CloseError or the connection's failure.
	io.Reader
	// Write blocks while the peer's window is full. It does not keep p. A short count tells that not all of p left.
	io.Writer
	// CloseWrite ends this direction cleanly: the peer reads what was written, then io.EOF.
	CloseWrite() error
	// Reset ends what is still open of both directions at once, unblocking Read and Write on both sides.
	Reset(code uint64)
	// StopReading tells the peer that nothing more will be read.
	StopReading(code uint64)
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	// Context ends when the write direction has ended: closed, reset by either side, or connection lost.
	Context() context.Context
}

// CloseCode says why a connection was closed. The numbers travel between nodes: append only.
type CloseCode uint64

const (
	CloseNormal   CloseCode = 0 // shutting down, or the peer was removed
	CloseRefused  CloseCode = 1 // the hello was refused; the reason says why
	CloseProtocol CloseCode = 2 // the peer broke the protocol
	CloseSilent   CloseCode = 3 // pings went unanswered
	CloseReplaced CloseCode = 4 // a newer connection took its place
	CloseBusy     CloseCode = 5 // too many handshakes at once
)

// CloseError is a connection closed on purpose by either side.
type CloseError struct {
	Code   CloseCode
	Reason string
	Remote bool
}

func (e *CloseError) Error() string {
	side := "here"
	if e.Remote {
		side = "by the peer"
	}
	return fmt.Sprintf("connection closed %s: %s (code %d)", side, e.Reason, e.Code)
}

// ResetError is one stream reset by either side.
type ResetError struct {
	Code   uint64
	Remote bool
}

func (e *ResetError) Error() string { return fmt.Sprintf("stream reset with code %d", e.Code) }

var (
	// ErrOtherSecret tells that the peer's certificate comes from another secret (or from none).
	ErrOtherSecret = errors.New("the peer has another secret")
	// ErrCertificate tells that the peer's certificate is of this mesh but cannot be used (expired, malformed).
	ErrCertificate = errors.New("the peer's certificate cannot be used")
	// ErrNotSkein tells that the peer speaks another protocol.
	ErrNotSkein = errors.New("the peer does not speak " + ALPN)
)

// ALPN is the protocol name in the TLS handshake.
const ALPN = "skein/1"
