package backup

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// Batch is one batch of a file.
type Batch struct {
	Meta    batch.Meta
	Payload []byte // valid until the next call of Next
}

// Item is what Next returns: exactly one of the fields is set.
type Item struct {
	Section *Section
	Batch   *Batch
	End     *Totals
}

// Reader reads one file and believes nothing of it. Errors are KindCorrupt with CodeDamaged and name the byte at which the file is wrong,
// or the underlying reader's.
type Reader struct {
	r      *bufio.Reader
	sum    hash.Hash
	pos    int64 // of the next byte
	at     int64 // of the frame in hand
	m      Manifest
	totals Totals
	seen   int
	open   bool // a section is
	sec    Section
	next   uint64
	stamp  int64
	frame  []byte
	rest   []byte // of a frame of batches
	item   Batch
	check  batch.Reader
	done   bool
}

// NewReader reads the manifest.
func NewReader(r io.Reader) (*Reader, *Manifest, error) {
	rd := &Reader{r: bufio.NewReaderSize(r, 128<<10), sum: sha256.New()}
	var head [prefixBytes]byte
	err := rd.fill(head[:])
	// A short file that begins in another way was never an export, and was not cut off from one.
	if got := min(int(rd.pos), len(magic)); string(head[:got]) != magic[:got] {
		return nil, nil, corrupt("this is no export of a stream: it does not begin with %s", magic)
	}
	if err != nil {
		return nil, nil, err
	}
	if v := binary.LittleEndian.Uint32(head[len(magic):]); v != version {
		return nil, nil, corrupt("the export has form %d; this build reads form %d: use the version of skein that wrote it, or a newer one", v, version)
	}
	_, _ = rd.sum.Write(head[:]) // never fails
	kind, body, err := rd.readFrame()
	if err != nil {
		return nil, nil, err
	}
	if kind != kindManifest {
		return nil, nil, rd.bad("a frame of kind %d where the manifest was expected", kind)
	}
	if err := wire.Unmarshal(body, &rd.m); err != nil {
		return nil, nil, rd.bad("the manifest cannot be read: %v", err)
	}
	if err := rd.m.check(); err != nil {
		return nil, nil, rd.bad("the manifest is wrong: %v", err)
	}
	return rd, &rd.m, nil
}

// bad is an error about the frame in hand.
func (r *Reader) bad(format string, args ...any) error {
	err := corrupt(format, args...)
	return corrupt("the export is damaged in the frame at byte %d: %v", r.at, err)
}

// fill reads exactly len(b) bytes.
func (r *Reader) fill(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.pos += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("the export is cut short: it ends at byte %d", r.pos)
	}
	return err
}

// readFrame reads a frame and verifies it. The end's own bytes do not count into the sum that it carries.
func (r *Reader) readFrame() (kind byte, body []byte, err error) {
	r.at = r.pos
	var head [headBytes]byte
	if err := r.fill(head[:]); err != nil {
		return 0, nil, err
	}
	kind = head[0]
	size, most := binary.LittleEndian.Uint32(head[1:]), uint32(maxSmall)
	switch kind {
	case kindBatches:
		most = maxBatches
	case kindManifest, kindSection, kindEnd:
	default:
		return 0, nil, r.bad("a frame of unknown kind %d", kind)
	}
	if size > most {
		return 0, nil, r.bad("a frame of %d bytes; at most %d", size, most)
	}
	if body, err = r.body(int(size)); err != nil {
		return 0, nil, err
	}
	if binary.LittleEndian.Uint32(head[5:]) != frameCRC(head[:5], body) {
		return 0, nil, r.bad("it fails its checksum")
	}
	if kind != kindEnd {
		_, _ = r.sum.Write(head[:])
		_, _ = r.sum.Write(body)
	}
	return kind, body, nil
}

// body reads n bytes, growing with what comes, so that a length alone takes no memory.
func (r *Reader) body(n int) ([]byte, error) {
	const step = 256 << 10
	b := r.frame[:0]
	for len(b) < n {
		at := len(b)
		part := min(n-at, step)
		if cap(b)-at < part {
			b = append(b, make([]byte, part)...)
		} else {
			b = b[:at+part]
		}
		if err := r.fill(b[at:]); err != nil {
			return nil, err
		}
	}
	r.frame = b
	return b, nil
}

// Next returns the next section, batch or, when all was read and checked, the end. io.EOF after that.
func (r *Reader) Next() (Item, error) {
	if r.done {
		return Item{}, io.EOF
	}
	if len(r.rest) > 0 {
		return r.nextBatch()
	}
	kind, body, err := r.readFrame()
	if err != nil {
		return Item{}, err
	}
	switch kind {
	case kindSection:
		return r.section(body)
	case kindBatches:
		if r.rest = body; len(body) == 0 || !r.open {
			return Item{}, r.bad("batches of no partition, or none")
		}
		return r.nextBatch()
	case kindEnd:
		return r.finish(body)
	}
	return Item{}, r.bad("a second manifest")
}

func (r *Reader) section(body []byte) (Item, error) {
	if err := r.sectionDone(); err != nil {
		return Item{}, err
	}
	var s Section
	if err := wire.Unmarshal(body, &s); err != nil {
		return Item{}, r.bad("it cannot be read: %v", err)
	}
	if err := s.check(); err != nil {
		return Item{}, r.bad("%v", err)
	}
	if r.seen >= len(r.m.Partitions) || s.Partition != r.m.Partitions[r.seen].ID {
		return Item{}, r.bad("partition %d is not the next one of the manifest", s.Partition)
	}
	r.seen++
	r.open, r.sec, r.next, r.stamp = true, s, s.Base, 0
	r.totals.Partitions++
	r.totals.Events += s.End - s.Start
	return Item{Section: &s}, nil
}

func (r *Reader) sectionDone() error {
	if r.open && r.next != r.sec.End {
		return r.bad("partition %d ended at offset %d, but it has events up to %d", r.sec.Partition, r.next, r.sec.End)
	}
	return nil
}

// nextBatch takes the next batch off the frame, and reads through it: what is taken over can be read.
func (r *Reader) nextBatch() (Item, error) {
	m, n, err := batch.ParseMeta(r.rest)
	if err != nil {
		return Item{}, r.inPartition(err)
	}
	if uint64(len(r.rest)-n) < uint64(m.PayloadLen) {
		return Item{}, r.inPartition(batch.ErrShort)
	}
	payload := r.rest[n : n+int(m.PayloadLen)]
	switch {
	case m.Base != r.next || m.Next() > r.sec.End || m.Offsets() == 0:
		return Item{}, r.bad("partition %d: a batch from offset %d to %d where %d is next and %d the end", r.sec.Partition, m.Base, m.Next(),
			r.next, r.sec.End)
	case m.Next() <= r.sec.Start:
		return Item{}, r.bad("partition %d: a batch that ends at offset %d, before the first event at %d", r.sec.Partition, m.Next(), r.sec.Start)
	case m.Stamp < r.stamp:
		return Item{}, r.bad("partition %d: the time of the batch at offset %d goes back", r.sec.Partition, m.Base)
	}
	if err := r.readable(&m, payload); err != nil {
		return Item{}, r.inPartition(err)
	}
	r.rest = r.rest[n+len(payload):]
	r.next, r.stamp = m.Next(), m.Stamp
	r.totals.Batches++
	r.totals.Bytes += uint64(n + len(payload))
	r.item = Batch{Meta: m, Payload: payload}
	return Item{Batch: &r.item}, nil
}

func (r *Reader) readable(m *batch.Meta, payload []byte) error {
	if err := r.check.Open(m, payload, nil); err != nil {
		return err
	}
	var rec batch.Record
	for r.check.Next(&rec) {
	}
	return r.check.Err()
}

func (r *Reader) inPartition(err error) error {
	return r.bad("partition %d, offset %d: %v", r.sec.Partition, r.next, err)
}

func (r *Reader) finish(body []byte) (Item, error) {
	if err := r.sectionDone(); err != nil {
		return Item{}, err
	}
	var last end
	if err := wire.Unmarshal(body, &last); err != nil {
		return Item{}, r.bad("it cannot be read: %v", err)
	}
	var sum [sha256.Size]byte
	r.sum.Sum(sum[:0])
	switch {
	case r.seen != len(r.m.Partitions):
		return Item{}, r.bad("the end, after %d of %d partitions", r.seen, len(r.m.Partitions))
	case last.Totals != r.totals:
		return Item{}, r.bad("it counts %+v, but the file holds %+v", last.Totals, r.totals)
	case last.Sum != sum:
		return Item{}, r.bad("the file fails its checksum")
	}
	if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
		if err != nil {
			return Item{}, err
		}
		return Item{}, corrupt("the export goes on after its end at byte %d", r.pos)
	}
	r.done = true
	return Item{End: &r.totals}, nil
}
