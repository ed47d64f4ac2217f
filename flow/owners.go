package flow

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// owners remembers who answered last for each group. Everything in it is a guess: an owner that is none says so.
type owners struct {
	b *Broker

	mu      sync.Mutex
	learned map[ring.GroupID]learnedOwner
}

type learnedOwner struct {
	node ring.NodeID
	term uint64
}

// maxLearned bounds the memory of the cache; beyond it the whole cache is dropped and learned again.
const maxLearned = 100_000

func (o *owners) init(b *Broker) {
	o.b = b
	o.learned = map[ring.GroupID]learnedOwner{}
}

// guess returns the most likely owner: the local replica's word, what was learned, or gossip, by the highest term.
func (o *owners) guess(g ring.GroupID) (ring.NodeID, bool) {
	var best learnedOwner
	take := func(n ring.NodeID, term uint64) {
		if !n.IsZero() && (best.node.IsZero() || term > best.term) {
			best = learnedOwner{n, term}
		}
	}
	if lg, ok := o.b.cfg.Groups.Group(g); ok {
		st := lg.Status()
		take(st.Owner, st.Term)
	}
	o.mu.Lock()
	l := o.learned[g]
	o.mu.Unlock()
	take(l.node, l.term)
	if n, term, ok := o.b.cfg.Directory.Owner(g); ok {
		take(n, term)
	}
	return best.node, !best.node.IsZero()
}

// learn notes a hint from an error or an answer.
func (o *owners) learn(g ring.GroupID, n ring.NodeID, term uint64) {
	if n.IsZero() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.learned) >= maxLearned {
		clear(o.learned)
	}
	if cur, ok := o.learned[g]; !ok || term >= cur.term {
		o.learned[g] = learnedOwner{n, term}
	}
}

// forget drops what was learned when it turned out wrong.
func (o *owners) forget(g ring.GroupID, n ring.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.learned[g].node == n {
		delete(o.learned, g)
	}
}

// Waits between attempts to find an owner: short at first, because elections take a fraction of a second.
const (
	retryFirst = 15 * time.Millisecond
	retryCap   = 150 * time.Millisecond
	// attemptTimeout bounds one attempt, so that a dead node found in the cache does not eat the whole deadline.
	attemptTimeout = 2 * time.Second
)

// withOwner calls fn with the owner of g until it succeeds, fails for good, or ctx ends. What fn returns decides: KindNotOwner,
// KindUnavailable and KindClosed are tried again elsewhere. safe says that fn may be repeated after KindOutcomeUnknown.
// known are nodes that may know, asked in turn when nobody claims the group.
func (b *Broker) withOwner(ctx context.Context, g ring.GroupID, known []ring.NodeID, safe bool, fn func(ctx context.Context, owner ring.NodeID) error) error {
	var last error
	wait := retryFirst
	for try := 0; ; try++ {
		before, ok := b.owners.guess(g)
		owner := before
		if !ok || try%3 == 2 {
			owner, ok = b.anyOf(known, try)
		}
		if ok {
			actx, cancel := context.WithTimeout(ctx, attemptTimeout)
			watch := b.watchOwner(g, owner, before, cancel)
			err := fn(actx, owner)
			watch.stop()
			cancel()
			retry, hinted := b.judge(g, owner, err, safe)
			if !retry {
				return err
			}
			last = err
			if hinted && try < 8 {
				continue
			}
		}
		if err := sleep(ctx, b.jittered(wait)); err != nil {
			return noOwner(g, last)
		}
		wait = min(wait*2, retryCap)
	}
}

// ownerWatch calls back once another owner of a group is known than the one being asked: a dead owner does not answer, and its
// successor is elected long before its connection is given up.
type ownerWatch struct {
	b       *Broker
	group   ring.GroupID
	asked   ring.NodeID
	before  ring.NodeID // who was believed to own it when the attempt began: whoever is asked may be another one, for a reason
	changed func()

	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

// ownerGlance is how often a waiting attempt looks whether ownership moved.
const ownerGlance = 40 * time.Millisecond

func (b *Broker) watchOwner(g ring.GroupID, asked, before ring.NodeID, changed func()) *ownerWatch {
	w := &ownerWatch{b: b, group: g, asked: asked, before: before, changed: changed}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(ownerGlance, w.look)
	return w
}

func (w *ownerWatch) look() {
	now, known := w.b.owners.guess(w.group)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if known && now != w.asked && now != w.before {
		w.over = true
		w.changed()
		return
	}
	w.timer.Reset(ownerGlance)
}

// stop ends the watch; changed is not called afterwards.
func (w *ownerWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// anyOf picks a node to ask when no owner is known: one of those that the caller knows of at first, then those and the live members alike,
// for all replicas may have moved away from where they were.
func (b *Broker) anyOf(known []ring.NodeID, try int) (ring.NodeID, bool) {
	ask := known
	if len(known) == 0 || try > 0 {
		ask = slices.Concat(known, b.cfg.Directory.Live())
	}
	if len(ask) == 0 {
		return ring.NodeID{}, false
	}
	return ask[b.cfg.Rand(int64(len(ask)))], true
}

// judge says whether an attempt's error is worth another attempt, and whether it named another owner.
func (b *Broker) judge(g ring.GroupID, asked ring.NodeID, err error, safe bool) (retry, hinted bool) {
	if err == nil {
		b.metrics.ownerCalls.WithLabelValues("ok").Inc()
		return false, false
	}
	b.metrics.ownerCalls.WithLabelValues("failed").Inc()
	e, isWire := errors.AsType[*wire.Error](err)
	if !isWire {
		return (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) && safe, false
	}
	switch e.Kind {
	case wire.KindNotOwner, wire.KindFenced:
		b.owners.forget(g, asked)
		if e.Kind == wire.KindFenced {
			return false, false
		}
		if !e.Owner.IsZero() && e.Owner != asked {
			b.owners.learn(g, e.Owner, e.Term)
			return true, true
		}
		return true, false
	case wire.KindUnavailable, wire.KindClosed:
		b.owners.forget(g, asked)
		return e.Code == "" || e.Code == wire.CodeNoQuorum || e.Code == wire.CodeDraining, false
	case wire.KindOutcomeUnknown:
		b.owners.forget(g, asked)
		return safe, false
	}
	return false, false
}

// noOwner is the error when the deadline came before any owner answered.
func noOwner(g ring.GroupID, last error) error {
	if wire.KindOf(last) == wire.KindOutcomeUnknown {
		return last
	}
	return &wire.Error{Kind: wire.KindUnavailable, Code: wire.CodeNoQuorum, Err: last, RetryAfter: time.Second,
		Detail: "no owner with a quorum answered in time; it is retried when a majority of the replicas is back (group " + g.String() + ")"}
}

// CallOwner makes a request to the owner of a group, wherever it is, and finds it again where it moves meanwhile: the request may be made
// more than once. A handler that does not own the group answers with LocalOwner's error. Errors: as the handler's; KindUnavailable when no
// owner answers before ctx ends.
func (b *Broker) CallOwner(ctx context.Context, g ring.GroupID, m wire.Method, body []byte) (answer []byte, err error) {
	err = b.withOwner(ctx, g, nil, true, func(ctx context.Context, owner ring.NodeID) (err error) {
		answer, err = b.cfg.Peers.Call(ctx, owner, wire.ClassControl, m, body)
		return err
	})
	return answer, err
}

// LocalOwner returns the local replica of g if it owns the group and may propose; else KindNotOwner with who does, as far as is known.
func (b *Broker) LocalOwner(g ring.GroupID) (*replica.Group, error) { return b.localOwner(g) }

// localOwner returns the local replica of g if it owns the group and may propose; else the error that says who does.
func (b *Broker) localOwner(g ring.GroupID) (*replica.Group, error) {
	lg, ok := b.cfg.Groups.Group(g)
	if !ok {
		e := &wire.Error{Kind: wire.KindNotOwner, Detail: "this node holds no replica of the group"}
		if n, term, ok := b.cfg.Directory.Owner(g); ok && n != b.cfg.Self {
			e.Owner, e.Term = n, term
		}
		return nil, e
	}
	st := lg.Status()
	if st.Role == replica.RoleOwner && st.Ready {
		return lg, nil
	}
	e := &wire.Error{Kind: wire.KindNotOwner, Term: st.Term, Detail: "this node does not own the group"}
	if st.Owner != b.cfg.Self {
		e.Owner = st.Owner
	}
	return nil, e
}
