package bounds

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/dev"
)

// full reports whether the long version is wanted.
func full() bool { return os.Getenv("SKEIN_BOUNDS") == "full" }

var buildDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "skein-bounds-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// binary builds skein with the test-only faults, once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	out := filepath.Join(buildDir, "skein")
	cmd := exec.Command("go", "build", "-tags", "skeinfault", "-o", out, "./cmd/skein")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build skein: %w\n%s", err, b)
	}
	return out, nil
})

// mesh is a mesh of three processes that ends with its test.
type mesh struct {
	*dev.Mesh
	t testing.TB
}

func start(t testing.TB, o dev.Options) *mesh {
	t.Helper()
	if testing.Short() {
		t.Skip("starts node processes: not with -short")
	}
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	o.Binary, o.BasePort, o.DataDir = bin, -1, t.TempDir()
	d, err := dev.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	m := &mesh{d, t}
	t.Cleanup(m.end)
	m.wait()
	return m
}

// end stops the mesh, and shows the nodes' logs where the test failed.
func (m *mesh) end() {
	if err := m.Stop(); err != nil {
		m.t.Errorf("stop the mesh: %v", err)
	}
	if !m.t.Failed() {
		return
	}
	for i := range m.Nodes() {
		log := m.log(i)
		m.t.Logf("the end of %s's log:\n%s", m.Name(i), log[max(0, len(log)-1500):])
	}
}

func (m *mesh) wait() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	if err := m.Wait(ctx); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mesh) log(i int) string {
	b, err := os.ReadFile(m.LogPath(i))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// at is a client of one node alone.
func (m *mesh) at(i int) *client.Client {
	m.t.Helper()
	c, err := client.New(client.Config{Servers: []string{m.Address(i)}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(c.Close)
	return c
}

// create makes a stream and waits until every partition has an owner and its three copies.
func (m *mesh) create(stream string, partitions int) []client.MeshPartition {
	m.t.Helper()
	c := m.at(0)
	if _, err := c.CreateStream(m.t.Context(), stream, map[string]any{"partitions": partitions, "replicas": 3}, false); err != nil {
		m.t.Fatal(err)
	}
	var parts []client.MeshPartition
	m.eventually("every partition has an owner and its copies", func() bool {
		var err error
		parts, err = c.Partitions(m.t.Context(), stream)
		ready := 0
		for _, p := range parts {
			if p.Owner != "" && len(p.Replicas) == 3 && len(p.Learners) == 0 {
				ready++
			}
		}
		return err == nil && ready == partitions
	})
	return parts
}

// steady waits until no partition of a stream has had another owner for fifty looks: hand-overs after its creation are done.
func (m *mesh) steady(stream string) {
	m.t.Helper()
	c := m.at(0)
	var was string
	same := 0
	m.eventually("owners stay the same", func() bool {
		parts, err := c.Partitions(m.t.Context(), stream)
		var now strings.Builder
		for _, p := range parts {
			fmt.Fprint(&now, p.Owner, p.Term, " ")
		}
		if same++; err != nil || now.String() != was {
			same, was = 0, now.String()
		}
		return same == 50
	})
}

// patience is how long a mesh may take to come to something on a busy host.
const patience = time.Minute

func (m *mesh) eventually(what string, ok func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// skein runs the command line against one node and returns its standard output.
func (m *mesh) skein(node int, stdin []byte, args ...string) []byte {
	m.t.Helper()
	bin, err := binary()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.CommandContext(m.t.Context(), bin, args...)
	cmd.Env = append(os.Environ(), "SKEIN_SERVER="+m.Address(node), "HOME="+m.DataDir(), "XDG_STATE_HOME="+m.DataDir())
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("skein %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

// memory is a figure of /proc/PID/status in bytes: VmRSS (now) or VmHWM (the most so far).
func (m *mesh) memory(node int, field string) int64 {
	m.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", m.PID(node)))
	if os.IsNotExist(err) {
		m.t.Skip("there is no /proc to read the memory of a process from")
	}
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 10, 64)
			if err != nil {
				m.t.Fatal(err)
			}
			return kib << 10
		}
	}
	m.t.Fatalf("no %s of %s", field, m.Name(node))
	return 0
}

// metric is the value of a metric of the first node that has no labels.
func (m *mesh) metric(name string) float64 {
	resp, err := http.Get("http://" + m.Address(0) + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			n, _ := strconv.ParseFloat(v, 64)
			return n
		}
	}
	return 0
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
