package quicnet

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// limits are a host's: how much each option may set. The kernel cuts what is asked of the plain options down to that, and refuses the forced
// ones without privilege.
type limits struct {
	most       map[int]int
	privileged bool
}

func (l limits) sockopts(forced *[]int) sockopts {
	size := map[int]int{unix.SO_RCVBUF: 208 << 10, unix.SO_SNDBUF: 208 << 10}
	plain := map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF}
	return sockopts{
		get: func(_, level, opt int) (int, error) {
			if level != unix.SOL_SOCKET {
				return 0, unix.ENOPROTOOPT
			}
			return size[opt], nil
		},
		set: func(_, level, opt, value int) error {
			if level != unix.SOL_SOCKET {
				return unix.ENOPROTOOPT
			}
			of, force := plain[opt]
			if !force {
				size[opt] = max(size[opt], min(value, l.most[opt]))
				return nil
			}
			*forced = append(*forced, opt)
			if !l.privileged {
				return unix.EPERM
			}
			size[of] = value
			return nil
		},
	}
}

func TestSmallBuffersAreToldOfWithWhatToSet(t *testing.T) {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "") // to be as before afterwards
	const small = 416 << 10
	both := func(rcv, snd int) map[int]int { return map[int]int{unix.SO_RCVBUF: rcv, unix.SO_SNDBUF: snd} }
	for name, tc := range map[string]struct {
		host     limits
		forced   []int
		rcv, snd int // as told of; 0: nothing is
	}{
		"large limits":             {host: limits{most: both(64<<20, 64<<20)}},
		"small limits, privileged": {host: limits{most: both(small, small), privileged: true}, forced: []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE}},
		"small limits":             {host: limits{most: both(small, small)}, forced: []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE}, rcv: small, snd: small},
		"a small limit of receiving": {
			host: limits{most: both(small, 64<<20)}, forced: []int{unix.SO_RCVBUFFORCE}, rcv: small, snd: bufferSize},
		"a small limit of sending": {
			host: limits{most: both(64<<20, small)}, forced: []int{unix.SO_SNDBUFFORCE}, rcv: bufferSize, snd: small},
	} {
		t.Run(name, func(t *testing.T) {
			sock, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer sock.Close()
			var lines []string
			var forced []int
			tc.host.sockopts(&forced).raiseBuffers(sock, func(msg string, attrs ...any) { lines = append(lines, msg+fmt.Sprint(attrs)) })
			if !slices.Equal(forced, tc.forced) {
				t.Errorf("forced %v, want %v", forced, tc.forced)
			}
			var want []string
			if tc.rcv > 0 {
				want = []string{fmt.Sprintf("UDP buffers are smaller than wanted; large bursts between nodes may be slowed by losses"+
					"[receive_bytes %d send_bytes %d wanted_bytes %d fix sysctl -w net.core.rmem_max=7500000 net.core.wmem_max=7500000]", tc.rcv, tc.snd, bufferSize)}
			}
			if !slices.Equal(lines, want) {
				t.Errorf("told %q, want %q", lines, want)
			}
			tc.host.sockopts(&forced).raiseBuffers(sock, nil) // nobody wants to hear of it
		})
	}
}
