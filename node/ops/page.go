package ops

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Page asks for a part of all operations, the newest first.
type Page struct {
	Limit int   `msgpack:"l"` // at most so many; not above 0: all
	After Place `msgpack:"a"` // those behind it; zero: from the newest on
}

// Place is where an operation stands among those of all nodes. New ones come before it, so that pages stay what they are.
type Place struct {
	Started Time   `msgpack:"s"`
	ID      string `msgpack:"i"`
}

// Place is where the operation stands.
func (o Operation) Place() Place { return Place{o.Started, o.ID} }

// compare orders the newest first. Of one node's in one millisecond the later one has the greater number.
func (p Place) compare(o Place) int {
	return cmp.Or(cmp.Compare(o.Started, p.Started), cmp.Compare(len(o.ID), len(p.ID)), strings.Compare(o.ID, p.ID))
}

// String is the place as a cursor.
func (p Place) String() string { return strconv.FormatInt(int64(p.Started), 10) + "." + p.ID }

// ParsePlace reads a cursor.
func ParsePlace(s string) (Place, bool) {
	at, id, _ := strings.Cut(s, ".")
	ms, err := strconv.ParseInt(at, 10, 64)
	_, ok := KeeperOf(id)
	return Place{Time(ms), id}, err == nil && ok
}

// Of takes the page out of what is known, in any order, and says whether more is behind it. list stays as it is.
func (p Page) Of(list []Operation) (page []Operation, more bool) {
	page = slices.DeleteFunc(slices.Clone(list), func(o Operation) bool { return p.After.ID != "" && p.After.compare(o.Place()) >= 0 })
	slices.SortFunc(page, func(a, b Operation) int { return a.Place().compare(b.Place()) })
	if p.Limit > 0 && len(page) > p.Limit {
		return page[:p.Limit], true
	}
	return page, false
}
