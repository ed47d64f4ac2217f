package replica

import (
	"bytes"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
)

func TestSlowDiskOfAFollowerHoldsBoundedMemoryOverAllGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, groups, rounds, size = 1 << 20, 4, 64, 64 << 10
		m := newMesh(t, 3, 7)
		m.tune = func(c *Config) {
			c.MaxUnwrittenBytes, c.NodeCacheBytes, c.MaxSizePerMsg, c.MaxInflightBytes = limit, limit, size, 4<<20
		}
		for _, nd := range m.nodes {
			nd.start()
		}
		defer m.stop()
		for i := range groups {
			m.found(testGroup(byte(i+1)), 0, 1, 2)
			m.propose(testGroup(byte(i+1)), "first")
			if own := m.owner(testGroup(byte(i + 1))); m.nodeOf(own).i == 2 {
				if err := own.Transfer(t.Context(), m.nodes[0].id); err != nil {
					t.Fatal(err)
				}
			}
		}
		slow := m.nodes[2]
		slow.journal.hold(true)
		most := int64(0)
		for r := range rounds {
			for i := range groups {
				if o := m.propose(testGroup(byte(i+1)), strconv.Itoa(r)+string(bytes.Repeat([]byte("x"), size))); o.Err != nil {
					t.Fatal(o.Err)
				}
			}
			most = max(most, slow.host.unwritten.held.Load())
		}
		if most > limit+groups*2*size || most < limit/2 {
			t.Errorf("the slow node held %d bytes for its disk; the bound is %d", most, limit)
		}
		for _, nd := range m.nodes[:2] {
			if held := nd.host.cached.held.Load(); held > limit+groups*2*size {
				t.Errorf("node %d keeps %d bytes for followers; the bound is %d", nd.i, held, limit)
			}
		}
		slow.journal.hold(false)
		for i := range groups {
			m.converge(testGroup(byte(i+1)), 0, 1, 2)
		}
		if held := slow.host.unwritten.held.Load(); held != 0 {
			t.Errorf("%d bytes are still counted when all is written", held)
		}
	})
}

// frames is a Sender that keeps what it is given.
type frames struct {
	mu     sync.Mutex
	bodies [][]byte
}

func (f *frames) Send(_ ring.NodeID, _ wire.Class, body []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bodies = append(f.bodies, body)
	return true
}

func (f *frames) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bodies)
}

func TestHeartbeatsOfAllGroupsLeaveInOneFrameAndNothingWaitsBehindThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := &frames{}
		o := newOutbox(&Host{cfg: Config{OutboxBytes: 1 << 20, Sender: sent}, metrics: newMetrics(nil)})
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			o.run(stop)
		}()
		beat := func(i byte, context []byte) {
			from, to, term := uint64(1), uint64(2), uint64(3)
			o.add(ring.NodeID{2}, testGroup(i), &pb.Message{Type: pb.MsgHeartbeat.Enum(), From: &from, To: &to, Term: &term, Context: context}, context == nil)
			o.kick()
		}
		for i := range byte(50) {
			beat(i, nil)
			synctest.Wait()
			virtual.Sleep(gatherTime / 100)
		}
		if n := sent.count(); n != 0 {
			t.Errorf("%d frames left at once", n)
		}
		virtual.Sleep(gatherTime)
		if n := sent.count(); n != 1 {
			t.Errorf("50 heartbeats left in %d frames", n)
		}
		beat(1, nil)
		beat(2, []byte("readwait")) // a read waits for this one
		synctest.Wait()
		if n := sent.count(); n != 2 {
			t.Errorf("a heartbeat that somebody waits for did not leave at once: %d frames", n)
		}
		close(stop)
		<-ended
	})
}
