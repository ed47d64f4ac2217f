package flow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// Whoever creates, reads, changes and deletes streams, on whichever node, while nodes are cut off, crash and return, finds each name as if
// all of this happened one after the other: what was answered is seen by everybody who asks later, and what was refused by nobody.
//
// Recorded is what the catalog answers by a quorum's word: Create, Get, Delete, Update of a named version, and List where it is complete,
// each name by itself. Not recorded, because they promise less: a list that says that it is incomplete, the definitions that publishers
// and readers use (catalogClient.lookup), and what a definition tells of owners and replicas; and Update of any version (0), which is
// repeated when its outcome is unknown, so that it may undo what another client changed meanwhile. Answers are lost here, and requests; none
// arrives after its sender gave it up for lost.
func TestCatalogIsLinearizableWhileNodesAreCutOffAndCrash(t *testing.T) {
	seeds := []uint64{1, 2, 3}
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seeds = []uint64{n}
	} else if n, err := strconv.Atoi(os.Getenv("N")); err == nil {
		seeds = nil
		for i := range n {
			seeds = append(seeds, uint64(1000+i))
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			history := &check.Catalog{}
			lossy := func(c *Config) { c.Peers = newForgetful(c.Peers, rand.New(rand.NewPCG(seed, uint64(c.Self[15])))) }
			inMesh(t, 3, lossy, func(t *testing.T, m *mesh) { disputeNames(t, m, history, seed) })
			for _, v := range check.CheckCatalog(history, 10*time.Second) {
				t.Error(v)
			}
			answered, refused, unknown := history.Counts()
			t.Logf("%d operations were answered, %d refused, %d of unknown outcome", answered, refused, unknown)
			if answered < 100 {
				t.Error("too few to tell anything")
			}
			if t.Failed() {
				t.Logf("replay the choices, though not the timing: SEED=%d go test ./flow -run '^TestCatalogIsLinearizableWhileNodesAreCutOffAndCrash$'", seed)
			}
		})
	}
}

// forgetful loses one answer of the catalog in fifteen, and tells so after a while.
type forgetful struct {
	Peers
	mu  *sync.Mutex
	rng *rand.Rand
}

func newForgetful(p Peers, r *rand.Rand) *forgetful { return &forgetful{p, new(sync.Mutex), r} }

func (p *forgetful) Call(ctx context.Context, to ring.NodeID, c wire.Class, m wire.Method, body []byte) ([]byte, error) {
	answer, err := p.Peers.Call(ctx, to, c, m, body)
	p.mu.Lock()
	lost, late := p.rng.IntN(15) == 0, time.Duration(p.rng.IntN(500))*time.Millisecond
	p.mu.Unlock()
	if m != wire.MethodCatalog || !lost {
		return answer, err
	}
	virtual.Sleep(late)
	return nil, errGone
}

var disputed = []string{"orders", "users", "logs"}

// disputeNames has three clients on each node, one of which only looks, work on the same names while nodes fail, heals the mesh, and has all nodes read all names.
func disputeNames(t *testing.T, m *mesh, history *check.Catalog, seed uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 3 * len(m.nodes) {
		c := &catalogUser{t: t, nd: m.nodes[i%len(m.nodes)], history: history, rng: rand.New(rand.NewPCG(seed, uint64(i+1))),
			known: map[string]uint64{}, retention: int64(i+1) * 1_000_000}
		act, pause := c.change, 500
		if i >= 2*len(m.nodes) {
			act, pause = c.look, 100
		}
		all.Go(func() {
			for ctx.Err() == nil {
				if b, up := c.nd.door(); up {
					act(b, disputed[c.rng.IntN(len(disputed))])
				}
				virtual.Sleep(time.Duration(c.rng.IntN(pause)) * time.Millisecond)
			}
		})
	}
	failNodes(m, rand.New(rand.NewPCG(seed, 0)))
	cancel()
	all.Wait()
	m.owner(ring.CatalogGroup(m.id, 0))
	for _, nd := range m.nodes {
		c := &catalogUser{t: t, nd: nd, history: history}
		for _, name := range disputed {
			if err := c.get(m.within(10*time.Second), nd.broker, name); err != nil && wire.KindOf(err) != wire.KindNotFound {
				t.Errorf("node %d, after all is well again: %v", nd.i, err)
			}
		}
	}
}

// failNodes cuts nodes off and crashes them, most often the one that owns the catalog; at the end all are there.
func failNodes(m *mesh, r *rand.Rand) {
	pause := func(least, most int) { virtual.Sleep(time.Duration(least+r.IntN(most-least)) * time.Millisecond) }
	for range 6 {
		pause(300, 1000)
		i := r.IntN(len(m.nodes))
		if r.IntN(3) > 0 {
			i = m.owner(ring.CatalogGroup(m.id, 0)).i
		}
		switch r.IntN(4) {
		case 0:
			m.nodes[i].crash()
			pause(100, 1500)
			m.nodes[i].start()
		case 1: // no quorum
			other := (i + 1) % len(m.nodes)
			m.isolate(i, true)
			m.isolate(other, true)
			pause(100, 1500)
			m.isolate(other, false)
			m.isolate(i, false)
		default:
			m.isolate(i, true)
			pause(100, 2500)
			m.isolate(i, false)
		}
	}
}

// catalogUser works on stream definitions through one node, and records what it is told.
type catalogUser struct {
	t         *testing.T
	nd        *node
	history   *check.Catalog
	rng       *rand.Rand
	known     map[string]uint64 // the version of each name that it was told last
	retention int64             // another one for each change, of this client alone
}

// patience is mostly enough for a failover.
func (c *catalogUser) patience() (context.Context, context.CancelFunc) {
	d := 3 * time.Second
	if c.rng.IntN(3) == 0 {
		d = 200 * time.Millisecond
	}
	return context.WithTimeout(c.t.Context(), d)
}

func (c *catalogUser) change(b *Broker, name string) {
	ctx, cancel := c.patience()
	defer cancel()
	switch n := c.rng.IntN(8); {
	case n < 3:
		c.create(ctx, b, name)
	case n < 6 && c.known[name] > 0:
		c.update(ctx, b, name)
	default:
		c.delete(ctx, b, name)
	}
}

func (c *catalogUser) look(b *Broker, name string) {
	ctx, cancel := c.patience()
	defer cancel()
	if c.rng.IntN(5) == 0 {
		c.list(ctx, b)
		return
	}
	_ = c.get(ctx, b, name) // it is recorded
}

func (c *catalogUser) create(ctx context.Context, b *Broker, name string) {
	mode := CreateMode(c.rng.IntN(2))
	cfg := StreamConfig{Partitions: 1, Replicas: 1, RetentionMS: 1}
	if mode == CreateOnly {
		c.retention++
		cfg.RetentionMS = c.retention
	}
	k := c.history.Create(name, fmt.Sprint(cfg.RetentionMS), mode == CreateOnly)
	info, created, err := b.Create(ctx, name, cfg, mode)
	switch {
	case err != nil:
		c.failed(k, err)
	case created:
		k.Created(c.told(info))
	default:
		k.Found(c.told(info))
	}
}

func (c *catalogUser) get(ctx context.Context, b *Broker, name string) error {
	k := c.history.Get(name)
	info, err := b.Get(ctx, name)
	if err != nil {
		c.failed(k, err)
		return err
	}
	k.Found(c.told(info))
	return nil
}

func (c *catalogUser) update(ctx context.Context, b *Broker, name string) {
	c.retention++
	k := c.history.Update(name, c.known[name], fmt.Sprint(c.retention))
	info, err := b.Update(ctx, name, c.known[name], StreamConfig{Partitions: 1, Replicas: 1, RetentionMS: c.retention})
	if err != nil {
		c.failed(k, err)
		return
	}
	k.Found(c.told(info))
}

func (c *catalogUser) delete(ctx context.Context, b *Broker, name string) {
	k := c.history.Delete(name)
	if err := b.Delete(ctx, name); err != nil {
		c.failed(k, err)
		return
	}
	k.Done()
}

func (c *catalogUser) list(ctx context.Context, b *Broker) {
	asked := map[string]*check.CatalogCall{}
	for _, name := range disputed {
		asked[name] = c.history.Get(name)
	}
	all, err := b.List(ctx)
	if err != nil || all.Incomplete != "" {
		return
	}
	for _, info := range all.Streams {
		asked[info.Name].Found(c.told(info))
		delete(asked, info.Name)
	}
	for _, k := range asked {
		k.NotFound()
	}
}

// told is a definition in the history's words.
func (c *catalogUser) told(info StreamInfo) check.Definition {
	if c.known != nil {
		c.known[info.Name] = info.Version
	}
	return check.Definition{ID: info.ID.String(), Version: info.Version, Config: fmt.Sprint(info.Config.RetentionMS)}
}

// failed records an error for what it promises.
func (c *catalogUser) failed(k *check.CatalogCall, err error) {
	switch kind := wire.KindOf(err); {
	case kind == wire.KindNotFound:
		k.NotFound()
	case wire.CodeOf(err) == catalog.CodeDeleted:
		k.Unknown() // it was made, and is gone
	case kind == wire.KindConflict:
		k.Conflict()
	case kind == wire.KindUnavailable:
		k.Refused()
	case kind == wire.KindOutcomeUnknown:
		k.Unknown()
	default:
		c.t.Errorf("node %d: an error that Streams does not name: %v", c.nd.i, err)
	}
}
