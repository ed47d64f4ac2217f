package catalog

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/skeinmesh/skein/transport/wire"
)

// A checkpoint is one run of bytes cut into frames:
//
//	frame  := 'd' bytes (at most checkpointFrame)  |  'e' crc:4 length:8 (of all bytes before, little-endian; CRC-32C)
//	bytes  := record*         record := length:uvarint body
//	records: checkpointHead, then its number of streams by name, then its number of tombstones by version
//
// On the wire between releases: a change needs a new Format in the head.
const (
	frameData = 'd'
	frameEnd  = 'e'

	checkpointFormat = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type checkpointHead struct {
	Format     uint8  `msgpack:"f"`
	Version    uint64 `msgpack:"v"`
	ClockMS    int64  `msgpack:"c"`
	Streams    uint32 `msgpack:"s"`
	Tombstones uint32 `msgpack:"t"`
}

// checkpoint is a captured state: immutable streams and a copy of the tombstone list.
type checkpoint struct {
	head       checkpointHead
	streams    []*Stream
	tombstones []Tombstone
}

func newCheckpoint(s *state) *checkpoint {
	c := &checkpoint{streams: s.streams(), tombstones: slices.Clone(s.tombstones)}
	c.head = checkpointHead{checkpointFormat, s.version, s.clockMS, uint32(len(c.streams)), uint32(len(c.tombstones))}
	return c
}

// WriteTo sends the whole state; have is not used.
func (c *checkpoint) WriteTo(ctx context.Context, s wire.Stream, _ []byte) error {
	slices.SortFunc(c.streams, func(a, b *Stream) int { return strings.Compare(a.Name, b.Name) })
	w := &frameWriter{ctx: ctx, to: s, sum: crc32.New(castagnoli), frame: make([]byte, 1, 1+checkpointFrame)}
	w.frame[0] = frameData
	if err := w.record(c.head); err != nil {
		return err
	}
	for _, st := range c.streams {
		if err := w.record(st); err != nil {
			return err
		}
	}
	for i := range c.tombstones {
		if err := w.record(&c.tombstones[i]); err != nil {
			return err
		}
	}
	return w.end()
}

func (c *checkpoint) Close() error { return nil }

// frameWriter cuts records into frames.
type frameWriter struct {
	ctx   context.Context
	to    wire.Stream
	sum   hash.Hash32
	total uint64
	frame []byte // frameData and up to checkpointFrame bytes
}

func (w *frameWriter) record(v any) error {
	body, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	var n [binary.MaxVarintLen64]byte
	if err := w.write(n[:binary.PutUvarint(n[:], uint64(len(body)))]); err != nil {
		return err
	}
	return w.write(body)
}

func (w *frameWriter) write(p []byte) error {
	w.sum.Write(p)
	w.total += uint64(len(p))
	for len(p) > 0 {
		n := min(len(p), 1+checkpointFrame-len(w.frame))
		w.frame = append(w.frame, p[:n]...)
		p = p[n:]
		if len(w.frame) == 1+checkpointFrame {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *frameWriter) flush() error {
	if len(w.frame) == 1 {
		return nil
	}
	err := w.to.Send(w.ctx, w.frame)
	w.frame = w.frame[:1]
	return err
}

func (w *frameWriter) end() error {
	if err := w.flush(); err != nil {
		return err
	}
	f := binary.LittleEndian.AppendUint32([]byte{frameEnd}, w.sum.Sum32())
	return w.to.Send(w.ctx, binary.LittleEndian.AppendUint64(f, w.total))
}

// frameReader is the byte stream within the frames; it gives io.EOF only after a verified end frame.
type frameReader struct {
	ctx   context.Context
	from  wire.Stream
	sum   hash.Hash32
	total uint64
	rest  []byte
	ended bool
}

func (r *frameReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *frameReader) fill() error {
	f, err := r.from.Recv(r.ctx)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	switch {
	case len(f) > 1 && len(f) <= 1+checkpointFrame && f[0] == frameData:
		r.rest = f[1:]
		r.sum.Write(r.rest)
		if r.total += uint64(len(r.rest)); r.total > maxCheckpointLen {
			return fmt.Errorf("more than %d bytes", maxCheckpointLen)
		}
		return nil
	case len(f) == 13 && f[0] == frameEnd:
		if binary.LittleEndian.Uint32(f[1:]) != r.sum.Sum32() || binary.LittleEndian.Uint64(f[5:]) != r.total {
			return fmt.Errorf("checksum or length differs")
		}
		r.ended = true
		return nil
	}
	return fmt.Errorf("frame of %d bytes is not of a known form", len(f))
}

// receive reads what WriteTo sent. Errors that are not the transport's are KindCorrupt.
func receive(ctx context.Context, s wire.Stream) (*state, error) {
	src := &frameReader{ctx: ctx, from: s, sum: crc32.New(castagnoli)}
	r := bufio.NewReader(src)
	var h checkpointHead
	if err := readRecord(r, &h); err != nil {
		return nil, err
	}
	if h.Format != checkpointFormat {
		return nil, wire.Errorf(wire.KindUnavailable, "", "checkpoint has format %d, this release reads %d", h.Format, checkpointFormat)
	}
	st := newState()
	st.version, st.clockMS = h.Version, h.ClockMS
	for range h.Streams {
		one := new(Stream)
		if err := readRecord(r, one); err != nil {
			return nil, err
		}
		if err := st.restore(one); err != nil {
			return nil, err
		}
	}
	for range h.Tombstones {
		var t Tombstone
		if err := readRecord(r, &t); err != nil {
			return nil, err
		}
		if err := st.restoreTombstone(t); err != nil {
			return nil, err
		}
	}
	if _, err := r.ReadByte(); err != io.EOF { // also verifies the end frame
		return nil, damaged(err)
	}
	return st, nil
}

func readRecord(r *bufio.Reader, v any) error {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return damaged(err)
	}
	if n > maxRecordBytes {
		return damaged(fmt.Errorf("a record of %d bytes", n))
	}
	// The buffer grows with what arrives, so that a forged length costs nothing.
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return damaged(err)
	}
	if uint64(len(body)) < n {
		return damaged(io.ErrUnexpectedEOF)
	}
	if err := wire.Unmarshal(body, v); err != nil {
		return damaged(err)
	}
	return nil
}

// damaged classifies a read error; contexts and the transport's own errors pass as they are.
func damaged(err error) error {
	var w *wire.Error
	if errors.As(err, &w) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &wire.Error{Kind: wire.KindCorrupt, Detail: "checkpoint is damaged", Err: err}
}
