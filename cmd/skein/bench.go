package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/client/bench"
)

func (p *process) benchCommand() *cobra.Command {
	var s serverFlags
	var o outputFlag
	cfg := bench.Config{}
	var partitions, replicas int
	var keep bool
	cmd := &cobra.Command{
		Use:   "bench [STREAM]",
		Short: "Load a mesh with publishes and measure it",
		Long: "Publish generated events and report rate and latency by percentile. Each client has one request in flight.\n" +
			"Without a name a new stream is made, and deleted at the end unless --keep.",
		Args:    arguments("[STREAM]"),
		Example: "  skein bench --events 100000 --size 1024 --clients 8 --batch 500\n  skein bench --keys 10000 --key-skew 1.2 -o json",
	}
	f := cmd.Flags()
	s.add(cmd)
	o.add(cmd)
	f.IntVar(&cfg.Events, "events", 100_000, "events in all")
	f.IntVar(&cfg.Size, "size", 1024, "bytes of an event")
	f.IntVar(&cfg.Clients, "clients", 8, "clients, each with one request in flight")
	f.IntVar(&cfg.Batch, "batch", 100, "events in a request")
	f.IntVar(&cfg.Keys, "keys", 1000, "how many keys; 0: events without a key")
	f.Float64Var(&cfg.KeySkew, "key-skew", 0, "Zipf exponent of the keys; 0: even")
	f.BoolVar(&cfg.Random, "random", false, "values that do not compress")
	f.BoolVar(&cfg.AckNone, "no-wait", false, "do not wait until events are durable (ack=none)")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of keys and values")
	f.IntVar(&partitions, "partitions", 0, "partitions of the stream that is made (default 8)")
	f.IntVar(&replicas, "replicas", 0, "copies of the stream that is made (default 3)")
	f.BoolVar(&keep, "keep", false, "keep the stream that was made")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		if err := cfg.Validate(); err != nil {
			return usageError{err}
		}
		settings, err := s.config(p, false)
		if err != nil {
			return err
		}
		c, err := newClient(settings)
		if err != nil {
			return err
		}
		defer c.Close()
		settings.GiveUpUnreachable = false // while the mesh is loaded, a node may come and go
		clients, closeAll, err := clientPerServer(settings)
		if err != nil {
			return err
		}
		defer closeAll()
		made, err := p.benchStream(cmd.Context(), c, &cfg, args, partitions, replicas)
		if err != nil {
			return err
		}
		if p.terminal {
			cfg.OnProgress = func(done int) { fmt.Fprintf(p.err, "\r\x1b[K%d of %d events", done, cfg.Events) }
		}
		report, err := bench.Run(cmd.Context(), clients, cfg)
		if p.terminal {
			fmt.Fprint(p.err, "\r\x1b[K")
		}
		if made && !keep {
			defer p.dropStream(c, cfg.Stream)
		}
		if err != nil {
			return err
		}
		if err := p.print(o, report, func() error { return p.benchText(report) }); err != nil {
			return err
		}
		if report.Failed > 0 {
			return fmt.Errorf("%d events failed, the first: %s", report.Failed, report.FirstError)
		}
		return nil
	}
	return cmd
}

// clientPerServer spreads the load over all servers: each client starts at another one.
func clientPerServer(cfg client.Config) (out []*client.Client, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range out {
			c.Close()
		}
	}
	servers := cfg.Servers
	for i := range servers {
		cfg.Servers = slices.Concat(servers[i:], servers[:i])
		one, err := newClient(cfg)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		out = append(out, one)
	}
	return out, closeAll, nil
}

// benchStream names the stream, and makes it where none was named.
func (p *process) benchStream(ctx context.Context, c *client.Client, cfg *bench.Config, args []string, partitions, replicas int) (made bool, err error) {
	if len(args) > 0 {
		cfg.Stream = args[0]
		if partitions == 0 && replicas == 0 {
			return false, nil
		}
	} else {
		cfg.Stream, made = "bench-"+client.RandomID()[:8], true
	}
	settings := map[string]any{}
	if partitions > 0 {
		settings["partitions"] = partitions
	}
	if replicas > 0 {
		settings["replicas"] = replicas
	}
	ctx, cancel := questionContext(ctx)
	defer cancel()
	_, err = c.CreateStream(ctx, cfg.Stream, settings, made)
	return made, err
}

// dropStream removes the stream even after an interrupt.
func (p *process) dropStream(c *client.Client, stream string) {
	ctx, cancel := questionContext(context.Background())
	defer cancel()
	if err := c.DeleteStream(ctx, stream); err != nil {
		fmt.Fprintf(p.err, "skein: stream %s is left behind: %v\n", stream, err)
	}
}

func (p *process) benchText(r bench.Report) error {
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(r.PerPartition)) {
		parts = append(parts, fmt.Sprintf("%d:%d", id, r.PerPartition[id]))
	}
	l := r.Latency
	_, err := fmt.Fprintf(p.out, "events      %d in %v (%d failed)\nrate        %.0f events/s, %.1f MB/s\nlatency ms  min %.2f  p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f  (%d requests)\npartitions  %s\n",
		r.Events, time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond), r.Failed, r.EventsPerSecond, r.MBPerSecond,
		l.Min, l.P50, l.P90, l.P99, l.P999, l.Max, r.Requests, strings.Join(parts, " "))
	return err
}
