package flow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// history is what publishers were told: every event's value is unique.
type history struct {
	mu      sync.Mutex
	acked   map[string]PublishResult
	refused map[string]bool
	unknown int
	sent    int
}

func (h *history) note(t *testing.T, value string, r PublishResult, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent++
	switch wire.KindOf(err) {
	case wire.KindOutcomeUnknown:
		h.unknown++
		return
	case wire.KindUnavailable, wire.KindNoCredit:
		h.refused[value] = true
		return
	}
	if err != nil {
		t.Errorf("publish %s: %v", value, err)
		return
	}
	h.acked[value] = r
}

// check compares what is read through every node with what publishers were told.
func (h *history) check(t *testing.T, m *mesh, stream string) {
	t.Helper()
	var first []Event
	for i := range m.nodes {
		got := m.readAll(i, stream, earliest())
		h.checkOne(t, got)
		if i == 0 {
			first = got
		} else if len(got) != len(first) {
			t.Errorf("node %d reads %d events, node 0 %d", i, len(got), len(first))
		}
	}
	t.Logf("%d sent, %d acknowledged, %d refused, %d unknown, %d stored", h.sent, len(h.acked), len(h.refused), h.unknown, len(first))
}

func (h *history) checkOne(t *testing.T, got []Event) {
	t.Helper()
	seen := map[string]Event{}
	last := map[string]int{} // by key
	next := map[uint32]uint64{}
	for _, e := range got {
		v := string(e.Value)
		if _, twice := seen[v]; twice {
			t.Errorf("%s is stored twice", v)
		}
		seen[v] = e
		if h.refused[v] {
			t.Errorf("%s was refused and is stored", v)
		}
		if e.Offset != next[uint32(e.Partition)] {
			t.Errorf("partition %d: offset %d where %d was due", e.Partition, e.Offset, next[uint32(e.Partition)])
		}
		next[uint32(e.Partition)] = e.Offset + 1
		var key, n int
		if _, err := fmt.Sscanf(v, "%d-%d", &key, &n); err != nil {
			t.Fatal(err)
		}
		if _, acked := h.acked[v]; !acked {
			continue // its publisher did not wait to learn what became of it
		}
		k := string(e.Key)
		if before, ok := last[k]; ok && n <= before {
			t.Errorf("key %s: %d after %d", k, n, before)
		}
		last[k] = n
	}
	for v, r := range h.acked {
		e, ok := seen[v]
		if !ok {
			t.Errorf("%s was acknowledged at %d/%d and is lost", v, r.Partition, r.Offset)
		} else if e.Offset != r.Offset || e.Partition != r.Partition {
			t.Errorf("%s was acknowledged at %d/%d and is at %d/%d", v, r.Partition, r.Offset, e.Partition, e.Offset)
		}
	}
}

// storm publishes on all nodes while disturb runs. With retry each event has an identity and is sent until it is acknowledged.
func storm(t *testing.T, m *mesh, stream string, publishers int, retry bool, deadline time.Duration, disturb func()) *history {
	h := &history{acked: map[string]PublishResult{}, refused: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				value := fmt.Sprintf("%d-%d", p, n)
				rec := event(fmt.Sprint("key", p), value)
				if retry {
					rec.Source, rec.ID = "storm", value
				}
				for try := 0; ; try++ {
					i := (p + n + try) % len(m.nodes)
					if !m.nodes[i].isUp() {
						virtual.Sleep(time.Millisecond)
						continue
					}
					r, err := m.publish(i, stream, rec, PublishOptions{}, deadline)
					if retry && err != nil && try < 10_000 {
						virtual.Sleep(10 * time.Millisecond)
						continue
					}
					h.note(t, value, r, err)
					break
				}
				virtual.Sleep(15 * time.Millisecond)
			}
		})
	}
	disturb()
	cancel()
	all.Wait()
	return h
}

func seededRand(t *testing.T, seed uint64) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestTransfersWhileMessagesFlowLoseAndRepeatNothing(t *testing.T) {
	for _, retry := range []bool{true, false} {
		t.Run(fmt.Sprintf("retry=%v", retry), func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				info := m.create("orders", StreamConfig{Partitions: 1})
				g := info.Partitions[0].Group
				h := storm(t, m, "orders", 12, retry, 5*time.Second, func() {
					for range 20 {
						owner := m.owner(g)
						lg, _ := owner.host.Group(g)
						to := m.nodes[(owner.i+1)%3].id
						_ = lg.Transfer(m.within(2*time.Second), to) // it may come to nothing; another is tried
						virtual.Sleep(100 * time.Millisecond)
					}
				})
				h.check(t, m, "orders")
			})
		})
	}
}

func TestCutsWhileMessagesFlowLoseAndRepeatNothing(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				r := seededRand(t, seed)
				info := m.create("orders", StreamConfig{Partitions: 2})
				h := storm(t, m, "orders", 12, seed%2 == 0, time.Second, func() {
					for range 6 {
						i := r.IntN(3)
						if r.IntN(2) == 0 {
							i = m.owner(info.Partitions[0].Group).i
						}
						m.isolate(i, true)
						virtual.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
						m.isolate(i, false)
						virtual.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
					}
				})
				virtual.Sleep(2 * time.Second)
				h.check(t, m, "orders")
			})
		})
	}
}

func TestRestartsWhileMessagesFlowLoseAndRepeatNothing(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				r := seededRand(t, seed)
				m.create("orders", StreamConfig{Partitions: 2})
				h := storm(t, m, "orders", 8, seed%2 == 0, 2*time.Second, func() {
					for round := range 3 {
						down := []int{r.IntN(3)}
						if round%3 == 2 {
							down = []int{0, 1, 2}
						}
						for _, i := range down {
							m.nodes[i].crash()
						}
						virtual.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
						for _, i := range down {
							m.nodes[i].start()
						}
						virtual.Sleep(time.Duration(500+r.IntN(1000)) * time.Millisecond)
					}
				})
				virtual.Sleep(2 * time.Second)
				h.check(t, m, "orders")
			})
		})
	}
}

// crash ends the node without letting its disk finish.
func (nd *node) crash() {
	nd.m.mu.Lock()
	nd.up = false
	nd.m.mu.Unlock()
	nd.disk.Crash()
	nd.m.sever(nd.i, errGone)
	nd.cancel()
	nd.running.Wait()
	nd.serving.Wait()
}

func TestBatchesOfALostSessionAreNotGivenTwoNumbers(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 1})
		m.put(0, "orders", "k", "0-0")
		for i := range 200 {
			_, _ = m.publish(0, "orders", batch.Record{Value: fmt.Appendf(nil, "0-%d", i+1)}, PublishOptions{}, 2*time.Second)
			if i%10 == 5 {
				m.sever(0, errGone)
			}
		}
		seen := map[string]bool{}
		for _, v := range values(m.readAll(1, "orders", earliest())) {
			if seen[v] {
				t.Errorf("%s is stored twice", v)
			}
			seen[v] = true
		}
	})
}

// A dead owner's connection takes nothing more: the session must notice its successor while it blocks.
func TestSessionThatBlocksInSendLeavesForTheNextOwner(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		g := info.Partitions[0].Group
		owner := m.owner(g)
		other := m.nodes[(owner.i+1)%3]
		m.put(other.i, "orders", "k", "0-0")
		s := m.onlySession(other.i)
		st, far := scripted(t)
		for range laneFrames { // nobody reads
			if err := st.Send(t.Context(), []byte{0}); err != nil {
				t.Fatal(err)
			}
		}
		_ = far
		m.isolate(owner.i, true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := pump{s: s, st: st, owner: owner.id, leave: cancel}
		begin := time.Now()
		if err := p.transmit(ctx, &outBatch{frame: []byte{1}}); err == nil {
			t.Error("a stream that nobody reads took a batch")
		}
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("left after %v", d)
		}
	})
}
