package replica

import (
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestHeldReplicasAreThoseOfTheJournalAndWhereThatIsLostOfTheStore(t *testing.T) {
	disk := logtest.NewDisk(logtest.Config{})
	store := disk.OpenStore()
	defer func() { _ = store.Close() }()
	birth := func(i byte, self ring.ReplicaID) Birth {
		return Birth{Group: testGroup(i), Kind: 1, Spec: []byte("spec"), Members: []Member{{ID: self, Node: ring.NodeID{1}}}, Self: self}
	}
	b := store.NewBatch()
	for i := byte(1); i <= 3; i++ {
		st := bornState(birth(i, 1))
		st.applied = log.Mark{Index: uint64(20 + i), Term: 2}
		st.save(b, testGroup(i), true)
		b.Set(ownKey(testGroup(i), keyBirth), encodeBirth(birth(i, 1)))
	}
	b.Set(ownKey(testGroup(9), keyBirth), []byte("x"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	groups := []log.GroupState{
		{Group: testGroup(1), Birth: encodeBirth(birth(1, 1)), Last: 30},
		{Group: testGroup(2), Birth: encodeBirth(birth(2, 7)), Last: 10}, // born again: the store does not know yet
		{Group: testGroup(3), Tombstone: 1},                              // removed: the store does not know yet
		{Group: testGroup(4), Birth: encodeBirth(birth(4, 1)), Last: 10},
		{Group: testGroup(5), Birth: encodeBirth(birth(4, 1))}, // of another group
	}
	held, err := HeldReplicas(groups, store)
	if wire.KindOf(err) != wire.KindCorrupt || len(held) != 3 { // the records of groups 5 and 9 are damaged
		t.Fatalf("%v, %+v", err, held)
	}
	byGroup := map[ring.GroupID]Held{}
	for _, h := range held {
		byGroup[h.Birth.Group] = h
	}
	if h := byGroup[testGroup(1)]; h.Applied.Index != 21 || h.Last != 30 || h.Foreign {
		t.Errorf("%+v", h)
	}
	if h := byGroup[testGroup(2)]; h.Applied.Index != 0 || h.Last != 10 || !h.Foreign {
		t.Errorf("%+v", h)
	}
	if h := byGroup[testGroup(4)]; h.Applied.Index != 0 || h.Foreign || h.Birth.Self != 1 {
		t.Errorf("%+v", h)
	}
	if held, err := HeldReplicas(nil, store); err == nil || len(held) != 3 || held[0].Applied.Index == 0 {
		t.Errorf("%v, %+v", err, held)
	}
	if held, err := HeldReplicas(groups[:2], nil); err != nil || len(held) != 2 || held[0].Last == 0 {
		t.Errorf("%v, %+v", err, held)
	}
}
