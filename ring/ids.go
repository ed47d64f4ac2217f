package ring

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/dchest/siphash"
	"github.com/google/uuid"
)

// NodeID names one node for as long as its data directory lives.
type NodeID uuid.UUID

// MeshID names one mesh; it is made once, at founding.
type MeshID uuid.UUID

// StreamID names one incarnation of a stream: a stream deleted and created again has another.
type StreamID uuid.UUID

// GroupID names one replica group for ever; groups are never reused.
type GroupID uuid.UUID

// ReplicaID names one replica within its group. Ids start at 1, only grow, and are never reused.
type ReplicaID uint64

// PartitionID numbers a partition within its stream. Children of a reshape get new numbers.
type PartitionID uint32

// NewNodeID returns a random node id.
func NewNodeID() NodeID { return NodeID(uuid.New()) }

// NewMeshID returns a random mesh id.
func NewMeshID() MeshID { return MeshID(uuid.New()) }

// FoundedMesh is the id of a mesh that a list of members founds: the same on every node that knows the key, the cluster's name, the list
// and the nodes that founded it. With the nodes in it, a mesh that is founded anew on emptied disks is another one.
func FoundedMesh(key []byte, cluster string, members []string, nodes []NodeID) MeshID {
	name := binary.AppendUvarint(nil, uint64(len(cluster)))
	name = append(name, cluster...)
	for _, m := range members {
		name = binary.AppendUvarint(name, uint64(len(m)))
		name = append(name, m...)
	}
	name = append(name, 0)
	for _, n := range nodes {
		name = append(name, n[:]...)
	}
	return MeshID(uuid.NewSHA1(uuid.NewSHA1(uuid.NameSpaceOID, key), name))
}

// NewStreamID returns a random stream incarnation.
func NewStreamID() StreamID { return StreamID(uuid.New()) }

// CatalogGroup is the group of catalog shard i of a mesh: every node can compute it.
func CatalogGroup(mesh MeshID, shard int) GroupID {
	return GroupID(uuid.NewSHA1(uuid.UUID(mesh), fmt.Appendf(nil, "catalog/%d", shard)))
}

// PartitionGroup is the group of one partition of one stream incarnation.
func PartitionGroup(stream StreamID, p PartitionID) GroupID {
	return GroupID(uuid.NewSHA1(uuid.UUID(stream), fmt.Appendf(nil, "partition/%d", p)))
}

func (id NodeID) String() string   { return uuid.UUID(id).String() }
func (id MeshID) String() string   { return uuid.UUID(id).String() }
func (id StreamID) String() string { return uuid.UUID(id).String() }
func (id GroupID) String() string  { return uuid.UUID(id).String() }

// IsZero reports whether the id was never set.
func (id NodeID) IsZero() bool { return id == NodeID{} }

// IsZero reports whether the id was never set.
func (id MeshID) IsZero() bool { return id == MeshID{} }

// IsZero reports whether the id was never set.
func (id StreamID) IsZero() bool { return id == StreamID{} }

// IsZero reports whether the id was never set.
func (id GroupID) IsZero() bool { return id == GroupID{} }

// Compare orders node ids by their bytes.
func (id NodeID) Compare(other NodeID) int { return bytes.Compare(id[:], other[:]) }

// Compare orders group ids by their bytes.
func (id GroupID) Compare(other GroupID) int { return bytes.Compare(id[:], other[:]) }

// ParseNodeID reads the textual form that String gives.
func ParseNodeID(s string) (NodeID, error) { id, err := uuid.Parse(s); return NodeID(id), err }

// MarshalText makes the ids readable in JSON and YAML.
func (id NodeID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// MarshalText makes the ids readable in JSON and YAML.
func (id MeshID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// MarshalText makes the ids readable in JSON and YAML.
func (id StreamID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// MarshalText makes the ids readable in JSON and YAML.
func (id GroupID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText wrote.
func (id *NodeID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// UnmarshalText reads what MarshalText wrote.
func (id *MeshID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// UnmarshalText reads what MarshalText wrote.
func (id *StreamID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// UnmarshalText reads what MarshalText wrote.
func (id *GroupID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// Seed keys the hash of one stream, so that nobody outside can aim keys at one range.
type Seed [16]byte

// Hash is SipHash-2-4 (Aumasson and Bernstein, 2012) of key under seed.
func Hash(seed Seed, key []byte) uint64 {
	return siphash.Hash(leU64(seed[:8]), leU64(seed[8:]), key)
}

// Hash128 is SipHash-2-4-128 of data under seed: the identity of an event in the dedupe window.
func Hash128(seed Seed, data []byte) (hi, lo uint64) {
	return siphash.Hash128(leU64(seed[:8]), leU64(seed[8:]), data)
}

func leU64(b []byte) uint64 {
	_ = b[7]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// Range is a contiguous part of the 64-bit key-hash space, both ends included.
type Range struct {
	Lo uint64 `json:"lo" msgpack:"lo"`
	Hi uint64 `json:"hi" msgpack:"hi"`
}

// Contains reports whether hash h lies in the range.
func (r Range) Contains(h uint64) bool { return r.Lo <= h && h <= r.Hi }

// MaxRanges bounds EvenRanges; a stream has 256 partitions at most.
const MaxRanges = 1 << 16

// EvenRanges cuts the whole space into n ranges whose sizes differ by less than n. n below 1 counts as 1, and above
// MaxRanges as MaxRanges.
func EvenRanges(n int) []Range {
	n = min(max(n, 1), MaxRanges)
	out := make([]Range, n)
	step := ^uint64(0) / uint64(n)
	for i := range out {
		out[i].Lo = uint64(i) * step
		out[i].Hi = uint64(i+1)*step - 1
	}
	out[n-1].Hi = ^uint64(0)
	return out
}
