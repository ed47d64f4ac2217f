package replica

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	groups          prometheus.Gauge
	damaged         prometheus.Gauge
	closed          prometheus.Gauge
	owned           prometheus.Gauge
	elections       prometheus.Counter // ownerships won
	proposals       *prometheus.CounterVec
	proposed        prometheus.Counter // proposals with outcome ok
	dropped         *prometheus.CounterVec
	sent            *prometheus.CounterVec
	applySeconds    prometheus.Histogram
	appendSeconds   prometheus.Histogram
	appliedEntries  prometheus.Counter
	snapshots       *prometheus.CounterVec
	snapshotBytes   *prometheus.CounterVec
	snapshotRate    prometheus.Gauge
	checkpoints     prometheus.Counter
	checkpointFails prometheus.Counter
	steps           *prometheus.CounterVec
	resting         prometheus.Gauge
	roused          *prometheus.CounterVec
	moves           *prometheus.CounterVec
	removed         prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "skein_replica_" + name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skein_replica_" + name, Help: help}, []string{label})
	}
	latency := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "skein_replica_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(50e-6, 2.5, 13)})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "skein_replica_" + name, Help: help})
	}
	m := &metrics{
		groups:          gauge("groups", "Replicas running on this node."),
		damaged:         gauge("damaged_groups", "Replicas that neither lead nor serve because their bytes on disk are damaged, until they have them from another one."),
		closed:          gauge("closed_groups", "Replicas that stopped, or cannot be opened, and do not come back while the node runs; their groups replace them after replace_after."),
		owned:           gauge("owned_groups", "Groups that this node owns."),
		elections:       counter("elections_won_total", "Ownerships that this node won, by election or hand-over."),
		proposals:       vec("proposals_total", "Proposals to groups owned here, by outcome.", "outcome"),
		dropped:         vec("messages_dropped_total", "Raft messages dropped, by reason.", "reason"),
		sent:            vec("frames_sent_total", "Frames handed to the transport, each with raft messages of many groups, by class.", "class"),
		applySeconds:    latency("apply_seconds", "Time to apply one run of committed entries, with the commit to the state store."),
		appendSeconds:   latency("append_seconds", "Time from handing a write to the journal until it is durable, queueing included."),
		appliedEntries:  counter("applied_entries_total", "Committed entries applied, on every replica here."),
		snapshots:       vec("snapshots_total", "Snapshots of groups, by direction and result.", "result"),
		snapshotBytes:   vec("snapshot_bytes_total", "Bytes of snapshots and of fetched batches, by direction.", "direction"),
		snapshotRate:    gauge("snapshot_rate_limit_bytes", "Bytes per second that snapshots may take here beside publishers; 0: nobody publishes, no limit."),
		checkpoints:     counter("checkpoints_total", "Rounds in which applied state was made durable outside the journal."),
		checkpointFails: counter("checkpoint_failures_total", "Such rounds that failed; the node stops then."),
		moves:           vec("moves_total", "Moves of replicas for balance or by an operator that owners here asked for, by what became of them.", "result"),
		removed:         counter("replicas_removed_total", "Replicas removed here because their group has them no longer."),
		steps:           vec("membership_steps_total", "Membership steps that owners here started, by kind.", "kind"),
		resting:         gauge("resting_groups", "Replicas here that rest: nothing is to be done in them, and no heartbeat is sent for them."),
		roused:          vec("roused_total", "Times that resting replicas woke up, by what woke them.", "reason"),
	}
	m.proposed = m.proposals.WithLabelValues("ok")
	if reg != nil {
		reg.MustRegister(m.groups, m.damaged, m.closed, m.owned, m.elections, m.proposals, m.dropped, m.sent, m.applySeconds, m.appendSeconds,
			m.appliedEntries, m.snapshots, m.snapshotBytes, m.snapshotRate, m.checkpoints, m.checkpointFails, m.steps, m.resting, m.roused, m.moves, m.removed)
	}
	return m
}
