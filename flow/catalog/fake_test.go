package catalog

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// memStore is a store whose committed content can be copied, as a crash between entries would leave it.
type memStore struct{ kv map[string]string }

func newMemStore() *memStore { return &memStore{kv: map[string]string{}} }

func (s *memStore) clone() *memStore { return &memStore{kv: maps.Clone(s.kv)} }

func (s *memStore) Get(key []byte) ([]byte, bool, error) {
	v, ok := s.kv[string(key)]
	return []byte(v), ok, nil
}

func (s *memStore) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(s.kv)) {
		if strings.HasPrefix(k, string(prefix)) {
			if err := fn([]byte(k), []byte(s.kv[k])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *memStore) Flush(context.Context) error { return nil }
func (s *memStore) Close() error                { return nil }
func (s *memStore) NewBatch() log.Batch         { return &memBatch{store: s} }

type memBatch struct {
	store *memStore
	ops   []func(kv map[string]string)
}

func (b *memBatch) Set(key, value []byte) {
	k, v := string(key), string(value)
	b.ops = append(b.ops, func(kv map[string]string) { kv[k] = v })
}

func (b *memBatch) Delete(key []byte) {
	k := string(key)
	b.ops = append(b.ops, func(kv map[string]string) { delete(kv, k) })
}

func (b *memBatch) DeleteRange(lo, hi []byte) {
	lo, hi = bytes.Clone(lo), bytes.Clone(hi)
	b.ops = append(b.ops, func(kv map[string]string) {
		maps.DeleteFunc(kv, func(k, _ string) bool { return k >= string(lo) && k < string(hi) })
	})
}

func (b *memBatch) Commit() error {
	for _, op := range b.ops {
		op(b.store.kv)
	}
	b.ops = nil
	return nil
}

// frames is a stream that keeps what is sent and gives it back.
type frames struct {
	list [][]byte
	next int
}

func (f *frames) Send(_ context.Context, frame []byte) error {
	f.list = append(f.list, bytes.Clone(frame))
	return nil
}

func (f *frames) Recv(context.Context) ([]byte, error) {
	if f.next == len(f.list) {
		return nil, io.EOF
	}
	f.next++
	return bytes.Clone(f.list[f.next-1]), nil
}

func (f *frames) CloseSend() error  { return nil }
func (f *frames) Close(error) error { return nil }

const testPrefix = "g/1/"

var testGroup = ring.CatalogGroup(ring.MeshID{7}, 0)

// open opens a machine on what the store holds.
func open(t testing.TB, s *memStore) *Machine {
	t.Helper()
	sm, err := NewFactory(s)(replica.Birth{Group: testGroup, Kind: replica.KindCatalog}, []byte(testPrefix))
	if err != nil {
		t.Fatal(err)
	}
	return sm.(*Machine)
}

// run applies one command and commits.
func run(t testing.TB, s *memStore, m *Machine, c Command) Result {
	t.Helper()
	data, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return runEntry(t, s, m, data)
}

func runEntry(t testing.TB, s *memStore, m *Machine, data []byte) Result {
	t.Helper()
	b := s.NewBatch()
	res, err := m.Apply(log.Entry{Index: 11, Term: 2, Data: data}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	return res.(Result)
}

func streamID(n byte) ring.StreamID { return ring.StreamID{1: n, 15: 1} }

// creation makes a valid CreateStream of n partitions.
func creation(name string, id ring.StreamID, n int) CreateStream {
	c := CreateStream{
		Name: name, ID: id, Seed: ring.Seed{1, 2, 3}, NowMS: 1000,
		Config: StreamConfig{Partitions: n}.WithDefaults(),
	}
	for i, r := range ring.EvenRanges(n) {
		p := ring.PartitionID(i)
		g := ring.PartitionGroup(id, p)
		c.Partitions = append(c.Partitions, Partition{ID: p, Range: r, Group: g, Birth: replica.Birth{
			Group: g, Kind: replica.KindPartition, Spec: []byte("spec of " + name),
			Members: []replica.Member{{ID: 1, Node: ring.NodeID{1}}, {ID: 2, Node: ring.NodeID{2}}, {ID: 3, Node: ring.NodeID{3}, Learner: true}},
		}})
	}
	return c
}
