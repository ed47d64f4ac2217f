package replica

import (
	"context"
	"slices"
	"testing"

	"github.com/skeinmesh/skein/ring"
	pb "go.etcd.io/raft/v3/raftpb"
)

// Raft leaves a joint configuration when it applies its entry, or any later one; not while a hand-over is under way. Where that fails
// and nobody publishes, nothing is applied later.
func TestJointConfigurationIsLeftAfterAHandOverThatFailed(t *testing.T) {
	inMesh(t, 3, func(m *mesh) {
		g := testGroup(1)
		m.found(g, 0, 1, 2)
		m.propose(g, "a")
		owner := m.owner(g)
		at := m.nodeOf(owner).i
		others := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == at })
		heir, other := m.group(others[0], g).birth.Self, m.group(others[1], g).birth.Self
		m.dropping(func(_, _ int, e envelope) bool { return e.msg.GetType() == pb.MsgTimeoutNow })
		if err := owner.ask(context.Background(), "test", func() error {
			owner.changeMembers(Step{Kind: StepSwap, Demote: []ring.ReplicaID{other}})
			owner.rn.TransferLeader(uint64(heir))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		joint := func() (yes bool) {
			if err := owner.ask(context.Background(), "test", func() error {
				yes = len(owner.st.conf.GetVotersOutgoing()) > 0
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return yes
		}
		m.await("the joint configuration", joint)
		m.await("its end", func() bool { return !joint() })
		m.awaitMembers(g, 3, 0, 1, 2)
	})
}
