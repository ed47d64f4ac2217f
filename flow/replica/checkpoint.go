package replica

import (
	"context"
	"errors"
	"time"
)

// noteApplied counts applied bytes and asks for a checkpoint when enough gathered.
func (h *Host) noteApplied(n int64) {
	if h.sinceCheckpoint.Add(n) >= h.cfg.CheckpointBytes {
		select {
		case h.checkpointDue <- struct{}{}:
		default:
		}
	}
}

// checkpointer makes applied state durable outside the journal, so that the journal can let go of it. It never holds up a
// group: syncs run beside Apply.
func (h *Host) checkpointer(ctx context.Context) error {
	t := time.NewTicker(h.cfg.CheckpointInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		case <-h.checkpointDue:
		}
		if err := h.Checkpoint(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			h.metrics.checkpointFails.Inc()
			return err
		}
	}
}

// Checkpoint makes everything applied so far durable outside the journal and lets the journal drop it. An error is one of
// the disk and must stop the process: it is never retried.
func (h *Host) Checkpoint(ctx context.Context) error {
	h.sinceCheckpoint.Store(0)
	type mark struct {
		g       *Group
		applied uint64
	}
	var marks []mark
	for _, g := range h.Groups() {
		if g.unsteady.Load() || !g.unsynced.Swap(false) {
			continue
		}
		m := mark{g, g.applied.Load()}
		ok, err := h.syncGroup(ctx, g)
		if err != nil {
			return err
		}
		if ok {
			marks = append(marks, m)
		}
	}
	if len(marks) == 0 {
		return nil
	}
	if err := h.cfg.Store.Flush(ctx); err != nil {
		return err
	}
	for _, m := range marks {
		h.release(m.g, m.applied)
	}
	h.metrics.checkpoints.Inc()
	return nil
}

// release lets the journal drop what a replica has applied, while it is the one that is here: of a newer one that was born meanwhile
// nothing may be durable yet. The journal only notes it.
func (h *Host) release(g *Group, applied uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.groups[g.id] == g {
		h.cfg.Journal.Release(g.id, applied)
	}
}

// syncGroup syncs one group's bulk data; false when the group stopped meanwhile: nothing of it may be released.
func (h *Host) syncGroup(ctx context.Context, g *Group) (bool, error) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(g.ctx, cancel)
	defer stop()
	err := g.syncBulk(sctx)
	if errors.Is(err, context.Canceled) && g.ctx.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}
