package chaos

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/node/dev"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/quicnet"
	"github.com/skeinmesh/skein/transport/wire"
)

// aside shifts a mesh's HTTP port to the other ports of a node.
func aside(t *testing.T, addr string, by int) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(host, strconv.Itoa(n+by))
}

// stranger is a node that tries to join a mesh that is not its own.
type stranger struct {
	secretFile, cluster string
	dataDir             string
	http                string
}

func (s stranger) args(t *testing.T, more ...string) []string {
	return append([]string{skein(t), "node", "--name", "stranger", "--cluster-id", s.cluster, "--data-dir", s.dataDir, "--secret-file", s.secretFile,
		"--http-addr", s.http, "--quic-addr", aside(t, s.http, 1), "--gossip-addr", aside(t, s.http, 2)}, more...)
}

// TestStrangerCannotJoinByGossip: a node with another secret, another cluster_id or another mesh id asks a mesh to take it in. It stays
// outside, and each side says so in one clear line.
func TestStrangerCannotJoinByGossip(t *testing.T) {
	m := startMesh(t, dev.Options{Nodes: 1})
	for _, c := range []struct {
		name    string
		change  func(t *testing.T, s *stranger)
		founded bool // has a mesh of its own
		words   string
	}{
		{"secret", func(t *testing.T, s *stranger) { s.secretFile = writeSecret(t) }, false, "secret"},
		{"cluster_id", func(_ *testing.T, s *stranger) { s.cluster = "other" }, false, "another cluster"},
		{"mesh", func(*testing.T, *stranger) {}, true, "another mesh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(warnings(t, m.LogPath(0)))
			dir := dataDir(t)
			s := stranger{secretFile: filepath.Join(m.DataDir(), "secret"), cluster: "dev", dataDir: filepath.Join(dir, "stranger"), http: aside(t, m.Address(0), 5)}
			c.change(t, &s)
			if c.founded {
				founder := newProcess(t, dir, "founder", s.args(t, "--found")...)
				founder.start()
				until(t, healWithin, func() error { return ready(s.http) })
				founder.kill()
			}
			p := newProcess(t, dir, "stranger", s.args(t, "--join", aside(t, m.Address(0), 2))...)
			p.start()
			until(t, healWithin, func() error { return refusedBySides(t, c.words, m.LogPath(0), p.log) })
			stayApart(t, m, s.http, c.founded)
			oneLineEach(t, warnings(t, m.LogPath(0))[before:], warnings(t, p.log))
			if p.ended() {
				t.Error("the stranger ended; it should go on trying")
			}
		})
	}
}

func writeSecret(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(config.NewSecret().Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func refusedBySides(t *testing.T, words string, logs ...string) error {
	for _, log := range logs {
		found := false
		for _, w := range warnings(t, log) {
			found = found || strings.Contains(w, words)
		}
		if !found {
			return fmt.Errorf("%s does not say %q", filepath.Base(log), words)
		}
	}
	return nil
}

// oneLineEach holds both sides' warnings to one.
func oneLineEach(t *testing.T, mesh, stranger []string) {
	t.Helper()
	if len(mesh) != 1 || len(stranger) != 1 {
		t.Errorf("%d warnings of the mesh and %d of the stranger, not one each", len(mesh), len(stranger))
	}
	t.Logf("the mesh:\n%s\nthe stranger:\n%s", strings.Join(mesh, "\n"), strings.Join(stranger, "\n"))
}

// stayApart watches for a while, with several tries to join, that neither side takes the other in.
func stayApart(t *testing.T, m *dev.Mesh, strangerHTTP string, hasMesh bool) {
	t.Helper()
	deadline := time.Now().Add(1500 * time.Millisecond)
	for time.Now().Before(deadline) {
		for _, addr := range []string{m.Address(0), strangerHTTP} {
			if n := len(members(t, addr)); n > 1 {
				t.Fatalf("%s knows %d members", addr, n)
			}
		}
		if err := ready(strangerHTTP); !hasMesh && err == nil {
			t.Fatal("the stranger says that it is ready")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// members asks a node for all that it knows, itself included.
func members(t *testing.T, addr string) []client.Member {
	t.Helper()
	var list []client.Member
	ask(t, addr, func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.Members(ctx)
		return err
	})
	return list
}

// ask runs f with a client of one node alone.
func ask(t *testing.T, addr string, f func(ctx context.Context, c *client.Client) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), healWithin)
	defer cancel()
	c, err := client.New(client.Config{Servers: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := f(ctx, c); err != nil {
		t.Fatal(err)
	}
}

// TestStrangerCannotConnectByQUIC: gossip keeps strangers away, so that they do not learn where to dial; one that knows the address
// all the same is refused there too, and each side says so in one clear line.
func TestStrangerCannotConnectByQUIC(t *testing.T) {
	m := startMesh(t, dev.Options{Nodes: 1})
	secret := readSecret(t, filepath.Join(m.DataDir(), "secret"))
	mesh, node := whoIs(t, m.Address(0))
	for _, c := range []struct {
		name    string
		secret  config.Secret
		cluster string
		mesh    ring.MeshID
		words   string
	}{
		{"secret", config.NewSecret(), "dev", mesh, "secret"},
		{"cluster_id", secret, "other", mesh, "cluster_id differs"},
		{"mesh", secret, "dev", ring.NewMeshID(), "mesh id differs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(warnings(t, m.LogPath(0)))
			path := filepath.Join(t.TempDir(), "stranger.log")
			p := strangerPeers(t, path, transport.Identity{NodeID: ring.NewNodeID(), Name: "stranger", ClusterID: c.cluster, MeshID: c.mesh}, c.secret)
			ctx, cancel := context.WithTimeout(t.Context(), healWithin)
			defer cancel()
			p.SetPeers(map[ring.NodeID]string{node: aside(t, m.Address(0), 1)})
			until(t, healWithin, func() error {
				if _, err := p.Call(ctx, node, wire.ClassControl, wire.MethodCatalog, nil); wire.KindOf(err) != wire.KindUnavailable {
					t.Fatalf("a call was answered: %v", err)
				}
				return refusedBySides(t, c.words, m.LogPath(0), path)
			})
			if p.Up(node) {
				t.Error("the connection is up")
			}
			oneLineEach(t, warnings(t, m.LogPath(0))[before:], warnings(t, path))
		})
	}
}

func readSecret(t *testing.T, path string) config.Secret {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := config.ParseSecret(string(data))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// whoIs asks a node for its mesh and its own id.
func whoIs(t *testing.T, addr string) (ring.MeshID, ring.NodeID) {
	t.Helper()
	var mesh ring.MeshID
	ask(t, addr, func(ctx context.Context, c *client.Client) error {
		view, err := c.Mesh(ctx)
		if err != nil {
			return err
		}
		return mesh.UnmarshalText([]byte(view.View.Mesh))
	})
	node, err := ring.ParseNodeID(members(t, addr)[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	return mesh, node
}

// strangerPeers runs the transport of a node that is no member, which logs to path.
func strangerPeers(t *testing.T, path string, id transport.Identity, secret config.Secret) *transport.Peers {
	t.Helper()
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := transport.DefaultConfig()
	cfg.Self, cfg.Network, cfg.Logger = id, quicnet.New("127.0.0.1:0"), slog.New(slog.NewTextHandler(log, nil))
	if cfg.Credentials, err = transport.CredentialsFromSecret(id.NodeID, secret); err != nil {
		t.Fatal(err)
	}
	p, err := transport.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the stranger's transport: %v", err)
		}
		log.Close()
	})
	return p
}
