package replica

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// Group is one replica of a replica group on this node. Its methods are safe for concurrent use.
type Group struct {
	h     *Host
	id    ring.GroupID
	birth Birth
	log   *slog.Logger
	inbox *inbox
	sm    StateMachine

	opened   time.Time
	quit     chan struct{} // closed: stop
	quitOnce sync.Once
	done     chan struct{} // closed: the goroutine ended and the state machine is closed
	ctx      context.Context
	cancel   context.CancelFunc
	children sync.WaitGroup
	syncSlot chan struct{} // one Sync at a time; taken for good before Close

	status    atomic.Pointer[Status]
	applied   atomic.Uint64
	commit    atomic.Uint64
	ownerSeen atomic.Int64
	pending   atomic.Int64         // proposed bytes not yet answered
	unsynced  atomic.Bool          // applied something since the last checkpoint
	resting   atomic.Pointer[rest] // nil: awake; set by the group's goroutine
	unsteady  atomic.Bool          // a snapshot is being fetched or installed: no checkpoint

	// Below: owned by the group's goroutine.

	rn       *raft.RawNode
	store    *storage
	st       state
	answered answer
	hard     log.HardState // newest handed to the journal

	ticks     uint64
	heard     map[ring.ReplicaID]uint64      // tick at which each replica last spoke
	strangers map[ring.ReplicaID]ring.NodeID // replicas newer than our configuration
	campaigns int                            // eager campaigns left after birth or restart
	stirred   uint64                         // tick at which something was last asked of this replica
	invited   *pb.Message                    // the owner's word that this follower may rest
	passing   bool                           // ticks go by at once: no heartbeats
	election  election

	role     raft.StateType
	term     uint64
	lead     uint64
	isReady  bool
	confSeq  uint64 // bumped when the configuration changed
	statusAt uint64 // tick of the last full status

	appends     []*appendOp // outstanding journal writes, oldest first
	heldAppends []*pb.Message
	applyQ      []*pb.Message
	applyPos    int

	unindexed []*proposal // proposed to raft, entry not seen yet
	inLog     []*proposal // by index
	held      []*proposal // applied, waiting for a second copy
	reads     map[uint64][]*readWait
	readsDue  []*readWait // index known, not yet applied
	readSeq   uint64
	transfers []*transferWait
	progress  []memberProgress

	fetch      *fetch
	installing bool
	fetchAfter uint64 // tick before which no new fetch starts
	fetchFails uint64
	snapIdle   map[uint64]uint64 // ticks a follower has waited for a snapshot that nobody sends
	snapOut    map[uint64]int    // snapshots being sent

	plan planState

	mend       mend
	unfitUntil map[ring.ReplicaID]uint64 // ticks until which replicas cannot lead, as they said
}

type memberProgress struct {
	id          ring.ReplicaID
	match       uint64
	learner     bool
	replicating bool
	snapshot    bool
}

// ID is the group's id.
func (g *Group) ID() ring.GroupID { return g.id }

// Birth is the record this replica came from.
func (g *Group) Birth() Birth { return g.birth }

// StateMachine is the group's state machine, for reading; its own documentation says what is safe concurrently.
func (g *Group) StateMachine() StateMachine { return g.sm }

// Done is closed when the replica has stopped: removed, failed, or the host ended.
func (g *Group) Done() <-chan struct{} { return g.done }

// newGroup opens a replica from what the journal and the store hold. Nothing runs yet.
func newGroup(h *Host, b Birth, gs log.GroupState, st state, sm StateMachine) (*Group, error) {
	g := &Group{
		h: h, id: b.Group, birth: b, inbox: newInbox(), sm: sm, st: st, hard: gs.HardState,
		opened: time.Now(),
		log:    h.logOf(b).With("replica", uint64(b.Self)),
		quit:   make(chan struct{}), done: make(chan struct{}), syncSlot: make(chan struct{}, 1),
		heard: map[ring.ReplicaID]uint64{}, strangers: map[ring.ReplicaID]ring.NodeID{},
		reads: map[uint64][]*readWait{}, snapIdle: map[uint64]uint64{}, snapOut: map[uint64]int{},
		unfitUntil: map[ring.ReplicaID]uint64{},
	}
	g.ctx, g.cancel = context.WithCancel(h.ctx)
	hard := gs.HardState
	hard.Commit = max(min(hard.Commit, gs.Last), st.applied.Index)
	g.store = &storage{journal: h.cfg.Journal, group: b.Group, hard: hard, st: &g.st,
		first: gs.First, last: gs.Last, compacted: gs.Compacted, cacheLimit: h.cfg.CacheBytes, node: &h.cached}
	rn, err := raft.NewRawNode(&raft.Config{
		ID: uint64(b.Self), ElectionTick: h.cfg.ElectionTicks, HeartbeatTick: h.cfg.HeartbeatTicks,
		Storage: g.store, Applied: st.applied.Index, AsyncStorageWrites: true,
		MaxSizePerMsg: uint64(h.cfg.MaxSizePerMsg), MaxCommittedSizePerReady: uint64(h.cfg.MaxApplyBytes),
		// Proposals are bounded before they get here; configuration changes must still fit when that bound is used up.
		MaxUncommittedEntriesSize: uint64(h.cfg.MaxUncommittedBytes) + 1<<20,
		MaxInflightMsgs:           h.cfg.MaxInflight, MaxInflightBytes: uint64(h.cfg.MaxInflightBytes),
		CheckQuorum: true, PreVote: true, ReadOnlyOption: raft.ReadOnlySafe,
		DisableProposalForwarding: true, StepDownOnRemoval: true, Logger: raftLogger{g.log},
	})
	if err != nil {
		g.cancel()
		return nil, fmt.Errorf("group %s: %w", b.Group, err)
	}
	g.rn = rn
	g.applied.Store(st.applied.Index)
	g.commit.Store(hard.Commit)
	g.term = hard.Term
	g.unsynced.Store(true)
	g.plan.every = uint64(h.cfg.PlanTicks)
	g.noteDamage()
	g.publish()
	return g, nil
}

// run is the group's goroutine.
func (g *Group) run() {
	defer close(g.done)
	err := g.runLoop()
	g.stop(err)
}

func (g *Group) loop() error {
	for {
		select {
		case <-g.quit:
			return nil
		case <-g.inbox.wake:
		}
		in, err := g.inbox.take()
		if err != nil {
			return err
		}
		g.finishAppends(in.appended)
		g.stir(in)
		for i, e := range in.msgs {
			g.step(in.msgFrom[i], e)
		}
		for _, t := range in.unsent {
			g.unreachable(t.to, t.snap)
		}
		for _, fn := range in.ctl {
			fn()
		}
		g.proposeAll(in.props)
		g.readAll(in.reads)
		if in.tick && g.resting.Load() == nil {
			g.tick()
		}
		err = g.work()
		g.h.outbox.kick()
		if err != nil {
			return err
		}
		g.settle()
		g.follow()
		if in.tick && g.resting.Load() == nil {
			g.lieDown()
		}
	}
}

// stir notes what is asked of a replica, and wakes it for that.
func (g *Group) stir(in *input) {
	if len(in.props)+len(in.reads)+len(in.ctl) > 0 {
		g.rouse("work")
		g.stirred = g.ticks
		return
	}
	if r := g.resting.Load(); r != nil {
		if in.lapsed {
			g.rouseLapsed(r)
		} else if in.look {
			g.lookAround(r)
		}
	}
}

// applyBudget is how long applying may keep the goroutine from messages and ticks at a time.
const applyBudget = 10 * time.Millisecond

// work handles what raft wants done until it wants nothing, or the time for applying is used up.
func (g *Group) work() error {
	until := time.Now().Add(applyBudget)
	for {
		g.drainReady()
		applied, err := g.apply(until)
		if err != nil {
			return err
		}
		if !applied && !g.rn.HasReady() {
			return nil
		}
		if !time.Now().Before(until) {
			g.inbox.signal()
			return nil
		}
	}
}

func (g *Group) drainReady() {
	for g.rn.HasReady() {
		rd := g.rn.Ready()
		g.indexProposals(rd.Entries)
		g.plan.noteConf(rd.Entries)
		g.noteReadStates(rd.ReadStates)
		for _, m := range rd.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				g.append(m)
			case raft.LocalApplyThread:
				g.applyQ = append(g.applyQ, m)
			default:
				g.send(m)
			}
		}
	}
}

// respond delivers a message that waited for storage.
func (g *Group) respond(m *pb.Message) {
	if m.GetTo() == uint64(g.birth.Self) {
		g.stepCore(m)
		return
	}
	g.send(m)
}

func (g *Group) stepCore(m *pb.Message) {
	if err := g.rn.Step(m); err != nil {
		g.log.Debug("message refused", "type", m.GetType().String(), "err", err)
	}
}

func (g *Group) tick() {
	g.ticks++
	if g.mend.why != nil {
		g.tickDamaged()
		return
	}
	g.endDoomed()
	if !g.votesSlowly() {
		g.rn.Tick()
		g.campaignEagerly()
	}
	if g.ticks%32 == 0 {
		g.store.refresh()
	}
	g.askIfSilent()
	if g.role == raft.StateLeader {
		g.ownerSeen.Store(time.Now().UnixNano())
		g.watchSnapshots()
		g.planTick()
	}
	g.evict()
}

// active tells whether a replica spoke within the last election timeout, by our ticks.
func (g *Group) active(id ring.ReplicaID) bool {
	if id == g.birth.Self {
		return true
	}
	at, ok := g.heard[id]
	return ok && g.ticks-at <= uint64(g.h.cfg.ElectionTicks)
}

// loadProgress fills g.progress from raft; empty unless owner.
func (g *Group) loadProgress() {
	g.progress = g.progress[:0]
	if g.role != raft.StateLeader {
		return
	}
	g.rn.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		g.progress = append(g.progress, memberProgress{id: ring.ReplicaID(id), match: pr.Match,
			learner: typ == raft.ProgressTypeLearner, replicating: pr.State == tracker.StateReplicate,
			snapshot: pr.State == tracker.StateSnapshot})
	})
}

// evict lets go of cached entries that every member has.
func (g *Group) evict() {
	done := g.st.applied.Index
	if g.role == raft.StateLeader {
		g.loadProgress()
		for _, p := range g.progress {
			if g.active(p.id) {
				done = min(done, p.match)
			}
		}
	}
	g.store.evict(done, g.st.applied.Index)
}

// post runs fn in the group's goroutine; false when the group has stopped.
func (g *Group) post(fn func()) bool {
	return g.inbox.put(func(in *input) { in.ctl = append(in.ctl, fn) })
}

// spawn runs fn in a goroutine that the group waits for.
func (g *Group) spawn(fn func()) { g.children.Go(fn) }

// close asks the goroutine to stop; it does not wait.
func (g *Group) close() { g.quitOnce.Do(func() { close(g.quit) }) }

// stop ends everything the goroutine owns.
func (g *Group) stop(err error) {
	g.cancel()
	left := g.inbox.close()
	if g.resting.Swap(nil) != nil {
		g.h.metrics.resting.Dec()
	}
	if g.role == raft.StateLeader {
		g.h.metrics.owned.Dec()
		g.sayOver()
		g.h.owns.Add(-1)
	}
	g.failAll(left)
	g.store.forget()
	for _, op := range g.appends {
		g.h.unwritten.add(-op.bytes)
	}
	g.children.Wait()
	if g.fetch != nil {
		discard(g.fetch.staged) // fetched, and nobody was told in time
	}
	if g.mend.why != nil {
		g.h.metrics.damaged.Dec()
	}
	g.syncSlot <- struct{}{} // never given back: no Sync after Close
	g.role, g.lead, g.isReady = raft.StateFollower, raft.None, false
	g.publish()
	g.h.ownerChanged(g.Status())
	if cerr := g.sm.Close(); cerr != nil {
		g.log.Warn("closing the state machine", "err", cerr)
	}
	if err != nil {
		g.log.Error("replica stopped", "err", err)
		g.h.groupFailed(g, err)
	}
}
