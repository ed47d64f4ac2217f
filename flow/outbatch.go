package flow

import (
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// outBatch is a batch on its way to the owner: the events of one or more requests, in the order in which they came.
//
// Until session.next took it, it is under session.mu. Afterwards run alone encodes and sends it; parts stay under session.mu.
type outBatch struct {
	builder *batch.Builder
	parts   []part
	lost    int // bytes of dead parts that the builder still holds
	flags   byte
	seq     uint64
	frame   []byte // encoded once, sent again after a change of owner
	sent    bool   // handed to the connection that there is now
	unsure  bool   // an earlier connection may have brought it to an owner that stored it
}

// part is a run of one request's events that are neighbours in a batch.
type part struct {
	req   *request
	index []int // positions in the request
	bytes int   // in the builder
	dead  bool  // the request gave it up before it was sent: it must not be stored
	left  bool  // the request gave it up after it was sent: nobody waits for it
}

// builders are reused: their buffers are the bulk of what publishing allocates.
var builders = sync.Pool{New: func() any { return new(batch.Builder) }}

func newOutBatch() *outBatch {
	b := builders.Get().(*batch.Builder)
	b.Reset()
	return &outBatch{builder: b}
}

// add appends one event of a request.
func (o *outBatch) add(r *batch.Record, id batch.Identity, req *request, index int) error {
	before := o.builder.RawBytes()
	if err := o.builder.AddIdentified(r, id); err != nil {
		return err
	}
	size := o.builder.RawBytes() - before
	if n := len(o.parts); n > 0 && o.parts[n-1].req == req {
		o.parts[n-1].index = append(o.parts[n-1].index, index)
		o.parts[n-1].bytes += size
		return nil
	}
	o.parts = append(o.parts, part{req: req, index: []int{index}, bytes: size})
	return nil
}

// live reports whether any part is to be stored.
func (o *outBatch) live() bool {
	for i := range o.parts {
		if !o.parts[i].dead {
			return true
		}
	}
	return false
}

// wanted reports whether anybody still cares what becomes of the batch: those who wait, and those who were told that it was
// accepted.
func (o *outBatch) wanted() bool {
	for i := range o.parts {
		if !o.parts[i].dead && !o.parts[i].left {
			return true
		}
	}
	return false
}

// give ends the parts of one request with an error. sent tells whether an owner may have got them.
func (o *outBatch) give(req *request, err error, sent bool) {
	for i := range o.parts {
		p := &o.parts[i]
		if p.req != req {
			continue
		}
		p.req, p.dead, p.left = nil, !sent, sent
		if !sent {
			o.lost += p.bytes
		}
		for _, index := range p.index {
			req.results[index].Err = err
		}
		req.complete(len(p.index))
	}
}

// discard gives the builder back.
func (o *outBatch) discard() {
	builders.Put(o.builder)
	o.builder = nil
}

// prepare makes the batch ready to be sealed: what was given up is left out. Nothing can be taken back afterwards.
func (o *outBatch) prepare() error {
	if o.lost > 0 {
		if err := o.rebuild(); err != nil {
			return err
		}
	}
	if o.wantsAccept() {
		o.flags |= flagAccept
	}
	return nil
}

// wantsAccept reports whether a request is content with the owner's acceptance.
func (o *outBatch) wantsAccept() bool {
	for i := range o.parts {
		if o.parts[i].req != nil && o.parts[i].req.ack == AckNone {
			return true
		}
	}
	return false
}

// seal encodes the batch for its first send. The builder goes back to its pool.
func (o *outBatch) seal(session [16]byte, seq uint64) {
	m, payload := o.builder.Finish(true)
	m.Session, m.Seq = session, seq
	o.seq = seq
	o.frame = make([]byte, 0, 2+batch.MetaLen(&m)+len(payload))
	o.frame = append(o.frame, frameBatch, o.flags)
	o.frame = batch.AppendMeta(o.frame, &m)
	o.frame = append(o.frame, payload...)
	o.discard()
}

// rebuild drops the dead parts' events.
func (o *outBatch) rebuild() error {
	m, payload := o.builder.Finish(false)
	var rd batch.Reader
	if err := rd.Open(&m, payload, nil); err != nil {
		return err
	}
	fresh := newOutBatch()
	var rec batch.Record
	for i := range o.parts {
		p := &o.parts[i]
		for _, index := range p.index {
			if !rd.Next(&rec) {
				return rd.Err()
			}
			if p.dead {
				continue
			}
			var id batch.Identity
			if m.Identities != nil {
				id = m.Identities[rd.Position()]
			}
			if err := fresh.add(&rec, id, p.req, index); err != nil {
				return err
			}
		}
	}
	o.discard()
	o.builder, o.parts, o.lost = fresh.builder, fresh.parts, 0
	return nil
}

// restamp gives an encoded batch another session and sequence number: only for one that no owner has proposed.
func (o *outBatch) restamp(session [16]byte, seq uint64) error {
	m, n, err := batch.ParseMeta(o.frame[2:])
	if err != nil {
		return err
	}
	m.Session, m.Seq = session, seq
	o.seq = seq
	frame := batch.AppendMeta(append(make([]byte, 0, len(o.frame)), o.frame[:2]...), &m)
	o.frame = append(frame, o.frame[2+n:]...)
	return nil
}

// fail ends all parts that are still wanted with an error.
func (o *outBatch) fail(err error) {
	for i := range o.parts {
		p := &o.parts[i]
		if p.dead || p.req == nil {
			continue
		}
		for _, index := range p.index {
			p.req.results[index].Err = err
		}
		p.req.complete(len(p.index))
		p.req = nil
	}
}

// accepted ends the parts that asked for no more than the owner's acceptance.
func (o *outBatch) accepted() {
	for i := range o.parts {
		p := &o.parts[i]
		if p.req != nil && !p.dead && p.req.ack == AckNone {
			p.req.complete(len(p.index))
			p.req = nil
		}
	}
}

// finish hands each event its result. Dups are ascending by position.
func (o *outBatch) finish(p ring.PartitionID, a *publishAck) {
	at := time.UnixMilli(a.Stamp).UTC()
	dups := a.Dups
	offset := a.Base
	pos := uint32(0)
	for i := range o.parts {
		pt := &o.parts[i]
		for _, index := range pt.index {
			var dup *partition.Dup
			if len(dups) > 0 && dups[0].Pos == pos {
				dup, dups = &dups[0], dups[1:]
			}
			pos++
			if dup == nil {
				offset++
			}
			if pt.req == nil {
				continue
			}
			switch {
			case dup == nil:
				pt.req.result(index, offset-1, at, a.Copies, false)
			case dup.Reused:
				pt.req.results[index].Err = wire.Errorf(wire.KindConflict, wire.CodeIdempotencyReuse,
					"this identity was used for another event (partition %d, offset %d); use a new one for new content", p, dup.Offset)
			default:
				pt.req.result(index, dup.Offset, at, a.Copies, true)
			}
		}
		if pt.req != nil {
			pt.req.complete(len(pt.index))
			pt.req = nil
		}
	}
}
