package partition

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// A damaged partition has its whole state but for the batches: the segments are opened no more. Mend builds a new generation of them, from
// what is sound of the old one and from other replicas, up to the last batch that is applied here. Mended then takes it into use, and the
// damaged files are set aside. Until then it neither serves nor applies anything.

// Damage is why the segments cannot be used, or nil. The group's goroutine, or that of a mending.
func (p *Partition) Damage() error { return p.damage }

// Damaged reports the same to any goroutine.
func (p *Partition) Damaged() error { return p.snapshot().damaged }

// OnDamage has fn called once, from any goroutine, when bytes that were read are damaged. fn must not block. To be called before the
// partition is used.
func (p *Partition) OnDamage(fn func(error)) { p.onDamage = fn }

// Condemn notes durably that the segments are damaged: the next Open leaves them closed, to be mended.
func (p *Partition) Condemn(why error) error {
	return log.MarkDamaged(p.fs(), p.segmentDir(p.st.dirGen), why, nil)
}

// noteDamage passes a reader's error on, and tells of damage the first time.
func (p *Partition) noteDamage(err error) error {
	if wire.KindOf(err) != wire.KindCorrupt {
		return err
	}
	p.mu.Lock()
	first := !p.told && !p.v.closed
	p.told = true
	p.mu.Unlock()
	if first && p.onDamage != nil {
		p.onDamage(err)
	}
	return err
}

// mending is one run of Mend.
type mending struct {
	p     *Partition
	open  func(ctx context.Context, have []byte) (wire.Stream, error)
	sound *log.Salvage
	start uint64 // of the state: what lies before it is not wanted
	end   uint64
	fill  *filler
}

// Mend gathers the batches again: the sound ones from the damaged files, the others from the replica that open asks. What it got stays for
// the next try, with another replica. It runs beside everything but Apply, Fetch and Close. nil: all is there, and durable.
func (p *Partition) Mend(ctx context.Context, open func(ctx context.Context, have []byte) (wire.Stream, error)) error {
	if p.damage == nil {
		return nil
	}
	p.adopt()
	dir := p.segmentDir(p.st.dirGen)
	sound, err := log.OpenSalvage(p.fs(), dir, p.st.applied)
	if err != nil {
		return err
	}
	if err := log.MarkDamaged(p.fs(), dir, p.damage, sound.Bad()); err != nil {
		return err
	}
	m := &mending{p: p, open: open, sound: sound, start: p.st.start, end: p.st.next}
	if err := m.run(ctx); err != nil {
		return fmt.Errorf("partition: mend: %w", err)
	}
	return nil
}

func (m *mending) run(ctx context.Context) error {
	p := m.p
	if s := p.staging; s != nil && (s.segs.Next() > m.end || s.segs.Start() > m.start && s.segs.Next() == s.segs.Start()) {
		if err := p.dropStaging(); err != nil { // of no use
			return err
		}
	}
	for tries := 0; ; tries++ {
		until, err := m.local()
		if err != nil || p.staging != nil && p.staging.segs.Next() >= m.end {
			return errors.Join(err, m.finish())
		}
		had := p.staging
		var at uint64
		if had != nil {
			at = had.segs.Next()
		}
		if err := m.remote(ctx, until); err != nil {
			return err
		}
		if now := p.staging; now == had && (now == nil || now.segs.Next() == at) {
			return wire.Errorf(wire.KindUnavailable, "", "the other replica has nothing at offset %d, %d are missing", at, m.end-at)
		}
	}
}

// finish makes what was gathered durable.
func (m *mending) finish() error {
	s := m.p.staging
	if s == nil || s.segs.Next() < m.end {
		return nil
	}
	if err := s.segs.TrimTo(min(m.start, m.end)); err != nil {
		return err
	}
	return s.segs.Sync()
}

// local takes what is sound here, and says up to where others are needed (0: to the end).
func (m *mending) local() (until uint64, err error) {
	p := m.p
	if p.staging == nil {
		base, ok := m.sound.Holding(m.start)
		switch {
		case m.start == m.end:
			base = m.end
		case !ok:
			return m.sound.After(m.start), nil
		}
		if _, err := p.stageFrom(base, math.MaxUint64); err != nil {
			return 0, err
		}
	}
	segs := p.staging.segs
	fill := newFiller(segs)
	_, until, err = m.sound.Copy(segs.Next(), func(b *batch.Meta, payload []byte) error {
		if b.Base >= m.end || b.Base != segs.Next() {
			return nil
		}
		return fill.append(b, payload)
	})
	return until, errors.Join(err, fill.close())
}

// remote asks the other replica for what follows, up to an offset.
func (m *mending) remote(ctx context.Context, until uint64) (err error) {
	p := m.p
	h := have{Version: snapshotVersion, Bulk: true, Only: true, Until: until}
	if s := p.staging; s != nil {
		if err := h.last(s.segs); err != nil {
			return err
		}
	}
	raw, err := wire.Marshal(&h)
	if err != nil {
		return err
	}
	s, err := m.open(ctx, raw)
	if err != nil {
		return err
	}
	defer func() { s.Close(err) }()
	kind, body, err := recvFrame(ctx, s)
	if err != nil {
		return err
	}
	var hd head
	if kind != frameHead {
		return corrupt("snapshot begins with a frame of kind %d", kind)
	}
	if err := wire.Unmarshal(body, &hd); err != nil {
		return err
	}
	if err := hd.validate(); err != nil {
		return err
	}
	if hd.Fresh {
		if hd.From > m.end { // the mesh trimmed all that was here
			hd.From = m.end
		}
		if _, err := p.stageFrom(hd.From, math.MaxUint64); err != nil {
			return err
		}
	} else if p.staging == nil || p.staging.segs.Next() != hd.From {
		return corrupt("the replica continues at offset %d", hd.From)
	}
	return m.receive(ctx, s, &hd)
}

func (m *mending) receive(ctx context.Context, s wire.Stream, hd *head) (err error) {
	segs := m.p.staging.segs
	m.fill = newFiller(segs)
	defer func() { err = errors.Join(err, m.fill.close()) }()
	ahead := readAhead(ctx, s)
	defer ahead.close()
	in := batchStream{next: segs.Next(), applied: hd.Applied, end: hd.Next}
	for segs.Next() < m.end {
		kind, body, err := ahead.frame()
		switch {
		case err != nil:
			return err
		case kind == frameEnd:
			return nil
		case kind != frameBatches:
			continue // of a sender that sends all
		}
		err = in.take(body, func(b *batch.Meta, payload []byte) error {
			if b.Base >= m.end {
				return nil
			}
			return m.fill.append(b, payload)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Mended takes what Mend gathered into use; b commits it. The group's goroutine.
func (p *Partition) Mended(b log.Batch) error {
	s := p.staging
	if p.damage == nil || s == nil || s.segs.Next() != p.st.next {
		return corrupt("the segments are not mended")
	}
	p.staging = nil
	old := p.st.dirGen
	p.st.dirGen = s.gen
	p.st.save(p.keys, b)
	b.Set(p.keys.synced(s.gen), s.segs.SyncedState())
	b.Delete(p.keys.synced(old))
	p.damage = nil
	p.mu.Lock()
	p.v.segs, p.v.dirGen, p.v.damaged = s.segs, s.gen, nil
	p.retired = append(p.retired, retired{dir: p.segmentDir(old)})
	p.told = false
	wake := p.v.notify
	p.v.notify = nil
	p.mu.Unlock()
	if wake != nil {
		close(wake)
	}
	return nil
}
