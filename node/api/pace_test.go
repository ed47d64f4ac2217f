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

// inMemory has the server serve by itself until stop; dial makes a connection to it.
func (w *world) inMemory() (dial func() net.Conn, stop func()) {
	t := w.t.(*testing.T)
	ctx, cancel := context.WithCancel(t.Context())
	ln := &pipes{conns: make(chan net.Conn), quit: make(chan struct{})}
	ran := make(chan error, 1)
	go func() { ran <- w.s.Run(ctx, ln) }()
	dial = func() net.Conn {
		mine, its := net.Pipe()
		ln.conns <- its
		return mine
	}
	stop = func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}
	return dial, stop
}

// sendSlowly posts n chunks of size bytes with a pause before each, and returns the status of the answer.
func sendSlowly(t *testing.T, n, size int, pause time.Duration, change ...func(*Config, *Deps)) (status int) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, change...)
		dial, stop := w.inMemory()
		mine := dial()
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
		stop()
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
	if status := sendSlowly(t, 40, 1, time.Second); status != 408 {
		t.Errorf("at 1 byte per second: status %d", status)
	}
}

func TestSlowBodiesAreAnsweredToo(t *testing.T) {
	if status := sendSlowly(t, 2, 1, 2*time.Minute, func(c *Config, _ *Deps) { c.ReadGrace = 5 * time.Minute }); status != 200 {
		t.Errorf("status %d", status)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		dial, stop := w.inMemory()
		for _, c := range []struct {
			header string
			status int
		}{
			{"X-Pad: " + strings.Repeat("x", 60<<10) + "\r\n", 200},
			{"X-Pad: " + strings.Repeat("x", 70<<10) + "\r\n", 431},
			{strings.Repeat("X-Pad: "+strings.Repeat("x", 61)+"\r\n", 1<<10), 431}, // 70 KiB, too
		} {
			conn := dial()
			go func() { // whose rest nobody reads
				_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"+c.header+"\r\n")
			}()
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != c.status {
				t.Errorf("%d bytes of headers: status %d, want %d", len(c.header), res.StatusCode, c.status)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil { // else it would wait for ever
				t.Error(err)
			}
			_ = conn.Close()
		}
		stop()
	})
}

func TestHeadersThatDripAndConnectionsThatIdleAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		dial, stop := w.inMemory()
		untilClosed := func(r io.Reader, want time.Duration) {
			t.Helper()
			begun := time.Now()
			b, err := io.ReadAll(r)
			if took := time.Since(begun); err != nil || len(b) > 0 || took < want || took > want+time.Second {
				t.Errorf("closed after %v, want %v; %q %v", took, want, b, err)
			}
		}
		slow := dial()
		go func() {
			for _, err := io.WriteString(slow, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Pad: "); err == nil; _, err = slow.Write([]byte("x")) {
				virtual.Sleep(time.Second)
			}
		}()
		untilClosed(slow, 10*time.Second)
		_ = slow.Close()

		conn := dial()
		r := bufio.NewReader(conn)
		for range 2 {
			virtual.Sleep(9 * time.Second)
			fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			virtual.Sleep(100 * time.Second)
		}
		untilClosed(r, 20*time.Second) // two minutes in all
		_ = conn.Close()
		stop()
	})
}

func TestQuietEventStreamShowsLifeEvery15Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.seed("a", 1)
		dial, stop := w.inMemory()
		conn := dial()
		fmt.Fprint(conn, "GET /v1/streams/a/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		comments, begun, before := 0, time.Now(), time.Now()
		for lines := bufio.NewScanner(res.Body); comments < 3 && time.Since(begun) < time.Minute && lines.Scan(); {
			switch line := lines.Text(); {
			case line == "event: start":
				before = time.Now()
			case line == ":":
				if pause := time.Since(before); pause != 15*time.Second {
					t.Errorf("comment %d came after %v", comments, pause)
				}
				before = time.Now()
				comments++
			}
		}
		if comments < 3 {
			t.Errorf("%d comments", comments)
		}
		_ = conn.Close()
		stop()
	})
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
