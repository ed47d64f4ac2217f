package flow

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// request is one Publish call: its results are filled in by sessions, each index by one session alone.
type request struct {
	results []PublishResult
	ack     Ack
	pending atomic.Int64
	done    chan struct{}
}

// complete counts n results in; the last one wakes the caller.
func (r *request) complete(n int) {
	if r.pending.Add(-int64(n)) == 0 {
		close(r.done)
	}
}

// eventOverhead is charged for each event besides its bytes: what batching and bookkeeping add in memory.
const eventOverhead = 64

// Publish appends events; see Publisher.
func (b *Broker) Publish(ctx context.Context, stream string, recs []batch.Record, o PublishOptions) ([]PublishResult, error) {
	if len(recs) == 0 {
		return nil, nil
	}
	results, err := b.publish(ctx, stream, recs, o)
	if err != nil {
		b.metrics.refusal(err)
	}
	return results, err
}

func (b *Broker) publish(ctx context.Context, stream string, recs []batch.Record, o PublishOptions) ([]PublishResult, error) {
	started := time.Now()
	s, err := b.streamFor(ctx, stream, o.AutoCreate)
	if err != nil {
		return nil, err
	}
	size := sizeOf(recs)
	reserve := min(size, b.cfg.PublishBudget.Limit()) // one request larger than the budget passes alone
	if err := b.cfg.PublishBudget.Reserve(ctx, reserve); err != nil {
		return nil, err
	}
	defer b.cfg.PublishBudget.Release(reserve)

	req := b.publishTo(ctx, s, recs, o)
	err = wholeFailure(req.results)
	if wire.KindOf(err) == wire.KindNotFound { // the partitions are gone: the definition in the cache is of a deleted incarnation
		b.catalog.put(stream, nil)
		if now, lerr := b.streamFor(ctx, stream, o.AutoCreate); lerr == nil && now.ID != s.ID {
			req = b.publishTo(ctx, now, recs, o) // nothing was stored
			err = wholeFailure(req.results)
		}
	}
	b.metrics.published(req, size, time.Since(started))
	if err != nil {
		return nil, err
	}
	return req.results, nil
}

// publishTo appends events to one incarnation of a stream, and waits for their results.
func (b *Broker) publishTo(ctx context.Context, s *catalog.Stream, recs []batch.Record, o PublishOptions) *request {
	req := &request{results: make([]PublishResult, len(recs)), ack: o.Ack, done: make(chan struct{})}
	b.await(ctx, req, b.route(s, recs, o, req))
	return req
}

// streamFor finds the definition, creating it where that is wanted.
func (b *Broker) streamFor(ctx context.Context, stream string, create bool) (*catalog.Stream, error) {
	s, err := b.usable(ctx, stream)
	if !create || wire.KindOf(err) != wire.KindNotFound {
		return s, err
	}
	_, _, err = b.Create(ctx, stream, StreamConfig{}, CreateOnly)
	if code := wire.CodeOf(err); err != nil && code != catalog.CodeExists && code != catalog.CodeDeleted { // others create and delete it too
		return nil, err
	}
	return b.usable(ctx, stream)
}

func sizeOf(recs []batch.Record) int64 {
	n := int64(0)
	for i := range recs {
		r := &recs[i]
		n += int64(len(r.Key)+len(r.Value)+len(r.ID)+len(r.Source)+len(r.Type)+len(r.ContentType)) + eventOverhead
		for j := range r.Headers {
			n += int64(len(r.Headers[j].Name) + len(r.Headers[j].Value))
		}
	}
	return n
}

// wholeFailure is the error of a request none of whose events was stored: the gravest of them.
func wholeFailure(results []PublishResult) error {
	var worst error
	for i := range results {
		if results[i].Err == nil {
			return nil
		}
		if worst == nil || wire.KindOf(results[i].Err) == wire.KindOutcomeUnknown {
			worst = results[i].Err
		}
	}
	if len(results) > 1 && wire.KindOf(worst) == wire.KindInvalid {
		return nil // each event's own fault is told event by event
	}
	return worst
}

// identity is what the dedupe window knows an event by: its own (source, id), or the request's key and the position in it.
func identity(s *catalog.Stream, r *batch.Record, o PublishOptions, i int) batch.Identity {
	var id batch.Identity
	switch {
	case r.ID != "" && r.Source != "":
		id.Hash = batch.IdentityOf(s.Seed, r.Source, r.ID)
	case o.IdempotencyKey != "":
		var pos [8]byte
		binary.BigEndian.PutUint64(pos[:], uint64(i))
		id.Hash = batch.IdentityOf(s.Seed, "idempotency-key\x00"+string(pos[:]), o.IdempotencyKey)
	default:
		return id
	}
	id.Payload = batch.PayloadHash(r)
	return id
}

// route cuts a request by partition and hands each run of events to the partition's session, in input order.
func (b *Broker) route(s *catalog.Stream, recs []batch.Record, o PublishOptions, req *request) map[ring.GroupID]*session {
	sessions := map[ring.GroupID]*session{}
	req.pending.Store(int64(len(recs)) + 1) // one more for route itself, so that it cannot complete early
	defer req.complete(1)
	var free spreader
	for i := range recs {
		r := &recs[i]
		id := identity(s, r, o, i)
		p, err := b.choose(s, r, id, o, &free)
		if err == nil {
			err = checkSize(s, r)
		}
		var ses *session
		if err == nil {
			if ses = sessions[p.Group]; ses == nil {
				ses, err = b.session(s, p)
			}
		}
		if err != nil {
			req.results[i].Err = err
			req.complete(1)
			continue
		}
		sessions[p.Group] = ses
		req.results[i].Partition = p.ID
		ses.add(r, id, req, i)
	}
	for _, ses := range sessions {
		ses.flush()
	}
	b.leave(sessions)
	return sessions
}

// leave notes that a request adds no more events to these sessions.
func (b *Broker) leave(sessions map[ring.GroupID]*session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ses := range sessions {
		ses.users--
	}
}

func checkSize(s *catalog.Stream, r *batch.Record) error {
	if n := len(r.Key) + len(r.Value); n > s.Config.MaxEventBytes {
		return wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "event of %d bytes (key and value); stream %s takes at most %d (max_event_bytes)",
			n, s.Name, s.Config.MaxEventBytes)
	}
	return nil
}

// choose picks the event's partition: asked for, by key, by identity (so that a retry meets its first try), or where there is room.
func (b *Broker) choose(s *catalog.Stream, r *batch.Record, id batch.Identity, o PublishOptions, free *spreader) (*catalog.Partition, error) {
	switch {
	case o.Partition != nil:
		p, ok := s.Partition(*o.Partition)
		if !ok || p.State != catalog.Open {
			return nil, wire.Errorf(wire.KindNotFound, "partition-not-found", "stream %s has no open partition %d", s.Name, *o.Partition)
		}
		return p, nil
	case r.HasKey:
		if p := s.For(ring.Hash(s.Seed, r.Key)); p != nil {
			return p, nil
		}
	case id.Hash != [16]byte{}:
		if p := s.For(binary.LittleEndian.Uint64(id.Hash[:8])); p != nil {
			return p, nil
		}
	default:
		if p := free.next(b, s, r); p != nil {
			return p, nil
		}
	}
	return nil, wire.Errorf(wire.KindInternal, "", "the lineage of stream %s leaves a gap", s.Name)
}

// stickyBytes is how much of one request goes to one partition before the next: a few batches that its group replicates, syncs and
// applies together cost less than as many spread over as many groups.
const stickyBytes = 2 * batch.TargetBytes

// spreader sends events without key and identity to the open partition with the least queued bytes, sticky for stickyBytes.
type spreader struct {
	current *catalog.Partition
	bytes   int
}

func (f *spreader) next(b *Broker, s *catalog.Stream, r *batch.Record) *catalog.Partition {
	if f.current == nil || f.bytes >= stickyBytes {
		f.current, f.bytes = b.leastQueued(s), 0
	}
	f.bytes += len(r.Value)
	return f.current
}

// leastQueued starts at a place that turns, so that equal partitions share.
func (b *Broker) leastQueued(s *catalog.Stream) *catalog.Partition {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn++
	var best *catalog.Partition
	var bestBytes int64
	for i := range s.Partitions {
		p := &s.Partitions[(i+b.turn)%len(s.Partitions)]
		if p.State != catalog.Open {
			continue
		}
		var queued int64
		if ses := b.sessions[p.Group]; ses != nil {
			queued = ses.queued.Load()
		}
		if best == nil || queued < bestBytes {
			best, bestBytes = p, queued
		}
	}
	return best
}

// await waits for the results. At the deadline events that certainly were not sent are refused, the others are unknown.
func (b *Broker) await(ctx context.Context, req *request, sessions map[ring.GroupID]*session) {
	select {
	case <-req.done:
		return
	case <-ctx.Done():
	case <-b.life.Done():
	}
	for _, ses := range sessions {
		ses.abandon(req)
	}
	<-req.done
}

// session returns the publish session to a partition, opening it at first use. It does not retire for idleness before leave.
func (b *Broker) session(s *catalog.Stream, p *catalog.Partition) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ses := b.sessions[p.Group]; ses != nil && !ses.retired {
		ses.users++
		return ses, nil
	}
	ses := newSession(b, s.Name, p)
	ses.users = 1
	if !b.spawnLocked(ses.run) {
		return nil, errClosing
	}
	b.sessions[p.Group] = ses
	return ses, nil
}

// dropSession ends the session to a group that is no more.
func (b *Broker) dropSession(g ring.GroupID) {
	b.mu.Lock()
	ses := b.sessions[g]
	delete(b.sessions, g)
	if ses != nil {
		ses.retired = true
	}
	b.mu.Unlock()
	if ses != nil {
		ses.stop(wire.Errorf(wire.KindNotFound, wire.CodeStreamNotFound, "stream %q was deleted", ses.stream))
	}
}

func (b *Broker) dropSessions(s *catalog.Stream) {
	for i := range s.Partitions {
		b.dropSession(s.Partitions[i].Group)
	}
}

// unknownOutcome is what an event gets that was sent and not answered in time.
func unknownOutcome(cause error) error {
	return &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Err: cause,
		Detail: "no acknowledgement arrived in time: the event may or may not be stored; retry with the same identity (source and id, or Idempotency-Key)"}
}

// result fills in one acknowledged event.
func (r *request) result(i int, offset uint64, at time.Time, copies int, dup bool) {
	res := &r.results[i]
	if res.Err != nil {
		panic(fmt.Sprintf("flow: result %d given twice", i))
	}
	res.Offset, res.Time, res.Copies, res.Duplicate = offset, at, copies, dup
}
