package replica

import (
	"slices"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
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
		n.journal.Append([]log.Write{{Group: g, Entries: []log.Entry{
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
