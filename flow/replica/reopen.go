package replica

import (
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

// reopenPause is how long a replica that met a full disk stays closed before it is tried again.
const reopenPause = 5 * time.Second

// reopenLater brings a replica back that stopped because the disk was full, once that has passed. It comes back as after a crash: what
// its state machine did in memory is forgotten, and the entries since the last commit to the store are applied again.
func (h *Host) reopenLater(b Birth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.children.Go(func() {
		t := time.NewTicker(reopenPause)
		defer t.Stop()
		for {
			select {
			case <-h.ctx.Done():
				return
			case <-t.C:
			}
			if err := h.reopen(b); !log.IsDiskFull(err) && wire.KindOf(err) != wire.KindClosed {
				return
			}
		}
	})
}

// reopen opens a stopped replica from what journal and store hold. nil also when it was removed, or replaced by a newer one, meanwhile.
// One that cannot be opened, with space on the disk and the host not about to stop, is closed for good.
func (h *Host) reopen(b Birth) error {
	release, err := h.acquire(h.ctx, b.Group)
	if err != nil {
		return err
	}
	defer release()
	if _, ok := h.Group(b.Group); ok {
		return nil
	}
	// What the stopped replica left on its way to the journal must be there before the journal is read: it may cut the log back.
	if err := h.writeAll(nil, false); err != nil {
		return err
	}
	gs, known := h.cfg.Journal.Load(b.Group)
	if !known || gs.Birth == nil {
		return nil
	}
	now, err := birthOf(gs)
	if err != nil {
		return err
	}
	if now.Self != b.Self {
		return nil
	}
	g, err := h.open(now, gs)
	if err != nil {
		if h.staysClosed(err) {
			h.closeForGood(now, err)
		}
		return err
	}
	g.wakeUp()
	if err := h.start(g); err != nil {
		return err
	}
	g.log.Info("replica is open again")
	return nil
}
