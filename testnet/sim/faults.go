package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
)

// fault is something that goes wrong, or that an operator does meanwhile.
type fault struct {
	weight int
	name   string
	do     func(m *mesh, n int)
}

// faults are what a run chooses from; n is a node at random.
var faults = []fault{
	{8, "kill", func(m *mesh, n int) { m.crash(n, false) }},
	{5, "power loss", func(m *mesh, n int) { m.crash(n, true) }},
	{2, "kill a majority", func(m *mesh, n int) {
		for i := range len(m.nodes)/2 + 1 {
			m.crash((n+i)%len(m.nodes), false)
		}
	}},
	{1, "kill all", func(m *mesh, _ int) { m.crashAll(false) }},
	{2, "power loss of all", func(m *mesh, _ int) { m.crashAll(true) }},
	{5, "cut off", func(m *mesh, n int) {
		for i := range m.nodes {
			m.cut(n, i, true)
			m.cut(i, n, true)
		}
	}},
	{4, "split", func(m *mesh, _ int) {
		side := m.trouble.IntN(1 << len(m.nodes))
		for i := range m.nodes {
			for j := range m.nodes {
				if side>>i&1 != side>>j&1 {
					m.cut(i, j, true)
				}
			}
		}
	}},
	{4, "one way", func(m *mesh, n int) {
		for i := range m.nodes {
			m.cut(n, i, true)
		}
	}},
	{4, "partial cut", func(m *mesh, n int) {
		o := m.trouble.IntN(len(m.nodes))
		m.cut(n, o, true)
		m.cut(o, n, true)
	}},
	{5, "lossy links", func(m *mesh, _ int) {
		for i := range m.nodes {
			for j := range m.nodes {
				if l := m.link(i, j); i != j && m.trouble.IntN(2) == 0 {
					l.loss, l.twice, l.slow = []float64{0.01, 0.1, 0.3}[m.trouble.IntN(3)], 0.1, between(m.trouble, 0, 40*time.Millisecond)
				}
			}
		}
	}},
	{4, "slow disk", func(m *mesh, n int) {
		m.nodes[n].slowDisk = between(m.trouble, 5*time.Millisecond, 400*time.Millisecond)
	}},
	{3, "stand still", func(m *mesh, n int) {
		m.nodes[n].still = m.w.now() + between(m.trouble, 100*time.Millisecond, 3*time.Second)
	}},
	{2, "failing disk", func(m *mesh, n int) {
		m.nodes[n].failing = true
		m.nodes[n].disk.FailSync(errors.New("the disk fails"))
	}},
	{2, "full disk", func(m *mesh, n int) {
		m.nodes[n].cramped = true
		m.nodes[n].full.Store(m.trouble.IntN(2) == 0) // or nobody looked in time
		m.nodes[n].med.SetRoom(m.nodes[n].med.Used() + m.trouble.Int64N(8<<10))
	}},
	{3, "leave", func(m *mesh, n int) { m.leave(m.nodes[n]) }},
	{3, "stale view", func(m *mesh, n int) { m.nodes[n].gossip.frozen = true }},
	{10, "heal the network", func(m *mesh, _ int) { m.healNetwork() }},
	{3, "heal the rest", func(m *mesh, _ int) { m.healRest() }},
}

// changes are what makes groups change their members.
var changes = []fault{
	{4, "drain", func(m *mesh, n int) { m.nodes[n].flags = view.Draining }},
	{3, "cordon", func(m *mesh, n int) { m.nodes[n].flags = view.Cordoned }},
	{4, "welcome back", func(m *mesh, n int) { m.nodes[n].flags = 0 }},
}

// Changes reports whether operators drain nodes in the run of a seed: in that of every second one.
func Changes(seed uint64) bool { return seed%2 == 0 }

// troubleForEver lets faults happen until the mesh is calm.
func (m *mesh) troubleForEver() {
	choice := faults
	if Changes(m.chance.Seed) {
		choice = slices.Concat(faults, changes)
	}
	m.w.after(between(m.trouble, 50*time.Millisecond, 1500*time.Millisecond), func() {
		if m.calm {
			return
		}
		m.troubleForEver()
		sum := 0
		for _, f := range choice {
			sum += m.weight(f.name, f.weight)
		}
		pick := m.trouble.IntN(sum)
		for _, f := range choice {
			if pick -= m.weight(f.name, f.weight); pick < 0 {
				n := m.trouble.IntN(len(m.nodes))
				m.w.note("fault %s %d", f.name, n)
				m.faults = append(m.faults, fmt.Sprintf("%v %s %d", m.w.now(), f.name, n))
				f.do(m, n)
				return
			}
		}
	})
}

// crash ends a node's process; another one begins after a while.
func (m *mesh) crash(n int, power bool) {
	m.nodes[n].kill(power)
	m.restart(m.nodes[n], m.w.between(50*time.Millisecond, 4*time.Second))
}

// leave has a node hand over what it owns before its process ends, as at SIGTERM.
func (m *mesh) leave(nd *node) {
	p := nd.proc.Load()
	if p == nil || nd.flags&view.Leaving != 0 {
		return
	}
	was := nd.flags
	nd.flags |= view.Leaving
	p.serving.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, 3*time.Second)
		defer cancel()
		left := p.host.Leave(ctx)
		m.w.say("left "+name(nd.i), func() {
			nd.flags = was &^ view.Leaving
			if !p.dead.Load() {
				m.w.note("left %d %d", nd.i, left)
				m.crash(nd.i, false)
			}
		})
	})
}

func (m *mesh) crashAll(power bool) {
	for n := range m.nodes {
		m.crash(n, power)
	}
}

// restart begins a life of the node once the one before is over.
func (m *mesh) restart(nd *node, d time.Duration) {
	m.w.after(d, func() {
		switch {
		case nd.up || m.over.Load():
		case nd.ending:
			m.restart(nd, 10*time.Millisecond)
		default:
			nd.start()
		}
	})
}

// cut ends a link, with the streams over it if it stays so. Of a node with itself it does nothing.
func (m *mesh) cut(from, to int, on bool) {
	if from == to {
		return
	}
	l := m.link(from, to)
	l.cut = on
	if on {
		m.w.after(giveUp, func() {
			if l.cut {
				m.sever(from, to)
			}
		})
	}
}

// sever breaks the streams between two nodes.
func (m *mesh) sever(a, b int) {
	for _, s := range m.streamsOf(a) {
		if e := s.ends; e[0].proc.nd.i == b || e[1].proc != nil && e[1].proc.nd.i == b {
			s.sever(errLost)
		}
	}
}

func (m *mesh) healNetwork() {
	for _, l := range m.links {
		*l = link{}
	}
}

func (m *mesh) healRest() {
	for _, nd := range m.nodes {
		nd.slowDisk, nd.still, nd.gossip.frozen = 0, 0, false
		nd.cramped = false
		nd.full.Store(false)
		nd.med.SetRoom(-1)
	}
}
