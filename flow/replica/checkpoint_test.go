package replica

import (
	"context"
	"testing"
	"testing/synctest"
)

// gatedStore holds a flush back when it has done its work.
type gatedStore struct {
	*memStore
	flushed, leave chan struct{}
}

func (s *gatedStore) Flush(ctx context.Context) error {
	err := s.memStore.Flush(ctx)
	close(s.flushed)
	<-s.leave
	return err
}

func TestCheckpointReleasesNothingOfAReplicaThatWasBornMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 1, 7)
		n := m.nodes[0]
		n.journal.trim.Store(true)
		s := &gatedStore{n.store, make(chan struct{}), make(chan struct{})}
		m.tune = func(c *Config) { c.Store = s }
		n.start()
		g := testGroup(1)
		m.found(g, 0)
		for i := range 5 {
			m.propose(g, value(i))
		}
		checked := make(chan error, 1)
		go func() { checked <- n.host.Checkpoint(context.Background()) }()
		<-s.flushed
		if err := n.host.Remove(context.Background(), g); err != nil {
			t.Fatal(err)
		}
		b := m.birth(g, 0)
		b.Members[0].ID, b.Self = 2, 2
		if err := n.host.Create(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			m.propose(g, value(i))
		}
		close(s.leave)
		if err := <-checked; err != nil {
			t.Fatal(err)
		}
		n.store.loseAll = true // nothing of the new replica was flushed
		m.tune = nil
		n.crash()
		n.start()
		if _, ok := n.host.Group(g); !ok {
			t.Fatal("the journal let go of entries that nothing else holds")
		}
		m.owner(g)
		if got := n.bulk(g).values(); len(got) != 10 {
			t.Fatalf("%d values", len(got))
		}
		m.stop()
	})
}
