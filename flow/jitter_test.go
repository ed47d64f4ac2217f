package flow

import (
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// A simulation that seeds Config.Rand decides how long is waited and who is asked.
func TestJitterAndChoiceComeFromTheConfig(t *testing.T) {
	lowest := &Broker{cfg: Config{Rand: func(int64) int64 { return 0 }}}
	highest := &Broker{cfg: Config{Rand: func(n int64) int64 { return n - 1 }}}
	for _, d := range []time.Duration{0, 1, retryFirst, retryCap} {
		if got := lowest.jittered(d); got != d/2 {
			t.Errorf("the least wait of %v is %v", d, got)
		}
		if got := highest.jittered(d); got != d/2+d/2 {
			t.Errorf("the longest wait of %v is %v", d, got)
		}
	}
	known := []ring.NodeID{{1}, {2}, {3}}
	first, _ := lowest.anyOf(known, 0)
	last, _ := highest.anyOf(known, 0)
	if first != known[0] || last != known[2] {
		t.Errorf("asked %v and %v", first, last)
	}
}
