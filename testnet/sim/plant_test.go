package sim

import (
	"context"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/log"
)

// unsynced is a journal that says that something is durable once it is written.
type unsynced struct{ log.Journal }

func (j unsynced) Append(ctx context.Context, writes []log.Write, _ bool, done func(error)) {
	j.Journal.Append(ctx, writes, false, done)
}

func TestEventsAcknowledgedBeforeTheyAreSyncedAreFoundLost(t *testing.T) {
	plant := func(j log.Journal) log.Journal { return unsynced{j} }
	for seed := range uint64(40) {
		for _, v := range run(t, Config{Chance: &Chance{Seed: seed}, Patience: time.Second, Journal: plant}).Violations {
			if v.Name == "lost-write" {
				t.Logf("seed %d: %v", seed, v)
				return
			}
		}
	}
	t.Error("none was found")
}
