package config

import (
	"fmt"
	"log/slog"
	"time"
)

// Config is everything that a node can be told. Each field's meaning, unit and default are in the table of keys (keys.go);
// the comments here say only what a reader of the struct must know.
type Config struct {
	Name      string
	ClusterID string
	DataDir   string
	Zone      string
	Weight    float64

	HTTP   HTTP
	QUIC   QUIC
	Gossip Gossip
	Kafka  Kafka

	// Advertise is a host without a port; see AdvertiseHost for what an empty one means.
	Advertise string
	// Join holds host:port, the port filled in.
	Join           []string
	InitialMembers []string
	Found          bool

	// Secret is empty or SecretSize bytes. It never prints.
	Secret         Secret
	SecretPrevious Secret
	Insecure       bool

	TelemetryIntervalMS     Millis
	LoadThresholds          LoadThresholds
	DynamicRebalanceEnabled bool
	ReplaceAfter            time.Duration
	HandoverTime            time.Duration

	MemoryBudget      int64
	MaxBodyBytes      int64
	AutoCreateStreams bool

	Raft              Raft
	PublishDeadlineMS Millis
	SessionMS         Millis

	Log Log

	// Warnings are what Load found odd but not wrong; whoever called Load logs them.
	Warnings []string

	secretFile string
	origins    map[string]string
}

// HTTP is the front door.
type HTTP struct {
	Addr         string
	AllowedHosts []string
	TLSCert      string
	TLSKey       string
}

// QUIC is the port between nodes.
type QUIC struct{ Addr string }

// Gossip is the membership port, TCP and UDP.
type Gossip struct{ Addr string }

// Kafka is the Kafka-protocol front door.
type Kafka struct{ Addr string }

// LoadThresholds are the limits at which fatigue is 1.0, in percent.
type LoadThresholds struct {
	CPUMaxPercent    int
	MemoryMaxPercent int
}

// Raft is the clockwork of the replica groups.
type Raft struct {
	ElectionMS  Millis
	HeartbeatMS Millis
}

// Log says how the node speaks.
type Log struct {
	Level  string // debug | info | warn | error
	Format string // text | json
}

// SlogLevel is Level as slog knows it; info where it is not valid.
func (l Log) SlogLevel() slog.Level {
	var lv slog.Level
	if lv.UnmarshalText([]byte(l.Level)) != nil {
		return slog.LevelInfo
	}
	return lv
}

// Millis is a time span in whole milliseconds, as the keys that end in _ms hold it.
type Millis int64

// Duration is the span as the standard library knows it.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Default returns the configuration of a node that was told nothing: loopback only, no role, no name (Load fills in the
// host's).
func Default() Config {
	c := Config{origins: map[string]string{}}
	for i := range table {
		k := &table[i]
		if k.Default == "" {
			continue
		}
		if err := k.set(&c, textScalar(k.Default)); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", k.Name, err))
		}
	}
	return c
}

// Origin says where the value of a key came from: "default", "skein.yaml:3", "SKEIN_HTTP_ADDR", "--http-addr".
func (c Config) Origin(key string) string {
	if o, ok := c.origins[key]; ok {
		return o
	}
	return "default"
}

// isSet reports whether a key was given by anybody.
func (c Config) isSet(key string) bool { _, ok := c.origins[key]; return ok }
