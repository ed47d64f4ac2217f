package api

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// serve is the chain that each request passes: identity, host, origin, route, query, caller, handler.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	c := &Call{R: r, s: s, start: time.Now(), route: unrouted}
	c.w.ResponseWriter = w
	c.W = &c.w
	c.ID = s.requestID(r)
	w.Header().Set("X-Request-Id", c.ID)
	s.met.inFlight.Add(1)
	defer func() {
		s.met.inFlight.Add(-1)
		if v := recover(); v != nil {
			s.recovered(c, v)
		}
		s.met.done(c, time.Since(c.start))
		s.log.Debug("request", "request", c.ID, "method", r.Method, "route", c.route.Pattern, "status", c.w.status,
			"code", c.problem, "bytes", c.w.bytes, "took", time.Since(c.start), "remote", r.RemoteAddr)
	}()
	err := s.admit(c)
	if err == nil {
		err = c.route.Handle(c)
	}
	if err != nil {
		c.Fail(err)
	}
}

// admit does all checks that come before a handler; on success c.route is set.
func (s *Server) admit(c *Call) error {
	if err := s.live().hosts.check(c.R.Host); err != nil {
		return err
	}
	if err := s.origin.Check(c.R); err != nil {
		return NewProblem(http.StatusForbidden, codeCrossOrigin, "a browser sent this from another origin: "+err.Error())
	}
	if err := s.router.match(c); err != nil {
		return err
	}
	if err := c.parseQuery(); err != nil {
		return err
	}
	if s.dep.Auth != nil {
		ctx, err := s.dep.Auth.Authorize(c, Access{Scope: c.route.Access, Stream: c.Path("stream")})
		if err != nil {
			return err
		}
		if ctx != nil {
			c.R = c.R.WithContext(ctx)
		}
	}
	return nil
}

// recovered answers a panic of a handler: a bug of ours, which must not take the node down.
func (s *Server) recovered(c *Call, v any) {
	if v == http.ErrAbortHandler {
		c.w.status = max(c.w.status, 499)
		panic(v) // the way to cut a connection
	}
	s.log.Error("handler panicked", "request", c.ID, "route", c.route.Pattern, "panic", v, "stack", string(debug.Stack()))
	if c.w.status == 0 {
		c.Fail(&Problem{Status: http.StatusInternalServerError, Code: codeInternal, Detail: "internal error"})
	}
}

// requestID takes the client's id where it is short and plain, so that logs join up, and makes one otherwise.
func (s *Server) requestID(r *http.Request) string {
	if v := r.Header.Get("X-Request-Id"); v != "" && len(v) <= 64 && plain(v) {
		return v
	}
	return s.reqBase + strconv.FormatUint(s.reqSeq.Add(1), 36)
}

// requestBase keeps the ids of two runs and two nodes apart.
func requestBase() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:]) + "-"
}

func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// hostList stops DNS rebinding: a page of an attacker's name that resolves to this node carries that name as its Host.
// Address literals cannot be rebound, so they always pass.
type hostList struct {
	any      bool
	exact    map[string]bool
	suffixes []string
}

func newHostList(cfg Config) hostList {
	l := hostList{exact: map[string]bool{"localhost": true}}
	own, _ := os.Hostname() // "" adds nothing
	listen, _, _ := net.SplitHostPort(cfg.Addr)
	for _, h := range append([]string{own, cfg.Identity.Node, listen}, cfg.AllowedHosts...) {
		h = strings.ToLower(strings.TrimSuffix(h, "."))
		switch {
		case h == "*":
			l.any = true
		case strings.HasPrefix(h, "."):
			l.suffixes = append(l.suffixes, h)
		case h != "":
			l.exact[h] = true
		}
	}
	return l
}

func (l *hostList) check(hostport string) error {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	if l.any || l.exact[host] {
		return nil
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if l.exact[host] || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil {
		return nil
	}
	for _, s := range l.suffixes {
		if strings.HasSuffix(host, s) {
			return nil
		}
	}
	return NewProblem(http.StatusForbidden, codeHost,
		"the Host header names "+strconv.Quote(clip(host))+", which this node does not answer to; add it to http.allowed_hosts")
}
