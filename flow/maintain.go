package flow

import (
	"context"
	"time"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// maintain is the owners' housekeeping: old batches are trimmed by committed entries, and a stream's changed limits reach its
// partitions. Only the owner of a partition acts on it.
func (b *Broker) maintain(ctx context.Context) error {
	t := time.NewTicker(b.cfg.MaintainEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
		for _, g := range b.cfg.Groups.Groups() {
			st := g.Status()
			if st.Kind != replica.KindPartition || st.Role != replica.RoleOwner || !st.Ready {
				continue
			}
			if p, ok := g.StateMachine().(*partition.Partition); ok {
				b.maintainOne(ctx, g, p, st.Term)
			}
		}
	}
}

// maintainOne proposes what is due. None of it waits for the rest: a partition may have something to trim at every turn. It counts in the
// term in which this node was the owner before it looked: the catalog's answer may come late, when another owner has brought a newer
// config and gone again. In one term no other can, and all that earlier owners brought was applied before the catalog was asked.
func (b *Broker) maintainOne(ctx context.Context, g *replica.Group, p *partition.Partition, term uint64) {
	now := b.cfg.Now().UnixMilli()
	propose := func(entry []byte) {
		if err := g.ProposeIn(term, entry, func(replica.Outcome) {}); err != nil {
			b.log.Debug("maintenance entry not proposed; the next turn tries again", "err", err)
		}
	}
	if start, ok := p.RetentionTrim(now); ok {
		b.log.Debug("trimming a partition", "group", g.Status().Group, "start", start)
		propose(partition.EncodeTrim(nil, start, now))
	}
	if p.ClockDue(now) { // nothing else tells a quiet partition that its window has passed
		propose(partition.EncodeClock(nil, now))
	}
	limits, ok := b.changedLimits(ctx, p)
	if !ok {
		return
	}
	entry, err := partition.EncodeConfig(nil, limits, now)
	if err != nil {
		b.log.Error("a stream's config does not fit its partition", "group", g.Status().Group, "err", err)
		return
	}
	propose(entry)
}

// changedLimits compares a partition's limits with its stream's config. The definition that is known here may be older than what the
// partition has, so a difference is only a reason to ask: the catalog's answer is what counts.
func (b *Broker) changedLimits(ctx context.Context, p *partition.Partition) (partition.Limits, bool) {
	spec := p.Spec()
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	differs := func(s *catalog.Stream, err error) bool {
		return err == nil && s.ID == spec.Stream && limitsOf(s.Config) != spec.Limits
	}
	if !differs(b.catalog.lookup(ctx, spec.Name)) {
		return partition.Limits{}, false
	}
	s, err := b.catalog.get(ctx, spec.Name)
	if !differs(s, err) {
		return partition.Limits{}, false
	}
	return limitsOf(s.Config), true
}

// limitsOf is the part of a partition's spec that follows its stream's config. A stream's bytes are divided over its partitions.
func limitsOf(cfg StreamConfig) partition.Limits {
	l := partition.Limits{DedupeWindowMS: cfg.DedupeWindowMS, RetentionMS: cfg.RetentionMS, RetentionBytes: cfg.RetentionBytes,
		MaxEventBytes: cfg.MaxEventBytes, Replicas: cfg.Replicas, MinCopies: cfg.MinCopies}
	if l.RetentionBytes > 0 {
		l.RetentionBytes = max(l.RetentionBytes/int64(cfg.Partitions), 1)
	}
	return l
}

func specOf(cmd *catalog.CreateStream, id ring.PartitionID, r ring.Range) ([]byte, error) {
	s := partition.Spec{Stream: cmd.ID, Name: cmd.Name, Partition: id, Range: r, Seed: cmd.Seed, Limits: limitsOf(cmd.Config)}
	b, err := s.Encode()
	if err != nil {
		return nil, &wire.Error{Kind: wire.KindInvalid, Op: "create stream " + cmd.Name, Err: err}
	}
	return b, nil
}
