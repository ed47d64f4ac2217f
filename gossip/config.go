package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

// Config says who this node is, where it listens, and how eagerly it gossips. DefaultConfig gives the defaults.
type Config struct {
	// Self is what this node announces. ID, Name and Cluster are required; Mesh is zero until the node belongs to one.
	// Weight 0 counts as 1. Incarnation and GossipAddr are set by this package.
	Self view.Identity
	// BindAddr is host:port to listen on, TCP and UDP; port 0 takes a free one. Default "127.0.0.1:8402".
	BindAddr string
	// AdvertiseAddr is host or host:port under which other nodes reach this one; a name is resolved once, by New. Default:
	// the bound address, or where that is a wildcard an address of an interface, private ones first.
	AdvertiseAddr string
	// Seeds are host:port to join; a name with several addresses stands for all of them. They are resolved and tried again
	// for as long as the node runs.
	Seeds []string
	// Remembered are gossip addresses of members of earlier runs. While this node is alone, some of them are tried beside the seeds, and
	// nothing is said of those that do not answer.
	Remembered []string
	// Secret encrypts all gossip (16, 24 or 32 bytes: AES-128, -192, -256); empty means in the clear. Previous secrets are
	// accepted from others, so that a secret can be rotated node by node.
	Secret          []byte
	PreviousSecrets [][]byte
	// OnMesh is told the mesh id that this node learnt from the first accepted peer, before the id is announced; the node
	// persists it there. An error ends Run with it. Called once at most, from Run's goroutine; may be nil.
	OnMesh func(ring.MeshID) error

	// ProbeInterval and ProbeTimeout pace failure detection. Every interval one member is probed; one that does not answer
	// is suspected, and dead after SuspicionMult * max(1, log10(members)) * ProbeInterval unless it refutes.
	// Defaults 500 ms, 400 ms and 5: on three nodes a killed one is dead after 3 to 4.5 s, and one starved of CPU for 2 s
	// can still refute.
	ProbeInterval time.Duration
	ProbeTimeout  time.Duration
	SuspicionMult int
	// GossipInterval is the pause between rounds of spreading news. Default 200 ms.
	GossipInterval time.Duration
	// PushPullInterval is the pause between full exchanges with one random member; it grows with the logarithm of the mesh
	// above 32 members. Default 15 s.
	PushPullInterval time.Duration
	// LoadInterval is how often an unchanged load is repeated on up to 32 members; it grows in proportion above. A load
	// that changed by LoadChange (share) is sent after LoadMinGap, which grows alike. Defaults 5 s, 0.05, 1 s.
	LoadInterval time.Duration
	LoadChange   float64
	LoadMinGap   time.Duration
	// SeedMinPause and SeedMaxPause bound the pause between tries of seeds that are not members. Defaults 250 ms, 10 s.
	SeedMinPause time.Duration
	SeedMaxPause time.Duration
	// SeedSilence is how long a seed may stay silent before one line says so. Default 3 s.
	SeedSilence time.Duration
	// HintTTL is how long an owner hint lives after its owner last vouched for it. Default 15 min.
	HintTTL time.Duration
	// GoneTTL is how long dead and left members stay in the view. Default 24 h.
	GoneTTL time.Duration
	// Limits bound the view; zero fields mean its defaults.
	Limits view.Limits

	// Logger defaults to none. Registerer may be nil: then nothing is registered.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Caps on announced strings (bytes), so that an announcement always fits memberlist's 512 bytes of metadata.
const (
	maxCluster = 63
	maxName    = 63
	maxZone    = 63
	maxVersion = 32
	maxAddr    = 80
)

// DefaultConfig is a configuration for nodes on one LAN; Self must still be filled in.
func DefaultConfig() Config {
	return Config{
		BindAddr:         "127.0.0.1:8402",
		ProbeInterval:    500 * time.Millisecond,
		ProbeTimeout:     400 * time.Millisecond,
		SuspicionMult:    5,
		GossipInterval:   200 * time.Millisecond,
		PushPullInterval: 15 * time.Second,
		LoadInterval:     5 * time.Second,
		LoadChange:       0.05,
		LoadMinGap:       time.Second,
		SeedMinPause:     250 * time.Millisecond,
		SeedMaxPause:     10 * time.Second,
		SeedSilence:      3 * time.Second,
		HintTTL:          15 * time.Minute,
		GoneTTL:          24 * time.Hour,
	}
}

// Validate reports everything that is wrong; it changes nothing.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("gossip: "+format, args...)) }
	if c.Self.ID.IsZero() {
		bad("no node id")
	}
	if c.Self.Name == "" {
		bad("name is empty")
	}
	if c.Self.Cluster == "" {
		bad("cluster_id is empty")
	}
	for _, f := range []struct {
		key, val string
		most     int
	}{
		{"cluster_id", c.Self.Cluster, maxCluster}, {"name", c.Self.Name, maxName}, {"zone", c.Self.Zone, maxZone},
		{"version", c.Self.Version, maxVersion}, {"http.addr", c.Self.HTTPAddr, maxAddr}, {"quic.addr", c.Self.QUICAddr, maxAddr},
	} {
		if len(f.val) > f.most {
			bad("%s is longer than %d bytes: %.20q…", f.key, f.most, f.val)
		}
	}
	if _, _, err := splitHostPort(c.BindAddr); err != nil {
		bad("gossip.addr %q: %v", c.BindAddr, err)
	}
	for _, s := range c.Seeds {
		if host, port, err := splitHostPort(s); err != nil || host == "" || port == 0 {
			bad("join address %q is not host:port", s)
		}
	}
	for i, k := range append([][]byte{c.Secret}, c.PreviousSecrets...) {
		if n := len(k); n != 16 && n != 24 && n != 32 && !(i == 0 && n == 0) {
			bad("secret %d has %d bytes, not 16, 24 or 32", i, n)
		}
	}
	if len(c.Secret) == 0 && len(c.PreviousSecrets) > 0 {
		bad("secret_previous without secret")
	}
	errs = append(errs, c.validatePace()...)
	return errors.Join(errs...)
}

func (c Config) validatePace() (errs []error) {
	for _, f := range []struct {
		key string
		val time.Duration
	}{
		{"ProbeInterval", c.ProbeInterval}, {"ProbeTimeout", c.ProbeTimeout}, {"GossipInterval", c.GossipInterval},
		{"PushPullInterval", c.PushPullInterval}, {"LoadInterval", c.LoadInterval}, {"LoadMinGap", c.LoadMinGap},
		{"SeedMinPause", c.SeedMinPause}, {"SeedSilence", c.SeedSilence}, {"HintTTL", c.HintTTL}, {"GoneTTL", c.GoneTTL},
	} {
		if f.val <= 0 {
			errs = append(errs, fmt.Errorf("gossip: %s is %s, not above 0", f.key, f.val))
		}
	}
	if c.ProbeTimeout >= c.ProbeInterval && c.ProbeInterval > 0 {
		errs = append(errs, errors.New("gossip: ProbeTimeout is not below ProbeInterval"))
	}
	if c.SeedMaxPause < c.SeedMinPause {
		errs = append(errs, errors.New("gossip: SeedMaxPause is below SeedMinPause"))
	}
	if c.SuspicionMult < 2 {
		errs = append(errs, errors.New("gossip: SuspicionMult is below 2"))
	}
	return errs
}

// splitHostPort is net.SplitHostPort with a numeric port.
func splitHostPort(s string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %q is not a number below 65536", p)
	}
	return strings.TrimSpace(host), int(n), nil
}
