package transport

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Protocol versions that this build speaks.
const (
	ProtocolVersion    = uint16(wire.Newest)
	ProtocolMinVersion = uint16(wire.Oldest)
)

// Identity is what a node says of itself in every handshake.
type Identity struct {
	NodeID ring.NodeID
	// Name is the node's human name; it shows in logs only.
	Name string
	// MeshID is zero while a joiner does not know it yet; see Peers.SetMesh.
	MeshID    ring.MeshID
	ClusterID string
	// Version and MinVersion bound the protocol versions spoken; zero: this build's. See Peers.SetFloor.
	Version    uint16
	MinVersion uint16
	// Boot counts this node's starts on durable storage, and Nonce is drawn anew at each. A peer that remembers a higher
	// count knows that the disk was rolled back to an older copy. Boot 0: not kept, not checked. Nonce 0: New draws one.
	Boot  uint64
	Nonce uint64
}

// Config is what Peers needs. Fields without a default are required.
type Config struct {
	Self        Identity
	Credentials *Credentials
	Network     Network

	DialTimeout      time.Duration // one connection attempt, TLS and hello included; default 3 s
	HandshakeTimeout time.Duration // an incoming handshake, and the start of each incoming stream; default 5 s
	PingInterval     time.Duration // between application pings on the control connection; default 500 ms
	PingTimeout      time.Duration // silence after which a peer is given up; default 1.5 s
	IdleTimeout      time.Duration // silence after which a connection ends by itself; default 4 s
	BackoffMin       time.Duration // wait after the first failed dial, jittered; default 50 ms
	BackoffMax       time.Duration // the doubled wait's bound; default 2 s

	SendQueueBytes  int   // one-way messages that wait per (peer, class), bytes; then dropped; default 32 MiB
	SendQueueFrames int   // the same, count; default 8192
	InboundBytes    int64 // request bodies being read or handled per connection, bytes; then they wait; default 64 MiB
	MaxHandshakes   int   // incoming handshakes under way at once; more are refused; default 128

	// Known is what is remembered of other nodes' starts from earlier runs. OnStart is told of each newer start of a peer that was
	// accepted, so that it can be remembered; may be nil, must not block.
	Known   map[ring.NodeID]Start
	OnStart func(peer ring.NodeID, name string, s Start)

	// OnRefused is told when a peer refused this node for a reason only this node can mend; code is one of the Refused
	// constants. May be nil. Must not block.
	OnRefused func(peer ring.NodeID, code, detail string)

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// DefaultConfig has every default; Self, Credentials and Network are the caller's.
func DefaultConfig() Config {
	return Config{
		DialTimeout:      3 * time.Second,
		HandshakeTimeout: 5 * time.Second,
		PingInterval:     500 * time.Millisecond,
		PingTimeout:      1500 * time.Millisecond,
		IdleTimeout:      4 * time.Second,
		BackoffMin:       50 * time.Millisecond,
		BackoffMax:       2 * time.Second,
		SendQueueBytes:   32 << 20,
		SendQueueFrames:  8192,
		InboundBytes:     64 << 20,
		MaxHandshakes:    128,
		Logger:           slog.Default(),
	}
}

// Validate reports what New would refuse.
func (c *Config) Validate() error {
	switch {
	case c.Self.NodeID.IsZero():
		return errors.New("transport: Self.NodeID is not set")
	case c.Self.ClusterID == "":
		return errors.New("transport: Self.ClusterID is not set")
	case c.Credentials == nil:
		return errors.New("transport: Credentials is not set")
	case c.Credentials.node != c.Self.NodeID:
		return errors.New("transport: Credentials are another node's")
	case c.Network == nil:
		return errors.New("transport: Network is not set")
	}
	for _, d := range []time.Duration{c.DialTimeout, c.HandshakeTimeout, c.PingInterval, c.PingTimeout, c.IdleTimeout, c.BackoffMin} {
		if d <= 0 {
			return errors.New("transport: a timeout is not positive")
		}
	}
	if c.BackoffMax < c.BackoffMin || c.PingTimeout <= c.PingInterval {
		return errors.New("transport: BackoffMax below BackoffMin, or PingTimeout not above PingInterval")
	}
	if c.SendQueueBytes <= 0 || c.SendQueueFrames <= 0 || c.InboundBytes <= 0 || c.MaxHandshakes <= 0 {
		return errors.New("transport: a bound is not positive")
	}
	return nil
}

// withDefaults fills zero fields.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	for _, p := range []struct{ v, d *time.Duration }{
		{&c.DialTimeout, &d.DialTimeout}, {&c.HandshakeTimeout, &d.HandshakeTimeout}, {&c.PingInterval, &d.PingInterval},
		{&c.PingTimeout, &d.PingTimeout}, {&c.IdleTimeout, &d.IdleTimeout}, {&c.BackoffMin, &d.BackoffMin}, {&c.BackoffMax, &d.BackoffMax},
	} {
		if *p.v == 0 {
			*p.v = *p.d
		}
	}
	for _, p := range []struct{ v, d *int }{
		{&c.SendQueueBytes, &d.SendQueueBytes}, {&c.SendQueueFrames, &d.SendQueueFrames}, {&c.MaxHandshakes, &d.MaxHandshakes},
	} {
		if *p.v == 0 {
			*p.v = *p.d
		}
	}
	if c.InboundBytes == 0 {
		c.InboundBytes = d.InboundBytes
	}
	if c.Logger == nil {
		c.Logger = d.Logger
	}
	if c.Self.Nonce == 0 {
		c.Self.Nonce = rand.Uint64()
	}
	if c.Self.Version == 0 {
		c.Self.Version = ProtocolVersion
	}
	if c.Self.MinVersion == 0 {
		c.Self.MinVersion = min(ProtocolMinVersion, c.Self.Version)
	}
	return c
}
