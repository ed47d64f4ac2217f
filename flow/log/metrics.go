package log

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// journalMetrics are counted even where there is no registry.
type journalMetrics struct {
	commits, bytes, cacheHits, cacheMisses prometheus.Counter
	fileBytes, cacheBytes, full            prometheus.Gauge
	fsync                                  prometheus.Histogram
}

func newJournalMetrics(reg prometheus.Registerer, q *queue) *journalMetrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "skein_journal_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "skein_journal_" + name, Help: help})
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "skein_journal_queue_bytes", Help: "Bytes that wait for the writer or are being written."},
		func() float64 { return float64(q.size()) })
	return &journalMetrics{
		commits:     counter("commits_total", "Group commits: writes that carry what many groups wanted at the time."),
		bytes:       counter("written_bytes_total", "Bytes written to journal files."),
		cacheHits:   counter("reads_cached_total", "Reads of log entries that memory served."),
		cacheMisses: counter("reads_disk_total", "Reads of log entries that needed the disk."),
		fileBytes:   gauge("file_bytes", "Size of all journal files, what is preallocated included."),
		cacheBytes:  gauge("cache_bytes", "Bytes of recent entries held in memory."),
		full:        gauge("waiting_for_space", "1 while the journal waits for disk space: nothing is acknowledged meanwhile."),
		fsync: f.NewHistogram(prometheus.HistogramOpts{Name: "skein_journal_fsync_seconds", Help: "Time of one fdatasync of the journal.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}),
	}
}
