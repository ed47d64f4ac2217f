package flow

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// catalogOp says what a MethodCatalog request asks. Append only.
type catalogOp uint8

const (
	opCatalogGet     catalogOp = 1
	opCatalogList    catalogOp = 2
	opCatalogCommand catalogOp = 3 // Entry holds a catalog entry
	opCatalogFates   catalogOp = 4 // which of IDs are alive
)

type catalogRequest struct {
	Op    catalogOp       `msgpack:"o"`
	Shard int             `msgpack:"s"`
	Name  string          `msgpack:"n,omitempty"`
	After string          `msgpack:"a,omitempty"` // list: names after this one
	Entry []byte          `msgpack:"e,omitempty"`
	IDs   []ring.StreamID `msgpack:"i,omitempty"`
}

type catalogResponse struct {
	Stream  *catalog.Stream `msgpack:"s,omitempty"`
	Created bool            `msgpack:"c,omitempty"`
	Streams [][]byte        `msgpack:"l,omitempty"` // each a catalog.Stream
	More    bool            `msgpack:"m,omitempty"`
	Dead    []ring.StreamID `msgpack:"d,omitempty"`
}

// Bounds of one catalog answer and of the cache.
const (
	listPageBytes    = 1 << 20
	maxFates         = 1024
	maxCachedStreams = 10_000
	// cacheFresh is how long a definition is used without asking, and twice that while asking: one that was not used for longer may
	// be of a stream that was deleted and created again. cacheStale is how long it is used while the catalog does not answer, so
	// that publishing goes on through a catalog failover. Partitions check everything themselves.
	cacheFresh = 2 * time.Second
	cacheStale = 10 * time.Minute
	// catalogSilence is how long after a question without an answer nobody waits for the answer to another one.
	catalogSilence = 10 * time.Second
	// lookupPatience is how long a lookup waits for the shard's owner before it takes the word of a replica here.
	lookupPatience = time.Second
)

// catalogClient reads and changes the catalog through the shards' owners, and caches definitions for the hot path.
type catalogClient struct {
	b *Broker

	mu     sync.Mutex
	cached map[string]*cachedStream
	silent time.Time // when the catalog left a question without an answer
}

type cachedStream struct {
	stream     *catalog.Stream
	at         time.Time
	refreshing chan struct{} // closed at the end of the refresh that is under way
}

func newCatalogClient(b *Broker) *catalogClient {
	return &catalogClient{b: b, cached: map[string]*cachedStream{}}
}

func (c *catalogClient) shardOf(name string) int {
	return ring.CatalogShard(name, c.b.cfg.CatalogShards)
}

// ask sends a request to the owner of its shard. safe: it may be repeated when its outcome is unknown. The outcome of a command
// is unknown once that of any attempt is; a question has no outcome, only no answer.
func (c *catalogClient) ask(ctx context.Context, req catalogRequest, safe bool) (resp catalogResponse, err error) {
	body, err := wire.Marshal(&req)
	if err != nil {
		return resp, err
	}
	g := ring.CatalogGroup(c.b.cfg.Mesh(), req.Shard)
	var unknown error
	err = c.b.withOwner(ctx, g, nil, safe, func(ctx context.Context, owner ring.NodeID) error {
		answer, err := c.b.cfg.Peers.Call(ctx, owner, wire.ClassControl, wire.MethodCatalog, body)
		if err != nil {
			if wire.KindOf(err) == wire.KindOutcomeUnknown {
				unknown = err
			}
			return err
		}
		return wire.Unmarshal(answer, &resp)
	})
	switch {
	case req.Op != opCatalogCommand:
		err = noAnswer(g, err)
	case unknown != nil && wire.KindOf(err) == wire.KindUnavailable:
		err = &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Err: errors.Join(err, unknown),
			Detail: "the change was sent and not confirmed: it may or may not have been made; look before asking again"}
	}
	return resp, err
}

// noAnswer makes a lost answer to a question what it is: nobody with a quorum answered.
func noAnswer(g ring.GroupID, err error) error {
	if wire.KindOf(err) == wire.KindOutcomeUnknown {
		return noOwner(g, errors.New(err.Error()))
	}
	return err
}

// get reads a definition from the shard's owner, past every write acknowledged before.
func (c *catalogClient) get(ctx context.Context, name string) (*catalog.Stream, error) {
	before := c.cachedStream(name)
	resp, err := c.ask(ctx, catalogRequest{Op: opCatalogGet, Shard: c.shardOf(name), Name: name}, true)
	if err != nil {
		if wire.KindOf(err) == wire.KindNotFound {
			c.gone(name, before)
		}
		return nil, err
	}
	c.put(name, resp.Stream)
	return resp.Stream, nil
}

// lookup is get through the cache, for the hot path: at most twice cacheFresh old while the catalog answers. While it does not, a
// replica of the shard here is asked: a node that is cut off goes on serving what it has.
func (c *catalogClient) lookup(ctx context.Context, name string) (*catalog.Stream, error) {
	if s := c.known(ctx, name); s != nil {
		return s, nil
	}
	actx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	s, err := c.get(actx, name)
	if wire.KindOf(err) != wire.KindUnavailable {
		return s, err
	}
	if s, ok := c.local(name); ok {
		c.put(name, s)
		return s, nil
	}
	return c.get(ctx, name)
}

// known is the definition in the cache, once the catalog was asked whether it still is one; nil where there is none.
func (c *catalogClient) known(ctx context.Context, name string) *catalog.Stream {
	now := time.Now()
	c.mu.Lock()
	e := c.cached[name]
	if e == nil || now.Sub(e.at) >= cacheStale {
		c.mu.Unlock()
		return nil
	}
	if now.Sub(e.at) >= cacheFresh && e.refreshing == nil {
		refreshed := make(chan struct{})
		if c.b.spawn(func(life context.Context) { c.refresh(life, name, e, refreshed) }) {
			e.refreshing = refreshed
		}
	}
	refreshed := e.refreshing
	wait := refreshed != nil && now.Sub(e.at) >= 2*cacheFresh && now.Sub(c.silent) >= catalogSilence
	c.mu.Unlock()
	if !wait {
		return e.stream
	}
	t := time.NewTimer(lookupPatience)
	defer t.Stop()
	select {
	case <-refreshed:
		return c.cachedStream(name)
	case <-t.C:
		c.noteSilence()
	case <-ctx.Done():
	}
	return e.stream
}

func (c *catalogClient) noteSilence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = time.Now()
}

// local looks a definition up in the shard's replica on this node; it may be old.
func (c *catalogClient) local(name string) (*catalog.Stream, bool) {
	shard, ok := c.replica(c.shardOf(name))
	if !ok {
		return nil, false
	}
	return shard.Get(name)
}

// replica is the voting replica of a shard on this node, if there is one.
func (c *catalogClient) replica(shard int) (*catalog.Machine, bool) {
	g, ok := c.b.cfg.Groups.Group(ring.CatalogGroup(c.b.cfg.Mesh(), shard))
	if !ok || g.Status().Role == replica.RoleLearner {
		return nil, false
	}
	m, ok := g.StateMachine().(*catalog.Machine)
	return m, ok
}

// cachedStream is the definition that the cache holds, however old, or nil.
func (c *catalogClient) cachedStream(name string) *catalog.Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.cached[name]; e != nil {
		return e.stream
	}
	return nil
}

// refresh asks again in the background; only a certain answer changes the cache.
func (c *catalogClient) refresh(ctx context.Context, name string, e *cachedStream, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := c.get(ctx, name) // an error other than not-found leaves the old definition, by design
	if err != nil && wire.KindOf(err) != wire.KindNotFound {
		c.noteSilence()
	}
	c.mu.Lock()
	e.refreshing = nil
	c.mu.Unlock()
	close(done)
}

// put remembers a definition, unless a newer one is known; nil forgets it. The publish sessions of an incarnation that is no more
// are ended.
func (c *catalogClient) put(name string, s *catalog.Stream) {
	c.mu.Lock()
	old := c.cached[name]
	switch {
	case s == nil:
		delete(c.cached, name)
	case old != nil && s.Version < old.stream.Version: // a late answer
		c.mu.Unlock()
		return
	default:
		if len(c.cached) >= maxCachedStreams {
			clear(c.cached)
		}
		c.cached[name] = &cachedStream{stream: s, at: time.Now()}
	}
	c.mu.Unlock()
	if s != nil && old != nil && old.stream.ID != s.ID {
		c.b.dropSessions(old.stream)
	}
}

// gone notes that the catalog does not know the stream. before is the definition that was cached when it was asked: one that came
// since may be of a stream created since.
func (c *catalogClient) gone(name string, before *catalog.Stream) {
	c.mu.Lock()
	e := c.cached[name]
	if e == nil || before == nil || e.stream.ID != before.ID {
		c.mu.Unlock()
		return
	}
	delete(c.cached, name)
	c.mu.Unlock()
	c.b.dropSessions(before)
}

// forget drops the cached definition that a removed group belonged to.
func (c *catalogClient) forget(g ring.GroupID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, e := range c.cached {
		for i := range e.stream.Partitions {
			if e.stream.Partitions[i].Group == g {
				delete(c.cached, name)
				return
			}
		}
	}
}

// recheck asks in the background whether a group that has no owner still belongs to its stream, and ends its session if not.
func (c *catalogClient) recheck(name string, g ring.GroupID) {
	c.b.spawn(func(life context.Context) {
		ctx, cancel := context.WithTimeout(life, 5*time.Second)
		defer cancel()
		if gone, _ := c.lost(ctx, name, g); gone { // without an answer nothing is certain
			c.b.dropSession(g)
		}
	})
}

// lost asks whether a group belongs to its stream no more: the stream was deleted, and perhaps created again.
func (c *catalogClient) lost(ctx context.Context, name string, g ring.GroupID) (bool, error) {
	s, err := c.get(ctx, name)
	if err != nil {
		return wire.KindOf(err) == wire.KindNotFound, err
	}
	return !slices.ContainsFunc(s.Partitions, func(p catalog.Partition) bool { return p.Group == g }), nil
}

// command proposes a catalog command. It may be repeated: creation carries its incarnation id, updates their version.
func (c *catalogClient) command(ctx context.Context, name string, cmd catalog.Command, safe bool) (catalogResponse, error) {
	entry, err := catalog.Encode(cmd)
	if err != nil {
		return catalogResponse{}, err
	}
	resp, err := c.ask(ctx, catalogRequest{Op: opCatalogCommand, Shard: c.shardOf(name), Name: name, Entry: entry}, safe)
	c.put(name, nil)
	return resp, err
}

// listShard reads all definitions of one shard.
func (c *catalogClient) listShard(ctx context.Context, shard int) ([]*catalog.Stream, error) {
	var out []*catalog.Stream
	after := ""
	for {
		resp, err := c.ask(ctx, catalogRequest{Op: opCatalogList, Shard: shard, After: after}, true)
		if err != nil {
			return nil, err
		}
		for _, raw := range resp.Streams {
			s := new(catalog.Stream)
			if err := wire.Unmarshal(raw, s); err != nil {
				return nil, err
			}
			out = append(out, s)
			after = s.Name
		}
		if !resp.More || len(resp.Streams) == 0 {
			return out, nil
		}
	}
}

// HandleCatalog answers MethodCatalog on the shard's owner.
func (b *Broker) HandleCatalog(ctx context.Context, _ ring.NodeID, body []byte) ([]byte, error) {
	var req catalogRequest
	if err := wire.Unmarshal(body, &req); err != nil {
		return nil, err
	}
	if req.Shard < 0 || req.Shard >= b.cfg.CatalogShards {
		return nil, wire.Errorf(wire.KindInvalid, "", "catalog shard %d of %d does not exist", req.Shard, b.cfg.CatalogShards)
	}
	g, err := b.localOwner(ring.CatalogGroup(b.cfg.Mesh(), req.Shard))
	if err != nil {
		return nil, err
	}
	shard, ok := g.StateMachine().(*catalog.Machine)
	if !ok {
		return nil, wire.Errorf(wire.KindInternal, "", "group %s is no catalog shard", g.Status().Group)
	}
	var resp catalogResponse
	if req.Op == opCatalogCommand {
		resp, err = b.runCatalogCommand(ctx, g, req)
	} else if err = g.ReadIndex(ctx); err == nil {
		resp, err = readCatalog(shard, req)
	}
	if err != nil {
		return nil, err
	}
	return wire.Marshal(&resp)
}

func readCatalog(shard *catalog.Machine, req catalogRequest) (resp catalogResponse, err error) {
	switch req.Op {
	case opCatalogGet:
		s, ok := shard.Get(req.Name)
		if !ok {
			return resp, streamNotFound(req.Name)
		}
		resp.Stream = s
	case opCatalogList:
		size := 0
		for _, s := range shard.List() {
			if s.Name <= req.After {
				continue
			}
			raw, err := wire.Marshal(s)
			if err != nil {
				return resp, err
			}
			if size += len(raw); size > listPageBytes && len(resp.Streams) > 0 {
				resp.More = true
				break
			}
			resp.Streams = append(resp.Streams, raw)
		}
	case opCatalogFates:
		if len(req.IDs) > maxFates {
			return resp, wire.Errorf(wire.KindInvalid, "", "%d stream ids asked at once; at most %d", len(req.IDs), maxFates)
		}
		for _, id := range req.IDs {
			if shard.Fate(id) != catalog.FateAlive {
				resp.Dead = append(resp.Dead, id)
			}
		}
	default:
		return resp, wire.Errorf(wire.KindInvalid, "", "catalog operation %d is not known to this version", req.Op)
	}
	return resp, nil
}

func streamNotFound(name string) error {
	return wire.Errorf(wire.KindNotFound, wire.CodeStreamNotFound, "stream %q does not exist; create it with PUT /v1/streams/%s", name, name)
}
