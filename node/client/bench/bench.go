package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
)

// Config says what load to make.
type Config struct {
	Stream  string
	Events  int // in all
	Size    int // bytes of a value
	Clients int // requests in flight
	Batch   int // events in a request
	// Keys is how many keys there are; 0: none. KeySkew is the exponent of their Zipf distribution: 0 even, 1.2 as in many caches.
	Keys    int
	KeySkew float64
	// Random makes values incompressible; else they look like JSON.
	Random  bool
	AckNone bool
	Seed    uint64
	// OnProgress, where not nil, is told a few times a second how many events are acknowledged.
	OnProgress func(done int)
}

// Report is what came of it.
type Report struct {
	Stream          string  `json:"stream"`
	Events          int     `json:"events"`
	Failed          int     `json:"failed"`
	Bytes           int64   `json:"bytes"`
	Seconds         float64 `json:"seconds"`
	EventsPerSecond float64 `json:"events_per_second"`
	MBPerSecond     float64 `json:"mb_per_second"` // 10^6 bytes of values
	Requests        int     `json:"requests"`
	Latency         Latency `json:"latency_ms"`
	FirstError      string  `json:"first_error,omitempty"`
	// PerPartition counts the stored events by partition.
	PerPartition map[uint32]int `json:"per_partition"`
}

// Latency is of requests, in milliseconds.
type Latency struct {
	Min  float64 `json:"min"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// Validate says what is wrong with the configuration; it changes nothing.
func (c Config) Validate() error {
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Events < 1, "events: %d: 1 or more is wanted", c.Events)
	bad(c.Size < 0 || c.Size > 2<<20, "size: %d is outside 0 and 2 MiB", c.Size)
	bad(c.Clients < 1 || c.Clients > 10_000, "clients: %d is outside 1 and 10000", c.Clients)
	bad(c.Batch < 1 || c.Batch > 10_000, "batch: %d is outside 1 and 10000", c.Batch)
	bad(c.Keys < 0 || c.Keys > 100_000_000, "keys: %d is outside 0 and 100000000", c.Keys)
	bad(c.KeySkew < 0 || c.KeySkew > 10 || math.IsNaN(c.KeySkew), "key-skew: %g is outside 0 and 10", c.KeySkew)
	return errors.Join(errs...)
}

// worker is one client.
type worker struct {
	cfg       *Config
	rng       *rand.Rand
	keys      *zipf
	filler    []byte
	latencies []time.Duration
	parts     map[uint32]int
	failed    int
	first     error
}

// Run makes the load through the clients given, in turn, and reports. It returns an error only where the configuration is
// wrong or ctx ended before anything was stored; refusals are counted in the report.
func Run(ctx context.Context, clients []*client.Client, cfg Config) (Report, error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	var next, done atomic.Int64
	workers := make([]*worker, min(cfg.Clients, cfg.Events))
	keys := newZipf(cfg.Keys, cfg.KeySkew)
	stop := tick(&cfg, &done)
	begin := time.Now()
	var g errgroup.Group
	for i := range workers {
		w := &worker{cfg: &cfg, rng: rand.New(rand.NewPCG(cfg.Seed, uint64(i))), keys: keys, parts: map[uint32]int{}}
		w.filler = filler(w.rng, cfg.Size, cfg.Random)
		workers[i] = w
		c := clients[i%len(clients)]
		g.Go(func() error { w.loop(ctx, c, &next, &done); return nil })
	}
	_ = g.Wait() // the workers keep their errors
	took := time.Since(begin)
	stop()
	r := report(&cfg, workers, took)
	if r.Events == 0 && ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	return r, nil
}

func tick(cfg *Config, done *atomic.Int64) (stop func()) {
	if cfg.OnProgress == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				cfg.OnProgress(int(done.Load()))
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

func (w *worker) loop(ctx context.Context, c *client.Client, next, done *atomic.Int64) {
	batch := make([]client.Event, 0, w.cfg.Batch)
	for ctx.Err() == nil {
		from := next.Add(int64(w.cfg.Batch)) - int64(w.cfg.Batch)
		n := min(int64(w.cfg.Batch), int64(w.cfg.Events)-from)
		if n <= 0 {
			return
		}
		batch = batch[:0]
		for i := range n {
			batch = append(batch, w.event(from+i))
		}
		begin := time.Now()
		res, err := c.PublishBatch(ctx, w.cfg.Stream, batch, client.PublishOptions{AckNone: w.cfg.AckNone})
		w.latencies = append(w.latencies, time.Since(begin))
		if err != nil {
			w.fail(int(n), err)
			continue
		}
		for _, r := range res {
			if r.Err != nil {
				w.fail(1, r.Err)
				continue
			}
			w.parts[r.Partition]++
			done.Add(1)
		}
	}
}

func (w *worker) fail(n int, err error) {
	w.failed += n
	if w.first == nil {
		w.first = err
	}
}

func (w *worker) event(n int64) client.Event {
	ev := client.Event{ContentType: client.TextPlain}
	if w.cfg.Random {
		ev.ContentType = "application/octet-stream"
	}
	head := fmt.Appendf(nil, `{"n":%d,"at":%d,`, n, w.rng.Uint32())
	ev.Value = append(head, w.filler...)
	if len(ev.Value) > w.cfg.Size {
		ev.Value = ev.Value[:w.cfg.Size]
	}
	if w.cfg.Keys > 0 {
		ev.Key, ev.HasKey = fmt.Appendf(nil, "key-%d", w.keys.draw(w.rng)), true
	}
	return ev
}

// filler is random bytes, or text with the entropy of ordinary JSON.
func filler(rng *rand.Rand, size int, random bool) []byte {
	out := make([]byte, 0, size+64)
	for len(out) < size {
		if random {
			out = append(out, byte(rng.Uint32()))
			continue
		}
		out = fmt.Appendf(out, `"%s":"%x","%s":%d,`, words[rng.IntN(len(words))], rng.Uint32(), words[rng.IntN(len(words))], rng.IntN(100_000))
	}
	return out[:size]
}

var words = []string{"customer", "status", "amount", "currency", "warehouse", "shipped", "items", "region", "priority", "reference"}

func report(cfg *Config, workers []*worker, took time.Duration) Report {
	r := Report{Stream: cfg.Stream, Seconds: took.Seconds(), PerPartition: map[uint32]int{}}
	var all []time.Duration
	for _, w := range workers {
		for p, n := range w.parts {
			r.PerPartition[p] += n
			r.Events += n
		}
		r.Failed += w.failed
		if w.first != nil && r.FirstError == "" {
			r.FirstError = w.first.Error()
		}
		all = append(all, w.latencies...)
	}
	r.Bytes = int64(r.Events) * int64(cfg.Size)
	r.EventsPerSecond = float64(r.Events) / max(r.Seconds, 1e-9)
	r.MBPerSecond = float64(r.Bytes) / 1e6 / max(r.Seconds, 1e-9)
	r.Requests = len(all)
	slices.Sort(all)
	r.Latency = Latency{Min: quantile(all, 0), P50: quantile(all, 0.5), P90: quantile(all, 0.9), P99: quantile(all, 0.99), P999: quantile(all, 0.999), Max: quantile(all, 1)}
	return r
}

// quantile of sorted durations, in ms, by nearest rank.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := min(max(int(math.Ceil(q*float64(len(sorted))))-1, 0), len(sorted)-1)
	return float64(sorted[i]) / float64(time.Millisecond)
}
