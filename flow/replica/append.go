package replica

import (
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/planted"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// appendOp is one write on its way to the journal and what is delivered once it is there.
type appendOp struct {
	responses []*pb.Message
	last      uint64 // last index of the log after the write; 0: unchanged
	reset     *log.Mark
	bytes     int64 // of its entries
	start     time.Time
	votes     bool   // the term or the vote changes
	tick      uint64 // at which it began
}

// append handles raft's wish to store something. Such wishes are served strictly in order.
func (g *Group) append(m *pb.Message) {
	if g.installing {
		g.heldAppends = append(g.heldAppends, m)
		return
	}
	if !raft.IsEmptySnap(m.GetSnapshot()) {
		g.install(m)
		return
	}
	g.write(m, nil)
}

// write hands one message's content to the journal. Its responses are delivered when it and all before it are durable.
func (g *Group) write(m *pb.Message, reset *log.Mark) {
	w := log.Write{Group: g.id, Reset: reset}
	op := &appendOp{responses: m.GetResponses(), reset: reset, start: time.Now(), tick: g.ticks}
	if m.Term != nil {
		was := g.hard
		g.hard = log.HardState{Term: m.GetTerm(), Vote: m.GetVote(), Commit: m.GetCommit()}
		if op.votes = g.hard.Term != was.Term || g.hard.Vote != was.Vote; op.votes {
			w.HardState = &log.HardState{Term: g.hard.Term, Vote: g.hard.Vote, Commit: g.hard.Commit}
		}
	}
	if es := m.GetEntries(); len(es) > 0 {
		w.Entries = journalEntries(es)
		w.HardState = &log.HardState{Term: g.hard.Term, Vote: g.hard.Vote, Commit: g.hard.Commit}
		op.last = es[len(es)-1].GetIndex()
		for _, e := range es {
			op.bytes += int64(entrySize(e))
		}
		g.h.unwritten.add(op.bytes)
		g.store.remember(es)
		if g.h.cached.over() {
			g.store.evict(g.st.applied.Index, g.st.applied.Index) // not only with the next tick
		}
	}
	if w.HardState == nil && reset == nil {
		// At most the commit index moved. It is not worth an fsync, nor a write: raft finds it again, and it goes along with the next
		// entries. Answers wait only for what was to be written before.
		if len(g.appends) > 0 {
			last := g.appends[len(g.appends)-1]
			last.responses = append(last.responses, op.responses...)
			return
		}
		for _, r := range op.responses {
			g.respond(r)
		}
		return
	}
	if w.HardState == nil {
		w.HardState = &log.HardState{Term: g.hard.Term, Vote: g.hard.Vote, Commit: g.hard.Commit}
	}
	g.appends = append(g.appends, op)
	g.plantWrite(&w)
	g.h.appender.add([]log.Write{w}, !planted.Is(planted.SkipFsync), g.inbox.appendDone)
}

func journalEntries(es []*pb.Entry) []log.Entry {
	out := make([]log.Entry, len(es))
	for i, e := range es {
		out[i] = journalEntry(e)
	}
	return out
}

func journalEntry(e *pb.Entry) log.Entry {
	return log.Entry{Index: e.GetIndex(), Term: e.GetTerm(), Type: log.EntryType(e.GetType()), Data: e.GetData()}
}

// finishAppends delivers the responses of the n oldest outstanding writes.
func (g *Group) finishAppends(n int) {
	for range n {
		op := g.appends[0]
		g.appends[0] = nil
		g.appends = g.appends[1:]
		g.h.unwritten.add(-op.bytes)
		g.h.metrics.appendSeconds.Observe(time.Since(op.start).Seconds())
		g.wrote(op)
		if op.reset != nil {
			g.store.compacted, g.store.first = *op.reset, op.reset.Index+1
			g.store.stable(op.reset.Index)
		}
		if op.last != 0 {
			g.store.stable(op.last)
		}
		for _, r := range op.responses {
			g.respond(r)
		}
		g.plantAppended(op)
	}
}
