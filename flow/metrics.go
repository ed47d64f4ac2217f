package flow

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/transport/wire"
)

// metrics counts what a Broker does. Streams and keys are no labels: their number has no bound.
type metrics struct {
	events, bytes  *prometheus.CounterVec // by outcome
	latency        prometheus.Histogram
	refused        *prometheus.CounterVec // by code
	ownerCalls     *prometheus.CounterVec // by result
	sessionsOpened prometheus.Counter
	ownerWaits     prometheus.Counter
	readEvents     prometheus.Counter
	readBytes      prometheus.Counter
	subscriptions  prometheus.Gauge
	feedRetries    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		events: vec("skein_publish_events_total", "Events of publish requests to this node, by outcome.", "outcome"),
		bytes:  vec("skein_publish_bytes_total", "Bytes of those events (keys, values, attributes, headers), by outcome; a request's bytes are shared evenly over its events.", "outcome"),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skein_publish_seconds",
			Help: "Time from a publish request to the acknowledgement of all its events; requests that stored nothing are not in it.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}),
		refused:        vec("skein_publish_refused_total", "Publish requests of which nothing was stored, by code.", "code"),
		ownerCalls:     vec("skein_owner_calls_total", "Attempts to reach the owner of a group (requests, and connections of publish sessions), by result.", "result"),
		sessionsOpened: counter("skein_publish_connections_total", "Connections of this node's publish sessions that an owner accepted: the first ones, and those after a change of owner."),
		ownerWaits:     counter("skein_publish_owner_waits_total", "Times a batch waited here, at its owner, for the group's bound on uncommitted bytes."),
		readEvents:     counter("skein_subscribe_events_total", "Events read for subscribers of this node."),
		readBytes:      counter("skein_subscribe_bytes_total", "Bytes of the values of those events."),
		subscriptions:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "skein_subscriptions", Help: "Open subscriptions, pages and single reads included."}),
		feedRetries:    counter("skein_subscribe_feed_retries_total", "Times the reading of one partition had to look for another replica."),
	}
	if reg != nil {
		reg.MustRegister(m.events, m.bytes, m.latency, m.refused, m.ownerCalls, m.sessionsOpened, m.ownerWaits, m.readEvents,
			m.readBytes, m.subscriptions, m.feedRetries)
	}
	return m
}

// refusal counts a request of which nothing was stored. Codes come from other nodes too: only the API's own become labels.
func (m *metrics) refusal(err error) {
	code := wire.CodeOf(err)
	switch code {
	case wire.CodeNoQuorum, wire.CodeOverloaded, wire.CodeDraining, wire.CodeDiskFull, wire.CodeTooFewCopies, wire.CodeOutcomeUnknown,
		wire.CodeStreamNotFound, wire.CodeIdempotencyReuse, wire.CodeTooLarge:
	default:
		code = "other"
	}
	m.refused.WithLabelValues(code).Inc()
}

// published counts a finished request.
func (m *metrics) published(req *request, size int64, took time.Duration) {
	size -= eventOverhead * int64(len(req.results)) // charged to the budget, but no event's bytes
	stored, dup, failed, unknown := 0, 0, 0, 0
	for i := range req.results {
		switch r := &req.results[i]; {
		case r.Err == nil && r.Duplicate:
			dup++
		case r.Err == nil:
			stored++
		case wire.KindOf(r.Err) == wire.KindOutcomeUnknown:
			unknown++
		default:
			failed++
		}
	}
	add := func(outcome string, n int) {
		if n > 0 {
			m.events.WithLabelValues(outcome).Add(float64(n))
			m.bytes.WithLabelValues(outcome).Add(float64(size) * float64(n) / float64(len(req.results)))
		}
	}
	add("stored", stored)
	add("duplicate", dup)
	add("failed", failed)
	add("unknown", unknown)
	if stored+dup > 0 {
		m.latency.Observe(took.Seconds())
	}
}
