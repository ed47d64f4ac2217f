package flow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// TestListTellsWhatIsKnownAndThatItIsNotAll: of two shards of the catalog one was never founded, and nobody answers for it.
func TestListTellsWhatIsKnownAndThatItIsNotAll(t *testing.T) {
	inMesh(t, 3, func(c *Config) { c.CatalogShards = 2 }, func(t *testing.T, m *mesh) {
		name := "s"
		for i := 0; ring.CatalogShard(name, 2) != 0; i++ {
			name = fmt.Sprintf("s%d", i)
		}
		m.create(name, StreamConfig{Partitions: 1})
		for _, nd := range m.nodes {
			began := time.Now()
			list, err := nd.broker.List(m.within(4 * time.Second))
			if err != nil || len(list.Streams) != 1 || list.Streams[0].Name != name ||
				!strings.Contains(list.Incomplete, "1 of 2 shards of the catalog do not answer") || !strings.Contains(list.Incomplete, "those of 1 are missing") {
				t.Errorf("node %d: %+v, %v", nd.i, list, err)
			}
			if took := time.Since(began); took > 2500*time.Millisecond {
				t.Errorf("it took %v of 4 s, and left too little for the rest", took)
			}
		}
		// A node that is cut off tells what its copy of a shard has, one without a copy that nothing is known.
		shard := ring.CatalogGroup(m.id, 0)
		bare := m.nodes[(m.owner(shard).i+1)%3]
		if err := bare.host.Remove(m.within(time.Second), shard); err != nil {
			t.Fatal(err)
		}
		cut := m.owner(shard)
		m.isolate(cut.i, true)
		m.isolate(bare.i, true)
		list, err := cut.broker.List(m.within(4 * time.Second))
		if err != nil || len(list.Streams) != 1 || !strings.Contains(list.Incomplete, "streams of 1 of them are told from a copy") {
			t.Errorf("cut off: %+v, %v", list, err)
		}
		if list, err := bare.broker.List(m.within(4 * time.Second)); wire.KindOf(err) != wire.KindUnavailable || len(list.Streams) > 0 {
			t.Errorf("without a copy: %+v, %v", list, err)
		}
	})
}
