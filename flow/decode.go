package flow

import (
	"bytes"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// framed is one batch as a reader gets it: parsed header, payload bytes as they are in the log.
type framed struct {
	Meta    batch.Meta
	Payload []byte
}

// split parses the headers of neighbouring batches; payloads are verified when they are opened.
func split(raw []byte) ([]framed, error) {
	var out []framed
	for len(raw) > 0 {
		m, n, err := batch.ParseMeta(raw)
		if err != nil {
			return nil, err
		}
		end := n + int(m.PayloadLen)
		if end > len(raw) {
			return nil, wire.Errorf(wire.KindCorrupt, "", "a batch of %d bytes is cut off at %d", end, len(raw))
		}
		out = append(out, framed{Meta: m, Payload: raw[n:end:end]})
		raw = raw[end:]
	}
	return out, nil
}

// eventDecoder turns a chunk's batches into events. Its memory is reused from chunk to chunk.
type eventDecoder struct {
	stream string
	key    []byte
	hasKey bool

	part    ring.PartitionID
	batches []framed
	at      int    // index of the batch being read, or to be opened next
	next    uint64 // offset after the last event given; those below it are passed over
	reading bool
	rd      batch.Reader
	stamp   time.Time

	events  []Event
	scratch [][]byte // one for each batch of a chunk, because events of several are given out together
}

func (d *eventDecoder) init(stream string, req SubscribeRequest) {
	d.stream, d.key, d.hasKey = stream, bytes.Clone(req.Key), req.HasKey
}

// start begins a chunk.
func (d *eventDecoder) start(c chunk) {
	d.part, d.batches, d.at, d.next, d.reading = c.part, c.batches, 0, c.from, false
}

// more reports whether the chunk has something left.
func (d *eventDecoder) more() bool { return d.reading || d.at < len(d.batches) }

// take decodes up to limit events (below 1: all of the chunk). next is the offset to go on at, bytes the size of the values.
func (d *eventDecoder) take(limit int) (events []Event, next uint64, size int, err error) {
	n := 0
	for d.more() && (limit < 1 || n < limit) {
		if !d.reading {
			if err := d.openBatch(); err != nil {
				return nil, d.next, 0, err
			}
		}
		if n == len(d.events) {
			d.events = append(d.events, Event{})
		}
		ev := &d.events[n]
		if !d.rd.Next(&ev.Record) {
			if err := d.rd.Err(); err != nil {
				return nil, d.next, 0, err
			}
			d.next = max(d.next, d.batches[d.at].Meta.Next())
			d.reading = false
			d.at++
			continue
		}
		offset := d.rd.Offset()
		if offset < d.next {
			continue
		}
		d.next = offset + 1
		if d.hasKey && !(ev.HasKey && bytes.Equal(ev.Key, d.key)) {
			continue
		}
		ev.Stream, ev.Partition, ev.Offset, ev.Stamp = d.stream, d.part, offset, d.stamp
		size += len(ev.Value)
		n++
	}
	return d.events[:n], d.next, size, nil
}

func (d *eventDecoder) openBatch() error {
	b := &d.batches[d.at]
	for d.at >= len(d.scratch) {
		d.scratch = append(d.scratch, nil)
	}
	if b.Meta.Codec != batch.CodecNone && cap(d.scratch[d.at]) < int(b.Meta.RawLen) && b.Meta.RawLen <= batch.MaxRaw {
		d.scratch[d.at] = make([]byte, b.Meta.RawLen)
	}
	if err := d.rd.Open(&b.Meta, b.Payload, d.scratch[d.at]); err != nil {
		return err
	}
	d.stamp = time.UnixMilli(b.Meta.Stamp).UTC()
	d.reading = true
	return nil
}
