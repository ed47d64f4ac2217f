package flow

import (
	"context"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/planted"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// partitionOp says what a MethodPartition request asks. Append only.
type partitionOp uint8

const (
	opEnd      partitionOp = 1 // of the owner: the offset after everything acknowledged so far
	opSeek     partitionOp = 2 // of the owner: the first offset at or after a time
	opAskFates partitionOp = 3 // of any node: ask the catalog now whether the streams held still exist
)

type partitionRequest struct {
	Op    partitionOp  `msgpack:"o"`
	Group ring.GroupID `msgpack:"g"`
	Time  int64        `msgpack:"t,omitempty"` // Unix ms
}

type partitionResponse struct {
	Start  uint64 `msgpack:"s"`
	Next   uint64 `msgpack:"n"`
	Offset uint64 `msgpack:"o"`
}

// HandlePartition answers MethodPartition.
func (b *Broker) HandlePartition(ctx context.Context, _ ring.NodeID, body []byte) ([]byte, error) {
	var req partitionRequest
	if err := wire.Unmarshal(body, &req); err != nil {
		return nil, err
	}
	if req.Op == opAskFates {
		b.births.askSoon()
		return wire.Marshal(&partitionResponse{})
	}
	g, err := b.localOwner(req.Group)
	if err != nil {
		return nil, err
	}
	p, ok := g.StateMachine().(*partition.Partition)
	if !ok {
		return nil, wire.Errorf(wire.KindInvalid, "", "group %s is no partition", req.Group)
	}
	if err := g.ReadIndex(ctx); err != nil {
		return nil, err
	}
	resp := partitionResponse{Start: p.Start(), Next: p.Next()}
	switch req.Op {
	case opEnd:
		resp.Offset = resp.Next
	case opSeek:
		resp.Offset = p.SeekTime(req.Time)
	default:
		return nil, wire.Errorf(wire.KindInvalid, "", "partition operation %d is not known to this version", req.Op)
	}
	return wire.Marshal(&resp)
}

// askPartition asks a partition's owner. Where none answers for a while, the catalog is asked whether the partition still belongs to the
// stream: the owner of one that was deleted never answers. That is KindNotFound with CodeStreamNotFound.
func (b *Broker) askPartition(ctx context.Context, s *catalog.Stream, p *catalog.Partition, req partitionRequest) (partitionResponse, error) {
	if planted.Is(planted.StaleEnd) && req.Op == opEnd {
		if local, ok := b.localPartition(p.Group); ok {
			return partitionResponse{Start: local.Start(), Next: local.Next(), Offset: local.Next()}, nil
		}
	}
	actx, cancel := context.WithTimeout(ctx, lookupPatience)
	resp, err := b.askOwner(actx, foundersOf(p), req)
	cancel()
	if wire.KindOf(err) != wire.KindUnavailable || ctx.Err() != nil {
		return resp, err
	}
	actx, cancel = context.WithTimeout(ctx, attemptTimeout)
	gone, _ := b.catalog.lost(actx, s.Name, p.Group) // without an answer nothing is certain
	cancel()
	if gone {
		return resp, streamNotFound(s.Name)
	}
	return b.askOwner(ctx, foundersOf(p), req)
}

// askOwner asks a partition's owner, past every write acknowledged before.
func (b *Broker) askOwner(ctx context.Context, known []ring.NodeID, req partitionRequest) (resp partitionResponse, err error) {
	body, err := wire.Marshal(&req)
	if err != nil {
		return resp, err
	}
	err = b.withOwner(ctx, req.Group, known, true, func(ctx context.Context, owner ring.NodeID) error {
		answer, err := b.cfg.Peers.Call(ctx, owner, wire.ClassControl, wire.MethodPartition, body)
		if err != nil {
			return err
		}
		return wire.Unmarshal(answer, &resp)
	})
	return resp, noAnswer(req.Group, err)
}

// A partition read on the wire. The reader opens a MethodSubscribe stream with subscribeHello; the replica sends frames of
// whole batches (header and payload, as in the log) while it has credit; the reader sends creditFrames as it takes them.

// frameDry, alone in a frame, tells that the replica has nothing more for now. It is sent once, for readers that only wanted to look.
const frameDry byte = 0

type subscribeHello struct {
	Group  ring.GroupID `msgpack:"g"`
	From   uint64       `msgpack:"f"`
	Credit int64        `msgpack:"c"` // bytes the reader has room for
}

type creditFrame struct {
	Credit int64 `msgpack:"c"` // bytes more
}
