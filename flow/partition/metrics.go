package partition

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what the partitions of one node do. A nil *Metrics counts nothing.
type Metrics struct {
	records    prometheus.Counter
	duplicates prometheus.Counter
	reused     prometheus.Counter
	retries    prometheus.Counter
	refused    *prometheus.CounterVec
	identities prometheus.Gauge
	lookups    prometheus.Counter
}

// NewMetrics makes the metrics and registers them with reg; nil: they are kept without being shown.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		records:    counter("skein_partition_records_total", "Records applied, on every replica of this node."),
		duplicates: counter("skein_partition_duplicates_total", "Records not stored again: their identity is in the dedupe window."),
		reused:     counter("skein_partition_identity_reuse_total", "Records refused: their identity was used for other content."),
		retries:    counter("skein_partition_batch_retries_total", "Batches that had been applied before."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_partition_batches_refused_total",
			Help: "Batches refused at apply, by the kind of the refusal."}, []string{"kind"}),
		identities: prometheus.NewGauge(prometheus.GaugeOpts{Name: "skein_partition_identities_held",
			Help: "Identities of dedupe windows in memory."}),
		lookups: counter("skein_partition_identity_store_lookups_total", "Identities looked up in the store, for they may be there and not in memory."),
	}
	if reg != nil {
		reg.MustRegister(m.records, m.duplicates, m.reused, m.retries, m.refused, m.identities, m.lookups)
	}
	return m
}

func (m *Metrics) hold(n int) {
	if m != nil {
		m.identities.Add(float64(n))
	}
}

func (m *Metrics) lookup() {
	if m != nil {
		m.lookups.Inc()
	}
}

func (m *Metrics) batch(r *BatchResult) {
	switch {
	case m == nil:
	case r.Err != nil:
		m.refused.WithLabelValues(r.Err.Kind.String()).Inc()
	case r.Retry:
		m.retries.Inc()
	default:
		reused := 0
		for i := range r.Dups {
			if r.Dups[i].Reused {
				reused++
			}
		}
		m.records.Add(float64(int(r.Count) - len(r.Dups)))
		m.duplicates.Add(float64(len(r.Dups) - reused))
		m.reused.Add(float64(reused))
	}
}
