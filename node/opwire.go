package node

import (
	"context"

	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// opsOp says what a MethodOps request wants. Append only.
type opsOp uint8

const (
	opsAsk     opsOp = 1 // carry out Request
	opsGet     opsOp = 2 // the operation ID
	opsList    opsOp = 3 // the operations kept there, of which Page
	opsReports opsOp = 4 // the groups owned there, in order of their ids, behind After
	opsRunning opsOp = 5 // the move that Request asks for, where it is under way and kept there
)

type opsQuestion struct {
	Op      opsOp        `msgpack:"o"`
	Request ops.Request  `msgpack:"r"`
	ID      string       `msgpack:"i,omitempty"`
	Group   ring.GroupID `msgpack:"g"` // that Request is about, where it is about one
	After   ring.GroupID `msgpack:"a"`
	Page    ops.Page     `msgpack:"p"`
}

type opsAnswer struct {
	Operations []ops.Operation `msgpack:"o,omitempty"`
	Reports    []ops.Report    `msgpack:"r,omitempty"`
	More       bool            `msgpack:"m,omitempty"`
}

// first is the one operation of an answer that has one.
func (a opsAnswer) first() ops.Operation {
	if len(a.Operations) == 0 {
		return ops.Operation{}
	}
	return a.Operations[0]
}

// handle answers MethodOps.
func (o *operator) handle(ctx context.Context, _ ring.NodeID, body []byte) ([]byte, error) {
	var q opsQuestion
	if err := wire.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	var ans opsAnswer
	one := func(op ops.Operation, err error) error {
		ans.Operations = []ops.Operation{op}
		return err
	}
	var err error
	switch q.Op {
	case opsAsk:
		if q.Request.Kind.OfNode() {
			err = one(o.asAsked(ctx, q.Request))
		} else {
			err = one(o.own(ctx, q.Request, q.Group))
		}
	case opsGet:
		err = one(o.kept(q.ID))
	case opsList:
		ans.Operations, ans.More = q.Page.Of(o.list())
	case opsReports:
		ans.Reports, ans.More = o.reports.own(q.After)
	case opsRunning:
		ans.Operations, err = o.underWay(q.Request)
	default:
		err = wire.Errorf(wire.KindInvalid, "", "question %d about operations is not known to this version", q.Op)
	}
	if err != nil {
		return nil, err
	}
	return wire.Marshal(&ans)
}

// asAsked carries out what another node passed on, if it is about this node: nothing is passed on twice.
func (o *operator) asAsked(ctx context.Context, req ops.Request) (ops.Operation, error) {
	if id, err := ring.ParseNodeID(req.Node); err != nil || id != o.self() {
		return ops.Operation{}, wire.Errorf(wire.KindInvalid, "", "this is not the node that the operation is about")
	}
	return o.here(ctx, req)
}
