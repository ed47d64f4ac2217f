package sim

import (
	"cmp"
	"container/heap"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// world is the loop of a run: what is to happen, and when. What nodes and clients say while they run is gathered; when all of them wait,
// the loop takes it in an order that does not depend on who spoke first.
type world struct {
	rng   *rand.Rand // used by the loop alone
	begin time.Time
	wake  chan struct{}

	queue events
	taken map[time.Duration]bool // instants at which something is to happen
	seq   uint64
	trace hash.Hash64
	notes uint64
	log   func(line string) // nil: lines are not kept

	mu   sync.Mutex
	said []saying
}

// saying is something that a node or a client said. The loop calls take for those of one instant in the order of their keys.
type saying struct {
	key  string
	take func()
}

func newWorld(seed uint64, log func(string)) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, 0x73696d)), begin: time.Now(), wake: make(chan struct{}, 1), taken: map[time.Duration]bool{},
		trace: fnv.New64a(), log: log}
}

func (w *world) now() time.Duration { return time.Since(w.begin) }

// say hands something to the loop. It never blocks, and may be called from anywhere.
func (w *world) say(key string, take func()) {
	w.mu.Lock()
	w.said = append(w.said, saying{key, take})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// after has the loop do something by itself at an instant. For the loop alone, as all that follows.
func (w *world) after(d time.Duration, do func()) {
	at := w.now() + max(d, 1)
	for w.taken[at] {
		at++
	}
	w.taken[at] = true
	w.seq++
	heap.Push(&w.queue, event{at, do})
}

// note makes something part of the trace.
func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%d "+format, append([]any{int64(w.now())}, args...)...)
	_, _ = w.trace.Write([]byte(line)) // a hash has no errors
	w.notes++
	if w.log != nil {
		w.log(line)
	}
}

// between is a random duration.
func (w *world) between(least, most time.Duration) time.Duration { return between(w.rng, least, most) }

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// run lets things happen until done, which is asked whenever all is at rest, or until the time is over.
func (w *world) run(limit time.Duration, done func() bool) bool {
	end := w.now() + limit
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		synctest.Wait()
		w.listen()
		if done() {
			return true
		}
		now := w.now()
		if now >= end {
			return false
		}
		next := end
		if len(w.queue) > 0 {
			next = min(next, w.queue[0].at)
		}
		if next <= now {
			e := heap.Pop(&w.queue).(event)
			delete(w.taken, e.at)
			e.do()
			continue
		}
		t.Reset(next - now)
		select {
		case <-t.C:
		case <-w.wake:
		}
	}
}

// listen takes what was said.
func (w *world) listen() {
	for {
		w.mu.Lock()
		said := w.said
		w.said = nil
		w.mu.Unlock()
		if len(said) == 0 {
			return
		}
		slices.SortStableFunc(said, func(a, b saying) int { return cmp.Compare(a.key, b.key) })
		for _, s := range said {
			s.take()
		}
	}
}

type event struct {
	at time.Duration
	do func()
}

// events is a heap; no two are at one instant.
type events []event

func (q events) Len() int           { return len(q) }
func (q events) Less(i, j int) bool { return q[i].at < q[j].at }
func (q events) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)        { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}
