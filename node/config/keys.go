package config

import (
	"fmt"
	"strings"
	"time"
)

// Key is one thing that can be configured.
type Key struct {
	// Name is the dotted name, as in a file: "http.addr".
	Name string
	// Default is the default in the form that the key reads; empty where there is none. Fallback describes a default that
	// depends on something else.
	Default  string
	Fallback string
	// Doc is one sentence: what it does, and its unit.
	Doc string
	// Reload: a SIGHUP takes the new value; every other key needs a restart.
	Reload bool
	// NoFlag: there is no flag, for secrets do not belong on a command line, where every user of the host reads them.
	NoFlag bool
	// Later: the key is known, but what it switches on is not part of this version. It is refused, and has no default.
	Later string

	field func(*Config) any
}

// table is the one list of keys. Everything else is derived from it.
var table = []Key{
	{Name: "name", Fallback: "the host name", Doc: "this node's name, unique in the mesh", field: func(c *Config) any { return &c.Name }},
	{Name: "cluster_id", Default: "skein", Doc: "the mesh's human name; nodes with another one are refused", field: func(c *Config) any { return &c.ClusterID }},
	{Name: "data_dir", Default: "skein-data", Doc: "directory of everything this node keeps", field: func(c *Config) any { return &c.DataDir }},
	{Name: "zone", Doc: "failure zone (rack, availability zone); copies are spread over zones", field: func(c *Config) any { return &c.Zone }},
	{Name: "weight", Default: "1", Doc: "this node's share of the load, relative to the others'", field: func(c *Config) any { return &c.Weight }},

	{Name: "http.addr", Default: "127.0.0.1:8400", Fallback: ":8400 with insecure", Doc: "address of the HTTP API", field: func(c *Config) any { return &c.HTTP.Addr }},
	{Name: "http.allowed_hosts", Reload: true, Doc: "host names that requests may be addressed to, beside this node's own addresses; * allows all", field: func(c *Config) any { return &c.HTTP.AllowedHosts }},
	{Name: "http.tls_cert", Later: "TLS on the HTTP port", Doc: "certificate file (PEM) of the HTTP API", field: func(c *Config) any { return &c.HTTP.TLSCert }},
	{Name: "http.tls_key", Later: "TLS on the HTTP port", Doc: "private key file (PEM) of the HTTP API", field: func(c *Config) any { return &c.HTTP.TLSKey }},
	{Name: "quic.addr", Default: "127.0.0.1:8401", Fallback: ":8401 with a secret or insecure", Doc: "UDP address for traffic between nodes", field: func(c *Config) any { return &c.QUIC.Addr }},
	{Name: "gossip.addr", Default: "127.0.0.1:8402", Fallback: ":8402 with a secret or insecure", Doc: "TCP and UDP address for gossip", field: func(c *Config) any { return &c.Gossip.Addr }},
	{Name: "kafka.addr", Later: "the Kafka protocol", Doc: "address of the Kafka-protocol front door", field: func(c *Config) any { return &c.Kafka.Addr }},
	{Name: "advertise", Fallback: "the address that routes to the others", Doc: "host or IP at which other nodes reach this one", field: func(c *Config) any { return &c.Advertise }},

	{Name: "join", Doc: "gossip addresses of nodes to join, HOST[:8402]; a name's addresses are all tried, for ever", field: func(c *Config) any { return &c.Join }},
	{Name: "initial_members", Doc: "gossip addresses of all nodes that found a mesh together, HOST[:8402], the same list on each; a node that finds a mesh there joins it", field: func(c *Config) any { return &c.InitialMembers }},
	{Name: "found", Default: "false", Doc: "found a new mesh with this node as its first member", field: func(c *Config) any { return &c.Found }},

	{Name: "secret", NoFlag: true, Doc: "32 bytes in base64 or hex that all nodes of the mesh share (`skein keygen`)", field: func(c *Config) any { return &c.Secret }},
	{Name: "secret_file", Doc: "file that holds the secret, readable by this user only", field: func(c *Config) any { return &c.secretFile }},
	{Name: "secret_previous", NoFlag: true, Doc: "a second secret that is accepted from others while the nodes are changed over (SECURITY.md says how)", field: func(c *Config) any { return &c.SecretPrevious }},
	{Name: "insecure", Default: "false", Doc: "allow addresses beyond loopback without a secret, and HTTP there without access tokens", field: func(c *Config) any { return &c.Insecure }},

	{Name: "telemetry_interval_ms", Default: "1000", Doc: "how often a node measures its load, in ms", field: func(c *Config) any { return &c.TelemetryIntervalMS }},
	{Name: "load_thresholds.cpu_max_percent", Default: "85", Reload: true, Doc: "CPU use at which the node is shown as fully loaded (fatigue 1.0), in percent; nothing moves by it yet", field: func(c *Config) any { return &c.LoadThresholds.CPUMaxPercent }},
	{Name: "load_thresholds.memory_max_percent", Default: "90", Reload: true, Doc: "memory use at which the node is shown as fully loaded (fatigue 1.0), in percent; nothing moves by it yet", field: func(c *Config) any { return &c.LoadThresholds.MemoryMaxPercent }},
	{Name: "dynamic_rebalance_enabled", Default: "true", Doc: "let owners move copies and ownership so that every node has its share, and hand partitions back to their homes on the ring; repairs and drains go on without it", field: func(c *Config) any { return &c.DynamicRebalanceEnabled }},
	{Name: "replace_after", Default: "5m", Reload: true, Doc: "how long a node may be dead, or away after it left, before its copies are made elsewhere, and how long a copy may be closed for good on a node that is there before it is replaced; each owner counts from when it noticed, and suspicion does not count", field: func(c *Config) any { return &c.ReplaceAfter }},
	{Name: "handover_time", Default: "30s", Reload: true, Doc: "how long a node that is told to stop may take to hand over what it owns; what is left then is taken over by election", field: func(c *Config) any { return &c.HandoverTime }},

	{Name: "memory_budget", Default: "64MiB", Doc: "bytes of events buffered at most; publishers wait, then get 503 overloaded", field: func(c *Config) any { return (*size)(&c.MemoryBudget) }},
	{Name: "max_body_bytes", Default: "32MiB", Reload: true, Doc: "largest HTTP body, in bytes", field: func(c *Config) any { return (*size)(&c.MaxBodyBytes) }},
	{Name: "auto_create_streams", Default: "false", Reload: true, Doc: "create a stream on its first publish instead of answering 404", field: func(c *Config) any { return &c.AutoCreateStreams }},

	{Name: "raft.election_ms", Default: "500", Doc: "silence after which an owner is replaced, in ms (up to twice that); the same on all nodes", field: func(c *Config) any { return &c.Raft.ElectionMS }},
	{Name: "raft.heartbeat_ms", Default: "100", Doc: "how often an owner shows that it lives, in ms", field: func(c *Config) any { return &c.Raft.HeartbeatMS }},
	{Name: "publish_deadline_ms", Default: "10000", Reload: true, Doc: "how long a publish waits for room and for its copies, in ms, unless it says timeout_ms", field: func(c *Config) any { return &c.PublishDeadlineMS }},
	{Name: "session_ms", Later: "another time than 15 minutes for publish sessions", Doc: "how long a silent publish session is remembered, in ms", field: func(c *Config) any { return &c.SessionMS }},

	{Name: "log.level", Default: "info", Reload: true, Doc: "debug, info, warn or error", field: func(c *Config) any { return &c.Log.Level }},
	{Name: "log.format", Default: "text", Doc: "text or json", field: func(c *Config) any { return &c.Log.Format }},
}

// size marks an int64 that reads "64MiB" as well as bytes.
type size int64

// Keys lists every key in the order of the reference.
func Keys() []Key { return append([]Key(nil), table...) }

// Lookup finds a key by its dotted name.
func Lookup(name string) (Key, bool) {
	for _, k := range table {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

// Flag is the key's command-line flag without dashes: "http-addr".
func (k Key) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.Name) }

// Env is the key's environment variable: "SKEIN_HTTP_ADDR".
func (k Key) Env() string {
	return "SKEIN_" + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// IsBool reports whether the key is a switch, whose flag needs no value.
func (k Key) IsBool() bool { _, ok := k.field(new(Config)).(*bool); return ok }

// IsSecret reports whether the value is never shown.
func (k Key) IsSecret() bool { _, ok := k.field(new(Config)).(*Secret); return ok }

// IsList reports whether the key takes several values: a YAML sequence, or text with commas.
func (k Key) IsList() bool { _, ok := k.field(new(Config)).(*[]string); return ok }

// Type names what the key takes, for people.
func (k Key) Type() string {
	switch k.field(new(Config)).(type) {
	case *string:
		return "text"
	case *bool:
		return "true or false"
	case *int:
		return "a whole number"
	case *float64:
		return "a number"
	case *size:
		return "a size (bytes, or 64MiB)"
	case *Millis:
		return "milliseconds (or 500ms, 5m)"
	case *time.Duration:
		return "a time span (30s, 5m, 7d)"
	case *[]string:
		return "a list of text"
	case *Secret:
		return "32 bytes in base64 or hex"
	}
	panic("config: key " + k.Name + " has a field of unknown type")
}

// Kind is Type in one word, for the help of a flag.
func (k Key) Kind() string {
	switch k.field(new(Config)).(type) {
	case *bool:
		return "bool"
	case *int, *float64:
		return "number"
	case *size:
		return "size"
	case *Millis:
		return "ms"
	case *time.Duration:
		return "span"
	case *[]string:
		return "list"
	default:
		return "text"
	}
}

// NotAvailable marks keys of later versions where people read of them.
const NotAvailable = "not available yet"

// Reference is the table for people, one key a line in aligned columns: name, default, environment variable, meaning.
func Reference() string {
	var b strings.Builder
	for _, k := range table {
		def := k.Default
		if k.Fallback != "" {
			if def != "" {
				def += " (" + k.Fallback + ")"
			} else {
				def = k.Fallback
			}
		}
		notes := ""
		if k.Reload {
			notes += "; SIGHUP reloads it"
		}
		if k.Later != "" {
			notes += "; " + NotAvailable
		}
		if def == "" {
			def = "none"
		}
		fmt.Fprintf(&b, "%-36s %s%s\n%-36s default: %s; %s\n", k.Name, k.Doc, notes, "", def, k.Env())
	}
	return b.String()
}
