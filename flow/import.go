package flow

import (
	"context"
	"io"
	"time"

	"github.com/skeinmesh/skein/flow/backup"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// importChunk is how many bytes of batches go to an owner at once: proposed together, they share its disk's syncs.
const importChunk = 1 << 20

// Import makes a stream of a file; see Archives.
func (b *Broker) Import(ctx context.Context, stream string, r io.Reader, o ImportOptions) (ArchiveTotals, error) {
	ctx, cancel := b.whileAlive(ctx)
	defer cancel()
	file, m, err := backup.NewReader(r)
	if err != nil {
		return ArchiveTotals{}, err
	}
	s, err := b.beginImport(ctx, stream, m, o)
	if err != nil {
		return ArchiveTotals{}, err
	}
	i := &importing{b: b, s: s, export: m.Export, file: file, since: b.cfg.Now().UnixMilli() - s.Config.DedupeWindowMS - time.Minute.Milliseconds()}
	t, err := i.run(ctx)
	if wire.CodeOf(err) == backup.CodeDamaged {
		return ArchiveTotals{}, b.abandonImport(ctx, s, err)
	}
	if err != nil {
		return ArchiveTotals{}, err
	}
	resp, err := b.catalog.command(ctx, stream, catalog.EndImport{Name: stream, ID: s.ID, NowMS: b.cfg.Now().UnixMilli()}, true)
	if err != nil {
		return ArchiveTotals{}, err
	}
	b.catalog.put(stream, resp.Stream)
	return t, nil
}

// beginImport makes the stream, or finds the import of the same export that was cut short.
func (b *Broker) beginImport(ctx context.Context, stream string, m *backup.Manifest, o ImportOptions) (*catalog.Stream, error) {
	cfg := m.Config
	cfg.Partitions = len(m.Partitions)
	if o.RetentionMS != 0 {
		cfg.RetentionMS = o.RetentionMS
	}
	if o.RetentionBytes != 0 {
		cfg.RetentionBytes = o.RetentionBytes
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := b.cfg.RequireVersion(ctx, wire.Version2); err != nil {
		return nil, err
	}
	now := b.cfg.Now().UnixMilli()
	cmd := catalog.CreateStream{Name: stream, ID: ring.NewStreamID(), Seed: m.Seed, Config: cfg, NowMS: now}
	if err := b.place(&cmd, m.Partitions); err != nil {
		return nil, err
	}
	resp, err := b.catalog.command(ctx, stream, catalog.BeginImport{Create: cmd, Export: m.Export}, true)
	if err != nil {
		return nil, err
	}
	b.log.Info("importing a stream", "stream", stream, "from", m.Name, "exported", time.UnixMilli(m.ExportedMS).UTC(), "goes_on", !resp.Created)
	return resp.Stream, nil
}

// abandonImport removes what came of a file that turned out damaged, unless another run, from a whole one, has completed it. why is the
// error to return.
func (b *Broker) abandonImport(ctx context.Context, s *catalog.Stream, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), archivePatience)
	defer cancel()
	_, err := b.catalog.command(ctx, s.Name, catalog.DeleteStream{Name: s.Name, ID: s.ID, NowMS: b.cfg.Now().UnixMilli(), Importing: true}, true)
	if k := wire.KindOf(err); err != nil && k != wire.KindNotFound && k != wire.KindConflict {
		b.log.Warn("what came of a damaged export is still there, and stays closed: delete the stream", "stream", s.Name, "err", err)
	}
	return why
}

// importing is one run of Import.
type importing struct {
	b      *Broker
	s      *catalog.Stream
	export backup.ExportID
	file   *backup.Reader
	since  int64 // identities of batches stamped later are still in the window

	part  *catalog.Partition
	end   uint64 // of its section
	next  uint64 // what the owner has: batches below are passed over
	chunk []byte
	read  batch.Reader
}

func (i *importing) run(ctx context.Context) (ArchiveTotals, error) {
	for {
		it, err := i.file.Next()
		if err != nil {
			return ArchiveTotals{}, err
		}
		switch {
		case it.Section != nil:
			err = i.section(ctx, it.Section)
		case it.Batch != nil:
			err = i.batch(ctx, it.Batch)
		default:
			return ArchiveTotals(*it.End), i.complete(ctx)
		}
		if err != nil {
			return ArchiveTotals{}, err
		}
	}
}

// section ends one partition and begins the next.
func (i *importing) section(ctx context.Context, s *backup.Section) error {
	if err := i.complete(ctx); err != nil {
		return err
	}
	p, ok := i.s.Partition(s.Partition)
	if !ok {
		return wire.Errorf(wire.KindConflict, partition.CodeOtherImport, "the stream under import has no partition %d", s.Partition)
	}
	i.part, i.end = p, s.End
	return i.ask(ctx, importRequest{Group: p.Group, Export: i.export, Base: s.Base, Start: s.Start, End: s.End})
}

// complete ends the section: its owner has all of it.
func (i *importing) complete(ctx context.Context) error {
	if err := i.flush(ctx); err != nil {
		return err
	}
	if i.next != i.end {
		return wire.Errorf(wire.KindInternal, "", "partition %d was filled to offset %d of %d", i.part.ID, i.next, i.end)
	}
	return nil
}

// batch puts a batch into the chunk, unless the owner has it.
func (i *importing) batch(ctx context.Context, b *backup.Batch) error {
	if b.Meta.Next() <= i.next {
		return nil
	}
	m := b.Meta
	var err error
	if m.Identities, err = i.identities(&m, b.Payload); err != nil {
		return err
	}
	if size := batch.MetaLen(&m) + len(b.Payload); len(i.chunk) > 0 && len(i.chunk)+size > importChunk {
		if err := i.flush(ctx); err != nil {
			return err
		}
	}
	i.chunk = append(batch.AppendMeta(i.chunk, &m), b.Payload...)
	return nil
}

// identities are those of a batch's events that have a source and an id of their own, as far as the window still counts them. What an
// Idempotency-Key stood for is not in the events, and so is not known again.
func (i *importing) identities(m *batch.Meta, payload []byte) ([]batch.Identity, error) {
	if m.Stamp < i.since {
		return nil, nil
	}
	if err := i.read.Open(m, payload, nil); err != nil {
		return nil, err
	}
	var out []batch.Identity
	var rec batch.Record
	for i.read.Next(&rec) {
		if rec.ID == "" || rec.Source == "" {
			continue
		}
		if out == nil {
			out = make([]batch.Identity, m.Count)
		}
		out[i.read.Position()] = batch.Identity{Hash: batch.IdentityOf(i.s.Seed, rec.Source, rec.ID), Payload: batch.PayloadHash(&rec)}
	}
	return out, i.read.Err()
}

// flush hands the chunk to the partition's owner.
func (i *importing) flush(ctx context.Context) error {
	if len(i.chunk) == 0 {
		return nil
	}
	err := i.ask(ctx, importRequest{Group: i.part.Group, Export: i.export, Batches: i.chunk})
	i.chunk = i.chunk[:0]
	return err
}

// ask makes one request of the owner. It may be repeated: an owner takes each batch once.
func (i *importing) ask(ctx context.Context, req importRequest) error {
	ctx, cancel := context.WithTimeout(ctx, archivePatience)
	defer cancel()
	size := min(int64(len(req.Batches)), i.b.cfg.PublishBudget.Limit())
	if err := i.b.cfg.PublishBudget.Reserve(ctx, size); err != nil {
		return err
	}
	defer i.b.cfg.PublishBudget.Release(size)
	body, err := wire.Marshal(&req)
	if err != nil {
		return err
	}
	var resp importResponse
	err = i.b.withOwner(ctx, req.Group, foundersOf(i.part), true, func(ctx context.Context, owner ring.NodeID) error {
		answer, err := i.b.cfg.Peers.Call(ctx, owner, wire.ClassBulk, wire.MethodImport, body)
		if err != nil {
			return err
		}
		return wire.Unmarshal(answer, &resp)
	})
	if wire.KindOf(err) == wire.KindUnavailable {
		if gone, _ := i.b.catalog.lost(context.WithoutCancel(ctx), i.s.Name, req.Group); gone {
			return streamNotFound(i.s.Name)
		}
	}
	i.next = resp.Next
	return noAnswer(req.Group, err)
}
