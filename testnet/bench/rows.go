package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// metric is one figure of a row.
type metric struct {
	name string
	unit string
	// lower: less is better.
	lower bool
	// durable: the comparison that counts is with the system that fsyncs before it acknowledges.
	durable bool
}

// row is one kind of load. run returns one figure for each metric.
type row struct {
	metrics []metric
	run     func(ctx context.Context, s system, l *loads) ([]float64, error)
}

// loads are the payloads of all rows.
type loads struct{ json1k, random1k, json128, random128 *payloads }

const (
	batchedFor   = 3 * time.Second
	warmUp       = 500 * time.Millisecond
	oneFor       = 2 * time.Second
	pacedFor     = 3 * time.Second
	pacedRate    = 1000 // events a second
	readEvents   = 50_000
	defaultParts = 8 // a Skein stream's default
)

// inSystem are the rows that run within a started system, in this order; failover is last, for it takes a node away.
func inSystem() []row {
	return []row{
		batchedRow("publish-1k-json", 1, func(l *loads) *payloads { return l.json1k }),
		batchedRow("publish-1k-random", 1, func(l *loads) *payloads { return l.random1k }),
		batchedRow("publish-128-json", 1, func(l *loads) *payloads { return l.json128 }),
		batchedRow("publish-128-random", 1, func(l *loads) *payloads { return l.random128 }),
		batchedRow("publish-8-partitions", defaultParts, func(l *loads) *payloads { return l.json1k }),
		batchedRow("publish-64-partitions", 64, func(l *loads) *payloads { return l.json1k }),
		{[]metric{{"one-outstanding-p50", "ms", true, true}}, oneOutstanding},
		{[]metric{{"ack-at-1000-p50", "ms", true, true}, {"ack-at-1000-p99", "ms", true, true}}, paced},
		{[]metric{{"read-1k-json", "events/s", false, false}}, reading},
	}
}

var (
	startMetric    = metric{"start", "ms", true, false}
	idleMetric     = metric{"memory-idle", "MiB/node", true, false}
	peakMetric     = metric{"memory-peak", "MiB/node", true, false}
	failoverMetric = metric{"failover", "ms", true, false}
)

// scratch runs f with a stream of its own.
func scratch(ctx context.Context, s system, name string, partitions int, f func(stream string) error) error {
	if err := s.create(ctx, name, partitions); err != nil {
		return err
	}
	return errors.Join(f(name), s.remove(ctx, name))
}

func batchedRow(name string, partitions int, pick func(*loads) *payloads) row {
	run := func(ctx context.Context, s system, l *loads) (out []float64, err error) {
		err = scratch(ctx, s, name, partitions, func(stream string) error {
			if _, _, err := s.batched(ctx, stream, pick(l), warmUp, 0); err != nil {
				return err
			}
			_, rate, err := s.batched(ctx, stream, pick(l), batchedFor, 0)
			out = []float64{rate}
			return err
		})
		return out, err
	}
	return row{[]metric{{name, "events/s", false, true}}, run}
}

// oneOutstanding publishes one event after the other.
func oneOutstanding(ctx context.Context, s system, l *loads) (out []float64, err error) {
	err = scratch(ctx, s, "one-outstanding", 1, func(stream string) error {
		publish, done, err := s.one(ctx, stream)
		if err != nil {
			return err
		}
		defer done()
		var took []float64
		for began, i := time.Now(), 0; time.Since(began) < warmUp+oneFor; i++ {
			t := time.Now()
			if err := publish(ctx, l.json1k.values[i%len(l.json1k.values)]); err != nil {
				return err
			}
			if t.Sub(began) > warmUp {
				took = append(took, milliseconds(time.Since(t)))
			}
		}
		out = []float64{percentile(took, 50)}
		return nil
	})
	return out, err
}

// paced publishes at a fixed rate, whether or not earlier events are acknowledged, and counts from when each was due: what waits because
// the system is slow is the system's delay.
func paced(ctx context.Context, s system, l *loads) (out []float64, err error) {
	err = scratch(ctx, s, "paced", 1, func(stream string) error {
		publish, done, err := s.one(ctx, stream)
		if err != nil {
			return err
		}
		defer done()
		var (
			mu   sync.Mutex
			took []float64
			bad  error
			wg   sync.WaitGroup
			room = make(chan struct{}, 512)
		)
		began := time.Now()
		total := int((warmUp + pacedFor).Seconds() * pacedRate)
		for i := range total {
			due := began.Add(time.Duration(i) * time.Second / pacedRate)
			time.Sleep(time.Until(due))
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				err := publish(ctx, l.json1k.values[i%len(l.json1k.values)])
				d := time.Since(due)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					bad = err
				}
				if due.Sub(began) > warmUp {
					took = append(took, milliseconds(d))
				}
			})
		}
		wg.Wait()
		out = []float64{percentile(took, 50), percentile(took, 99)}
		return bad
	})
	return out, err
}

func reading(ctx context.Context, s system, l *loads) (out []float64, err error) {
	err = scratch(ctx, s, "reading", 1, func(stream string) error {
		n, _, err := s.batched(ctx, stream, l.json1k, 20*time.Second, readEvents)
		if err != nil {
			return err
		}
		rate, err := s.read(ctx, stream, n)
		out = []float64{rate}
		return err
	})
	return out, err
}

// failover kills the leading process of a stream and returns the milliseconds until an event sent after the kill is acknowledged. A new try
// starts every 20 ms, so that no client's time-out hides the answer.
func failover(ctx context.Context, s system, l *loads) (float64, error) {
	const stream = "failover"
	if err := s.create(ctx, stream, 1); err != nil {
		return 0, err
	}
	var leader int
	err := until(10*time.Second, s.name()+": leader", s.processes(), func() (err error) {
		leader, err = s.owner(ctx, stream)
		return err
	})
	if err != nil {
		return 0, err
	}
	publish, done, err := s.survivors(ctx, stream, leader)
	if err != nil {
		return 0, err
	}
	defer done()
	value := l.json1k.values[0]
	for range 50 {
		if err := publish(ctx, value); err != nil {
			return 0, fmt.Errorf("before the kill: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	s.processes()[leader].kill()
	killed := time.Now()
	acked := make(chan time.Duration, 1)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		wg.Go(func() {
			try, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			if publish(try, value) == nil {
				select {
				case acked <- time.Since(killed):
				default:
				}
			}
		})
		select {
		case d := <-acked:
			return milliseconds(d), nil
		case <-ctx.Done():
			return 0, errors.New("no acknowledgement within 30 s of the kill")
		case <-tick.C:
		}
	}
}

// memoryOf is the mean over a system's processes, in MiB.
func memoryOf(s system, field string) (float64, error) {
	sum := 0.0
	for _, p := range s.processes() {
		v, err := p.memory(field)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum / float64(len(s.processes())), nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile is the nearest-rank percentile; 0 of nothing.
func percentile(v []float64, p int) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[min(len(v)-1, (len(v)*p+99)/100-1)]
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
