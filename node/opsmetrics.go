package node

import (
	"github.com/prometheus/client_golang/prometheus"
)

type opsMetrics struct {
	ended *prometheus.CounterVec
}

func newOpsMetrics(reg prometheus.Registerer, o *operator) opsMetrics {
	m := opsMetrics{ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_operations_total",
		Help: "Operations kept here that have ended, by kind and how."}, []string{"kind", "state"})}
	reg.MustRegister(m.ended, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skein_operations_running",
		Help: "Operations kept here that are under way."}, func() float64 {
		o.mu.Lock()
		defer o.mu.Unlock()
		return float64(o.table.CountRunning())
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skein_node_draining",
		Help: "1 while an operator's drain of this node stands, ended or not; else 0."}, func() float64 {
		if o.n.data.marks().draining() {
			return 1
		}
		return 0
	}))
	return m
}
