package containers

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// Hosts is how many nodes the compose file knows: five that start together, and one more for growing.
const (
	Hosts   = 6
	Founded = 5
)

// Options name one mesh.
type Options struct {
	// Project is the compose project; two meshes of one engine have two.
	Project string
	// File is the compose file.
	File string
	// Ports begins the published ports: node i answers HTTP at Ports·100 + 10·i on loopback. Default 84: 8400, 8410, …
	Ports int
	// Image is the image to run; default skein:testnet.
	Image string
	// Secret is the file with the line SKEIN_SECRET=…; default secret.env beside the compose file.
	Secret string
	// Env are further variables that the compose file reads, in the form of os.Environ.
	Env []string
}

// Mesh is a project of containers, running or not.
type Mesh struct {
	e *Engine
	o Options
}

// Mesh returns the project; it starts nothing.
func (e *Engine) Mesh(o Options) *Mesh {
	if o.Ports == 0 {
		o.Ports = 84
	}
	return &Mesh{e: e, o: o}
}

// Name is a node's name, which is its service's name and its host name too.
func (m *Mesh) Name(i int) string { return "n" + strconv.Itoa(i+1) }

// Index is the node of a name, or -1.
func (m *Mesh) Index(name string) int {
	for i := range Hosts {
		if m.Name(i) == name {
			return i
		}
	}
	return -1
}

// Address is where a node's HTTP port is published.
func (m *Mesh) Address(i int) string { return fmt.Sprintf("127.0.0.1:%d", m.o.Ports*100+10*i) }

// Client returns a client of some nodes; the first one is asked first.
func (m *Mesh) Client(nodes ...int) (*client.Client, error) {
	var cfg client.Config
	for _, i := range nodes {
		cfg.Servers = append(cfg.Servers, m.Address(i))
	}
	return client.New(cfg)
}

// compose runs one compose command on the project.
func (m *Mesh) compose(ctx context.Context, args ...string) error {
	env := []string{"SKEIN_TESTNET_PORTS=" + strconv.Itoa(m.o.Ports)}
	if m.o.Image != "" {
		env = append(env, "SKEIN_TESTNET_IMAGE="+m.o.Image)
	}
	if m.o.Secret != "" {
		env = append(env, "SKEIN_TESTNET_SECRET="+m.o.Secret)
	}
	command := append(append([]string(nil), m.e.Compose...), "-p", m.o.Project, "-f", m.o.File)
	_, err := run(ctx, append(env, m.o.Env...), append(command, args...)...)
	return err
}

// Up starts nodes, with their disks where they have run before; without any named, the five.
func (m *Mesh) Up(ctx context.Context, nodes ...int) error {
	args := []string{"up", "-d", "--no-build"}
	for _, i := range nodes {
		args = append(args, m.Name(i))
	}
	return m.compose(ctx, args...)
}

// Down removes the project: containers, network, disks. What is not there is no error; what stays is one.
func (m *Mesh) Down(ctx context.Context) error { return m.e.remove(ctx, m.o.Project) }

// Remove takes one node away, running or not, with its disk.
func (m *Mesh) Remove(ctx context.Context, i int) error {
	if err := m.Stop(ctx, i); err != nil {
		return err
	}
	if err := m.docker(ctx, i, "container", "rm", "-f", "-v"); err != nil {
		return err
	}
	_, err := run(ctx, nil, "docker", "volume", "rm", m.o.Project+"_"+m.Name(i))
	return err
}

// Container is the id of a node's container, running or not.
func (m *Mesh) Container(ctx context.Context, i int) (string, error) {
	id, err := run(ctx, nil, "docker", "container", "ls", "-aq", "--filter", "label=com.docker.compose.project="+m.o.Project,
		"--filter", "label=com.docker.compose.service="+m.Name(i))
	switch {
	case err != nil:
		return "", err
	case id == "":
		return "", fmt.Errorf("%s has no container in project %s", m.Name(i), m.o.Project)
	case strings.Contains(id, "\n"):
		return "", fmt.Errorf("%s has several containers in project %s", m.Name(i), m.o.Project)
	}
	return id, nil
}

// docker runs one docker command with a node's container as its last argument.
func (m *Mesh) docker(ctx context.Context, i int, args ...string) error {
	id, err := m.Container(ctx, i)
	if err != nil {
		return err
	}
	_, err = run(ctx, nil, append(append([]string{"docker"}, args...), id)...)
	return err
}

// Kill ends a node with SIGKILL; it stays down until Start.
func (m *Mesh) Kill(ctx context.Context, i int) error { return m.docker(ctx, i, "kill") }

// Stop ends a node with SIGTERM, and waits until it has ended.
func (m *Mesh) Stop(ctx context.Context, i int) error { return m.docker(ctx, i, "stop", "-t", "60") }

// Start starts a node that was killed or stopped, with its disk.
func (m *Mesh) Start(ctx context.Context, i int) error { return m.docker(ctx, i, "start") }

// Pause freezes a node's process where it is; Unpause lets it go on.
func (m *Mesh) Pause(ctx context.Context, i int) error   { return m.docker(ctx, i, "pause") }
func (m *Mesh) Unpause(ctx context.Context, i int) error { return m.docker(ctx, i, "unpause") }

// Limit gives a node so many CPUs at most.
func (m *Mesh) Limit(ctx context.Context, i int, cpus float64) error {
	return m.docker(ctx, i, "update", "--cpus", strconv.FormatFloat(cpus, 'g', -1, 64))
}

func (m *Mesh) network() string { return m.o.Project + "_mesh" }

// Disconnect pulls a node's network cable: nobody reaches it, its clients included.
func (m *Mesh) Disconnect(ctx context.Context, i int) error {
	return m.docker(ctx, i, "network", "disconnect", m.network())
}

// Connect puts the cable back. The engine gives the lowest address that is free, which is the old one as long as no other node is off
// the network.
func (m *Mesh) Connect(ctx context.Context, i int) error {
	return m.docker(ctx, i, "network", "connect", "--alias", "skein", "--alias", m.Name(i), m.network())
}

// Ready asks a node whether it takes traffic.
func (m *Mesh) Ready(ctx context.Context, i int) error {
	c, err := client.New(client.Config{Servers: []string{m.Address(i)}, GiveUpUnreachable: true})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		return fmt.Errorf("%s: %w", m.Name(i), err)
	}
	return nil
}

// answerIn is how long Ready waits.
const answerIn = 3 * time.Second

// Skein runs the binary inside a node's container and returns what it printed.
func (m *Mesh) Skein(ctx context.Context, i int, args ...string) (string, error) {
	id, err := m.Container(ctx, i)
	if err != nil {
		return "", err
	}
	return run(ctx, nil, append([]string{"docker", "exec", id, "/skein"}, args...)...)
}

// Inspect returns what the engine knows of a node's container, by a template of docker inspect.
func (m *Mesh) Inspect(ctx context.Context, i int, template string) (string, error) {
	id, err := m.Container(ctx, i)
	if err != nil {
		return "", err
	}
	return run(ctx, nil, "docker", "inspect", "-f", template, id)
}

// Logs returns the last lines that a node has logged.
func (m *Mesh) Logs(ctx context.Context, i, lines int) (string, error) {
	id, err := m.Container(ctx, i)
	if err != nil {
		return "", err
	}
	// Nodes log to their standard error, which docker logs keeps apart.
	return runBoth(ctx, "docker", "logs", "--tail", strconv.Itoa(lines), id)
}
