package flow

import (
	"context"
	"crypto/rand"
	"io"
	"time"

	"github.com/skeinmesh/skein/flow/backup"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/transport/wire"
)

// Archives moves whole streams out of a mesh and into one, from any node.
type Archives interface {
	// Export writes a stream as a file of package backup: up to the end of each partition as it is when the export begins. What can be
	// refused is refused before the first byte is written: KindNotFound, KindUnavailable; later errors leave a file that is cut short,
	// which an import notices. It goes on for as long as w takes bytes and ctx lasts.
	Export(ctx context.Context, stream string, w io.Writer) (ArchiveTotals, error)
	// Import makes a stream of such a file: same offsets, bytes and times, a new incarnation. The stream takes and gives nothing until
	// all is there. Damage (KindCorrupt, backup.CodeDamaged) removes what came so far. After any other interruption, the same file
	// goes on where it stopped. Errors: KindConflict when the stream exists, KindUnavailable (mesh-version while a node is too old).
	Import(ctx context.Context, stream string, r io.Reader, o ImportOptions) (ArchiveTotals, error)
}

// ArchiveTotals counts what an export or import moved.
type ArchiveTotals struct {
	Partitions int    `json:"partitions"`
	Batches    uint64 `json:"batches"`
	Events     uint64 `json:"events"`
	Bytes      uint64 `json:"bytes"`
}

// ImportOptions change what the file says of the stream.
type ImportOptions struct {
	// RetentionMS and RetentionBytes, where not 0, replace the stream's: events older than it goes are trimmed soon after an import.
	RetentionMS    int64
	RetentionBytes int64
}

var _ Archives = (*Broker)(nil)

// archivePatience bounds how long an export or import waits for one partition without any progress.
const archivePatience = 60 * time.Second

// sourceSilence is how long one replica is waited for.
const sourceSilence = 5 * time.Second

// errImporting is what a stream that is being imported answers.
func errImporting(name string) error {
	return &wire.Error{Kind: wire.KindUnavailable, Code: partition.CodeImporting, RetryAfter: 5 * time.Second,
		Detail: "stream " + name + " is being imported; it opens when all of it is there"}
}

// usable is a stream's definition for publishers and readers. One that was being imported when it was cached is asked for again.
func (b *Broker) usable(ctx context.Context, name string) (*catalog.Stream, error) {
	s, err := b.catalog.lookup(ctx, name)
	if err != nil || !s.Importing() {
		return s, err
	}
	if s, err = b.catalog.get(ctx, name); err == nil && s.Importing() {
		return nil, errImporting(name)
	}
	return s, err
}

// Export writes a stream as a file; see Archives.
func (b *Broker) Export(ctx context.Context, stream string, w io.Writer) (ArchiveTotals, error) {
	ctx, cancel := b.whileAlive(ctx)
	defer cancel()
	s, err := b.catalog.get(ctx, stream)
	if err != nil {
		return ArchiveTotals{}, err
	}
	if s.Importing() {
		return ArchiveTotals{}, errImporting(stream)
	}
	m := backup.Manifest{ExportedMS: b.cfg.Now().UnixMilli(), Cluster: b.cfg.Cluster, Name: s.Name, Stream: s.ID, Seed: s.Seed,
		CreatedMS: s.CreatedMS, Config: s.Config}
	_, _ = rand.Read(m.Export[:]) // never fails
	ends := make([]uint64, len(s.Partitions))
	for i := range s.Partitions {
		p := &s.Partitions[i]
		if p.State != catalog.Open {
			return ArchiveTotals{}, wire.Errorf(wire.KindUnavailable, "", "partition %d of stream %s is %s: a stream is exported while all of its "+
				"partitions are open", p.ID, stream, p.State)
		}
		resp, err := b.askPartition(ctx, s, p, partitionRequest{Op: opEnd, Group: p.Group})
		if err != nil {
			return ArchiveTotals{}, err
		}
		ends[i] = resp.Next
		m.Partitions = append(m.Partitions, backup.Partition{ID: p.ID, Range: p.Range})
	}
	out, err := backup.NewWriter(w, m)
	if err != nil {
		return ArchiveTotals{}, err
	}
	for i := range s.Partitions {
		e := &exporting{b: b, s: s, p: &s.Partitions[i], end: ends[i], out: out}
		if err := e.run(ctx); err != nil {
			return ArchiveTotals{}, err
		}
	}
	t, err := out.End()
	return ArchiveTotals(t), err
}

// whileAlive is ctx that also ends with the broker.
func (b *Broker) whileAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.life, func() { cancel(errClosing) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// exporting is one partition's part of an export.
type exporting struct {
	b     *Broker
	s     *catalog.Stream
	p     *catalog.Partition
	out   *backup.Writer
	end   uint64
	start uint64 // as it was when reading began
	next  uint64
	begun bool // the section is written: from now on no offset may be missing
	tries int
	moved time.Time // when something was last read
}

// run writes the partition's section, from whichever replica answers.
func (e *exporting) run(ctx context.Context) error {
	e.moved = time.Now()
	for !e.begun || e.next < e.end {
		err := e.read(ctx)
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case wire.CodeOf(err) == wire.CodeOffsetExpired && e.begun:
			return wire.Errorf(wire.KindUnavailable, wire.CodeOffsetExpired, "partition %d: retention trimmed offset %d before it was exported; "+
				"export again, or raise the stream's retention while it is exported", e.p.ID, e.next)
		case !e.again(err):
			return err
		}
		e.tries++
		if err := sleep(ctx, min(retryFirst<<min(e.tries, 8), 4*retryCap)); err != nil {
			return err
		}
	}
	return nil
}

// again reports whether another attempt may do better.
func (e *exporting) again(err error) bool {
	if wire.CodeOf(err) == wire.CodeOffsetExpired { // trimmed just before the first read: it begins later
		return true
	}
	return !final(err) && wire.CodeOf(err) != wire.CodeStreamNotFound && time.Since(e.moved) < archivePatience
}

// read opens a source and reads as far as it goes.
func (e *exporting) read(ctx context.Context) error {
	if !e.begun {
		resp, err := e.b.askPartition(ctx, e.s, e.p, partitionRequest{Op: opEnd, Group: e.p.Group})
		if err != nil {
			return err
		}
		e.start = min(resp.Start, e.end)
		e.next = e.start
		if e.start == e.end {
			return e.begin(e.end)
		}
	}
	src, err := e.b.openSource(ctx, e.p, e.next, e.tries)
	if err != nil {
		return err
	}
	defer src.close()
	for e.next < e.end {
		if err := e.ready(ctx, src); err != nil {
			return err
		}
		batches, err := src.read(e.next, chunkBytes)
		if err != nil {
			return err
		}
		for i := range batches {
			if err := e.take(&batches[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// ready waits for the source, and gives a silent one up: what is asked for was there when the export began.
func (e *exporting) ready(ctx context.Context, src source) error {
	ctx, cancel := context.WithTimeout(ctx, sourceSilence)
	defer cancel()
	return src.ready(ctx, e.next, func() {})
}

func (e *exporting) begin(base uint64) error {
	e.begun = true
	return e.out.Section(backup.Section{Partition: e.p.ID, Base: base, Start: e.start, End: e.end})
}

// take writes one batch. The end was a moment between two batches, so none crosses it.
func (e *exporting) take(f *framed) error {
	if f.Meta.Base >= e.end || f.Meta.Next() <= e.next {
		return nil
	}
	if err := batch.VerifyPayload(&f.Meta, f.Payload); err != nil {
		return err // another replica has it whole
	}
	if !e.begun {
		if err := e.begin(f.Meta.Base); err != nil {
			return err
		}
	}
	if err := e.out.Batch(&f.Meta, f.Payload); err != nil {
		return err
	}
	e.next, e.moved, e.tries = f.Meta.Next(), time.Now(), 0
	return nil
}
