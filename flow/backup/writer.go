package backup

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// Writer writes one file: NewWriter writes the manifest, then for each partition Section and its batches by Batch, then End. An error is
// the underlying writer's; after it nothing may be written any more. A call out of order is a bug, and refused.
type Writer struct {
	w      io.Writer
	sum    hash.Hash
	m      Manifest
	totals Totals
	sec    Section
	next   uint64 // offset of the next batch of the section
	buf    []byte // batches of the next frame
	head   []byte
	seen   int
}

// NewWriter begins a file.
func NewWriter(w io.Writer, m Manifest) (*Writer, error) {
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("export: manifest: %w", err)
	}
	out := &Writer{w: w, sum: sha256.New(), m: m}
	out.head = binary.LittleEndian.AppendUint32([]byte(magic), version)
	if err := out.write(out.head); err != nil {
		return nil, err
	}
	return out, out.message(kindManifest, &m)
}

func (w *Writer) write(b []byte) error {
	_, _ = w.sum.Write(b) // never fails
	_, err := w.w.Write(b)
	return err
}

func (w *Writer) frame(kind byte, body []byte) error {
	w.head = appendHead(w.head[:0], kind, body)
	if err := w.write(w.head); err != nil {
		return err
	}
	return w.write(body)
}

func (w *Writer) message(kind byte, v any) error {
	body, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxSmall {
		return fmt.Errorf("export: a record of %d bytes, at most %d", len(body), maxSmall)
	}
	return w.frame(kind, body)
}

// Section begins the next partition of the manifest.
func (w *Writer) Section(s Section) error {
	if err := w.endSection(); err != nil {
		return err
	}
	if w.seen >= len(w.m.Partitions) || s.Partition != w.m.Partitions[w.seen].ID {
		return fmt.Errorf("export: partition %d is not the next one of the manifest", s.Partition)
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	w.seen++
	w.sec, w.next = s, s.Base
	w.totals.Partitions++
	w.totals.Events += s.End - s.Start
	return w.message(kindSection, &s)
}

// Batch adds a batch to the section. It keeps neither m nor payload.
func (w *Writer) Batch(m *batch.Meta, payload []byte) error {
	if m.Base != w.next || m.Next() > w.sec.End || m.Offsets() == 0 {
		return fmt.Errorf("export: a batch from offset %d to %d where %d is next and %d the end", m.Base, m.Next(), w.next, w.sec.End)
	}
	size := batch.MetaLen(m) + len(payload)
	if len(w.buf)+size > frameBytes {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.buf = append(batch.AppendMeta(w.buf, m), payload...)
	w.next = m.Next()
	w.totals.Batches++
	w.totals.Bytes += uint64(size)
	return nil
}

func (w *Writer) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	err := w.frame(kindBatches, w.buf)
	w.buf = w.buf[:0]
	return err
}

func (w *Writer) endSection() error {
	if w.next != w.sec.End {
		return fmt.Errorf("export: partition %d ends at offset %d, want %d", w.sec.Partition, w.next, w.sec.End)
	}
	return w.flush()
}

// End completes the file.
func (w *Writer) End() (Totals, error) {
	if err := w.endSection(); err != nil {
		return Totals{}, err
	}
	if w.seen != len(w.m.Partitions) {
		return Totals{}, fmt.Errorf("export: %d of %d partitions were written", w.seen, len(w.m.Partitions))
	}
	last := end{Totals: w.totals}
	w.sum.Sum(last.Sum[:0])
	return w.totals, w.message(kindEnd, &last)
}
