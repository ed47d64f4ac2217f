package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// ErrNoRole is what CheckRole wraps: the node has nothing and was told nothing.
var ErrNoRole = errors.New("no role given")

// CheckRole refuses a node that has an empty data directory and no word on which mesh it belongs to: guessing would found
// a second mesh by accident. A node with data needs no role, it has one.
func (c Config) CheckRole() error {
	if c.Found || len(c.Join) > 0 || len(c.InitialMembers) > 0 {
		return nil
	}
	empty, err := emptyDir(c.DataDir)
	if err != nil {
		return &Error{Origin: c.Origin("data_dir"), Key: "data_dir", Msg: err.Error()}
	}
	if !empty {
		return nil
	}
	return fmt.Errorf("%w: %s is empty, and this node was not told which mesh it belongs to. "+
		"First node of a new mesh: --found. Every other node: --join HOST:%s (any node of the mesh). "+
		"Several nodes that found a mesh together: the same --initial-members on each. "+
		"To try Skein on this machine: skein dev", ErrNoRole, c.DataDir, DefaultGossipPort)
}

// Seeds are the gossip addresses at which this node looks for others: those to join, and the founding members.
func (c Config) Seeds() []string {
	seeds := slices.Clone(c.Join)
	for _, m := range c.InitialMembers {
		if !slices.Contains(seeds, m) {
			seeds = append(seeds, m)
		}
	}
	return seeds
}

// Founders is initial_members in the one order that is the same on every node, whatever the order and case they were given in.
func (c Config) Founders() []string {
	out := make([]string, len(c.InitialMembers))
	for i, m := range c.InitialMembers {
		out[i] = strings.ToLower(m)
	}
	slices.Sort(out)
	return out
}

func emptyDir(path string) (bool, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return len(entries) == 0, err
}

// AdvertiseHost is the host or IP that other nodes should use: advertise where given, else the gossip address where it
// names one, else the address that this host uses toward the first node to join, else its first address that is not
// loopback, else 127.0.0.1. Nothing is sent to find out.
func (c Config) AdvertiseHost() string {
	if c.Advertise != "" {
		return c.Advertise
	}
	if host, _, err := net.SplitHostPort(c.Gossip.Addr); err == nil && host != "" {
		if ip, err := netip.ParseAddr(host); err != nil || !ip.IsUnspecified() {
			return host
		}
	}
	for _, j := range c.Seeds() {
		// Connecting a UDP socket only looks up the route.
		if conn, err := net.Dial("udp", j); err == nil {
			host, _, _ := net.SplitHostPort(conn.LocalAddr().String())
			conn.Close()
			return host
		}
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}
