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
		events: vec("skein_publish_events_total", "Events published through this node, by outcome.", "outcome"),
		bytes:  vec("skein_publish_bytes_total", "Bytes of events published through this node, by outcome.", "outcome"),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skein_publish_seconds",
			Help: "Time from a publish request to its acknowledgement, in seconds.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}),
		refused:        vec("skein_publish_refused_total", "Publish requests refused, by code.", "code"),
		ownerCalls:     vec("skein_owner_calls_total", "Requests to owners of groups, by result.", "result"),
		sessionsOpened: counter("skein_publish_connections_total", "Connections of publish sessions accepted by owners."),
		ownerWaits:     counter("skein_publish_owner_waits_total", "Waits of an owner for its group's bound on uncommitted bytes."),
		readEvents:     counter("skein_subscribe_events_total", "Events given to subscribers."),
		readBytes:      counter("skein_subscribe_bytes_total", "Bytes of event values given to subscribers."),
		subscriptions:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "skein_subscriptions", Help: "Open subscriptions."}),
		feedRetries:    counter("skein_subscribe_feed_retries_total", "Times a partition's feed looked for another replica."),
	}
	if reg != nil {
		reg.MustRegister(m.events, m.bytes, m.latency, m.refused, m.ownerCalls, m.sessionsOpened, m.ownerWaits, m.readEvents,
			m.readBytes, m.subscriptions, m.feedRetries)
	}
	return m
}

// published counts a finished request.
func (m *metrics) published(req *request, size int64, took time.Duration) {
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
