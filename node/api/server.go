package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/transport/wire"
)

// Server is the HTTP front door. New makes it, Run serves until its context ends.
type Server struct {
	cfg     Config
	current atomic.Pointer[live]
	dep     Deps
	log     *slog.Logger
	met     *metrics
	router  *router
	origin  *http.CrossOriginProtection
	budget  Budget
	// reserveWait is the constant of that name, but for tests.
	reserveWait time.Duration
	now         func() time.Time
	subs        atomic.Int64
	archives    atomic.Int64
	scrapes     chan struct{} // one in it for each of /metrics being written
	conns       connections
	reqBase     string
	reqSeq      atomic.Uint64

	drain    context.Context // ended by Drain
	endDrain context.CancelFunc
}

// live is the part of the configuration that Reload replaces.
type live struct {
	Limits
	hosts hostList
}

// Limits are the settings that a running server can take over.
type Limits struct {
	AutoCreate      bool
	MaxBodyBytes    int64
	PublishDeadline time.Duration
}

// Reload takes over AllowedHosts, AutoCreate, MaxBodyBytes and PublishDeadline for requests from now on; everything else in cfg is
// ignored. cfg is valid. Safe for concurrent use.
func (s *Server) Reload(cfg Config) {
	cfg = cfg.withDefaults()
	s.current.Store(&live{Limits: Limits{cfg.AutoCreate, cfg.MaxBodyBytes, cfg.PublishDeadline}, hosts: newHostList(cfg)})
}

func (s *Server) live() *live { return s.current.Load() }

// unrouted stands in for the route of requests that have none.
var unrouted = &Route{Pattern: "none", Access: ScopeOpen}

// New checks the configuration and builds the server; it starts nothing.
func New(cfg Config, dep Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if dep.Publisher == nil || dep.Subscriber == nil || dep.Streams == nil || dep.Archives == nil || dep.Mesh == nil || dep.Ops == nil {
		return nil, errors.New("api: Publisher, Subscriber, Streams, Archives, Mesh and Ops are required")
	}
	s := &Server{cfg: cfg, dep: dep, log: dep.Log, budget: dep.Budget, now: time.Now, reserveWait: reserveWait,
		scrapes: make(chan struct{}, maxScrapes),
		origin:  http.NewCrossOriginProtection(), reqBase: requestBase()}
	s.drain, s.endDrain = context.WithCancel(context.Background())
	s.Reload(cfg)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.budget == nil {
		s.budget = newOwnBudget(64 << 20)
	}
	routes := s.routes()
	for _, reg := range dep.Routes {
		routes = append(routes, reg.Routes()...)
	}
	var err error
	if s.router, err = newRouter(routes); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	s.met = newMetrics(dep.Registerer, s.router.all, s.conns.open.Load)
	s.conns.most, s.conns.met, s.conns.refusal = int64(cfg.MaxConnections), s.met, refusal(cfg.Identity.Node)
	return s, nil
}

// Handler serves the API without a listener of its own, for tests and for embedding.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// Run serves on ln until ctx ends; then it stops accepting, tells subscribers goodbye, waits for requests in flight at most
// Config.DrainTimeout, and closes what is left. It returns nil after an orderly end. It closes ln. Call it once.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests() // of a request whose body was not read yet, nobody looks whether its connection is there
	srv := &http.Server{
		Handler:           s.Handler(),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		// Handlers that take longer move the deadline themselves; this one is for answers that nobody reads.
		WriteTimeout:   s.cfg.MaxWait + answerTime,
		MaxHeaderBytes: s.cfg.MaxHeaderBytes,
		ConnState:      s.conns.state,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		s.Drain()
		_ = srv.Close() // connections that outlive the listener
		return fmt.Errorf("http: %w", err)
	case <-ctx.Done():
	}
	s.Drain()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	err := srv.Shutdown(grace)
	if err != nil {
		s.log.Warn("requests were still running when the drain time was over", "err", err)
		err = srv.Close()
	}
	<-served
	if err != nil {
		return fmt.Errorf("http: close: %w", err)
	}
	return nil
}

// Drain ends subscriptions with a goodbye, refuses new ones, and makes /readyz say so; other requests go on. Idempotent.
func (s *Server) Drain() { s.endDrain() }

func (s *Server) draining() bool { return s.drain.Err() != nil }

// drainingHere refuses what a node that drains begins no more.
func drainingHere() *Problem {
	return NewProblem(http.StatusServiceUnavailable, wire.CodeDraining, "this node is draining; ask another one")
}
