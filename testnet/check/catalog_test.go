package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// enough is far above what these histories take.
const enough = 20 * time.Second

func def(id string, version uint64, config string) Definition { return Definition{id, version, config} }

// soundCatalog records a history without a fault: a stream that is created, changed, deleted and created anew, refusals of each kind,
// operations that overlap, and some of unknown outcome.
func soundCatalog() *Catalog {
	c := &Catalog{}
	c.Get("s").NotFound()
	c.Delete("s").NotFound()
	c.Create("s", "a", true).Created(def("X", 1, "a"))
	c.Create("s", "a", true).Conflict()
	c.Create("s", "b", false).Conflict()
	c.Create("s", "a", false).Found(def("X", 1, "a"))
	c.Update("s", 1, "b").Found(def("X", 2, "b"))
	c.Update("s", 1, "b").Found(def("X", 2, "b")) // as asked already
	c.Update("s", 1, "c").Conflict()
	c.Get("s").Refused()
	c.Update("s", 0, "c").Found(def("X", 3, "c"))
	late, early := c.Get("s"), c.Get("s")
	remove := c.Delete("s")
	early.Found(def("X", 3, "c"))
	late.NotFound()
	remove.Done()
	c.Update("s", 3, "d").NotFound()
	c.Create("s", "a", false).Created(def("Y", 5, "a"))
	c.Delete("s").Conflict() // it began with X
	c.Get("s").Found(def("Y", 5, "a"))
	return c
}

func TestSoundHistoryOfTheCatalogHasNoViolation(t *testing.T) {
	c := soundCatalog()
	c.Create("other", "a", true).Created(def("Z", 1, "a")) // names are apart
	c.Get("s").Unknown()
	if vs := CheckCatalog(c, enough); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
	if answered, refused, unknown := c.Counts(); answered != 18 || refused != 1 || unknown != 1 {
		t.Fatalf("counts are %d %d %d", answered, refused, unknown)
	}
	if vs := CheckCatalog(&Catalog{}, enough); len(vs) > 0 {
		t.Fatal(Format(vs))
	}
}

// Each fault is planted behind a sound history: Y is there at version 5 with config a.
func TestCatalogThatIsNotLinearizableIsFound(t *testing.T) {
	for name, plant := range map[string]func(c *Catalog){
		"stale config": func(c *Catalog) {
			c.Update("s", 5, "b").Found(def("Y", 6, "b"))
			c.Get("s").Found(def("Y", 5, "a"))
		},
		"stale incarnation": func(c *Catalog) {
			c.Get("s").Found(def("X", 3, "c"))
		},
		"two readers disagree on what comes first": func(c *Catalog) {
			change := c.Update("s", 5, "b")
			c.Get("s").Found(def("Y", 6, "b"))
			c.Get("s").Found(def("Y", 5, "a"))
			change.Found(def("Y", 6, "b"))
		},
		"lost create": func(c *Catalog) {
			c.Delete("s").Done()
			c.Create("s", "a", true).Created(def("Z", 7, "a"))
			c.Get("s").NotFound()
		},
		"double create": func(c *Catalog) {
			c.Delete("s").Done()
			one, two := c.Create("s", "a", true), c.Create("s", "a", true)
			one.Created(def("Z", 7, "a"))
			two.Created(def("W", 8, "a"))
		},
		"double create, seen by readers alone": func(c *Catalog) {
			c.Delete("s").Done()
			create := c.Create("s", "a", true)
			c.Get("s").Found(def("W", 7, "a"))
			create.Created(def("Z", 8, "a"))
		},
		"deleted stream reappears": func(c *Catalog) {
			c.Delete("s").Done()
			c.Get("s").Found(def("Y", 5, "a"))
		},
		"deleted stream reappears in a newer version": func(c *Catalog) {
			c.Delete("s").Done()
			c.Get("s").Found(def("Y", 7, "a"))
		},
		"deleted stream reappears though a creation is in doubt": func(c *Catalog) {
			c.Delete("s").Done()
			c.Create("s", "a", true)
			c.Get("s").Found(def("Y", 5, "a"))
		},
		"lost update": func(c *Catalog) {
			c.Update("s", 5, "b").Found(def("Y", 6, "b"))
			c.Update("s", 5, "c").Found(def("Y", 7, "c"))
		},
		"update made twice": func(c *Catalog) {
			twice := c.Update("s", 0, "b")
			c.Get("s").Found(def("Y", 6, "b"))
			c.Update("s", 6, "c").Found(def("Y", 7, "c"))
			c.Get("s").Found(def("Y", 8, "b"))
			twice.Found(def("Y", 8, "b"))
		},
		"refused creation was made": func(c *Catalog) {
			c.Delete("s").Done()
			c.Create("s", "a", true).Refused()
			c.Get("s").Found(def("Z", 7, "a"))
		},
		"change in doubt that is undone": func(c *Catalog) {
			c.Update("s", 5, "b")
			c.Get("s").Found(def("Y", 6, "b"))
			c.Get("s").Found(def("Y", 5, "a"))
		},
		"creation conflicts with nothing": func(c *Catalog) {
			c.Delete("s").Done()
			c.Create("s", "a", true).Conflict()
		},
		"version goes back": func(c *Catalog) {
			c.Delete("s").Done()
			c.Create("s", "a", true).Created(def("Z", 5, "a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := soundCatalog()
			plant(c)
			c.Get("other").NotFound()
			vs := CheckCatalog(c, enough)
			if len(vs) != 1 || vs[0].Name != "catalog-not-linearizable" || !strings.Contains(vs[0].Text, `stream "s": `) {
				t.Fatalf("found %q", Format(vs))
			}
		})
	}
}

func TestViolationOfTheCatalogTellsWhatFitsNowhere(t *testing.T) {
	c := soundCatalog()
	c.Get("s").Found(def("X", 3, "c"))
	text := Format(CheckCatalog(c, enough))
	if !strings.Contains(text, "17 of 18 operations have an order") || !strings.Contains(text, "none can be next of [18: get -> found X v3 c]") {
		t.Fatal(text)
	}
}

// What is in doubt happens now, later, or never: each of these is what a client may see.
func TestCatalogOperationInDoubtMayHappenAtAnyTimeOrNever(t *testing.T) {
	for name, play := range map[string]func(c *Catalog){
		"creation that happens": func(c *Catalog) {
			c.Create("s", "a", true)
			c.Get("s").Found(def("X", 1, "a"))
		},
		"creation that happens late": func(c *Catalog) {
			c.Create("s", "a", true)
			c.Get("s").NotFound()
			c.Get("s").Found(def("X", 1, "a"))
			c.Update("s", 1, "b").Found(def("X", 2, "b"))
		},
		"creation that never happens": func(c *Catalog) {
			c.Create("s", "a", true)
			c.Get("s").NotFound()
			c.Create("s", "b", true).Created(def("X", 1, "b"))
			c.Get("s").Found(def("X", 1, "b"))
		},
		"two creations, one after the other": func(c *Catalog) {
			c.Create("s", "a", true)
			c.Create("s", "a", true)
			c.Get("s").Found(def("X", 1, "a"))
			c.Delete("s").Done()
			c.Get("s").Found(def("Y", 3, "a"))
		},
		"creation, then deletion, that nobody saw": func(c *Catalog) {
			c.Create("s", "a", true)
			c.Delete("s")
			c.Create("s", "a", true).Created(def("Y", 3, "a"))
		},
		"update that happens late": func(c *Catalog) {
			c.Create("s", "a", true).Created(def("X", 1, "a"))
			c.Update("s", 1, "b")
			c.Get("s").Found(def("X", 1, "a"))
			c.Get("s").Found(def("X", 2, "b"))
		},
		"update that comes too late": func(c *Catalog) {
			c.Create("s", "a", true).Created(def("X", 1, "a"))
			c.Update("s", 1, "b")
			c.Update("s", 1, "c").Found(def("X", 2, "c"))
			c.Get("s").Found(def("X", 2, "c"))
		},
		"update that makes another one fail": func(c *Catalog) {
			c.Create("s", "a", true).Created(def("X", 1, "a"))
			c.Update("s", 1, "b")
			c.Update("s", 1, "c").Conflict()
		},
		"deletion that happens late": func(c *Catalog) {
			c.Create("s", "a", true).Created(def("X", 1, "a"))
			c.Delete("s")
			c.Get("s").Found(def("X", 1, "a"))
			c.Get("s").NotFound()
		},
		"deletion of the next incarnation": func(c *Catalog) {
			c.Delete("s")
			c.Create("s", "a", true).Created(def("X", 1, "a"))
			c.Get("s").NotFound()
		},
		"repeated creation is answered when another client changed the stream": func(c *Catalog) {
			create := c.Create("s", "a", true)
			c.Get("s").Found(def("X", 1, "a"))
			c.Update("s", 1, "b")
			create.Created(def("X", 2, "b"))
			c.Update("s", 2, "c").Found(def("X", 3, "c"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Catalog{}
			play(c)
			if vs := CheckCatalog(c, enough); len(vs) > 0 {
				t.Fatal(Format(vs))
			}
		})
	}
}

// A history that would take longer than anybody waits is undecided, not sound and not broken.
func TestCatalogCheckSaysWhenItCouldNotDecide(t *testing.T) {
	c := &Catalog{}
	var calls []*CatalogCall
	for i := range 40 {
		calls = append(calls, c.Update("s", 0, fmt.Sprint(i)))
	}
	c.Create("s", "a", true).Created(def("X", 1, "a"))
	c.Get("s").Found(def("X", 1000, "nobody's"))
	for _, k := range calls {
		k.Unknown()
	}
	vs := CheckCatalog(c, 10*time.Millisecond)
	if got := names(vs); !slices.Equal(got, []string{"catalog-undecided"}) {
		t.Fatal(Format(vs))
	}
}
