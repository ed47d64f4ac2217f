package flow

import (
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// A publish session on the wire. The ingest node opens a MethodPublish stream with publishHello. The owner answers with one
// publishAck that carries the first credit. Then batches go one way (frameBatch, flags, batch header, payload) and
// publishAcks the other, in order. The owner ends the stream with an error when it refuses or is no owner any more.

// frameBatch is the first byte of a batch frame; the second holds flags. Append only.
const (
	frameBatch byte = 1
	flagAccept byte = 1 // answer once proposed, too
)

// maxCredit bounds the credit of one session, in bytes: an owner that grants more is not believed.
const maxCredit = 1 << 30

type publishHello struct {
	Group   ring.GroupID `msgpack:"g"`
	Session [16]byte     `msgpack:"s"`
	New     bool         `msgpack:"n"` // open it; else it must exist
}

// publishAck answers one batch, or (the first one of a stream, Seq 0) opens the session.
type publishAck struct {
	Seq      uint64          `msgpack:"q"`
	Accepted bool            `msgpack:"a,omitempty"` // proposed, not committed yet; the real answer follows
	Credit   int64           `msgpack:"c"`           // bytes that the session may send on top
	Base     uint64          `msgpack:"b,omitempty"`
	Stamp    int64           `msgpack:"t,omitempty"`
	Copies   int             `msgpack:"n,omitempty"`
	Dups     []partition.Dup `msgpack:"d,omitempty"`
	Term     uint64          `msgpack:"m,omitempty"` // with Seq 0
	ErrBytes []byte          `msgpack:"e,omitempty"` // wire.AppendError

	Err *wire.Error `msgpack:"-"`

	slot bool // on the owner: the batch held a slot until this was written
}

func (a *publishAck) encode() ([]byte, error) {
	if a.Err != nil {
		a.ErrBytes = wire.AppendError(nil, a.Err)
	}
	return wire.Marshal(a)
}

func parseAnswer(frame []byte) (*publishAck, error) {
	a := new(publishAck)
	if err := wire.Unmarshal(frame, a); err != nil {
		return nil, err
	}
	if len(a.ErrBytes) > 0 {
		e, err := wire.ParseError(a.ErrBytes)
		if err != nil {
			return nil, err
		}
		a.Err = e
	}
	return a, nil
}
