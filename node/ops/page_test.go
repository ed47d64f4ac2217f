package ops

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/skeinmesh/skein/ring"
)

// TestPagesGiveEachOperationOnceTheNewestFirst: from whichever nodes they come, with new ones coming meanwhile.
func TestPagesGiveEachOperationOnceTheNewestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tables := []*Table{NewTable(ring.NodeID{1}, "a", 9, 100), NewTable(ring.NodeID{2}, "b", 10, 100)}
		now := start
		var all []Operation
		add := func() {
			now = now.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "ms")) * time.Millisecond)
			op, err := tables[rapid.IntRange(0, 1).Draw(t, "node")].Add(now, Operation{Kind: Cordon, State: Done})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, op)
		}
		for range rapid.IntRange(0, 40).Draw(t, "n") {
			add()
		}
		want := len(all)
		page := Page{Limit: rapid.IntRange(1, 15).Draw(t, "limit")}
		var got []Operation
		for more := true; more; {
			var part []Operation
			if part, more = page.Of(all); len(part) > page.Limit || more && len(part) < page.Limit {
				t.Fatalf("a page of %d", len(part))
			}
			got = append(got, part...)
			if more {
				var ok bool
				if page.After, ok = ParsePlace(part[len(part)-1].Place().String()); !ok {
					t.Fatalf("no cursor: %s", part[len(part)-1].Place())
				}
				now = now.Add(time.Millisecond) // newer than what was given: one of the same moment may be missed
				add()
			}
		}
		if len(got) != want {
			t.Fatalf("%d of %d", len(got), want)
		}
		for i, op := range got[:max(0, len(got)-1)] {
			if next := got[i+1]; next.Started > op.Started || next.Keeper == op.Keeper && slices.IndexFunc(all, next.is) > slices.IndexFunc(all, op.is) {
				t.Fatalf("%s comes before %s", op.ID, next.ID)
			}
		}
	})
}

func (o Operation) is(other Operation) bool { return o.ID == other.ID }

func TestPageWithoutALimitIsAll(t *testing.T) {
	list := []Operation{{ID: "a", Started: 1}, {ID: "b", Started: 2}}
	if got, more := (Page{}).Of(list); more || len(got) != 2 || got[0].ID != "b" || list[0].ID != "a" {
		t.Errorf("%v %v of %v", got, more, list)
	}
}
