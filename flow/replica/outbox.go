package replica

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
)

// frameTarget is where a frame is closed and the next begun; only one larger message makes a larger frame.
const frameTarget = 1 << 20

// outbox gathers the messages of all groups to one peer into few frames. Groups add without blocking. On a quiet node the group itself
// hands frames to the Sender, else one goroutine does as fast as it takes them, so that frames grow exactly when the sender is busy.
// Order is kept per peer and class. A full queue drops, and raft is told. Whoever adds kicks afterwards.
type outbox struct {
	h     *Host
	limit int
	wake  chan struct{}

	mu sync.Mutex
	// gather runs while anything is queued; it wakes run once for all that can wait.
	gather    *time.Timer
	gathering bool
	lanes     map[laneKey]*lane
	dirty     []laneKey

	// urgent: something was added that somebody waits for, and nobody was told yet. Apart from mu, for every turn of every group looks.
	urgent atomic.Bool

	// flushing is held by whoever hands frames over, so that they keep their order. Nothing under it blocks.
	flushing sync.Mutex
	spare    []laneKey // the next dirty
	flushed  time.Time // when frames were handed over last
}

type laneKey struct {
	to    ring.NodeID
	class wire.Class
}

type lane struct {
	frames [][]byte
	tails  [][]tail // who is in each frame
	bytes  int
	queued bool
	last   int // length of the last frame: the next will be alike
}

// tail is a message in a frame, for reporting that the frame was not sent.
type tail struct {
	group ring.GroupID
	to    uint64
	snap  bool
}

func newOutbox(h *Host) *outbox {
	o := &outbox{h: h, limit: h.cfg.OutboxBytes, wake: make(chan struct{}, 1), gather: time.NewTimer(gatherTime), lanes: map[laneKey]*lane{}}
	o.gather.Stop()
	return o
}

// add queues one message; false when it was dropped. wait: nobody waits for it, so it may gather with others (canWait, repeats).
func (o *outbox) add(to ring.NodeID, g ring.GroupID, m *pb.Message, wait bool) bool {
	key := laneKey{to, classOf(m)}
	o.mu.Lock()
	l := o.lanes[key]
	if l == nil {
		l = &lane{}
		o.lanes[key] = l
	}
	if l.bytes > o.limit {
		o.mu.Unlock()
		o.h.metrics.dropped.WithLabelValues("outbox-full").Inc()
		return false
	}
	n := len(l.frames) - 1
	size := messageSize(m)
	if n < 0 || (len(l.frames[n]) > 1 && len(l.frames[n])+size > frameTarget) {
		l.frames = append(l.frames, append(make([]byte, 0, max(size+64, l.last)), frameVersion))
		l.tails = append(l.tails, nil)
		n++
	}
	was := len(l.frames[n])
	l.frames[n] = appendEnvelope(l.frames[n], g, m)
	l.bytes += len(l.frames[n]) - was
	l.tails[n] = append(l.tails[n], tail{g, m.GetTo(), m.GetType() == pb.MsgSnap})
	if !l.queued {
		l.queued = true
		o.dirty = append(o.dirty, key)
	}
	if !wait {
		o.urgent.Store(true)
	}
	if !o.gathering {
		o.gathering = true
		o.gather.Reset(gatherTime)
	}
	o.mu.Unlock()
	return true
}

// kick is called by a group that has added what it had to say. On a quiet node the group hands it over itself, for waking another
// goroutine costs more than the handing over; on a busy one run does, and frames fill meanwhile.
func (o *outbox) kick() {
	if !o.urgent.Load() || !o.urgent.Swap(false) {
		return
	}
	if o.flushing.TryLock() {
		quiet := time.Since(o.flushed) > quietTime
		if quiet {
			o.flushLocked()
		}
		o.flushing.Unlock()
		if quiet {
			return
		}
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// quietTime without a frame makes a node quiet: above the time that a busy one needs to fill a frame.
const quietTime = 300 * time.Microsecond

// gatherTime is how long messages that nobody waits for may gather. All groups tick at once but speak one after the other:
// without it, each would leave in a frame, and in a packet, of its own. It is small against an election timeout.
const gatherTime = 5 * time.Millisecond

// canWait is true of heartbeats and their answers that no read waits for, and of appends without entries: they carry a commit index
// that the next append carries too. Followers learn of a commit by gatherTime later, and publishers are answered sooner, because
// those messages do not compete with the answer.
func canWait(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgHeartbeat, pb.MsgHeartbeatResp:
		return len(m.GetContext()) == 0 && m.GetIndex() != overMark
	case pb.MsgApp:
		return len(m.GetEntries()) == 0
	}
	return false
}

// retain forgets the lanes to all but the named peers: nodes come and go for as long as this one lives. What is queued still leaves, and a
// node that comes back gets lanes anew.
func (o *outbox) retain(peers []ring.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.lanes, func(k laneKey, l *lane) bool { return !l.queued && !slices.Contains(peers, k.to) })
}

func messageSize(m *pb.Message) int {
	n := 128 + len(m.GetContext())
	for _, e := range m.GetEntries() {
		n += len(e.GetData()) + 24
	}
	return n
}

// run hands frames to the sender until stop is closed.
func (o *outbox) run(stop <-chan struct{}) {
	defer o.gather.Stop()
	for {
		select {
		case <-stop:
			return
		case <-o.wake:
		case <-o.gather.C:
		}
		o.flushing.Lock()
		o.flushLocked()
		o.flushing.Unlock()
	}
}

// flushLocked hands over what is there when it begins; the rest is left to those who add it, for a group must not be kept here by
// others. The caller holds flushing.
func (o *outbox) flushLocked() {
	o.mu.Lock()
	if o.gathering {
		o.gathering = false
		o.gather.Stop()
	}
	keys := o.dirty
	o.dirty = o.spare[:0]
	o.mu.Unlock()
	for _, key := range keys {
		o.mu.Lock()
		l := o.lanes[key]
		frames, tails := l.frames, l.tails
		l.last = min(len(frames[len(frames)-1])+len(frames[len(frames)-1])/8, frameTarget+frameTarget/8)
		l.frames, l.tails, l.bytes, l.queued = nil, nil, 0, false
		o.mu.Unlock()
		for i, f := range frames {
			if !o.h.cfg.Sender.Send(key.to, key.class, f) {
				o.refused(tails[i])
				continue
			}
			o.h.metrics.sent.WithLabelValues(className(key.class)).Inc()
		}
	}
	o.spare, o.flushed = keys, time.Now()
}

// refused tells the groups in a frame that it did not leave.
func (o *outbox) refused(ts []tail) {
	o.h.metrics.dropped.WithLabelValues("send-full").Add(float64(len(ts)))
	seen := map[tail]bool{}
	for _, t := range ts {
		if seen[t] {
			continue
		}
		seen[t] = true
		if g, ok := o.h.Group(t.group); ok {
			g.inbox.put(func(in *input) { in.unsent = append(in.unsent, t) })
		}
	}
}

func className(c wire.Class) string {
	if c == wire.ClassBulk {
		return "bulk"
	}
	return "control"
}
