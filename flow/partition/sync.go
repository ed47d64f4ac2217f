package partition

import (
	"bytes"
	"errors"
	"fmt"
)

// syncPoint is what the last Sync left.
type syncPoint struct {
	state  []byte // as in the store
	start  uint64 // the start that the store had then
	known  bool
	dirGen uint32
}

// retired are segments that a snapshot replaced.
type retired struct {
	segs  segments
	syncs int // Syncs since
}

// Sync makes the batches applied so far durable, and notes in the store how far that is: what a later start may call damage.
// Decisions about batches that are durable are no longer needed, and go.
//
// Files are removed one Sync late. A Sync is followed by a flush of the store, and before that a crash may put the start of
// the log back to where those files are still wanted.
func (p *Partition) Sync() error {
	p.syncing.Lock()
	defer p.syncing.Unlock()
	p.mu.Lock()
	segs, gen, start, closed := p.v.segs, p.v.dirGen, p.v.start, p.v.closed
	p.mu.Unlock()
	if closed {
		return errClosed()
	}
	state, index, err := segs.Sync()
	if err != nil {
		return fmt.Errorf("partition: sync segments: %w", err)
	}
	last := p.synced
	if !last.known || last.dirGen != gen || !bytes.Equal(last.state, state) {
		b := p.cfg.Store.NewBatch()
		b.Set(p.keys.synced(gen), state)
		b.DeleteRange(p.keys.batch(0), p.keys.batch(index+1))
		if err := b.Commit(); err != nil {
			return fmt.Errorf("partition: note synced segments: %w", err)
		}
	}
	p.synced = syncPoint{state: state, start: start, known: true, dirGen: gen}
	if last.known && last.dirGen == gen && last.start > 0 {
		if err := segs.TrimTo(last.start); err != nil {
			return fmt.Errorf("partition: trim segments: %w", err)
		}
	}
	return p.removeRetired()
}

// removeRetired removes replaced segments at the second Sync after the snapshot.
func (p *Partition) removeRetired() error {
	p.mu.Lock()
	var due, rest []retired
	for _, r := range p.retired {
		if r.syncs++; r.syncs > 1 {
			due = append(due, r)
		} else {
			rest = append(rest, r)
		}
	}
	p.retired = rest
	p.mu.Unlock()
	var err error
	for _, r := range due {
		err = errors.Join(err, r.segs.Remove())
	}
	return err
}
