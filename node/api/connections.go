package api

import (
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// connections bounds the open connections of a server: each costs a file descriptor, and a node that has none left can neither write
// its journal nor talk to its peers. Further ones are told so and closed at once.
type connections struct {
	most int64
	met  *metrics
	open atomic.Int64
}

// refusedAnswer goes to a connection above the bound, whatever it wanted to ask.
var refusedAnswer = []byte("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/problem+json\r\n" +
	"Content-Length: " + strconv.Itoa(len(refusedBody)) + "\r\n\r\n" + refusedBody)

const refusedBody = `{"type":"urn:skein:problem:overloaded","title":"Service Unavailable","status":503,` +
	`"detail":"this node has as many connections as it takes; try another one","code":"overloaded","retryable":true,"retry_after_ms":1000}`

// state follows the life of connections; it is the ConnState hook of the HTTP server, which may call it concurrently.
func (n *connections) state(c net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		if n.open.Add(1) <= n.most {
			return
		}
		n.met.refusedConns.Inc()
		// The answer fits into the empty buffer of a new socket. The server finds the connection closed, and says so here.
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, _ = c.Write(refusedAnswer)
		_ = c.Close()
	case http.StateClosed, http.StateHijacked:
		n.open.Add(-1)
	}
}
