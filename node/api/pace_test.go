package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/testnet/virtual"
)

// pipes is a listener in memory, whose time is the test's.
type pipes struct {
	conns chan net.Conn
	quit  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.quit:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.quit:
	default:
		close(p.quit)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// sendSlowly posts n chunks of size bytes with a pause before each, and returns the status of the answer.
func sendSlowly(t *testing.T, n, size int, pause time.Duration, change ...func(*Config, *Deps)) (status int) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, change...)
		ctx, cancel := context.WithCancel(t.Context())
		ln := &pipes{conns: make(chan net.Conn), quit: make(chan struct{})}
		ran := make(chan error, 1)
		go func() { ran <- w.s.Run(ctx, ln) }()
		mine, its := net.Pipe()
		ln.conns <- its
		answered := make(chan int, 1)
		go func() {
			res, err := http.ReadResponse(bufio.NewReader(mine), nil)
			if err != nil {
				t.Errorf("no answer: %v", err)
				answered <- 0
				return
			}
			answered <- res.StatusCode
		}()
		fmt.Fprintf(mine, "POST /v1/streams/a/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", n*size)
		for range n {
			virtual.Sleep(pause)
			if _, err := io.WriteString(mine, strings.Repeat("x", size)); err != nil {
				break
			}
		}
		status = <-answered
		_ = mine.Close()
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	return status
}

func TestBodiesThatKeepToTheRateAreTaken(t *testing.T) {
	if status := sendSlowly(t, 40, 1100, time.Second); status != 200 {
		t.Errorf("at 1,100 bytes per second, a little above the least: status %d", status)
	}
	if status := sendSlowly(t, 40, 500, time.Second); status != 408 {
		t.Errorf("at 500 bytes per second: status %d", status)
	}
}

func TestSlowBodiesAreAnsweredToo(t *testing.T) {
	if status := sendSlowly(t, 2, 1, 2*time.Minute, func(c *Config, _ *Deps) { c.ReadGrace = 5 * time.Minute }); status != 200 {
		t.Errorf("status %d", status)
	}
}

func TestScrapesOfMetricsAreBounded(t *testing.T) {
	w := newWorld(t)
	for range maxScrapes {
		w.s.scrapes <- struct{}{}
	}
	w.expect(503, "overloaded", "GET", "/metrics", "")
	<-w.s.scrapes
	w.expect(200, "", "GET", "/metrics", "")
	w.expect(200, "", "GET", "/metrics", "") // the one before gave its place back
}
