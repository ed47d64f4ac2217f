package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
)

// eachBurst is how many events each publisher of a burst sends: the more, the longer all of them have one outstanding.
const eachBurst = 3

// inFlight adds publishers that send at the same time, each the next event when the one before is acknowledged, and begin again together
// shortly after the last acknowledgement. The pause between bursts is what lets two cores, and a history of every event, keep up.
func (l *load) inFlight(ctx context.Context, seed uint64, name string, publishers int, between time.Duration) *outstanding {
	o := &outstanding{}
	l.publish.Go(func() error {
		clients, rngs := make([]*client.Client, publishers), make([]*rand.Rand, publishers)
		for i := range publishers {
			clients[i], rngs[i] = l.w.client(i%len(l.w.servers)), rand.New(rand.NewPCG(seed, uint64(i)))
			defer clients[i].Close()
		}
		for first := uint64(1); ctx.Err() == nil; first += eachBurst {
			var burst errgroup.Group
			for i := range publishers {
				burst.Go(func() error {
					who := name + "-" + strconv.Itoa(i)
					for seq := first; seq < first+eachBurst; seq++ {
						ev := event{publisher: who, key: who + "/" + strconv.Itoa(int(seq%2)), seq: seq, pad: rngs[i].IntN(200)}
						o.add(1)
						err := l.w.send(l.w.t.Context(), clients[i], []event{ev})
						o.add(-1)
						if err != nil {
							return fmt.Errorf("%s: %w", who, err)
						}
					}
					return nil
				})
			}
			if err := burst.Wait(); err != nil {
				return err
			}
			pause(ctx, between)
		}
		return nil
	})
	return o
}

// outstanding counts events that are sent and not acknowledged, and for how long how many were.
type outstanding struct {
	mu    sync.Mutex
	n     int
	since time.Time // of n
	most  int
	total int
	busy  time.Duration // n was not 0
	sum   time.Duration // n, added up over busy
}

func (o *outstanding) add(d int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.n > 0 {
		o.busy += now.Sub(o.since)
		o.sum += time.Duration(o.n) * now.Sub(o.since)
	}
	o.n, o.since = o.n+d, now
	o.most = max(o.most, o.n)
	o.total += max(d, 0)
}

// reached fails the test where fewer than so many were ever outstanding at a time.
func (l *load) reached(o *outstanding, want int) {
	l.w.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	l.w.t.Logf("%d events in bursts: at most %d outstanding at a time, %.1f in the mean of the %v while any was", o.total, o.most,
		o.sum.Seconds()/max(o.busy.Seconds(), 1e-9), o.busy.Round(100*time.Millisecond))
	if o.most < want {
		l.w.t.Errorf("at most %d events were outstanding at a time, and %d should be", o.most, want)
	}
}
