package partition

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"sync"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// A snapshot is a sequence of frames: the head, then sessions, identities and batches in this order, then the end. The numbers
// travel between nodes: append only.
//
//	0  kind
//	1  CRC-32C of kind and body
//	5  body
//
// Head: msgpack. Sessions: msgpack, a list of whole sessions. Identities: a minute (8 bytes), then hash, offset and payload hash
// (32 bytes) each. Batches: bytes as in segment files, cut anywhere. End: nothing.
const (
	frameHead       = 1
	frameSessions   = 2
	frameIdentities = 3
	frameBatches    = 4
	frameEnd        = 5

	frameBytes   = 256 << 10 // what the sender puts into a frame at most, but for one large session
	identitySize = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// have is what a receiver has already: BulkHave's answer.
type have struct {
	Version uint8  `msgpack:"v"`
	Next    uint64 `msgpack:"n"`
	// Base, Index and CRC are of the last batch; Next 0 means there is none.
	Base  uint64 `msgpack:"b"`
	Index uint64 `msgpack:"i"`
	CRC   uint32 `msgpack:"c"`
	// Bulk: batches alone will do where there are many, for the receiver asks again. Only: nothing but batches is wanted. A sender
	// that does not know them sends all. Until, where above 0: batches from this offset on are not wanted either.
	Bulk  bool   `msgpack:"k,omitempty"`
	Only  bool   `msgpack:"o,omitempty"`
	Until uint64 `msgpack:"u,omitempty"`
}

const snapshotVersion = 1

// head is the first frame of a snapshot.
type head struct {
	Version uint8  `msgpack:"v"`
	Applied uint64 `msgpack:"a"`
	Next    uint64 `msgpack:"n"`
	Start   uint64 `msgpack:"s"`
	Stamp   int64  `msgpack:"t"`
	Expired int64  `msgpack:"x"`
	Limits  Limits `msgpack:"l"`
	// From is the base of the first batch sent; Fresh: the receiver's own batches are of no use.
	From  uint64 `msgpack:"f"`
	Fresh bool   `msgpack:"r"`
	// Bulk: batches follow, and no state.
	Bulk bool `msgpack:"k,omitempty"`
	// Import: the partition was filled from an export, or is being. Since wire.Version2.
	Import *Import `msgpack:"im,omitempty"`
}

func (h *head) validate() error {
	switch {
	case h.Version != snapshotVersion:
		return corrupt("snapshot version %d is not known", h.Version)
	case h.Start > h.Next || h.From > h.Next || h.Fresh && h.From > h.Start || h.Next > 1<<62 || h.Stamp < 0 || h.Expired < 0:
		return corrupt("snapshot of offsets %d to %d, sent from %d", h.Start, h.Next, h.From)
	}
	if h.Import != nil {
		if err := h.Import.validate(); err != nil {
			return err
		}
	}
	return h.Limits.Validate()
}

// sentSession is one session in a snapshot.
type sentSession struct {
	ID       SessionID   `msgpack:"i"`
	Node     ring.NodeID `msgpack:"n"`
	Opened   int64       `msgpack:"o"`
	Outcomes []byte      `msgpack:"u"` // one after the other, as in the store
}

func (s *session) toSend(id SessionID) sentSession {
	out := sentSession{ID: id, Node: s.node, Opened: s.opened}
	for i := range s.outcomes {
		out.Outcomes = appendOutcome(out.Outcomes, &s.outcomes[i])
	}
	return out
}

// fromSent checks and takes over a session.
func fromSent(in *sentSession) (*session, error) {
	s := &session{node: in.Node, opened: in.Opened}
	for rest := in.Outcomes; len(rest) > 0; {
		o, after, err := parseOutcome(rest)
		if err != nil {
			return nil, err
		}
		if len(s.outcomes) == outcomesKept || len(s.outcomes) > 0 && o.seq != s.last()+1 {
			return nil, corrupt("outcomes of a session do not follow each other")
		}
		s.outcomes, rest = append(s.outcomes, o), after
	}
	return s, nil
}

// sender puts frames on a stream.
type sender struct {
	s   wire.Stream
	buf []byte
}

// begin starts a frame; what is appended to the result is its body.
func (w *sender) begin(kind byte) []byte { return append(w.buf[:0], kind, 0, 0, 0, 0) }

func (w *sender) send(ctx context.Context, frame []byte) error {
	w.buf = frame
	binary.LittleEndian.PutUint32(frame[1:], frameCRC(frame))
	return w.s.Send(ctx, frame)
}

func (w *sender) message(ctx context.Context, kind byte, v any) error {
	body, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	return w.send(ctx, append(w.begin(kind), body...))
}

func frameCRC(frame []byte) uint32 {
	return crc32.Update(crc32.Checksum(frame[:1], castagnoli), castagnoli, frame[5:])
}

// recvFrame reads the next frame and verifies it.
func recvFrame(ctx context.Context, s wire.Stream) (kind byte, body []byte, err error) {
	frame, err := s.Recv(ctx)
	if errors.Is(err, io.EOF) {
		return 0, nil, corrupt("the snapshot ends before its end")
	}
	if err != nil {
		return 0, nil, err
	}
	if len(frame) < 5 || binary.LittleEndian.Uint32(frame[1:]) != frameCRC(frame) {
		return 0, nil, corrupt("snapshot frame of %d bytes fails its CRC", len(frame))
	}
	return frame[0], frame[5:], nil
}

// ahead reads the frames of a snapshot while those before are still written to disk.
type ahead struct {
	frames chan readFrame
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

type readFrame struct {
	kind byte
	body []byte
	err  error
}

// framesAhead is how many frames are read ahead, at most maxBatchFrame bytes each.
const framesAhead = 4

// readAhead starts to read frames, up to the last or an error. close must be called.
func readAhead(ctx context.Context, s wire.Stream) *ahead {
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{frames: make(chan readFrame, framesAhead), ctx: ctx, cancel: cancel}
	a.done.Go(func() {
		defer close(a.frames)
		for {
			kind, body, err := recvFrame(ctx, s)
			select {
			case a.frames <- readFrame{kind, body, err}:
			case <-ctx.Done():
				return
			}
			if err != nil || kind == frameEnd {
				return
			}
		}
	})
	return a
}

// frame is the next frame.
func (a *ahead) frame() (kind byte, body []byte, err error) {
	f, ok := <-a.frames
	if !ok {
		return 0, nil, context.Cause(a.ctx)
	}
	return f.kind, f.body, f.err
}

// close ends the reading; a stream that was not read to its end is dead then.
func (a *ahead) close() {
	a.cancel()
	a.done.Wait()
}

// splitBatch takes the first whole batch off b. ok is false when b ends before it does.
func splitBatch(b []byte) (m batch.Meta, payload, rest []byte, ok bool, err error) {
	m, n, err := batch.ParseMeta(b)
	if errors.Is(err, batch.ErrShort) && len(b) < batch.MaxMeta {
		return batch.Meta{}, nil, b, false, nil
	}
	if err != nil {
		return batch.Meta{}, nil, nil, false, err
	}
	if len(b)-n < int(m.PayloadLen) {
		return batch.Meta{}, nil, b, false, nil
	}
	payload = b[n : n+int(m.PayloadLen)]
	return m, payload, b[n+len(payload):], true, batch.VerifyPayload(&m, payload)
}
