package gossip

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmesh/skein/gossip/view"
)

// metrics count what this package drops, refuses and sees.
type metrics struct {
	dropped     *prometheus.CounterVec // by queue
	invalid     *prometheus.CounterVec // by what
	refused     *prometheus.CounterVec // by reason
	suspicions  prometheus.Counter
	refutes     prometheus.Counter
	excessConns prometheus.Counter
	joins       *prometheus.CounterVec // by result
	sent        *prometheus.CounterVec // by kind
	all         []prometheus.Collector // to unregister
}

func newMetrics(reg prometheus.Registerer, current func() *view.View) *metrics {
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_gossip_" + name, Help: help}, []string{label})
	}
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "skein_gossip_" + name, Help: help})
	}
	m := &metrics{
		dropped:     vec("dropped_total", "Items dropped because a queue was full, by queue.", "queue"),
		invalid:     vec("invalid_total", "What peers sent and did not decode, by what it was.", "what"),
		refused:     vec("refused_total", "Refusals of peers, by reason.", "reason"),
		suspicions:  one("suspicions_total", "Times a member failed a probe of this node."),
		refutes:     one("refutes_total", "Times that this node had to refute a suspicion; often means too little CPU."),
		excessConns: one("excess_connections_total", "Connections closed because too many were open, or brought too many bytes."),
		joins:       vec("joins_total", "Tries of seed addresses, by result.", "result"),
		sent:        vec("broadcasts_total", "Messages queued for spreading, own and relayed ones, by kind.", "kind"),
	}
	m.all = []prometheus.Collector{m.dropped, m.invalid, m.refused, m.suspicions, m.refutes, m.excessConns, m.joins, m.sent}
	for s := view.StateAlive; s <= view.StateLeft; s++ {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "skein_gossip_members", Help: "Members in this node's view, by state.",
			ConstLabels: prometheus.Labels{"state": s.String()},
		}, func() float64 { return float64(current().CountState(s)) }))
	}
	m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "skein_gossip_hints", Help: "Owner hints in this node's view.",
	}, func() float64 { return float64(current().CountHints()) }))
	m.register(reg)
	return m
}

// register leaves out what is there already: of two instances on one registry the second is not shown.
func (m *metrics) register(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	shown := m.all[:0]
	for _, c := range m.all {
		if reg.Register(c) == nil {
			shown = append(shown, c)
		}
	}
	m.all = shown
}

func (m *metrics) unregister(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	for _, c := range m.all {
		reg.Unregister(c)
	}
}
