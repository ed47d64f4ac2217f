package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/dev"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "skein-chaos-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

var buildDir string

// binary is the skein under test, built once, with the settings that the tests were built with: then most of it is built already.
var binary = sync.OnceValues(func() (string, error) {
	if given := os.Getenv("SKEIN_CHAOS_BINARY"); given != "" {
		return filepath.Abs(given)
	}
	return build("skein")
})

func build(name string, flags ...string) (string, error) {
	out := filepath.Join(buildDir, name)
	args := append(append([]string{"build", "-o", out}, flags...), "github.com/skeinmesh/skein/cmd/skein")
	if text, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build skein: %w\n%s", err, text)
	}
	return out, nil
}

func skein(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes: left out with -short")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// long says that the run may take minutes.
func long() bool { return os.Getenv("SKEIN_CHAOS") == "long" }

// patience is how long something may take: measured runs hold it to quiet, while short ones share a host that may be busy, and only
// want it to happen.
func patience(quiet time.Duration) time.Duration {
	if long() {
		return quiet
	}
	return healWithin
}

// onlyLong skips a test that is not worth its time in every run.
func onlyLong(t *testing.T) {
	t.Helper()
	if !long() {
		t.Skip("takes most of a minute: runs with SKEIN_CHAOS=long (make chaos)")
	}
}

// seed begins a test: it is the given one, or a new one, and a failed test prints how to use it again. Short tests share the host.
func seed(t *testing.T) uint64 {
	t.Helper()
	if !long() {
		t.Parallel() // most of the time goes by waiting; measured runs have the host for themselves
	}
	n := rand.Uint64N(1_000_000)
	if given := os.Getenv("SKEIN_CHAOS_SEED"); given != "" {
		var err error
		if n, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("SKEIN_CHAOS_SEED: %v", err)
		}
	}
	t.Logf("seed %d", n)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with: SKEIN_CHAOS_SEED=%d SKEIN_CHAOS=%s go test -count=1 -run '^%s$' ./testnet/chaos", n, os.Getenv("SKEIN_CHAOS"), t.Name())
		}
	})
	return n
}

// startMesh starts a mesh that ends with the test, and waits until it is whole.
func startMesh(t *testing.T, o dev.Options) *dev.Mesh {
	t.Helper()
	o.Binary = skein(t)
	if o.DataDir == "" {
		o.DataDir = dataDir(t)
	}
	var m *dev.Mesh
	var err error
	for range 20 {
		o.BasePort = ports.next()
		if m, err = dev.Start(o); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			tellLogs(t, m)
		}
		if err := m.Stop(); err != nil {
			t.Errorf("stop the mesh: %v", err)
		}
	})
	waitWhole(t, m)
	return m
}

// ports gives out ranges for meshes of six: one after the other, since meshes of one run start at the same time, from a random place,
// since several runs may. The range ends below the ports that kernels hand out by themselves.
var ports portRange

type portRange struct {
	once  sync.Once
	count atomic.Int64
}

func (p *portRange) next() int {
	p.once.Do(func() { p.count.Store(rand.Int64N(72)) })
	return 21000 + 60*int(p.count.Add(1)%72)
}

func dataDir(t *testing.T) string {
	t.Helper()
	keep := os.Getenv("SKEIN_CHAOS_KEEP")
	if keep == "" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(keep, strings.ReplaceAll(t.Name(), "/", "-")+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("data and logs of the nodes: %s", dir)
	return dir
}

// healWithin is how long a mesh may take to be whole on a busy host; it takes a second or two on a quiet one.
const healWithin = 60 * time.Second

func waitWhole(t *testing.T, m *dev.Mesh) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), healWithin)
	defer cancel()
	if err := m.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

// tellLogs prints the end of each node's log.
func tellLogs(t *testing.T, m *dev.Mesh) {
	for i := range m.Nodes() {
		data, err := os.ReadFile(m.LogPath(i))
		if err != nil {
			t.Log(err)
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		t.Logf("last lines of %s:\n%s", m.Name(i), strings.Join(lines[max(0, len(lines)-12):], "\n"))
	}
}

// noneEndedByItself fails the test where a node ended without being asked to.
func noneEndedByItself(t *testing.T, m *dev.Mesh) {
	t.Helper()
	for {
		select {
		case e := <-m.Exits():
			t.Errorf("%s ended by itself: %v", m.Name(e.Node), e.Err)
		default:
			return
		}
	}
}

// world is a mesh's stream with all that its clients saw.
type world struct {
	t       *testing.T
	stream  string
	servers []string // where the nodes answer HTTP
	http    client.Config
	history *check.History
	acked   atomic.Int64

	mu    sync.Mutex
	keyOf map[uint32]string // a key of each partition that acknowledged something
	wrong []string          // values that are not what was sent
}

// newWorld creates the stream and waits until each of its partitions has an owner and three copies.
func newWorld(t *testing.T, servers []string, partitions int) *world {
	t.Helper()
	w := &world{t: t, stream: "chaos", servers: servers, history: &check.History{}, keyOf: map[uint32]string{}}
	ctx, cancel := context.WithTimeout(t.Context(), healWithin)
	defer cancel()
	c := w.client(0)
	defer c.Close()
	if _, err := c.CreateStream(ctx, w.stream, map[string]any{"partitions": partitions, "replicas": 3}, true); err != nil {
		t.Fatalf("create the stream: %v", err)
	}
	until(t, healWithin, func() error {
		parts, err := c.Partitions(ctx, w.stream)
		ready := 0
		for _, p := range parts {
			if p.Owner != "" && len(p.Replicas) >= 3 && len(p.Learners) == 0 {
				ready++
			}
		}
		if ready == partitions {
			return nil
		}
		return fmt.Errorf("%d of %d partitions have an owner and three copies: %v", ready, partitions, err)
	})
	return w
}

// client asks node first, then the others.
func (w *world) client(first int) *client.Client {
	cfg := w.http
	cfg.Servers = append(append([]string(nil), w.servers[first:]...), w.servers[:first]...)
	return w.mustClient(cfg)
}

// only asks one node alone.
func (w *world) only(node int) *client.Client {
	cfg := w.http
	cfg.Servers = []string{w.servers[node]}
	return w.mustClient(cfg)
}

func (w *world) mustClient(cfg client.Config) *client.Client {
	c, err := client.New(cfg)
	if err != nil {
		panic(err) // addresses that we made ourselves
	}
	return c
}

// event is one event of one publisher. Its value says who it is, so that a reader can tell.
type event struct {
	publisher, key string
	seq            uint64
	pad            int // bytes
}

func (e event) value() []byte {
	return fmt.Appendf(nil, `{"publisher":%q,"key":%q,"seq":%d,"pad":%q}`, e.publisher, e.key, e.seq, strings.Repeat("x", e.pad))
}

func (e event) publish() client.Event {
	return client.Event{Key: []byte(e.key), HasKey: true, Value: e.value(), ContentType: "application/json",
		Source: "chaos/" + e.publisher, ID: e.key + "/" + strconv.FormatUint(e.seq, 10)}
}

// envelope is an event as every format of the API gives it.
type envelope struct {
	Partition uint32          `json:"partition"`
	Offset    uint64          `json:"offset"`
	Key       *string         `json:"key"`
	Source    string          `json:"source"`
	ID        string          `json:"id"`
	Value     json.RawMessage `json:"value"`
}

// read records what a reader was given, and compares the value with what was sent.
func (w *world) read(reader string, ev envelope) {
	var sent struct {
		Publisher, Key, Pad string
		Seq                 uint64
	}
	err := json.Unmarshal(ev.Value, &sent)
	want := event{sent.Publisher, sent.Key, sent.Seq, len(sent.Pad)}
	p := want.publish()
	if err != nil || string(want.value()) != string(ev.Value) || ev.Key == nil || *ev.Key != sent.Key || ev.Source != p.Source || ev.ID != p.ID {
		w.mu.Lock()
		w.wrong = append(w.wrong, fmt.Sprintf("%s read at partition %d offset %d: %+v, value %.200s", reader, ev.Partition, ev.Offset, ev, ev.Value))
		w.mu.Unlock()
	}
	w.history.Read(reader, ring.PartitionID(ev.Partition), ev.Offset, sent.Publisher, sent.Key, sent.Seq)
}

// verdict is what must hold at the end of every test.
func (w *world) verdict() {
	w.t.Helper()
	acked, refused, unknown, reads := w.history.Counts()
	w.t.Logf("%d events acknowledged, %d refused, %d with unknown outcome, %d reads", acked, refused, unknown, reads)
	if acked == 0 || reads < acked {
		w.t.Error("too little was published and read to find anything")
	}
	if found := check.Check(w.history); len(found) > 0 {
		w.t.Errorf("promises are broken:\n%s", check.Format(found))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.wrong); n > 0 {
		w.t.Errorf("%d values are not what was sent:\n%s", n, strings.Join(w.wrong[:min(n, 10)], "\n"))
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
