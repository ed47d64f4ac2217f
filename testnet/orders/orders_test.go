package orders

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestSameSeedGivesSameEvents(t *testing.T) {
	a, b, other := New(Config{Seed: 7}), New(Config{Seed: 7}), New(Config{Seed: 8})
	same := 0
	for range 1000 {
		x, y, z := a.Next(), b.Next(), other.Next()
		if x.Key != y.Key || !bytes.Equal(x.Value, y.Value) {
			t.Fatalf("%s differs from %s", x.Value, y.Value)
		}
		if bytes.Equal(x.Value, z.Value) {
			same++
		}
	}
	if same > 10 {
		t.Errorf("another seed gave %d of 1000 equal events", same)
	}
}

func TestOrdersGoThroughTheirStatesInOrder(t *testing.T) {
	g := New(Config{Seed: 1, Customers: 20, Prefix: "a-"})
	rank := map[string]int{}
	for i, s := range states {
		rank[s.name] = i
	}
	at := map[string]int{}
	seq := map[string]uint64{}
	for range 5000 {
		ev := g.Next()
		var o Order
		if err := json.Unmarshal(ev.Value, &o); err != nil {
			t.Fatal(err)
		}
		if o.Customer != ev.Key || o.Seq != ev.Seq || o.Seq != seq[ev.Key]+1 {
			t.Fatalf("key %q seq %d after %d: %s", ev.Key, ev.Seq, seq[ev.Key], ev.Value)
		}
		seq[ev.Key] = o.Seq
		last, known := at[o.Order]
		if known != (o.State != "placed") || known && rank[o.State] != last+1 {
			t.Fatalf("order %s is %s after state %d", o.Order, o.State, last)
		}
		at[o.Order] = rank[o.State]
	}
}

func TestSkewMakesAHotCustomer(t *testing.T) {
	share := func(skew float64) float64 {
		g := New(Config{Seed: 3, Customers: 100, Skew: skew})
		n := map[string]int{}
		for range 10_000 {
			n[g.Next().Key]++
		}
		most := 0
		for _, c := range n {
			most = max(most, c)
		}
		return float64(most) / 10_000
	}
	if s := share(1.5); s < 0.25 || s > 0.5 {
		t.Errorf("skew 1.5: the busiest of 100 has %.2f", s)
	}
	if s := share(-1); s > 0.03 {
		t.Errorf("no skew: the busiest of 100 has %.2f", s)
	}
}
