package partition

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// All of these decide what entries mean: they are the same on every node, and never configured.
const (
	maxSessions   = 1024
	sessionIdleMS = 15 * 60 * 1000
	// outcomesKept bounds the batches that a publisher may have in flight, for it may have to send them all again.
	outcomesKept = 32
	// dupsKept bounds the memory of a session's outcomes: beyond it the oldest are forgotten, but never the last.
	dupsKept = 4096
)

// outcome is what became of one batch of a session.
type outcome struct {
	seq   uint64
	base  uint64
	stamp int64
	count uint32
	crc   uint32 // of the payload: a sequence number names one batch
	dups  []Dup  // never changed: shared with results and checkpoints
}

// session is one publish session. Its time is that of its last batch that was applied for the first time.
type session struct {
	node     ring.NodeID
	opened   int64
	outcomes []outcome // ascending and contiguous; at most outcomesKept
}

func (s *session) last() uint64 {
	if n := len(s.outcomes); n > 0 {
		return s.outcomes[n-1].seq
	}
	return 0
}

func (s *session) seen() int64 {
	if n := len(s.outcomes); n > 0 {
		return s.outcomes[n-1].stamp
	}
	return s.opened
}

// sessions is the session table. Changes go to memory and to a store batch alike.
type sessions struct {
	keys keyspace
	open map[SessionID]*session
}

// get returns the session if it is open at time now.
func (t *sessions) get(id SessionID, now int64) *session {
	s := t.open[id]
	if s == nil || now-s.seen() > sessionIdleMS {
		return nil
	}
	return s
}

// start opens a session, or finds it open already, and makes room by ending the expired ones and, where there are too many,
// those idle for longest.
func (t *sessions) start(id SessionID, node ring.NodeID, now int64, b log.Batch) *session {
	t.expire(now, b)
	if s := t.open[id]; s != nil {
		return s
	}
	for len(t.open) >= maxSessions {
		t.end(t.idlest(), b)
	}
	s := &session{node: node, opened: now}
	t.open[id] = s
	b.Set(t.keys.session(id), appendSession(nil, s))
	return s
}

// expire ends the sessions that are idle for too long.
func (t *sessions) expire(now int64, b log.Batch) {
	for id := range t.open {
		if t.get(id, now) == nil {
			t.end(id, b)
		}
	}
}

// idlest is the session idle for longest; of several the one with the smallest id, so that the order of a map decides nothing.
func (t *sessions) idlest() SessionID {
	var id SessionID
	var found *session
	for other, s := range t.open {
		if found == nil || s.seen() < found.seen() || s.seen() == found.seen() && bytes.Compare(other[:], id[:]) < 0 {
			id, found = other, s
		}
	}
	return id
}

// end forgets a session.
func (t *sessions) end(id SessionID, b log.Batch) {
	if t.open[id] == nil {
		return
	}
	delete(t.open, id)
	b.Delete(t.keys.session(id))
	prefix := t.keys.outcomes(id)
	b.DeleteRange(prefix, log.PrefixEnd(prefix))
}

// check decides about a batch with a sequence number: nil means that it is the next. Else the result is the first outcome,
// or a refusal.
func (t *sessions) check(id SessionID, seq uint64, count, crc uint32, now int64) *BatchResult {
	s := t.get(id, now)
	if s == nil {
		return refusal(wire.KindFenced, CodeSessionUnknown, "the session is not open: it expired, was closed or was never opened")
	}
	last := s.last()
	switch {
	case seq == last+1:
		return nil
	case seq > last:
		return refusal(wire.KindFenced, CodeSequenceGap, "batch %d of the session came after batch %d", seq, last)
	case seq == 0:
		return refusal(wire.KindInvalid, "", "sequence numbers start at 1")
	}
	back := last - seq
	if back >= uint64(len(s.outcomes)) {
		return refusal(wire.KindOutcomeUnknown, wire.CodeOutcomeUnknown,
			"batch %d of the session was applied, but what became of it is forgotten", seq)
	}
	o := &s.outcomes[len(s.outcomes)-1-int(back)]
	if o.count != count || o.crc != crc {
		return refusal(wire.KindConflict, "", "batch %d of the session was another batch", seq)
	}
	return &BatchResult{Base: o.base, Count: o.count, Stamp: o.stamp, Dups: o.dups, Retry: true}
}

func refusal(kind wire.Kind, code, format string, args ...any) *BatchResult {
	return &BatchResult{Err: wire.Errorf(kind, code, format, args...)}
}

// record remembers the outcome of a session's next batch.
func (t *sessions) record(id SessionID, o outcome, b log.Batch) {
	s := t.open[id]
	s.outcomes = append(s.outcomes, o)
	b.Set(t.keys.outcome(id, o.seq), appendOutcome(nil, &o))
	drop := max(0, len(s.outcomes)-outcomesKept) // its key was overwritten: same slot
	dups := 0
	for i := range s.outcomes[drop:] {
		dups += len(s.outcomes[drop+i].dups)
	}
	for i := drop; i < len(s.outcomes)-1 && dups > dupsKept; i++ {
		dups -= len(s.outcomes[i].dups)
		b.Delete(t.keys.outcome(id, s.outcomes[i].seq))
		drop = i + 1
	}
	if drop > 0 {
		s.outcomes = slices.Delete(s.outcomes, 0, drop)
	}
}

// snapshot copies the table for a checkpoint.
func (t *sessions) snapshot() map[SessionID]*session {
	out := make(map[SessionID]*session, len(t.open))
	for id, s := range t.open {
		c := *s
		c.outcomes = slices.Clone(s.outcomes)
		out[id] = &c
	}
	return out
}

// save writes the whole table to b, after all keys of the former were removed.
func (t *sessions) save(b log.Batch) {
	for id, s := range t.open {
		b.Set(t.keys.session(id), appendSession(nil, s))
		for i := range s.outcomes {
			b.Set(t.keys.outcome(id, s.outcomes[i].seq), appendOutcome(nil, &s.outcomes[i]))
		}
	}
}

// load reads the table, empty so far, from the store.
func (t *sessions) load(st log.Store) error {
	prefix := t.keys.plain(keySession)
	err := st.Scan(prefix, func(key, value []byte) error {
		if len(key) != len(prefix)+16 {
			return corrupt("session key of %d bytes", len(key))
		}
		s, err := parseSession(value)
		t.open[SessionID(key[len(prefix):])] = s
		return err
	})
	if err != nil {
		return err
	}
	prefix = t.keys.plain(keyOutcome)
	err = st.Scan(prefix, func(key, value []byte) error {
		if len(key) != len(prefix)+17 {
			return corrupt("outcome key of %d bytes", len(key))
		}
		s := t.open[SessionID(key[len(prefix):len(prefix)+16])]
		if s == nil {
			return corrupt("outcome of a session that is not open")
		}
		o, rest, err := parseOutcome(value)
		if err == nil && len(rest) > 0 {
			err = corrupt("%d bytes after an outcome", len(rest))
		}
		s.outcomes = append(s.outcomes, o)
		return err
	})
	for _, s := range t.open {
		slices.SortFunc(s.outcomes, func(a, b outcome) int { return cmp.Compare(a.seq, b.seq) })
	}
	return err
}

const sessionVersion = 1

func appendSession(dst []byte, s *session) []byte {
	dst = append(dst, sessionVersion)
	dst = append(dst, s.node[:]...)
	return binary.LittleEndian.AppendUint64(dst, uint64(s.opened))
}

func parseSession(b []byte) (*session, error) {
	if len(b) != 25 || b[0] != sessionVersion {
		return nil, corrupt("session record of %d bytes", len(b))
	}
	s := &session{opened: int64(binary.LittleEndian.Uint64(b[17:]))}
	copy(s.node[:], b[1:])
	return s, nil
}

const (
	outcomeHead = 33
	dupSize     = 13
)

func appendOutcome(dst []byte, o *outcome) []byte {
	le := binary.LittleEndian
	dst = append(dst, sessionVersion)
	dst = le.AppendUint64(dst, o.seq)
	dst = le.AppendUint64(dst, o.base)
	dst = le.AppendUint64(dst, uint64(o.stamp))
	dst = le.AppendUint32(dst, o.count)
	dst = le.AppendUint32(dst, o.crc)
	return appendDups(dst, o.dups)
}

// parseOutcome reads an outcome and returns what follows it.
func parseOutcome(b []byte) (o outcome, rest []byte, err error) {
	if len(b) < outcomeHead || b[0] != sessionVersion {
		return outcome{}, nil, corrupt("outcome record of %d bytes", len(b))
	}
	le := binary.LittleEndian
	o = outcome{seq: le.Uint64(b[1:]), base: le.Uint64(b[9:]), stamp: int64(le.Uint64(b[17:])), count: le.Uint32(b[25:]),
		crc: le.Uint32(b[29:])}
	o.dups, rest, err = parseDups(b[outcomeHead:], o.count)
	return o, rest, err
}

func appendDups(dst []byte, dups []Dup) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(len(dups)))
	for _, d := range dups {
		dst = le.AppendUint32(dst, d.Pos)
		dst = le.AppendUint64(dst, d.Offset)
		reused := byte(0)
		if d.Reused {
			reused = 1
		}
		dst = append(dst, reused)
	}
	return dst
}

// parseDups reads what appendDups wrote: at most count, ascending and below count.
func parseDups(b []byte, count uint32) (dups []Dup, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, corrupt("outcome record is cut off")
	}
	le := binary.LittleEndian
	n := le.Uint32(b)
	b = b[4:]
	if n > count || uint64(len(b)) < uint64(n)*dupSize {
		return nil, nil, corrupt("%d duplicates of %d records in %d bytes", n, count, len(b))
	}
	if n == 0 {
		return nil, b, nil
	}
	dups = make([]Dup, n)
	for i := range dups {
		dups[i] = Dup{Pos: le.Uint32(b), Offset: le.Uint64(b[4:]), Reused: b[12] == 1}
		if dups[i].Pos >= count || i > 0 && dups[i].Pos <= dups[i-1].Pos || b[12] > 1 {
			return nil, nil, corrupt("duplicate at position %d of %d records", dups[i].Pos, count)
		}
		b = b[dupSize:]
	}
	return dups, b, nil
}
