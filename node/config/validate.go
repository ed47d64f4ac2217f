package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxFounders bounds initial_members: all of them must be there at once, and three hold the catalog.
const MaxFounders = 64

// Validate checks values and how they fit together; it changes nothing. The error joins an *Error for each finding.
func (c Config) Validate() error {
	v := validator{c: c}
	v.names()
	v.addresses()
	v.exposure()
	v.roles()
	v.numbers()
	return errors.Join(v.errs...)
}

type validator struct {
	c    Config
	errs []error
}

func (v *validator) fail(key, format string, args ...any) {
	origin := v.c.Origin(key)
	if origin == "default" {
		origin = ""
	}
	v.errs = append(v.errs, &Error{Origin: origin, Key: key, Msg: fmt.Sprintf(format, args...)})
}

// plainName reports whether s may name a node, a mesh or a zone: it goes into headers, labels and file names.
func plainName(s string, limit int) bool {
	if s == "" || s == "." || s == ".." || len(s) > limit {
		return false
	}
	for _, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_', r == '.':
		default:
			return false
		}
	}
	return true
}

func (v *validator) names() {
	const rule = "%q: letters, digits, '.', '_' and '-' are allowed, 1 to %d of them"
	if !plainName(v.c.Name, 63) {
		v.fail("name", rule, v.c.Name, 63)
	}
	if !plainName(v.c.ClusterID, 63) {
		v.fail("cluster_id", rule, v.c.ClusterID, 63)
	}
	if v.c.Zone != "" && !plainName(v.c.Zone, 63) {
		v.fail("zone", rule, v.c.Zone, 63)
	}
	if v.c.DataDir == "" {
		v.fail("data_dir", "is empty")
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, v.c.Log.Level) {
		v.fail("log.level", "%q: debug, info, warn or error", v.c.Log.Level)
	}
	if !slices.Contains([]string{"text", "json"}, v.c.Log.Format) {
		v.fail("log.format", "%q: text or json", v.c.Log.Format)
	}
	if (v.c.HTTP.TLSCert == "") != (v.c.HTTP.TLSKey == "") {
		v.fail("http.tls_cert", "http.tls_cert and http.tls_key go together")
	}
	if strings.ContainsAny(v.c.Advertise, ":/ ") && net.ParseIP(v.c.Advertise) == nil {
		v.fail("advertise", "%q: a host name or an IP address without a port is wanted", v.c.Advertise)
	}
	if ip := net.ParseIP(v.c.Advertise); ip != nil && ip.IsUnspecified() {
		v.fail("advertise", "%s is no address that others can reach", v.c.Advertise)
	}
}

func (v *validator) addresses() {
	http := v.listen("http.addr", v.c.HTTP.Addr)
	quic := v.listen("quic.addr", v.c.QUIC.Addr)
	gossip := v.listen("gossip.addr", v.c.Gossip.Addr)
	if http == gossip && http > 0 {
		v.fail("gossip.addr", "port %d is http.addr's; both are TCP, so they need two", gossip)
	}
	if quic == gossip && quic > 0 {
		v.fail("gossip.addr", "port %d is quic.addr's; both are UDP, so they need two", gossip)
	}
	for _, key := range []string{"join", "initial_members"} {
		list := v.c.Join
		if key == "initial_members" {
			list = v.c.InitialMembers
		}
		for _, a := range list {
			if host, port, err := net.SplitHostPort(a); err != nil || host == "" || !validPort(port, 1) {
				v.fail(key, "%q: HOST:PORT is wanted", a)
			}
		}
	}
}

func validPort(s string, lowest int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= lowest && n <= 65535
}

// listen checks an address to listen on and returns its port, 0 where it is free or wrong.
func (v *validator) listen(key, addr string) int {
	_, port, err := net.SplitHostPort(addr)
	if err != nil || !validPort(port, 0) {
		v.fail(key, "%q: HOST:PORT or :PORT is wanted", addr)
		return 0
	}
	n, _ := strconv.Atoi(port)
	return n
}

// exposure: what listens beyond loopback must be protected, unless the operator says that the network is.
func (v *validator) exposure() {
	if v.c.Insecure {
		return
	}
	if len(v.c.Secret) == 0 {
		for _, a := range []struct{ key, addr string }{{"quic.addr", v.c.QUIC.Addr}, {"gossip.addr", v.c.Gossip.Addr}} {
			if !loopback(a.addr) {
				v.fail(a.key, "%s is reachable from outside this host, and the mesh has no secret: give one (`skein keygen`, secret_file), or say insecure: true on a network you trust", a.addr)
			}
		}
	}
	if !loopback(v.c.HTTP.Addr) {
		v.fail("http.addr", "%s is reachable from outside this host, and HTTP has no access tokens: listen on 127.0.0.1, or say insecure: true on a network you trust", v.c.HTTP.Addr)
	}
}

// unreachable warns of an advertised address at which nobody listens; mostly the secret was forgotten.
func (c Config) unreachable() []string {
	ip := net.ParseIP(c.Advertise)
	if ip == nil || ip.IsLoopback() || !loopback(c.Gossip.Addr) {
		return nil
	}
	return []string{fmt.Sprintf("advertise is %s, but gossip.addr is %s: other hosts cannot reach this node (a node without a secret listens on loopback only)",
		c.Advertise, c.Gossip.Addr)}
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return true // reported by listen
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func (v *validator) roles() {
	if v.c.Found && len(v.c.Join) > 0 {
		v.fail("found", "makes a new mesh, and join enters another (%s): choose one", v.c.Origin("join"))
	}
	if v.c.Found && len(v.c.InitialMembers) > 0 {
		v.fail("found", "initial_members founds the mesh already: leave found out")
	}
	if n := len(v.c.InitialMembers); n > MaxFounders {
		v.fail("initial_members", "names %d nodes, at most %d can found a mesh: name some of them, the others join", n, MaxFounders)
	}
	founders := v.c.Founders()
	for i, m := range founders {
		if i > 0 && founders[i-1] == m {
			v.fail("initial_members", "names %s twice", m)
		}
	}
	if len(v.c.SecretPrevious) > 0 && len(v.c.Secret) == 0 {
		v.fail("secret_previous", "needs a secret beside it")
	}
}

func (v *validator) numbers() {
	c := v.c
	v.between("raft.heartbeat_ms", int64(c.Raft.HeartbeatMS), 5, 60_000)
	v.between("raft.election_ms", int64(c.Raft.ElectionMS), 20, 600_000)
	if c.Raft.ElectionMS < 4*c.Raft.HeartbeatMS {
		v.fail("raft.election_ms", "%d is below 4 heartbeats of %d ms: owners would change for nothing", c.Raft.ElectionMS, c.Raft.HeartbeatMS)
	}
	v.between("telemetry_interval_ms", int64(c.TelemetryIntervalMS), 50, 600_000)
	v.between("load_thresholds.cpu_max_percent", int64(c.LoadThresholds.CPUMaxPercent), 1, 100)
	v.between("load_thresholds.memory_max_percent", int64(c.LoadThresholds.MemoryMaxPercent), 1, 100)
	v.between("publish_deadline_ms", int64(c.PublishDeadlineMS), 10, 60_000)
	v.between("memory_budget", c.MemoryBudget, 4<<20, 1<<40)
	v.between("max_body_bytes", c.MaxBodyBytes, 1<<10, 1<<30)
	if c.ReplaceAfter <= 0 {
		v.fail("replace_after", "must be above 0")
	}
	if c.HandoverTime <= 0 {
		v.fail("handover_time", "must be above 0")
	}
	if !(c.Weight > 0 && c.Weight <= 1000) {
		v.fail("weight", "%g: above 0 and at most 1000 is wanted", c.Weight)
	}
}

func (v *validator) between(key string, n, lo, hi int64) {
	if n < lo || n > hi {
		v.fail(key, "%d is outside %d to %d", n, lo, hi)
	}
}
