package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Violation is one broken promise.
type Violation struct {
	// Name is the checker's stable word: lost-write, inconsistent-offset, order, duplicate, aborted-read, phantom-read, skip,
	// non-monotonic-read, stale-end, two-owners, reused-replica-id, divergent-replicas, or no-final-reader (the history cannot tell what was lost); and of CheckCatalog
	// catalog-not-linearizable, or catalog-undecided (the search took too long).
	Name string
	// Text says for a human which events, places and clients are concerned.
	Text string
}

func (v Violation) String() string { return v.Name + ": " + v.Text }

// PerName bounds the violations that Check reports of one name; a last one then says how many more there were.
const PerName = 10

// Check returns all violations, grouped by checker. No other goroutine may record meanwhile.
func Check(h *History) []Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &checker{h: h, found: map[string]int{}}
	c.lostWrites()
	c.consistentOffsets()
	c.duplicates()
	c.abortedReads()
	c.contiguousReads()
	c.orderedReads()
	c.staleEnds()
	c.claims()
	for _, name := range c.names {
		if n := c.found[name] - PerName; n > 0 {
			c.out = append(c.out, Violation{name, fmt.Sprintf("and %d more", n)})
		}
	}
	return c.out
}

// Format renders violations one a line, for a test's failure message.
func Format(vs []Violation) string {
	var b strings.Builder
	for _, v := range vs {
		fmt.Fprintln(&b, v)
	}
	return b.String()
}

type checker struct {
	h     *History
	out   []Violation
	found map[string]int
	names []string // in order of first finding
}

func (c *checker) fail(name, format string, args ...any) {
	if c.found[name] == 0 {
		c.names = append(c.names, name)
	}
	c.found[name]++
	if c.found[name] <= PerName {
		c.out = append(c.out, Violation{name, fmt.Sprintf(format, args...)})
	}
}

// lostWrites: each acknowledged event is read by each final reader.
func (c *checker) lostWrites() {
	acked := 0
	for _, e := range c.h.events {
		if e.acked > 0 {
			acked++
		}
	}
	if acked > 0 && len(c.h.finals) == 0 {
		c.fail("no-final-reader", "%d events were acknowledged, but no reader was marked as having read everything after healing", acked)
		return
	}
	seen := map[string]map[ID]bool{}
	for _, f := range c.h.finals {
		seen[f] = map[ID]bool{}
	}
	for _, r := range c.h.reads {
		if s := seen[r.reader]; s != nil {
			s[r.id] = true
		}
	}
	for _, id := range c.h.order {
		e := c.h.events[id]
		if e.acked == 0 {
			continue
		}
		for _, f := range c.h.finals {
			if !seen[f][id] {
				c.fail("lost-write", "%v was acknowledged%s, but %s, which read everything after healing, did not see it", id, at(e.places), f)
			}
		}
	}
}

func at(places []Place) string {
	if len(places) == 0 {
		return ""
	}
	return " at " + places[0].String()
}

// consistentOffsets: a place names one event for ever, and an acknowledged place is where readers find the event.
func (c *checker) consistentOffsets() {
	type witness struct {
		id ID
		by string
	}
	first := map[Place]witness{}
	meet := func(p Place, id ID, by string) {
		w, ok := first[p]
		switch {
		case !ok:
			first[p] = witness{id, by}
		case w.id != id:
			c.fail("inconsistent-offset", "%v is %v according to %s, but %v according to %s", p, w.id, w.by, id, by)
		}
	}
	for _, id := range c.h.order {
		for _, p := range c.h.events[id].places {
			meet(p, id, "the acknowledgement")
		}
	}
	for _, r := range c.h.reads {
		meet(r.place, r.id, "reader "+r.reader)
	}
}

// duplicates: an identity is stored once, so that one reader meets it at one place, and everybody at the same.
func (c *checker) duplicates() {
	first := map[ID]Place{}
	reported := map[ID]bool{}
	meet := func(id ID, p Place, how string) {
		w, ok := first[id]
		switch {
		case !ok:
			first[id] = p
		case w != p && !reported[id]:
			reported[id] = true
			c.fail("duplicate", "%v is stored twice: at %v, and %s %v", id, w, how, p)
		}
	}
	for _, id := range c.h.order {
		for _, p := range c.h.events[id].places {
			meet(id, p, "acknowledged again at")
		}
	}
	for _, r := range c.h.reads {
		meet(r.id, r.place, "read by "+r.reader+" at")
	}
}

// abortedReads: what was definitely refused is never read, nor what nobody sent.
func (c *checker) abortedReads() {
	reported := map[ID]bool{}
	for _, r := range c.h.reads {
		e := c.h.events[r.id]
		switch {
		case reported[r.id]:
			continue
		case e == nil:
			c.fail("phantom-read", "%s read %v at %v, but nobody sent it", r.reader, r.id, r.place)
		case e.refused > 0 && e.acked == 0 && e.unknown == 0:
			c.fail("aborted-read", "%s read %v at %v, but every try to publish it was refused", r.reader, r.id, r.place)
		default:
			continue
		}
		reported[r.id] = true
	}
}

// contiguousReads: within one subscription, offsets of a partition go up one by one.
func (c *checker) contiguousReads() {
	type key struct {
		reader string
		place  Place // offset 0
	}
	last := map[key]uint64{}
	for _, r := range c.h.reads {
		k := key{r.reader, Place{Partition: r.place.Partition}}
		prev, ok := last[k]
		last[k] = r.place.Offset
		switch {
		case !ok || r.place.Offset == prev+1:
		case r.place.Offset <= prev:
			c.fail("non-monotonic-read", "%s was at offset %d of partition %d and was then given offset %d", r.reader, prev,
				r.place.Partition, r.place.Offset)
		default:
			c.fail("skip", "%s was at offset %d of partition %d and was then given offset %d: %d events are missing", r.reader, prev,
				r.place.Partition, r.place.Offset, r.place.Offset-prev-1)
		}
	}
}

// orderedReads: each reader meets the events of a key in the order that their publishers could rely on.
//
// Two rules. By number: of one publisher's events whose outcome was never in doubt, numbers go up. By time: when an event was
// acknowledged before another was sent for the first time, by whomever, it comes first.
func (c *checker) orderedReads() {
	type stream struct{ reader, key string }
	type numbered struct{ reader, key, publisher string }
	latestSent := map[stream]ID{} // the event of those read whose first try was the last
	highest := map[numbered]uint64{}
	seen := map[string]map[ID]bool{}
	for _, r := range c.h.reads {
		e := c.h.events[r.id]
		if seen[r.reader] == nil {
			seen[r.reader] = map[ID]bool{}
		}
		if e == nil || seen[r.reader][r.id] { // other checkers' business
			continue
		}
		seen[r.reader][r.id] = true

		n := numbered{r.reader, r.id.Key, r.id.Publisher}
		if e.acked > 0 && e.unknown == 0 {
			if r.id.Seq < highest[n] {
				c.fail("order", "%s read %v at %v after event %d of the same publisher and key", r.reader, r.id, r.place, highest[n])
				continue
			}
			highest[n] = r.id.Seq
		}
		s := stream{r.reader, r.id.Key}
		late, ok := latestSent[s]
		if ok && e.acked > 0 && e.acked < c.h.events[late].sent {
			c.fail("order", "%s read %v at %v after %v, which was sent only when the first had been acknowledged", r.reader, r.id, r.place, late)
			continue
		}
		if e.sent > 0 && (!ok || e.sent > c.h.events[late].sent) {
			latestSent[s] = r.id
		}
	}
}

// staleEnds: who reads to the end meets what was acknowledged before the reading began.
func (c *checker) staleEnds() {
	seen := map[string]map[ID]bool{}
	for _, e := range c.h.ends {
		seen[e.reader] = map[ID]bool{}
	}
	for _, r := range c.h.reads {
		if s := seen[r.reader]; s != nil {
			s[r.id] = true
		}
	}
	for _, end := range c.h.ends {
		for _, id := range c.h.order {
			if e := c.h.events[id]; e.acked > 0 && e.acked <= end.begun && !seen[end.reader][id] {
				c.fail("stale-end", "%v was acknowledged%s before %s began, which read to the end and did not see it", id, at(e.places), end.reader)
			}
		}
	}
}

// claims: one owner per partition and term, one node per partition and replica id, one hash per partition and index.
func (c *checker) claims() {
	for _, q := range c.h.asked {
		values := slices.Sorted(maps.Keys(c.h.claims[q]))
		if len(values) < 2 {
			continue
		}
		switch q.what {
		case "two-owners":
			c.fail(q.what, "partition %d had more than one owner in term %d: %s", q.partition, q.at, strings.Join(values, ", "))
		case "reused-replica-id":
			c.fail(q.what, "partition %d gave the replica id %d to more than one node: %s", q.partition, q.at, strings.Join(values, ", "))
		default:
			c.fail(q.what, "replicas of partition %d differ in what they applied up to index %d: %s", q.partition, q.at, strings.Join(values, ", "))
		}
	}
}
