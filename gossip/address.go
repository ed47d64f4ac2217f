package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// advertised is the address under which others reach this node.
func advertised(want string, bound netip.AddrPort) (netip.AddrPort, error) {
	port := bound.Port()
	if want == "" {
		ip := bound.Addr().Unmap()
		if !ip.IsUnspecified() {
			return netip.AddrPortFrom(ip, port), nil
		}
		ip, err := interfaceAddr()
		return netip.AddrPortFrom(ip, port), err
	}
	host := want
	if h, p, err := splitHostPort(want); err == nil {
		host = h
		if p != 0 {
			port = uint16(p)
		}
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(ip.Unmap(), port), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(ips) == 0 {
		return netip.AddrPort{}, fmt.Errorf("gossip: advertise %q does not resolve: %w", want, err)
	}
	best := ips[0].Unmap()
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() {
			best = ip
			break
		}
	}
	return netip.AddrPortFrom(best, port), nil
}

// interfaceAddr is the best address of this host's interfaces: private ones first, then public, then loopback.
func interfaceAddr() (netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("gossip: list interface addresses (set advertise instead): %w", err)
	}
	rank := func(ip netip.Addr) int {
		switch {
		case ip.IsLoopback():
			return 4
		case ip.Is4() && ip.IsPrivate():
			return 0
		case ip.Is4():
			return 1
		case ip.IsPrivate():
			return 2
		default:
			return 3
		}
	}
	var best netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := p.Addr().Unmap()
		if ip.IsLinkLocalUnicast() || ip.IsMulticast() {
			continue
		}
		if !best.IsValid() || rank(ip) < rank(best) {
			best = ip
		}
	}
	if !best.IsValid() {
		return netip.Addr{}, errors.New("gossip: no interface has an address; set advertise")
	}
	return best, nil
}
