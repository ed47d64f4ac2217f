package flow

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

const (
	birthEvery   = time.Second     // how often a shard's owner looks for births that nobody confirmed
	fateEvery    = 10 * birthEvery // how often a node asks whether the streams of its replicas still exist
	birthTimeout = 3 * time.Second // one birth request
	birthsAtOnce = 16
)

// birthKeeper brings replicas into being and to an end. The owner of a catalog shard tells the founding members of its streams'
// partitions to be born, until each confirmed, as far as their nodes are there; every node asks whether the streams of its replicas are still alive. What is
// confirmed is forgotten with the ownership of the shard: births are idempotent.
type birthKeeper struct {
	b         *Broker
	wake      chan struct{}  // fates are to be asked now
	confirmed *confirmations // by run, and by the catalog commands served here
}

func newBirthKeeper(b *Broker) *birthKeeper {
	return &birthKeeper{b: b, wake: make(chan struct{}, 1), confirmed: newConfirmations()}
}

func (k *birthKeeper) run(ctx context.Context) error {
	t := time.NewTicker(birthEvery)
	defer t.Stop()
	asked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-t.C:
			k.pushAll(ctx)
			if now.Sub(asked) > fateEvery-birthEvery/2 { // by the clock: slow births swallow ticks
				asked = now
				k.askFates(ctx)
			}
		case <-k.wake:
			k.askFates(ctx)
		}
	}
}

// pushAll pushes the unconfirmed births of every shard owned here.
func (k *birthKeeper) pushAll(ctx context.Context) {
	alive := map[ring.GroupID]bool{}
	for i := range k.b.cfg.CatalogShards {
		g, err := k.b.localOwner(ring.CatalogGroup(k.b.cfg.Mesh(), i))
		if err != nil {
			continue
		}
		shard, ok := g.StateMachine().(*catalog.Machine)
		if !ok {
			continue
		}
		term := g.Status().Term
		var todo []replica.Birth
		for _, birth := range shard.Births() {
			alive[birth.Group] = true
			if !k.confirmed.all(birth, term) {
				todo = append(todo, birth)
			}
		}
		k.push(ctx, todo, term)
	}
	k.confirmed.retain(alive) // a group born meanwhile is only told once more
}

// push tells each member of each birth to be born, several at once; it returns when all answered or timed out. A member whose node is not
// there is passed over, for it may never come back; it is told once it does.
func (k *birthKeeper) push(ctx context.Context, births []replica.Birth, term uint64) {
	if len(births) == 0 {
		return
	}
	live := map[ring.NodeID]bool{}
	for _, n := range k.b.cfg.Directory.Live() {
		live[n] = true
	}
	var work errgroup.Group
	work.SetLimit(birthsAtOnce)
	for _, birth := range births {
		for _, m := range birth.Members {
			if !live[m.Node] || k.confirmed.has(birth.Group, m.ID, term) {
				continue
			}
			birth.Self = m.ID
			mine := birth
			work.Go(func() error {
				if k.pushOne(ctx, mine, m) {
					k.confirmed.add(mine.Group, m.ID, term)
				}
				return nil
			})
		}
	}
	_ = work.Wait() // the functions return no error: what failed is tried again
}

func (k *birthKeeper) pushOne(ctx context.Context, birth replica.Birth, m replica.Member) bool {
	body, err := wire.Marshal(&birth)
	if err != nil {
		k.b.log.Error("birth record cannot be encoded", "group", birth.Group, "err", err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, birthTimeout)
	defer cancel()
	_, err = k.b.cfg.Peers.Call(ctx, m.Node, wire.ClassControl, wire.MethodFounding, body)
	if err != nil {
		k.b.log.Debug("birth not confirmed yet", "group", birth.Group, "peer", m.Node, "err", err)
	}
	// Fenced: the replica was there and has been removed; it must never come back.
	return err == nil || wire.KindOf(err) == wire.KindFenced
}

// runCatalogCommand proposes a command on the shard's owner and does what follows from it before the answer goes out: new
// partitions are born, so that the first publish finds an owner; nodes holding a deleted stream are told to ask.
func (b *Broker) runCatalogCommand(ctx context.Context, g *replica.Group, req catalogRequest) (resp catalogResponse, err error) {
	cmd, err := catalog.Decode(req.Entry)
	if err != nil {
		return resp, err
	}
	switch cmd.(type) {
	case catalog.BeginImport, catalog.EndImport:
		if err := b.cfg.RequireVersion(ctx, wire.Version2); err != nil {
			return resp, err
		}
	}
	out := g.ProposeWait(ctx, req.Entry)
	if out.Err != nil {
		return resp, out.Err
	}
	res, ok := out.Result.(catalog.Result)
	if !ok {
		return resp, wire.Errorf(wire.KindInternal, "", "catalog answered %T", out.Result)
	}
	if res.Err != nil {
		return resp, res.Err
	}
	switch cmd.(type) {
	case catalog.CreateStream, catalog.BeginImport:
		if res.Created {
			b.births.push(ctx, birthsOf(res.Stream), g.Status().Term)
		}
	case catalog.DeleteStream:
		b.tellDeleted(ctx, res.Stream)
	}
	return catalogResponse{Stream: res.Stream, Created: res.Created}, nil
}

func birthsOf(s *catalog.Stream) []replica.Birth {
	out := make([]replica.Birth, len(s.Partitions))
	for i := range s.Partitions {
		out[i] = s.Partitions[i].Birth
	}
	return out
}

// tellDeleted makes the live nodes ask for fates now instead of at their next turn. Best effort: the turn comes anyway.
func (b *Broker) tellDeleted(ctx context.Context, s *catalog.Stream) {
	body, err := wire.Marshal(&partitionRequest{Op: opAskFates})
	if err != nil || s == nil {
		return
	}
	var work errgroup.Group
	work.SetLimit(birthsAtOnce)
	for _, n := range b.cfg.Directory.Live() {
		work.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := b.cfg.Peers.Call(ctx, n, wire.ClassControl, wire.MethodPartition, body)
			return err
		})
	}
	if err := work.Wait(); err != nil {
		b.log.Debug("a node was not told of a deleted stream; it asks by itself", "stream", s.Name, "err", err)
	}
}

// askSoon makes run ask for fates at once.
func (k *birthKeeper) askSoon() {
	select {
	case k.wake <- struct{}{}:
	default: // one question covers all
	}
}

// askFates removes the local replicas of streams that the catalog says are gone. Only a quorum's word counts: without an
// answer nothing is removed.
func (k *birthKeeper) askFates(ctx context.Context) {
	type holding struct {
		ids   map[ring.StreamID][]ring.GroupID
		order []ring.StreamID
	}
	shards := map[int]*holding{}
	for _, g := range k.b.cfg.Groups.Groups() {
		p, ok := g.StateMachine().(*partition.Partition)
		if !ok {
			continue
		}
		spec := p.Spec()
		i := k.b.catalog.shardOf(spec.Name)
		if shards[i] == nil {
			shards[i] = &holding{ids: map[ring.StreamID][]ring.GroupID{}}
		}
		if len(shards[i].ids[spec.Stream]) == 0 {
			shards[i].order = append(shards[i].order, spec.Stream)
		}
		shards[i].ids[spec.Stream] = append(shards[i].ids[spec.Stream], g.Status().Group)
	}
	for _, i := range slices.Sorted(maps.Keys(shards)) {
		h := shards[i]
		for len(h.order) > 0 {
			n := min(len(h.order), maxFates)
			actx, cancel := context.WithTimeout(ctx, attemptTimeout)
			resp, err := k.b.catalog.ask(actx, catalogRequest{Op: opCatalogFates, Shard: i, IDs: h.order[:n]}, true)
			cancel()
			h.order = h.order[n:]
			if err != nil {
				continue
			}
			for _, dead := range resp.Dead {
				k.removeAll(ctx, h.ids[dead])
			}
		}
	}
}

func (k *birthKeeper) removeAll(ctx context.Context, groups []ring.GroupID) {
	for _, g := range groups {
		if err := k.b.cfg.Groups.Remove(ctx, g); err != nil {
			k.b.log.Warn("replica of a deleted stream cannot be removed yet", "group", g, "err", err)
			continue
		}
		k.b.dropSession(g)
		k.b.catalog.forget(g)
		k.b.log.Info("removed the replica of a deleted stream", "group", g)
	}
}
