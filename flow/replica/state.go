package replica

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	pb "go.etcd.io/raft/v3/raftpb"
)

// state is what this package keeps in the store for one group, written atomically with what the entries did.
type state struct {
	applied log.Mark
	conf    *pb.ConfState
	// nodes tells where each member lives: replicated state, changed only by applied configuration changes.
	nodes map[ring.ReplicaID]ring.NodeID
	// lastID is the highest replica id ever given out in this group.
	lastID ring.ReplicaID
}

// Keys of one group in the store: 'r' + group + one of these.
const (
	keyApplied = 'a'
	keyConf    = 'c'
	keyBirth   = 'b'
)

func ownPrefix(g ring.GroupID) []byte { return append([]byte{'r'}, g[:]...) }

// StatePrefix is what all keys of a group's state machine start with.
func StatePrefix(g ring.GroupID) []byte { return append([]byte{'g'}, g[:]...) }

func ownKey(g ring.GroupID, k byte) []byte { return append(ownPrefix(g), k) }

func dropKeys(b log.Batch, g ring.GroupID) {
	for _, p := range [][]byte{ownPrefix(g), StatePrefix(g)} {
		b.DeleteRange(p, log.PrefixEnd(p))
	}
}

// bornState is the state every replica starts with.
func bornState(b Birth) state {
	st := state{conf: &pb.ConfState{AutoLeave: new(false)}, nodes: map[ring.ReplicaID]ring.NodeID{}}
	for _, m := range b.Members {
		st.nodes[m.ID] = m.Node
		st.lastID = max(st.lastID, m.ID)
		if b.Empty {
			continue
		}
		if m.Learner {
			st.conf.Learners = append(st.conf.Learners, uint64(m.ID))
		} else {
			st.conf.Voters = append(st.conf.Voters, uint64(m.ID))
		}
	}
	if !b.Empty {
		st.applied = log.Mark{Index: BirthIndex, Term: BirthTerm}
	}
	return st
}

func encodeApplied(m log.Mark) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, m.Index), m.Term)
}

// encodeConf holds the configuration; also the membership part of a snapshot's first frame.
func (st *state) encodeConf() []byte {
	b := appendConfState([]byte{1}, st.conf)
	b = appendMembers(b, st.members())
	return binary.AppendUvarint(b, uint64(st.lastID))
}

func (st *state) decodeConf(raw []byte) error {
	d := decoder{b: raw}
	if d.byte() != 1 {
		return errMalformed
	}
	st.conf = d.confState()
	st.nodes = map[ring.ReplicaID]ring.NodeID{}
	for _, m := range d.members() {
		st.nodes[m.ID] = m.Node
	}
	st.lastID = ring.ReplicaID(d.uvarint())
	return d.done()
}

// members lists who is in the configuration, by id. In a joint configuration an outgoing voter counts as a voter.
func (st *state) members() []Member {
	learner := map[uint64]bool{}
	for _, id := range st.conf.GetLearners() {
		learner[id] = true
	}
	for _, ids := range [][]uint64{st.conf.GetVoters(), st.conf.GetVotersOutgoing()} {
		for _, id := range ids {
			learner[id] = false
		}
	}
	out := make([]Member, 0, len(st.nodes))
	for id, node := range st.nodes {
		l, in := learner[uint64(id)]
		if in || len(learner) == 0 {
			out = append(out, Member{ID: id, Node: node, Learner: l})
		}
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (st *state) save(b log.Batch, g ring.GroupID, conf bool) {
	b.Set(ownKey(g, keyApplied), encodeApplied(st.applied))
	if conf {
		b.Set(ownKey(g, keyConf), st.encodeConf())
	}
}

// loadState reads a group's state; ok is false when the store holds none.
func loadState(s log.Store, g ring.GroupID) (st state, ok bool, err error) {
	raw, ok, err := s.Get(ownKey(g, keyApplied))
	if err != nil || !ok {
		return st, false, err
	}
	d := decoder{b: raw}
	st.applied = log.Mark{Index: d.uvarint(), Term: d.uvarint()}
	if err := d.done(); err != nil {
		return st, false, fmt.Errorf("group %s applied mark: %w", g, err)
	}
	raw, ok, err = s.Get(ownKey(g, keyConf))
	if err != nil || !ok {
		return st, false, err
	}
	if err := st.decodeConf(raw); err != nil {
		return st, false, fmt.Errorf("group %s configuration: %w", g, err)
	}
	return st, true, nil
}
