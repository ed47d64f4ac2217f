package check

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/skeinmesh/skein/ring"
)

// sound records a history without a fault: two publishers, two keys in two partitions, two final readers, a refusal, a retry that
// the mesh called a duplicate, and an event of unknown outcome that was stored after all, late.
func sound() *History {
	h := &History{}
	for seq := range uint64(5) {
		for p, key := range []string{"a", "b"} {
			pub := "pub-" + key
			h.Sent(pub, key, seq)
			h.Acked(pub, key, seq, ring.PartitionID(p), seq, false)
		}
	}
	h.Sent("pub-a", "a", 5)
	h.Refused("pub-a", "a", 5)
	h.Sent("pub-a", "a", 6)
	h.Unknown("pub-a", "a", 6)
	h.Sent("pub-a", "a", 7)
	h.Unknown("pub-a", "a", 7)
	h.Sent("pub-a", "a", 7)
	h.Acked("pub-a", "a", 7, 0, 5, true)
	for _, r := range []string{"r1", "r2"} {
		for seq := range uint64(5) {
			h.Read(r, 0, seq, "pub-a", "a", seq)
			h.Read(r, 1, seq, "pub-b", "b", seq)
		}
		h.Read(r, 0, 5, "pub-a", "a", 7)
		h.Read(r, 0, 6, "pub-a", "a", 6)
		h.Final(r)
	}
	return h
}

func names(vs []Violation) []string {
	var out []string
	for _, v := range vs {
		out = append(out, v.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestASoundHistoryHasNoViolation(t *testing.T) {
	h := sound()
	if vs := Check(h); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
	acked, refused, unknown, reads := h.Counts()
	if acked != 11 || refused != 1 || unknown != 1 || reads != 24 {
		t.Fatalf("counts are %d %d %d %d", acked, refused, unknown, reads)
	}
	if vs := Check(&History{}); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
}

// Each fault is planted into a sound history and must be found under its own name, with the words that lead to it.
func TestEveryPlantedFaultIsFoundByName(t *testing.T) {
	cases := []struct {
		name  string
		plant func(h *History)
		want  []string // violation names
		text  string   // of the first violation
	}{
		{"acknowledged but nowhere", func(h *History) {
			h.Acked("pub-a", "a", 8, 0, 7, false)
		}, []string{"lost-write"}, `event 8 of key "a" by pub-a was acknowledged at partition 0 offset 7, but r1`},
		{"acknowledged but missing on one replica", func(h *History) {
			h.Acked("pub-a", "a", 8, 0, 7, false)
			h.Read("r1", 0, 7, "pub-a", "a", 8)
		}, []string{"lost-write"}, "but r2, which read everything"},
		{"acknowledged as duplicate but nowhere", func(h *History) {
			h.Acked("pub-a", "a", 8, 0, 0, true)
		}, []string{"lost-write"}, "was acknowledged, but r1"},
		{"nobody read to the end", func(h *History) {
			h.finals = nil
		}, []string{"no-final-reader"}, "11 events were acknowledged"},
		{"one offset, two events for two readers", func(h *History) {
			h.Unknown("pub-a", "a", 8)
			h.Unknown("pub-a", "a", 9)
			h.Read("r1", 0, 7, "pub-a", "a", 8)
			h.Read("r2", 0, 7, "pub-a", "a", 9)
		}, []string{"inconsistent-offset"}, `partition 0 offset 7 is event 8 of key "a" by pub-a according to reader r1, but event 9`},
		{"acknowledged at a place where another event lies", func(h *History) {
			h.Acked("pub-b", "b", 5, 1, 4, false)
			h.Read("r1", 1, 5, "pub-b", "b", 5)
			h.Read("r2", 1, 5, "pub-b", "b", 5)
		}, []string{"duplicate", "inconsistent-offset"}, "according to the acknowledgement"},
		{"numbers go down", func(h *History) {
			h.Acked("pub-a", "a", 8, 0, 8, false)
			h.Acked("pub-a", "a", 9, 0, 7, false)
			for _, r := range []string{"r1", "r2"} {
				h.Read(r, 0, 7, "pub-a", "a", 9)
				h.Read(r, 0, 8, "pub-a", "a", 8)
			}
		}, []string{"order"}, `r1 read event 8 of key "a" by pub-a at partition 0 offset 8 after event 9`},
		{"numbers go down across partitions", func(h *History) {
			h.Acked("pub-a", "a", 8, 2, 0, false)
			h.Acked("pub-a", "a", 9, 3, 0, false)
			for _, r := range []string{"r1", "r2"} {
				h.Read(r, 3, 0, "pub-a", "a", 9)
				h.Read(r, 2, 0, "pub-a", "a", 8)
			}
		}, []string{"order"}, "after event 9"},
		{"another publisher's later event comes first", func(h *History) {
			h.Sent("x", "k", 1)
			h.Acked("x", "k", 1, 2, 1, false)
			h.Sent("y", "k", 1)
			h.Acked("y", "k", 1, 2, 0, false)
			for _, r := range []string{"r1", "r2"} {
				h.Read(r, 2, 0, "y", "k", 1)
				h.Read(r, 2, 1, "x", "k", 1)
			}
		}, []string{"order"}, "which was sent only when the first had been acknowledged"},
		{"stored twice", func(h *History) {
			for _, r := range []string{"r1", "r2"} {
				h.Read(r, 0, 7, "pub-a", "a", 4)
			}
		}, []string{"duplicate"}, "is stored twice: at partition 0 offset 4, and read by r1 at partition 0 offset 7"},
		{"acknowledged twice as new", func(h *History) {
			h.Acked("pub-a", "a", 4, 0, 7, false)
		}, []string{"duplicate"}, "acknowledged again at partition 0 offset 7"},
		{"refused but read", func(h *History) {
			for _, r := range []string{"r1", "r2"} {
				h.Read(r, 0, 7, "pub-a", "a", 5)
			}
		}, []string{"aborted-read"}, "every try to publish it was refused"},
		{"read but never sent", func(h *History) {
			h.Read("r1", 0, 7, "pub-a", "a", 99)
		}, []string{"phantom-read"}, "nobody sent it"},
		{"a gap within a subscription", func(h *History) {
			h.Read("live", 0, 1, "pub-a", "a", 1)
			h.Read("live", 0, 3, "pub-a", "a", 3)
		}, []string{"skip"}, "live was at offset 1 of partition 0 and was then given offset 3: 1 events are missing"},
		{"going back within a subscription", func(h *History) {
			h.Read("live", 0, 3, "pub-a", "a", 3)
			h.Read("live", 0, 3, "pub-a", "a", 3)
		}, []string{"non-monotonic-read"}, "was then given offset 3"},
		{"an end that leaves out what was acknowledged", func(h *History) {
			h.Read("until", 0, 0, "pub-a", "a", 0)
			h.ReadUntil("until", 4) // when two events were acknowledged
		}, []string{"stale-end"}, `event 0 of key "b" by pub-b was acknowledged at partition 1 offset 0 before until began`},
		{"two owners in one term", func(h *History) {
			h.Owned(1, 7, "n1")
			h.Owned(1, 8, "n2")
			h.Owned(1, 7, "n1")
			h.Owned(1, 7, "n3")
		}, []string{"two-owners"}, "partition 1 had more than one owner in term 7: n1, n3"},
		{"one replica id, two nodes", func(h *History) {
			h.Member(1, 4, "n1")
			h.Member(2, 4, "n2")
			h.Member(1, 4, "n3")
			h.Member(1, 5, "n1")
		}, []string{"reused-replica-id"}, "partition 1 gave the replica id 4 to more than one node: n1, n3"},
		{"replicas that applied different entries", func(h *History) {
			h.Applied(1, 20, "n1", 5)
			h.Applied(1, 21, "n1", 6)
			h.Applied(1, 20, "n2", 7)
		}, []string{"divergent-replicas"}, "up to index 20"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := sound()
			c.plant(h)
			vs := Check(h)
			if got := names(vs); !slices.Equal(got, c.want) {
				t.Fatalf("found %v, want %v\n%s", got, c.want, Format(vs))
			}
			if !strings.Contains(Format(vs), c.text) {
				t.Fatalf("%q is not in\n%s", c.text, Format(vs))
			}
		})
	}
}

// An event whose first try timed out may be stored after its successor: nobody was told otherwise.
func TestAnEventInDoubtMayComeLate(t *testing.T) {
	h := &History{}
	h.Sent("p", "k", 1)
	h.Unknown("p", "k", 1)
	h.Sent("p", "k", 2)
	h.Acked("p", "k", 2, 0, 0, false)
	h.Sent("p", "k", 1)
	h.Acked("p", "k", 1, 0, 1, false)
	h.Read("r", 0, 0, "p", "k", 2)
	h.Read("r", 0, 1, "p", "k", 1)
	h.Final("r")
	if vs := Check(h); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
}

// An event may be stored by its first try, whose answer is lost, before another publisher's event that is acknowledged before the retry.
func TestARetryDoesNotMakeAnEventLater(t *testing.T) {
	h := &History{}
	h.Sent("x", "k", 1)
	h.Unknown("x", "k", 1)
	h.Sent("y", "k", 1)
	h.Acked("y", "k", 1, 0, 1, false)
	h.Sent("x", "k", 1)
	h.Acked("x", "k", 1, 0, 0, true)
	h.Read("r", 0, 0, "x", "k", 1)
	h.Read("r", 0, 1, "y", "k", 1)
	h.Final("r")
	if vs := Check(h); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
}

// Who reads to the end need not meet what is acknowledged while it reads.
func TestAnEndIsAsNewAsTheReadingThatAskedForIt(t *testing.T) {
	h := &History{}
	h.Sent("p", "k", 1)
	h.Acked("p", "k", 1, 0, 0, false)
	begun := h.Now()
	h.Sent("p", "k", 2)
	h.Acked("p", "k", 2, 0, 1, false)
	h.Read("until", 0, 0, "p", "k", 1)
	h.ReadUntil("until", begun)
	h.Read("r", 0, 0, "p", "k", 1)
	h.Read("r", 0, 1, "p", "k", 2)
	h.Final("r")
	if vs := Check(h); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
}

func TestTheNumberOfViolationsIsBounded(t *testing.T) {
	h := &History{}
	for i := range uint64(100) {
		h.Acked("p", "k", i, 0, i, false)
	}
	h.Final("r")
	vs := Check(h)
	if len(vs) != PerName+1 || vs[PerName].String() != "lost-write: and 90 more" {
		t.Fatal(Format(vs))
	}
}

func TestTheRecorderMayBeUsedByMany(t *testing.T) {
	h := &History{}
	var wg sync.WaitGroup
	for p := range 4 {
		wg.Go(func() {
			key := fmt.Sprint(p)
			for seq := range uint64(200) {
				h.Sent("p", key, seq)
				h.Acked("p", key, seq, ring.PartitionID(p), seq, false)
				h.Owned(ring.PartitionID(p), seq, "n")
				h.Read("r"+key, ring.PartitionID(p), seq, "p", key, seq)
				h.Read("all", ring.PartitionID(p), seq, "p", key, seq)
			}
		})
	}
	wg.Wait()
	h.Final("all")
	if vs := Check(h); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
}
