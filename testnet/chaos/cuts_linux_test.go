package chaos

import (
	"fmt"
	"testing"
	"time"
)

// TestPartialCutsHealUnaided: links that fail in one direction, or between two of three nodes, leave a majority that can work. It does,
// without an owner that comes and goes, and all of it heals.
func TestPartialCutsHealUnaided(t *testing.T) {
	onlyLong(t)
	sd := seed(t)
	s := newSite(t)
	w := newWorld(t, s.servers(), 4)
	l := w.startLoad(sd, 6, 20*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	one := int(sd % 3)
	two, three := (one+1)%3, (one+2)%3
	from := func(a, b int) string { return "ip saddr " + s.ip(a) + " ip daddr " + s.ip(b) }
	cuts := []struct {
		name  string
		rules []string
		works []int // nodes through which publishing must go on
	}{
		{"a node hears nobody", []string{from(two, one), from(three, one)}, []int{two, three}},
		{"a node is heard by nobody", []string{from(one, two), from(one, three)}, []int{two, three}},
		{"two nodes do not reach each other", []string{from(one, two), from(two, one)}, []int{three}},
		{"one node does not hear another", []string{from(one, two)}, []int{three}},
	}
	for n, c := range cuts {
		s.drop(c.rules...)
		cut := time.Now()
		var worst time.Duration
		for seq := uint64(1); time.Since(cut) < 8*time.Second; seq++ {
			for _, node := range c.works {
				worst = max(worst, w.throughAll(node, fmt.Sprintf("cut-%d-through-%d", n, node), seq))
			}
			pause(t.Context(), 50*time.Millisecond)
		}
		s.heal()
		healed := time.Now()
		until(t, healWithin, s.whole)
		t.Logf("%s: publishing to any partition waited %d ms at worst; whole %d ms after healing", c.name, worst.Milliseconds(), time.Since(healed).Milliseconds())
		w.progress(100)
	}
	l.stopPublishing()
	l.finishReaders(w.readBack())
	w.verdict()
}

// throughAll publishes one event to each partition through one node, and returns how long that took.
func (w *world) throughAll(node int, publisher string, seq uint64) time.Duration {
	w.t.Helper()
	c := w.only(node)
	defer c.Close()
	w.mu.Lock()
	var events []event
	for _, key := range w.keyOf {
		events = append(events, event{publisher: publisher, key: key, seq: seq})
	}
	w.mu.Unlock()
	begin := time.Now()
	if len(events) == 0 {
		return 0
	}
	if err := w.send(w.t.Context(), c, events); err != nil {
		w.t.Errorf("publish through node %d: %v", node, err)
	}
	return time.Since(begin)
}
