package replica

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// history is what clients saw.
type history struct {
	mu      sync.Mutex
	acked   map[string]uint64 // value to the position the owner answered
	refused map[string]bool   // certainly not stored
}

// client proposes values one after the other until stop, never the same value twice.
func (m *mesh) client(id int, g ring.GroupID, h *history, stop <-chan struct{}, seed uint64) {
	r := rand.New(rand.NewPCG(seed, uint64(id)))
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(20)) * time.Millisecond * m.calm()):
		}
		m.mu.Lock()
		n := m.nodes[r.IntN(len(m.nodes))]
		host, up := n.host, n.up
		m.mu.Unlock()
		if !up {
			continue
		}
		rep, ok := host.Group(g)
		if !ok {
			continue
		}
		v := fmt.Sprintf("c%d-%05d", id, i)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		o := rep.ProposeWait(ctx, []byte(v))
		cancel()
		h.mu.Lock()
		switch wire.KindOf(o.Err) {
		case wire.KindInternal:
			h.acked[v] = o.Result.(uint64)
		case wire.KindNotOwner, wire.KindNoCredit, wire.KindUnavailable, wire.KindClosed:
			h.refused[v] = true
		}
		h.mu.Unlock()
	}
}

// calm is how many times slower clients are where groups are to rest between their proposals.
func (m *mesh) calm() time.Duration {
	if m.tune != nil {
		return 20
	}
	return 1
}

// trouble breaks and mends things for a while, and has members change if g names a group.
func (m *mesh) trouble(r *rand.Rand, rounds int, g *ring.GroupID) {
	down := -1
	for range rounds {
		if g != nil {
			m.changeMembers(r, *g, down)
		}
		n := r.IntN(len(m.nodes))
		switch r.IntN(9) {
		case 0, 1:
			if down < 0 {
				m.nodes[n].crash()
				down = n
			} else {
				m.nodes[down].start()
				down = -1
			}
		case 2:
			m.isolate(n, true)
		case 3:
			o := r.IntN(len(m.nodes))
			m.mu.Lock()
			m.cut[[2]int{n, o}] = true // one way
			m.mu.Unlock()
		case 4, 5:
			m.mu.Lock()
			clear(m.cut)
			m.mu.Unlock()
		case 6:
			m.mu.Lock()
			m.loss = []float64{0, 0.05, 0.3}[r.IntN(3)]
			m.mu.Unlock()
		case 7:
			if m.nodes[n].up {
				if err := m.nodes[n].host.Checkpoint(context.Background()); err != nil {
					m.t.Error(err)
				}
			}
		case 8: // power cut of everything
			for _, nd := range m.nodes {
				if nd.up {
					nd.crash()
				}
			}
			for _, nd := range m.nodes {
				nd.start()
			}
			down = -1
		}
		virtual.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
	}
	m.mu.Lock()
	clear(m.cut)
	clear(m.lost)
	clear(m.drained)
	m.loss = 0
	m.mu.Unlock()
	if down >= 0 {
		m.nodes[down].start()
	}
}

// changeMembers drains a node or lets it be, gives the one that is down up, or moves a replica.
func (m *mesh) changeMembers(r *rand.Rand, g ring.GroupID, down int) {
	n, o := r.IntN(len(m.nodes)), r.IntN(len(m.nodes))
	switch r.IntN(5) {
	case 0:
		m.mu.Lock()
		clear(m.drained)
		m.drained[n] = true
		m.mu.Unlock()
	case 1:
		m.mu.Lock()
		clear(m.drained)
		clear(m.lost)
		m.mu.Unlock()
	case 2:
		if down >= 0 {
			m.set(m.lost, down, true)
		}
	case 3:
		for i := range m.nodes {
			if rep := m.group(i, g); rep != nil && rep.Status().Ready {
				// Most are refused: there is no replica to move, or one where it should go.
				_, _ = rep.h.Move(context.Background(), g, m.nodes[n].id, m.nodes[o].id, false)
			}
		}
	}
}

func (h *history) check(t *testing.T, got []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := map[string]int{}
	last := map[string]string{}
	for i, v := range got {
		if _, twice := at[v]; twice {
			t.Errorf("%s is stored twice", v)
		}
		at[v] = i + 1
		if c := v[:2]; last[c] >= v {
			t.Errorf("%s comes after %s", v, last[c])
		} else {
			last[c] = v
		}
		if h.refused[v] {
			t.Errorf("%s was refused, yet it is stored", v)
		}
	}
	for v, pos := range h.acked {
		if at[v] != int(pos) {
			t.Errorf("%s was acknowledged at %d and is at %d", v, pos, at[v])
		}
	}
}

func TestNothingAcknowledgedIsLostUnderTrouble(t *testing.T) {
	underTrouble(t, func(t *testing.T, seed uint64) { runTrouble(t, seed, 3+int(seed%2)*2, false) })
}

// The same while nodes are drained, given up and given copies again, and replicas move: whatever dies at whatever step.
func TestNothingAcknowledgedIsLostWhileMembersChange(t *testing.T) {
	underTrouble(t, func(t *testing.T, seed uint64) { runTrouble(t, seed, 4+int(seed%2), true) })
}

func underTrouble(t *testing.T, run func(t *testing.T, seed uint64)) {
	seeds := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	if s := os.Getenv("SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{n}
	}
	if n, _ := strconv.Atoi(os.Getenv("N")); n > 0 {
		seeds = seeds[:0]
		for i := range n {
			seeds = append(seeds, uint64(1000+i))
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { run(t, seed) })
			if t.Failed() {
				name, _, _ := strings.Cut(t.Name(), "/")
				t.Logf("replay: SEED=%d go test ./flow/replica -run '^%s$'", seed, name)
			}
		})
	}
}

func runTrouble(t *testing.T, seed uint64, nodes int, members bool) {
	r := rand.New(rand.NewPCG(seed, 2))
	m := newMesh(t, nodes, seed)
	if seed%4 < 2 { // the group rests and wakes all the time
		m.tune = func(c *Config) { c.RestTicks = 1 }
	}
	for _, n := range m.nodes {
		n.journal.trim.Store(true)
		n.start()
	}
	g := testGroup(1)
	m.found(g, 0) // grows to three while there is trouble
	h := &history{acked: map[string]uint64{}, refused: map[string]bool{}}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 3 {
		clients.Go(func() { m.client(i, g, h, stop, seed) })
	}
	if members {
		m.trouble(r, 60, &g)
	} else {
		m.trouble(r, 30, nil)
	}
	m.await("three voters where they are wanted", func() bool { // else one of them moves yet
		s := m.owner(g).Status()
		return voters(s) == 3 && len(s.Members) == 3 && s.Move == nil &&
			!slices.ContainsFunc(s.Members, func(mem Member) bool { return !slices.Contains(s.Wanted, mem.Node) })
	})
	close(stop)
	clients.Wait()
	tries := 0
	m.await("an entry after the trouble", func() bool { // each try has its own: one whose outcome is unknown may be there
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		tries++
		return m.owner(g).ProposeWait(ctx, []byte(fmt.Sprintf("zz-%05d", tries))).Err == nil
	})
	var on []int
	for _, mem := range m.owner(g).Status().Members {
		on = append(on, m.find(mem.Node).i)
	}
	slices.Sort(on)
	h.check(t, m.converge(g, on...))
	m.await("no replica elsewhere", func() bool {
		for i := range m.nodes {
			if m.group(i, g) != nil && !slices.Contains(on, i) {
				return false
			}
		}
		return true
	})
	if len(h.acked)*int(m.calm()) < 50 {
		t.Errorf("only %d acknowledged", len(h.acked))
	}
	m.stop()
}

func TestNoElectionStormAfterAllStoodStill(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		const groups = 20
		for i := range groups {
			m.found(testGroup(byte(i)), i%3, (i+1)%3, (i+2)%3)
		}
		terms := map[ring.GroupID]uint64{}
		for i := range groups {
			m.propose(testGroup(byte(i)), "a")
			terms[testGroup(byte(i))] = m.owner(testGroup(byte(i))).Status().Term
		}
		// A machine that stood still delivers one late tick, however long it was: nothing piles up in a mailbox.
		still := make(chan struct{})
		for _, n := range m.nodes {
			for _, g := range n.host.Groups() {
				g.post(func() { <-still })
				for range 500 {
					g.inbox.put(func(in *input) { in.tick = true })
				}
			}
		}
		close(still)
		virtual.Sleep(3 * time.Second)
		for i := range groups {
			g := testGroup(byte(i))
			if now := m.owner(g).Status().Term; now != terms[g] {
				t.Errorf("group %d went from term %d to %d", i, terms[g], now)
			}
		}
	})
}

func TestSlowDiskDoesNotHoldUpHeartbeats(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		m.converge(g, 0, 1, 2)
		own := m.owner(g)
		term := own.Status().Term
		n := m.nodeOf(own)
		n.journal.hold(true)
		ch := make(chan Outcome, 1)
		if err := own.Propose([]byte("b"), func(o Outcome) { ch <- o }); err != nil {
			t.Fatal(err)
		}
		virtual.Sleep(5 * time.Second)
		if s := own.Status(); s.Role != RoleOwner || s.Term != term {
			t.Fatalf("a slow disk cost the ownership: %+v", s)
		}
		n.journal.hold(false)
		if o := <-ch; o.Err != nil {
			t.Fatal(o.Err)
		}
	})
}

// A crash between the steps of an installation leaves a replica that recovers: with the bulk data ahead of the state, or with
// the state ahead of the journal.
func TestCrashWhileASnapshotIsInstalled(t *testing.T) {
	for _, point := range []string{"before the state is flushed", "before the journal is reset"} {
		t.Run(point, func(t *testing.T) {
			inMesh(t, 3, func(m *mesh) { crashInstalling(t, m, point == "before the state is flushed") })
		})
	}
}

// fallBehind founds a group on three nodes and cuts off a follower, which then lacks 60 values that it can get by a snapshot alone.
func (m *mesh) fallBehind(g ring.GroupID) (lag *node) {
	m.t.Helper()
	m.found(g, 0, 1, 2)
	m.propose(g, "first")
	m.converge(g, 0, 1, 2)
	lag = m.nodes[(m.nodeOf(m.owner(g)).i+1)%3]
	for _, n := range m.nodes {
		n.journal.trim.Store(n != lag)
	}
	m.isolate(lag.i, true)
	for i := range 60 {
		m.propose(g, value(i))
	}
	virtual.Sleep(time.Second)
	for _, n := range m.nodes {
		if err := n.host.Checkpoint(context.Background()); err != nil {
			m.t.Fatal(err)
		}
	}
	return lag
}

func crashInstalling(t *testing.T, m *mesh, early bool) {
	g := testGroup(1)
	lag := m.fallBehind(g)
	lag.store.noFlush.Store(early)
	lag.journal.hold(true)
	m.isolate(lag.i, false)
	m.await("the fetched data", func() bool { return len(lag.bulk(g).values()) == 61 })
	virtual.Sleep(time.Second)
	if gs, _ := lag.journal.Load(g); gs.First != BirthIndex+1 {
		t.Fatal("the journal was reset too early for this test")
	}
	lag.store.loseAll = early
	lag.crash()
	lag.store.noFlush.Store(false)
	lag.start()
	if st := m.group(lag.i, g).Status(); (st.Applied > 60) == early {
		t.Fatalf("came back at %d", st.Applied)
	}
	if got := m.converge(g, 0, 1, 2); len(got) != 61 {
		t.Fatalf("%d values", len(got))
	}
}
