package wire

import (
	"context"

	"github.com/skeinmesh/skein/ring"
)

// Class says which connection and lane traffic takes, so that no class waits behind another. Append only.
type Class uint8

const (
	ClassControl Class = 0 // heartbeats, votes, small requests: the control connection
	ClassBulk    Class = 1 // replication, publish, subscribe, snapshots: the bulk connection
)

// Method names what a message, request or stream is for. The numbers travel between nodes: append only. 4 and 9 to 12 are taken:
// nothing else may get them.
type Method uint16

const (
	MethodRaft      Method = 1  // one-way: coalesced raft messages (both classes)
	MethodBirth     Method = 2  // request: a group's owner names a learner
	MethodCatalog   Method = 3  // request: catalog reads and commands, sent to the shard's owner
	MethodPublish   Method = 5  // stream: one publish session to a partition's owner
	MethodSubscribe Method = 6  // stream: one partition read, with credit
	MethodPartition Method = 7  // request: end and offset by time (both behind ReadIndex), "ask for fates now"
	MethodSnapshot  Method = 8  // stream: checkpoint and missing batches of one group
	MethodFounding  Method = 13 // request: create a founding replica from its birth record in the catalog
	MethodRemoval   Method = 14 // request: a replica was removed from its group, or is asked about: is it still a member?
	MethodReserve   Method = 15 // request: an owner asks to move a replica to this node or away from it, or that a move is carried on
	MethodOps       Method = 16 // request: what operators ask of a node, and what a node says of the groups that it owns
	MethodUnfit     Method = 17 // request: a damaged replica tells its group's owner that it cannot lead for a while
	MethodImport    Method = 18 // request: an import's beginning, or its next batches, to the partition's owner
	MethodMembers   Method = 19 // request: founding by a list of members: where one stands, and what was founded
)

// Stream is an ordered, flow-controlled pair of frame sequences between two nodes. One goroutine may send while another
// receives. A frame is at most MaxFrame bytes. Both calls honour ctx; after an error the stream is dead.
type Stream interface {
	// Send queues one frame; it blocks while the peer does not read. It does not keep frame after it returned.
	Send(ctx context.Context, frame []byte) error
	// Recv returns the next frame, which the caller then owns; io.EOF after the peer's CloseSend.
	Recv(ctx context.Context) ([]byte, error)
	// CloseSend says that no more frames follow.
	CloseSend() error
	// Close ends both directions now; the peer sees err (nil: KindClosed). Idempotent.
	Close(err error) error
}

// MessageHandler takes a one-way message. It is called in order per (peer, class), must not block for long, and may keep body. Its error says
// that the message cannot be read: it is logged, seldom, for a peer may send such messages as fast as it likes.
type MessageHandler func(from ring.NodeID, body []byte) error

// RequestHandler answers a request; an *Error in the chain reaches the caller as such. It owns body.
type RequestHandler func(ctx context.Context, from ring.NodeID, body []byte) ([]byte, error)

// StreamHandler serves a stream until it returns; its error is what the peer sees. It owns hello.
type StreamHandler func(ctx context.Context, from ring.NodeID, hello []byte, s Stream) error

// MaxFrame bounds every frame between nodes (bytes): the largest body (32 MiB) is cut into batches well below it.
const MaxFrame = 8 << 20
