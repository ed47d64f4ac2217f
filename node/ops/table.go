package ops

import (
	"slices"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Table is what one node remembers of the operations that it keeps: a bounded number, of which the oldest that are over go first. Not safe
// for concurrent use. What it gives out shares no memory with it that changes.
type Table struct {
	keeper ring.NodeID
	name   string
	boot   uint64
	most   int
	seq    uint64
	rows   []Operation // oldest first
}

// NewTable makes the table of a node by that id and name, in its start number boot, of at most so many operations.
func NewTable(keeper ring.NodeID, name string, boot uint64, most int) *Table {
	return &Table{keeper: keeper, name: name, boot: boot, most: most}
}

// Add gives an operation its id and its times and keeps it; in which state it is says the caller. KindNoCredit when as many are running as
// the table holds.
func (t *Table) Add(now time.Time, o Operation) (Operation, error) {
	if err := t.room(); err != nil {
		return Operation{}, err
	}
	t.seq++
	o.ID = newID(t.keeper, t.boot, t.seq)
	o.Started = At(now)
	return t.keep(now, o), nil
}

// Restore keeps an operation of an earlier start under the id that it has.
func (t *Table) Restore(now time.Time, o Operation) { t.keep(now, o) }

func (t *Table) keep(now time.Time, o Operation) Operation {
	o.Keeper = t.name
	o.stamp(now)
	t.rows = append(t.rows, o)
	return o
}

func (o *Operation) stamp(now time.Time) {
	o.Updated = At(now)
	if o.Over() && o.Ended == 0 {
		o.Ended = o.Updated
	}
	o.clip()
}

func (t *Table) room() error {
	if len(t.rows) < t.most {
		return nil
	}
	i := slices.IndexFunc(t.rows, Operation.Over)
	if i < 0 {
		return &wire.Error{Kind: wire.KindNoCredit, Code: wire.CodeOverloaded, RetryAfter: 5 * time.Second,
			Detail: "as many operations are running as this node keeps: wait for some, or cancel them"}
	}
	t.rows = slices.Delete(t.rows, i, i+1)
	return nil
}

// Get looks an operation up.
func (t *Table) Get(id string) (Operation, bool) {
	i := t.find(id)
	if i < 0 {
		return Operation{}, false
	}
	return t.rows[i], true
}

func (t *Table) find(id string) int {
	return slices.IndexFunc(t.rows, func(o Operation) bool { return o.ID == id })
}

// Update changes an operation that is not over; false where there is none such. change may replace the operation's slices and progress, not
// write into them.
func (t *Table) Update(now time.Time, id string, change func(*Operation)) (Operation, bool) {
	i := t.find(id)
	if i < 0 || t.rows[i].Over() {
		return Operation{}, false
	}
	o := t.rows[i]
	change(&o)
	o.stamp(now)
	t.rows[i] = o
	return o, true
}

// Running finds the operation that is under way and equals o in what it is about: a repeated question gets the same answer.
func (t *Table) Running(o Operation) (Operation, bool) {
	for _, r := range t.rows {
		if !r.Over() && r.Kind == o.Kind && r.Node == o.Node && r.Stream == o.Stream && samePartition(r.Partition, o.Partition) &&
			r.From == o.From && r.To == o.To {
			return r, true
		}
	}
	return Operation{}, false
}

func samePartition(a, b *ring.PartitionID) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// List gives all, the newest first.
func (t *Table) List() []Operation {
	out := slices.Clone(t.rows)
	slices.Reverse(out)
	return out
}

// CountRunning is the number of operations under way.
func (t *Table) CountRunning() int {
	n := 0
	for _, o := range t.rows {
		if !o.Over() {
			n++
		}
	}
	return n
}
