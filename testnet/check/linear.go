package check

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// CheckCatalog says of which streams the operations cannot have happened one after the other, each at one moment between its
// invocation and its answer (catalog-not-linearizable; Herlihy and Wing, "Linearizability: a correctness condition for concurrent
// objects", 1990). One whose outcome is unknown may have happened at any time after its invocation, or not at all.
//
// The search takes at most limit for each name, above 0, in real time, so it must not run in a testing/synctest bubble; where that
// does not do, it says so: catalog-undecided. No other goroutine may record meanwhile.
func CheckCatalog(c *Catalog, limit time.Duration) (out []Violation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	byName := map[string][]*CatalogCall{}
	for _, k := range c.calls {
		byName[k.name] = append(byName[k.name], k)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		calls := byName[name]
		model, ops := catalogModel(calls), operations(calls)
		switch porcupine.CheckOperationsTimeout(model, ops, limit) {
		case porcupine.Illegal:
			out = append(out, Violation{"catalog-not-linearizable", fmt.Sprintf("stream %q: %s", name, explain(model, ops, limit))})
		case porcupine.Unknown:
			out = append(out, Violation{"catalog-undecided", fmt.Sprintf("stream %q: no order of %d operations was found in %v, which does not say "+
				"that there is none", name, len(calls), limit)})
		}
	}
	return out
}

// operations are the calls in the checker's form, and the end of the history: after it come the operations of unknown outcome that
// changed nothing, so that before it they are tried only where they change something.
func operations(calls []*CatalogCall) (out []porcupine.Operation) {
	const end = math.MaxInt64 - 1
	for i, k := range calls {
		op := porcupine.Operation{ClientId: i, Input: k, Call: k.called, Return: k.returned}
		switch k.outcome {
		case outcomeRefused:
			continue
		case outcomeUnknown:
			if k.op == opGet {
				continue
			}
			op.Return = math.MaxInt64
		}
		out = append(out, op)
	}
	return append(out, porcupine.Operation{ClientId: len(calls), Input: &CatalogCall{op: opEnd}, Call: end, Return: end})
}

// explain names the operations that fit nowhere after the longest order that was found.
func explain(model porcupine.Model, ops []porcupine.Operation, limit time.Duration) string {
	_, info := porcupine.CheckOperationsVerbose(model, ops, limit)
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	placed := map[any]bool{}
	for _, op := range longest {
		placed[op.Input] = true
	}
	const tell = 5
	var last, next []string
	for _, op := range longest[max(0, len(longest)-tell):] {
		last = append(last, op.Input.(*CatalogCall).String())
	}
	for _, op := range ops {
		if k := op.Input.(*CatalogCall); !placed[k] && k.op != opEnd && len(next) < tell {
			next = append(next, k.String())
		}
	}
	return fmt.Sprintf("%d of %d operations have an order, which ends with [%s]; then none can be next of [%s]",
		len(longest), len(ops)-1, strings.Join(last, "; "), strings.Join(next, "; "))
}

// catalogState is what the model knows of one stream. What was made by an operation of unknown outcome has an id or a version that
// nobody was told yet: the first answer that shows it settles it.
type catalogState struct {
	exists  bool
	id      string // "": not known yet
	version uint64 // 0: not known yet, and above floor
	config  string
	floor   uint64 // every later version is above it
	ended   bool
	made    uint64 // bits of the operations in doubt that were made: see twin
}

// twin tells operations in doubt that do the same apart: they are tried in the order of their invocation alone, for what a later one does
// the one before could have done. Without that, the search doubles with each.
type twin struct {
	bit    uint64
	before uint64 // bit of the one before; 0: there is none
}

// twins finds them among the first 64 operations in doubt.
func twins(calls []*CatalogCall) map[*CatalogCall]twin {
	type deed struct {
		op      catalogOp
		version uint64
		config  string
	}
	out, last := map[*CatalogCall]twin{}, map[deed]uint64{}
	for _, k := range calls {
		if k.outcome != outcomeUnknown || k.op == opGet || len(out) == 64 {
			continue
		}
		does := deed{k.op, k.version, k.config}
		out[k] = twin{1 << len(out), last[does]}
		last[does] = out[k].bit
	}
	return out
}

// catalogModel is the catalog of one name, one operation after the other.
func catalogModel(calls []*CatalogCall) porcupine.Model {
	m := &catalogRules{claimed: map[string]bool{}, twins: twins(calls)}
	for _, k := range calls {
		if k.outcome == outcomeCreated {
			m.claimed[k.answer.ID] = true
		}
	}
	return porcupine.Model{
		Init: func() any { return catalogState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, ok := m.step(state.(catalogState), input.(*CatalogCall))
			return ok, s
		},
	}
}

type catalogRules struct {
	claimed map[string]bool // incarnations whose creation was answered: no other operation made them
	twins   map[*CatalogCall]twin
}

// step gives the state after an operation that had its outcome in this state; false where it cannot have had it.
func (m *catalogRules) step(s catalogState, k *CatalogCall) (catalogState, bool) {
	switch {
	case k.op == opEnd:
		s.ended = true
		return s, true
	case k.outcome == outcomeUnknown && s.ended:
		return s, true
	case k.outcome == outcomeUnknown:
		t := m.twins[k]
		if s.made&t.before != t.before {
			return s, false
		}
		s.made |= t.bit
		return s.unknown(k)
	case k.outcome == outcomeNotFound:
		return s, !s.exists && k.op != opCreate
	case k.outcome == outcomeConflict:
		return s, s.conflicts(k)
	}
	switch k.op {
	case opCreate:
		if k.outcome == outcomeCreated {
			return s.created(k)
		}
		return m.show(s, k.answer, s.config == k.config)
	case opGet:
		return m.show(s, k.answer, true)
	case opUpdate:
		return m.updated(s, k)
	case opDelete:
		return s.deleted(), s.exists
	}
	return s, false
}

// unknown is what an operation does that is made here though nobody was told; false where it does nothing.
func (s catalogState) unknown(k *CatalogCall) (catalogState, bool) {
	switch k.op {
	case opCreate:
		return catalogState{exists: true, config: k.config, floor: s.floor, made: s.made}, !s.exists
	case opUpdate:
		return s.replaced(k), s.replaces(k)
	case opDelete:
		return s.deleted(), s.exists
	}
	return s, false
}

// top is a version that all later ones are above.
func (s catalogState) top() uint64 {
	if s.exists && s.version == 0 {
		return s.floor + 1
	}
	return max(s.floor, s.version)
}

func (s catalogState) deleted() catalogState { return catalogState{floor: s.top() + 1, made: s.made} }

func (s catalogState) conflicts(k *CatalogCall) bool {
	switch k.op {
	case opCreate:
		return s.exists && (k.only || s.config != k.config)
	case opUpdate:
		same := s.version != 0 && k.version == s.version
		return s.exists && k.version != 0 && !same && (s.config != k.config || s.version == 0 || k.version > s.version)
	case opDelete:
		return s.exists
	}
	return false
}

func (s catalogState) created(k *CatalogCall) (catalogState, bool) {
	n := catalogState{exists: true, id: k.answer.ID, config: k.config, floor: s.floor, made: s.made}
	if k.answer.Config == k.config {
		n.version = k.answer.Version
	}
	return n, !s.exists && k.answer.Version > s.floor
}

// show is an answer that shows the stream as it is.
func (m *catalogRules) show(s catalogState, d Definition, ok bool) (catalogState, bool) {
	if !ok || !s.exists || s.config != d.Config || d.ID == "" || d.Version == 0 {
		return s, false
	}
	if s.id == "" && m.claimed[d.ID] || s.id != "" && s.id != d.ID {
		return s, false
	}
	if s.version == 0 && d.Version <= s.floor || s.version != 0 && s.version != d.Version {
		return s, false
	}
	s.id, s.version = d.ID, d.Version
	return s, true
}

// updated is an update that was answered: with the stream as it is where that is as asked already, whatever older version it named;
// else with a newer version.
func (m *catalogRules) updated(s catalogState, k *CatalogCall) (catalogState, bool) {
	if s.exists && s.config == k.config {
		return m.show(s, k.answer, k.version <= k.answer.Version)
	}
	return m.show(s.replaced(k), k.answer, s.replaces(k))
}

// replaces says whether an update can change the config here.
func (s catalogState) replaces(k *CatalogCall) bool {
	fits := k.version == 0 || k.version == s.version || s.version == 0 && k.version > s.floor
	return s.exists && s.config != k.config && fits
}

func (s catalogState) replaced(k *CatalogCall) catalogState {
	s.config, s.floor, s.version = k.config, max(s.top(), k.version), 0
	return s
}
