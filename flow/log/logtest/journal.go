package logtest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Journal is a log.Journal on a Disk. It does not bound its queue: the simulation does that by what it sends.
type Journal struct {
	d    *Disk
	wake sync.Cond // on d.mu
	done sync.WaitGroup

	// d.mu guards what follows.
	visible  map[ring.GroupID]*groupState
	queued   []*unit
	written  []*unit // complete, but not synced
	deferred int     // completions that the simulation has not called yet
	failed   chan struct{}
	failErr  error
	closing  bool
	dead     error
}

type unit struct {
	writes []log.Write
	sync   bool
	done   func(error)
}

// groupState is one group. Entries are never changed in place below their length, so copies within one map may share them.
type groupState struct {
	log.GroupState
	born     bool
	released uint64
	entries  []log.Entry
}

func cloneGroups(m map[ring.GroupID]*groupState) map[ring.GroupID]*groupState {
	out := make(map[ring.GroupID]*groupState, len(m))
	for id, g := range m {
		c := *g
		c.entries = slices.Clone(g.entries)
		c.released = 0 // not remembered
		out[id] = &c
	}
	return out
}

// Append implements log.Journal.
func (j *Journal) Append(_ context.Context, writes []log.Write, sync bool, done func(error)) {
	j.d.mu.Lock()
	err := j.dead
	if j.closing {
		err = log.ErrClosed
	}
	if err == nil {
		j.queued = append(j.queued, &unit{slices.Clone(writes), sync, done})
		j.wake.Broadcast()
	}
	ask := err == nil && j.d.cfg.Defer != nil
	if ask {
		j.deferred++
	}
	j.d.mu.Unlock()
	if err != nil {
		done(err)
	}
	if ask {
		j.d.cfg.Defer(func() {
			j.d.mu.Lock()
			j.deferred--
			calls := j.completeLocked()
			j.d.mu.Unlock()
			calls()
		})
	}
}

// run completes what is queued until the journal is closed or its disk crashes.
func (j *Journal) run() {
	for {
		j.d.mu.Lock()
		for len(j.queued) == 0 && !j.closing && j.dead == nil {
			j.wake.Wait()
		}
		if len(j.queued) == 0 {
			j.d.mu.Unlock()
			return
		}
		calls := j.completeLocked()
		j.d.mu.Unlock()
		calls()
	}
}

// completeLocked performs all that is queued as one group commit, and returns what tells the callers.
func (j *Journal) completeLocked() (calls func()) {
	units := j.queued
	j.queued = nil
	if j.dead != nil {
		return func() {}
	}
	needSync := slices.ContainsFunc(units, func(u *unit) bool { return u.sync })
	if needSync && j.failErr == nil && j.d.syncErr != nil {
		j.failErr = j.d.syncErr
		close(j.failed)
	}
	errs := make([]error, len(units))
	for i, u := range units {
		if j.failErr != nil {
			errs[i] = j.failErr
			continue
		}
		if errs[i] = applyUnit(j.visible, u.writes); errs[i] == nil {
			j.written = append(j.written, u)
		}
	}
	if needSync && j.failErr == nil {
		j.makeDurableLocked()
	}
	j.dropReleasedLocked()
	return func() {
		for i, u := range units {
			u.done(errs[i])
		}
	}
}

func (j *Journal) makeDurableLocked() {
	for _, u := range j.written {
		if err := applyUnit(j.d.groups, u.writes); err != nil {
			panic(fmt.Sprintf("logtest: durable state differs: %v", err))
		}
	}
	j.written = nil
}

// Failed is closed after a failed sync, like that of log.FileJournal.
func (j *Journal) Failed() <-chan struct{} { return j.failed }

// Groups implements log.Journal. The order is that of the ids.
func (j *Journal) Groups() []log.GroupState {
	j.d.mu.Lock()
	defer j.d.mu.Unlock()
	var out []log.GroupState
	for _, g := range j.visible {
		out = append(out, g.state())
	}
	slices.SortFunc(out, func(a, b log.GroupState) int { return a.Group.Compare(b.Group) })
	return out
}

// Load implements log.Journal.
func (j *Journal) Load(id ring.GroupID) (log.GroupState, bool) {
	j.d.mu.Lock()
	defer j.d.mu.Unlock()
	g := j.visible[id]
	if g == nil {
		return log.GroupState{}, false
	}
	return g.state(), true
}

// Entries implements log.Journal.
func (j *Journal) Entries(id ring.GroupID, lo, hi, maxBytes uint64) ([]log.Entry, error) {
	j.d.mu.Lock()
	defer j.d.mu.Unlock()
	g := j.visible[id]
	switch {
	case j.dead != nil:
		return nil, j.dead
	case g == nil || lo > hi || hi > g.last()+1:
		return nil, log.ErrUnavailable
	case lo <= g.Compacted.Index:
		return nil, log.ErrCompacted
	}
	var out []log.Entry
	size := uint64(0)
	for _, e := range g.entries[lo-g.Compacted.Index-1 : hi-g.Compacted.Index-1] {
		size += uint64(len(e.Data))
		if len(out) > 0 && size > maxBytes {
			break
		}
		out = append(out, e)
	}
	return out, nil
}

// Term implements log.Journal.
func (j *Journal) Term(id ring.GroupID, i uint64) (uint64, error) {
	j.d.mu.Lock()
	defer j.d.mu.Unlock()
	g := j.visible[id]
	switch {
	case g == nil || i > g.last():
		return 0, log.ErrUnavailable
	case i < g.Compacted.Index:
		return 0, log.ErrCompacted
	case i == g.Compacted.Index:
		return g.Compacted.Term, nil
	}
	return g.entries[i-g.Compacted.Index-1].Term, nil
}

// Release implements log.Journal.
func (j *Journal) Release(id ring.GroupID, i uint64) {
	j.d.mu.Lock()
	defer j.d.mu.Unlock()
	if g := j.visible[id]; g != nil {
		g.released = max(g.released, min(i, g.last()))
		j.dropReleasedLocked()
	}
}

// dropReleasedLocked forgets released entries while there are more than should be kept: of the groups in the order of their ids.
func (j *Journal) dropReleasedLocked() {
	if j.d.cfg.RetainBytes == 0 || len(j.written) > 0 || len(j.queued) > 0 {
		return
	}
	total := int64(0)
	var ids []ring.GroupID
	for id, g := range j.visible {
		ids = append(ids, id)
		for i := range g.entries {
			total += int64(len(g.entries[i].Data))
		}
	}
	slices.SortFunc(ids, ring.GroupID.Compare)
	for _, id := range ids {
		for g := j.visible[id]; total > j.d.cfg.RetainBytes && len(g.entries) > 0 && g.entries[0].Index <= g.released; {
			total -= int64(len(g.entries[0].Data))
			m := log.Mark{Index: g.entries[0].Index, Term: g.entries[0].Term}
			g.compact(m)
			j.d.groups[id].compact(m)
		}
	}
}

// Close implements log.Journal. With Config.Defer, what the simulation has not completed yet is completed now.
func (j *Journal) Close() error {
	j.d.mu.Lock()
	j.closing = true
	j.wake.Broadcast()
	j.d.mu.Unlock()
	j.done.Wait()
	j.d.mu.Lock()
	calls := j.completeLocked()
	j.d.mu.Unlock()
	calls()
	j.d.mu.Lock()
	defer j.d.mu.Unlock()
	if j.d.journal == j {
		if j.failErr == nil {
			j.makeDurableLocked()
		}
		j.d.journal = nil
	}
	if j.dead == nil {
		j.dead = log.ErrClosed
	}
	return j.failErr
}

func (g *groupState) last() uint64 { return g.Compacted.Index + uint64(len(g.entries)) }

func (g *groupState) state() log.GroupState {
	st := g.GroupState
	st.First, st.Last = st.Compacted.Index+1, g.last()
	return st
}

func (g *groupState) compact(m log.Mark) {
	if m.Index > g.Compacted.Index {
		g.entries = g.entries[m.Index-g.Compacted.Index:]
		g.Compacted = m
	}
}

// applyUnit applies all writes to m, or none and says why.
func applyUnit(m map[ring.GroupID]*groupState, writes []log.Write) error {
	changed := map[ring.GroupID]*groupState{}
	for i := range writes {
		w := &writes[i]
		g := changed[w.Group]
		if g == nil {
			g = &groupState{}
			if old := m[w.Group]; old != nil {
				*g = *old
			}
			g.Group = w.Group
			changed[w.Group] = g
		}
		if err := g.apply(w); err != nil {
			return err
		}
	}
	for id, g := range changed {
		m[id] = g
	}
	return nil
}

func (g *groupState) apply(w *log.Write) error {
	refuse := func(why string) error { return wire.Errorf(wire.KindInvalid, "", "group %s: %s", w.Group, why) }
	if w.Tombstone > 0 {
		if w.Birth != nil || w.Reset != nil || w.HardState != nil || len(w.Entries) > 0 {
			return refuse("a tombstone goes alone")
		}
		*g = groupState{GroupState: log.GroupState{Group: g.Group, Tombstone: max(g.Tombstone, w.Tombstone)}}
		return nil
	}
	if !g.born && g.Tombstone > 0 && w.Birth == nil {
		return refuse("removed")
	}
	g.born = true
	if w.Birth != nil {
		g.Birth = slices.Clone(w.Birth)
	}
	if w.Reset != nil {
		g.Compacted, g.entries, g.released = *w.Reset, nil, min(g.released, w.Reset.Index)
	}
	for i, e := range w.Entries {
		if i == 0 {
			if e.Index <= g.Compacted.Index || e.Index > g.last()+1 {
				return refuse("entries do not follow")
			}
			if e.Index <= g.last() {
				g.entries = slices.Clone(g.entries[:e.Index-g.Compacted.Index-1])
				g.released = min(g.released, e.Index-1)
			}
		} else if e.Index != g.last()+1 {
			return refuse("entries are not contiguous")
		}
		g.entries = append(g.entries, e)
	}
	if w.HardState != nil {
		g.HardState = *w.HardState
	}
	return nil
}
