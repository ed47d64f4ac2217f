// Command bench-peers compares Skein with NATS JetStream on this host: see package bench for what is measured and how.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/skeinmesh/skein/testnet/bench"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-peers:", err)
		os.Exit(1)
	}
}

func run() error {
	o := bench.Options{Log: os.Stderr}
	flag.StringVar(&o.Skein, "skein", "", "skein binary; empty: NATS alone")
	flag.StringVar(&o.Natsd, "natsd", "", "natsd binary; empty: Skein alone")
	flag.IntVar(&o.Pairs, "pairs", 5, "repetitions")
	flag.StringVar(&o.Rows, "rows", "", "regular expression of the rows to run; default all")
	flag.StringVar(&o.Dir, "dir", "", "where to put data meanwhile; default the system's temporary folder")
	flag.DurationVar(&o.Limit, "limit", 0, "begin no pair that would end later, and fail if any is missing; default 24m")
	out := flag.String("out", "", "file for the report as JSON")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rep, err := bench.Run(ctx, o)
	if rep == nil {
		return err
	}
	rep.Finish()
	if e := rep.Table(os.Stdout); e != nil {
		return e
	}
	if *out != "" {
		b, e := json.MarshalIndent(rep, "", "  ")
		if e != nil {
			return e
		}
		if e := os.WriteFile(*out, append(b, '\n'), 0o644); e != nil {
			return e
		}
	}
	return err
}
