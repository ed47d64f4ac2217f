package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/skeinmesh/skein/node/dev"
	"github.com/skeinmesh/skein/testnet/check"
)

// Limits for everything but the build.
const (
	limit          = 90 * time.Second
	limitContainer = 8 * time.Minute
)

// options are the flags.
type options struct {
	binary     string
	events     int
	publishers int
	rate       int
	partitions int
	nodes      int
	input      string
	keyRegexp  string
	seed       uint64
	keep       bool
	containers bool
	project    string
	ports      int
}

// endless: the containers' story ends when all has happened, not when all is published.
func (o *options) endless() bool { return o.containers }

func main() {
	var o options
	flag.StringVar(&o.binary, "skein", "", "the skein binary (default: built from ./cmd/skein)")
	flag.IntVar(&o.events, "events", 20_000, "events in all; with -input at most as many as it has lines")
	flag.IntVar(&o.publishers, "publishers", 6, "publishers at once, each with its own keys")
	flag.IntVar(&o.rate, "rate", 4000, "events per second in all; 0: as fast as it goes")
	flag.IntVar(&o.partitions, "partitions", 8, "partitions of the stream")
	flag.IntVar(&o.nodes, "nodes", 3, "nodes of the mesh, 3 or more")
	flag.StringVar(&o.input, "input", os.Getenv("INPUT"), "publish the lines of this file instead of generated orders (INPUT)")
	flag.StringVar(&o.keyRegexp, "key-regex", os.Getenv("KEY_REGEX"), "with -input: what a line's key is, the first match (KEY_REGEX); default the first word")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the generated orders")
	flag.BoolVar(&o.keep, "keep", false, "keep data and logs")
	flag.BoolVar(&o.containers, "containers", false, "play on the containers that make testnet-up has started, until all has happened to them")
	flag.StringVar(&o.project, "project", "skein-testnet", "with -containers: their compose project")
	flag.IntVar(&o.ports, "ports", 84, "with -containers: the first digits of their published ports, 84 for 8400, 8410, …")
	flag.Parse()
	if flag.NArg() > 0 || o.nodes < 3 || o.events < 100 || o.publishers < 1 || o.partitions < 1 {
		fmt.Fprintln(os.Stderr, "demo: no arguments, at least 3 nodes, 100 events, 1 publisher and 1 partition are wanted")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	broken, err := run(ctx, o, os.Stdout)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	case broken:
		os.Exit(1)
	}
}

func newStory(o options, out io.Writer) *story {
	return &story{o: o, out: out, stream: "orders", history: &check.History{}, begin: time.Now(), enough: make(chan struct{}),
		parts: map[uint32]int{}, sample: map[uint32]string{}, values: map[string][32]byte{}}
}

// run tells the story to out; broken says that a promise was.
func run(ctx context.Context, o options, out io.Writer) (broken bool, err error) {
	s := newStory(o, out)
	if o.containers {
		ctx, cancel := context.WithTimeoutCause(ctx, limitContainer, fmt.Errorf("not done within %v", limitContainer))
		defer cancel()
		return s.tellContainers(ctx)
	}
	dir, err := os.MkdirTemp("", "skein-demo-")
	if err != nil {
		return false, err
	}
	defer func() {
		switch {
		case o.keep || broken || err != nil:
			fmt.Fprintf(out, "Data and logs of the nodes are kept in %s\n", dir)
		default:
			os.RemoveAll(dir)
		}
	}()
	if o.binary == "" {
		s.say("Building skein")
		if o.binary, err = build(ctx, dir); err != nil {
			return false, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v", limit))
	defer cancel()
	s.begin = time.Now()
	if s.local, err = dev.Start(dev.Options{Nodes: o.nodes, BasePort: -1, Binary: o.binary, DataDir: filepath.Join(dir, "mesh")}); err != nil {
		return false, err
	}
	s.mesh = s.local
	defer func() { err = errors.Join(err, s.local.Stop()) }()
	return s.tell(ctx)
}

// build makes the binary the way that the Makefile does, but for its version.
func build(ctx context.Context, dir string) (string, error) {
	out := filepath.Join(dir, "skein")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "github.com/skeinmesh/skein/cmd/skein")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build skein (run the demo from the source tree, or name a binary with -skein): %w", err)
	}
	return out, nil
}
