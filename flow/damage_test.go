package flow

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
)

// segments lists the files of a partition on a node.
func (nd *node) segments(g ring.GroupID) []string {
	nd.m.t.Helper()
	files, err := filepath.Glob(filepath.Join(nd.dir, "p", g.String(), "*", "*.seg"))
	if err != nil || len(files) == 0 {
		nd.m.t.Fatalf("segments of %s on node %d: %v, %v", g, nd.i, files, err)
	}
	return files
}

// flip changes a byte in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 4
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkpoint makes what a node applied durable: what is damaged later was durable once.
func (nd *node) checkpoint() {
	nd.m.t.Helper()
	if err := nd.host.Checkpoint(nd.m.t.Context()); err != nil {
		nd.m.t.Fatal(err)
	}
}

// until waits for something, in virtual time.
func (m *mesh) until(what string, ok func() bool) {
	m.t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		virtual.Sleep(10 * time.Millisecond)
	}
	m.t.Fatalf("waited in vain: %s", what)
}

func (nd *node) status(g ring.GroupID) replica.Status {
	lg, ok := nd.host.Group(g)
	if !ok {
		return replica.Status{}
	}
	return lg.Status()
}

// raw is everything in a partition on a node, as it is on disk.
func (nd *node) raw(g ring.GroupID) (all []byte) {
	nd.m.t.Helper()
	lg, _ := nd.host.Group(g)
	p := lg.StateMachine().(*partition.Partition)
	for from := p.Start(); from < p.Next(); {
		b, err := p.Read(from, 1)
		if err != nil {
			nd.m.t.Fatalf("read %d on node %d: %v", from, nd.i, err)
		}
		all = append(all, b...)
		from++
	}
	return all
}

// roles gives a group's owner, and the two nodes that follow it.
func (m *mesh) roles(g ring.GroupID) (owner, a, b *node) {
	owner = m.owner(g)
	for _, nd := range m.nodes {
		switch {
		case nd == owner:
		case a == nil:
			a = nd
		default:
			b = nd
		}
	}
	return owner, a, b
}

func TestDamagedReplicaVotesAndDoesNotLeadUntilItHasTheBytesAgain(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		g := m.create("s", StreamConfig{Partitions: 1}).Partitions[0].Group
		for i := range 40 {
			m.put(0, "s", "k", fmt.Sprint(i))
		}
		owner, hurt, third := m.roles(g)
		virtual.Sleep(100 * time.Millisecond)
		hurt.checkpoint()
		hurt.stop()
		flip(t, hurt.segments(g)[0])
		m.noSnapshots.Store(true)
		hurt.start()
		if st := hurt.status(g); st.Damage == nil {
			t.Fatal("the damage was not found")
		}
		m.until("the owner hears the damaged replica", func() bool { return hurt.status(g).Owner == owner.id })
		lg, _ := owner.host.Group(g)
		if err := lg.Transfer(m.within(5*time.Second), hurt.id); err == nil || owner.status(g).Role != replica.RoleOwner {
			t.Errorf("the ownership was handed to the damaged replica: %v", err)
		}
		// It is one of the two that make a majority, and never the one that leads.
		third.stop()
		m.put(owner.i, "s", "k", "with the damaged one")
		third.start()
		m.until("the third has caught up", func() bool { return third.status(g).Applied >= owner.status(g).Applied })
		owner.stop()
		if now := m.owner(g); now != third {
			t.Fatalf("node %d owns the partition, want %d", now.i, third.i)
		}
		m.put(third.i, "s", "k", "voted for by the damaged one")
		owner.start()
		if got := m.readAll(hurt.i, "s", earliest()); len(got) != 42 {
			t.Errorf("through the damaged node %d events are read, want 42", len(got))
		}
		if hurt.status(g).Damage == nil {
			t.Fatal("it is mended with nothing to mend it from")
		}
		m.noSnapshots.Store(false)
		m.until("the replica is mended", func() bool {
			st := hurt.status(g)
			return st.Damage == nil && st.Applied == third.status(g).Applied
		})
		if !bytes.Equal(hurt.raw(g), third.raw(g)) {
			t.Error("the replicas differ")
		}
		lg, _ = third.host.Group(g)
		virtual.Sleep(3 * time.Second) // the owner forgets what it was told
		if err := lg.Transfer(m.within(5*time.Second), hurt.id); err != nil {
			t.Errorf("the mended replica is not made owner: %v", err)
		}
		m.put(third.i, "s", "k", "owned by the mended one")
	})
}

// A damaged replica applies nothing, so that it knows the members of the time before. When they are gone, it asks the one that speaks to it.
func TestDamagedReplicaGetsItsBytesFromAMemberThatCameSince(t *testing.T) {
	inMesh(t, 5, nil, func(t *testing.T, m *mesh) {
		g := m.create("s", StreamConfig{Partitions: 1}).Partitions[0].Group
		for i := range 40 {
			m.put(0, "s", "k", fmt.Sprint(i))
		}
		owner := m.owner(g)
		with, without := m.holders(g)
		followers := slices.DeleteFunc(with, func(nd *node) bool { return nd == owner })
		hurt, leaves, comes := followers[0], followers[1], without[0]
		virtual.Sleep(100 * time.Millisecond)
		hurt.checkpoint()
		m.move(g, leaves, comes)
		hurt.crash() // its journal has the change of members, its state does not
		flip(t, hurt.segments(g)[0])
		owner.stop()
		hurt.start()
		isThere := func(mem replica.Member) bool { return mem.Node == comes.id }
		if st := hurt.status(g); st.Damage == nil || slices.ContainsFunc(st.Members, isThere) {
			t.Fatalf("the replica is not damaged, or knows of the newcomer: %+v", st)
		}
		m.until("the replica is mended", func() bool { return hurt.status(g).Damage == nil })
		m.put(hurt.i, "s", "k", "after")
		m.until("it has applied everything", func() bool { return hurt.status(g).Applied == comes.status(g).Applied })
		if !bytes.Equal(hurt.raw(g), comes.raw(g)) {
			t.Error("the replicas differ")
		}
	})
}

func TestOwnerThatReadsDamagedBytesHandsOverAndGetsThemAgain(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		g := m.create("s", StreamConfig{Partitions: 1}).Partitions[0].Group
		noise, value := rand.NewChaCha8([32]byte{}), make([]byte, 8<<10)
		for range 60 { // more than is kept in memory
			_, _ = noise.Read(value) // nor does it shrink
			m.put(0, "s", "k", string(value))
		}
		hurt, other, _ := m.roles(g)
		virtual.Sleep(100 * time.Millisecond)
		hurt.checkpoint()
		path := hurt.segments(g)[0]
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)/8] ^= 4
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := m.readAll(hurt.i, "s", earliest()); len(got) != 60 {
			t.Errorf("%d events are read, want 60", len(got))
		}
		m.until("the partition has another owner", func() bool {
			for _, nd := range m.nodes {
				if nd != hurt && nd.status(g).Ready {
					return true
				}
			}
			return false
		})
		m.put(0, "s", "k", "later")
		m.until("the replica is mended", func() bool {
			st := hurt.status(g)
			return st.Applied > 0 && st.Damage == nil && st.Applied == m.owner(g).status(g).Applied
		})
		if !bytes.Equal(hurt.raw(g), other.raw(g)) {
			t.Error("the replicas differ")
		}
	})
}

func TestDamagedOnlyReplicaStaysClosedAndTheOthersGoOn(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		g := m.create("one", StreamConfig{Partitions: 1, Replicas: 1}).Partitions[0].Group
		m.create("s", StreamConfig{Partitions: 1})
		for i := range 40 {
			m.put(0, "one", "k", fmt.Sprint(i))
		}
		hurt := m.owner(g)
		hurt.checkpoint()
		hurt.stop()
		flip(t, hurt.segments(g)[0])
		hurt.start()
		m.put(hurt.i, "s", "k", "goes on")
		virtual.Sleep(5 * time.Second)
		if st := hurt.status(g); st.Damage == nil || st.Role == replica.RoleOwner {
			t.Errorf("it is %+v", st)
		}
	})
}
