package quicnet

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type heard struct {
	mu   sync.Mutex
	errs []error
}

func (h *heard) refused(_ string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *heard) has(target error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, err := range h.errs {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func listen(t testing.TB, addr string, c *transport.Credentials, h *heard, change func(*transport.ListenOptions)) *endpoint {
	t.Helper()
	o := transport.ListenOptions{Credentials: c, HandshakeTimeout: 2 * time.Second, IdleTimeout: 10 * time.Second, MaxHandshakes: 64, Refused: h.refused}
	if change != nil {
		change(&o)
	}
	e, err := New(addr).Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e.(*endpoint)
}

func secret(t testing.TB, s string) *transport.Credentials {
	t.Helper()
	c, err := transport.CredentialsFromSecret(ring.NewNodeID(), []byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timeout: " + what)
		}
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// rawDial dials e as a stranger with its own TLS configuration and waits until the connection works or fails.
func rawDial(t *testing.T, e *endpoint, conf *tls.Config) error {
	t.Helper()
	sock, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	tr := &quic.Transport{Conn: sock}
	defer sock.Close()
	defer tr.Close()
	c, err := tr.Dial(within(t, 5*time.Second), e.sock.LocalAddr(), conf, &quic.Config{})
	if err != nil {
		return err
	}
	select {
	case <-c.Context().Done():
		return context.Cause(c.Context())
	case <-time.After(300 * time.Millisecond):
		return nil
	}
}

func TestStrangersFailInTheHandshake(t *testing.T) {
	h := &heard{}
	e := listen(t, "127.0.0.1:0", secret(t, "s"), h, nil)
	ours := secret(t, "s").ClientTLS()
	for name, change := range map[string]func(*tls.Config){
		"no certificate": func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
		},
		"foreign certificate": func(c *tls.Config) {
			c.GetClientCertificate = secret(t, "x").ClientTLS().GetClientCertificate
		},
		"wrong ALPN": func(c *tls.Config) { c.NextProtos = []string{"h3"} },
		"no ALPN":    func(c *tls.Config) { c.NextProtos = nil },
	} {
		conf := ours.Clone()
		change(conf)
		if err := rawDial(t, e, conf); err == nil {
			t.Errorf("%s: was let in", name)
		}
	}
	if err := rawDial(t, e, ours); err != nil {
		t.Errorf("one of us was refused: %v", err)
	}
	for name, want := range map[string]error{"no certificate": transport.ErrCertificate, "foreign": transport.ErrOtherSecret, "ALPN": transport.ErrNotSkein} {
		until(t, name+" is reported", func() bool { return h.has(want) })
	}
}

func TestBothSidesLearnOfAnotherSecret(t *testing.T) {
	h := &heard{}
	a, c := listen(t, "127.0.0.1:0", secret(t, "one"), &heard{}, nil), listen(t, "127.0.0.1:0", secret(t, "two"), h, nil)
	if _, err := a.Dial(within(t, 5*time.Second), c.Addr()); !errors.Is(err, transport.ErrOtherSecret) {
		t.Fatalf("dialer: %v", err)
	}
	until(t, "acceptor learns", func() bool { return h.has(transport.ErrOtherSecret) })
}

func TestHalfHandshakesAreBounded(t *testing.T) {
	h := &heard{}
	e := listen(t, "127.0.0.1:0", secret(t, "s"), h, func(o *transport.ListenOptions) { o.MaxHandshakes = 4 })
	sock, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	// First packets of many handshakes, recorded from a real client that never gets an answer.
	for range 40 {
		forwardInitial(t, sock, e.sock.LocalAddr().(*net.UDPAddr))
	}
	until(t, "some are under way", func() bool { return e.pending.Load() > 0 })
	if n := e.pending.Load(); n > 4 {
		t.Fatalf("%d handshakes are under way", n)
	}
	until(t, "they time out", func() bool { return e.pending.Load() == 0 })
	c, err := listen(t, "127.0.0.1:0", secret(t, "s"), &heard{}, nil).Dial(within(t, 5*time.Second), e.Addr())
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	c.Close(0, "")
}

// forwardInitial sends to a client's first packets out of sock, and never its later ones.
func forwardInitial(t *testing.T, sock *net.UDPConn, to *net.UDPAddr) {
	t.Helper()
	trap, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = quic.DialAddr(ctx, trap.LocalAddr().String(), secret(t, "s").ClientTLS(), &quic.Config{})
	}()
	buf := make([]byte, 2048)
	for range 2 { // the client hello may span two packets
		_ = trap.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		n, _, err := trap.ReadFromUDP(buf)
		if err != nil {
			break
		}
		_, _ = sock.WriteToUDP(buf[:n], to)
	}
	cancel()
	<-done
}

func TestPeerLearnsOfAKilledAndRestartedNodeWithItsNextPacket(t *testing.T) {
	mine := secret(t, "s")
	a, c := listen(t, "127.0.0.1:0", secret(t, "s"), &heard{}, nil), listen(t, "127.0.0.1:0", mine, &heard{}, nil)
	accepted := make(chan transport.Conn, 1)
	go func() {
		peer, _ := c.Accept(context.Background())
		accepted <- peer
	}()
	conn, err := a.Dial(within(t, 5*time.Second), c.Addr())
	if err != nil {
		t.Fatal(err)
	}
	// What the accepting side says on a stream comes behind its connection ids and reset tokens.
	hello, err := (<-accepted).OpenStream(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hello.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	heardIt, err := conn.AcceptStream(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := heardIt.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = c.sock.Close() // as kill -9: no word to the peer
	addr := c.Addr()
	listen(t, addr, mine, &heard{}, nil)
	s, err := conn.OpenStream(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := s.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-conn.Context().Done():
	case <-time.After(5 * time.Second):
		t.Fatal("not noticed")
	}
	if d := time.Since(begin); d > time.Second {
		t.Fatalf("noticed after %v: %v", d, conn.Err())
	}
	if !strings.Contains(conn.Err().Error(), "stateless reset") {
		t.Fatalf("reason: %v", conn.Err())
	}
}
