package node

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
)

// viewOf is the view of a mesh whose members are in these states.
func viewOf(states ...view.State) *view.View {
	var u view.Update
	for i, s := range states {
		u.Members = append(u.Members, view.Member{Identity: view.Identity{ID: ring.NodeID{byte(i + 1)}}, State: s, Since: time.Now(), Observed: 1})
	}
	v, _ := view.New(ring.NodeID{1}, view.Limits{}).Merge(u)
	return v
}

func TestMeshOfTwoIsWarnedOfOnceAfterHalfAMinute(t *testing.T) {
	const alive, suspect, left, dead = view.StateAlive, view.StateSuspect, view.StateLeft, view.StateDead
	type step struct {
		states []view.State
		lasts  time.Duration
	}
	const long = time.Hour
	two, three := []view.State{alive, alive}, []view.State{alive, alive, alive}
	for name, tc := range map[string]struct {
		steps []step
		lines []int // how many there are after each step
	}{
		"alone":                 {[]step{{[]view.State{alive}, long}}, []int{0}},
		"not for long enough":   {[]step{{two, 29 * time.Second}, {three, long}}, []int{0, 0}},
		"for half a minute":     {[]step{{two, 29 * time.Second}, {two, 2 * time.Second}, {two, long}}, []int{0, 1, 1}},
		"a third in between":    {[]step{{two, 20 * time.Second}, {three, time.Second}, {two, 29 * time.Second}, {two, 2 * time.Second}}, []int{0, 0, 0, 1}},
		"two again much later":  {[]step{{two, long}, {[]view.State{alive}, long}, {two, long}}, []int{1, 1, 2}},
		"one of three left":     {[]step{{[]view.State{alive, alive, left}, long}}, []int{0}},
		"one of three is dead":  {[]step{{[]view.State{alive, alive, dead}, long}}, []int{0}},
		"one of two is dead":    {[]step{{[]view.State{alive, dead}, long}}, []int{0}},
		"one of two is suspect": {[]step{{[]view.State{alive, suspect}, long}}, []int{1}},
		"suspicion in between":  {[]step{{two, 20 * time.Second}, {[]view.State{alive, suspect}, 11 * time.Second}}, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log syncBuffer
				ctx, cancel := context.WithCancel(t.Context())
				v, changed := viewOf(), make(chan struct{})
				ended := make(chan error, 1)
				go func() {
					ended <- warnOfTwo(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() (bool, <-chan struct{}) { return ofTwo(v), changed })
				}()
				for i, s := range tc.steps {
					synctest.Wait() // it waits, and looks at nothing
					old := changed
					v, changed = viewOf(s.states...), make(chan struct{})
					close(old)
					virtual.Sleep(s.lasts)
					synctest.Wait()
					if n := strings.Count(log.String(), "level=WARN msg=\""+twoNodes+"\""); n != tc.lines[i] || n != strings.Count(log.String(), "\n") {
						t.Errorf("after step %d: %d lines, want %d:\n%s", i, n, tc.lines[i], log.String())
					}
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
