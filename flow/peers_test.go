package flow

import (
	"context"
	"fmt"
	"slices"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// fakePeers is the transport of one node.
type fakePeers struct{ nd *node }

func (p *fakePeers) Send(to ring.NodeID, _ wire.Class, body []byte) bool {
	nd, ok := p.nd.m.reach(p.nd.i, to)
	return ok && nd.takes(func() { _ = nd.host.HandleRaft(p.nd.id, slices.Clone(body)) })
}

func unreachable(to ring.NodeID) error {
	return &wire.Error{Kind: wire.KindUnavailable, Detail: fmt.Sprintf("node %s cannot be reached", to)}
}

func (p *fakePeers) Call(ctx context.Context, to ring.NodeID, _ wire.Class, m wire.Method, body []byte) ([]byte, error) {
	nd, ok := p.nd.m.reach(p.nd.i, to)
	if !ok {
		return nil, unreachable(to)
	}
	type answer struct {
		body []byte
		err  error
	}
	done := make(chan answer, 1)
	body = slices.Clone(body)
	if !nd.serve(func(life context.Context, host *replica.Host, broker *Broker) {
		hctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		b, err := handler(m, host, broker)(hctx, p.nd.id, body)
		done <- answer{b, err}
	}) {
		return nil, unreachable(to)
	}
	select {
	case a := <-done:
		p.nd.m.late.Load().wait(ctx, p.nd.i, m)
		if _, still := p.nd.m.reach(p.nd.i, to); !still {
			return nil, errGone
		}
		if a.err != nil {
			return nil, wire.AsError(a.err)
		}
		return a.body, nil
	case <-ctx.Done():
		return nil, &wire.Error{Kind: wire.KindOutcomeUnknown, Code: wire.CodeOutcomeUnknown, Err: ctx.Err()}
	}
}

// handler is what answers a method on a node.
func handler(m wire.Method, host *replica.Host, b *Broker) wire.RequestHandler {
	return map[wire.Method]wire.RequestHandler{
		wire.MethodBirth: host.HandleBirth, wire.MethodUnfit: host.HandleUnfit,
		wire.MethodRemoval: host.HandleRemoval, wire.MethodReserve: host.HandleReserve,
		wire.MethodCatalog: b.HandleCatalog, wire.MethodPartition: b.HandlePartition,
		wire.MethodImport: b.HandleImport,
		wire.MethodFounding: func(ctx context.Context, _ ring.NodeID, body []byte) ([]byte, error) {
			var b replica.Birth
			if err := wire.Unmarshal(body, &b); err != nil {
				return nil, err
			}
			return nil, host.Create(ctx, b)
		},
	}[m]
}

func (p *fakePeers) Open(ctx context.Context, to ring.NodeID, _ wire.Class, m wire.Method, hello []byte) (wire.Stream, error) {
	nd, ok := p.nd.m.reach(p.nd.i, to)
	if !ok || m == wire.MethodSnapshot && p.nd.m.noSnapshots.Load() {
		return nil, unreachable(to)
	}
	near, far := newPipe()
	p.nd.m.mu.Lock()
	p.nd.m.pipes[near] = [2]int{p.nd.i, nd.i}
	p.nd.m.mu.Unlock()
	hello = slices.Clone(hello)
	if !nd.serve(func(life context.Context, host *replica.Host, b *Broker) {
		handler := map[wire.Method]wire.StreamHandler{wire.MethodPublish: b.HandlePublish, wire.MethodSubscribe: b.HandleSubscribe,
			wire.MethodSnapshot: host.HandleSnapshot}[m]
		hctx, cancel := context.WithCancel(life)
		defer cancel()
		defer context.AfterFunc(near.gone, cancel)()
		if err := handler(hctx, p.nd.id, hello, far); err != nil {
			_ = far.Close(err)
		} else {
			_ = far.CloseSend()
		}
		p.nd.m.mu.Lock()
		delete(p.nd.m.pipes, near)
		p.nd.m.mu.Unlock()
	}) {
		return nil, unreachable(to)
	}
	return near, nil
}

// directory believes what the nodes that this one reaches say of themselves.
type directory struct{ nd *node }

func (d directory) Owner(g ring.GroupID) (owner ring.NodeID, term uint64, ok bool) {
	for _, other := range d.nd.m.nodes {
		if _, reached := d.nd.m.reach(d.nd.i, other.id); !reached || other == d.nd {
			continue
		}
		other.takes(func() {
			if lg, here := other.host.Group(g); here {
				if st := lg.Status(); st.Role == replica.RoleOwner && st.Ready && st.Term > term {
					owner, term, ok = other.id, st.Term, true
				}
			}
		})
	}
	return owner, term, ok
}

func (d directory) Name(n ring.NodeID) string { return fmt.Sprintf("n%d", n[15]-1) }

func (d directory) Live() (out []ring.NodeID) {
	for _, other := range d.nd.m.nodes {
		if _, ok := d.nd.m.reach(d.nd.i, other.id); ok {
			out = append(out, other.id)
		}
	}
	return out
}

func (d directory) Place(groups []ring.GroupID, n int) [][]ring.NodeID {
	live := d.Live()
	out := make([][]ring.NodeID, len(groups))
	for k, g := range groups {
		for i := range min(n, len(live)) {
			out[k] = append(out[k], live[(int(g[0])+i)%len(live)])
		}
	}
	return out
}

// placement leaves every group where it is.
type placement struct{ m *mesh }

func (placement) Desired(_ ring.GroupID, _ int, current, _ []ring.NodeID) []ring.NodeID {
	return current
}
func (placement) Takes(ring.NodeID) bool   { return true }
func (placement) Leaving(ring.NodeID) bool { return false }
func (placement) Declined(ring.NodeID)     {}
func (placement) Relief(ring.GroupID, []ring.NodeID) (from, to ring.NodeID, ok bool) {
	return from, to, false
}
func (placement) Share() (low, high int)                    { return 0, 1 << 30 }
func (placement) Owned(ring.NodeID) (count, mean, high int) { return 0, 1 << 30, 1 << 30 }
func (p placement) Alive(ring.NodeID) bool                  { return true }
