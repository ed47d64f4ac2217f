package dev

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// checkPorts reports the first port of the mesh that somebody else has.
func checkPorts(base, nodes int) error {
	for i := range nodes {
		for _, try := range []struct {
			port     int
			network  string
			tcp, udp bool
		}{{base + 10*i, "HTTP", true, false}, {base + 10*i + 1, "QUIC", false, true}, {base + 10*i + 2, "gossip", true, true}} {
			if err := probe(try.port, try.tcp, try.udp); err != nil {
				if sys, ok := errors.AsType[syscall.Errno](err); ok {
					err = sys // its wrapping repeats the port
				}
				return fmt.Errorf("dev: port %d (%s of node-%d) is taken: is another mesh running? Choose other ports with --base-port (%w)", try.port, try.network, i, err)
			}
		}
	}
	return nil
}

func probe(port int, tcp, udp bool) error {
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	if tcp {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		l.Close()
	}
	if udp {
		c, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		c.Close()
	}
	return nil
}

// FreeBase finds a base port for so many nodes whose ports nobody uses now, below the ports that the kernel hands out by itself.
func FreeBase(nodes int) (int, error) {
	for range 100 {
		base := 12000 + 10*rand.IntN(1800)
		if checkPorts(base, nodes) == nil {
			return base, nil
		}
	}
	return 0, errors.New("dev: no free range of ports found")
}
