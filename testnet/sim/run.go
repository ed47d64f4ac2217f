package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/check"
	"github.com/skeinmesh/skein/transport/wire"
)

// Config says what a run is.
type Config struct {
	// Chance has the seed, which alone decides what happens. It should be the process's crypto/rand.Reader meanwhile.
	Chance *Chance
	// Trouble is how long faults go on, in virtual time. Default 12 s.
	Trouble time.Duration
	// Patience is how long after healing everything may take: all publishes and elections, and then all reading. Default 60 s.
	Patience time.Duration
	// Weight, where not nil, says how often a fault is chosen in place of its usual weight; by name, 0: never.
	Weight func(fault string, usual int) int
	// Line, where not nil, is given each line of the trace.
	Line func(string)
	// Logger gets what nodes log; nil: discarded.
	Logger *slog.Logger
}

// Result is what a run came to.
type Result struct {
	Nodes                         int
	Virtual                       time.Duration
	Steps                         uint64 // lines of the trace
	Trace                         uint64 // their hash
	Acked, Refused, Unknown, Read int
	Faults                        []string // each with its instant and node
	Violations                    []check.Violation
	Failures                      []string // besides: no progress, a node that stopped by itself
}

const publishers = 4

const (
	start  = 3 * time.Second  // of trouble
	setUp  = 30 * time.Second // for founding, and for making the stream
	ending = 60 * time.Second // for all processes and clients
)

// Run makes a mesh, troubles it, heals it, and checks what clients saw. It must run in a testing/synctest bubble.
func Run(cfg Config) (res Result) {
	if cfg.Trouble <= 0 {
		cfg.Trouble = 12 * time.Second
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 60 * time.Second
	}
	if cfg.Weight == nil {
		cfg.Weight = func(_ string, usual int) int { return usual }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Chance.begin()
	seed := cfg.Chance.Seed
	w := newWorld(seed, cfg.Line)
	m := newMesh(w, 3+2*w.rng.IntN(2), cfg)
	m.weight = cfg.Weight
	c := &clients{m: m, stop: make(chan struct{})}
	defer func() {
		c.leave()
		m.end(c)
		res.Nodes, res.Virtual, res.Steps, res.Trace = len(m.nodes), w.now(), w.notes, w.trace.Sum64()
		res.Acked, res.Refused, res.Unknown, res.Read = m.history.Counts()
		res.Violations = check.Check(m.history)
		res.Faults, res.Failures = m.faults, m.fails
	}()
	if err := m.found(); err != nil {
		m.fail("%v", err)
		return res
	}
	for i := range publishers {
		c.publisher(i, seed)
	}
	c.tail(0, seed)
	c.tail(1, seed)
	c.untilEnd(0, seed)
	w.run(start-w.now(), func() bool { return false }) // from the same instant on, however long founding took
	m.troubleForEver()
	w.run(cfg.Trouble, func() bool { return false })
	m.heal()
	c.leave()
	if !w.run(cfg.Patience, func() bool { return c.busy.Load() == 0 && m.allOwned() }) {
		m.fail("%v after healing %d publishers still wait; owned: %v", cfg.Patience, c.busy.Load(), m.allOwned())
	}
	m.readEverywhere(c, cfg.Patience)
	return res
}

// found starts all nodes, makes the catalog, and creates the stream.
func (m *mesh) found() error {
	for _, nd := range m.nodes {
		m.restart(nd, m.w.between(0, 50*time.Millisecond))
		m.gossipForEver(nd)
	}
	m.calm = true
	if !m.w.run(setUp, m.allUp) {
		return errors.New("not all nodes came up")
	}
	var failed error
	made := false
	go func() {
		err := m.create()
		m.w.say("made", func() { made, failed = true, err })
	}()
	if !m.w.run(setUp, func() bool { return made && (failed != nil || m.allOwned()) }) {
		return errors.New("the stream has no owners")
	}
	m.calm = false
	return failed
}

func (m *mesh) create() error {
	ctx, cancel := context.WithTimeout(context.Background(), setUp)
	defer cancel()
	for k := range shards {
		b := replica.Birth{Group: ring.CatalogGroup(m.id, k), Kind: replica.KindCatalog}
		for i, nd := range m.nodes[:3] {
			b.Members = append(b.Members, replica.Member{ID: ring.ReplicaID(i + 1), Node: nd.id})
		}
		for i, nd := range m.nodes[:3] {
			b.Self = ring.ReplicaID(i + 1)
			if err := nd.proc.Load().host.Create(ctx, b); err != nil {
				return err
			}
		}
	}
	for {
		_, _, err := m.nodes[0].proc.Load().broker.Create(ctx, streamName, flow.StreamConfig{Partitions: 3, Replicas: 3}, flow.CreateOrSame)
		if err == nil || wire.KindOf(err) != wire.KindUnavailable && wire.KindOf(err) != wire.KindOutcomeUnknown || ctx.Err() != nil {
			return err
		}
	}
}

func (m *mesh) allUp() bool {
	for _, nd := range m.nodes {
		if nd.proc.Load() == nil {
			return false
		}
	}
	return true
}

// allOwned is true once every group that any node has is owned.
func (m *mesh) allOwned() bool {
	if !m.allUp() {
		return false
	}
	owned := map[ring.GroupID]bool{}
	for _, nd := range m.nodes {
		for _, g := range nd.proc.Load().host.Groups() {
			st := g.Status()
			owned[st.Group] = owned[st.Group] || st.Role == replica.RoleOwner && st.Ready
		}
	}
	for _, ok := range owned {
		if !ok {
			return false
		}
	}
	return len(owned) > shards
}

// heal makes everything good, for ever.
func (m *mesh) heal() {
	m.w.note("heal")
	m.calm = true
	m.healNetwork()
	m.healRest()
	for _, nd := range m.nodes {
		nd.flags = 0
		if nd.failing { // a good one takes its place, with what was durable
			nd.kill(true)
		}
		m.restart(nd, m.w.between(0, 100*time.Millisecond))
	}
}

// readEverywhere reads the stream through each node.
func (m *mesh) readEverywhere(c *clients, patience time.Duration) {
	reading := 0
	for _, nd := range m.nodes {
		p := nd.proc.Load()
		if p == nil {
			continue // told of already
		}
		reading++
		c.start(func() {
			ok := false
			for try := 0; try < 5 && !ok; try++ {
				reader := fmt.Sprintf("final%d-%d", nd.i, try)
				if ok = c.finalRead(p, reader); ok {
					m.history.Final(reader)
				}
			}
			m.w.say(fmt.Sprintf("final %d", nd.i), func() {
				m.w.note("final %d %v", nd.i, ok)
				reading--
				if !ok {
					m.fail("node %d cannot be read to the end", nd.i)
				}
			})
		})
	}
	if !m.w.run(patience, func() bool { return reading == 0 }) {
		m.fail("%d nodes cannot be read within %v", reading, patience)
	}
}

// end ends all processes and waits for them and the clients.
func (m *mesh) end(c *clients) {
	m.over.Store(true)
	for _, nd := range m.nodes {
		nd.kill(false)
	}
	m.w.run(ending, func() bool {
		for _, nd := range m.nodes {
			if nd.ending {
				return false
			}
		}
		return c.there.Load() == 0
	})
}
