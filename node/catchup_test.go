package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/quicnet"
)

// TestNewReplicaCatchesUpOverQUIC gives partitions a second replica, over real connections on loopback. With SKEIN_BOUNDS=full (`make
// bounds`) each holds 1 GiB, and the rate is held against that of copying as many bytes over one QUIC connection in this process into a file
// that is synced, in turn, each from a disk that has nothing else to write: a median of 3. How long it takes to send them to nowhere is told
// beside it.
func TestNewReplicaCatchesUpOverQUIC(t *testing.T) {
	rounds, size := 1, 12<<20
	if os.Getenv("SKEIN_BOUNDS") == "full" {
		rounds, size = 3, 1<<30
	}
	m := startPair(t)
	groups := make([]ring.GroupID, rounds)
	for i := range groups {
		groups[i] = m.fill(fmt.Sprintf("s%d", i), size)
	}
	m.poll("the publishers are forgotten", 10*time.Second, quietFor(2*time.Second))
	var ratios []float64
	for i, g := range groups {
		var raw, sent time.Duration
		if rounds > 1 {
			sent = copyOverQUIC(t, size, false)
			syscall.Sync()
			raw = copyOverQUIC(t, size, true)
			syscall.Sync()
		}
		took := m.catchUp(fmt.Sprintf("s%d", i), g)
		t.Logf("caught up with %d MiB in %s: %.0f MB/s; copied in %s, sent in %s", size>>20, took, float64(size)/took.Seconds()/1e6, raw, sent)
		ratios = append(ratios, raw.Seconds()/took.Seconds())
	}
	slices.Sort(ratios)
	if mid := ratios[len(ratios)/2]; rounds > 1 {
		t.Logf("of the rate of one QUIC connection: median %.2f of %.2f", mid, ratios)
		if mid < 0.6 {
			t.Errorf("a new replica catches up at %.2f of the rate of one QUIC connection, want 0.6", mid)
		}
	}
}

// quietFor is true once that time has passed: the throttle forgets publishers after a second.
func quietFor(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return time.Now().After(end) }
}

// startPair is a mesh of two nodes over QUIC.
func startPair(t *testing.T) *testMesh {
	t.Helper()
	m := &testMesh{t: t, logs: &syncBuffer{}}
	dir := t.TempDir()
	t.Cleanup(m.stop)
	for i := range 2 {
		cfg := config.Default()
		cfg.Name = fmt.Sprintf("n%d", i)
		cfg.ClusterID = "test"
		cfg.DataDir = filepath.Join(dir, cfg.Name)
		cfg.HTTP.Addr, cfg.QUIC.Addr, cfg.Gossip.Addr = "127.0.0.1:0", "127.0.0.1:0", gossipAddr()
		cfg.DynamicRebalanceEnabled = false // what is filled stays where it is
		cfg.Found = i == 0
		if i > 0 {
			cfg.Join = []string{m.nodes[0].cfg.Gossip.Addr}
		}
		n, err := newNode(cfg, slog.New(slog.NewTextHandler(m.logs, nil)), quicnet.New(cfg.QUIC.Addr))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		tn := &testNode{Node: n, cfg: cfg, cancel: cancel, ended: make(chan error, 1)}
		m.nodes = append(m.nodes, tn)
		go func() { tn.ended <- n.Run(ctx) }()
	}
	m.waitWhole()
	return m
}

// fill makes a stream of one partition on one node, with so many bytes that do not shrink.
func (m *testMesh) fill(name string, size int) ring.GroupID {
	m.t.Helper()
	m.must(0, 201, "PUT", "/v1/streams/"+name, `{"partitions":1,"replicas":1}`)
	const value = 60 << 10
	var wg sync.WaitGroup
	var left sync.Mutex
	todo := size / value
	take := func() bool {
		left.Lock()
		defer left.Unlock()
		todo--
		return todo >= 0
	}
	for i := range 16 {
		wg.Go(func() {
			noise := rand.NewChaCha8([32]byte{byte(i)})
			for take() {
				b := make([]byte, value)
				_, _ = noise.Read(b)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				if _, err := m.nodes[0].broker.Publish(ctx, name, []batch.Record{{Value: b}}, flow.PublishOptions{}); err != nil {
					m.t.Errorf("publish: %v", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for _, tn := range m.nodes {
		for _, g := range tn.host.Groups() {
			if p, ok := g.StateMachine().(*partition.Partition); ok && p.Spec().Name == name {
				return g.ID()
			}
		}
	}
	m.t.Fatalf("nobody has stream %s", name)
	return ring.GroupID{}
}

// catchUp has a stream's partition replicated to the other node, and tells how long that took from the birth of the replica there.
func (m *testMesh) catchUp(name string, g ring.GroupID) time.Duration {
	m.t.Helper()
	var from, to *replica.Group
	var dst *testNode
	for _, tn := range m.nodes {
		if lg, ok := tn.host.Group(g); ok {
			from = lg
		} else {
			dst = tn
		}
	}
	m.must(0, 200, "PATCH", "/v1/streams/"+name, `{"replicas":3}`, "Content-Type", "application/merge-patch+json")
	m.poll("the other node has a replica", 30*time.Second, func() bool {
		var ok bool
		to, ok = dst.host.Group(g)
		return ok
	})
	start := time.Now()
	m.poll("the replica has caught up", 5*time.Minute, func() bool { return to.Status().Applied >= from.Status().Applied })
	took := time.Since(start)
	a, b := from.StateMachine().(*partition.Partition), to.StateMachine().(*partition.Partition)
	if a.Next() != b.Next() || a.Bytes() != b.Bytes() {
		m.t.Errorf("%d events in %d bytes became %d in %d", a.Next(), a.Bytes(), b.Next(), b.Bytes())
	}
	return took
}

// copyOverQUIC copies so many bytes over one connection, into a file that is synced or to nowhere.
func copyOverQUIC(t *testing.T, size int, keep bool) time.Duration {
	t.Helper()
	sink, sync := io.Discard, func() error { return nil }
	if keep {
		f, err := os.Create(filepath.Join(t.TempDir(), "copy"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { f.Close(); os.Remove(f.Name()) }()
		sink, sync = f, f.Sync
	}
	ends := make([]transport.Endpoint, 2)
	for i := range ends {
		cred, err := transport.CredentialsFromSecret(ring.NodeID{byte(i + 1)}, []byte("a secret of thirty-two bytes.…"))
		if err != nil {
			t.Fatal(err)
		}
		ends[i], err = quicnet.New("127.0.0.1:0").Listen(transport.ListenOptions{Credentials: cred, MaxHandshakes: 8,
			HandshakeTimeout: 5 * time.Second, IdleTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		conn, err := ends[1].Accept(ctx)
		if err != nil {
			got <- err
			return
		}
		s, err := conn.AcceptStream(ctx)
		if err == nil {
			var n int64
			if n, err = io.CopyBuffer(struct{ io.Writer }{sink}, struct{ io.Reader }{s}, make([]byte, 256<<10)); err == nil {
				err = sync()
			}
			if err == nil && n != int64(size) {
				err = fmt.Errorf("%d bytes came of %d", n, size)
			}
		}
		got <- err
	}()
	conn, err := ends[0].Dial(ctx, ends[1].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(transport.CloseNormal, "done")
	s, err := conn.OpenStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	chunk := make([]byte, 256<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(chunk)
	for left := size; left > 0; left -= len(chunk) {
		if _, err := s.Write(chunk[:min(left, len(chunk))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}
