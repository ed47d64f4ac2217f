package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/node/api"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// maxOperations is how many operations a node remembers.
const maxOperations = 256

// operator carries out what operators ask. What is about a node is done and kept by that node, what is about a partition by its owner; any
// node passes a question on. Safe for concurrent use.
type operator struct {
	n       *Node
	reports *reports
	met     opsMetrics
	wake    chan struct{}

	acting sync.Mutex // one change of this node's marks at a time, its fsync included

	mu     sync.Mutex
	table  *ops.Table
	closed bool
	wg     sync.WaitGroup
	life   context.Context // of what was started here
	end    context.CancelFunc
}

var _ api.Operator = (*operator)(nil)

func (n *Node) openOps() error {
	o := &operator{n: n, reports: newReports(n), wake: make(chan struct{}, 1),
		table: ops.NewTable(n.data.id.NodeID, n.cfg.Load().Name, n.data.id.Boot, maxOperations)}
	o.life, o.end = context.WithCancel(context.Background())
	o.met = newOpsMetrics(n.registry, o)
	if err := o.restore(time.Now()); err != nil {
		return err
	}
	n.ops = o
	n.peers.HandleRequest(wire.MethodOps, o.handle)
	return nil
}

// run looks after the drain of this node until ctx ends; then it ends what was started here, and waits for it.
func (o *operator) run(ctx context.Context) error {
	defer o.stop()
	const glance = time.Second
	t := time.NewTicker(glance)
	defer t.Stop()
	for {
		o.watchDrain(ctx)
		select {
		case <-t.C:
		case <-o.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (o *operator) stop() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.end()
	o.wg.Wait()
}

// spawn starts what stop waits for; false after it.
func (o *operator) spawn(fn func(ctx context.Context)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.wg.Go(func() { fn(o.life) })
	return true
}

func (o *operator) self() ring.NodeID { return o.n.data.id.NodeID }

func (o *operator) add(op ops.Operation) (ops.Operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.table.Add(time.Now(), op)
}

// update changes an operation that is not over, and counts it when that ended it.
func (o *operator) update(id string, change func(*ops.Operation)) {
	o.mu.Lock()
	op, ok := o.table.Update(time.Now(), id, change)
	o.mu.Unlock()
	if ok && op.Over() {
		o.ended(op)
	}
}

func (o *operator) ended(op ops.Operation) {
	o.met.ended.WithLabelValues(string(op.Kind), string(op.State)).Inc()
	level := o.n.log.Info
	if op.State == ops.Failed {
		level = o.n.log.Warn
	}
	level("an operation has ended", "operation", op.ID, "kind", string(op.Kind), "state", string(op.State), "reason", op.Reason)
}

// finished keeps an operation that was over at once.
func (o *operator) finished(op ops.Operation) (ops.Operation, error) {
	op.State = ops.Done
	op, err := o.add(op)
	if err == nil {
		o.ended(op)
	}
	return op, err
}

// planned is the answer to a dry run: nothing was done and nothing is kept.
func (o *operator) planned(op ops.Operation) ops.Operation {
	op.State, op.Keeper = ops.Planned, o.n.cfg.Load().Name
	op.Started = ops.At(time.Now())
	op.Updated = op.Started
	return op
}

// Ask carries a request out, or has the node do it that must; see api.Operator.
func (o *operator) Ask(ctx context.Context, req ops.Request) (ops.Operation, error) {
	if o.n.mesh().IsZero() {
		return ops.Operation{}, wire.Errorf(wire.KindUnavailable, wire.CodeNoQuorum, notJoined)
	}
	if !req.Kind.OfNode() {
		return o.askOwner(ctx, req)
	}
	m, err := o.resolve(req.Node)
	switch {
	case err != nil:
		return ops.Operation{}, err
	case m.ID == o.self():
		return o.here(ctx, req)
	case !m.Present():
		return o.gone(ctx, req, m)
	}
	req.Node = m.ID.String()
	ans, err := o.call(ctx, m.ID, opsQuestion{Op: opsAsk, Request: req})
	return ans.first(), err
}

// here carries out what is about this node.
func (o *operator) here(ctx context.Context, req ops.Request) (ops.Operation, error) {
	switch req.Kind {
	case ops.Drain:
		return o.drain(ctx, req.DryRun)
	case ops.CancelDrain:
		return o.cancelDrain(req.DryRun)
	case ops.Cordon, ops.Uncordon:
		return o.cordon(req.Kind, req.DryRun)
	}
	return ops.Operation{}, wire.Errorf(wire.KindInvalid, "", "operation %q is not known to this version", string(req.Kind))
}

// resolve finds a member by the name that it is shown under, its own name, or its id.
func (o *operator) resolve(s string) (view.Member, error) {
	v := o.n.gossip.View()
	members := v.Members()
	if err := ambiguous(members, s); err != nil {
		return view.Member{}, err
	}
	for _, m := range members {
		if m.State != view.StateUnknown && o.n.dir.Name(m.ID) == s {
			return m, nil
		}
	}
	if m, ok := v.ByName(s); ok {
		return m, nil
	}
	if id, err := ring.ParseNodeID(s); err == nil {
		if m, ok := v.Member(id); ok {
			return m, nil
		}
	}
	var names []string
	for _, m := range members[:min(len(members), 50)] {
		names = append(names, o.n.dir.Name(m.ID))
	}
	slices.Sort(names)
	return view.Member{}, wire.Errorf(wire.KindNotFound, codeNodeNotFound, "no node %q; known are %s", s, strings.Join(names, ", "))
}

// ambiguous is an error where several nodes that are there have the name: none is chosen, for it could be the wrong one that is emptied.
func ambiguous(members []view.Member, name string) error {
	var of []string
	for _, m := range members {
		if m.Name == name && m.Present() {
			of = append(of, fmt.Sprintf("%s (at %s)", m.ID, m.GossipAddr))
		}
	}
	if len(of) < 2 {
		return nil
	}
	return wire.Errorf(wire.KindInvalid, "", "%d nodes are named %q: say which by its id, and give each a name of its own: %s",
		len(of), name, strings.Join(of, ", "))
}

// Codes of operations, which are the API's words.
const (
	codeNodeNotFound      = "node-not-found"
	codeNodeGone          = "node-gone"
	codeLastNode          = "last-node"
	codeNodeDraining      = "node-draining"
	codeOperationNotFound = "operation-not-found"
	codePartitionNotFound = "partition-not-found"
	codeNotPossible       = "not-possible"
)

// Operation asks the node that keeps an operation.
func (o *operator) Operation(ctx context.Context, id string) (ops.Operation, error) {
	keeper, ok := ops.KeeperOf(id)
	if !ok {
		return ops.Operation{}, wire.Errorf(wire.KindNotFound, codeOperationNotFound, "%q is no operation's id", id)
	}
	if keeper == o.self() {
		return o.kept(id)
	}
	m, known := o.n.gossip.View().Member(keeper)
	switch {
	case !known:
		return ops.Operation{}, wire.Errorf(wire.KindNotFound, codeOperationNotFound, "the node that keeps this operation is not known here")
	case !m.Present():
		return ops.Operation{}, wire.Errorf(wire.KindUnavailable, codeNodeGone, "%s keeps this operation, and is gone since %s",
			o.n.dir.Name(keeper), m.Since.UTC().Format(time.RFC3339))
	}
	ans, err := o.call(ctx, keeper, opsQuestion{Op: opsGet, ID: id})
	return ans.first(), err
}

func (o *operator) kept(id string) (ops.Operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op, ok := o.table.Get(id); ok {
		return op, nil
	}
	return ops.Operation{}, wire.Errorf(wire.KindNotFound, codeOperationNotFound,
		"operation %s is not remembered: a node keeps its last %d, and of an earlier start only its drain", id, maxOperations)
}

func (o *operator) list() []ops.Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.table.List()
}

// Operations gathers a page of what all nodes keep. No more of it is held meanwhile than the page and what nodes just say.
func (o *operator) Operations(ctx context.Context, page ops.Page) (ops.List, error) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	out := ops.List{Observer: o.n.cfg.Load().Name, AsOf: ops.At(time.Now())}
	more := false
	out.Operations, more = page.Of(o.list())
	var mu sync.Mutex
	o.eachPeer(func(m view.Member) {
		ans, err := o.call(ctx, m.ID, opsQuestion{Op: opsList, Page: page})
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.Silent = append(out.Silent, o.n.dir.Name(m.ID))
			return
		}
		var over bool
		out.Operations, over = page.Of(append(out.Operations, ans.Operations...))
		more = more || over || ans.More
	})
	slices.Sort(out.Silent)
	if out.Operations == nil {
		out.Operations = []ops.Operation{}
	}
	if n := len(out.Operations); more && n > 0 {
		out.NextCursor = out.Operations[n-1].Place().String()
	}
	return out, nil
}

// listWait is how long a list waits for nodes that do not answer.
const listWait = 2 * time.Second

// peersAtOnce bounds how many nodes are asked at a time.
const peersAtOnce = 16

// eachPeer calls ask for every other member that is there, several at a time, and returns when all have returned.
func (o *operator) eachPeer(ask func(view.Member)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, peersAtOnce)
	for _, m := range o.n.gossip.View().Members() {
		if m.ID == o.self() || !m.Present() || m.Mesh.IsZero() {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ask(m)
		})
	}
	wg.Wait()
}

// call asks another node.
func (o *operator) call(ctx context.Context, to ring.NodeID, q opsQuestion) (opsAnswer, error) {
	body, err := wire.Marshal(&q)
	if err != nil {
		return opsAnswer{}, err
	}
	raw, err := o.n.peers.Call(ctx, to, wire.ClassControl, wire.MethodOps, body)
	if err != nil {
		return opsAnswer{}, o.asked(to, err)
	}
	var ans opsAnswer
	err = wire.Unmarshal(raw, &ans)
	return ans, err
}

// asked says of an error that has no words for people whom it is about.
func (o *operator) asked(to ring.NodeID, err error) error {
	e, ok := errors.AsType[*wire.Error](err)
	if ok && (e.Kind == wire.KindUnavailable || e.Kind == wire.KindClosed) && e.Code == "" {
		return &wire.Error{Kind: wire.KindUnavailable, Err: err, RetryAfter: time.Second,
			Detail: fmt.Sprintf("%s must act and does not answer; nothing was done", o.n.dir.Name(to))}
	}
	return err
}
