package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/config"
)

// Options say what mesh to run.
type Options struct {
	// Nodes is how many; default 3, at most 50.
	Nodes int
	// Later is how many of them, the last ones, Start leaves alone: Restart starts them, and makes them part of the mesh.
	Later int
	// BasePort: node i listens at BasePort + 10·i (HTTP), +1 (QUIC) and +2 (gossip). Default 8400; below 0: any free range.
	BasePort int
	// DataDir holds a directory and a log file for each node. Empty: a temporary one, removed by Stop.
	DataDir string
	// Binary is the skein to run; default: the running program, which must be skein then.
	Binary string
	// NodeBinary, where not nil, is the skein to run as one node; "" is Binary. It is asked at every start of the node.
	NodeBinary func(i int) string
	// Args and Env are added to every node's; Env is in the form of os.Environ. NodeArgs, where not nil, adds to one node's.
	Args, Env []string
	NodeArgs  func(i int) []string
	// NodeEnv, where not nil, adds to one node's environment. Like NodeArgs it is asked at every start of the node.
	NodeEnv func(i int) []string
	// StopTimeout is how long a node may take to end after SIGTERM before it is killed; default 60 s, more than
	// it takes to hand over what it owns and to stop.
	StopTimeout time.Duration
}

// Mesh is a running mesh.
type Mesh struct {
	o         Options
	temporary bool
	secret    string // file
	nodes     []*process
	spawn     *spawner
	exits     chan Exit

	mu   sync.Mutex
	part []bool // which nodes Wait waits for

	stopOnce sync.Once
	stopErr  error
}

// Exit tells that a node ended by itself.
type Exit struct {
	Node int
	Err  error // what the process ended with, and the last lines of its log
}

// Start starts all nodes and returns at once; Wait waits until they are one mesh. On an error nothing is left running.
func Start(o Options) (*Mesh, error) {
	if err := setDefaults(&o); err != nil {
		return nil, err
	}
	m := &Mesh{o: o, exits: make(chan Exit, o.Nodes), part: make([]bool, o.Nodes)}
	if err := m.prepare(); err != nil {
		m.clean()
		return nil, err
	}
	m.spawn = newSpawner()
	for i := range o.Nodes {
		m.nodes = append(m.nodes, &process{name: m.Name(i), log: m.LogPath(i)})
	}
	for i := range o.Nodes - o.Later {
		if err := m.Restart(i); err != nil {
			return nil, errors.Join(err, m.Stop())
		}
	}
	return m, nil
}

func setDefaults(o *Options) error {
	o.Nodes = cmp.Or(o.Nodes, 3)
	o.BasePort = cmp.Or(o.BasePort, 8400)
	o.StopTimeout = cmp.Or(o.StopTimeout, 60*time.Second)
	if o.Nodes < 1 || o.Nodes > 50 {
		return fmt.Errorf("dev: %d nodes: 1 to 50 are possible", o.Nodes)
	}
	if o.Later < 0 || o.Later >= o.Nodes {
		return fmt.Errorf("dev: %d of %d nodes later: at least one must start", o.Later, o.Nodes)
	}
	if o.BasePort > 65535-10*o.Nodes {
		return fmt.Errorf("dev: base port %d leaves no room for %d nodes", o.BasePort, o.Nodes)
	}
	if o.Binary == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("dev: %w", err)
		}
		o.Binary = exe
	}
	if o.BasePort < 0 {
		base, err := FreeBase(o.Nodes)
		if err != nil {
			return err
		}
		o.BasePort = base
		return nil
	}
	return checkPorts(o.BasePort, o.Nodes)
}

// prepare makes the directories and the secret.
func (m *Mesh) prepare() error {
	if m.o.DataDir == "" {
		dir, err := os.MkdirTemp("", "skein-dev-")
		if err != nil {
			return fmt.Errorf("dev: %w", err)
		}
		m.o.DataDir, m.temporary = dir, true
	}
	abs, err := filepath.Abs(m.o.DataDir)
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	m.o.DataDir = abs
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	m.secret = filepath.Join(abs, "secret")
	if _, err := os.Stat(m.secret); err == nil {
		return nil // of an earlier run in this directory
	}
	if err := os.WriteFile(m.secret, []byte(config.NewSecret().Text()+"\n"), 0o600); err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	return nil
}

func (m *Mesh) clean() {
	if m.temporary {
		os.RemoveAll(m.o.DataDir)
	}
}

// Nodes is how many nodes the mesh has, running or not.
func (m *Mesh) Nodes() int { return m.o.Nodes }

// Name is a node's name.
func (m *Mesh) Name(i int) string { return "node-" + strconv.Itoa(i) }

// Index is the node of a name, or -1.
func (m *Mesh) Index(name string) int {
	for i := range m.o.Nodes {
		if m.Name(i) == name {
			return i
		}
	}
	return -1
}

// DataDir is where everything lies.
func (m *Mesh) DataDir() string { return m.o.DataDir }

// NodeDir is a node's data directory.
func (m *Mesh) NodeDir(i int) string { return filepath.Join(m.o.DataDir, m.Name(i)) }

// LogPath is the file that a node's output goes to.
func (m *Mesh) LogPath(i int) string { return filepath.Join(m.o.DataDir, m.Name(i)+".log") }

func (m *Mesh) addr(i, port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(m.o.BasePort+10*i+port))
}

// Address is where a node answers HTTP.
func (m *Mesh) Address(i int) string { return m.addr(i, 0) }

// Addresses is where the nodes answer HTTP.
func (m *Mesh) Addresses() []string {
	out := make([]string, m.o.Nodes)
	for i := range out {
		out[i] = m.Address(i)
	}
	return out
}

// PID is a node's process id, or 0 where it is not running.
func (m *Mesh) PID(i int) int { return m.nodes[i].pid() }

// Exits tells of nodes that ended without being asked to.
func (m *Mesh) Exits() <-chan Exit { return m.exits }

// Client returns a client of the whole mesh; prefer is the node asked first.
func (m *Mesh) Client(prefer int) (*client.Client, error) {
	all := m.Addresses()
	return client.New(client.Config{Servers: append(append([]string(nil), all[prefer:]...), all[:prefer]...)})
}

// args are what node i is started with. Every node names all others, so that any of them may be down.
func (m *Mesh) args(i int) []string {
	args := []string{"node", "--name", m.Name(i), "--cluster-id", "dev", "--data-dir", m.NodeDir(i), "--secret-file", m.secret,
		"--http-addr", m.addr(i, 0), "--quic-addr", m.addr(i, 1), "--gossip-addr", m.addr(i, 2), "--auto-create-streams"}
	founded := false
	if entries, err := os.ReadDir(m.NodeDir(0)); err == nil && len(entries) > 0 {
		founded = true
	}
	if i == 0 && !founded {
		args = append(args, "--found")
	} else if m.o.Nodes > 1 || i > 0 {
		args = append(args, "--join", m.others(i))
	}
	args = append(args, m.o.Args...)
	if m.o.NodeArgs != nil {
		args = append(args, m.o.NodeArgs(i)...)
	}
	return args
}

// JoinArgs are what a further node of the mesh is started with, besides those that Start started; it is not stopped with them.
func (m *Mesh) JoinArgs() []string { return m.args(m.o.Nodes) }

func (m *Mesh) others(i int) string {
	list := ""
	for j := range m.o.Nodes {
		if j != i {
			if list != "" {
				list += ","
			}
			list += m.addr(j, 2)
		}
	}
	return list
}

// Restart starts a node that is not running, with the data it has. It is part of the mesh from then on.
func (m *Mesh) Restart(i int) error {
	m.setPart(i, true)
	env := append(plainEnv(os.Environ()), m.o.Env...)
	if m.o.NodeEnv != nil {
		env = append(env, m.o.NodeEnv(i)...)
	}
	binary := m.o.Binary
	if m.o.NodeBinary != nil {
		binary = cmp.Or(m.o.NodeBinary(i), binary)
	}
	return m.nodes[i].start(m.spawn, binary, m.args(i), env, func(err error) {
		select {
		case m.exits <- Exit{Node: i, Err: err}:
		default: // nobody reads them, and one per node is known already
		}
	})
}

// Kill ends a node with SIGKILL and returns when it is gone.
func (m *Mesh) Kill(i int) error { return m.nodes[i].end(syscall.SIGKILL, m.o.StopTimeout) }

// Shutdown ends a node with SIGTERM and returns when it is gone; it is killed where that takes longer than StopTimeout.
func (m *Mesh) Shutdown(i int) error { return m.nodes[i].end(syscall.SIGTERM, m.o.StopTimeout) }

// Retire takes a node out of what Wait waits for: one that is gone for good, or was drained.
func (m *Mesh) Retire(i int) { m.setPart(i, false) }

func (m *Mesh) setPart(i int, part bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.part[i] = part
}

// parts are the nodes that are part of the mesh.
func (m *Mesh) parts() (out []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, part := range m.part {
		if part {
			out = append(out, i)
		}
	}
	return out
}

// Signal sends a signal that does not end the process (SIGSTOP, SIGCONT, SIGHUP).
func (m *Mesh) Signal(i int, sig syscall.Signal) error { return m.nodes[i].signal(sig) }

// Stop ends all nodes, in parallel, and removes a temporary data directory. Idempotent.
func (m *Mesh) Stop() error {
	m.stopOnce.Do(func() {
		errs := make([]error, len(m.nodes))
		var wg sync.WaitGroup
		for i, n := range m.nodes {
			wg.Go(func() { errs[i] = n.end(syscall.SIGTERM, m.o.StopTimeout) })
		}
		wg.Wait()
		m.spawn.close()
		m.stopErr = errors.Join(errs...)
		m.clean()
	})
	return m.stopErr
}

// Wait returns when the mesh is whole: every node is ready and sees all others alive, and every replica group has as many replicas as
// it wants and there are nodes for. A node that ends meanwhile is an error at once; when ctx ends, the error says what was missing last.
func (m *Mesh) Wait(ctx context.Context) error {
	var last error
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		err := m.whole(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // a look that was called off says less than the one before
			last = err
		}
		select {
		case e := <-m.exits:
			return fmt.Errorf("dev: %s ended: %w", m.Name(e.Node), e.Err)
		case <-ctx.Done():
			return fmt.Errorf("dev: %w: %w", context.Cause(ctx), last)
		case <-t.C:
		}
	}
}
