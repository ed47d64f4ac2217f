package quicnet

import (
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// bufferSize is what QUIC wants of a UDP socket in each direction (bytes): below it, bursts are lost in the kernel.
const bufferSize = 7 << 20

// silenceOnce: quic-go warns about small buffers through the standard logger, and only this variable stops it.
var silenceOnce = sync.OnceFunc(func() { _ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") })

// sockopts reads and sets the integer options of a socket.
type sockopts struct {
	get func(fd, level, opt int) (int, error)
	set func(fd, level, opt, value int) error
}

var kernel = sockopts{get: unix.GetsockoptInt, set: unix.SetsockoptInt}

// raiseBuffers asks for larger socket buffers, with privilege where there is some, and says once what to set if refused.
func raiseBuffers(c *net.UDPConn, notice func(string, ...any)) { kernel.raiseBuffers(c, notice) }

func (s sockopts) raiseBuffers(c *net.UDPConn, notice func(string, ...any)) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	var rcv, snd int
	_ = raw.Control(func(fd uintptr) {
		rcv = s.raise(int(fd), unix.SO_RCVBUF, unix.SO_RCVBUFFORCE)
		snd = s.raise(int(fd), unix.SO_SNDBUF, unix.SO_SNDBUFFORCE)
	})
	if rcv >= bufferSize && snd >= bufferSize {
		return
	}
	silenceOnce()
	if notice != nil {
		notice("UDP buffers are smaller than wanted; large bursts between nodes may be slowed by losses",
			"receive_bytes", rcv, "send_bytes", snd, "wanted_bytes", bufferSize,
			"fix", "sysctl -w net.core.rmem_max=7500000 net.core.wmem_max=7500000")
	}
}

func (s sockopts) raise(fd, opt, force int) int {
	got := func() int {
		v, err := s.get(fd, unix.SOL_SOCKET, opt)
		if err != nil {
			return 0
		}
		return v
	}
	if got() < bufferSize {
		_ = s.set(fd, unix.SOL_SOCKET, opt, bufferSize)
	}
	if got() < bufferSize {
		_ = s.set(fd, unix.SOL_SOCKET, force, bufferSize)
	}
	return got()
}
