package impair

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenTUN makes a network device of that name, at most 15 bytes, in the network namespace of the process, and returns its other end: each
// Read gives one IP packet that was sent by the device, each Write is one that it receives. It needs root. The device may be moved to
// another namespace, and is gone when its other end is closed (Linux, Documentation/networking/tuntap.rst).
func OpenTUN(name string) (*os.File, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("a network device named %q: %w", name, err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make the network device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
