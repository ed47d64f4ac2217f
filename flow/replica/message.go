package replica

import (
	"encoding/binary"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A MethodRaft body is one version byte, then messages back to back: each is its length, the group, the sending and the
// receiving replica, and the raft message. The codec is our own rather than protobuf: it decodes without copying entry data
// (which stays in the frame's buffer until it is on disk) and takes two allocations a message.
const frameVersion = 1

// envelope is one decoded raft message with its addressing.
type envelope struct {
	group    ring.GroupID
	from, to ring.ReplicaID
	msg      *pb.Message
	bytes    int
}

const (
	flagReject = 1 << iota
	flagContext
	flagEntries
	flagSnapshot
)

// appendEnvelope appends one addressed message to a frame.
func appendEnvelope(b []byte, g ring.GroupID, m *pb.Message) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, g[:]...)
	b = binary.AppendUvarint(b, m.GetFrom())
	b = binary.AppendUvarint(b, m.GetTo())
	b = appendMessage(b, m)
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

func appendMessage(b []byte, m *pb.Message) []byte {
	var flags byte
	if m.GetReject() {
		flags |= flagReject
	}
	if len(m.GetContext()) > 0 {
		flags |= flagContext
	}
	if len(m.GetEntries()) > 0 {
		flags |= flagEntries
	}
	if m.GetSnapshot() != nil {
		flags |= flagSnapshot
	}
	b = append(b, byte(m.GetType()), flags)
	for _, v := range [...]uint64{m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit(), m.GetRejectHint()} {
		b = binary.AppendUvarint(b, v)
	}
	if flags&flagContext != 0 {
		b = appendBytes(b, m.GetContext())
	}
	if flags&flagEntries != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.GetEntries())))
		for _, e := range m.GetEntries() {
			b = append(b, byte(e.GetType()))
			b = binary.AppendUvarint(b, e.GetTerm())
			b = binary.AppendUvarint(b, e.GetIndex())
			b = appendBytes(b, e.GetData())
		}
	}
	if flags&flagSnapshot != 0 {
		md := m.GetSnapshot().GetMetadata()
		b = binary.AppendUvarint(b, md.GetIndex())
		b = binary.AppendUvarint(b, md.GetTerm())
		b = appendConfState(b, md.GetConfState())
	}
	return b
}

// decodeFrame calls fn for each message of a frame, in order. Messages before a malformed one have been delivered.
func decodeFrame(body []byte, fn func(envelope)) error {
	d := decoder{b: body}
	if d.byte() != frameVersion {
		return errMalformed
	}
	for len(d.b) > 0 {
		head := d.take(4)
		if d.bad {
			return errMalformed
		}
		raw := d.take(uint64(binary.BigEndian.Uint32(head)))
		if d.bad {
			return errMalformed
		}
		env, err := decodeEnvelope(raw)
		if err != nil {
			return err
		}
		fn(env)
	}
	return nil
}

// SplitFrame gives each message of a MethodRaft body a body of its own, in order, so that a simulated network can treat each by itself.
func SplitFrame(body []byte) (out [][]byte, err error) {
	d := decoder{b: body}
	if d.byte() != frameVersion {
		return nil, errMalformed
	}
	for len(d.b) > 0 {
		rest := d.b
		head := d.take(4)
		if d.bad {
			return nil, errMalformed
		}
		n := uint64(binary.BigEndian.Uint32(head))
		if d.take(n); d.bad {
			return nil, errMalformed
		}
		out = append(out, append([]byte{frameVersion}, rest[:4+n]...))
	}
	return out, nil
}

func decodeEnvelope(raw []byte) (envelope, error) {
	d := decoder{b: raw}
	env := envelope{group: d.group(), from: ring.ReplicaID(d.uvarint()), to: ring.ReplicaID(d.uvarint()), bytes: len(raw)}
	env.msg = d.message(uint64(env.from), uint64(env.to))
	return env, d.done()
}

func (d *decoder) message(from, to uint64) *pb.Message {
	typ := pb.MessageType(d.byte())
	flags := d.byte()
	n := &[7]uint64{from, to, d.uvarint(), d.uvarint(), d.uvarint(), d.uvarint(), d.uvarint()}
	m := &pb.Message{Type: typ.Enum(), From: &n[0], To: &n[1], Term: &n[2], LogTerm: &n[3], Index: &n[4],
		Commit: &n[5], RejectHint: &n[6]}
	if flags&flagReject != 0 {
		m.Reject = new(true)
	}
	if flags&flagContext != 0 {
		m.Context = d.bytes(maxContext)
	}
	if flags&flagEntries != 0 {
		m.Entries = d.entries(m.GetIndex())
	}
	if flags&flagSnapshot != 0 {
		md := &pb.SnapshotMetadata{Index: new(d.uvarint()), Term: new(d.uvarint())}
		md.ConfState = d.confState()
		m.Snapshot = &pb.Snapshot{Metadata: md}
	}
	if !acceptable(m) {
		d.fail()
	}
	return m
}

// entries decodes a run of entries that follow prev without a gap.
func (d *decoder) entries(prev uint64) []*pb.Entry {
	n := d.count(1<<20, 4)
	slab := newEntries(n)
	for i, e := range slab {
		*e.Type = pb.EntryType(d.byte())
		*e.Term, *e.Index = d.uvarint(), d.uvarint()
		e.Data = d.bytes(wire.MaxFrame)
		if d.bad || *e.Index != prev+uint64(i)+1 || *e.Type > pb.EntryConfChangeV2 {
			d.fail()
			return nil
		}
	}
	return slab
}

// newEntries allocates n entries with their Type, Term and Index fields set to point at zeros.
func newEntries(n int) []*pb.Entry {
	type cell struct {
		e   pb.Entry
		num [2]uint64
		typ pb.EntryType
	}
	cells := make([]cell, n)
	out := make([]*pb.Entry, n)
	for i := range cells {
		c := &cells[i]
		c.e.Term, c.e.Index, c.e.Type = &c.num[0], &c.num[1], &c.typ
		out[i] = &c.e
	}
	return out
}

// acceptable says whether a peer may send us such a message: the core panics on some that only a broken peer makes.
func acceptable(m *pb.Message) bool {
	if m.GetFrom() == 0 || m.GetFrom() >= 1<<63 || m.GetTerm() == 0 {
		return false
	}
	switch m.GetType() {
	case pb.MsgApp:
		return true
	case pb.MsgHeartbeat, pb.MsgHeartbeatResp:
		return (len(m.GetContext()) == 0 || len(m.GetContext()) == 8) && len(m.GetEntries()) == 0
	case pb.MsgSnap:
		return m.GetSnapshot().GetMetadata().GetIndex() > 0
	case pb.MsgAppResp, pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgTimeoutNow:
		return len(m.GetEntries()) == 0
	}
	return false
}

// classOf puts what keeps a group alive on the control lane and log entries on the bulk lane.
func classOf(m *pb.Message) wire.Class {
	if m.GetType() == pb.MsgApp {
		return wire.ClassBulk
	}
	return wire.ClassControl
}
