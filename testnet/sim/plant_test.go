package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/log"
)

// unsynced is a journal that says that something is durable once it is written.
type unsynced struct{ log.Journal }

func (j unsynced) Append(ctx context.Context, writes []log.Write, _ bool, done func(error)) {
	j.Journal.Append(ctx, writes, false, done)
}

// votes is a journal that does not keep a vote or a term that comes without entries.
type votes struct{ log.Journal }

func (j votes) Append(ctx context.Context, writes []log.Write, sync bool, done func(error)) {
	writes = slices.Clone(writes)
	for i := range writes {
		if w := &writes[i]; len(w.Entries) == 0 && w.Birth == nil && w.Reset == nil {
			w.HardState = nil
		}
	}
	j.Journal.Append(ctx, writes, sync, done)
}

func TestPlantedFaultsAreFound(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(log.Journal) log.Journal
		found string // a violation that one of the seeds must show
	}{
		{"acknowledged before it is synced", func(j log.Journal) log.Journal { return unsynced{j} }, "lost-write"},
		{"votes are forgotten", func(j log.Journal) log.Journal { return votes{j} }, "lost-write"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(40) {
				for _, v := range run(t, Config{Chance: &Chance{Seed: seed}, Patience: time.Second, Journal: c.plant}).Violations {
					if v.Name == c.found {
						t.Logf("seed %d: %v", seed, v)
						return
					}
				}
			}
			t.Errorf("no %s was found", c.found)
		})
	}
}
