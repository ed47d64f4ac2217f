package gossip

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/skeinmesh/skein/gossip/view"
	"golang.org/x/sync/errgroup"
)

const (
	// maxSeedAddrs bounds the addresses of one seed name that are tried.
	maxSeedAddrs = 64
	// joinParallel is how many addresses are tried at once.
	joinParallel = 8
	// resolveTimeout bounds one lookup of a seed name.
	resolveTimeout = 3 * time.Second
)

// joiner tries the seeds, for as long as the node runs: all of them while it is alone, and those that are not among the
// members ever after, so that a mesh that was cut apart for long heals from either side. It also tries one dead member
// each time, for the parts may hold nobody's seeds.
type joiner struct {
	g     *Gossip
	lib   *memberlist.Memberlist
	own   netip.AddrPort
	seeds []*seed
	pause time.Duration
}

// seed is one join address of the configuration.
type seed struct {
	addr        string // host:port
	silentSince time.Time
	told        bool
}

// try is one address to contact, and what came of it.
type try struct {
	addr string
	seed *seed // nil for a dead member
	err  error
}

func newJoiner(g *Gossip, lib *memberlist.Memberlist) *joiner {
	j := &joiner{g: g, lib: lib, own: g.net.adv, pause: g.cfg.SeedMinPause}
	for _, s := range g.cfg.Seeds {
		j.seeds = append(j.seeds, &seed{addr: s, silentSince: time.Now()})
	}
	return j
}

func (j *joiner) run(ctx context.Context) {
	before := 0
	for {
		// Eager after any change, for more may follow. Success alone is none: an address may belong to a member, or to this
		// node, that advertises another, and would be joined again and again.
		if now := j.g.View().CountPresent(); now != before {
			before, j.pause = now, j.g.cfg.SeedMinPause
		}
		if j.round(ctx) == 0 {
			j.pause = j.g.cfg.SeedMaxPause
		} else {
			j.pause = min(j.pause*3/2, j.g.cfg.SeedMaxPause)
		}
		if !pause(ctx, j.pause-j.pause/5+rand.N(j.pause*2/5+1)) {
			return
		}
	}
}

// round tries every address that is due once, and returns their number.
func (j *joiner) round(ctx context.Context) int {
	members := make(map[string]bool)
	var dead []string
	for _, m := range j.g.View().Members() {
		switch {
		case m.ID == j.g.cfg.Self.ID:
		case m.Present():
			members[m.GossipAddr] = true
		case m.State == view.StateDead:
			dead = append(dead, m.GossipAddr)
		}
	}
	tries := j.due(ctx, members)
	if len(members) == 0 {
		tries = append(tries, j.remembered(tries)...)
	}
	if len(dead) > 0 {
		tries = append(tries, &try{addr: dead[rand.IntN(len(dead))]})
	}
	j.contact(ctx, tries)
	if ctx.Err() == nil {
		j.report(tries)
	}
	return len(tries)
}

// remembered picks some addresses of earlier members that are not tried already.
func (j *joiner) remembered(tries []*try) (more []*try) {
	known := j.g.cfg.Remembered
	for _, i := range rand.Perm(len(known))[:min(len(known), joinParallel)] {
		if addr := known[i]; addr != j.own.String() && !slices.ContainsFunc(tries, func(t *try) bool { return t.addr == addr }) {
			more = append(more, &try{addr: addr})
		}
	}
	return more
}

// contact joins all addresses, some at once, so that silent ones do not hold up the rest.
func (j *joiner) contact(ctx context.Context, tries []*try) {
	var group errgroup.Group
	group.SetLimit(joinParallel)
	for _, t := range tries {
		group.Go(func() error {
			if ctx.Err() == nil {
				_, t.err = j.lib.Join([]string{t.addr})
			}
			return nil
		})
	}
	_ = group.Wait() // no try returns an error; each keeps its own
}

// report counts what came of the tries, and notes which seeds are silent.
func (j *joiner) report(tries []*try) {
	answered := make(map[*seed]bool)
	for _, t := range tries {
		if t.err == nil {
			j.g.metrics.joins.WithLabelValues("ok").Inc()
		} else {
			j.g.metrics.joins.WithLabelValues("failed").Inc()
			if secretMismatch(t.err.Error()) {
				j.g.notices.refuseSecret(hostOf(t.addr))
			}
		}
		if t.seed != nil && (t.err == nil || refused(t.err)) {
			answered[t.seed] = true
		}
	}
	for _, t := range tries {
		if t.seed != nil && !answered[t.seed] {
			j.silent(t.seed, t.err)
		}
	}
	for s := range answered {
		j.heard(s)
	}
}

// due resolves the seeds and lists the addresses that are neither this node nor a member.
func (j *joiner) due(ctx context.Context, members map[string]bool) []*try {
	var tries []*try
	seen := make(map[string]bool)
	for _, s := range j.seeds {
		addrs, err := resolve(ctx, s.addr, j.g.lookup) // each time anew: names are given to other addresses
		if err != nil {
			if ctx.Err() == nil {
				j.silent(s, err)
			}
			continue
		}
		known := false
		for _, a := range addrs {
			addr := a.String()
			if members[addr] || a == j.own {
				known = true
				continue
			}
			if !seen[addr] {
				seen[addr] = true
				tries = append(tries, &try{addr: addr, seed: s})
			}
		}
		if known {
			j.heard(s)
		}
	}
	return tries
}

// lookup is the addresses of a host name, as net.Resolver.LookupNetIP gives them.
type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

// Resolve lists the addresses behind host:port, as this package would join them.
func Resolve(ctx context.Context, hostport string) ([]netip.AddrPort, error) {
	return resolve(ctx, hostport, lookupIP)
}

func lookupIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, network, host)
}

func resolve(ctx context.Context, hostport string, ips lookup) ([]netip.AddrPort, error) {
	host, port, err := splitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), uint16(port))}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := ips(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	out := make([]netip.AddrPort, 0, len(found))
	for _, ip := range found[:min(len(found), maxSeedAddrs)] {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return out, nil
}

// silent notes that nobody answered for a seed, and says so once when that lasted.
func (j *joiner) silent(s *seed, err error) {
	now := time.Now()
	if s.silentSince.IsZero() {
		s.silentSince = now
	}
	if s.told || err == nil || now.Sub(s.silentSince) < j.g.cfg.SeedSilence {
		return
	}
	s.told = true
	j.g.notices.put(notice{
		level: slog.LevelWarn,
		msg: "join address does not answer as a node: check that a node runs there, that name and port are right, and that the port " +
			"is open for TCP and UDP; trying again quietly",
		attrs: []slog.Attr{slog.String("join", s.addr), slog.String("reason", reason(err))},
	})
}

// heard notes that someone answered for a seed, or that a member has its address.
func (j *joiner) heard(s *seed) {
	if s.told {
		j.g.notices.put(notice{level: slog.LevelInfo, msg: "join address answers now",
			attrs: []slog.Attr{slog.String("join", s.addr)}})
	}
	s.silentSince, s.told = time.Time{}, false
}

// refused reports whether a node answered and one side refused the other, which has a line of its own. The library
// flattens errors to text, so only the text can tell.
func refused(err error) bool {
	s := err.Error()
	return strings.Contains(s, errRefused.Error()) || strings.Contains(s, errOtherCluster.Error()) || secretMismatch(s)
}

// reason is the end of an error's text, where the cause stands, on one line.
func reason(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if i := strings.LastIndex(s, "dial "); i >= 0 {
		s = s[i:]
	}
	return s[:min(len(s), 200)]
}
