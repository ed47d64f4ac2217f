package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmesh/skein/node/config"
)

// Call is one request on its way through the server. It is used by the goroutine that serves it.
type Call struct {
	W http.ResponseWriter
	R *http.Request
	// ID names the request in answers and in the log.
	ID string

	s       *Server
	start   time.Time
	w       recorder
	route   *Route
	path    [4]pathValue
	query   url.Values
	problem string
}

type pathValue struct{ name, value string }

// recorder notes what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Path is the value of a {name} of the route's pattern, unescaped.
func (c *Call) Path(name string) string {
	for i := range c.path {
		if c.path[i].name == name {
			return c.path[i].value
		}
	}
	return ""
}

// Query is the value of a query parameter, and whether it was given at all. Each is given once at most.
func (c *Call) Query(name string) (string, bool) {
	v, ok := c.query[name]
	if !ok {
		return "", false
	}
	return v[0], true
}

// Flag reads a boolean parameter: absent is false; present without a value, or true, is true.
func (c *Call) Flag(name string) (bool, error) {
	v, ok := c.Query(name)
	switch {
	case !ok || v == "false":
		return false, nil
	case v == "" || v == "true":
		return true, nil
	}
	return false, invalid(fmt.Sprintf("query parameter %s: %q is neither true nor false", name, clip(v)))
}

// Int reads an integer parameter within bounds; absent is def.
func (c *Call) Int(name string, def, lo, hi int64) (int64, error) {
	v, ok := c.Query(name)
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < lo || n > hi {
		return 0, invalid(fmt.Sprintf("query parameter %s: %q is not a whole number within %d and %d", name, clip(v), lo, hi))
	}
	return n, nil
}

// Millis reads a duration parameter in milliseconds, at least lo and at most Config.MaxWait; absent is def.
func (c *Call) Millis(name string, def time.Duration, lo int64) (time.Duration, error) {
	n, err := c.Int(name, def.Milliseconds(), lo, c.s.cfg.MaxWait.Milliseconds())
	if err != nil {
		return 0, err
	}
	return time.Duration(n) * time.Millisecond, nil
}

// Deadline derives a context that ends after ?timeout_ms=, or def where it is not given.
func (c *Call) Deadline(def time.Duration) (context.Context, context.CancelFunc, error) {
	d, err := c.Millis("timeout_ms", def, 1)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(c.R.Context(), d)
	return ctx, cancel, nil
}

// parseQuery refuses what it does not know, by name, so that a typing error never silently changes what a request means.
func (c *Call) parseQuery() error {
	if c.R.URL.RawQuery == "" {
		return nil
	}
	q, err := url.ParseQuery(c.R.URL.RawQuery)
	if err != nil {
		return invalid("the query string is malformed: " + clip(err.Error()))
	}
	for name, vs := range q {
		if !slices.Contains(c.route.Query, name) {
			return NewProblem(http.StatusBadRequest, codeUnknownParam,
				"unknown query parameter "+strconv.Quote(clip(name))+suggest(name, c.route.Query))
		}
		if len(vs) > 1 {
			return invalid("query parameter " + name + " is given more than once")
		}
	}
	c.query = q
	return nil
}

// clip bounds what of a client's text is repeated to it.
func clip(s string) string {
	const most = 100
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// suggest names the known word nearest to s, or all where none is near.
func suggest(s string, known []string) string {
	if len(known) == 0 {
		return "; none is known here"
	}
	if near := config.Nearest(s, known); near != "" {
		return "; did you mean " + strconv.Quote(near) + "?"
	}
	return "; known are " + strings.Join(known, ", ")
}
