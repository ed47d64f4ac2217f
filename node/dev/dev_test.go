package dev

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/node/client"
)

// TestMain is also the node that the tests run: a process that answers as a whole mesh of one would, until SIGTERM.
func TestMain(m *testing.M) {
	if mode := os.Getenv("FAKE_NODE"); mode != "" {
		fakeNode(mode)
	}
	goleak.VerifyTestMain(m)
}

func fakeNode(mode string) {
	arg := func(name string) string { return os.Args[slices.Index(os.Args, name)+1] }
	fmt.Printf("started %s\n", strings.Join(os.Args[1:], " "))
	if mode == "fails" {
		fmt.Println("the reason why")
		os.Exit(3)
	}
	if mode == "defiant" {
		signal.Ignore(syscall.SIGTERM)
	}
	if err := os.MkdirAll(arg("--data-dir"), 0o700); err != nil {
		os.Exit(4)
	}
	if err := os.WriteFile(filepath.Join(arg("--data-dir"), "node.json"), nil, 0o600); err != nil {
		os.Exit(4)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/mesh/members", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"members":[{"node":"node-0","state":"alive","owned":12,"replicas":12},{"node":"node-1","state":"alive","replicas":8},{"node":"node-2","state":"dead"}]}`)
	})
	mux.HandleFunc("/v1/streams", func(w http.ResponseWriter, _ *http.Request) { // that wants one copy
		fmt.Fprint(w, `{"streams":[{"config":{"replicas":1},"partitions":[{},{},{},{}]}]}`)
	})
	l, err := net.Listen("tcp", arg("--http-addr"))
	if err != nil {
		fmt.Println(err)
		os.Exit(5)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	term := make(chan os.Signal, 1)
	if mode != "defiant" {
		signal.Notify(term, syscall.SIGTERM)
	}
	<-term
	fmt.Println("an orderly end")
	os.Exit(0)
}

func start(t *testing.T, mode string, o Options) *Mesh {
	t.Helper()
	o.BasePort, o.Env = -1, append(o.Env, "FAKE_NODE="+mode)
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop() })
	return m
}

func wait(t *testing.T, m *Mesh) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := m.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

func logOf(t *testing.T, m *Mesh, i int) string {
	t.Helper()
	data, err := os.ReadFile(m.LogPath(i))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestMeshStartsWholeAndLeavesNothingBehind(t *testing.T) {
	t.Setenv("SKEIN_HTTP_ADDR", "0.0.0.0:1") // meant for somebody else
	m := start(t, "works", Options{})
	wait(t, m)
	first, second := logOf(t, m, 0), logOf(t, m, 1)
	if !strings.Contains(first, "--found") || strings.Contains(first, "--join") || !strings.Contains(second, "--join "+m.addr(0, 2)) || !strings.Contains(second, "--auto-create-streams") {
		t.Errorf("started with\n%s%s", first, second)
	}
	if info, err := os.Stat(filepath.Join(m.DataDir(), "secret")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("secret: %v, %v", info, err)
	}
	pids := []int{m.PID(0), m.PID(1)}
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if pid == 0 || syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d lives on", pid)
		}
	}
	if _, err := os.Stat(m.DataDir()); !os.IsNotExist(err) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
	if err := m.Stop(); err != nil {
		t.Errorf("stopping twice: %v", err)
	}
}

func TestKilledNodeStartsAgainWithItsData(t *testing.T) {
	m := start(t, "works", Options{DataDir: t.TempDir()})
	wait(t, m)
	pid := m.PID(0)
	if err := m.Kill(0); err != nil {
		t.Fatal(err)
	}
	if m.PID(0) != 0 || strings.Contains(logOf(t, m, 0), "orderly") {
		t.Error("the node is still there, or ended by itself")
	}
	if err := m.Restart(0); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(0); err == nil {
		t.Error("a running node was started again")
	}
	wait(t, m)
	if now := m.PID(0); now == 0 || now == pid {
		t.Errorf("process %d after %d", now, pid)
	}
	if log := logOf(t, m, 0); strings.Count(log, "--found") != 1 || !strings.Contains(log, "--join") {
		t.Errorf("a node with data was told to found again:\n%s", log)
	}
	select {
	case e := <-m.Exits():
		t.Errorf("an end that was asked for is reported: %+v", e)
	default:
	}
	if err := m.Shutdown(1); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logOf(t, m, 1), "an orderly end") {
		t.Error("SIGTERM did not reach the node")
	}
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(1); err == nil {
		t.Error("a node of a stopped mesh was started")
	}
}

func TestFailingNodeIsReportedWithItsLastWords(t *testing.T) {
	m := start(t, "fails", Options{Nodes: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := m.Wait(ctx)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the reason why") {
		t.Errorf("got %v", err)
	}
}

func TestStubbornNodeIsKilled(t *testing.T) {
	m := start(t, "defiant", Options{StopTimeout: 50 * time.Millisecond})
	wait(t, m)
	if err := m.Stop(); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("got %v", err)
	}
}

func TestStreamsSayHowManyCopiesTheyWant(t *testing.T) {
	stream := func(partitions int, replicas float64) client.Stream {
		return client.Stream{Config: map[string]any{"replicas": replicas}, Partitions: make([]client.Partition, partitions)}
	}
	streams := []client.Stream{stream(4, 1), stream(2, 3), stream(1, 5)}
	for nodes, want := range map[int]int{1: 15, 2: 8*2 + 4 + 2*2 + 2, 3: 8*3 + 4 + 2*3 + 3, 5: 8*3 + 4 + 2*3 + 5} {
		if got := wantedReplicas(nodes, 8+4+2+1, streams); got != want {
			t.Errorf("%d nodes: %d replicas, want %d", nodes, got, want)
		}
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	base, err := FreeBase(1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base))
	if err != nil {
		t.Skip("somebody else took the port")
	}
	defer l.Close()
	if _, err := Start(Options{Nodes: 1, BasePort: base, Binary: "/bin/false"}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d (HTTP of node-0) is taken", base)) {
		t.Errorf("got %v", err)
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, o := range []Options{{Nodes: -1}, {Nodes: 51}, {Nodes: 3, BasePort: 65530}} {
		if m, err := Start(o); err == nil {
			m.Stop()
			t.Errorf("%+v was accepted", o)
		}
	}
	if _, err := Start(Options{Nodes: 1, BasePort: -1, Binary: "/nonexistent/skein"}); err == nil {
		t.Error("a binary that is not there was started")
	}
}

// TestNodesComeLaterAndRetire: Wait waits for those that were started and did not retire.
func TestNodesComeLaterAndRetire(t *testing.T) {
	m := start(t, "works", Options{Nodes: 3, Later: 1})
	wait(t, m)
	if m.PID(2) != 0 {
		t.Error("the last node was started at once")
	}
	if err := m.Restart(2); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := m.Wait(ctx); err == nil || !strings.Contains(err.Error(), "sees 2 of 3 nodes") {
		t.Errorf("got %v", err)
	}
	if err := m.Kill(2); err != nil {
		t.Fatal(err)
	}
	m.Retire(2)
	wait(t, m)
	if _, err := Start(Options{Nodes: 2, Later: 2, Binary: "/bin/false"}); err == nil {
		t.Error("a mesh of none was started")
	}
}

func TestFurtherNodeIsToldToJoinThoseThatAreThere(t *testing.T) {
	for nodes, join := range map[int]string{1: "127.0.0.1:9402", 2: "127.0.0.1:9402,127.0.0.1:9412"} {
		m := &Mesh{o: Options{Nodes: nodes, BasePort: 9400, DataDir: t.TempDir()}}
		args := m.JoinArgs()
		at := slices.Index(args, "--join")
		if at < 0 || args[at+1] != join || slices.Contains(args, "--found") || !slices.Contains(args, m.addr(nodes, 0)) {
			t.Error(nodes, args)
		}
	}
}
