package gossip

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// trackedConn leaves the set of open connections when it is closed.
type trackedConn struct {
	net.Conn
	t *transport
}

func (t *transport) track(c net.Conn) (*trackedConn, bool) {
	tc := &trackedConn{Conn: c, t: t}
	t.mu.Lock()
	full := len(t.conns) >= maxConns
	if !full {
		t.conns[tc] = struct{}{}
	}
	t.mu.Unlock()
	if full || t.ctx.Err() != nil {
		_ = tc.Close()
		if full && t.onExcess != nil {
			t.onExcess()
		}
		return nil, false
	}
	return tc, true
}

func (c *trackedConn) Close() error {
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
	return c.Conn.Close()
}

// clusterConn watches the label that leads a stream. memberlist puts the dialer's cluster there, and hangs up without a
// word when it is another one; this connection then answers with its own label, so that the dialer learns it as well.
// memberlist's own answers never begin with the byte that marks a label.
type clusterConn struct {
	net.Conn
	t       *transport
	inbound bool
	seen    []byte // the first bytes, until the label and the kind behind it are known
	decided bool
	judged  bool // the label was
	refused bool
	packed  bool  // the stream is compressed
	held    int64 // bytes read, of an incoming stream
}

// maxHeld bounds what all incoming streams together have brought and memberlist may still hold: it collects an encrypted exchange whole, up to
// 20 MiB, before it can tell a member from a stranger. A full exchange of the largest mesh is some 4 MiB.
const maxHeld = 32 << 20

var errHeld = errors.New("incoming gossip streams hold too many bytes")

// hold counts bytes of an incoming stream in. memberlist reads and closes a stream in one goroutine, and so Close counts them out again.
func (c *clusterConn) hold(n int) error {
	if !c.inbound {
		return nil
	}
	c.held += int64(n)
	if c.t.held.Add(int64(n)) <= maxHeld {
		return nil
	}
	if c.t.onExcess != nil {
		c.t.onExcess()
	}
	return fmt.Errorf("%s: %w", c.RemoteAddr(), errHeld)
}

// labelMark is the first byte of a label header: mark, length, label.
const labelMark = 244

// compressed is the kind of a stream that memberlist would unpack first. No node sends one (see libConfig), and 40 KB become 40 MiB at once,
// on every connection. In an encrypted stream it does not show: there only who holds the secret can send it.
const compressed = 9

var errCompressed = errors.New("compressed gossip is not taken")

func (c *clusterConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err := c.hold(n); err != nil {
		return 0, err
	}
	if c.decided || n == 0 {
		return n, err
	}
	c.seen = append(c.seen, p[:min(n, 2+255+1-len(c.seen))]...)
	c.decide()
	if c.refused && !c.inbound {
		return 0, fmt.Errorf("%s %w", c.RemoteAddr(), errOtherCluster)
	}
	if c.packed {
		if c.t.onCompressed != nil {
			c.t.onCompressed()
		}
		return 0, fmt.Errorf("%s: %w", c.RemoteAddr(), errCompressed)
	}
	return n, err
}

func (c *clusterConn) decide() {
	behind := 0 // the label
	if c.seen[0] == labelMark {
		if len(c.seen) < 2 || len(c.seen) < 2+int(c.seen[1]) {
			return
		}
		behind = 2 + int(c.seen[1])
		c.judge(string(c.seen[2:behind]))
	}
	if !c.refused && len(c.seen) == behind {
		return
	}
	c.packed = !c.refused && c.seen[behind] == compressed
	c.decided, c.seen = true, nil
}

// judge looks at the label, once.
func (c *clusterConn) judge(label string) {
	if c.judged {
		return
	}
	c.judged = true
	if label == c.t.cluster || !isName(label) {
		return // noise is memberlist's to refuse, and no cluster to tell an operator of
	}
	c.refused = true
	if c.t.onOther != nil {
		c.t.onOther(c.RemoteAddr(), label)
	}
}

func isName(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// Close first tells a refused dialer which cluster this is. It reads what the dialer still sends, for closing with unread
// bytes would reset the connection and lose the answer; memberlist closes each connection in a goroutine of its own.
func (c *clusterConn) Close() error {
	c.t.held.Add(-c.held)
	c.held = 0
	if c.refused && c.inbound {
		c.refused = false
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write(append([]byte{labelMark, byte(len(c.t.cluster))}, c.t.cluster...)); err == nil {
			if tcp, ok := c.Conn.(*trackedConn).Conn.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
				_, _ = io.CopyN(io.Discard, tcp, 1<<20)
			}
		}
	}
	return c.Conn.Close()
}
