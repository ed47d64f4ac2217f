package dev

import (
	"context"
	"fmt"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// whole says what is missing, or nil.
func (m *Mesh) whole(ctx context.Context) error {
	for i := range m.o.Nodes {
		if err := m.nodeWhole(ctx, i); err != nil {
			return fmt.Errorf("%s: %w", m.Name(i), err)
		}
	}
	return nil
}

// nodeWhole: the node is ready, it sees all others, and every replica group that somebody owns has as many replicas as the mesh
// has room for, up to three: then no single node is needed any more.
func (m *Mesh) nodeWhole(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := client.New(client.Config{Servers: []string{m.Address(i)}, GiveUpUnreachable: true})
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
	alive, owned, replicas := 0, 0, 0
	for _, mb := range members {
		if mb.State == "alive" {
			alive++
			owned += mb.Owned
			replicas += mb.Replicas
		}
	}
	if alive != m.o.Nodes {
		return fmt.Errorf("sees %d of %d nodes", alive, m.o.Nodes)
	}
	if want := owned * min(m.o.Nodes, 3); owned == 0 || replicas < want {
		return fmt.Errorf("knows of %d of %d copies", replicas, want)
	}
	return nil
}
