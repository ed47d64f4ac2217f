package replica

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/skeinmesh/skein/testnet/virtual"
)

// Where a vote takes longer to sync than an election timeout, an owner is elected nevertheless: when the old one hands over, and when it is
// killed. Ten groups vote at once, so that votes wait for what is being synced as well.
func TestOwnersAreElectedOnDisksSlowerThanTheElectionTimeout(t *testing.T) {
	for _, sync := range []time.Duration{300 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second} {
		t.Run(sync.String(), func(t *testing.T) {
			inMesh(t, 3, func(m *mesh) {
				const groups = 10
				for i := range groups {
					m.found(testGroup(byte(i)), 0, 1, 2)
					m.propose(testGroup(byte(i)), "first")
				}
				for _, n := range m.nodes {
					n.journal.syncTime.Store(int64(sync))
				}
				limit := 6*sync + 3*time.Second // a vote and an entry of the new owner, each behind what is being synced here and there
				for i := range groups {
					own := m.owner(testGroup(byte(i)))
					ctx, cancel := context.WithTimeout(context.Background(), sync/2)
					_ = own.Transfer(ctx, m.nodes[(m.nodeOf(own).i+1)%3].id) // it may take longer
					cancel()
				}
				if d := m.owned(groups); d > limit {
					t.Errorf("handed over in %v", d)
				}
				m.nodes[0].crash()
				if d := m.owned(groups, 1, 2); d > limit {
					t.Errorf("replaced in %v", d)
				}
			})
		})
	}
}

func TestNothingIsHandedOverForEvennessWhileDisksAreSlow(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := m.foundOnThree()
		if err := m.owner(g, 0).Transfer(context.Background(), m.nodes[1].id); err != nil {
			t.Fatal(err)
		}
		own := m.owner(g, 1)
		for _, n := range m.nodes {
			n.journal.syncTime.Store(int64(time.Second))
		}
		for i := range 40 {
			if o := m.propose(g, strconv.Itoa(i)); o.Err != nil {
				t.Fatal(o.Err)
			}
			virtual.Sleep(3 * time.Second)
		}
		if s := own.Status(); s.Role != RoleOwner || s.Term != 3 {
			t.Errorf("handed over: %+v", s)
		}
		for _, n := range m.nodes {
			n.journal.syncTime.Store(0)
		}
		virtual.Sleep(25 * time.Second)
		m.owner(g, 0) // its home
	})
}
