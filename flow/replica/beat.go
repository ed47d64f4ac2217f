package replica

import (
	"math"
	"sync"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	pb "go.etcd.io/raft/v3/raftpb"
)

// Nodes that share groups exchange beats: one small message in each direction per heartbeat. A beat stands for the heartbeats and the
// answers of every group that rests (rest.go): it says which run of the sender's process sent it, and which beat of the receiver was
// heard last, so that each side knows of both directions.
//
// A beat travels as a raft message of no group, with its content in the numbers of a heartbeat: a node of a version without beats
// drops it as one for a group that it does not have, and sends none, and with such a node no group rests.
type beat struct {
	boot uint64 // which run of the sender's process; not 0
	seq  uint64 // from 1, grows with every beat of the run
	// The newest beat of the receiver that the sender heard; 0: none.
	heardBoot, heardSeq uint64
}

// beating is false in a build of the protocol's version without beats.
const beating = wire.Newest >= wire.Version2

// beatVersion is the first version of a beat. A later one may say more, but not less.
const beatVersion = 1

func beatMessage(b beat) *pb.Message {
	return &pb.Message{Type: pb.MsgHeartbeat.Enum(), From: new(uint64(1)), To: new(uint64(1)), Term: new(uint64(beatVersion)),
		LogTerm: &b.boot, Index: &b.seq, RejectHint: &b.heardBoot, Commit: &b.heardSeq}
}

func beatOf(m *pb.Message) (beat, bool) {
	b := beat{boot: m.GetLogTerm(), seq: m.GetIndex(), heardBoot: m.GetRejectHint(), heardSeq: m.GetCommit()}
	return b, m.GetType() == pb.MsgHeartbeat && m.GetTerm() >= beatVersion && b.boot != 0 && b.seq != 0
}

// lease is what beats tell of a peer, at one tick of this node's clock.
type lease struct {
	boot    uint64 // which run of the peer's process; 0: no beat was ever heard
	silence uint64 // ticks since a beat of the peer was heard
	unheard uint64 // ticks since the peer is known to have heard one of ours
}

// good is true while both directions have worked within so many ticks.
func (l lease) good(limit uint64) bool {
	return l.boot != 0 && l.silence <= limit && l.unheard <= limit
}

// never is longer than any limit, and small enough to be subtracted from.
const never = 1 << 40

// beats keeps the leases of all peers. It takes the time as the count of this node's ticks: a node that stood still has not lost its
// peers by that. Safe for concurrent use; pure apart from its lock.
type beats struct {
	boot uint64

	mu    sync.Mutex
	seq   uint64
	peers map[ring.NodeID]*peerBeats
}

type peerBeats struct {
	heard   beat
	heardAt uint64
	acked   uint64 // newest of our beats that the peer heard
	ackedAt uint64
	hasAck  bool
}

func newBeats(boot uint64) *beats {
	return &beats{boot: max(boot, 1), peers: map[ring.NodeID]*peerBeats{}}
}

// next is the beat to send to a peer.
func (bs *beats) next(to ring.NodeID) beat {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.seq++
	b := beat{boot: bs.boot, seq: bs.seq}
	if p := bs.peers[to]; p != nil {
		b.heardBoot, b.heardSeq = p.heard.boot, p.heard.seq
	}
	return b
}

// take notes a beat of a peer. One that is not newer than what was heard of the same run tells nothing.
func (bs *beats) take(now uint64, from ring.NodeID, b beat) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	p := bs.peers[from]
	switch {
	case p == nil:
		p = &peerBeats{}
		bs.peers[from] = p
	case p.heard.boot != b.boot:
		*p = peerBeats{}
	case b.seq <= p.heard.seq:
		return
	}
	p.heard, p.heardAt = b, now
	if b.heardBoot == bs.boot && b.heardSeq <= bs.seq && b.heardSeq > p.acked {
		p.acked, p.ackedAt, p.hasAck = b.heardSeq, now, true
	}
}

// lease tells how things stand with a peer.
func (bs *beats) lease(now uint64, of ring.NodeID) lease {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.peers[of].lease(now)
}

func (p *peerBeats) lease(now uint64) lease {
	l := lease{silence: never, unheard: never}
	if p == nil {
		return l
	}
	l.boot, l.silence = p.heard.boot, since(now, p.heardAt)
	if p.hasAck {
		l.unheard = since(now, p.ackedAt)
	}
	return l
}

// since is the ticks from at to now; a beat may be noted at a tick that its reader has not seen yet.
func since(now, at uint64) uint64 {
	if at > now {
		return 0
	}
	return now - at
}

// Silence is how long no beat of a node was heard, by the ticks of this one; the longest duration there is where none is remembered.
func (h *Host) Silence(n ring.NodeID) time.Duration {
	l := h.beats.lease(h.clock.Load(), n)
	if l.silence > forgetAfter {
		return math.MaxInt64
	}
	return time.Duration(l.silence) * h.cfg.TickInterval
}

// forgetAfter is how many ticks of silence make a peer forgotten: leases that old count for nothing.
const forgetAfter = 1 << 14

// leases fills into with how things stand with all peers, and forgets those that are long gone.
func (bs *beats) leases(now uint64, into map[ring.NodeID]lease) {
	clear(into)
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for n, p := range bs.peers {
		l := p.lease(now)
		if l.silence > forgetAfter {
			delete(bs.peers, n)
			continue
		}
		into[n] = l
	}
}
