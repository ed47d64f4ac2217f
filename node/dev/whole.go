package dev

import (
	"context"
	"fmt"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// catalogStream is the system stream whose partitions are the catalog.
const catalogStream = "_mesh"

// whole says what is missing, or nil.
func (m *Mesh) whole(ctx context.Context) error {
	for i := range m.o.Nodes {
		if err := m.nodeWhole(ctx, i); err != nil {
			return fmt.Errorf("%s: %w", m.Name(i), err)
		}
	}
	return nil
}

func (m *Mesh) nodeWhole(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := client.New(client.Config{Servers: []string{m.Address(i)}})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Ready(ctx); err != nil {
		return err
	}
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	alive := 0
	for _, mb := range members {
		if mb.State == "alive" {
			alive++
		}
	}
	if alive != m.o.Nodes {
		return fmt.Errorf("sees %d of %d nodes", alive, m.o.Nodes)
	}
	shards, err := c.Partitions(ctx, catalogStream)
	if err != nil {
		return err
	}
	if len(shards) == 0 {
		return fmt.Errorf("does not know the catalog yet")
	}
	want := 1
	if m.o.Nodes >= 3 {
		want = 3
	}
	for _, s := range shards {
		if s.Owner == "" || len(s.Replicas) < want || want > 1 && len(s.Learners) > 0 {
			return fmt.Errorf("catalog shard %d has %d of %d voters", s.Partition, len(s.Replicas), want)
		}
	}
	return nil
}
