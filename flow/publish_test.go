package flow

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestEventPublishedOnAnyNodeIsReadOnAnyNode(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 2})
		for i := range 3 {
			m.put(i, "orders", "k", string(rune('a'+i)))
		}
		for i := range 3 {
			if got := values(m.readAll(i, "orders", earliest())); strings.Join(got, "") != "abc" {
				t.Errorf("node %d reads %q", i, got)
			}
		}
	})
}

// publish is Publish of one event with a deadline.
func (m *mesh) publish(i int, stream string, r batch.Record, o PublishOptions, d time.Duration) (PublishResult, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), d)
	defer cancel()
	res, err := m.nodes[i].broker.Publish(ctx, stream, []batch.Record{r}, o)
	if err != nil {
		return PublishResult{}, err
	}
	return res[0], res[0].Err
}

func TestNodeCutOffRefusesWhatItDidNotSendAndKeepsNoneOfIt(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		m.put(0, "orders", "k", "before")
		owner := m.owner(info.Partitions[0].Group)
		m.isolate(owner.i, true)
		refused, unknown := map[string]bool{}, map[string]bool{}
		big := strings.Repeat("x", 100<<10)
		for i := range 200 {
			v := fmt.Sprintf("%d-%s", i, big)
			_, err := m.publish(owner.i, "orders", event("k", v), PublishOptions{}, 300*time.Millisecond)
			switch wire.KindOf(err) {
			case wire.KindOutcomeUnknown:
				unknown[v] = true
			case wire.KindUnavailable, wire.KindNoCredit:
				refused[v] = true
			default:
				t.Fatalf("event %d: %v", i, err)
			}
		}
		_, err := m.publish(owner.i, "orders", event("k", "last"), PublishOptions{}, 300*time.Millisecond)
		if wire.CodeOf(err) != wire.CodeNoQuorum {
			t.Errorf("the last one: %v", err)
		}
		refused["last"] = true
		if len(refused) < 100 {
			t.Errorf("%d refused, %d unknown", len(refused), len(unknown))
		}
		for _, s := range owner.broker.openSessions() {
			s.mu.Lock()
			if len(s.queue) > 0 || s.open != nil || s.queued.Load() != 0 {
				t.Errorf("%d batches queued, open %v, %d bytes", len(s.queue), s.open != nil, s.queued.Load())
			}
			s.mu.Unlock()
		}
		m.isolate(owner.i, false)
		m.put(owner.i, "orders", "k", "after")
		seen := map[string]bool{}
		for _, v := range values(m.readAll(owner.i, "orders", earliest())) {
			if refused[v] {
				t.Errorf("refused event %.10s is stored", v)
			}
			if seen[v] {
				t.Errorf("event %.10s is stored twice", v)
			}
			seen[v] = true
		}
		if !seen["before"] || !seen["after"] {
			t.Error("acknowledged events are missing")
		}
	})
}

func (b *Broker) openSessions() (out []*session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sessions {
		out = append(out, s)
	}
	return out
}

// onlySession is the one publish session of a node.
func (m *mesh) onlySession(i int) *session {
	m.t.Helper()
	ss := m.nodes[i].broker.openSessions()
	if len(ss) != 1 {
		m.t.Fatalf("%d sessions", len(ss))
	}
	return ss[0]
}

func TestOwnerWithoutMemoryMakesPublishersWaitThenRefusesThem(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		m.put(0, "orders", "k", "before")
		budget := m.owner(info.Partitions[0].Group).broker.cfg.OwnerBudget
		if err := budget.Reserve(t.Context(), budget.Limit()); err != nil {
			t.Fatal(err)
		}
		// Noise, so that every batch has its size.
		results := make(chan error, 64)
		for i := range cap(results) {
			go func() {
				_, err := m.publish(0, "orders", event("k", noise(i, 200<<10)), PublishOptions{}, 2*time.Second)
				results <- err
			}()
		}
		kinds := map[string]int{}
		for range cap(results) {
			kinds[wire.CodeOf(<-results)]++
		}
		if kinds[wire.CodeOverloaded] == 0 || kinds[wire.CodeOverloaded]+kinds[wire.CodeOutcomeUnknown] != cap(results) {
			t.Errorf("got %v", kinds)
		}
		budget.Release(budget.Limit())
		m.put(0, "orders", "k", "after")
		if n := len(m.readAll(1, "orders", earliest())); n > 2+kinds[wire.CodeOutcomeUnknown] {
			t.Errorf("%d events stored, %v", n, kinds)
		}
		for _, nd := range m.nodes {
			if nd.broker.cfg.OwnerBudget.Used() != 0 || nd.broker.cfg.PublishBudget.Used() != 0 {
				t.Errorf("node %d: %d and %d bytes still reserved", nd.i, nd.broker.cfg.OwnerBudget.Used(), nd.broker.cfg.PublishBudget.Used())
			}
		}
	})
}

func noise(seed, n int) string {
	b := make([]byte, n)
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

func TestFullDiskRefusesAndNothingIsStored(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		owner := m.owner(info.Partitions[0].Group)
		m.put(0, "orders", "k", "a")
		owner.full.Store(true)
		for range 3 {
			if _, err := m.publish(0, "orders", event("k", "b"), PublishOptions{}, 5*time.Second); wire.CodeOf(err) != wire.CodeDiskFull {
				t.Fatalf("got %v", err)
			}
		}
		owner.full.Store(false)
		m.put(0, "orders", "k", "c")
		if got := values(m.readAll(2, "orders", earliest())); strings.Join(got, "") != "ac" {
			t.Errorf("got %q", got)
		}
	})
}

func TestMinCopiesOutOfReachRefuses(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1, MinCopies: 3})
		owner := m.owner(info.Partitions[0].Group)
		if r := m.put(owner.i, "orders", "k", "a"); r.Copies < 2 {
			t.Errorf("%d copies", r.Copies)
		}
		other := (owner.i + 1) % 3
		m.nodes[other].stop()
		virtual.Sleep(2 * time.Second) // beyond the election timeout
		if _, err := m.publish(owner.i, "orders", event("k", "b"), PublishOptions{}, 5*time.Second); wire.CodeOf(err) != wire.CodeTooFewCopies {
			t.Fatalf("got %v", err)
		}
		m.nodes[other].start()
		virtual.Sleep(2 * time.Second)
		m.put(owner.i, "orders", "k", "c")
		if got := values(m.readAll(other, "orders", earliest())); strings.Join(got, "") != "ac" {
			t.Errorf("got %q", got)
		}
	})
}

func TestIdentityIsStoredOnceWhicheverNodeItMeets(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 4})
		o := PublishOptions{IdempotencyKey: "order-1"}
		first, err := m.publish(0, "orders", batch.Record{Value: []byte("a")}, o, 5*time.Second)
		if err != nil || first.Duplicate {
			t.Fatalf("%+v, %v", first, err)
		}
		for i := range 3 {
			again, err := m.publish(i, "orders", batch.Record{Value: []byte("a")}, o, 5*time.Second)
			if err != nil || !again.Duplicate || again.Offset != first.Offset || again.Partition != first.Partition {
				t.Errorf("node %d: %+v, %v", i, again, err)
			}
		}
		if _, err := m.publish(1, "orders", batch.Record{Value: []byte("other")}, o, 5*time.Second); wire.CodeOf(err) != wire.CodeIdempotencyReuse {
			t.Errorf("reused identity: %v", err)
		}
		if n := len(m.readAll(2, "orders", earliest())); n != 1 {
			t.Errorf("%d events", n)
		}
	})
}

func TestAcceptedEventsAreAnsweredBeforeTheyAreDurable(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 1})
		for range 100 {
			if _, err := m.publish(1, "orders", event("k", "v"), PublishOptions{Ack: AckNone}, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		m.put(1, "orders", "k", "last")
		if got := m.readAll(0, "orders", earliest()); len(got) != 101 || string(got[100].Value) != "last" {
			t.Errorf("%d events", len(got))
		}
	})
}

func TestIdleSessionEndsAndIsOpenedAnew(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 1})
		m.put(0, "orders", "k", "a")
		first := m.onlySession(0)
		virtual.Sleep(sessionIdle + 10*time.Second) // the connection ends
		m.put(0, "orders", "k", "b")
		virtual.Sleep(3 * sessionIdle)
		if ss := m.nodes[0].broker.openSessions(); len(ss) != 0 {
			t.Errorf("%d sessions without traffic", len(ss))
		}
		m.put(0, "orders", "k", "c")
		if m.onlySession(0) == first {
			t.Error("a retired session came back")
		}
		virtual.Sleep(16 * time.Minute) // the partition forgets sessions
		m.put(0, "orders", "k", "d")
		if got := values(m.readAll(1, "orders", earliest())); strings.Join(got, "") != "abcd" {
			t.Errorf("got %q", got)
		}
	})
}

func TestSessionDoesNotRetireUnderARequest(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1, Replicas: 1})
		b := m.nodes[0].broker
		s, err := b.catalog.lookup(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		ses, err := b.session(s, &s.Partitions[0])
		if err != nil {
			t.Fatal(err)
		}
		virtual.Sleep(5 * sessionIdle)
		req := &request{results: make([]PublishResult, 1), done: make(chan struct{})}
		req.pending.Store(1)
		r := event("k", "v")
		ses.add(&r, batch.Identity{}, req, 0)
		ses.flush()
		b.leave(map[ring.GroupID]*session{info.Partitions[0].Group: ses})
		<-req.done
		if err := req.results[0].Err; err != nil {
			t.Errorf("got %v", err)
		}
	})
}

func TestDeletedStreamRefusesAndItsSuccessorStartsAfresh(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 2})
		stop := make(chan struct{})
		ended := make(chan int, 3)
		for i := range 3 {
			go func() {
				n := 0
				defer func() { ended <- n }()
				for {
					select {
					case <-stop:
						return
					default:
					}
					_, err := m.publish(i, "orders", event(fmt.Sprint("k", i), fmt.Sprint("old", n)), PublishOptions{}, 3*time.Second)
					if k := wire.KindOf(err); err != nil && k != wire.KindNotFound && k != wire.KindOutcomeUnknown && k != wire.KindUnavailable {
						t.Errorf("node %d: %v", i, err)
					}
					n++
					virtual.Sleep(5 * time.Millisecond)
				}
			}()
		}
		virtual.Sleep(time.Second)
		if err := m.nodes[1].broker.Delete(m.within(10*time.Second), "orders"); err != nil {
			t.Fatal(err)
		}
		virtual.Sleep(5 * time.Second)
		close(stop)
		for range 3 {
			<-ended
		}
		for i := range 3 {
			if _, err := m.publish(i, "orders", event("k", "v"), PublishOptions{}, 5*time.Second); wire.CodeOf(err) != wire.CodeStreamNotFound {
				t.Errorf("node %d publishes to a deleted stream: %v", i, err)
			}
		}
		m.create("orders", StreamConfig{Partitions: 2})
		if got := m.readAll(0, "orders", earliest()); len(got) != 0 {
			t.Errorf("%d events of the former incarnation", len(got))
		}
		for i := range 3 {
			if r := m.put(i, "orders", "k", "new"); r.Offset != uint64(i) {
				t.Errorf("offset %d", r.Offset)
			}
		}
		virtual.Sleep(3 * sessionIdle)
		for i := range 3 {
			if ss := m.nodes[i].broker.openSessions(); len(ss) != 0 {
				t.Errorf("node %d keeps %d sessions", i, len(ss))
			}
		}
		synctest.Wait()
	})
}

// A session needs a commit to open; on a disk that takes seconds for one, giving up and trying again would never succeed.
func TestOwnerOnASlowDiskStillOpensSessions(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		m.owner(info.Partitions[0].Group)
		for _, nd := range m.nodes {
			nd.lag.Store(int64(2500 * time.Millisecond))
		}
		if _, err := m.publish(1, "orders", event("k", "a"), PublishOptions{}, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		for _, nd := range m.nodes {
			nd.lag.Store(0)
		}
	})
}

// The new owner knows the definition from before the change, because it published then: it must not act on it.
func TestNewOwnerDoesNotBringAnOldConfigBack(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		cfg := StreamConfig{Partitions: 1, RetentionMS: (2 * time.Minute).Milliseconds()}
		info := m.create("orders", cfg)
		for i := range 3 {
			m.put(i, "orders", "k", fmt.Sprint(i))
		}
		old := m.owner(info.Partitions[0].Group)
		cfg.RetentionMS = (30 * 24 * time.Hour).Milliseconds()
		if _, err := old.broker.Update(m.within(5*time.Second), "orders", 0, cfg); err != nil {
			t.Fatal(err)
		}
		virtual.Sleep(3 * time.Minute)
		lg, _ := old.host.Group(info.Partitions[0].Group)
		if err := lg.Transfer(m.within(5*time.Second), m.nodes[(old.i+1)%3].id); err != nil {
			t.Fatal(err)
		}
		virtual.Sleep(30 * time.Second)
		if got := m.readAll(old.i, "orders", earliest()); len(got) != 3 {
			t.Errorf("%d events are left of 3 that are to be kept for a month", len(got))
		}
	})
}

// An owner asks the catalog for a config. While the answer is on its way another node owns the partition, brings a newer config and gives
// the partition back: what comes late must not count any more.
func TestConfigThatTheCatalogToldLateDoesNotReplaceANewerOne(t *testing.T) {
	inMesh(t, 3, func(c *Config) { c.MaintainEvery = 500 * time.Millisecond }, func(t *testing.T, m *mesh) {
		cfg := StreamConfig{Partitions: 1, RetentionMS: (30 * 24 * time.Hour).Milliseconds()}
		info := m.create("orders", cfg)
		g := info.Partitions[0].Group
		for i := range 3 {
			m.put(i, "orders", "k", fmt.Sprint(i))
		}
		virtual.Sleep(3 * time.Minute)
		first := m.owner(g)
		next := m.nodes[(first.i+1)%3]
		retention := func(nd *node) time.Duration {
			p, _ := nd.broker.localPartition(g)
			return time.Duration(p.Spec().RetentionMS) * time.Millisecond
		}
		update := func(by *node, keep time.Duration) {
			cfg.RetentionMS = keep.Milliseconds()
			if _, err := by.broker.Update(m.within(5*time.Second), "orders", 0, cfg); err != nil {
				t.Fatal(err)
			}
		}
		transfer := func(from, to *node) {
			lg, _ := from.host.Group(g)
			if err := lg.Transfer(m.within(5*time.Second), to.id); err != nil {
				t.Fatal(err)
			}
		}
		update(first, time.Minute)
		if _, err := first.broker.Get(m.within(time.Second), "orders"); err != nil { // it sees from its cache that there is a change to ask for
			t.Fatal(err)
		}
		late := &lateAnswers{to: first.i, held: make(chan struct{}, 1), release: make(chan struct{})}
		m.late.Store(late)
		<-late.held
		newest := 60 * 24 * time.Hour
		update(next, newest)
		transfer(first, next)
		for range 1000 { // it looks twice a second
			if retention(first) == newest {
				break
			}
			virtual.Sleep(time.Millisecond)
		}
		transfer(next, first)
		if m.owner(g) != first || retention(first) != newest {
			t.Fatalf("the partition did not come back with the newest config: it keeps events for %v", retention(first))
		}
		m.late.Store(nil)
		close(late.release)
		for range 5000 {
			virtual.Sleep(time.Millisecond)
			if got := retention(first); got != newest {
				t.Fatalf("a retention of %v is back, after one of %v was brought", got, newest)
			}
		}
		for _, nd := range m.nodes {
			if got := retention(nd); got != newest {
				t.Errorf("node %d has a retention of %v", nd.i, got)
			}
		}
		if got := m.readAll(0, "orders", earliest()); len(got) != 3 {
			t.Errorf("%d events are left of 3 that are to be kept for months", len(got))
		}
	})
}

// A stream that is written to all the time has something to trim at every turn.
func TestConfigReachesAPartitionThatIsTrimmedAllTheTime(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		cfg := StreamConfig{Partitions: 1, RetentionMS: time.Minute.Milliseconds()}
		m.create("orders", cfg)
		publish := func(d time.Duration) {
			for range d / time.Second {
				m.put(0, "orders", "k", "v")
				virtual.Sleep(time.Second)
			}
		}
		publish(2 * time.Minute)
		cfg.RetentionMS = (30 * 24 * time.Hour).Milliseconds()
		if _, err := m.nodes[0].broker.Update(m.within(5*time.Second), "orders", 0, cfg); err != nil {
			t.Fatal(err)
		}
		publish(2 * time.Minute)
		if got := m.readAll(0, "orders", earliest()); len(got) < 150 {
			t.Errorf("%d events are left, though all of the last three minutes but a few are to be kept", len(got))
		}
	})
}
