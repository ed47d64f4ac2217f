package logtest

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/skeinmesh/skein/flow/log"
)

// Store is a log.Store on a Disk.
type Store struct {
	d *Disk

	// d.mu guards what follows.
	kv        map[string][]byte
	unflushed [][]kvOp
	dead      error
}

// kvOp is a set, a delete (value nil), or a deletion of [key, hi).
type kvOp struct {
	key, hi string
	value   []byte
	isRange bool
}

func cloneKV(m map[string][]byte) map[string][]byte { return maps.Clone(m) }

func applyKV(m map[string][]byte, ops []kvOp) {
	for _, o := range ops {
		switch {
		case o.isRange:
			maps.DeleteFunc(m, func(k string, _ []byte) bool { return k >= o.key && k < o.hi })
		case o.value == nil:
			delete(m, o.key)
		default:
			m[o.key] = o.value
		}
	}
}

// Get implements log.Store.
func (s *Store) Get(key []byte) (value []byte, ok bool, err error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	v, ok := s.kv[string(key)]
	return slices.Clone(v), ok, s.dead
}

// Scan implements log.Store.
func (s *Store) Scan(prefix []byte, fn func(key, value []byte) error) error {
	s.d.mu.Lock()
	if s.dead != nil {
		s.d.mu.Unlock()
		return s.dead
	}
	found := map[string][]byte{}
	for k, v := range s.kv {
		if strings.HasPrefix(k, string(prefix)) {
			found[k] = v
		}
	}
	s.d.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(found)) {
		if err := fn([]byte(k), slices.Clone(found[k])); err != nil {
			return err
		}
	}
	return nil
}

// NewBatch implements log.Store.
func (s *Store) NewBatch() log.Batch { return &storeBatch{s: s} }

// Flush implements log.Store.
func (s *Store) Flush(ctx context.Context) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.dead != nil {
		return s.dead
	}
	for _, ops := range s.unflushed {
		applyKV(s.d.kv, ops)
	}
	s.unflushed = nil
	return ctx.Err()
}

// Close implements log.Store.
func (s *Store) Close() error {
	err := s.Flush(context.Background())
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.dead == log.ErrClosed {
		return nil
	}
	if s.d.store == s {
		s.d.store = nil
	}
	if s.dead == nil {
		s.dead = log.ErrClosed
	}
	return err
}

type storeBatch struct {
	s   *Store
	ops []kvOp
}

func (b *storeBatch) Set(key, value []byte) {
	b.ops = append(b.ops, kvOp{key: string(key), value: append([]byte{}, value...)})
}

func (b *storeBatch) Delete(key []byte) { b.ops = append(b.ops, kvOp{key: string(key)}) }

func (b *storeBatch) DeleteRange(lo, hi []byte) {
	b.ops = append(b.ops, kvOp{key: string(lo), hi: string(hi), isRange: true})
}

func (b *storeBatch) Commit() error {
	b.s.d.mu.Lock()
	defer b.s.d.mu.Unlock()
	if b.s.dead != nil {
		return b.s.dead
	}
	applyKV(b.s.kv, b.ops)
	b.s.unflushed = append(b.s.unflushed, b.ops)
	return nil
}
