package flow

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

// latePeers holds the owner's answer to the next question for a definition back, once hold was set, until late is closed.
type latePeers struct {
	Peers
	hold *atomic.Bool
	late chan struct{}
}

func (p *latePeers) Call(ctx context.Context, to ring.NodeID, c wire.Class, m wire.Method, body []byte) ([]byte, error) {
	answer, err := p.Peers.Call(ctx, to, c, m, body)
	var req catalogRequest
	answered := err == nil || wire.KindOf(err) == wire.KindNotFound
	if answered && m == wire.MethodCatalog && wire.Unmarshal(body, &req) == nil && req.Op == opCatalogGet && p.hold.Swap(false) {
		<-p.late
	}
	return answer, err
}

func TestLateAnswerOfTheCatalogDoesNotEndTheSessionsOfANewerIncarnation(t *testing.T) {
	for name, before := range map[string]bool{"there was none": false, "there was another": true} {
		t.Run(name, func(t *testing.T) {
			var hold atomic.Bool
			var late chan struct{}
			tune := func(c *Config) {
				late = make(chan struct{})
				c.Peers = &latePeers{c.Peers, &hold, late}
			}
			inMesh(t, 1, tune, func(t *testing.T, m *mesh) {
				b := m.nodes[0].broker
				m.owner(ring.CatalogGroup(m.id, 0))
				one := StreamConfig{Partitions: 1, Replicas: 1}
				if before {
					m.create("orders", one)
				}
				hold.Store(true)
				asked := make(chan error, 1)
				go func() {
					_, err := b.Get(t.Context(), "orders")
					asked <- err
				}()
				synctest.Wait()
				if before {
					if err := b.Delete(m.within(10*time.Second), "orders"); err != nil {
						t.Fatal(err)
					}
				}
				m.create("orders", one)
				m.put(0, "orders", "k", "a")
				m.nodes[0].lag.Store(int64(time.Second)) // the next event is on its way when the answer comes
				published := make(chan error, 1)
				go func() {
					_, err := b.Publish(m.within(10*time.Second), "orders", []batch.Record{event("k", "b")}, PublishOptions{})
					published <- err
				}()
				synctest.Wait()
				close(late)
				if err := <-asked; (wire.KindOf(err) == wire.KindNotFound) == before {
					t.Errorf("the question was answered with %v", err)
				}
				if err := <-published; err != nil {
					t.Errorf("publish: %v", err)
				}
				m.nodes[0].lag.Store(0)
			})
		})
	}
}

// A node that did not use a stream for a while, and holds nothing of it, knows the incarnation of before.
func TestStreamCreatedAnewLongAgoIsKnownEverywhere(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		one := StreamConfig{Partitions: 1, Replicas: 1}
		m.create("orders", one)
		for i := range m.nodes {
			m.put(i, "orders", "k", "old")
		}
		if err := m.nodes[0].broker.Delete(m.within(10*time.Second), "orders"); err != nil {
			t.Fatal(err)
		}
		m.create("orders", one)
		virtual.Sleep(cacheStale / 5)
		for i := range m.nodes {
			if got := m.readAll(i, "orders", earliest()); len(got) != 0 {
				t.Errorf("node %d reads %d events of a stream that is empty", i, len(got))
			}
		}
		virtual.Sleep(cacheStale / 5)
		for i := range m.nodes {
			m.put(i, "orders", "k", "new")
		}
	})
}

// The definition in the caches is fresh; who holds nothing of the stream learns only from the catalog that it is gone.
func TestReaderComesJustAfterTheStreamWasDeleted(t *testing.T) {
	for name, again := range map[string]bool{"and created again": true, "for good": false} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				one := StreamConfig{Partitions: 1, Replicas: 1}
				m.create("orders", one)
				for i := range m.nodes {
					m.put(i, "orders", "k", "old")
				}
				if err := m.nodes[0].broker.Delete(m.within(10*time.Second), "orders"); err != nil {
					t.Fatal(err)
				}
				virtual.Sleep(cacheFresh / 8) // the replica is removed
				if again {
					m.create("orders", one)
				}
				var readers sync.WaitGroup
				for i := range m.nodes {
					readers.Go(func() {
						sub, err := m.nodes[i].broker.Subscribe(m.within(20*time.Second), "orders", earliest())
						switch {
						case !again && wire.CodeOf(err) != wire.CodeStreamNotFound, again && err != nil:
							t.Errorf("node %d: %v", i, err)
						case again:
							_ = sub.Close()
						}
					})
				}
				readers.Wait()
			})
		})
	}
}

// Their nodes know the definition of before, and sent nothing to its partitions whose outcome they would have to wait for.
func TestPublisherFindsTheStreamThatWasJustCreatedAnew(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		one := StreamConfig{Partitions: 1, Replicas: 1}
		m.create("orders", one)
		for i := range m.nodes {
			if _, err := m.nodes[i].broker.Get(m.within(10*time.Second), "orders"); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.nodes[0].broker.Delete(m.within(10*time.Second), "orders"); err != nil {
			t.Fatal(err)
		}
		virtual.Sleep(cacheFresh / 8) // the replica is removed
		m.create("orders", one)
		var publishers sync.WaitGroup
		for i := range m.nodes {
			publishers.Go(func() {
				if _, err := m.publish(i, "orders", event("k", "new"), PublishOptions{}, 10*time.Second); err != nil {
					t.Errorf("node %d: %v", i, err)
				}
			})
		}
		publishers.Wait()
		if got := m.readAll(0, "orders", earliest()); len(got) != len(m.nodes) {
			t.Errorf("%d events are stored", len(got))
		}
	})
}
