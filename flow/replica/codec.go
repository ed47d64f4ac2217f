package replica

import (
	"encoding/binary"
	"errors"

	"github.com/skeinmesh/skein/ring"
	pb "go.etcd.io/raft/v3/raftpb"
)

// Caps on what a decoder accepts. They are far above what a well-behaved peer sends; everything is also bounded by the
// bytes at hand, so a forged count cannot make us allocate more than a small multiple of the frame.
const (
	maxMembers = 64
	maxSpec    = 1 << 20
	maxContext = 4 << 10
)

var errMalformed = errors.New("replica: malformed bytes")

// decoder is a cursor over bytes of unknown origin. The first error sticks; byte slices alias the input.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() { d.bad, d.b = true, nil }

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) bytes(limit uint64) []byte {
	n := d.uvarint()
	if n > limit {
		d.fail()
		return nil
	}
	return d.take(n)
}

// count reads a length of a list whose elements take at least min bytes each.
func (d *decoder) count(limit, least uint64) int {
	n := d.uvarint()
	if n > limit || n*least > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) group() (g ring.GroupID) { copy(g[:], d.take(16)); return g }
func (d *decoder) node() (n ring.NodeID)   { copy(n[:], d.take(16)); return n }

func (d *decoder) done() error {
	if d.bad || len(d.b) != 0 {
		return errMalformed
	}
	return nil
}

func appendBytes(b, v []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendIDs(b []byte, ids []uint64) []byte {
	b = binary.AppendUvarint(b, uint64(len(ids)))
	for _, id := range ids {
		b = binary.AppendUvarint(b, id)
	}
	return b
}

func (d *decoder) ids() []uint64 {
	n := d.count(maxMembers, 1)
	if n == 0 {
		return nil
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = d.uvarint()
	}
	return out
}

func appendConfState(b []byte, cs *pb.ConfState) []byte {
	b = appendIDs(b, cs.GetVoters())
	b = appendIDs(b, cs.GetLearners())
	b = appendIDs(b, cs.GetVotersOutgoing())
	b = appendIDs(b, cs.GetLearnersNext())
	return append(b, boolByte(cs.GetAutoLeave()))
}

func (d *decoder) confState() *pb.ConfState {
	cs := &pb.ConfState{Voters: d.ids(), Learners: d.ids(), VotersOutgoing: d.ids(), LearnersNext: d.ids()}
	cs.AutoLeave = new(d.byte() == 1)
	return cs
}

func appendMembers(b []byte, ms []Member) []byte {
	b = binary.AppendUvarint(b, uint64(len(ms)))
	for _, m := range ms {
		b = binary.AppendUvarint(b, uint64(m.ID))
		b = append(b, m.Node[:]...)
		b = append(b, boolByte(m.Learner))
	}
	return b
}

func (d *decoder) members() []Member {
	n := d.count(maxMembers, 18)
	out := make([]Member, 0, n)
	for range n {
		out = append(out, Member{ID: ring.ReplicaID(d.uvarint()), Node: d.node(), Learner: d.byte() == 1})
	}
	return out
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

const birthVersion = 1

// encodeBirth is the form of a birth record in the journal, in the store and in MethodBirth requests.
func encodeBirth(b Birth) []byte {
	out := make([]byte, 0, 32+len(b.Spec)+24*len(b.Members))
	out = append(out, birthVersion)
	out = append(out, b.Group[:]...)
	out = append(out, byte(b.Kind))
	out = appendBytes(out, b.Spec)
	out = appendMembers(out, b.Members)
	out = binary.AppendUvarint(out, uint64(b.Self))
	return append(out, boolByte(b.Empty))
}

func decodeBirth(raw []byte) (Birth, error) {
	d := decoder{b: raw}
	if d.byte() != birthVersion {
		return Birth{}, errMalformed
	}
	b := Birth{Group: d.group(), Kind: GroupKind(d.byte())}
	b.Spec = append([]byte(nil), d.bytes(maxSpec)...)
	b.Members = d.members()
	b.Self = ring.ReplicaID(d.uvarint())
	b.Empty = d.byte() == 1
	return b, d.done()
}
