package catalog

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Machine is one shard's state machine on one replica. The replica's goroutine calls the StateMachine methods; the reads below are
// safe from any goroutine and never wait for I/O.
type Machine struct {
	group ring.GroupID
	disk  disk

	mu    sync.RWMutex // guards state; never held across I/O
	state *state
}

var _ replica.StateMachine = (*Machine)(nil)

// NewFactory returns the factory of catalog shards that keep their state in store. What it makes are *Machine.
func NewFactory(store log.Store) replica.Factory {
	return func(b replica.Birth, prefix []byte) (replica.StateMachine, error) {
		if b.Kind != replica.KindCatalog {
			return nil, fmt.Errorf("catalog: open %s: group kind %d is not a catalog shard", b.Group, b.Kind)
		}
		d := disk{store: store, prefix: slices.Clone(prefix)}
		st, err := d.load()
		if err != nil {
			return nil, fmt.Errorf("catalog: open %s: %w", b.Group, err)
		}
		return &Machine{group: b.Group, disk: d, state: st}, nil
	}
}

// Get returns the stream of that name.
func (m *Machine) Get(name string) (*Stream, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s, ok := m.state.byName[name]
	return s, ok
}

// List returns all streams, by name.
func (m *Machine) List() []*Stream {
	m.mu.RLock()
	out := m.state.streams()
	m.mu.RUnlock()
	slices.SortFunc(out, func(a, b *Stream) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Births returns the birth records of all partitions, by stream name and partition id. Members and Spec are shared: nobody may
// change them.
func (m *Machine) Births() []replica.Birth {
	var out []replica.Birth
	for _, s := range m.List() {
		for i := range s.Partitions {
			out = append(out, s.Partitions[i].Birth)
		}
	}
	return out
}

// Fate tells what this replica knows of an incarnation.
func (m *Machine) Fate(id ring.StreamID) Fate {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if _, ok := m.state.byID[id]; ok {
		return FateAlive
	}
	if m.state.buried(id) {
		return FateDeleted
	}
	return FateUnknown
}

// Apply applies one entry; the result is a Result. A malformed entry is refused (all replicas do so alike); one of a newer release
// is an error, because skipping it would leave this replica with another state than its peers.
func (m *Machine) Apply(e log.Entry, b log.Batch) (any, error) {
	if len(e.Data) == 0 {
		return Result{}, nil // an owner's first entry of a term carries nothing
	}
	cmd, err := Decode(e.Data)
	if wire.CodeOf(err) == codeUnknownEntry {
		return nil, fmt.Errorf("catalog: apply entry %d of %s: %w", e.Index, m.group, err)
	}
	if err != nil {
		return Result{Err: wire.AsError(err)}, nil
	}
	m.mu.Lock()
	res, ch := m.state.apply(cmd)
	m.mu.Unlock()
	if ch != nil {
		if err := m.disk.write(b, ch); err != nil {
			return nil, fmt.Errorf("catalog: apply entry %d of %s: %w", e.Index, m.group, err)
		}
	}
	return res, nil
}

// Checkpoint captures the state; the streams in it are immutable, so nothing is copied deeply or pinned.
func (m *Machine) Checkpoint() (replica.Checkpoint, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return newCheckpoint(m.state), nil
}

// Fetch reads a checkpoint into memory, verified. It touches neither the state nor the store.
func (m *Machine) Fetch(ctx context.Context, s wire.Stream) (any, error) {
	st, err := receive(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("catalog: fetch %s: %w", m.group, err)
	}
	return st, nil
}

// Install replaces the state by a fetched one.
func (m *Machine) Install(staged any, b log.Batch) error {
	st, ok := staged.(*state)
	if !ok {
		return fmt.Errorf("catalog: install %s: staged state is a %T", m.group, staged)
	}
	if err := m.disk.replace(b, st); err != nil {
		return fmt.Errorf("catalog: install %s: %w", m.group, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = st
	return nil
}

// BulkHave is empty: a checkpoint always carries the whole, small state.
func (m *Machine) BulkHave() []byte { return nil }

// BulkIndex says that no entry lacks bulk data, for the catalog has none.
func (m *Machine) BulkIndex() uint64 { return ^uint64(0) }

// Complete has nothing to write: see BulkIndex.
func (m *Machine) Complete(log.Entry) error { return nil }

// Sync has nothing to make durable: all state lives in the store, which the journal replays.
func (m *Machine) Sync() error { return nil }

// Close keeps the state readable in memory and on disk.
func (m *Machine) Close() error { return nil }

// Destroy removes the state from the store; memory is emptied, so that a reader who still holds the machine sees no streams.
func (m *Machine) Destroy(b log.Batch) error {
	m.disk.clear(b)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = newState()
	return nil
}
