package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/memnet"
	"github.com/skeinmesh/skein/transport/quicnet"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Methods of the tests' node.
const (
	mEcho   wire.Method = 1000 + iota // request: the body, or an error for "fail"
	mHang                             // request: waits for its context
	mNote                             // message: recorded
	mMirror                           // stream: sends back what it gets
	mDeaf                             // stream: never reads
	mRefuse                           // stream: returns an error
	mFill                             // stream: fills the window and returns an error
)

// backend runs the same Peers over one kind of network.
type backend struct {
	name string
	// node returns a network for a node called name, at addr ("": any).
	node func(name, addr string) transport.Network
}

func backends() []backend {
	mem := memnet.New()
	return []backend{
		{"quic", func(_, addr string) transport.Network {
			if addr == "" {
				addr = "127.0.0.1:0"
			}
			return quicnet.New(addr)
		}},
		{"mem", func(name, addr string) transport.Network {
			if addr == "" {
				addr = name
			}
			return mem.Node(addr)
		}},
	}
}

func each(t *testing.T, f func(t *testing.T, b backend)) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) { f(t, b) })
	}
}

// logs keeps what a node logged.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range bytes.Split(l.b.Bytes(), []byte("\n")) {
		all := true
		for _, w := range words {
			all = all && bytes.Contains(line, []byte(w))
		}
		if all {
			return true
		}
	}
	return false
}

func (l *logs) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.b.Bytes(), []byte(word))
}

type node struct {
	dials atomic.Int64
	*transport.Peers
	id   ring.NodeID
	name string
	addr string
	logs *logs
	stop func()

	mu    sync.Mutex
	notes []string
	hung  atomic.Int32 // mHang handlers running
	freed atomic.Int32 // mHang handlers whose context ended
}

type option func(*transport.Config)

var boots atomic.Uint64

// start runs a node of secret "s".
func start(t testing.TB, b backend, name, addr string, opts ...option) *node {
	t.Helper()
	return startWith(t, b, name, addr, nil, opts...)
}

// countedNetwork counts the dials of its node.
type countedNetwork struct {
	transport.Network
	dials *atomic.Int64
}

type countedEndpoint struct {
	transport.Endpoint
	dials *atomic.Int64
}

func (c countedNetwork) Listen(o transport.ListenOptions) (transport.Endpoint, error) {
	ep, err := c.Network.Listen(o)
	if err != nil {
		return nil, err
	}
	return countedEndpoint{ep, c.dials}, nil
}

func (c countedEndpoint) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c.dials.Add(1)
	return c.Endpoint.Dial(ctx, addr)
}

// startWith registers more handlers before the node runs.
func startWith(t testing.TB, b backend, name, addr string, more func(*node), opts ...option) *node {
	t.Helper()
	n := &node{id: ring.NewNodeID(), name: name, logs: &logs{}}
	cfg := transport.DefaultConfig()
	cfg.Self = transport.Identity{NodeID: n.id, Name: name, ClusterID: "c", MeshID: ring.MeshID{1}, Boot: boots.Add(1), Nonce: boots.Load()}
	cfg.Network = countedNetwork{b.node(name, addr), &n.dials}
	cfg.Logger = slog.New(slog.NewTextHandler(n.logs, nil))
	for _, o := range opts {
		o(&cfg)
	}
	n.id = cfg.Self.NodeID
	if cfg.Credentials == nil {
		cfg.Credentials = creds(t, n.id, "s")
	}
	p, err := transport.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.Peers = p
	n.register()
	if more != nil {
		more(n)
	}
	if n.addr, err = p.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) { // of a killed node
			t.Errorf("%s: Run: %v", name, err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func creds(t testing.TB, id ring.NodeID, secret string, previous ...string) *transport.Credentials {
	t.Helper()
	var prev [][]byte
	for _, p := range previous {
		prev = append(prev, []byte(p))
	}
	c, err := transport.CredentialsFromSecret(id, []byte(secret), prev...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (n *node) register() {
	n.HandleRequest(mEcho, func(ctx context.Context, from ring.NodeID, body []byte) ([]byte, error) {
		if string(body) == "fail" {
			return nil, &wire.Error{Kind: wire.KindNotOwner, Op: "echo", Owner: n.id, Term: 7, RetryAfter: time.Second}
		}
		return body, nil
	})
	n.HandleRequest(mHang, func(ctx context.Context, from ring.NodeID, body []byte) ([]byte, error) {
		n.hung.Add(1)
		<-ctx.Done()
		n.freed.Add(1)
		return nil, ctx.Err()
	})
	n.Handle(mNote, func(from ring.NodeID, body []byte) error {
		if string(body) == "malformed" {
			return errors.New("cannot be read")
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.notes = append(n.notes, string(body[:min(len(body), 32)]))
		return nil
	})
	n.HandleStream(mMirror, func(ctx context.Context, from ring.NodeID, hello []byte, s wire.Stream) error {
		if err := s.Send(ctx, append([]byte("hello "), hello...)); err != nil {
			return err
		}
		for {
			f, err := s.Recv(ctx)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if err := s.Send(ctx, f); err != nil {
				return err
			}
		}
	})
	n.HandleStream(mDeaf, func(ctx context.Context, from ring.NodeID, hello []byte, s wire.Stream) error {
		n.hung.Add(1)
		<-ctx.Done()
		n.freed.Add(1)
		return ctx.Err()
	})
	n.HandleStream(mRefuse, func(ctx context.Context, from ring.NodeID, hello []byte, s wire.Stream) error {
		return &wire.Error{Kind: wire.KindFenced, Detail: "go away", Owner: n.id, Term: 3}
	})
}

func (n *node) noted() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.notes...)
}

// meet tells all nodes of all.
func meet(t testing.TB, nodes ...*node) {
	t.Helper()
	know(nodes...)
	for _, a := range nodes {
		for _, b := range nodes {
			until(t, fmt.Sprintf("%s reaches %s", a.name, b.name), func() bool { return a.both(b) })
		}
	}
}

func know(nodes ...*node) {
	addrs := map[ring.NodeID]string{}
	for _, n := range nodes {
		addrs[n.id] = n.addr
	}
	for _, n := range nodes {
		n.SetPeers(addrs)
	}
}

func (n *node) both(to *node) bool {
	if n == to {
		return true
	}
	for _, s := range n.Status() {
		if s.Node == to.id {
			return s.Up && s.BulkUp
		}
	}
	return false
}

func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCallReturnsAnswersAndErrors(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		for _, to := range []*node{c, a} { // the other and itself
			for _, class := range []wire.Class{wire.ClassControl, wire.ClassBulk} {
				sizes := []int{0, 1, 70_000, 700_000}
				if class == wire.ClassBulk {
					sizes = append(sizes, wire.MaxFrame)
				}
				for _, size := range sizes {
					body := bytes.Repeat([]byte{5}, size)
					got, err := a.Call(within(t, 10*time.Second), to.id, class, mEcho, body)
					if err != nil || !bytes.Equal(got, body) {
						t.Fatalf("%d bytes to %s: %d bytes, %v", size, to.name, len(got), err)
					}
				}
			}
			_, err := a.Call(within(t, 10*time.Second), to.id, wire.ClassControl, mEcho, []byte("fail"))
			e, ok := errors.AsType[*wire.Error](err)
			if !ok || e.Kind != wire.KindNotOwner || e.Owner != to.id || e.Term != 7 || e.RetryAfter != time.Second {
				t.Fatalf("to %s: %+v", to.name, err)
			}
			if _, err := a.Call(within(t, 10*time.Second), to.id, wire.ClassControl, 4000, nil); wire.CodeOf(err) != wire.CodeUnsupported {
				t.Fatalf("unknown method: %v", err)
			}
			if _, err := a.Call(within(t, time.Second), to.id, wire.ClassControl, mEcho, make([]byte, wire.MaxFrame+1)); wire.CodeOf(err) != wire.CodeTooLarge {
				t.Fatalf("too large: %v", err)
			}
		}
	})
}

func TestMessagesArriveInOrder(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		for _, to := range []*node{c, a} {
			const n = 3000
			for i := range n {
				body := make([]byte, 32+i%5000)
				copy(body, fmt.Appendf(nil, "%032d", i))
				if !a.Send(to.id, wire.ClassBulk, mNote, body) {
					t.Fatalf("message %d refused", i)
				}
			}
			until(t, "all messages", func() bool { return len(to.noted()) == n })
			for i, s := range to.noted() {
				if s != fmt.Sprintf("%032d", i) {
					t.Fatalf("message %d is %s", i, s)
				}
			}
		}
	})
}

func TestStreamsCarryFramesBothWays(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		for _, to := range []*node{c, a} {
			ctx := within(t, 10*time.Second)
			s, err := a.Open(ctx, to.id, wire.ClassBulk, mMirror, []byte("you"))
			if err != nil {
				t.Fatal(err)
			}
			if f, err := s.Recv(ctx); err != nil || string(f) != "hello you" {
				t.Fatalf("%q %v", f, err)
			}
			for _, size := range []int{0, 1, 5000, 200_000} {
				f := bytes.Repeat([]byte{3}, size)
				if err := s.Send(ctx, f); err != nil {
					t.Fatal(err)
				}
				if got, err := s.Recv(ctx); err != nil || !bytes.Equal(got, f) {
					t.Fatalf("%d bytes: %d %v", size, len(got), err)
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(ctx); err != io.EOF {
				t.Fatalf("after CloseSend: %v", err)
			}
			if err := s.Send(ctx, nil); wire.KindOf(err) != wire.KindClosed {
				t.Fatalf("send after CloseSend: %v", err)
			}
			if err := errors.Join(s.Close(nil), s.Close(nil)); err != nil {
				t.Fatal("Close must be idempotent")
			}
		}
	})
}

func TestStreamHandlersErrorReachesTheOpener(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		a, c := start(t, b, "a", ""), start(t, b, "c", "")
		meet(t, a, c)
		for _, to := range []*node{c, a} {
			ctx := within(t, 10*time.Second)
			s, err := a.Open(ctx, to.id, wire.ClassBulk, mRefuse, nil)
			if err != nil {
				t.Fatal(err)
			}
			for err == nil { // until the refusal has arrived
				err = s.Send(ctx, make([]byte, 10_000))
			}
			if wire.KindOf(err) != wire.KindFenced {
				t.Fatalf("send: %v", err)
			}
			_, err = s.Recv(ctx)
			e, ok := errors.AsType[*wire.Error](err)
			if !ok || e.Kind != wire.KindFenced || e.Owner != to.id || e.Detail != "go away" {
				t.Fatalf("recv: %+v", err)
			}
			_ = s.Close(nil)
		}
	})
}
