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
		records:    counter("skein_partition_events_total", "Events stored, counted on every replica here."),
		duplicates: counter("skein_partition_duplicates_total", "Events not stored again because their identity is in the dedupe window, on every replica here."),
		reused:     counter("skein_partition_identity_reuse_total", "Events refused because their identity was used for other content, on every replica here."),
		retries:    counter("skein_partition_batch_retries_total", "Batches that came again after they had been applied, on every replica here."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_partition_batches_refused_total",
			Help: "Batches refused when they were applied, by kind of error, on every replica here."}, []string{"kind"}),
		identities: prometheus.NewGauge(prometheus.GaugeOpts{Name: "skein_partition_identities_held",
			Help: "Identities of all dedupe windows that are held in memory, at about 100 bytes each."}),
		lookups: counter("skein_partition_identity_store_lookups_total", "Lookups of identities in the state store, because memory does not hold the whole window."),
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
