package api

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what the front door does. Routes are labels, streams and keys never are.
type metrics struct {
	requests   *prometheus.CounterVec
	seconds    map[*Route]prometheus.Observer
	inFlight   atomic.Int64
	published  map[string]prometheus.Counter // by outcome
	pubBytes   prometheus.Counter
	delivered  map[string]prometheus.Counter // by format
	subs       *prometheus.GaugeVec
	blocked    prometheus.Counter
	goneSlow   prometheus.Counter
	overBudget prometheus.Counter

	refusedConns prometheus.Counter

	mu     sync.RWMutex
	cached map[reqKey]prometheus.Counter
}

type reqKey struct {
	route  *Route
	method string
	status int
}

func newMetrics(reg prometheus.Registerer, routes []*Route, openConns func() int64) *metrics {
	m := &metrics{cached: map[reqKey]prometheus.Counter{}, seconds: map[*Route]prometheus.Observer{},
		published: map[string]prometheus.Counter{}, delivered: map[string]prometheus.Counter{}}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_http_requests_total",
		Help: "Requests answered, by route, method and status."}, []string{"route", "method", "status"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "skein_http_request_seconds",
		Help:    "Time from the request's headers to the end of the answer; subscriptions are not in it.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"route"})
	inFlight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skein_http_requests_in_flight",
		Help: "Requests being served, subscriptions included."}, func() float64 { return float64(m.inFlight.Load()) })
	published := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_http_published_events_total",
		Help: "Events of publish requests over HTTP, by outcome; malformed ones are not in it."}, []string{"outcome"})
	m.pubBytes = prometheus.NewCounter(prometheus.CounterOpts{Name: "skein_http_published_bytes_total",
		Help: "Bytes of the values of events handed on for publishing."})
	delivered := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_http_delivered_events_total",
		Help: "Events written to subscribers, by format."}, []string{"format"})
	m.subs = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "skein_http_subscribers",
		Help: "Open subscriptions, by format."}, []string{"format"})
	m.blocked = prometheus.NewCounter(prometheus.CounterOpts{Name: "skein_http_subscriber_blocked_seconds_total",
		Help: "Time that subscriptions waited for their reader's socket."})
	m.goneSlow = prometheus.NewCounter(prometheus.CounterOpts{Name: "skein_http_subscribers_timed_out_total",
		Help: "Subscriptions ended because one write took longer than the slow-reader limit."})
	m.overBudget = prometheus.NewCounter(prometheus.CounterOpts{Name: "skein_http_body_budget_refused_total",
		Help: "Requests refused because the memory for bodies was taken."})
	conns := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skein_http_connections",
		Help: "Open connections, idle ones included."}, func() float64 { return float64(openConns()) })
	m.refusedConns = prometheus.NewCounter(prometheus.CounterOpts{Name: "skein_http_connections_refused_total",
		Help: "Connections closed at once because the node had as many as it takes."})
	for _, o := range []string{"stored", "duplicate", "failed"} {
		m.published[o] = published.WithLabelValues(o)
	}
	for _, f := range []string{formatSSE, formatNDJSON, formatJSON} {
		m.delivered[f] = delivered.WithLabelValues(f)
		m.subs.WithLabelValues(f)
	}
	for _, rt := range append(routes, unrouted) {
		m.seconds[rt] = seconds.WithLabelValues(rt.Pattern)
	}
	if reg != nil {
		reg.MustRegister(m.requests, seconds, inFlight, published, m.pubBytes, delivered, m.subs, m.blocked, m.goneSlow, m.overBudget, conns, m.refusedConns)
	}
	return m
}

func (m *metrics) done(c *Call, took time.Duration) {
	status := c.w.status
	if status == 0 {
		status = 499 // the client left before an answer
	}
	method := c.R.Method
	if c.route == unrouted {
		method = "any" // the client's word: unbounded
	}
	key := reqKey{c.route, method, status}
	m.mu.RLock()
	n := m.cached[key]
	m.mu.RUnlock()
	if n == nil {
		n = m.requests.WithLabelValues(c.route.Pattern, method, strconv.Itoa(status))
		m.mu.Lock()
		m.cached[key] = n
		m.mu.Unlock()
	}
	n.Inc()
	if !c.route.Stream {
		m.seconds[c.route].Observe(took.Seconds())
	}
}
