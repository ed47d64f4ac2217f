package check

import (
	"fmt"
	"sync"
)

// Definition is what the catalog answered about a stream.
type Definition struct {
	ID      string // of the incarnation
	Version uint64 // grows with each change within a shard, over incarnations too
	Config  string // any form that is equal where the configs are
}

// Catalog gathers what clients asked of the catalog and what they were told. All methods are safe for concurrent use, those of one
// CatalogCall by its client alone. The order of calls is the real-time order that the checker relies on: a client records the
// operation before it sends it, and the outcome after the answer arrived.
type Catalog struct {
	mu    sync.Mutex
	clock int64 // counts records: a common time for all clients
	calls []*CatalogCall
}

// CatalogCall is one operation and what became of it: unknown until one of its methods says otherwise.
type CatalogCall struct {
	in  *Catalog
	num int // in order of invocation

	op      catalogOp
	name    string
	config  string // wanted
	version uint64 // that an update replaces; 0: any
	only    bool   // a creation that fails where the stream exists

	called   int64
	returned int64 // 0: not yet
	outcome  catalogOutcome
	answer   Definition
}

type catalogOp string

const (
	opCreate catalogOp = "create"
	opGet    catalogOp = "get"
	opUpdate catalogOp = "update"
	opDelete catalogOp = "delete"
	opEnd    catalogOp = "end" // the checker's own: see linear.go
)

type catalogOutcome string

const (
	outcomeUnknown  catalogOutcome = "unknown"
	outcomeCreated  catalogOutcome = "created"
	outcomeFound    catalogOutcome = "found"
	outcomeDone     catalogOutcome = "done"
	outcomeNotFound catalogOutcome = "not found"
	outcomeConflict catalogOutcome = "conflict"
	outcomeRefused  catalogOutcome = "refused"
)

// Create records that a creation is about to be sent. only: it is to fail where the stream exists; else one of equal config will do.
func (c *Catalog) Create(name, config string, only bool) *CatalogCall {
	return c.call(&CatalogCall{op: opCreate, name: name, config: config, only: only})
}

// Get records that a definition is about to be asked for, in a way that promises what was written before.
func (c *Catalog) Get(name string) *CatalogCall { return c.call(&CatalogCall{op: opGet, name: name}) }

// Update records that a config is about to be replaced if its version is the one given, which a client was told before; 0: whatever
// it is.
func (c *Catalog) Update(name string, version uint64, config string) *CatalogCall {
	return c.call(&CatalogCall{op: opUpdate, name: name, version: version, config: config})
}

// Delete records that a deletion is about to be sent, of whichever incarnation there is.
func (c *Catalog) Delete(name string) *CatalogCall {
	return c.call(&CatalogCall{op: opDelete, name: name})
}

func (c *Catalog) call(k *CatalogCall) *CatalogCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	k.in, k.num, k.called, k.outcome = c, len(c.calls), c.clock, outcomeUnknown
	c.calls = append(c.calls, k)
	return k
}

func (k *CatalogCall) end(o catalogOutcome, d Definition) {
	k.in.mu.Lock()
	defer k.in.mu.Unlock()
	k.in.clock++
	k.returned, k.outcome, k.answer = k.in.clock, o, d
}

// Created says that the creation made the stream. When the answer's config is not the one that was asked for, another client changed it
// before a repeated creation was answered: only the incarnation is then held against the history.
func (k *CatalogCall) Created(d Definition) { k.end(outcomeCreated, d) }

// Found says what was answered: by a get, by an update, or by a creation of what existed.
func (k *CatalogCall) Found(d Definition) { k.end(outcomeFound, d) }

// Done says that the deletion was made.
func (k *CatalogCall) Done() { k.end(outcomeDone, Definition{}) }

// NotFound says that there was no such stream, and nothing was changed.
func (k *CatalogCall) NotFound() { k.end(outcomeNotFound, Definition{}) }

// Conflict says that nothing was changed, because the stream was there: as it may not be for a creation, in another version than an
// update named, or in another incarnation than the deletion began with.
func (k *CatalogCall) Conflict() { k.end(outcomeConflict, Definition{}) }

// Refused says that nothing was changed, and nothing about the stream: no quorum answered.
func (k *CatalogCall) Refused() { k.end(outcomeRefused, Definition{}) }

// Unknown says that the operation may have been made, or may still be made at any time.
func (k *CatalogCall) Unknown() { k.end(outcomeUnknown, Definition{}) }

func (k *CatalogCall) String() string {
	s := fmt.Sprintf("%d: %s", k.num, k.op)
	switch k.op {
	case opCreate:
		s += " " + k.config
	case opUpdate:
		s += fmt.Sprintf(" v%d to %s", k.version, k.config)
	}
	s += " -> " + string(k.outcome)
	if k.outcome == outcomeCreated || k.outcome == outcomeFound {
		s += fmt.Sprintf(" %s v%d %s", k.answer.ID, k.answer.Version, k.answer.Config)
	}
	return s
}

// Counts says how much was recorded: answered with what the stream was, certainly refused for want of a quorum, or unknown.
func (c *Catalog) Counts() (answered, refused, unknown int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		switch k.outcome {
		case outcomeRefused:
			refused++
		case outcomeUnknown:
			unknown++
		default:
			answered++
		}
	}
	return answered, refused, unknown
}
