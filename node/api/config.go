package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/ring"
)

// Config holds the limits of the front door. The zero of a field means its default, except for the booleans.
type Config struct {
	// Addr is the address to listen on (http.addr), default 127.0.0.1:8400. Port 0 takes any free port.
	Addr string
	// AllowedHosts are further names that the Host header may carry (http.allowed_hosts); "*" allows any, ".example.com"
	// every name below example.com. Loopback names, address literals, the host's and the node's own name always pass.
	AllowedHosts []string
	// Identity names the node in answers.
	Identity Identity
	// Version is what /version tells; default: what the build recorded.
	Version string
	// AutoCreate makes streams on first publish (auto_create_streams).
	AutoCreate bool
	// Insecure lets the server listen beyond loopback although no Auth was given (insecure).
	Insecure bool

	MaxBodyBytes   int64 // largest body, compressed or not; default 32 MiB (max_body_bytes)
	MaxEventBytes  int   // largest event value in bytes; default and upper bound 2 MiB: a stream's own limit is below it
	MaxHeaderBytes int   // request line and headers; default 64 KiB
	MaxConnections int   // open connections; default 16,384, further ones get 503 overloaded and are closed
	MaxSubscribers int   // concurrent subscriptions; default 10,000, then 503 overloaded

	ReadHeaderTimeout time.Duration // default 10 s
	IdleTimeout       time.Duration // of a kept-alive connection; default 2 min
	// ReadGrace and MinReadRate bound how slowly a body may arrive: n bytes must be there after ReadGrace + n/MinReadRate.
	ReadGrace   time.Duration // default 10 s
	MinReadRate int64         // bytes per second; default 1 KiB/s
	// PublishDeadline is how long a publish waits where the client names no timeout_ms (publish_deadline_ms); default 10 s.
	PublishDeadline time.Duration
	// MaxWait bounds timeout_ms and wait_ms; default 60 s.
	MaxWait time.Duration
	// SlowReader is how long one write to a subscriber may take before it counts as gone; default 15 min: slow is not gone.
	SlowReader time.Duration
	// Heartbeat is the pause between comments on a quiet event stream; default 15 s.
	Heartbeat time.Duration
	// DrainTimeout bounds how long Run waits for requests in flight once its context ended; default 10 s.
	DrainTimeout time.Duration
}

// Identity is who this node is, for as long as the process runs.
type Identity struct {
	Node    string      // its name
	ID      ring.NodeID // its stable id
	Cluster string      // cluster_id
}

// DefaultConfig returns the defaults named at the fields of Config.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	def(&c.Addr, "127.0.0.1:8400")
	def(&c.MaxBodyBytes, 32<<20)
	def(&c.MaxEventBytes, 2<<20)
	def(&c.MaxHeaderBytes, 64<<10)
	def(&c.MaxConnections, 16_384)
	def(&c.MaxSubscribers, 10_000)
	def(&c.ReadHeaderTimeout, 10*time.Second)
	def(&c.IdleTimeout, 2*time.Minute)
	def(&c.ReadGrace, 10*time.Second)
	def(&c.MinReadRate, 1<<10)
	def(&c.PublishDeadline, 10*time.Second)
	def(&c.MaxWait, 60*time.Second)
	def(&c.SlowReader, 15*time.Minute)
	def(&c.Heartbeat, 15*time.Second)
	def(&c.DrainTimeout, 10*time.Second)
	return c
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate says what is wrong with the configuration, naming each key; it changes nothing.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	_, _, err := net.SplitHostPort(c.Addr)
	bad(err != nil, "http.addr: %q is not host:port", c.Addr)
	bad(c.MaxBodyBytes < 1<<10 || c.MaxBodyBytes > 1<<30, "max_body_bytes: %d is not within 1 KiB and 1 GiB", c.MaxBodyBytes)
	bad(c.MaxEventBytes < 1 || c.MaxEventBytes > 2<<20, "max_event_bytes: %d is not within 1 and 2 MiB", c.MaxEventBytes)
	bad(c.PublishDeadline < 0 || c.PublishDeadline > c.MaxWait,
		"publish_deadline_ms: %d is not within 1 and %d", c.PublishDeadline.Milliseconds(), c.MaxWait.Milliseconds())
	bad(c.MinReadRate < 0 || c.MaxHeaderBytes < 0 || c.MaxConnections < 0 || c.MaxSubscribers < 0 || c.ReadHeaderTimeout < 0 || c.IdleTimeout < 0 ||
		c.ReadGrace < 0 || c.MaxWait < 0 || c.SlowReader < 0 || c.Heartbeat < 0 || c.DrainTimeout < 0, "http: a limit is negative")
	return errors.Join(errs...)
}

// Deps are the parts that the front door stands on.
type Deps struct {
	Publisher  flow.Publisher
	Subscriber flow.Subscriber
	Streams    flow.Streams
	Archives   flow.Archives
	Mesh       Mesh
	Ops        Operator
	// Budget bounds the memory of bodies being read; nil: 64 MiB of its own. It must not be the one that Publisher draws from:
	// bodies that hold all of it would then wait for themselves.
	Budget Budget
	// Auth decides who may do what; nil: everyone may do everything (and Listen insists on loopback or Config.Insecure).
	Auth Authorizer
	// Owner names the node believed to own a partition, or ""; it answers from memory. nil: no Skein-Owner hints.
	Owner func(stream string, p ring.PartitionID) string
	// Routes are added to the server's own.
	Routes []Registrar
	// Log may be nil. Registerer and Gatherer may be nil: then nothing is counted and /metrics is empty.
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
}

// Budget is a bounded number of bytes. Safe for concurrent use.
type Budget interface {
	// Reserve takes n bytes, waiting until ctx ends for others to release theirs.
	Reserve(ctx context.Context, n int64) error
	// Release gives back n bytes.
	Release(n int64)
}

// Access says what a request wants to do.
type Access struct {
	Scope  Scope
	Stream string // "" where the route names none
}

// Scope is a kind of access.
type Scope string

// The scopes of routes.
const (
	ScopeOpen      Scope = "open" // anyone: health, version
	ScopeView      Scope = "view" // read what the mesh and its streams look like
	ScopePublish   Scope = "publish"
	ScopeSubscribe Scope = "subscribe"
	ScopeAdmin     Scope = "admin"
)

// Authorizer decides whether a request may go on. It is called before the body is read, concurrently, and must not block for
// long. A refusal is a *Problem (Unauthorized or Forbidden); ctx may be enriched with who the caller is.
type Authorizer interface {
	Authorize(c *Call, a Access) (context.Context, error)
}

// Registrar brings further routes.
type Registrar interface {
	Routes() []Route
}

// Mesh is what this node knows of the mesh. All methods are safe for concurrent use, answer from memory, and give the
// caller values that nobody changes afterwards.
type Mesh interface {
	Summary(ctx context.Context) (MeshSummary, error)
	Members(ctx context.Context) (MeshMembers, error)
	Ring(ctx context.Context) (MeshRing, error)
	// Partitions lists the partitions of one stream, or of all where stream is "".
	Partitions(ctx context.Context, stream string) (MeshPartitions, error)
	// Readiness lists every condition for taking traffic; the node is ready when all are OK.
	Readiness(ctx context.Context) []Check
}
