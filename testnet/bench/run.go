package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// Options say what to run.
type Options struct {
	Skein string // path of the skein binary; empty: NATS alone
	Natsd string // path of the natsd binary; empty: Skein alone
	Pairs int    // repetitions; default 5
	Rows  string // regular expression of metric names; default all
	Dir   string // parent of the temporary data folder; default the system's
	// Limit bounds the whole run: a pair that would end later is not begun, and Run returns ErrTooFewPairs. Default 24 min.
	Limit time.Duration
	Log   io.Writer // progress, one line a row
}

func (o *Options) defaults() error {
	for _, bin := range []*string{&o.Skein, &o.Natsd} {
		if *bin == "" {
			continue
		}
		abs, err := filepath.Abs(*bin)
		if err != nil {
			return err
		}
		if _, err := os.Stat(abs); err != nil {
			return err
		}
		*bin = abs
	}
	if o.Skein == "" && o.Natsd == "" {
		return errors.New("name at least one of the binaries")
	}
	if o.Pairs < 1 {
		o.Pairs = 5
	}
	if o.Limit <= 0 {
		o.Limit = 24 * time.Minute
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	return nil
}

type runner struct {
	o     Options
	match *regexp.Regexp
	loads loads
	rep   *Report
}

// Run runs all pairs. A row that fails in one system is noted in the report and the run goes on; what was measured is returned even with
// an error.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	match, err := regexp.Compile(o.Rows)
	if err != nil {
		return nil, fmt.Errorf("rows: %w", err)
	}
	rng := rand.New(rand.NewPCG(1, 2)) // the same payloads in every run
	r := &runner{o: o, match: match, rep: newReport()}
	r.loads = loads{
		newPayloads(1024, true, rng), newPayloads(1024, false, rng),
		newPayloads(128, true, rng), newPayloads(128, false, rng),
	}
	began := time.Now()
	return r.rep, r.all(func(pair int) error { return r.pair(ctx, pair) }, func() time.Duration { return time.Since(began) })
}

// ErrTooFewPairs is how a run ends that had no time for all pairs that were asked for.
var ErrTooFewPairs = errors.New("TOO FEW PAIRS")

// all runs the pairs, as far as they fit into the limit; spent is the time since the run began.
func (r *runner) all(run func(pair int) error, spent func() time.Duration) error {
	r.rep.Asked = r.o.Pairs
	for pair := range r.o.Pairs {
		if s := spent(); pair > 0 && s+s/time.Duration(pair) > r.o.Limit {
			return fmt.Errorf("%w: %d of %d ran, for another would pass the limit of %v; give a longer one (-limit)",
				ErrTooFewPairs, pair, r.o.Pairs, r.o.Limit)
		}
		if err := run(pair); err != nil {
			return err
		}
		r.rep.Pairs++
	}
	return nil
}

// pair starts all systems afresh and runs every row in each, in turns.
func (r *runner) pair(ctx context.Context, pair int) error {
	dir, err := os.MkdirTemp(r.o.Dir, "skein-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	systems := r.systems(dir)
	if pair%2 == 1 {
		slices.Reverse(systems) // nobody is always first
	}
	defer func() {
		for _, s := range systems {
			s.stop()
		}
	}()
	var up []system
	for _, s := range systems {
		began := time.Now()
		err := s.start(ctx)
		r.note(pair, s, []metric{startMetric}, []float64{milliseconds(time.Since(began))}, err)
		if err != nil {
			s.stop()
			continue // the others can still be measured
		}
		up = append(up, s)
	}
	if len(up) == 0 {
		return errors.New("no system came up")
	}
	r.each(ctx, pair, up, row{[]metric{idleMetric}, func(_ context.Context, s system, _ *loads) ([]float64, error) {
		v, err := memoryOf(s, "VmRSS")
		return []float64{v}, err
	}})
	for _, w := range inSystem() {
		r.each(ctx, pair, up, w)
	}
	r.each(ctx, pair, up, row{[]metric{peakMetric}, func(_ context.Context, s system, _ *loads) ([]float64, error) {
		v, err := memoryOf(s, "VmHWM")
		return []float64{v}, err
	}})
	r.each(ctx, pair, up, row{[]metric{failoverMetric}, func(ctx context.Context, s system, l *loads) ([]float64, error) {
		v, err := failover(ctx, s, l)
		return []float64{v}, err
	}})
	return ctx.Err()
}

func (r *runner) systems(dir string) []system {
	var out []system
	if r.o.Skein != "" {
		out = append(out, newMesh(r.o.Skein, dir))
	}
	if r.o.Natsd != "" {
		out = append(out, newNATS(r.o.Natsd, dir, natsAlways, "always"), newNATS(r.o.Natsd, dir, natsDefault, ""))
	}
	return out
}

// each runs one row in every system, unless none of its metrics is wanted.
func (r *runner) each(ctx context.Context, pair int, systems []system, w row) {
	if !slices.ContainsFunc(w.metrics, func(m metric) bool { return r.match.MatchString(m.name) }) {
		return
	}
	for _, s := range systems {
		if ctx.Err() != nil {
			return
		}
		limited, cancel := context.WithTimeout(ctx, 90*time.Second)
		v, err := w.run(limited, s, &r.loads)
		cancel()
		r.note(pair, s, w.metrics, v, err)
	}
}

func (r *runner) note(pair int, s system, ms []metric, v []float64, err error) {
	for i, m := range ms {
		if err != nil {
			r.rep.fail(m, s.name(), pair, err)
			fmt.Fprintf(r.o.Log, "pair %d  %-22s %-13s failed: %v\n", pair+1, m.name, s.name(), err)
			continue
		}
		r.rep.add(m, s.name(), pair, v[i])
		fmt.Fprintf(r.o.Log, "pair %d  %-22s %-13s %12.1f %s\n", pair+1, m.name, s.name(), v[i], m.unit)
	}
}
