package node

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Bounds of what a node holds in memory besides memory_budget, whatever the number of its partitions. With the garbage
// collector's slack and the program itself they make up the 150 MiB that a node may take beyond its memory_budget.
const (
	heapReserve   = 84 << 20 // all of the below, what the runtime needs, and fragmentation
	identityLimit = 1 << 18  // identities for deduplication, at about 100 bytes; the others are looked up on disk
	tailBytes     = 16 << 20 // latest batches of all partitions, for readers at the end
	sendQueue     = 16 << 20 // one peer's messages of one class
	outboxBytes   = 8 << 20  // the same, before they are framed
)

// GuardHeap keeps the garbage collector from letting the heap grow to twice what is alive when that would pass what memory_budget
// promises, until ctx ends. Where more than that is alive, the collector is not made to run for nothing: the bound follows. A limit
// that the environment sets (GOMEMLIMIT) is left alone. It concerns the whole process.
func GuardHeap(ctx context.Context, memoryBudget int64) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	defer debug.SetMemoryLimit(math.MaxInt64)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for limit := int64(0); ; {
		metrics.Read(live)
		if want := heapLimit(memoryBudget, int64(live[0].Value.Uint64())); want != limit {
			limit = want
			debug.SetMemoryLimit(limit)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// heapLimit is the limit while so many bytes are alive, in steps: each change stops the world for a moment.
func heapLimit(memoryBudget, live int64) int64 {
	const step = 8 << 20
	return max(memoryBudget+heapReserve, (live+live/4+step-1)/step*step)
}
