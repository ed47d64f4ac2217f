package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// rawConn is a connection on which HTTP is spoken by hand.
type rawConn struct {
	*net.TCPConn
	r *bufio.Reader
}

// say opens a connection and sends text.
func (w *world) say(text string) (rawConn, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url(), "http://"))
	if err != nil {
		return rawConn{}, err
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = io.WriteString(conn, text)
	return rawConn{conn.(*net.TCPConn), bufio.NewReader(conn)}, err
}

// answer reads the next answer whole.
func (c rawConn) answer() (status int, body string, err error) {
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// closed reports whether the other side has nothing more to say.
func (c rawConn) closed() bool {
	_, err := c.r.ReadByte()
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// raw sends text and returns the first answer.
func (w *world) raw(text string) (*http.Response, error) {
	conn, err := w.say(text)
	if err != nil {
		return nil, err
	}
	return http.ReadResponse(conn.r, nil)
}

func TestMalformedHTTP(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.ReadGrace, c.MinReadRate = 50*time.Millisecond, 1000 })
	const head = "POST /v1/streams/a/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
	for name, c := range map[string]struct {
		text   string
		status int
	}{
		"no length":        {head + "\r\n", 411},
		"length zero":      {head + "Content-Length: 0\r\n\r\n", 200},
		"two lengths":      {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400},
		"negative length":  {head + "Content-Length: -1\r\n\r\nx", 400},
		"too slow":         {head + "Content-Length: 100\r\n\r\nx", 408},
		"slow chunks":      {head + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", 408},
		"bad chunk":        {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		"huge length":      {head + "Content-Length: 99999999999\r\n\r\n", 413},
		"NUL in the path":  {"GET /v1/streams/a%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
		"no name":          {strings.Replace(head, "/a/", "//", 1) + "Content-Length: 1\r\n\r\nx", 400},
		"slow config":      {"PUT /v1/streams/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", 408},
		"slow patch":       {"PATCH /v1/streams/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", 408},
		"slow operation":   {"POST /v1/nodes/n1/drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", 408},
		"foreign host":     {"GET /livez HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
		"slow batch":       {strings.Replace(head, "/events", "/events/batch", 1) + "Content-Length: 100\r\n\r\n1\n", 415},
		"slow batch lines": {"POST /v1/streams/a/events/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: 100\r\n\r\n1\n", 408},
	} {
		res, err := w.raw(c.text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if res.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", name, res.StatusCode, c.status)
		}
	}
}

func TestCutOffBodiesStoreNothingOfTheirLastLine(t *testing.T) {
	w := newWorld(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST /v1/streams/a/events/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: 100\r\n\r\n1\n2")
	_ = conn.(*net.TCPConn).CloseWrite()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && res.StatusCode == 200 {
		t.Errorf("a body that was cut off is fine: %d", res.StatusCode)
	}
	_ = conn.Close()
	w.http.Close()
	w.http = nil
	for _, e := range w.all("a") {
		if e["value"] == 2.0 {
			t.Error("half a line was stored")
		}
	}
}

// values are what is stored of stream, which may not exist.
func (w *world) values(stream string) []any {
	var out []any
	for _, e := range w.all(stream) {
		out = append(out, e["value"])
	}
	return out
}

// smuggled is a request that must not be taken for one.
const smuggled = "POST /v1/streams/smuggled/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n!"

func (w *world) nothingSmuggled(name string) {
	w.t.Helper()
	if w.do("GET", "/v1/streams/smuggled", "").Code != 404 {
		w.t.Errorf("%s: a part of a body was taken for a request", name)
	}
}

func TestBodyThatEndsBeforeItsLengthIsRefused(t *testing.T) {
	w := newWorld(t)
	conn, err := w.say("POST /v1/streams/a/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nhello")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.CloseWrite()
	status, body, err := conn.answer()
	if err != nil || status != 400 || !strings.Contains(body, "the body ended early") {
		t.Errorf("%d %s %v", status, body, err)
	}
	if !conn.closed() {
		t.Error("the connection goes on")
	}
	if w.broker.calls != 0 {
		t.Error("it was published")
	}
}

func TestBodyThatGoesOnAfterItsLengthIsCutThere(t *testing.T) {
	w := newWorld(t)
	conn, err := w.say("POST /v1/streams/a/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nhello\r\n" + smuggled)
	if err != nil {
		t.Fatal(err)
	}
	if status, body, err := conn.answer(); err != nil || status != 200 {
		t.Errorf("%d %s %v", status, body, err)
	}
	if status, body, err := conn.answer(); err != nil || status != 400 {
		t.Errorf("the rest was answered %d %s %v", status, body, err)
	}
	if !conn.closed() {
		t.Error("the connection goes on")
	}
	if got := w.values("a"); len(got) != 1 || got[0] != "hel" {
		t.Errorf("stored %q", got)
	}
	w.nothingSmuggled("after the length")
}

// Where both framings are given, chunks count and the length never does (RFC 9112, section 6.3), so that behind the last chunk the next
// request begins; framings that other servers may read in another way are refused, and end the connection.
func TestBodiesOfTwoFramingsHideNoRequest(t *testing.T) {
	const (
		head = "POST /v1/streams/a/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
		next = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
	)
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled) // the request is behind the first four bytes
	for name, c := range map[string]struct {
		headers string
		taken   bool
	}{
		"length, chunks":   {"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", true},
		"chunks, length":   {"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", true},
		"two chunkings":    {"Content-Length: 4\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", false},
		"chunks of sorts":  {"Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n", false},
		"chunks, then not": {"Content-Length: 4\r\nTransfer-Encoding: chunked, identity\r\n", false},
		"a space":          {"Content-Length: 4\r\nTransfer-Encoding : chunked\r\n", false},
		"a folded line":    {"Content-Length: 4\r\nTransfer-Encoding:\r\n chunked\r\n", true},
	} {
		w := newWorld(t)
		conn, err := w.say(head + c.headers + "\r\n" + chunked + next)
		if err != nil {
			t.Fatal(err)
		}
		status, body, err := conn.answer()
		switch got := w.values("a"); {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.taken:
			if status != 200 || len(got) != 1 || got[0] != smuggled {
				t.Errorf("%s: %d %s, stored %q", name, status, body, got)
			}
			if status, body, err := conn.answer(); err != nil || status != 200 || body != "ok\n" {
				t.Errorf("%s: the next request was answered %d %s %v", name, status, body, err)
			}
		case status < 400 || len(got) != 0 || !conn.closed():
			t.Errorf("%s: %d %s, stored %q", name, status, body, got)
		}
		w.nothingSmuggled(name)
	}
}

// endless gives what a line of any length is made of.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func TestLineOf100MBIsRefusedWithinTheBudget(t *testing.T) {
	for _, most := range []int64{0, 1 << 30} { // by the bound on bodies, and by that on events alone
		for path, kind := range map[string]string{"/v1/streams/a/events/batch": "application/x-ndjson", "/v1/streams/a/events": "text/plain"} {
			w := newWorld(t, func(c *Config, _ *Deps) { c.MaxBodyBytes = most })
			r, err := http.NewRequest("POST", w.url()+path, io.LimitReader(endless{}, 100_000_000)) // in chunks, without a length
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", kind)
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if res.Body.Close(); res.StatusCode != 413 || w.broker.calls != 0 {
				t.Errorf("%s: status %d, %d published", path, res.StatusCode, w.broker.calls)
			}
			http.DefaultClient.CloseIdleConnections()
			if peak := w.budget.mostTaken(); peak > 16<<20 {
				t.Errorf("%s: %d bytes were held", path, peak)
			}
		}
	}
}

func TestConnectionsAboveTheBoundAreToldAndClosed(t *testing.T) {
	w := newWorld(t, func(cfg *Config, _ *Deps) { cfg.MaxConnections = 2 })
	ln, err := Listen(Config{Addr: "127.0.0.1:0"}, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.s.Run(ctx, ln) }()
	ask := func() (net.Conn, string) {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n') // empty where the reset overtook the answer
		return c, line
	}
	first, _ := ask()
	second, _ := ask()
	third, answer := ask()
	if answer != "" && !strings.Contains(answer, "503") {
		t.Errorf("the third connection was answered %q", answer)
	}
	if b := string(w.s.conns.refusal); !strings.Contains(b, `"node":"n1"`) || !strings.Contains(b, `"retry_after_ms":1000`) {
		t.Errorf("the refusal is %q", b)
	}
	if page := w.do("GET", "/metrics", "").Body.String(); !strings.Contains(page, "skein_http_connections_refused_total 1") {
		t.Error("the refusal is not counted")
	}
	_ = first.Close()
	for deadline := time.Now().Add(5 * time.Second); ; {
		c, answer := ask()
		_ = c.Close()
		if strings.Contains(answer, "200") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a closed connection makes no room")
		}
	}
	_, _ = second.Close(), third.Close()
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	w.poll("closed connections are not counted any more", func() bool { return w.s.conns.open.Load() == 0 })
}

// A client that looks for the answer only when it has sent all of a large body finds it.
func TestRefusalOfALargeBodyReachesAClientThatStillSends(t *testing.T) {
	w := newWorld(t)
	base, cancel, ran := w.run()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 48 << 20
	_, err = fmt.Fprintf(conn, "POST /v1/streams/a/import?retention_ms=no HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", size)
	for piece, left := make([]byte, 1<<20), size; left > 0 && err == nil; left -= len(piece) {
		_, err = conn.Write(piece)
	}
	if err != nil {
		t.Fatalf("the connection broke under the body: %v", err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", res.StatusCode)
	}
	conn.Close()
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}
