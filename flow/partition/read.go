package partition

import (
	"slices"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// closedChan is what Wait returns when there is nothing to wait for.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (p *Partition) snapshot() view {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.v
}

// Group is the partition's replica group.
func (p *Partition) Group() ring.GroupID { return p.group }

// Spec is what the partition is, with its limits as they are now. Safe for any goroutine.
func (p *Partition) Spec() Spec { return p.snapshot().spec }

// WantReplicas is how many copies the stream's config asks for, as far as it is applied here. Safe for any goroutine.
func (p *Partition) WantReplicas() int { return p.Spec().Replicas }

// Imported tells from which export the partition was filled, zero where from none, and whether to its end. Safe for any goroutine.
func (p *Partition) Imported() (export [16]byte, whole bool) {
	v := p.snapshot()
	return v.export, v.export != [16]byte{} && !v.importing
}

// Next is the offset after the last event applied here. Safe for any goroutine.
func (p *Partition) Next() uint64 { return p.snapshot().next }

// Start is the offset of the first event there is; equal to Next when there is none. Safe for any goroutine.
func (p *Partition) Start() uint64 { return p.snapshot().start }

// Stamp is the partition's time: that of the last entry, in Unix ms. Safe for any goroutine.
func (p *Partition) Stamp() int64 { return p.snapshot().stamp }

// Bytes is the size of the segment files. Safe for any goroutine.
func (p *Partition) Bytes() int64 {
	v := p.snapshot()
	if v.damaged != nil {
		return 0
	}
	return v.segs.Bytes()
}

// Read returns whole batches as batch.ParseMeta and batch.Reader take them: header, payload, header, payload, … The first of
// them holds offset from, and may begin before it; more follow up to maxBytes. Nothing when from is Next or beyond. Errors:
// KindNotFound with CodeOffsetExpired below Start, KindCorrupt, KindClosed, I/O. Safe for any goroutine.
func (p *Partition) Read(from uint64, maxBytes int) ([]byte, error) {
	v := p.snapshot()
	switch {
	case v.closed:
		return nil, errClosed()
	case v.damaged != nil:
		return nil, v.damaged
	case from < v.start:
		return nil, wire.Errorf(wire.KindNotFound, wire.CodeOffsetExpired, "offset %d is gone; the earliest is %d", from, v.start)
	case from >= v.next:
		return nil, nil
	}
	batches, err := v.segs.Read(from, maxBytes, nil)
	if err != nil {
		return nil, p.noteDamage(err)
	}
	return appendBatches(nil, batches), nil
}

// appendBatches appends batches as they are on disk.
func appendBatches(dst []byte, batches []log.StoredBatch) []byte {
	size := 0
	for i := range batches {
		size += batch.MetaLen(&batches[i].Meta) + len(batches[i].Payload)
	}
	dst = slices.Grow(dst, size)
	for i := range batches {
		dst = batch.AppendMeta(dst, &batches[i].Meta)
		dst = append(dst, batches[i].Payload...)
	}
	return dst
}

// SeekTime is the offset of the first event whose batch was stamped ms (Unix) or later, or Next when there is none. It errs
// to an earlier offset where the files cannot be read. Safe for any goroutine.
func (p *Partition) SeekTime(ms int64) uint64 {
	v := p.snapshot()
	if v.closed || v.damaged != nil {
		return v.next
	}
	return min(max(v.segs.SeekTime(ms), v.start), v.next)
}

// Wait returns a channel that is closed when offset from can be read, or when anything after it changed that the caller
// should look at: call Next again, and Wait again. Safe for any goroutine.
func (p *Partition) Wait(from uint64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from < p.v.next || p.v.closed {
		return closedChan
	}
	if p.v.notify == nil {
		p.v.notify = make(chan struct{})
	}
	return p.v.notify
}

// ClockDue reports whether the owner should propose a Clock entry at time nowMS (Unix): nothing came for so long that all
// identities and sessions can be forgotten, and some are still held. Safe for any goroutine.
func (p *Partition) ClockDue(nowMS int64) bool {
	v := p.snapshot()
	return v.expiring && !v.closed && !v.importing && nowMS-v.stamp > max(v.spec.DedupeWindowMS+minuteMS, sessionIdleMS)
}

// RetentionTrim is the start that the owner should propose at time nowMS (Unix), by age and by size, in whole batches. ok
// is false when there is nothing to trim. Safe for any goroutine.
func (p *Partition) RetentionTrim(nowMS int64) (start uint64, ok bool) {
	v := p.snapshot()
	if v.closed || v.importing || v.damaged != nil || v.next == v.start {
		return v.start, false
	}
	start = v.start
	if age := v.spec.RetentionMS; age > 0 {
		start = max(start, v.segs.SeekTime(nowMS-age))
	}
	if v.spec.RetentionBytes > 0 {
		start = max(start, v.sizeStart)
	}
	start = min(start, v.next)
	return start, start > v.start
}
