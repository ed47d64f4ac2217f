package node

import (
	"testing"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
)

// TestOwnerIsToldWithItsOwnTerm: a replica that has not met the new term yet does not lend its old owner to it.
func TestOwnerIsToldWithItsOwnTerm(t *testing.T) {
	old, next := ring.NewNodeID(), ring.NewNodeID()
	for _, c := range []struct {
		name          string
		heard, here   uint64 // terms
		role          replica.Role
		owner, expect ring.NodeID
	}{
		{"the replica lags", 4, 3, replica.RoleFollower, old, next},
		{"the replica is ahead", 4, 5, replica.RoleFollower, old, old},
		{"it is the owner itself", 4, 4, replica.RoleOwner, next, next},
		{"it knows no owner of the term", 4, 4, replica.RoleFollower, ring.NodeID{}, next},
	} {
		h := heardReport{Report: ops.Report{Term: c.heard}, owner: next}
		rep, owner := h.or(replica.Status{Term: c.here, Role: c.role, Owner: c.owner}, func() ops.Report { return ops.Report{Term: c.here} })
		if owner != c.expect || rep.Term != max(c.heard, c.here) {
			t.Errorf("%s: %v in term %d", c.name, owner, rep.Term)
		}
	}
}
