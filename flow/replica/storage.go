package replica

import (
	"errors"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// storage is raft's view of the journal for one group. Only the group's goroutine uses it.
//
// It keeps the newest entries in memory until they are applied here and acknowledged by the members, so that the usual path
// (append, replicate, apply) does not read the disk again.
type storage struct {
	journal log.Journal
	group   ring.GroupID
	hard    log.HardState // as recovered
	st      *state

	first, last uint64
	compacted   log.Mark

	cache      []*pb.Entry // contiguous; cache[0] may be below first
	cacheBytes int
	cacheLimit int
	node       *nodeBytes // the caches of all groups of the node
}

var _ raft.Storage = (*storage)(nil)

func (s *storage) InitialState() (*pb.HardState, *pb.ConfState, error) {
	h := s.hard
	return &pb.HardState{Term: &h.Term, Vote: &h.Vote, Commit: &h.Commit}, s.st.conf, nil
}

func (s *storage) FirstIndex() (uint64, error) { return s.first, nil }
func (s *storage) LastIndex() (uint64, error)  { return s.last, nil }

// Snapshot gives the place only: the state itself goes over a stream of its own, captured when the receiver asks for it.
func (s *storage) Snapshot() (*pb.Snapshot, error) {
	if s.st.applied.Index == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	a := s.st.applied
	return &pb.Snapshot{Metadata: &pb.SnapshotMetadata{Index: &a.Index, Term: &a.Term, ConfState: s.st.conf}}, nil
}

func (s *storage) Term(i uint64) (uint64, error) {
	if i == s.compacted.Index {
		return s.compacted.Term, nil
	}
	if len(s.cache) > 0 {
		if lo := s.cache[0].GetIndex(); i >= lo && i-lo < uint64(len(s.cache)) {
			return s.cache[i-lo].GetTerm(), nil
		}
	}
	t, err := s.journal.Term(s.group, i)
	return t, raftError(err)
}

func (s *storage) Entries(lo, hi, maxBytes uint64) ([]*pb.Entry, error) {
	if len(s.cache) > 0 && lo >= s.cache[0].GetIndex() {
		base := s.cache[0].GetIndex()
		if hi > base+uint64(len(s.cache)) {
			return nil, raft.ErrUnavailable
		}
		run := s.cache[lo-base : hi-base]
		var size uint64
		n := 0
		for _, e := range run {
			size += entrySize(e)
			if n > 0 && size > maxBytes {
				break
			}
			n++
		}
		return append([]*pb.Entry(nil), run[:n]...), nil
	}
	got, err := s.journal.Entries(s.group, lo, hi, maxBytes)
	if err != nil {
		return nil, raftError(err)
	}
	out := newEntries(len(got))
	for i, e := range got {
		*out[i].Index, *out[i].Term, *out[i].Type, out[i].Data = e.Index, e.Term, pb.EntryType(e.Type), e.Data
	}
	return out, nil
}

func raftError(err error) error {
	switch {
	case errors.Is(err, log.ErrCompacted):
		return raft.ErrCompacted
	case errors.Is(err, log.ErrUnavailable):
		return raft.ErrUnavailable
	}
	return err
}

// entrySize is close to raft's own notion of an entry's encoded size, on the upper side.
func entrySize(e *pb.Entry) uint64 { return uint64(len(e.GetData())) + 24 }

// remember caches entries that are on their way to the journal.
func (s *storage) remember(es []*pb.Entry) {
	if len(es) == 0 {
		return
	}
	at := es[0].GetIndex()
	if len(s.cache) > 0 {
		base := s.cache[0].GetIndex()
		switch {
		case at <= base || at > base+uint64(len(s.cache)):
			s.forget()
		default:
			for _, e := range s.cache[at-base:] {
				s.count(-int(entrySize(e)))
			}
			s.cache = s.cache[:at-base]
		}
	}
	s.cache = append(s.cache, es...)
	for _, e := range es {
		s.count(int(entrySize(e)))
	}
}

func (s *storage) count(n int) {
	s.cacheBytes += n
	s.node.add(int64(n))
}

func (s *storage) forget() {
	s.count(-s.cacheBytes)
	s.cache = nil
}

// stable notes that the log up to last is durable.
func (s *storage) stable(last uint64) { s.last = last }

// evict drops cached entries up to done (applied here and held by all members), and more where the limit is passed.
func (s *storage) evict(done, applied uint64) {
	n := 0
	for n < len(s.cache) {
		i := s.cache[n].GetIndex()
		if i > applied || i > s.last || (i > done && s.cacheBytes <= s.cacheLimit && !s.node.over()) {
			break
		}
		s.count(-int(entrySize(s.cache[n])))
		s.cache[n] = nil
		n++
	}
	if s.cache = s.cache[n:]; len(s.cache) == 0 {
		s.forget()
	}
}

// refresh looks up how much of the log's start the journal has let go.
func (s *storage) refresh() {
	if gs, ok := s.journal.Load(s.group); ok && gs.First > s.first && gs.Compacted.Index == gs.First-1 {
		s.first, s.compacted = gs.First, gs.Compacted
	}
}
