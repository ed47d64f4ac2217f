package flow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

const (
	// readTokens is how many chunks one subscription holds, whatever the number of partitions: together with the size of a chunk
	// that bounds what a stopped reader costs.
	readTokens = 2
	// chunkBytes is what a feed reads at once while half of the node's read budget is free, minChunk what it reads otherwise. Each
	// subscription has readTokens small chunks for itself, so that none starves; when the budget has none left for one more, it
	// is refused.
	chunkBytes = 128 << 10
	minChunk   = 8 << 10
)

// subscription reads one stream: a feed for each partition pushes chunks, Next decodes them. One goroutine uses it.
type subscription struct {
	b      *Broker
	stream *catalog.Stream
	req    SubscribeRequest

	ctx    context.Context
	cancel context.CancelCauseFunc
	feeds  sync.WaitGroup
	tokens chan struct{} // a chunk that is read holds one until it is delivered
	chunks chan chunk    // never full: bounded by tokens and by one last word per feed
	looks  sync.WaitGroup
	looked chan struct{} // closed when every feed has looked at its source once

	cursor  Cursor
	open    int // feeds that go on
	current chunk
	decoder eventDecoder
	closed  bool
}

// chunk is a run of one partition's batches, or a feed's last word.
type chunk struct {
	part    ring.PartitionID
	batches []framed
	from    uint64 // events below were delivered before
	done    bool   // the feed reached its end
	err     error
	token   bool
	extra   int64 // reserved of the read budget for this chunk
}

// Subscribe starts reading; see Subscriber.
func (b *Broker) Subscribe(ctx context.Context, stream string, req SubscribeRequest) (Subscription, error) {
	s, err := b.usable(ctx, stream)
	if err != nil {
		return nil, err
	}
	parts, starts, ends, err := b.resolve(ctx, s, req)
	if wire.KindOf(err) == wire.KindNotFound {
		b.catalog.put(stream, nil)
	}
	if wire.CodeOf(err) == wire.CodeStreamNotFound { // the definition was that of an incarnation that is no more
		if s, err = b.usable(ctx, stream); err != nil {
			return nil, err
		}
		parts, starts, ends, err = b.resolve(ctx, s, req)
	}
	if err != nil {
		return nil, err
	}
	if !b.cfg.ReadBudget.TryReserve(readTokens * minChunk) {
		b.metrics.refused.WithLabelValues(wire.CodeOverloaded).Inc()
		return nil, &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, RetryAfter: 2 * time.Second,
			Detail: "this node has as many readers as its memory_budget allows; read through another node or raise it"}
	}
	sub := &subscription{b: b, stream: s, req: req, cursor: Cursor{Stream: s.ID, Next: maps.Clone(starts)},
		tokens: make(chan struct{}, readTokens), chunks: make(chan chunk, readTokens+len(parts)), looked: make(chan struct{})}
	sub.ctx, sub.cancel = context.WithCancelCause(b.life)
	sub.decoder.init(s.Name, req)
	b.metrics.subscriptions.Inc()
	for _, p := range parts {
		f := &feed{sub: sub, part: p, next: starts[p.ID]}
		if ends != nil {
			end := ends[p.ID]
			f.end = &end
		}
		sub.open++
		sub.looks.Add(1)
		sub.feeds.Go(f.run)
	}
	sub.feeds.Go(func() {
		sub.looks.Wait()
		close(sub.looked)
	})
	return sub, nil
}

// targets lists the partitions to read: the one asked for, those whose ranges hold (or held) the key, or all.
func targets(s *catalog.Stream, req SubscribeRequest) ([]*catalog.Partition, error) {
	var out []*catalog.Partition
	hash := ring.Hash(s.Seed, req.Key)
	for i := range s.Partitions {
		p := &s.Partitions[i]
		if req.Partition != nil && p.ID != *req.Partition || req.HasKey && !p.Range.Contains(hash) {
			continue
		}
		out = append(out, p)
	}
	if len(out) == 0 && req.Partition != nil {
		if _, ok := s.Partition(*req.Partition); !ok {
			return nil, partitionNotFound(s.Name, *req.Partition)
		}
		return nil, wire.Errorf(wire.KindInvalid, "", "partition %d of stream %s does not hold the key asked for; ask without partition",
			*req.Partition, s.Name)
	}
	return out, nil
}

// resolve finds the partitions to read and turns the position into a first offset for each, and with UntilEnd into an end.
func (b *Broker) resolve(ctx context.Context, s *catalog.Stream, req SubscribeRequest) (parts []*catalog.Partition, starts, ends map[ring.PartitionID]uint64, err error) {
	if parts, err = targets(s, req); err != nil {
		return nil, nil, nil, err
	}
	if req.From.Kind == FromCursor && req.From.Cursor.Stream != s.ID {
		return nil, nil, nil, wire.Errorf(wire.KindInvalid, "foreign-cursor",
			"the cursor belongs to another stream, or to an earlier incarnation of %s; start from earliest or latest", s.Name)
	}
	for p := range req.From.Offsets {
		if _, ok := s.Partition(p); !ok {
			return nil, nil, nil, partitionNotFound(s.Name, p)
		}
	}
	var mu sync.Mutex
	starts = map[ring.PartitionID]uint64{}
	if req.UntilEnd {
		ends = map[ring.PartitionID]uint64{}
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		g.Go(func() error {
			start, end, err := b.resolveOne(gctx, s, p, req)
			if err != nil {
				return fmt.Errorf("partition %d: %w", p.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			starts[p.ID] = start
			if ends != nil {
				ends[p.ID] = end
			}
			return nil
		})
	}
	return parts, starts, ends, g.Wait()
}

func (b *Broker) resolveOne(ctx context.Context, s *catalog.Stream, p *catalog.Partition, req SubscribeRequest) (start, end uint64, err error) {
	kind := req.From.Kind
	var resp partitionResponse
	local, lok := b.localPartition(p.Group)
	if req.UntilEnd || kind == FromLatest || kind == FromTime || !lok { // without a replica here not even the start is known
		ask := partitionRequest{Op: opEnd, Group: p.Group}
		if kind == FromTime {
			ask.Op, ask.Time = opSeek, req.From.At.UnixMilli()
		}
		if resp, err = b.askPartition(ctx, s, p, ask); err != nil {
			return 0, 0, err
		}
	} else if lok {
		resp.Start = local.Start()
	}
	switch kind {
	case FromEarliest:
		start = resp.Start
	case FromLatest:
		start = resp.Next
	case FromTime:
		start = resp.Offset
	case FromOffsets, FromCursor:
		at := req.From.Offsets
		if kind == FromCursor {
			at = req.From.Cursor.Next
		}
		if o, named := at[p.ID]; !named {
			start = resp.Start
		} else if start = o; start < resp.Start {
			return 0, 0, expired(p.ID, o, resp.Start)
		}
	}
	return start, resp.Next, nil
}

func partitionNotFound(stream string, p ring.PartitionID) error {
	return wire.Errorf(wire.KindNotFound, "partition-not-found", "stream %s has no partition %d", stream, p)
}

// expired is the error of a position that retention has passed. The HTTP layer gives Term as "earliest".
func expired(p ring.PartitionID, asked, earliest uint64) error {
	return &wire.Error{Kind: wire.KindNotFound, Code: wire.CodeOffsetExpired, Term: earliest,
		Detail: fmt.Sprintf("partition %d: offset %d has expired; the earliest is %d", p, asked, earliest)}
}

func foundersOf(p *catalog.Partition) []ring.NodeID {
	out := make([]ring.NodeID, len(p.Birth.Members))
	for i, m := range p.Birth.Members {
		out[i] = m.Node
	}
	return out
}

// localPartition is the replica of a partition here, if it has caught up far enough to serve.
func (b *Broker) localPartition(g ring.GroupID) (*partition.Partition, bool) {
	lg, ok := b.cfg.Groups.Group(g)
	if !ok || lg.Status().Role == replica.RoleLearner {
		return nil, false
	}
	p, ok := lg.StateMachine().(*partition.Partition)
	return p, ok && p.Damaged() == nil
}

// firstLook is how long Next waits beyond its context for each partition to be looked at once.
const firstLook = 2 * time.Second

// Next waits for events; see Subscription. However short ctx is, what the replicas have already is given: an ended ctx counts only
// once every partition was looked at.
func (s *subscription) Next(ctx context.Context, maxEvents int) (Chunk, error) {
	var late <-chan time.Time
	ended := ctx.Done()
	for {
		if s.decoder.more() {
			if c, err := s.decode(maxEvents); err != nil || len(c.Events) > 0 {
				return c, err
			}
		}
		s.release()
		if s.open == 0 {
			return Chunk{End: true, Cursor: s.cursor.Clone()}, nil
		}
		select {
		case c := <-s.chunks:
			s.current = c
			if c.err != nil {
				return Chunk{}, c.err
			}
			if c.done {
				s.open--
				continue
			}
			s.decoder.start(c)
		case <-ended:
			select {
			case <-s.looked:
				if len(s.chunks) == 0 {
					return Chunk{}, ctx.Err()
				}
			default:
				if errors.Is(ctx.Err(), context.Canceled) {
					return Chunk{}, ctx.Err()
				}
				t := time.NewTimer(firstLook)
				defer t.Stop()
				late, ended = t.C, s.looked
			}
		case <-late:
			return Chunk{}, ctx.Err()
		case <-s.ctx.Done():
			return Chunk{}, context.Cause(s.ctx)
		}
	}
}

// decode takes events of the current chunk.
func (s *subscription) decode(maxEvents int) (Chunk, error) {
	events, next, bytes, err := s.decoder.take(maxEvents)
	if err != nil {
		return Chunk{}, err
	}
	s.cursor.Next[s.current.part] = next
	s.b.metrics.readEvents.Add(float64(len(events)))
	s.b.metrics.readBytes.Add(float64(bytes))
	if len(events) == 0 {
		return Chunk{}, nil
	}
	return Chunk{Events: events, Cursor: s.cursor.Clone()}, nil
}

// release gives the delivered chunk's token back to the feeds.
func (s *subscription) release() {
	if s.current.token {
		s.giveBack(s.current.extra)
	}
	s.current = chunk{}
}

// takeToken waits for room for one chunk and returns how much of it is the read budget's.
func (s *subscription) takeToken() (extra int64, err error) {
	select {
	case s.tokens <- struct{}{}:
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
	if b := s.b.cfg.ReadBudget; b.Used() < b.Limit()/2 && b.TryReserve(chunkBytes) {
		return chunkBytes, nil
	}
	return 0, nil
}

// giveBack frees a chunk's room.
func (s *subscription) giveBack(extra int64) {
	if extra > 0 {
		s.b.cfg.ReadBudget.Release(extra)
	}
	<-s.tokens
}

// Cursor is the position after all that Next returned.
func (s *subscription) Cursor() Cursor { return s.cursor.Clone() }

// Close ends the feeds and waits for them. Idempotent.
func (s *subscription) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.cancel(wire.Errorf(wire.KindClosed, "", "subscription closed"))
	s.feeds.Wait()
	s.release()
	for len(s.chunks) > 0 {
		if c := <-s.chunks; c.token {
			s.giveBack(c.extra)
		}
	}
	s.b.cfg.ReadBudget.Release(readTokens * minChunk)
	s.b.metrics.subscriptions.Dec()
	return nil
}

// EventAt reads one event; see Subscriber.
func (b *Broker) EventAt(ctx context.Context, stream string, id ring.PartitionID, offset uint64) (Event, error) {
	s, err := b.usable(ctx, stream)
	if err != nil {
		return Event{}, err
	}
	p, ok := s.Partition(id)
	if !ok {
		return Event{}, partitionNotFound(s.Name, id)
	}
	if local, ok := b.localPartition(p.Group); !ok || offset >= local.Next() || offset < local.Start() {
		resp, err := b.askPartition(ctx, s, p, partitionRequest{Op: opEnd, Group: p.Group})
		if err != nil {
			return Event{}, err
		}
		if offset < resp.Start {
			return Event{}, expired(id, offset, resp.Start)
		}
		if offset >= resp.Next {
			return Event{}, wire.Errorf(wire.KindNotFound, "offset-not-found", "partition %d of stream %s ends at offset %d", id, stream, resp.Next)
		}
	}
	req := SubscribeRequest{From: Position{Kind: FromOffsets, Offsets: map[ring.PartitionID]uint64{id: offset}}, Partition: &id}
	sub, err := b.Subscribe(ctx, stream, req)
	if err != nil {
		return Event{}, err
	}
	defer sub.Close() //nolint:errcheck // it returns nil
	c, err := sub.Next(ctx, 1)
	if err != nil {
		return Event{}, err
	}
	ev := c.Events[0]
	ev.Record = ev.Record.Clone()
	return ev, nil
}
