package dev

import (
	"context"
	"fmt"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// whole says what is missing, or nil.
func (m *Mesh) whole(ctx context.Context) error {
	parts := m.parts()
	for _, i := range parts {
		if err := m.nodeWhole(ctx, i, parts); err != nil {
			return fmt.Errorf("%s: %w", m.Name(i), err)
		}
	}
	return nil
}

// nodeWhole: the node is ready, it sees all others, and the replica groups that somebody owns have as many replicas as they want and
// the mesh has room for: then no single node is needed any more, but for streams that want one copy.
func (m *Mesh) nodeWhole(ctx context.Context, i int, parts []int) error {
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
	streams, err := c.ListStreams(ctx)
	if err != nil {
		return err
	}
	alive, owned, replicas := map[string]bool{}, 0, 0
	for _, mb := range members {
		if mb.State == "alive" {
			alive[mb.Node] = true
			owned += mb.Owned
			replicas += mb.Replicas
		}
	}
	seen := 0
	for _, other := range parts {
		if alive[m.Name(other)] {
			seen++
		}
	}
	if seen < len(parts) {
		return fmt.Errorf("sees %d of %d nodes", seen, len(parts))
	}
	if want := wantedReplicas(len(parts), owned, streams); owned == 0 || replicas < want {
		return fmt.Errorf("knows of %d of %d copies", replicas, want)
	}
	return nil
}

// wantedReplicas is how many replicas so many groups have on so many nodes: three each, where their stream wants no other number.
func wantedReplicas(nodes, groups int, streams []client.Stream) int {
	const usual = 3 // also the catalog's groups
	want := groups * min(nodes, usual)
	for _, st := range streams {
		if copies, ok := st.Config["replicas"].(float64); ok {
			want += len(st.Partitions) * (min(nodes, int(copies)) - min(nodes, usual))
		}
	}
	return want
}
