package api

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// connections bounds the open connections of a server: each costs a file descriptor, and a node that has none left can neither write
// its journal nor talk to its peers. Further ones are told so and closed at once.
type connections struct {
	most int64
	met  *metrics
	open atomic.Int64

	refusal []byte
}

// refusal is the answer to a connection above the bound, whatever it wanted to ask.
func refusal(node string) []byte {
	p := overloaded("this node has as many connections as it takes; try another one")
	body := appendProblem(nil, p, node, "")
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"+
		"Content-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

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
		_, _ = c.Write(n.refusal)
		_ = c.Close()
	case http.StateClosed, http.StateHijacked:
		n.open.Add(-1)
	}
}
