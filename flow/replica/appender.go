package replica

import (
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

// run feeds the journal until stop is closed and the queue is empty.
func (a *appender) run(stop <-chan struct{}) {
	var spare []appendReq
	for {
		a.mu.Lock()
		batch := a.queue
		a.queue = spare[:0]
		a.busy = len(batch) > 0
		a.mu.Unlock()
		for i, r := range batch {
			a.journal.Append(r.writes, r.sync, r.done)
			batch[i] = appendReq{}
		}
		spare = batch
		if len(batch) > 0 {
			continue
		}
		select {
		case <-a.wake:
		case <-stop:
			a.mu.Lock()
			empty := len(a.queue) == 0
			a.mu.Unlock()
			if empty {
				return
			}
		}
	}
}
