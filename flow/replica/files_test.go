package replica

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
)

// A single voter on real files: state and log survive restarts, with the journal trimmed behind checkpoints.
func TestReplicaOnRealFilesSurvivesRestarts(t *testing.T) {
	dir := t.TempDir()
	m := newMesh(t, 1, 1)
	n := m.nodes[0]
	n.journal.Close()
	n.journal = nil
	g := testGroup(1)
	for round := range 3 {
		journal, err := log.OpenJournal(log.JournalConfig{Dir: dir + "/journal", FileBytes: 1 << 20, RetainBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		store, err := log.OpenStore(log.StoreConfig{Dir: dir + "/state"})
		if err != nil {
			t.Fatal(err)
		}
		m.tune = func(c *Config) {
			c.Journal, c.Store = journal, store
			c.Factories = map[GroupKind]Factory{KindPartition: func(b Birth, prefix []byte) (StateMachine, error) {
				r := &recorder{f: n.bulk(b.Group), key: append(prefix, 'n')}
				v, ok, err := store.Get(r.key)
				if ok {
					r.count = beUint64(v)
				}
				return r, err
			}}
		}
		n.start()
		m.found(g, 0)
		own := realOwner(t, n, g)
		for i := range 100 {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			o := own.ProposeWait(ctx, append([]byte(value(100*round+i)), make([]byte, 10<<10)...))
			cancel()
			if o.Err != nil || o.Result != uint64(100*round+i+1) {
				t.Fatalf("round %d, entry %d: %+v", round, i, o)
			}
			if i%40 == 39 {
				if err := n.host.Checkpoint(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
		n.stop()
		if err := journal.Close(); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, v := range n.bulk(g).values() {
		if v[:5] != fmt.Sprintf("v%04d", i) {
			t.Fatalf("position %d holds %s", i, v[:5])
		}
	}
}

func realOwner(t *testing.T, n *node, id ring.GroupID) *Group {
	t.Helper()
	for range 1000 {
		if g, ok := n.host.Group(id); ok && g.Status().Ready {
			return g
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no owner")
	return nil
}
