package replica

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/transport/wire"
)

// Snapshots give way to publishers. A node measures how long its proposals take, and lets snapshots flow, in and out, as fast as their p99
// bears: more and more, step by step, while it is below its target, and half as fast when it is above. Where nobody publishes there is no
// limit.

// Rates of snapshots while there are publishers, in bytes per second.
const (
	startRate = 16 << 20 // until the first look
	leastRate = 2 << 20  // a replica must come to be
	addRate   = 1 << 20  // more with each look, or an eighth
)

const (
	// paceLook is the time between two looks at the p99, which is that of the last paceWindows of them.
	paceLook    = 250 * time.Millisecond
	paceWindows = 4
	// usualP99 stands for the idle p99 while it was not measured; below fineP99 nobody is disturbed.
	usualP99 = 4 * time.Millisecond
	fineP99  = 3 * time.Millisecond
	// fewSamples and less are no publishers, as long as they are not slow.
	fewSamples = 4
)

// throttle decides the rate. Pure.
type throttle struct {
	idle time.Duration // p99 without snapshots, smoothed; 0: not known
	rate float64       // 0: no limit
	at   time.Time     // of the last look
	hold int           // looks for which the rate stays: the p99 still has in it what the last cut was for
}

// look is what a throttle looks at: the p99 of so many proposals, and how many bytes of snapshots flowed since the last look.
type look struct {
	p99     time.Duration
	samples int
	waiting bool // there are proposals that were not answered yet
	moved   int64
}

// target is the p99 that snapshots may cause: well below the double of the idle one.
func (t *throttle) target() time.Duration {
	idle := t.idle
	if idle == 0 {
		idle = usualP99
	}
	return max(idle+idle/2, fineP99)
}

// Step returns the rate from now on, bytes per second; 0: no limit.
func (t *throttle) Step(now time.Time, in look) float64 {
	took := now.Sub(t.at).Seconds()
	t.at = now
	switch {
	case in.samples < fewSamples && !in.waiting && in.p99 <= t.target():
		t.rate = 0
	case in.moved == 0:
		if in.samples > 0 {
			t.smooth(in.p99)
		}
		t.rate = startRate
	case t.rate == 0: // publishers came to a snapshot under way
		t.rate = startRate
	case t.hold > 0:
		t.hold--
	case in.samples == 0 || in.p99 > t.target():
		t.hold = paceWindows - 1
		flowed := t.rate
		if took > 0 {
			flowed = min(flowed, float64(in.moved)/took)
		}
		t.rate = max(flowed/2, leastRate)
	default:
		if in.p99 < t.idle {
			t.smooth(in.p99)
		}
		t.rate += max(addRate, t.rate/8)
	}
	return t.rate
}

func (t *throttle) smooth(p99 time.Duration) {
	if t.idle == 0 {
		t.idle = p99
		return
	}
	t.idle += (p99 - t.idle) / 8
}

// latencies counts durations in buckets a quarter apart, for the last few looks.
type latencies struct {
	windows [paceWindows][latencyBuckets]atomic.Uint32
	current atomic.Uint32
}

const latencyBuckets = 128

// observe counts one duration. Safe for concurrent use.
func (l *latencies) observe(d time.Duration) {
	l.windows[l.current.Load()%paceWindows][latencyBucket(d)].Add(1)
}

// latencyBucket numbers buckets by the highest bit of the microseconds and the two bits after it.
func latencyBucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 4))
	n := bits.Len64(us)
	return min(4*(n-3)+int(us>>(n-3)&3), latencyBuckets-1)
}

// latencyBound is the upper end of a bucket.
func latencyBound(i int) time.Duration {
	return time.Duration(uint64(5+i%4)<<(i/4)) * time.Microsecond
}

// turn returns the p99 of what was counted, and forgets the oldest of it.
func (l *latencies) turn() (p99 time.Duration, samples int) {
	var sum [latencyBuckets]int
	for w := range l.windows {
		for i := range sum {
			n := int(l.windows[w][i].Load())
			sum[i] += n
			samples += n
		}
	}
	next := (l.current.Load() + 1) % paceWindows
	for i := range l.windows[next] {
		l.windows[next][i].Store(0)
	}
	l.current.Store(next)
	over := samples / 100
	for i := latencyBuckets - 1; i >= 0 && samples > 0; i-- {
		if over -= sum[i]; over < 0 {
			return latencyBound(i), samples
		}
	}
	return 0, samples
}

// pacer holds the snapshots of a node to the rate that its throttle decides. Safe for concurrent use.
type pacer struct {
	seen    latencies
	waiting atomic.Int64 // proposals that were not answered yet
	due     atomic.Int64 // when the next look is, Unix ns
	metrics *metrics

	mu    sync.Mutex
	t     throttle
	rate  float64
	moved int64
	free  time.Time // when the next byte may flow
}

// observe counts a proposal that was stored, as long as it took.
func (p *pacer) observe(now time.Time, took time.Duration) {
	p.seen.observe(took)
	if now.UnixNano() >= p.due.Load() && p.mu.TryLock() {
		p.look(now)
		p.mu.Unlock()
	}
}

// look takes the next step where it is due; p.mu is held.
func (p *pacer) look(now time.Time) {
	if now.UnixNano() < p.due.Load() {
		return
	}
	p.due.Store(now.Add(paceLook).UnixNano())
	p99, samples := p.seen.turn()
	p.rate = p.t.Step(now, look{p99: p99, samples: samples, waiting: p.waiting.Load() > 0, moved: p.moved})
	p.moved = 0
	p.metrics.snapshotRate.Set(p.rate)
}

// take waits until n bytes of a snapshot may flow.
func (p *pacer) take(ctx context.Context, n int) error {
	now := time.Now()
	p.mu.Lock()
	p.moved += int64(n)
	p.look(now)
	var wait time.Duration
	if p.rate > 0 {
		if p.free.Before(now) {
			p.free = now
		}
		wait = p.free.Sub(now)
		p.free = p.free.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	}
	p.mu.Unlock()
	if wait == 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// paced is a snapshot's stream held to the node's rate, in both directions.
type paced struct {
	wire.Stream
	h *Host
}

func (s paced) Send(ctx context.Context, frame []byte) error {
	if err := s.h.pace.take(ctx, len(frame)); err != nil {
		return err
	}
	s.h.metrics.snapshotBytes.WithLabelValues("out").Add(float64(len(frame)))
	return s.Stream.Send(ctx, frame)
}

func (s paced) Recv(ctx context.Context) ([]byte, error) {
	frame, err := s.Stream.Recv(ctx)
	if err != nil {
		return nil, err
	}
	s.h.metrics.snapshotBytes.WithLabelValues("in").Add(float64(len(frame)))
	return frame, s.h.pace.take(ctx, len(frame))
}
