package api

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// Listen opens the address of cfg. Beyond loopback it insists on authentication (authenticated: tokens exist) or on
// Config.Insecure, since whoever reaches the port could do everything.
func Listen(cfg Config, authenticated bool) (net.Listener, error) {
	cfg = cfg.withDefaults()
	host, _, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("http.addr: %q is not host:port: %w", cfg.Addr, err)
	}
	if !authenticated && !cfg.Insecure && !loopbackHost(host) {
		return nil, fmt.Errorf("http.addr: %s is reachable from other hosts and no access tokens exist, so anyone could publish, "+
			"read and delete; listen on 127.0.0.1, create a token, or set insecure: true", cfg.Addr)
	}
	ln, err := net.Listen("tcp", cfg.Addr)
	if sys, ok := errors.AsType[syscall.Errno](err); ok {
		err = sys // its wrapping repeats the address
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("http.addr: %s is taken by another process; stop it or choose another port: %w", cfg.Addr, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("http.addr: no permission to listen on %s; choose a port above 1023: %w", cfg.Addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("http.addr: %s is not an address of this host: %w", cfg.Addr, err)
	case err != nil:
		return nil, fmt.Errorf("http.addr: %s: %w", cfg.Addr, err)
	}
	return ln, nil
}

func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
