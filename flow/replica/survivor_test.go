package replica

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func TestSurvivorGoesOnAloneWithAllThatItHoldsAndTheGroupGrowsAgain(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := testGroup(1)
		m.lost[3] = true // not there yet
		m.found(g, 0, 1, 2)
		for i := range 30 {
			m.propose(g, value(i))
		}
		m.converge(g, 0, 1, 2)
		m.nodes[0].crash() // for good
		m.nodes[1].crash()
		n := m.nodes[2]
		n.crash()
		lost := func(id ring.NodeID) bool { return id == m.nodes[0].id || id == m.nodes[1].id }
		found, err := Survivors(n.journal, n.store)
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		s := found[0]
		if s.Quorum(lost) || !s.Quorum(func(id ring.NodeID) bool { return id == m.nodes[0].id }) || s.Learner() || !s.Member() || s.Birth.Self != 3 {
			t.Fatalf("%+v", s)
		}
		for range 2 { // again, as after a crash in between
			if err := GoOnAlone(n.journal, n.store, g); err != nil {
				t.Fatal(err)
			}
		}
		if err := GoOnAlone(n.journal, n.store, testGroup(9)); wire.KindOf(err) != wire.KindNotFound {
			t.Fatal(err)
		}
		m.lost[0], m.lost[1], m.lost[3] = true, true, false
		n.start()
		if o := m.propose(g, value(30)); o.Copies != 1 {
			t.Fatalf("%+v", o)
		}
		m.await("the newcomer has a copy", func() bool {
			return m.group(3, g) != nil && m.group(3, g).Status().Applied >= m.group(2, g).Status().Applied
		})
		for i, v := range m.converge(g, 2, 3) {
			if v != value(i) {
				t.Fatalf("position %d holds %s", i, v)
			}
		}
		st := m.group(2, g).Status()
		if st.Term <= fence || !slices.ContainsFunc(st.Members, func(mem Member) bool { return mem.Node == m.nodes[3].id && mem.ID > fence }) {
			t.Fatalf("term %d, members %+v", st.Term, st.Members)
		}
	})
}

func TestSurvivorHasNothingOfWhatAnEarlierReplicaLeft(t *testing.T) {
	store := logtest.NewDisk(logtest.Config{}).OpenStore()
	defer func() { _ = store.Close() }()
	birth := func(self ring.ReplicaID) Birth {
		return Birth{Group: testGroup(1), Kind: 1, Members: []Member{{ID: self, Node: ring.NodeID{1}}}, Self: self}
	}
	st := bornState(birth(1))
	st.applied = log.Mark{Index: 20, Term: 2}
	b := store.NewBatch()
	st.save(b, testGroup(1), true)
	b.Set(ownKey(testGroup(1), keyBirth), encodeBirth(birth(1)))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	for self, applied := range map[ring.ReplicaID]uint64{1: 20, 7: BirthIndex} {
		s, _, err := survivorOf(nil, store, log.GroupState{Group: testGroup(1), Birth: encodeBirth(birth(self))})
		if err != nil || s.Foreign != (self == 7) || s.Applied.Index != applied || !s.Member() {
			t.Errorf("replica %d: %+v, %v", self, s, err)
		}
	}
}

// A change of the configuration that waits in the log must not bring the lost members back.
func TestChangesThatWaitInTheSurvivorsLogAreVoid(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		g := testGroup(1)
		m.fixed = true
		m.found(g, 0, 1)
		for i := range 5 {
			m.propose(g, value(i))
		}
		m.converge(g, 0, 1)
		m.nodes[0].stop()
		n := m.nodes[1]
		n.stop()
		gs, _ := n.journal.Load(g)
		last, err := n.journal.Term(g, gs.Last)
		if err != nil {
			t.Fatal(err)
		}
		cc := &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{{Type: pb.ConfChangeAddNode.Enum(), NodeId: new(uint64(3))}},
			Context: encodeConfContext([]Member{{ID: 3, Node: m.nodes[0].id}})}
		data, err := proto.Marshal(cc)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		n.journal.Append(context.Background(), []log.Write{{Group: g, Entries: []log.Entry{
			{Index: gs.Last + 1, Term: last, Data: []byte(value(5))},
			{Index: gs.Last + 2, Term: last, Type: log.EntryConfV2, Data: data},
			{Index: gs.Last + 3, Term: last, Data: []byte(value(6))},
		}}}, true, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := GoOnAlone(n.journal, n.store, g); err != nil {
			t.Fatal(err)
		}
		n.start()
		m.propose(g, value(7))
		if got := m.converge(g, 1); !slices.Equal(got, []string{value(0), value(1), value(2), value(3), value(4), value(5), value(6), value(7)}) {
			t.Fatalf("%q", got)
		}
		if members := m.group(1, g).Status().Members; len(members) != 1 || members[0].ID != 2 {
			t.Fatalf("%+v", members)
		}
	})
}

// The two that had the group, and the one that was founded anew, never believe each other; and what else a node had of the group is gone.
func TestGroupFoundedAnewHoldsItsEntriesAndIsBeyondTheLostOne(t *testing.T) {
	inMesh(t, 4, func(m *mesh) {
		g := testGroup(1)
		m.lost[2], m.lost[3] = true, true
		m.found(g, 0, 1)
		for i := range 5 {
			m.propose(g, value(i))
		}
		m.converge(g, 0, 1)
		old := m.group(0, g).Status()
		m.nodes[0].crash() // for good
		n := m.nodes[1]
		n.crash()
		anew := func(n *node) error {
			return FoundAnew(n.journal, n.store, m.birth(g, n.i), time.Now(),
				[][]byte{[]byte(value(100)), []byte(value(101))})
		}
		if err := anew(n); wire.KindOf(err) != wire.KindConflict {
			t.Fatalf("beside the copy that is there: %v", err)
		}
		n = m.nodes[2]
		n.crash()
		for range 2 { // again, as after a crash in between: the first one is a copy now
			if err := anew(n); err != nil && wire.KindOf(err) != wire.KindConflict {
				t.Fatal(err)
			}
		}
		found, err := Survivors(n.journal, n.store)
		if err != nil || len(found) != 1 || !found[0].Member() || !found[0].Quorum(func(id ring.NodeID) bool { return id != n.id }) {
			t.Fatalf("%+v, %v", found, err)
		}
		m.lost[0], m.lost[1], m.lost[2], m.lost[3] = true, true, false, false
		n.start()
		m.propose(g, value(102))
		m.await("the newcomer has a copy", func() bool {
			return m.group(3, g) != nil && m.group(3, g).Status().Applied >= m.group(2, g).Status().Applied
		})
		if got := m.converge(g, 2, 3); !slices.Equal(got, []string{value(100), value(101), value(102)}) {
			t.Fatalf("%q", got)
		}
		st := m.group(2, g).Status()
		if st.Term <= old.Term+fence || slices.ContainsFunc(st.Members, func(mem Member) bool { return mem.ID <= fence }) {
			t.Fatalf("term %d after %d, members %+v", st.Term, old.Term, st.Members)
		}
	})
}

// A node that was just being given a copy when all others were lost, or from which one was removed, has something of the group, and no copy.
func TestGroupIsFoundedAnewWhereAnEarlierReplicaWasRemovedOrLeftSomething(t *testing.T) {
	inMesh(t, 2, func(m *mesh) {
		for i, leave := range []func(n *node, g ring.GroupID){
			func(n *node, g ring.GroupID) { // removed, and the store does not know yet
				appendTest(t, n, log.Write{Group: g, Tombstone: 7 << 40})
			},
			func(n *node, g ring.GroupID) { // a learner that waits for its snapshot
				appendTest(t, n, log.Write{Group: g, Tombstone: 1})
				b := Birth{Group: g, Kind: KindPartition, Self: 9, Empty: true, Members: []Member{{ID: 1, Node: m.nodes[1].id}, {ID: 9, Node: n.id, Learner: true}}}
				appendTest(t, n, log.Write{Group: g, Birth: encodeBirth(b), Reset: &log.Mark{}, HardState: &log.HardState{}})
			},
		} {
			g := testGroup(byte(i + 1))
			m.lost[1] = true
			m.found(g, 0)
			m.propose(g, value(1))
			n := m.nodes[0]
			n.stop()
			leave(n, g)
			if err := FoundAnew(n.journal, n.store, m.birth(g, n.i), time.Unix(0, 0), [][]byte{[]byte(value(2))}); err != nil {
				t.Fatal(err)
			}
			if err := GoOnAlone(n.journal, n.store, g); wire.KindOf(err) != wire.KindInvalid {
				t.Fatalf("on what an earlier replica left: %v", err)
			}
			n.start()
			m.propose(g, value(3))
			if got := m.converge(g, 0); !slices.Equal(got, []string{value(2), value(3)}) {
				t.Fatalf("%q", got)
			}
			if st := m.group(0, g).Status(); st.Self <= 7<<40 && i == 0 {
				t.Fatalf("replica %d was removed here before", st.Self)
			}
		}
	})
}

func appendTest(t *testing.T, n *node, w log.Write) {
	t.Helper()
	if err := appendSync(n.journal, w); err != nil {
		t.Fatal(err)
	}
}
