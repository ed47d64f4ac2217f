package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/transport/memnet"
)

// memberlist does not wait for a probe that is under way when it shuts down; it ends by itself with its timeout.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// testMesh is nodes in this process: real gossip, HTTP and disks, and peers over an in-memory network whose links can be cut.
type testMesh struct {
	t     *testing.T
	net   *memnet.Net
	nodes []*testNode
	logs  *syncBuffer
}

type testNode struct {
	*Node
	cfg    config.Config
	addr   string // in the in-memory network
	cancel context.CancelFunc
	ended  chan error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var gossipHosts atomic.Uint32

// gossipAddr is an address for one node's gossip, on a loopback address of its own: on a shared one, a port that was free may be taken
// by anybody, also while the node restarts.
func gossipAddr() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:8402", 64+pid>>8%64, pid&0xff, 1+gossipHosts.Add(1)%250)
}

// testConfig is that of a node whose data is under dir. Its owners speak often, and look often at what is to be done: those paces follow from
// the heartbeat. The silence that costs an owner its place is the default's, so that a busy machine elects no more than in service.
func testConfig(name, dir string) config.Config {
	cfg := config.Default()
	cfg.Name, cfg.ClusterID, cfg.DataDir = name, "test", filepath.Join(dir, name)
	cfg.HTTP.Addr, cfg.Gossip.Addr = "127.0.0.1:0", gossipAddr()
	cfg.Raft.HeartbeatMS = 20
	return cfg
}

// startMesh runs n nodes and waits until they are one mesh whose groups have their replicas.
func startMesh(t *testing.T, n int) *testMesh {
	t.Helper()
	return startMeshWith(t, n, func(*config.Config) {})
}

// startStill is startMesh without balancing: copies and ownership stay where they are.
func startStill(t *testing.T, n int) *testMesh {
	t.Helper()
	return startMeshWith(t, n, func(c *config.Config) { c.DynamicRebalanceEnabled = false })
}

func startMeshWith(t *testing.T, n int, edit func(*config.Config)) *testMesh {
	t.Helper()
	m := &testMesh{t: t, net: memnet.New(), logs: &syncBuffer{}}
	dir := t.TempDir() // its removal comes after stop
	t.Cleanup(m.stop)
	for i := range n {
		m.add(dir, i, edit)
		m.start(i)
	}
	m.waitWhole()
	m.poll("every node knows what each holds, so that new groups are spread over all", 20*time.Second, func() bool {
		for _, tn := range m.nodes {
			if slices.ContainsFunc(m.nodes, func(other *testNode) bool { return !tn.dir.Counted().Known(other.data.id.NodeID) }) {
				return false
			}
		}
		return true
	})
	return m
}

// add makes the configuration of node i, which is the next one.
func (m *testMesh) add(dir string, i int, edit func(*config.Config)) {
	cfg := testConfig(fmt.Sprintf("n%d", i), dir)
	cfg.Found = i == 0
	if i > 0 {
		cfg.Join = []string{m.nodes[0].cfg.Gossip.Addr}
	}
	edit(&cfg)
	m.nodes = append(m.nodes, &testNode{cfg: cfg, addr: fmt.Sprintf("127.0.9.%d:1", i+1)})
}

func (m *testMesh) start(i int) {
	m.t.Helper()
	m.open(i)
	m.run(i)
}

// open makes node i, and run runs it.
func (m *testMesh) open(i int) {
	m.t.Helper()
	tn := m.nodes[i]
	logger := slog.New(slog.NewTextHandler(m.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if tn.Node, err = newNode(tn.cfg, logger, m.net.Node(tn.addr)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *testMesh) run(i int) {
	tn := m.nodes[i]
	ctx, cancel := context.WithCancel(context.Background())
	tn.cancel, tn.ended = cancel, make(chan error, 1)
	go func() { tn.ended <- tn.Node.Run(ctx) }()
}

// killed is how the Run of a node ends whose gossip is closed under it.
const killed = "gossip: ended without being told to"

// stop ends every node that runs, at once: none hands over what it owns, nor waits until the others know that it goes.
func (m *testMesh) stop() {
	for _, tn := range m.nodes {
		if tn.cancel == nil {
			continue
		}
		_ = tn.gossip.Close()
	}
	for i, tn := range m.nodes {
		if tn.cancel != nil {
			m.kill(i)
		}
	}
	if m.t.Failed() {
		m.t.Log(m.logs.String())
	}
}

// kill ends node i without a word to the others.
func (m *testMesh) kill(i int) {
	m.t.Helper()
	tn := m.nodes[i]
	_ = tn.gossip.Close()
	if err := <-tn.ended; err == nil || err.Error() != killed {
		m.t.Errorf("%s: %v", tn.cfg.Name, err)
	}
	tn.cancel()
	tn.cancel = nil
}

// poll waits until ok says yes.
func (m *testMesh) poll(what string, limit time.Duration, ok func() bool) {
	m.t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			m.t.Fatalf("waited %s in vain: %s", limit, what)
		}
		pause()
	}
}

func pause() { <-time.After(10 * time.Millisecond) }

func (m *testMesh) waitWhole() {
	m.t.Helper()
	m.poll("every node sees all members and every catalog shard has its voters", 30*time.Second, func() bool {
		want := min(len(m.nodes), 3)
		if want == 2 {
			want = 1
		}
		for _, tn := range m.nodes {
			if tn.gossip.View().CountPresent() != len(m.nodes) {
				return false
			}
			for _, c := range (meshPages{tn.Node}).Readiness(context.Background()) {
				if !c.OK {
					return false
				}
			}
		}
		for _, g := range m.nodes[0].host.Groups() {
			voters := 0
			for _, mem := range g.Status().Members {
				if !mem.Learner {
					voters++
				}
			}
			if voters != want {
				return false
			}
		}
		return true
	})
}

// do makes a request to node i and returns status and body.
func (m *testMesh) do(i int, method, path, body string, header ...string) (int, string) {
	m.t.Helper()
	req, err := http.NewRequest(method, "http://"+m.nodes[i].HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	for j := 0; j+1 < len(header); j += 2 {
		req.Header.Set(header[j], header[j+1])
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (m *testMesh) must(i int, want int, method, path, body string, header ...string) string {
	m.t.Helper()
	code, answer := m.do(i, method, path, body, header...)
	if code != want {
		m.t.Fatalf("%s %s on node %d: %d %s, want %d", method, path, i, code, answer, want)
	}
	return answer
}

type readEvent struct {
	Partition uint32
	Offset    uint64
	Key       string
	Value     json.RawMessage
}

// readAll reads a stream to its end through node i.
func (m *testMesh) readAll(i int, stream string) []readEvent {
	m.t.Helper()
	body := m.must(i, 200, "GET", "/v1/streams/"+stream+"/events?from=earliest&until=end", "", "Accept", "application/x-ndjson")
	var out []readEvent
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, `{"cursor"`) {
			continue
		}
		var ev readEvent
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			m.t.Fatalf("%q: %v", line, err)
		}
		out = append(out, ev)
	}
	return out
}

func TestEventsPublishedOnAnyNodeAreReadOnAnyOther(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/orders", `{"partitions":4}`, "If-None-Match", "*")
	const n = 60
	for i := range n {
		m.must(i%3, 200, "POST", fmt.Sprintf("/v1/streams/orders/events?key=k%d", i%7), fmt.Sprintf(`{"n":%d}`, i), "Content-Type", "application/json")
	}
	for reader := range 3 {
		last := map[string]int{}
		events := m.readAll(reader, "orders")
		if len(events) != n {
			t.Fatalf("node %d gave %d events, want %d", reader, len(events), n)
		}
		for _, ev := range events {
			var v struct{ N int }
			if err := json.Unmarshal(ev.Value, &v); err != nil {
				t.Fatal(err)
			}
			if prev, seen := last[ev.Key]; seen && v.N <= prev {
				t.Fatalf("node %d: key %s has %d after %d", reader, ev.Key, v.N, prev)
			}
			last[ev.Key] = v.N
		}
	}
}
