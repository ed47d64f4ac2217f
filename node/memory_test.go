package node

import (
	"context"
	"math"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/testnet/virtual"
)

func TestHeapLimitFollowsWhatIsAlive(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ budget, live, want int64 }{
		{64 * mib, 0, 148 * mib},
		{64 * mib, 100 * mib, 148 * mib},
		{64 * mib, 200 * mib, 256 * mib}, // more than promised is alive: collecting all the time would not free it
		{1024 * mib, 200 * mib, 1108 * mib},
	} {
		if got := heapLimit(c.budget, c.live); got != c.want {
			t.Errorf("budget %d, live %d: limit %d, want %d", c.budget/mib, c.live/mib, got/mib, c.want/mib)
		}
	}
}

func TestGuardedHeapIsUnlimitedAgainAfterwards(t *testing.T) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		t.Skip("GOMEMLIMIT is set")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			GuardHeap(ctx, 1<<40)
		}()
		virtual.Sleep(3 * time.Second)
		if got := debug.SetMemoryLimit(-1); got != 1<<40+heapReserve {
			t.Errorf("the limit is %d", got)
		}
		cancel()
		<-done
		if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
			t.Errorf("the limit stayed at %d", got)
		}
	})
}
