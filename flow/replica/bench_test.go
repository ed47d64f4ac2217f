package replica

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/skeinmesh/skein/transport/wire"
)

// BenchmarkPropose is proposals a second through three replicas in one process, with a journal in memory and no network.
func BenchmarkPropose(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) { benchPropose(b, size) })
	}
}

func benchPropose(b *testing.B, size int) {
	m := newMesh(b, 3, 1)
	m.delay = 0
	m.sink = true
	for _, n := range m.nodes {
		n.journal.trim.Store(true)
		n.start()
	}
	g := testGroup(1)
	m.found(g, 0, 1, 2)
	own := m.owner(g)
	data := make([]byte, size)
	window := make(chan struct{}, 256)
	var fails int
	done := func(o Outcome) {
		if o.Err != nil {
			fails++
		}
		<-window
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		window <- struct{}{}
		for {
			err := own.Propose(data, done)
			if err == nil {
				break
			}
			if wire.KindOf(err) != wire.KindNoCredit {
				b.Fatal(err)
			}
			runtime.Gosched()
		}
	}
	for range cap(window) {
		window <- struct{}{}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "proposals/s")
	if fails > 0 {
		b.Fatalf("%d failed", fails)
	}
	b.StopTimer()
	for _, n := range m.nodes {
		n.stop()
		n.journal.Close()
	}
}
