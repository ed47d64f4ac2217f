package replica

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestThreeReplicasApplyTheSameAfterRestart(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		for i := range 50 {
			if o := m.propose(g, value(i)); o.Copies < 2 {
				t.Fatalf("acknowledged with %d copies", o.Copies)
			}
		}
		m.converge(g, 0, 1, 2)
		for _, n := range m.nodes {
			n.crash()
		}
		for _, n := range m.nodes {
			n.start()
		}
		m.propose(g, value(50))
		got := m.converge(g, 0, 1, 2)
		for i := range 51 {
			if got[i] != value(i) {
				t.Fatalf("position %d holds %s", i, got[i])
			}
		}
	})
}

func TestSingleVoterOwnsAtOnce(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		g := testGroup(1)
		begin := time.Now()
		m.found(g, 0)
		m.propose(g, "a")
		if d := time.Since(begin); d > 100*time.Millisecond {
			t.Fatalf("took %v", d)
		}
		m.nodes[0].crash()
		m.nodes[0].start()
		begin = time.Now()
		if o := m.propose(g, "b"); o.Result != uint64(2) || o.Copies != 1 {
			t.Fatalf("%+v", o)
		}
		if d := time.Since(begin); d > 100*time.Millisecond {
			t.Fatalf("took %v", d)
		}
	})
}

func TestCreateIsIdempotentAndTombstoneRefusesRebirth(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		ctx := context.Background()
		g := testGroup(1)
		m.found(g, 0)
		m.found(g, 0)
		m.propose(g, "a")
		h := m.nodes[0].host
		for range 2 {
			if err := h.Remove(ctx, g); err != nil {
				t.Fatal(err)
			}
		}
		b := m.birth(g, 0)
		b.Self = 1
		if err := h.Create(ctx, b); wire.KindOf(err) != wire.KindFenced {
			t.Fatalf("rebirth gave %v", err)
		}
		m.nodes[0].crash()
		m.nodes[0].start()
		h = m.nodes[0].host
		if err := h.Create(ctx, b); wire.KindOf(err) != wire.KindFenced {
			t.Fatalf("rebirth after a restart gave %v", err)
		}
		b.Members[0].ID, b.Self = 2, 2
		if err := h.Create(ctx, b); err != nil {
			t.Fatal(err)
		}
		if o := m.propose(g, "b"); o.Result != uint64(1) {
			t.Fatalf("the new replica inherited state: %+v", o)
		}
	})
}

func TestNewerBirthAfterCrashDoesNotInheritOldState(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		for i := range 20 {
			m.propose(g, value(i))
		}
		n := m.nodes[0]
		n.store.Flush(context.Background()) // the removal itself will be lost
		if err := n.host.Remove(context.Background(), g); err != nil {
			t.Fatal(err)
		}
		b := m.birth(g, 0)
		b.Members[0].ID, b.Self = 2, 2
		if err := n.host.Create(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		n.store.loseAll = true
		n.crash()
		n.start()
		if o := m.propose(g, "b"); o.Result != uint64(1) {
			t.Fatalf("the new replica inherited state: %+v", o)
		}
	})
}

func TestProposeElsewhereNamesTheOwner(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		own := m.owner(g)
		m.converge(g, 0, 1, 2)
		for i := range m.nodes {
			r := m.group(i, g)
			if r == own {
				continue
			}
			o := r.ProposeWait(context.Background(), []byte("x"))
			if e := asWire(o.Err); e == nil || e.Kind != wire.KindNotOwner || e.Owner != m.nodeOf(own).id {
				t.Fatalf("got %v", o.Err)
			}
			if err := r.ReadIndex(context.Background()); wire.KindOf(err) != wire.KindNotOwner {
				t.Fatalf("got %v", err)
			}
		}
		if err := own.ReadIndex(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestGroupGrowsFromOneToThreeVotersUnderLoad(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		i := 0
		m.await("three voters", func() bool {
			m.propose(g, value(i))
			i++
			return voters(m.owner(g).Status()) == 3
		})
		if i > 1500 {
			t.Fatalf("took %d proposals", i)
		}
		got := m.converge(g, 0, 1, 2)
		for k := range i {
			if got[k] != value(k) {
				t.Fatalf("position %d holds %s", k, got[k])
			}
		}
		// Any one may go now.
		m.nodes[0].crash()
		m.propose(g, "after")
		m.nodes[0].start()
		m.converge(g, 0, 1, 2)
	})
}

func voters(s Status) (n int) {
	for _, m := range s.Members {
		if !m.Learner {
			n++
		}
	}
	return n
}

func TestTwoNodesAnswerWithTwoCopiesWhileTheLearnerLives(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		m.await("a second copy", func() bool { return m.propose(g, "x").Copies == 2 })
		if s := m.owner(g).Status(); voters(s) != 1 || len(s.Members) != 2 {
			t.Fatalf("members %+v", s.Members)
		}
		for i := range 20 {
			if o := m.propose(g, value(i)); o.Copies != 2 {
				t.Fatalf("answered with %d copies", o.Copies)
			}
		}
		m.nodes[1].crash()
		begin := time.Now()
		if o := m.propose(g, "alone"); o.Copies != 1 {
			t.Fatalf("answered with %d copies", o.Copies)
		}
		if d := time.Since(begin); d < 100*time.Millisecond || d > 2*time.Second {
			t.Fatalf("waited %v for the dead learner", d)
		}
		m.nodes[1].start()
		m.await("two copies again", func() bool { return m.propose(g, "y").Copies == 2 })
	})
}

func TestLaggingFollowerCatchesUpBySnapshot(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		for _, n := range m.nodes {
			n.journal.trim.Store(true)
		}
		m.found(g, 0, 1, 2)
		m.propose(g, "first")
		m.converge(g, 0, 1, 2)
		lag := (m.nodeOf(m.owner(g)).i + 1) % 3
		m.isolate(lag, true)
		for i := range 100 {
			m.propose(g, value(i))
		}
		virtual.Sleep(time.Second)
		for i, n := range m.nodes {
			if i != lag {
				if err := n.host.Checkpoint(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
		virtual.Sleep(5 * time.Second)
		m.isolate(lag, false)
		got := m.converge(g, 0, 1, 2)
		if len(got) != 101 {
			t.Fatalf("%d values", len(got))
		}
		if gs, _ := m.nodes[lag].journal.Load(g); gs.First <= BirthIndex+1 {
			t.Fatal("the follower did not install a snapshot")
		}
		m.propose(g, "last")
		m.converge(g, 0, 1, 2)
		m.nodes[lag].crash()
		m.nodes[lag].start()
		m.converge(g, 0, 1, 2)
	})
}

func TestStaleOwnerIsFencedAndItsProposalsAreUnknown(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		old := m.owner(g)
		i := m.nodeOf(old).i
		m.isolate(i, true)
		ch := make(chan Outcome, 1)
		if err := old.Propose([]byte("lost"), func(o Outcome) { ch <- o }); err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() { read <- old.ReadIndex(context.Background()) }()
		others := slices.DeleteFunc([]int{0, 1, 2}, func(n int) bool { return n == i })
		now := m.owner(g, others...)
		if o := now.ProposeWait(context.Background(), []byte("b")); o.Err != nil {
			t.Fatal(o.Err)
		}
		if o := <-ch; wire.KindOf(o.Err) != wire.KindOutcomeUnknown {
			t.Fatalf("got %+v", o)
		}
		if err := <-read; wire.KindOf(err) != wire.KindUnavailable || wire.CodeOf(err) != wire.CodeNoQuorum {
			t.Fatalf("got %v", err)
		}
		if o := old.ProposeWait(context.Background(), []byte("c")); wire.KindOf(o.Err) != wire.KindNotOwner {
			t.Fatalf("got %+v", o)
		}
		m.isolate(i, false)
		if got := m.converge(g, 0, 1, 2); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("got %v", got)
		}
	})
}

func TestNoCreditBeyondTheUncommittedBound(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		own := m.owner(g)
		m.isolate(m.nodeOf(own).i, true)
		var answered int
		var err error
		for range 64 {
			if err = own.Propose(make([]byte, 512<<10), func(Outcome) { answered++ }); err != nil {
				break
			}
		}
		if wire.KindOf(err) != wire.KindNoCredit {
			t.Fatalf("got %v", err)
		}
		m.isolate(m.nodeOf(own).i, false)
		m.propose(g, "b")
	})
}

func TestTransferMovesOwnership(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		own := m.owner(g)
		to := m.nodes[(m.nodeOf(own).i+1)%3]
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := own.Transfer(ctx, to.id); err != nil {
			t.Fatal(err)
		}
		m.propose(g, "b")
		if now := m.owner(g); m.nodeOf(now) != to {
			t.Fatalf("owner is node %d", m.nodeOf(now).i)
		}
		if err := own.Transfer(ctx, to.id); wire.KindOf(err) != wire.KindNotOwner {
			t.Fatalf("got %v", err)
		}
	})
}

func TestFailedStateMachineStopsOnlyItsReplica(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		a, b := testGroup(1), testGroup(2)
		m.found(a, 0)
		m.found(b, 0)
		m.propose(a, "x")
		ga := m.group(0, a)
		ga.post(func() { ga.sm.(*recorder).fail = func(logEntry) error { return errMalformed } })
		if o := ga.ProposeWait(context.Background(), []byte("y")); wire.KindOf(o.Err) != wire.KindOutcomeUnknown {
			t.Fatalf("got %+v", o)
		}
		<-ga.Done()
		if o := ga.ProposeWait(context.Background(), []byte("z")); wire.KindOf(o.Err) != wire.KindClosed {
			t.Fatalf("got %+v", o)
		}
		m.propose(b, "x")
		if _, ok := m.nodes[0].host.Group(a); ok {
			t.Fatal("the failed replica is still offered")
		}
	})
}

func TestWhatReachesAReplicaTogetherWithItsFailureIsAnswered(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		m.propose(g, "x")
		gr := m.group(0, g)
		proposed, read := make(chan Outcome, 1), &readWait{ch: make(chan error, 1)}
		gr.post(func() { // all of it is for the next turn
			gr.inbox.fail(errMalformed)
			if err := gr.Propose([]byte("y"), func(o Outcome) { proposed <- o }); err != nil {
				t.Error(err)
			}
			gr.inbox.put(func(in *input) { in.reads = append(in.reads, read) })
		})
		<-gr.Done()
		select {
		case o := <-proposed:
			if wire.KindOf(o.Err) != wire.KindClosed {
				t.Errorf("proposal: %+v", o)
			}
		default:
			t.Error("a proposal is never answered")
		}
		select {
		case err := <-read.ch:
			if wire.KindOf(err) != wire.KindClosed {
				t.Errorf("read: %v", err)
			}
		default:
			t.Error("a read is never answered")
		}
	})
}

func TestReplicaThatMetAFullDiskComesBackWhenThereIsSpace(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		m.converge(g, 0, 1, 2)
		n := m.nodes[(m.nodeOf(m.owner(g)).i+1)%3] // a follower
		gr := m.group(n.i, g)
		gr.post(func() {
			gr.sm.(*recorder).fail = func(logEntry) error {
				return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeDiskFull}
			}
		})
		m.propose(g, "b")
		<-gr.Done()
		m.propose(g, "c")
		n.journal.hold(true)
		virtual.Sleep(3 * reopenPause)
		if _, ok := n.host.Group(g); ok {
			t.Fatal("open again before the journal has what the replica left on its way there")
		}
		n.journal.hold(false)
		m.await("the replica again", func() bool { _, ok := n.host.Group(g); return ok })
		m.propose(g, "d")
		if got := m.converge(g, 0, 1, 2); len(got) != 4 {
			t.Fatalf("%d values", len(got))
		}
	})
}

type closer struct{ closed bool }

func (c *closer) Close() error { c.closed = true; return nil }

func TestFetchedSnapshotIsDiscardedWhenTheReplicaStopsBeforeItIsTold(t *testing.T) {
	inMesh(t, 1, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0)
		m.propose(g, "a")
		staged := &closer{}
		gr := m.group(0, g)
		gr.post(func() { gr.fetch = &fetch{staged: staged} })
		synctest.Wait()
		if err := m.nodes[0].host.Remove(context.Background(), g); err != nil {
			t.Fatal(err)
		}
		if !staged.closed {
			t.Error("what was fetched stays open")
		}
	})
}

func TestMessagesOfAnotherNodeForAReplicaAreDropped(t *testing.T) {
	g := &Group{st: state{nodes: map[ring.ReplicaID]ring.NodeID{1: {1}, 2: {2}}, lastID: 3}, strangers: map[ring.ReplicaID]ring.NodeID{}}
	for _, c := range []struct {
		id   ring.ReplicaID
		node ring.NodeID
		want bool
	}{{1, ring.NodeID{1}, true}, {1, ring.NodeID{2}, false}, {3, ring.NodeID{3}, false}, {4, ring.NodeID{4}, true}, {4, ring.NodeID{5}, false}} {
		if got := g.known(c.id, c.node); got != c.want {
			t.Errorf("replica %d from %v: %v", c.id, c.node, got)
		}
	}
}
