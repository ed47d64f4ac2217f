package gossip

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
)

// TestWhatANodeSaysAfterItCameBackIsHeardByAll, also where packets were lost and no full exchange makes up for it.
func TestWhatANodeSaysAfterItCameBackIsHeardByAll(t *testing.T) {
	var cut atomic.Bool
	var nodes []*node
	for i := range 5 {
		c := fastConfig(fmt.Sprintf("n%d", i))
		c.SuspicionMult = 2
		c.PushPullInterval = time.Hour
		if i == 0 {
			c.Self.Mesh = testMesh
		} else {
			c.Seeds = []string{nodes[0].Addr()}
		}
		nodes = append(nodes, start(t, c, func(g *Gossip) {
			g.net.blocked = func(addr string) bool { return cut.Load() && (i == 2 || addr == nodes[2].Addr()) }
		}))
	}
	formed(t, nodes)
	all := func(ok func(view.Member) bool) func() bool {
		return func() bool {
			for i, n := range nodes {
				if m, _ := n.View().Member(nodes[2].cfg.Self.ID); i != 2 && !ok(m) {
					return false
				}
			}
			return true
		}
	}
	for _, f := range []view.Flags{view.Draining, view.Cordoned, 0} {
		cut.Store(true)
		eventually(t, "it is dead", all(func(m view.Member) bool { return m.State == view.StateDead }))
		cut.Store(false)
		eventually(t, "it is back", all(func(m view.Member) bool { return m.State == view.StateAlive }))
		nodes[2].SetFlags(f)
		eventually(t, "what it says is heard", all(func(m view.Member) bool { return m.Flags == f }))
	}
}
