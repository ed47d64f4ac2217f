package sim

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// TestMain begins anew with one processor and without preemption, so that a seed leaves as little as possible to the scheduler.
func TestMain(m *testing.M) {
	const still = "asyncpreemptoff=1"
	if debugging := os.Getenv("GODEBUG"); !strings.Contains(debugging, still) {
		env := append(os.Environ(), "GOMAXPROCS=1", "GODEBUG="+strings.Trim(debugging+","+still, ","))
		if self, err := os.Executable(); err == nil {
			_ = syscall.Exec(self, os.Args, env) // where it fails, less is repeated
		}
	}
	goleak.VerifyTestMain(m)
}

// fixed is how many seeds run every time: 1, 2, and so on.
const fixed = 24

// Whatever fails, nothing acknowledged is lost, repeated or out of order, and once all is well everything goes on.
func TestMeshKeepsItsPromisesInTroubleAndGoesOnAfterwards(t *testing.T) {
	var seeds []uint64
	if s := os.Getenv("SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("SEED: %v", err)
		}
		seeds = []uint64{seed}
	} else if s := os.Getenv("N"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("N: %v", err)
		}
		for first := uint64(time.Now().UnixNano()) % 1_000_000_000; n > 0; n-- {
			seeds = append(seeds, first+uint64(n))
		}
	} else {
		for seed := range uint64(fixed) {
			seeds = append(seeds, seed+1)
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			begin := time.Now()
			res := simulate(t, seed)
			t.Logf("%d nodes, %v of virtual time in %v, %d steps, trace %016x; acknowledged %d, refused %d, unknown %d, read %d", res.Nodes,
				res.Virtual.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), res.Steps, res.Trace, res.Acked, res.Refused,
				res.Unknown, res.Read)
			for _, v := range res.Violations {
				t.Error(v)
			}
			for _, f := range res.Failures {
				t.Error(f)
			}
			if res.Acked < publishers || res.Read < res.Acked {
				t.Error("too little happened to tell anything")
			}
			if t.Failed() {
				t.Logf("replay: SEED=%d go test -count=1 ./testnet/sim -run '^TestMeshKeepsItsPromisesInTroubleAndGoesOnAfterwards$'", seed)
			}
		})
	}
}

// The faults of a seed, and their instants, are the same in each run, whatever else the scheduler does otherwise.
func TestSeedRepeatsItsFaults(t *testing.T) {
	one, two := simulate(t, 7), simulate(t, 7)
	if !slices.Equal(one.Faults, two.Faults) || len(one.Faults) == 0 {
		t.Errorf("the faults were\n%v\nand then\n%v", one.Faults, two.Faults)
	}
	t.Logf("%d faults; traces %016x and %016x", len(one.Faults), one.Trace, two.Trace)
}

// simulate runs one seed. TRACE names a file that takes each line of the trace; with LOG=1 the nodes' logs are shown.
func simulate(t *testing.T, seed uint64) Result {
	warm.Do(func() { run(t, Config{Chance: &Chance{Seed: 1}, Trouble: time.Second}) })
	cfg := Config{Chance: &Chance{Seed: seed}}
	if name := os.Getenv("TRACE"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // Flush told
		w := bufio.NewWriter(f)
		defer w.Flush() //nolint:errcheck // a trace for people
		cfg.Line = func(line string) { fmt.Fprintln(w, line) }
	}
	if os.Getenv("LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return run(t, cfg)
}

// warm does once what a process does only once, and draws random bytes or starts goroutines for: a first run would differ from all others.
var warm sync.Once

func run(t *testing.T, cfg Config) (res Result) {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))          // the collector wakes goroutines when it likes,
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(2 << 30)) // unless it has to, in bytes
	cryptotest.SetGlobalRandom(t, cfg.Chance.Seed)            // for those that took the reader before
	defer func(was io.Reader) { rand.Reader = was }(rand.Reader)
	rand.Reader = cfg.Chance
	synctest.Test(t, func(*testing.T) { res = Run(cfg) })
	return res
}
