package api

import (
	"context"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// fakeBroker is an honest single-process broker: partitions, gapless offsets, dedupe by identity, cursors and waiting readers.
type fakeBroker struct {
	mu      sync.Mutex
	streams map[string]*fakeStream
	wake    chan struct{} // closed and replaced on each append

	err          error                               // what every call fails with
	publishErr   func(stream string, call int) error // whole-request failures to inject
	eventErr     func(rec *batch.Record) error       // per-event failures to inject
	subscribeErr func(req flow.SubscribeRequest) error
	opening      func(context.Context) error // what subscribing waits for first
	calls        int
	opts         []flow.PublishOptions
	nextCalls    int
	incomplete   string // what a list says of itself
}

type fakeStream struct {
	info   flow.StreamInfo
	parts  [][]flow.Event
	start  []uint64 // first offset that still exists
	dedupe map[string]flow.PublishResult
	bodies map[string]string
}

func newFakeBroker() *fakeBroker {
	return &fakeBroker{streams: map[string]*fakeStream{}, wake: make(chan struct{})}
}

func notFoundStream(name string) error {
	return wire.Errorf(wire.KindNotFound, wire.CodeStreamNotFound, "stream %s does not exist", name)
}

func (b *fakeBroker) Create(_ context.Context, name string, cfg flow.StreamConfig, mode flow.CreateMode) (flow.StreamInfo, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return flow.StreamInfo{}, false, b.err
	}
	return b.createLocked(name, cfg, mode)
}

func (b *fakeBroker) createLocked(name string, cfg flow.StreamConfig, mode flow.CreateMode) (flow.StreamInfo, bool, error) {
	cfg = cfg.WithDefaults()
	if s := b.streams[name]; s != nil {
		if mode == flow.CreateOnly {
			return flow.StreamInfo{}, false, wire.Errorf(wire.KindConflict, "exists", "stream %s exists", name)
		}
		if !s.info.Config.Equal(cfg) {
			return flow.StreamInfo{}, false, wire.Errorf(wire.KindConflict, "config-differs", "stream %s exists with another config", name)
		}
		return s.info, false, nil
	}
	s := &fakeStream{parts: make([][]flow.Event, cfg.Partitions), start: make([]uint64, cfg.Partitions),
		dedupe: map[string]flow.PublishResult{}, bodies: map[string]string{}}
	s.info = flow.StreamInfo{Name: name, ID: ring.NewStreamID(), Version: 1, Created: time.Now().UTC(), Config: cfg}
	for i, r := range ring.EvenRanges(cfg.Partitions) {
		s.info.Partitions = append(s.info.Partitions, flow.PartitionInfo{ID: ring.PartitionID(i), Range: r, State: "open", Owner: "n1"})
	}
	b.streams[name] = s
	return s.info, true, nil
}

func (b *fakeBroker) Get(_ context.Context, name string) (flow.StreamInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return flow.StreamInfo{}, b.err
	}
	if s := b.streams[name]; s != nil {
		return s.info, nil
	}
	return flow.StreamInfo{}, notFoundStream(name)
}

func (b *fakeBroker) List(context.Context) (flow.StreamList, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return flow.StreamList{}, b.err
	}
	out := flow.StreamList{Incomplete: b.incomplete}
	for _, name := range slices.Sorted(maps.Keys(b.streams)) {
		out.Streams = append(out.Streams, b.streams[name].info)
	}
	return out, nil
}

func (b *fakeBroker) Update(_ context.Context, name string, version uint64, cfg flow.StreamConfig) (flow.StreamInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return flow.StreamInfo{}, b.err
	}
	s := b.streams[name]
	if s == nil {
		return flow.StreamInfo{}, notFoundStream(name)
	}
	if version != 0 && version != s.info.Version {
		return flow.StreamInfo{}, wire.Errorf(wire.KindConflict, "version-mismatch", "version is %d", s.info.Version)
	}
	s.info.Version++
	s.info.Config = cfg.WithDefaults()
	return s.info, nil
}

func (b *fakeBroker) Delete(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	if b.streams[name] == nil {
		return notFoundStream(name)
	}
	delete(b.streams, name)
	return nil
}

func (b *fakeBroker) Publish(ctx context.Context, stream string, recs []batch.Record, o flow.PublishOptions) ([]flow.PublishResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	b.calls++
	b.opts = append(b.opts, o)
	if b.publishErr != nil {
		if err := b.publishErr(stream, b.calls); err != nil {
			return nil, err
		}
	}
	s := b.streams[stream]
	if s == nil && o.AutoCreate {
		if _, _, err := b.createLocked(stream, flow.StreamConfig{}, flow.CreateOnly); err != nil {
			return nil, err
		}
		s = b.streams[stream]
	}
	if s == nil {
		return nil, notFoundStream(stream)
	}
	res := make([]flow.PublishResult, len(recs))
	for i := range recs {
		res[i] = b.appendLocked(s, &recs[i], o, i)
	}
	close(b.wake)
	b.wake = make(chan struct{})
	return res, nil
}

func (b *fakeBroker) appendLocked(s *fakeStream, r *batch.Record, o flow.PublishOptions, i int) flow.PublishResult {
	if b.eventErr != nil {
		if err := b.eventErr(r); err != nil {
			return flow.PublishResult{Err: err}
		}
	}
	if len(r.Value) > s.info.Config.MaxEventBytes {
		return flow.PublishResult{Err: wire.Errorf(wire.KindInvalid, wire.CodeTooLarge, "event of %d bytes", len(r.Value))}
	}
	id := ""
	if r.ID != "" {
		id = r.Source + "\x00" + r.ID
	} else if o.IdempotencyKey != "" {
		id = "key\x00" + o.IdempotencyKey + "\x00" + string(rune(i))
	}
	if old, ok := s.dedupe[id]; ok && id != "" {
		if s.bodies[id] != string(r.Value) {
			return flow.PublishResult{Err: wire.Errorf(wire.KindConflict, wire.CodeIdempotencyReuse, "this identity came with other content")}
		}
		old.Duplicate = true
		return old
	}
	h := fnv.New32a()
	if r.HasKey {
		_, _ = h.Write(r.Key)
	}
	p := int(h.Sum32()) % len(s.parts)
	rec := *r
	rec.Key, rec.Value = slices.Clone(r.Key), slices.Clone(r.Value)
	rec.Headers = slices.Clone(r.Headers)
	ev := flow.Event{Stream: s.info.Name, Partition: ring.PartitionID(p), Offset: s.start[p] + uint64(len(s.parts[p])), Stamp: time.Now(), Record: rec}
	s.parts[p] = append(s.parts[p], ev)
	res := flow.PublishResult{Partition: ev.Partition, Offset: ev.Offset, Time: ev.Stamp, Copies: 1}
	if id != "" {
		s.dedupe[id], s.bodies[id] = res, string(r.Value)
	}
	return res
}

func (b *fakeBroker) EventAt(_ context.Context, stream string, p ring.PartitionID, offset uint64) (flow.Event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return flow.Event{}, b.err
	}
	s := b.streams[stream]
	switch {
	case s == nil:
		return flow.Event{}, notFoundStream(stream)
	case int(p) >= len(s.parts):
		return flow.Event{}, wire.Errorf(wire.KindNotFound, "partition-not-found", "no partition %d", p)
	case offset < s.start[p]:
		return flow.Event{}, expired(p, s.start[p])
	case offset-s.start[p] >= uint64(len(s.parts[p])):
		return flow.Event{}, wire.Errorf(wire.KindNotFound, "offset-not-found", "no offset %d", offset)
	}
	return s.parts[p][offset-s.start[p]], nil
}

func expired(p ring.PartitionID, start uint64) error {
	return wire.Errorf(wire.KindNotFound, wire.CodeOffsetExpired, "partition %d: the earliest offset is %d", p, start)
}

func (b *fakeBroker) Subscribe(ctx context.Context, stream string, req flow.SubscribeRequest) (flow.Subscription, error) {
	if b.opening != nil {
		if err := b.opening(ctx); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	if b.subscribeErr != nil {
		if err := b.subscribeErr(req); err != nil {
			return nil, err
		}
	}
	s := b.streams[stream]
	if s == nil {
		return nil, notFoundStream(stream)
	}
	sub := &fakeSub{b: b, s: s, req: req, at: flow.Cursor{Stream: s.info.ID, Next: map[ring.PartitionID]uint64{}}, end: map[ring.PartitionID]uint64{}}
	if req.From.Kind == flow.FromCursor && req.From.Cursor.Stream != s.info.ID {
		return nil, wire.Errorf(wire.KindInvalid, "invalid-position", "the cursor is of another stream")
	}
	for i := range s.parts {
		p := ring.PartitionID(i)
		if req.Partition != nil && *req.Partition != p {
			continue
		}
		end := s.start[i] + uint64(len(s.parts[i]))
		at := s.start[i]
		switch req.From.Kind {
		case flow.FromLatest:
			at = end
		case flow.FromOffsets:
			if o, ok := req.From.Offsets[p]; ok {
				at = o
			}
		case flow.FromCursor:
			at = req.From.Cursor.Next[p]
		case flow.FromTime:
			for at < end && s.parts[i][at-s.start[i]].Stamp.Before(req.From.At) {
				at++
			}
		}
		if at < s.start[i] {
			return nil, expired(p, s.start[i])
		}
		sub.at.Next[p], sub.end[p] = at, end
	}
	if req.Partition != nil && len(sub.at.Next) == 0 {
		return nil, wire.Errorf(wire.KindNotFound, "partition-not-found", "no partition %d", *req.Partition)
	}
	return sub, nil
}

type fakeSub struct {
	b   *fakeBroker
	s   *fakeStream
	req flow.SubscribeRequest
	at  flow.Cursor
	end map[ring.PartitionID]uint64
}

func (s *fakeSub) Cursor() flow.Cursor { return s.at }
func (s *fakeSub) Close() error        { return nil }

func (s *fakeSub) Next(ctx context.Context, n int) (flow.Chunk, error) {
	for {
		s.b.mu.Lock()
		s.b.nextCalls++
		evs := s.takeLocked(n)
		wake := s.b.wake
		s.b.mu.Unlock()
		if end := s.atEnd(); len(evs) > 0 || end {
			return flow.Chunk{Events: evs, Cursor: s.at, End: end}, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return flow.Chunk{}, ctx.Err()
		}
	}
}

func (s *fakeSub) atEnd() bool {
	if !s.req.UntilEnd {
		return false
	}
	for p, end := range s.end {
		if s.at.Next[p] < end {
			return false
		}
	}
	return true
}

func (s *fakeSub) takeLocked(n int) []flow.Event {
	var evs []flow.Event
	for _, p := range slices.Sorted(maps.Keys(s.at.Next)) {
		start := s.s.start[p]
		for o := s.at.Next[p]; o-start < uint64(len(s.s.parts[p])); o++ {
			if len(evs) >= 1000 { // real chunks are bounded too
				break
			}
			if n > 0 && len(evs) >= n || s.req.UntilEnd && o >= s.end[p] {
				break
			}
			s.at.Next[p] = o + 1
			ev := s.s.parts[p][o-start]
			if s.req.HasKey && (!ev.HasKey || string(ev.Key) != string(s.req.Key)) {
				continue
			}
			evs = append(evs, ev)
		}
	}
	return evs
}

// fakeMesh is a mesh of one.
type fakeMesh struct {
	checks []Check
	err    error // what every view of it fails with
}

func (m *fakeMesh) head() View {
	return View{Observer: "n1", Cluster: "test", AsOf: time.Unix(1_800_000_000, 0).UTC()}
}

func (m *fakeMesh) Summary(context.Context) (MeshSummary, error) {
	return MeshSummary{View: m.head(), Health: "ok", Nodes: 1, Alive: 1, Members: []Staleness{{Node: "n1"}}}, m.err
}

func (m *fakeMesh) Members(context.Context) (MeshMembers, error) {
	return MeshMembers{View: m.head(), Members: []Member{{Node: "n1", State: "alive"}}}, m.err
}

func (m *fakeMesh) Ring(context.Context) (MeshRing, error) {
	return MeshRing{View: m.head(), Slots: 4096, Members: []RingShare{{Node: "n1", Slots: 4096}}}, m.err
}

func (m *fakeMesh) Partitions(_ context.Context, stream string) (MeshPartitions, error) {
	if stream == "absent" {
		return MeshPartitions{}, notFoundStream(stream)
	}
	return MeshPartitions{View: m.head(), Partitions: []MeshPartition{{Stream: "s", Owner: "n1"}}}, m.err
}

func (m *fakeMesh) Readiness(context.Context) []Check { return m.checks }
