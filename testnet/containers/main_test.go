package containers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/node/config"
)

const (
	// projectPrefix begins the projects of tests; the process id of the run follows, so that what a crashed run left is known.
	projectPrefix = "skeintest-"
	// engineWithin is how long any one command of the engine may take on a busy host.
	engineWithin = 2 * time.Minute
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "skein-containers-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workDir = dir
	code := m.Run()
	if built.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), engineWithin)
		if e, err := Find(ctx); err == nil {
			_ = e.RemoveImage(ctx, image()) // an image that stays is untidy, and no failure
		}
		cancel()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

var (
	workDir string
	built   atomic.Bool
)

func image() string { return "skein-test:" + strconv.Itoa(os.Getpid()) }

// ready finds the engine, removes what crashed runs left, and builds the binary and its image, once.
var ready = sync.OnceValues(func() (*Engine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	e, err := Find(ctx)
	if err != nil {
		return nil, err
	}
	projects, err := e.Projects(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range projects {
		if crashed(p) {
			if err := e.remove(ctx, p); err != nil {
				return nil, fmt.Errorf("remove what a crashed run left: %w", err)
			}
		}
	}
	// As make build does it, so that most of it is built already.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(workDir, "bin", "skein"), "github.com/skeinmesh/skein/cmd/skein")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build skein: %w\n%s", err, out)
	}
	if err := e.Build(ctx, filepath.Join("..", "Dockerfile"), workDir, image()); err != nil {
		return nil, err
	}
	built.Store(true)
	return e, nil
})

// crashed reports whether a project belongs to a run of these tests whose process is gone.
func crashed(project string) bool {
	rest, ok := strings.CutPrefix(project, projectPrefix)
	pid, _, _ := strings.Cut(rest, "-")
	n, err := strconv.Atoi(pid)
	return ok && err == nil && syscall.Kill(n, 0) == syscall.ESRCH
}

// engine is ready's, or the test is skipped.
func engine(t *testing.T) *Engine {
	t.Helper()
	if testing.Short() {
		t.Skip("starts containers: left out with -short")
	}
	ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
	defer cancel()
	if _, err := Find(ctx); err != nil {
		t.Skipf("the multi-host tests run on containers, and are skipped: %v", err)
	}
	e, err := ready()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// long says that the run may take minutes.
func long() bool { return os.Getenv("SKEIN_CONTAINERS") == "long" }

var projects atomic.Int64

// newMesh is a mesh of its own for one test; whatever the test ends with, it is removed.
func newMesh(t *testing.T, env ...string) *Mesh {
	t.Helper()
	e := engine(t)
	secret := filepath.Join(t.TempDir(), "secret.env")
	if err := os.WriteFile(secret, []byte("SKEIN_SECRET="+config.NewSecret().Text()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := e.Mesh(Options{Project: fmt.Sprintf("%s%d-%d", projectPrefix, os.Getpid(), projects.Add(1)), File: filepath.Join("..", "compose.yaml"),
		Ports: freePorts(t), Image: image(), Secret: secret, Env: env})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), engineWithin)
		defer cancel()
		if t.Failed() {
			tellLogs(ctx, t, m)
		}
		if err := m.Down(ctx); err != nil {
			t.Errorf("remove the mesh: %v", err)
		}
	})
	return m
}

// freePorts finds a range of published ports that nobody uses now, below those that kernels hand out by themselves.
func freePorts(t *testing.T) int {
	t.Helper()
	for range 100 {
		ports, free := 305+rand.IntN(22), true
		for i := range Hosts {
			l, err := net.Listen("tcp", (&Mesh{o: Options{Ports: ports}}).Address(i))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return ports
		}
	}
	t.Fatal("no free range of ports found")
	return 0
}

func tellLogs(ctx context.Context, t *testing.T, m *Mesh) {
	for i := range Hosts {
		if text, err := m.Logs(ctx, i, 12); err == nil {
			t.Logf("last lines of %s:\n%s", m.Name(i), text)
		}
	}
}

// do runs one command of the engine, which has to succeed.
func do(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), engineWithin)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Fatal(err)
	}
}

// until polls until f returns nil, and fails the test after the time with the last error that f came to by itself.
func until(t *testing.T, within time.Duration, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, within, last)
		}
	}
}
