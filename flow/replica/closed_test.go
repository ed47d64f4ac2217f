package replica

import (
	"context"
	"errors"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
)

// What does not run is held all the same: until it was removed a node is not empty. It is told by the owner, and asks where nobody tells it.
func TestReplicaThatIsClosedIsHeldUntilItsGroupLetItGo(t *testing.T) {
	for _, told := range []bool{true, false} {
		inMesh(t, 4, func(m *mesh) {
			g := testGroup(1)
			failed := errors.New("bad luck")
			m.nodes[2].failing = func(log.Entry) error { return failed }
			m.found(g, 0, 1, 2)
			m.propose(g, "a")
			m.await("the replica to stop", func() bool { return m.group(2, g) == nil })
			host := m.nodes[2].host
			if c := host.Closed(); len(c) != 1 || c[0].Group != g || c[0].Self != 3 {
				t.Fatalf("closed are %+v", c)
			}
			m.split(2, 0, true)
			m.split(2, 1, true)
			m.split(2, 3, true)
			m.set(m.drained, 2, true)
			m.await("its replacement", func() bool { on := m.on(g); return len(on) == 3 && on[3] })
			if len(host.Closed()) != 1 {
				t.Fatal("it is gone, and nobody can have told it")
			}
			if !told {
				for _, n := range []int{0, 1, 3} {
					if err := m.group(n, g).ask(context.Background(), "test", func() error { m.group(n, g).plan.gone = nil; return nil }); err != nil {
						t.Fatal(err)
					}
				}
			}
			m.split(2, 0, false)
			m.split(2, 1, false)
			m.split(2, 3, false)
			m.await("its end", func() bool { return len(host.Closed()) == 0 })
		})
	}
}
