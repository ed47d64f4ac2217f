package transport

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/transport/wire"
)

// metrics are unregistered when no Registerer was given; counting costs the same.
type metrics struct {
	messages  *prometheus.CounterVec // class
	dropped   *prometheus.CounterVec // class, reason
	bytesOut  *prometheus.CounterVec // class
	calls     *prometheus.CounterVec // class, result
	serving   *prometheus.GaugeVec   // kind
	queued    *prometheus.GaugeVec   // class
	up        prometheus.Gauge
	connects  *prometheus.CounterVec // result
	handshake *prometheus.CounterVec // reason
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_transport_" + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "skein_transport_" + name, Help: help}, labels)
	}
	m := &metrics{
		messages:  counter("messages_total", "One-way messages queued for peers, by class of connection.", "class"),
		dropped:   counter("messages_dropped_total", "One-way messages dropped before they left, by class and reason.", "class", "reason"),
		bytesOut:  counter("sent_bytes_total", "Bytes of one-way messages and requests handed to connections, by class; opened streams are not in it.", "class"),
		calls:     counter("calls_total", "Requests to peers, this node included, by class and outcome.", "class", "result"),
		serving:   gauge("serving", "Requests and opened streams of peers that are being served, by kind.", "kind"),
		queued:    gauge("queued_bytes", "Bytes of one-way messages that wait to be sent, by class.", "class"),
		up:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "skein_transport_peers_up", Help: "Peers with a working control connection."}),
		connects:  counter("connects_total", "Connection attempts to peers, by result.", "result"),
		handshake: counter("refused_handshakes_total", "Handshakes refused on either side, by reason.", "reason"),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.messages, m.dropped, m.bytesOut, m.calls, m.serving, m.queued, m.up, m.connects, m.handshake} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func className(c wire.Class) string {
	if c == wire.ClassBulk {
		return "bulk"
	}
	return "control"
}
