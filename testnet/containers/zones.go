package containers

import (
	"context"
	"errors"
	"fmt"

	"github.com/skeinmesh/skein/node/client"
)

// Zones is how many zones the nodes of the compose file lie in: five as well as six.
const Zones = 3

// Catalog is the stream whose partitions are the catalog's shards.
const Catalog = "_mesh"

// Spread asks the mesh whether so many nodes are alive, in all Zones, and each partition of the streams has its copies in different ones.
// Its error names what is not so yet. Copies that are still catching up do not count.
func Spread(ctx context.Context, c *client.Client, nodes int, streams ...string) error {
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	zoneOf, zones := map[string]string{}, map[string]bool{}
	for _, m := range members {
		if m.State == "alive" {
			zoneOf[m.Node], zones[m.Zone] = m.Zone, true
		}
	}
	if len(zoneOf) != nodes || len(zones) != Zones {
		return fmt.Errorf("%d nodes are alive, in %d zones: %v", len(zoneOf), len(zones), zoneOf)
	}
	for _, stream := range streams {
		parts, err := c.Partitions(ctx, stream)
		if err == nil {
			err = spread(zoneOf, parts)
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
	}
	return nil
}

// spread names the first partition whose copies lie in fewer zones than they could, or that has fewer copies than it should.
func spread(zoneOf map[string]string, parts []client.MeshPartition) error {
	all := map[string]bool{}
	for _, zone := range zoneOf {
		all[zone] = true
	}
	for _, p := range parts {
		in := map[string]bool{}
		for _, node := range p.Replicas {
			if zone, ok := zoneOf[node]; ok {
				in[zone] = true
			}
		}
		if want := min(p.Wanted, len(all)); len(in) < want {
			return fmt.Errorf("partition %d lies on %v: in %d zones, and could lie in %d", p.Partition, p.Replicas, len(in), want)
		}
	}
	if len(parts) == 0 {
		return errors.New("no partition is known")
	}
	return nil
}
