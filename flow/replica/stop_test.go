package replica

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// stopsAtOnce ends a node's host, and wants that nothing is waited for.
func (n *node) stopsAtOnce() {
	n.m.t.Helper()
	begin := time.Now()
	n.stop()
	if took := time.Since(begin); took > time.Second {
		n.m.t.Errorf("the host took %v to stop", took)
	}
}

func TestHostStopsThoughTheJournalHasNoRoom(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		g, n := testGroup(1), m.nodes[0]
		m.found(g, 0)
		m.propose(g, "a")
		n.journal.full(true)
		out := make(chan Outcome, 2)
		for _, v := range []string{"b", "c"} {
			if err := m.owner(g).Propose([]byte(v), func(o Outcome) { out <- o }); err != nil {
				t.Fatal(err)
			}
		}
		born := make(chan error, 1)
		go func() {
			b := m.birth(testGroup(2), 0)
			b.Self = 1
			born <- n.host.Create(context.Background(), b)
		}()
		virtual.Sleep(time.Minute)
		n.stopsAtOnce()
		for range 2 {
			if o := <-out; wire.KindOf(o.Err) != wire.KindOutcomeUnknown {
				t.Errorf("what the journal never took was answered with %v", o.Err)
			}
		}
		if err := <-born; wire.KindOf(err) != wire.KindClosed {
			t.Errorf("a birth that the journal never took: %v", err)
		}
		n.journal.full(false)
		n.start()
		m.propose(g, "d")
		if got := m.converge(g, 0); !slices.Equal(got, []string{"a", "d"}) {
			t.Errorf("after the next start there is %q", got)
		}
	})
}

// What the journal refused at the end must not be followed by what came later: a log without a piece in the middle is another log.
func TestNothingFollowsWhatTheJournalDidNotTake(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	j := &pickyJournal{took: make(chan int, 3), refuse: cancel}
	a := newAppender(j)
	for i := range 3 {
		a.add(make([]log.Write, i), true, func(error) {})
	}
	a.run(ctx)
	close(j.took)
	var got []int
	for n := range j.took {
		got = append(got, n)
	}
	if !slices.Equal(got, []int{0}) {
		t.Errorf("the journal was given the units %v", got)
	}
}

// pickyJournal has no room for a unit of one write, and the end comes meanwhile.
type pickyJournal struct {
	log.Journal
	took   chan int
	refuse func()
}

func (j *pickyJournal) Append(ctx context.Context, w []log.Write, _ bool, done func(error)) {
	if len(w) == 1 {
		j.refuse()
		done(ctx.Err())
		return
	}
	j.took <- len(w)
	done(nil)
}

func TestHostStopsWhileItRecoversThoughTheJournalHasNoRoom(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		g, n := testGroup(1), m.nodes[0]
		m.found(g, 0)
		m.propose(g, "a")
		n.stop()
		// The store is ahead, as after a crash that came before the journal learnt of an installed snapshot: it must follow first.
		l := n.journal.groups[g]
		l.entries, l.Last = nil, l.First-1
		n.journal.full(true)
		n.launch()
		virtual.Sleep(time.Minute)
		select {
		case <-n.host.Ready():
			t.Error("the host is ready without a journal")
		default:
		}
		n.stopsAtOnce()
		n.journal.full(false)
		n.start()
		m.propose(g, "b")
	})
}

// silentCaller opens streams on which nobody answers.
type silentCaller struct {
	Caller
	opened chan struct{}
}

func (c silentCaller) Open(context.Context, ring.NodeID, wire.Class, wire.Method, []byte) (wire.Stream, error) {
	near, _ := newPipe()
	c.opened <- struct{}{}
	return near, nil
}

func TestHostStopsWhileItFetchesASnapshotThatDoesNotCome(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		n := m.nodes[1]
		n.stop()
		caller := silentCaller{n, make(chan struct{}, 8)}
		m.tune = func(c *Config) { c.Caller = caller }
		n.start()
		m.found(testGroup(1), 0)
		m.propose(testGroup(1), "a")
		<-caller.opened // as the learner that the group gets there
		n.stopsAtOnce()
	})
}

func TestHostStopsWhileASnapshotIsSentThatNobodyReads(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1)
		for i := range 20 {
			m.propose(g, value(i))
		}
		m.converge(g, 0, 1)
		n := m.nodes[0]
		_, far := newPipe()
		hello := snapshotHello{group: g, from: 1, to: 2, have: make([]byte, 8)}
		sent := make(chan error, 1)
		go func() { sent <- n.host.HandleSnapshot(context.Background(), m.nodes[1].id, hello.encode(), far) }()
		virtual.Sleep(time.Minute)
		select {
		case err := <-sent:
			t.Fatalf("all of it was sent: %v", err)
		default:
		}
		n.stopsAtOnce()
		if err := <-sent; err == nil {
			t.Error("a snapshot that nobody read counts as sent")
		}
	})
}

func TestHostStopsWhileAnInstalledSnapshotWaitsForTheStore(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		lag := m.fallBehind(g)
		lag.store.noFlush.Store(true)
		m.isolate(lag.i, false)
		m.await("the fetched data", func() bool { return len(lag.bulk(g).values()) == 61 })
		virtual.Sleep(time.Minute)
		lag.stopsAtOnce()
		lag.store.noFlush.Store(false)
		lag.start()
		if got := m.converge(g, 0, 1, 2); len(got) != 61 {
			t.Errorf("%d values after the next start", len(got))
		}
	})
}

// A replica that is opened again is no replica that stays closed when the host stops meanwhile.
func TestReplicaThatIsOpenedAgainWhenTheHostStopsIsNotClosedForGood(t *testing.T) {
	for _, why := range []error{closedErr("write to the journal"), context.Canceled} {
		synctest.Test(t, func(t *testing.T) {
			m := newMesh(t, 1, 7)
			n, opening, again := m.nodes[0], make(chan struct{}), false
			m.tune = func(c *Config) {
				open := c.Factories[KindPartition]
				c.Factories[KindPartition] = func(b Birth, prefix []byte) (StateMachine, error) {
					if !again {
						again = true
						return open(b, prefix)
					}
					close(opening)
					<-n.host.ctx.Done()
					return nil, why
				}
			}
			n.start()
			g := testGroup(1)
			m.found(g, 0)
			gr := m.owner(g)
			gr.post(func() {
				gr.sm.(*recorder).fail = func(logEntry) error {
					return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeDiskFull}
				}
			})
			if err := gr.Propose([]byte("a"), func(Outcome) {}); err != nil {
				t.Fatal(err)
			}
			<-opening
			n.stopsAtOnce()
			if err := n.host.whyClosed(gr.birth); err != nil {
				t.Errorf("closed for good: %v", err)
			}
			m.stop()
		})
	}
}
