package replica

import (
	"context"
	"sync"

	"github.com/skeinmesh/skein/flow/log"
)

// appender stands between the groups and the journal: the journal may make its caller wait, and a group that waits sends no
// heartbeats. What queues here is bounded by what groups may have outstanding: an owner's uncommitted bytes, and for a
// follower the owner's in-flight window.
type appender struct {
	journal log.Journal
	try     tryAppender // the journal, if it can say that it would wait
	wake    chan struct{}

	mu    sync.Mutex
	queue []appendReq
	busy  bool // run is handing over what it took from the queue
}

// tryAppender is a journal that can say that Append would wait.
type tryAppender interface {
	TryAppend(writes []log.Write, sync bool, done func(error)) bool
}

type appendReq struct {
	writes []log.Write
	sync   bool
	done   func(error)
}

func newAppender(j log.Journal) *appender {
	try, _ := j.(tryAppender)
	return &appender{journal: j, try: try, wake: make(chan struct{}, 1)}
}

func (a *appender) add(w []log.Write, sync bool, done func(error)) {
	a.mu.Lock()
	if a.try != nil && !a.busy && len(a.queue) == 0 && a.try.TryAppend(w, sync, done) {
		a.mu.Unlock()
		return
	}
	a.queue = append(a.queue, appendReq{w, sync, done})
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run feeds the journal until ctx ends, which is when no group is there any more. What still waits then is left: nobody
// was told that it is stored, and a full or hung disk may never have room. It is left to its end, for a log without a piece in the middle
// would be another one.
func (a *appender) run(ctx context.Context) {
	var spare []appendReq
	for {
		a.mu.Lock()
		batch := a.queue
		a.queue = spare[:0]
		a.busy = len(batch) > 0
		a.mu.Unlock()
		for i, r := range batch {
			a.journal.Append(ctx, r.writes, r.sync, r.done)
			if ctx.Err() != nil {
				return
			}
			batch[i] = appendReq{}
		}
		spare = batch
		if len(batch) > 0 {
			continue
		}
		select {
		case <-a.wake:
		case <-ctx.Done():
			return
		}
	}
}
