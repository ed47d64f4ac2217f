package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// udpBuffer is asked of the kernel for both directions of the socket; less is fine.
	udpBuffer = 2 << 20
	// maxPacket is the largest UDP payload.
	maxPacket = 65_536
	// maxDial bounds a TCP connect, whatever memberlist allows: a silent address must not hold a join for long.
	maxDial = 3 * time.Second
	// maxConns bounds open gossip connections; further ones are closed at once. The peer tries again.
	maxConns = 256
)

// transport is memberlist's network over one TCP listener and one UDP socket of the same port.
//
// It is here rather than the library's own for three reasons: sockets are bound by New while goroutines start in Run and
// are waited for; connections are bounded, and all closed at shutdown so that no exchange outlives it; and two clusters
// that meet tell each other their names (see clusterConn) where the library would just hang up.
type transport struct {
	cluster  string
	tcp      *net.TCPListener
	udp      *net.UDPConn
	adv      netip.AddrPort
	onOther  func(remote net.Addr, cluster string)
	onExcess func()
	// onCompressed hears of a stream that is refused for being compressed.
	onCompressed func()
	// blocked, when set, cuts traffic with an address. For tests of partitions.
	blocked func(addr string) bool

	packets chan *memberlist.Packet
	streams chan net.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	start   sync.Once

	mu    sync.Mutex
	conns map[net.Conn]struct{}

	held atomic.Int64 // bytes that incoming streams have brought so far
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// listen binds both sockets and finds the address to advertise. It starts nothing.
func listen(bind, advertise, cluster string) (*transport, error) {
	host, port, err := splitHostPort(bind)
	if err != nil {
		return nil, fmt.Errorf("gossip.addr %q: %w", bind, err)
	}
	t := &transport{
		cluster: cluster,
		packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn),
		conns:   make(map[net.Conn]struct{}),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	tries := 1
	if port == 0 {
		tries = 10 // the kernel picks a port that is free for TCP; it may be taken for UDP
	}
	for range tries {
		if err = t.bind(host, port); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if t.adv, err = advertised(advertise, t.udp.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.closeSockets()
		return nil, err
	}
	return t, nil
}

func (t *transport) bind(host string, port int) error {
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	ta, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return fmt.Errorf("gossip.addr %s: %w", addr, err)
	}
	if t.tcp, err = net.ListenTCP("tcp", ta); err != nil {
		return bindError("tcp", addr, err)
	}
	ua := &net.UDPAddr{IP: ta.IP, Port: t.tcp.Addr().(*net.TCPAddr).Port, Zone: ta.Zone}
	if t.udp, err = net.ListenUDP("udp", ua); err != nil {
		_ = t.tcp.Close()
		return bindError("udp", ua.String(), err)
	}
	_ = t.udp.SetReadBuffer(udpBuffer) // a smaller buffer only drops more under load
	_ = t.udp.SetWriteBuffer(udpBuffer)
	return nil
}

func bindError(network, addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("gossip cannot listen on %s (%s): the port is in use; stop what uses it or set gossip.addr to another: %w",
			addr, network, err)
	}
	return fmt.Errorf("gossip cannot listen on %s (%s), see gossip.addr: %w", addr, network, err)
}

// run starts the two receivers; Shutdown ends and waits for them.
func (t *transport) run() {
	t.start.Do(func() {
		t.wg.Add(2)
		go t.accept()
		go t.receive()
	})
}

func (t *transport) accept() {
	defer t.wg.Done()
	for {
		conn, err := t.tcp.AcceptTCP()
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if !pause(t.ctx, 50*time.Millisecond) { // out of descriptors, most likely
				return
			}
			continue
		}
		if t.cut(conn.RemoteAddr().String()) {
			_ = conn.Close()
			continue
		}
		tracked, ok := t.track(conn)
		if !ok {
			continue
		}
		select {
		case t.streams <- &clusterConn{Conn: tracked, t: t, inbound: true}:
		case <-t.ctx.Done():
			_ = tracked.Close()
			return
		}
	}
}

func (t *transport) receive() {
	defer t.wg.Done()
	buf := make([]byte, maxPacket)
	for {
		n, from, err := t.udp.ReadFrom(buf)
		now := time.Now()
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if !pause(t.ctx, 50*time.Millisecond) {
				return
			}
			continue
		}
		if n == 0 || t.cut(from.String()) {
			continue
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: now}
		select {
		case t.packets <- p:
		case <-t.ctx.Done():
			return
		}
	}
}

// pause waits for d; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *transport) cut(addr string) bool { return t.blocked != nil && t.blocked(addr) }

// FinalAdvertiseAddr ignores the configured values: listen has decided.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.adv.Addr().AsSlice(), int(t.adv.Port()), nil
}

// WriteTo sends one packet.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	if t.cut(addr) {
		return time.Now(), nil // a cut network loses packets silently
	}
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// WriteToAddress sends one packet; the node's name is not needed.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// PacketCh delivers packets.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh delivers accepted connections.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout connects within the shorter of timeout and maxDial.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	if t.cut(addr) {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.EHOSTUNREACH)
	}
	d := net.Dialer{Timeout: min(timeout, maxDial)}
	conn, err := d.DialContext(t.ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	tracked, ok := t.track(conn)
	if !ok {
		return nil, fmt.Errorf("dial %s: too many gossip connections", addr)
	}
	return &clusterConn{Conn: tracked, t: t}, nil
}

// DialAddressTimeout is DialTimeout; the node's name is not needed.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// Shutdown closes everything and waits for the receivers. Idempotent.
func (t *transport) Shutdown() error {
	t.cancel()
	t.closeSockets()
	t.mu.Lock()
	conns := make([]net.Conn, 0, len(t.conns))
	for c := range t.conns {
		conns = append(conns, c)
	}
	t.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	t.wg.Wait()
	return nil
}

func (t *transport) closeSockets() {
	_ = t.tcp.Close()
	_ = t.udp.Close()
}
