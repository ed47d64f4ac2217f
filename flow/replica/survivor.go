package replica

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
)

// The functions here work on the journal and the store of a node that does not run. They are for the day on which the majority of a group
// is lost for good, and an operator decides to go on from one replica, with what that has.

// fence is how far the term and the last replica id of a group are moved when it goes on from one survivor. The lost majority may have
// gone on after it: it cannot have gone that far.
const fence = 1 << 20

// Survivor is what a node that does not run holds of a group.
type Survivor struct {
	Birth Birth
	// Members are the group's, as this replica has applied them. Of a joint change voters of either side count as voters.
	Members []Member
	// Halves are the sets of voters that each need a majority: one, or two within a joint change.
	Halves [][]ring.ReplicaID
	// Foreign: the store still holds the state of an earlier replica of the group, of which nothing counts. The next start removes it.
	Foreign bool
	// Applied is the position of the state here, Last the position of the last entry in the log here.
	Applied, Last log.Mark
	// Term is the highest that this replica knows.
	Term uint64
}

// Learner reports whether the replica is one.
func (s *Survivor) Learner() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.ID == s.Birth.Self && m.Learner })
}

// Member reports whether the replica is in its group's configuration, as far as it knows.
func (s *Survivor) Member() bool {
	return slices.ContainsFunc(s.Members, func(m Member) bool { return m.ID == s.Birth.Self })
}

// Quorum reports whether the members on other nodes than the lost ones are a majority.
func (s *Survivor) Quorum(lost func(ring.NodeID) bool) bool {
	gone := map[ring.ReplicaID]bool{}
	for _, m := range s.Members {
		gone[m.ID] = lost(m.Node)
	}
	for _, voters := range s.Halves {
		left := 0
		for _, id := range voters {
			if !gone[id] {
				left++
			}
		}
		if left <= len(voters)/2 {
			return false
		}
	}
	return true
}

// Survivors lists the groups that the journal and the store hold. Replicas without any state, such as learners that still wait for their
// snapshot, are left out: nothing can go on from them. Errors: KindCorrupt; I/O.
func Survivors(journal log.Journal, store log.Store) ([]Survivor, error) {
	var out []Survivor
	for _, gs := range journal.Groups() {
		if gs.Birth == nil {
			continue
		}
		s, _, err := survivorOf(journal, store, gs)
		if err != nil {
			return nil, err
		}
		if s.Applied.Index > 0 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Survivor) int { return a.Birth.Group.Compare(b.Birth.Group) })
	return out, nil
}

func survivorOf(journal log.Journal, store log.Store, gs log.GroupState) (Survivor, state, error) {
	b, err := birthOf(gs)
	if err != nil {
		return Survivor{}, state{}, err
	}
	foreign, err := isForeign(store, b)
	if err != nil {
		return Survivor{}, state{}, err
	}
	st := bornState(b)
	if !foreign {
		saved, ok, err := loadState(store, b.Group)
		if err != nil {
			return Survivor{}, state{}, err
		}
		if ok {
			st = saved
		}
	}
	s := Survivor{Birth: b, Foreign: foreign, Members: st.members(), Applied: st.applied, Last: gs.Compacted, Term: max(gs.HardState.Term, st.applied.Term)}
	for _, ids := range [][]uint64{st.conf.GetVoters(), st.conf.GetVotersOutgoing()} {
		var half []ring.ReplicaID
		for _, id := range ids {
			half = append(half, ring.ReplicaID(id))
		}
		if len(half) > 0 {
			s.Halves = append(s.Halves, half)
		}
	}
	if gs.Last > gs.Compacted.Index {
		term, err := journal.Term(b.Group, gs.Last)
		if err != nil {
			return Survivor{}, state{}, err
		}
		s.Last = log.Mark{Index: gs.Last, Term: term}
	}
	if s.Applied.Index > s.Last.Index {
		s.Last = s.Applied
	}
	return s, st, nil
}

// GoOnAlone makes the replica of a group that is here its only member, for good: whatever the lost members did after the last entry here
// never happened. Everything in the log here counts from then on, acknowledged or not, but for changes of the configuration. Term and
// replica ids are moved beyond what the lost members can have used, so that nothing they say is believed. It is durable on return; done
// again after a crash in between it comes to the same. Errors: KindNotFound, KindInvalid (there is nothing to go on from), KindCorrupt; I/O.
func GoOnAlone(journal log.Journal, store log.Store, group ring.GroupID) error {
	gs, known := journal.Load(group)
	if !known || gs.Birth == nil {
		return wire.Errorf(wire.KindNotFound, "", "group %s has no replica here", group)
	}
	s, st, err := survivorOf(journal, store, gs)
	if err != nil {
		return err
	}
	switch {
	case s.Foreign:
		return wire.Errorf(wire.KindInvalid, "", "group %s: the store still holds what an earlier replica left: start the node, stop it, and try again", group)
	case s.Applied.Index == 0:
		return wire.Errorf(wire.KindInvalid, "", "group %s: the replica here has no state", group)
	case s.Applied.Index < gs.Compacted.Index:
		return wire.Errorf(wire.KindCorrupt, "", "group %s: state is at %d, but the journal begins after %d", group, s.Applied.Index, gs.Compacted.Index)
	}
	self := s.Birth.Self
	term := max(s.Term, s.Last.Term) + fence
	w := log.Write{Group: group, HardState: &log.HardState{Term: term, Vote: uint64(self), Commit: max(gs.HardState.Commit, s.Applied.Index)}}
	if w.Entries, err = withoutChanges(journal, gs, s.Applied.Index, term); err != nil {
		return err
	}
	if err := appendSync(journal, w); err != nil {
		return err
	}
	st.conf = &pb.ConfState{Voters: []uint64{uint64(self)}, AutoLeave: new(false)}
	st.nodes = map[ring.ReplicaID]ring.NodeID{self: nodeOf(s.Birth)}
	st.lastID = max(st.lastID, self) + fence
	b := store.NewBatch()
	st.save(b, group, true)
	b.Set(ownKey(group, keyBirth), encodeBirth(s.Birth))
	return b.Commit()
}

// FoundAnew founds a group again of which no replica is left anywhere: from b, whose one member is given its id here, and with entries as
// its first ones, which are applied before anybody owns it. Term and replica id are beyond what the lost group can have used, and any that
// was founded anew earlier, so that nothing these say is believed. What else is here of the group counts no more. It is one write to the
// journal, durable on return. Errors: KindConflict (a replica with state is here: go on from that), KindCorrupt; I/O.
func FoundAnew(journal log.Journal, store log.Store, b Birth, now time.Time, entries [][]byte) error {
	gs, known := journal.Load(b.Group)
	if known && gs.Birth != nil {
		s, _, err := survivorOf(journal, store, gs)
		if err != nil {
			return err
		}
		if s.Member() && s.Applied.Index > 0 {
			return wire.Errorf(wire.KindConflict, "", "group %s has a replica here to go on from", b.Group)
		}
		gs.Tombstone = max(gs.Tombstone, uint64(s.Birth.Self))
	}
	mark := fence * (fence + uint64(max(now.Unix(), 0)))
	mark = max(mark, gs.Tombstone+fence, gs.HardState.Term+fence)
	b.Self = ring.ReplicaID(mark)
	b.Members = []Member{{ID: b.Self, Node: b.Members[0].Node}} // a copy: the caller's stays as it is
	w := log.Write{Group: b.Group, Birth: encodeBirth(b), Reset: &log.Mark{Index: BirthIndex, Term: BirthTerm},
		HardState: &log.HardState{Term: mark, Vote: mark, Commit: BirthIndex + uint64(len(entries))}}
	for i, data := range entries {
		w.Entries = append(w.Entries, log.Entry{Index: BirthIndex + 1 + uint64(i), Term: mark, Type: log.EntryNormal, Data: data})
	}
	return appendSync(journal, w)
}

func appendSync(journal log.Journal, w log.Write) error {
	done := make(chan error, 1)
	journal.Append(context.Background(), []log.Write{w}, true, func(err error) { done <- err })
	if err := <-done; err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// nodeOf is the node that a replica was born on.
func nodeOf(b Birth) ring.NodeID {
	for _, m := range b.Members {
		if m.ID == b.Self {
			return m.Node
		}
	}
	return ring.NodeID{}
}

// withoutChanges is the log behind the applied index from the first change of the configuration on, with such changes replaced by empty
// entries and all of it under a new term; nil where there is none.
func withoutChanges(journal log.Journal, gs log.GroupState, applied, term uint64) ([]log.Entry, error) {
	var out []log.Entry
	for from := max(applied+1, gs.First); from <= gs.Last; {
		es, err := journal.Entries(gs.Group, from, gs.Last+1, 4<<20)
		if err != nil {
			return nil, err
		}
		for _, e := range es {
			change := e.Type != log.EntryNormal
			if len(out) == 0 && !change {
				continue
			}
			e.Term = term
			if change {
				e.Type, e.Data = log.EntryNormal, nil
			}
			out = append(out, e)
		}
		from = es[len(es)-1].Index + 1
	}
	return out, nil
}
