package partition

import (
	"bytes"
	"errors"
	"testing"

	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/transport/wire"
)

// FuzzStoredState opens a partition over a store with one strange value: it is refused, or the partition works.
func FuzzStoredState(f *testing.F) {
	src := newHost(f, f.TempDir(), testDisk(), Config{})
	history(src, 1)
	prefix := append([]byte(nil), testPrefix...)
	err := src.store.Scan(prefix, func(key, value []byte) error {
		f.Add(bytes.Clone(key[len(prefix):]), bytes.Clone(value))
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
	src.close()
	f.Add([]byte{keyState}, (&state{next: 1 << 63, start: 1}).encode())
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if len(key) > 64 {
			return
		}
		store := logtest.NewDisk(logtest.Config{}).OpenStore()
		defer store.Close()
		b := store.NewBatch()
		b.Set(keyspace{testPrefix}.state(), (&state{}).encode())
		b.Set(append(bytes.Clone(testPrefix), key...), value)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		p, err := Open(Config{Dir: t.TempDir(), Store: store}, testGroup, testSpec(t), testPrefix)
		if err != nil {
			if k := wire.KindOf(err); k != wire.KindCorrupt && k != wire.KindInvalid {
				t.Fatalf("%v is of kind %v", err, k)
			}
			return
		}
		_, err = p.Read(p.Start(), 1000)
		if err = errors.Join(err, p.Close()); err != nil && wire.KindOf(err) == wire.KindInternal {
			t.Fatal(err)
		}
	})
}

// FuzzSpec holds that specs and size marks are refused, or written as they were read.
func FuzzSpec(f *testing.F) {
	spec, err := Spec{Name: "s", Limits: Limits{Replicas: 3}}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(spec)
	f.Add((&sizes{marks: []sizeMark{{base: 1, before: 2}}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := ParseSpec(b); err == nil {
			once, err := s.Encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseSpec(once)
			if err != nil {
				t.Fatal(err)
			}
			if twice, err := again.Encode(); err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("%x became %x, %v", once, twice, err)
			}
		}
		var s sizes
		if s.decode(b) == nil && !bytes.Equal(s.encode(), b) {
			t.Fatalf("size marks %x became %x", b, s.encode())
		}
	})
}
