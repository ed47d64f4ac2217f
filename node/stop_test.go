package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/memnet"
)

// holdJournal keeps the journal's writer where a disk would that does not answer. Nothing that is appended from now on gets done before
// release.
func (n *Node) holdJournal() (release func()) {
	held, ch := make(chan struct{}), make(chan struct{})
	n.journal.Append(context.Background(), nil, false, func(error) {
		close(held)
		<-ch
	})
	<-held
	return func() { close(ch) }
}

// fillJournal leaves no room in the journal's queue, not for the smallest unit.
func (n *Node) fillJournal() {
	g, large := ring.GroupID{0xff}, make([]byte, 1<<20)
	take := func(w log.Write) bool { return n.journal.TryAppend([]log.Write{w}, false, func(error) {}) }
	for i := uint64(1); take(log.Write{Group: g, Entries: []log.Entry{{Index: i, Term: 1, Data: large}}}); i++ {
	}
	for take(log.Write{Group: g}) {
	}
}

// afterTheParts has fn called once all parts of the node have ended, before what they stood on is closed.
func (n *Node) afterTheParts(fn func()) { n.onClose(func() error { fn(); return nil }) }

// stopped ends node i and returns what Run did.
func (m *testMesh) stopped(i int) error {
	tn := m.nodes[i]
	tn.cancel()
	tn.cancel = nil
	return <-tn.ended
}

// No part may wait for the journal at the end: it is closed when all of them have ended, and on a full disk only that ends its wait.
func TestNodeStopsThoughTheJournalTakesNothingMore(t *testing.T) {
	m := startMesh(t, 1)
	m.publishSome("orders", 2, 10)
	n := m.nodes[0]
	release := n.holdJournal()
	n.fillJournal()
	n.afterTheParts(release)
	waiting := make(chan error, 3)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	go func() {
		_, _, err := n.broker.Create(ctx, "more", flow.StreamConfig{Partitions: 1}, flow.CreateOrSame)
		waiting <- err
	}()
	go func() {
		res, err := n.broker.Publish(ctx, "orders", []batch.Record{{Value: []byte("v")}}, flow.PublishOptions{})
		if err == nil {
			err = res[0].Err
		}
		waiting <- err
	}()
	go func() { waiting <- n.host.Remove(ctx, m.group("orders", 1)) }()
	m.poll("an event waits", 10*time.Second, func() bool { return n.broker.QueuedBytes() > 0 })
	if err := m.stopped(0); err != nil {
		t.Errorf("the end was not in order: %v", err)
	}
	giveUp()
	for range 3 {
		if err := <-waiting; err == nil {
			t.Error("something was done without the journal")
		}
	}
	m.start(0)
	m.waitWhole()
	if got := m.readAll(0, "orders"); len(got) != 10 {
		t.Errorf("%d events are left of 10 that were acknowledged", len(got))
	}
}

func TestNodeStopsWhileItFoundsAMeshThoughTheJournalWritesNothing(t *testing.T) {
	m := &testMesh{t: t, net: memnet.New(), logs: &syncBuffer{}}
	dir := t.TempDir() // its removal comes after stop
	t.Cleanup(m.stop)
	m.add(dir, 0, func(*config.Config) {})
	tn := m.nodes[0]
	m.open(0)
	release := tn.holdJournal()
	tn.afterTheParts(release)
	m.run(0)
	m.poll("the founding begins", 10*time.Second, func() bool { return m.logged("founding a new mesh") > 0 })
	if err := m.stopped(0); err != nil {
		t.Errorf("the end was not in order: %v", err)
	}
	m.start(0)
	m.waitWhole()
}

func TestNodeWhoseDiskDoesNotAnswerEndsAllTheSameAndSaysWhy(t *testing.T) {
	for what, failed := range map[string]bool{"told to stop": false, "gave up": true} {
		t.Run(what, func(t *testing.T) {
			m := startMesh(t, 1)
			n := m.nodes[0]
			n.stopTime = 100 * time.Millisecond
			closed := make(chan struct{})
			n.closers = append([]func() error{func() error { close(closed); return nil }}, n.closers...) // the last one
			release := n.holdJournal()
			if failed {
				n.verdicts <- verdict{reason: reasonDamagedJournal}
			} else {
				n.cancel()
			}
			n.cancel = nil
			err := <-n.ended
			if err == nil || errors.Is(err, ErrGaveUp) {
				t.Errorf("ended with %v: it would go on, or be started again", err)
			}
			for _, want := range []string{"journal and store", n.cfg.DataDir, "nothing that was acknowledged is lost"} {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			release() // else the test would leave it behind, as the process would
			<-closed
		})
	}
}

func TestPartsThatDoNotEndAreNamed(t *testing.T) {
	r := &runner{failed: make(chan error, 1)}
	never := make(chan struct{})
	for _, name := range []string{"gossip", "replicas", "broker", "http"} {
		r.start(name, func(ctx context.Context) error {
			<-ctx.Done()
			if name == "replicas" {
				<-never
			}
			return nil
		})
	}
	r.parts[0].ground = true
	ended := make(chan error)
	go func() { ended <- r.stop(nil) }()
	<-r.parts[2].ended // once the front door has
	if got := r.left(); !slices.Equal(got, []string{"replicas"}) {
		t.Errorf("%q", got)
	}
	close(never)
	if err := <-ended; err != nil || r.left() != nil {
		t.Errorf("%v; %q are left", err, r.left())
	}
}

func TestFailureOfAPartIsToldOnce(t *testing.T) {
	r := &runner{failed: make(chan error, 1)}
	r.start("quiet", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	r.start("loud", func(context.Context) error { return errors.New("disk on fire") })
	failure := <-r.failed
	err := errors.Join(failure, r.stop(failure))
	if n := strings.Count(err.Error(), "disk on fire"); n != 1 || !strings.HasPrefix(err.Error(), "loud: ") {
		t.Errorf("told %d times: %v", n, err)
	}
}
