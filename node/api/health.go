package api

import (
	_ "embed"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

//go:embed openapi.json
var openAPIDoc []byte

// livez answers as long as the process can: it never asks a peer or a disk.
func (s *Server) livez(c *Call) error {
	return c.Bytes(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

// readyz answers 503 while a condition for taking traffic is missing; ?verbose lists them all.
func (s *Server) readyz(c *Call) error {
	verbose, err := c.Flag("verbose")
	if err != nil {
		return err
	}
	checks := s.dep.Mesh.Readiness(c.R.Context())
	if s.draining() {
		checks = append(checks[:len(checks):len(checks)], Check{Name: "http", Detail: "draining"})
	}
	status, word, failing := http.StatusOK, "ready", []string{}
	for _, ch := range checks {
		if !ch.OK {
			status, word = http.StatusServiceUnavailable, "not ready"
			failing = append(failing, ch.Name)
		}
	}
	body := readiness{Status: word, Node: s.cfg.Identity.Node, Failing: failing}
	if verbose {
		body.Checks = checks
	}
	if status != http.StatusOK {
		body.Code, body.Retryable, body.RetryAfterMS = codeNotReady, true, readyAgain.Milliseconds()
		c.problem = codeNotReady
		c.w.Header().Set("Retry-After", strconv.Itoa(int(readyAgain.Seconds())))
	}
	return c.JSON(status, body)
}

// readyAgain is when a node that is not ready is worth asking again.
const readyAgain = time.Second

// readiness is the answer of /readyz. Its status is a word, so it is no problem document (RFC 9457) where the node is not ready; what
// clients of problems act on is there all the same.
type readiness struct {
	Status       string   `json:"status"`
	Node         string   `json:"node"`
	Failing      []string `json:"failing"`
	Checks       []Check  `json:"checks,omitempty"`
	Code         string   `json:"code,omitempty"`
	Retryable    bool     `json:"retryable,omitempty"`
	RetryAfterMS int64    `json:"retry_after_ms,omitempty"`
}

// maxScrapes is how many pages of metrics are gathered at once: each costs memory and a walk over all groups.
const maxScrapes = 4

func (s *Server) metricsPage(c *Call) error {
	if s.dep.Gatherer == nil {
		return c.Bytes(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", nil)
	}
	select {
	case s.scrapes <- struct{}{}:
		defer func() { <-s.scrapes }()
	default:
		return overloaded("as many scrapes of the metrics are running as the node takes at once")
	}
	promhttp.HandlerFor(s.dep.Gatherer, promhttp.HandlerOpts{}).ServeHTTP(c.W, c.R)
	return nil
}

func (s *Server) version(c *Call) error {
	v := struct {
		Version  string `json:"version"`
		Revision string `json:"revision,omitempty"`
		Go       string `json:"go"`
		OS       string `json:"os"`
		Arch     string `json:"arch"`
		Node     string `json:"node"`
		NodeID   string `json:"node_id"`
		Cluster  string `json:"cluster_id"`
	}{Version: s.cfg.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Node: s.cfg.Identity.Node,
		NodeID: s.cfg.Identity.ID.String(), Cluster: s.cfg.Identity.Cluster}
	if info, ok := debug.ReadBuildInfo(); ok {
		def(&v.Version, info.Main.Version)
		for _, kv := range info.Settings {
			if kv.Key == "vcs.revision" {
				v.Revision = kv.Value
			}
		}
	}
	return c.JSON(http.StatusOK, v)
}

func (s *Server) openAPI(c *Call) error {
	return c.Bytes(http.StatusOK, "application/json", openAPIDoc)
}

// pprof serves profiles to callers on this host alone: they show memory contents and cost CPU.
func (s *Server) pprof(c *Call) error {
	host, _, err := net.SplitHostPort(c.R.RemoteAddr)
	if err != nil || !loopbackHost(host) || c.R.Header.Get("X-Forwarded-For") != "" || c.R.Header.Get("Forwarded") != "" {
		return NewProblem(http.StatusForbidden, codeLoopbackOnly, "profiles are served to this host alone")
	}
	secs, err := c.Int("seconds", 30, 1, 300)
	if err != nil {
		return err
	}
	// The profile writes nothing until it is done, so the server's own write deadline would cut it.
	_ = http.NewResponseController(c.W).SetWriteDeadline(time.Now().Add(time.Duration(secs)*time.Second + 30*time.Second))
	switch name := c.Path("profile"); name {
	case "":
		pprof.Index(c.W, c.R)
	case "cmdline":
		pprof.Cmdline(c.W, c.R)
	case "profile":
		pprof.Profile(c.W, c.R)
	case "symbol":
		pprof.Symbol(c.W, c.R)
	case "trace":
		q := c.R.URL.Query()
		q.Set("seconds", strconv.FormatInt(secs, 10))
		c.R.URL.RawQuery = q.Encode()
		pprof.Trace(c.W, c.R)
	default:
		pprof.Handler(name).ServeHTTP(c.W, c.R)
	}
	return nil
}
