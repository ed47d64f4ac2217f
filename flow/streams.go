package flow

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow/backup"
	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Create makes a stream; see Streams.
func (b *Broker) Create(ctx context.Context, name string, cfg StreamConfig, mode CreateMode) (StreamInfo, bool, error) {
	cmd, err := b.newStream(name, cfg.WithDefaults(), mode)
	if err != nil {
		return StreamInfo{}, false, err
	}
	resp, err := b.catalog.command(ctx, name, cmd, true)
	if err != nil {
		return StreamInfo{}, false, err
	}
	b.catalog.put(name, resp.Stream)
	return b.info(resp.Stream), resp.Created, nil
}

// newStream chooses everything that is random, timed or placed about a new stream.
func (b *Broker) newStream(name string, cfg StreamConfig, mode CreateMode) (catalog.CreateStream, error) {
	if err := cfg.Validate(); err != nil {
		return catalog.CreateStream{}, err
	}
	cmd := catalog.CreateStream{Name: name, ID: ring.NewStreamID(), Config: cfg, NowMS: b.cfg.Now().UnixMilli()}
	if mode == CreateOnly {
		cmd.Mode = catalog.CreateOnly
	}
	_, _ = rand.Read(cmd.Seed[:]) // never fails: crypto/rand ends the process instead
	var parts []backup.Partition
	for i, r := range ring.EvenRanges(cfg.Partitions) {
		parts = append(parts, backup.Partition{ID: ring.PartitionID(i), Range: r})
	}
	err := b.place(&cmd, parts)
	return cmd, err
}

// place gives a new stream its partitions, with their founding members.
func (b *Broker) place(cmd *catalog.CreateStream, parts []backup.Partition) error {
	groups := make([]ring.GroupID, len(parts))
	for i := range groups {
		groups[i] = ring.PartitionGroup(cmd.ID, parts[i].ID)
	}
	places := b.cfg.Directory.Place(groups, cmd.Config.Replicas) // together, so that the stream is born even
	for i, p := range parts {
		spec, err := specOf(cmd, p.ID, p.Range)
		if err != nil {
			return err
		}
		birth := replica.Birth{Group: groups[i], Kind: replica.KindPartition, Spec: spec, Members: founders(places[i])}
		if len(birth.Members) == 0 {
			return wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, "no live node to place partition %d on", p.ID)
		}
		cmd.Partitions = append(cmd.Partitions, catalog.Partition{ID: p.ID, Range: p.Range, Group: groups[i], State: catalog.Open, Birth: birth})
	}
	return nil
}

// founders numbers the founding replicas; of two nodes the second is a learner, because two voters tolerate no loss.
func founders(nodes []ring.NodeID) []replica.Member {
	members := make([]replica.Member, len(nodes))
	for i, n := range nodes {
		members[i] = replica.Member{ID: ring.ReplicaID(i + 1), Node: n, Learner: len(nodes) == 2 && i == 1}
	}
	return members
}

// Get reads a stream's definition; see Streams.
func (b *Broker) Get(ctx context.Context, name string) (StreamInfo, error) {
	s, err := b.catalog.get(ctx, name)
	if err != nil {
		return StreamInfo{}, err
	}
	return b.info(s), nil
}

// List reads all definitions; see Streams. Of a shard whose owner does not answer it takes the word of a replica here.
func (b *Broker) List(ctx context.Context) (StreamList, error) {
	actx, cancel := context.WithTimeout(ctx, listPatience(ctx))
	defer cancel()
	shards, errs := make([][]*catalog.Stream, b.cfg.CatalogShards), make([]error, b.cfg.CatalogShards)
	var work sync.WaitGroup
	for i := range shards {
		work.Go(func() { shards[i], errs[i] = b.catalog.listShard(actx, i) })
	}
	work.Wait()
	silent, copied, last := 0, 0, error(nil)
	for i, err := range errs {
		if err == nil {
			continue
		}
		if k := wire.KindOf(err); k != wire.KindUnavailable && k != wire.KindClosed {
			return StreamList{}, err
		}
		silent, last = silent+1, err
		if shard, ok := b.catalog.replica(i); ok {
			shards[i] = shard.List()
			copied++
		}
	}
	var out StreamList
	switch {
	case silent == 0:
	case ctx.Err() != nil || silent == len(shards) && copied == 0:
		return out, last
	default:
		out.Incomplete = fmt.Sprintf("%d of %d shards of the catalog do not answer: streams of %d of them are told from a copy on this node, "+
			"which may be old, those of %d are missing", silent, len(shards), copied, silent-copied)
	}
	for _, s := range slices.Concat(shards...) {
		out.Streams = append(out.Streams, b.info(s))
	}
	slices.SortFunc(out.Streams, func(a, b StreamInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// listPatience is how long a list waits for shards that do not answer: half of what ctx leaves, for there is more to be done then.
func listPatience(ctx context.Context) time.Duration {
	if until, ok := ctx.Deadline(); ok {
		return time.Until(until) / 2
	}
	return 2 * time.Second
}

// Update replaces the mutable part of a config; see Streams.
func (b *Broker) Update(ctx context.Context, name string, version uint64, cfg StreamConfig) (StreamInfo, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return StreamInfo{}, err
	}
	cmd := catalog.UpdateStream{Name: name, Version: version, Config: cfg, NowMS: b.cfg.Now().UnixMilli()}
	resp, err := b.catalog.command(ctx, name, cmd, version == 0)
	if err != nil {
		return StreamInfo{}, err
	}
	return b.info(resp.Stream), nil
}

// Delete removes a stream; see Streams. Its replicas are removed everywhere soon after.
func (b *Broker) Delete(ctx context.Context, name string) error {
	s, err := b.catalog.get(ctx, name)
	if err != nil {
		return err
	}
	_, err = b.catalog.command(ctx, name, catalog.DeleteStream{Name: name, ID: s.ID, NowMS: b.cfg.Now().UnixMilli()}, false)
	if err == nil {
		b.dropSessions(s)
	}
	return err
}

// info is a definition with what this node believes of owners and replicas.
func (b *Broker) info(s *catalog.Stream) StreamInfo {
	out := StreamInfo{Name: s.Name, ID: s.ID, Version: s.Version, Created: time.UnixMilli(s.CreatedMS).UTC(), Config: s.Config}
	for i := range s.Partitions {
		p := &s.Partitions[i]
		pi := PartitionInfo{ID: p.ID, Group: p.Group, Range: p.Range, State: p.State.String(), Parents: p.Parents, Children: p.Children}
		members := p.Birth.Members
		if g, ok := b.cfg.Groups.Group(p.Group); ok {
			st := g.Status()
			members = st.Members
			if !st.Owner.IsZero() {
				pi.Owner, pi.Term = b.cfg.Directory.Name(st.Owner), st.Term
			}
		}
		if owner, term, ok := b.cfg.Directory.Owner(p.Group); ok && term > pi.Term {
			pi.Owner, pi.Term = b.cfg.Directory.Name(owner), term
		}
		for _, m := range members {
			pi.Replicas = append(pi.Replicas, b.cfg.Directory.Name(m.Node))
		}
		out.Partitions = append(out.Partitions, pi)
	}
	return out
}

// OwnerName names the node believed to own a partition, from memory alone; "" where nothing is known. Safe for concurrent use.
func (b *Broker) OwnerName(stream string, id ring.PartitionID) string {
	s := b.catalog.cachedStream(stream)
	if s == nil {
		return ""
	}
	p, ok := s.Partition(id)
	if !ok {
		return ""
	}
	owner, ok := b.owners.guess(p.Group)
	if !ok {
		return ""
	}
	return b.cfg.Directory.Name(owner)
}
