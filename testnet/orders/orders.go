package orders

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
)

// Config says what shop it is. The zero of a field means its default.
type Config struct {
	Seed uint64
	// Prefix goes before every customer's name, so that several generators have different customers.
	Prefix string
	// Customers is how many there are; default 500.
	Customers int
	// Skew is the Zipf exponent of how often a customer orders; default 1.2, as in the middle of the cache clusters of Yang et al.
	// (OSDI 2020). Below 0: all alike.
	Skew float64
	// MeanItems is the mean number of items in a basket; default 3.
	MeanItems float64
}

// Event is one event of one order.
type Event struct {
	Key   string // the customer
	Value []byte // JSON
	// Seq numbers the events of Key from 1; it is in the value too.
	Seq uint64
}

// Order is the JSON of an event.
type Order struct {
	Customer string `json:"customer"`
	Seq      uint64 `json:"seq"`
	Order    string `json:"order"`
	State    string `json:"state"`
	Currency string `json:"currency"`
	Cents    int64  `json:"cents"`
	Items    []Item `json:"items,omitempty"`
	Note     string `json:"note,omitempty"`
}

// Item is one line of a basket.
type Item struct {
	SKU   string `json:"sku"`
	Count int    `json:"count"`
	Cents int64  `json:"cents"`
}

// states are what an order goes through, each with the chance that it goes on to the next.
var states = []struct {
	name string
	goOn float64
}{{"placed", 0.9}, {"paid", 0.95}, {"packed", 1}, {"shipped", 0.9}, {"delivered", 0.05}, {"returned", 0}}

// Generator makes events. One goroutine uses it.
type Generator struct {
	cfg   Config
	rng   *rand.Rand
	share []float64 // cumulative weights of the customers, the busiest first
	open  [][]*open // orders under way, by customer
	seq   []uint64
	made  int
}

type open struct {
	id    string
	state int
	cents int64
}

// New returns a generator.
func New(cfg Config) *Generator {
	if cfg.Customers <= 0 {
		cfg.Customers = 500
	}
	if cfg.Skew == 0 {
		cfg.Skew = 1.2
	}
	if cfg.MeanItems <= 0 {
		cfg.MeanItems = 3
	}
	g := &Generator{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x0dde5)),
		share: make([]float64, cfg.Customers), open: make([][]*open, cfg.Customers), seq: make([]uint64, cfg.Customers),
	}
	sum := 0.0
	for i := range g.share {
		sum += math.Pow(float64(i+1), -max(cfg.Skew, 0))
		g.share[i] = sum
	}
	return g
}

// Next makes the next event: an order under way goes on, or a new one is placed.
func (g *Generator) Next() Event {
	c := g.customer()
	g.seq[c]++
	o := Order{Customer: fmt.Sprintf("%scustomer-%04d", g.cfg.Prefix, c), Seq: g.seq[c], Currency: "EUR"}
	if n := len(g.open[c]); n > 0 && g.rng.Float64() < 0.6 {
		i := g.rng.IntN(n)
		g.advance(c, i, &o)
	} else {
		g.place(c, &o)
	}
	value, err := json.Marshal(&o)
	if err != nil {
		panic(fmt.Sprintf("orders: %v", err)) // plain fields always marshal
	}
	return Event{Key: o.Customer, Value: value, Seq: o.Seq}
}

func (g *Generator) customer() int {
	at := g.rng.Float64() * g.share[len(g.share)-1]
	return min(sort.SearchFloat64s(g.share, at), len(g.share)-1)
}

func (g *Generator) place(c int, o *Order) {
	g.made++
	o.Order = fmt.Sprintf("%sorder-%07d", g.cfg.Prefix, g.made)
	o.State = states[0].name
	// A geometric number of items, and now and then a wholesale order.
	n := 1
	for g.rng.Float64() > 1/g.cfg.MeanItems && n < 60 {
		n++
	}
	if g.rng.IntN(200) == 0 {
		n *= 20
	}
	for range n {
		it := Item{SKU: fmt.Sprintf("SKU-%05d", g.rng.IntN(20_000)), Count: 1 + g.rng.IntN(3), Cents: int64(math.Exp(6+g.rng.NormFloat64())) + 1}
		o.Items = append(o.Items, it)
		o.Cents += it.Cents * int64(it.Count)
	}
	if g.rng.IntN(10) == 0 {
		o.Note = notes[g.rng.IntN(len(notes))]
	}
	if g.rng.Float64() < states[0].goOn {
		g.open[c] = append(g.open[c], &open{id: o.Order, cents: o.Cents})
	}
}

// advance moves a customer's i-th open order to its next state, and closes it where its way ends.
func (g *Generator) advance(c, i int, o *Order) {
	w := g.open[c][i]
	w.state++
	o.Order, o.State, o.Cents = w.id, states[w.state].name, w.cents
	if g.rng.Float64() >= states[w.state].goOn {
		last := len(g.open[c]) - 1
		g.open[c][i] = g.open[c][last]
		g.open[c] = g.open[c][:last]
	}
}

// notes hold what trips careless encoders: quotes, line breaks, other scripts, an emoji.
var notes = []string{
	"leave it at the neighbour's", `ring "Müller", 2nd floor`, "Hinterhaus\nlinks", "请放在门口", "gift 🎁, no invoice", `C:\docks\gate`,
}
