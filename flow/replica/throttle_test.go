package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// steps runs a throttle for so many looks of the same kind.
func steps(t *throttle, now *time.Time, n int, in look) (rate float64) {
	for range n {
		*now = now.Add(paceLook)
		rate = t.Step(*now, in)
	}
	return rate
}

func TestSnapshotsHaveNoLimitWhileNobodyPublishes(t *testing.T) {
	var th throttle
	now := time.Unix(1000, 0)
	if rate := steps(&th, &now, 20, look{moved: 50 << 20}); rate != 0 {
		t.Errorf("limited to %.0f", rate)
	}
	if rate := steps(&th, &now, 1, look{moved: 50 << 20, samples: 10, p99: time.Millisecond}); rate != startRate {
		t.Errorf("when publishers come the rate is %.0f", rate)
	}
	if rate := steps(&th, &now, 1, look{moved: 1 << 20}); rate != 0 {
		t.Errorf("when they have gone it is limited to %.0f", rate)
	}
}

func TestSnapshotsGiveWayToPublishersAndComeBack(t *testing.T) {
	var th throttle
	now := time.Unix(1000, 0)
	steps(&th, &now, 50, look{samples: 100, p99: 10 * time.Millisecond})
	if got := th.target(); got != 15*time.Millisecond {
		t.Fatalf("target %s", got)
	}
	fine := steps(&th, &now, 10, look{samples: 100, p99: 11 * time.Millisecond, moved: 100 << 20})
	if fine < 3*startRate || fine > 4*startRate {
		t.Errorf("after ten good looks %.0f", fine)
	}
	// Halved from what really flowed: the limit may never have been reached.
	if rate := steps(&th, &now, 1, look{samples: 100, p99: 16 * time.Millisecond, moved: 5 << 20}); rate != 10<<20 {
		t.Errorf("after a bad look %.0f", rate)
	}
	if rate := steps(&th, &now, 20, look{samples: 100, p99: time.Second, moved: 1 << 20}); rate != leastRate {
		t.Errorf("after twenty %.0f", rate)
	}
	if rate := steps(&th, &now, 1, look{waiting: true, moved: 1 << 20}); rate != leastRate {
		t.Errorf("while no proposal is answered %.0f", rate)
	}
	if rate := steps(&th, &now, 8, look{samples: 100, p99: 12 * time.Millisecond, moved: 1 << 20}); rate < leastRate+4*addRate {
		t.Errorf("after eight good looks %.0f", rate)
	}
	if th.idle > 10*time.Millisecond {
		t.Errorf("the idle p99 was learned from the time of the snapshot: %s", th.idle)
	}
}

func TestThrottleSettlesWhereThePublishersBearIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		idle := time.Duration(rapid.IntRange(1, 50).Draw(t, "idle ms")) * time.Millisecond
		bears := rapid.IntRange(8, 400).Draw(t, "MiB/s that do not show")
		var th throttle
		now := time.Unix(1000, 0)
		steps(&th, &now, 60, look{samples: 50, p99: idle})
		rate, bad, sum := float64(startRate), 0, 0.0
		const looks = 400
		for range looks {
			p99 := idle
			if over := rate - float64(bears<<20); over > 0 {
				p99 += time.Duration(over / (32 << 20) * float64(idle+10*time.Millisecond))
			}
			if p99 > 2*idle && p99 > 2*fineP99 {
				bad++
			}
			sum += rate
			now = now.Add(paceLook)
			rate = th.Step(now, look{samples: 50, p99: p99, moved: int64(rate * paceLook.Seconds())})
		}
		if bad > looks/4 {
			t.Fatalf("p99 was above twice the idle one at %d of %d looks", bad, looks)
		}
		if mean := sum / looks; mean < 0.4*float64(bears<<20) {
			t.Fatalf("mean rate %.0f MiB/s where %d do not show", mean/(1<<20), bears)
		}
	})
}

func TestLatenciesTellTheP99OfTheLastLooks(t *testing.T) {
	var l latencies
	for range 990 {
		l.observe(time.Millisecond)
	}
	for range 11 {
		l.observe(80 * time.Millisecond)
	}
	p99, n := l.turn()
	if n != 1001 || p99 < 80*time.Millisecond || p99 > 100*time.Millisecond {
		t.Errorf("p99 %s of %d", p99, n)
	}
	for range paceWindows - 1 {
		_, n = l.turn()
	}
	if n != 1001 {
		t.Errorf("%d are remembered at the last look that should", n)
	}
	if p99, n := l.turn(); n != 0 || p99 != 0 {
		t.Errorf("p99 %s of %d after that", p99, n)
	}
	for _, d := range []time.Duration{0, time.Microsecond, 5 * time.Microsecond, 777 * time.Microsecond, time.Second, time.Hour} {
		if b := latencyBound(latencyBucket(d)); b < d || float64(b) > 1.26*float64(max(d, 4*time.Microsecond)) {
			t.Errorf("%s is counted as %s", d, b)
		}
	}
}

func TestSnapshotFlowsAtTheRateAndNoFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer{metrics: newMetrics(nil)}
		p.waiting.Store(1)
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		for range 64 {
			if err := p.take(ctx, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		// Nothing is answered: from the rate at the start down to the least.
		if took := time.Since(begin); took < 20*time.Second || took > 40*time.Second {
			t.Errorf("64 MiB took %s", took)
		}
		cancel()
		if err := p.take(ctx, 1<<20); err == nil {
			t.Error("it waits although its context ended")
		}
	})
}
