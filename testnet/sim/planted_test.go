//go:build skeinplanted

package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/planted"
)

// often has some faults chosen far more often than usual.
func often(names ...string) func(string, int) int {
	return func(fault string, usual int) int {
		if slices.Contains(names, fault) {
			return 20
		}
		return usual
	}
}

// lasting has single nodes be cut off for so long that others take their place.
func lasting(fault string, _ int) int {
	return map[string]int{"cut off": 2, "heal the network": 1}[fault]
}

// Each bug is found by a checker that is there for bugs of its kind.
func TestPlantedBugIsCaughtByName(t *testing.T) {
	for _, row := range []struct {
		bug    planted.Bug
		kinds  []string // any of them
		most   uint64   // seeds
		config Config
	}{
		{bug: planted.SkipFsync, kinds: []string{"lost-write"}, most: 60, config: Config{Trouble: 3 * time.Second, Weight: often("power loss of all")}},
		{bug: planted.AckBeforeCommit, kinds: []string{"lost-write"}, most: 60, config: Config{Weight: often("cut off")}},
		{bug: planted.DropHardState, kinds: []string{"two-owners"}, most: 60, config: Config{Weight: often("kill all")}},
		{bug: planted.ReuseReplicaID, kinds: []string{"reused-replica-id"}, most: 60, config: Config{Trouble: time.Minute, Weight: lasting}},
		{bug: planted.ForgetDedupe, kinds: []string{"duplicate"}, most: 60},
		{bug: planted.ReadPastCommit, kinds: []string{"inconsistent-offset", "duplicate"}, most: 60, config: Config{Weight: often("cut off")}},
		{bug: planted.StaleEnd, kinds: []string{"stale-end"}, most: 60},
		{bug: planted.StoreRetryTwice, kinds: []string{"duplicate"}, most: 60},
	} {
		t.Run(string(row.bug), func(t *testing.T) {
			planted.Set(row.bug)
			defer planted.Set("")
			begin := time.Now()
			row.config.Patience = time.Second // what is broken for good need not be waited for
			for seed := uint64(1); seed <= row.most; seed++ {
				row.config.Chance = &Chance{Seed: seed}
				res := run(t, row.config)
				for _, v := range res.Violations {
					if slices.Contains(row.kinds, v.Name) {
						t.Logf("caught by seed %d, after %v: %v", seed, time.Since(begin).Round(time.Millisecond), v)
						planted.Set("")
						row.config.Chance = &Chance{Seed: seed}
						if res := run(t, row.config); len(res.Violations) > 0 {
							t.Errorf("seed %d finds something without the bug too: %v", seed, res.Violations)
						}
						return
					}
				}
				t.Logf("seed %d: acknowledged %d, violations %v, failures %v", seed, res.Acked, res.Violations, res.Failures)
			}
			t.Errorf("%d seeds did not find it as %v", row.most, row.kinds)
		})
	}
}
