package bounds

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
)

// memoryBudget is the default of memory_budget in the long version. The short one gives less, so that a small flood is enough.
func memoryBudget() int64 {
	if full() {
		return 64 << 20
	}
	return 16 << 20
}

// fsyncDelay makes a disk so slow that the full flood is ten times what it takes: batches grow with the delay.
func fsyncDelay() string {
	if full() {
		return "2s"
	}
	return "500ms"
}

func TestFloodBeyondWhatTheDiskTakesIsRefusedNotHeld(t *testing.T) {
	publishers, duration := 96, 4*time.Second
	if full() {
		publishers, duration = 512, 60*time.Second
	}
	for _, partitions := range []int{8, 64} {
		t.Run(fmt.Sprintf("%d-partitions", partitions), func(t *testing.T) {
			if partitions > 8 && !full() {
				t.Skip("SKEIN_BOUNDS=full runs it")
			}
			f := runFlood(t, partitions, publishers, duration, func(int) bool { return true })
			if f.refusals["503 overloaded"] == 0 {
				t.Error("nobody was told that the mesh is overloaded")
			}
			for why, events := range f.refusals {
				switch why {
				case "503 overloaded", "504 outcome-unknown", "connection":
				default:
					if full() {
						t.Errorf("%d events were refused for another reason: %s", events, why)
					}
				}
			}
			ratio := float64(f.offered) / float64(max(f.acked, 1))
			if t.Logf("offered %.1f times what was acknowledged", ratio); full() && ratio < 10 {
				t.Error("the flood was too small to judge: ten times what the disk takes is promised to be survived")
			}
			f.verify()
		})
	}
}

// One node of three falls behind; the others commit without it, and it must not gather what it cannot write.
func TestNodeWithASlowDiskAmongFastOnesHoldsLittle(t *testing.T) {
	publishers, duration, partitions := 16, 4*time.Second, 8
	if full() {
		publishers, duration, partitions = 64, 60*time.Second, 64
	}
	runFlood(t, partitions, publishers, duration, func(node int) bool { return node == 2 }).verify()
}

// runFlood floods a mesh some of whose disks are slow, and judges its memory.
func runFlood(t *testing.T, partitions, publishers int, duration time.Duration, isSlow func(node int) bool) *flood {
	t.Helper()
	slow := filepath.Join(t.TempDir(), "slow")
	m := start(t, dev.Options{Args: []string{"--memory-budget", strconv.FormatInt(memoryBudget(), 10)}, NodeEnv: func(i int) []string {
		if isSlow(i) {
			return []string{"SKEIN_FAULT=fsync_delay=" + fsyncDelay() + ",fsync_delay_while=" + slow}
		}
		return nil
	}})
	m.create("flood", partitions)
	m.steady("flood") // what is under way would need votes, of slow disks, and its partition would say no-quorum meanwhile
	f := newFlood(m, "flood")
	if err := os.WriteFile(slow, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	begin := time.Now()
	f.run(ctx, publishers, 0, 1, 2)
	seconds := time.Since(begin).Seconds()
	if err := os.Remove(slow); err != nil {
		t.Fatal(err)
	}
	acked, refused, unknown, _ := f.history.Counts()
	t.Logf("offered %s/s, acknowledged %s/s: %d events acknowledged, %d refused, %d unknown, in %.0f s; refusals: %v",
		mib(int64(float64(f.offered)/seconds)), mib(int64(float64(f.acked)/seconds)), acked, refused, unknown, seconds, f.refusals)
	for i := range m.Nodes() {
		peak, now := m.memory(i, "VmHWM"), m.memory(i, "VmRSS")
		t.Logf("%s: peak %s, now %s", m.Name(i), mib(peak), mib(now))
		if peak > memoryBudget()+150<<20 {
			t.Errorf("%s took %s; memory_budget + 150 MiB is promised", m.Name(i), mib(peak))
		}
	}
	if acked == 0 {
		t.Error("nothing was acknowledged")
	}
	return f
}

func TestNodeWhoseDiskFailsStopsAndTheOthersGoOn(t *testing.T) {
	broken := true
	m := start(t, dev.Options{NodeEnv: func(i int) []string {
		if i == 1 && broken {
			return []string{"SKEIN_FAULT=fsync_fail_after=300"}
		}
		return nil
	}})
	m.create("orders", 8)
	f := newFlood(m, "orders")
	f.events, f.bytes, f.tries, f.timeout, f.pause = 4, 256, 40, 5*time.Second, 50*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx, 8, 0, 2)
	}()
	select {
	case e := <-m.Exits():
		if e.Node != 1 {
			t.Errorf("%s ended: %v", m.Name(e.Node), e.Err)
		}
	case <-time.After(patience):
		t.Error("the node whose disk fails still runs")
	}
	before, _, _, _ := f.history.Counts()
	m.eventually("the others acknowledge 200 events more", func() bool {
		now, _, _, _ := f.history.Counts()
		return now >= before+200
	})
	cancel()
	<-done
	if log := m.log(1); !strings.Contains(log, "the journal failed") || !strings.Contains(log, "input/output error") {
		t.Error("the node did not say why it stopped")
	}
	broken = false
	if err := m.Restart(1); err != nil {
		t.Fatal(err)
	}
	m.wait()
	f.verify()
}
