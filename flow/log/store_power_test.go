package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
)

// storeWorld is a store on a file system that crashes, beside its twin, over many lives.
type storeWorld struct {
	t     *testing.T
	r     *rand.Rand
	mem   *vfs.MemFS
	done  [][]storeOp  // the batches committed so far
	floor int          // so many of them are durable
	ops   atomic.Int64 // of the file system in this life
}

// storeOp sets a key; deletes it where value is nil; or deletes all keys from key up to hi.
type storeOp struct {
	key, hi string
	value   []byte
}

func commit(s log.Store, ops []storeOp) error {
	b := s.NewBatch()
	for _, o := range ops {
		switch {
		case o.hi != "":
			b.DeleteRange([]byte(o.key), []byte(o.hi))
		case o.value == nil:
			b.Delete([]byte(o.key))
		default:
			b.Set([]byte(o.key), o.value)
		}
	}
	return b.Commit()
}

// content is all that a store holds.
func content(t *testing.T, s log.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	if err := s.Scan(nil, func(k, v []byte) error {
		out[string(k)] = string(v)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// twin is a store in memory that holds the first n batches, durably.
func (w *storeWorld) twin(n int) *logtest.Store {
	s := logtest.NewDisk(logtest.Config{}).OpenStore()
	for _, ops := range w.done[:n] {
		if err := commit(s, ops); err != nil {
			w.t.Fatal(err)
		}
	}
	return s
}

func (w *storeWorld) randomBatch() (ops []storeOp) {
	key := func() string { return fmt.Sprintf("k%02d", w.r.IntN(60)) }
	for range 1 + w.r.IntN(4) {
		o := storeOp{key: key()}
		switch w.r.IntN(8) {
		case 0:
		case 1:
			o.hi = o.key + "~"
			if w.r.IntN(4) == 0 {
				o.hi = o.key[:2] + "~"
			}
		default:
			o.value = bytes.Repeat([]byte{byte('a' + w.r.IntN(26))}, 1+w.r.IntN(900))
		}
		ops = append(ops, o)
	}
	// What tells one batch from another, whatever else it does.
	return append(ops, storeOp{key: "n", value: fmt.Append(nil, len(w.done))})
}

// match says how many of the batches a store holds: all up to one, at least those that were durable, as the twin would.
func (w *storeWorld) match(s log.Store) (n int) {
	w.t.Helper()
	found := content(w.t, s)
	if last, ok := found["n"]; ok {
		if _, err := fmt.Sscan(last, &n); err != nil {
			w.t.Fatal(err)
		}
		n++
	}
	if n < w.floor || n > len(w.done) {
		w.t.Fatalf("the store holds %d batches of %d, and %d were durable", n, len(w.done), w.floor)
	}
	if want := content(w.t, w.twin(n)); !maps.Equal(found, want) {
		w.t.Fatalf("the store holds %d batches, but not what they leave: %d keys, want %d", n, len(found), len(want))
	}
	return n
}

// crash is the end of a life: what is on disk, and how many batches are durable.
type crash struct {
	mem   *vfs.MemFS
	floor int
}

// live opens what is on disk, checks it, and works on it until the power goes at some operation of the file system, or at the end. With
// bad, tables cannot be written from some moment on.
func (w *storeWorld) live(bad bool) {
	t := w.t
	var flushed atomic.Int64
	var broken atomic.Bool
	var lost atomic.Pointer[crash]
	at, badFrom := 1+w.r.Int64N(400), w.r.Int64N(200)
	// All of what was not synced, or nothing: Pebble has the name of a new manifest synced together with that of the marker that leads to
	// it, and so needs names in one directory to become durable in their order. This file system would lose any of them.
	keep, seed := 100*w.r.IntN(2), w.r.Uint64()
	w.ops.Store(0)
	flushed.Store(int64(w.floor))
	cut := func() *crash {
		floor := int(flushed.Load()) // before the clone: a flush may end meanwhile
		return &crash{floor: floor, mem: w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rand.New(rand.NewPCG(seed, 0))})}
	}
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		n := w.ops.Add(1)
		if n == at {
			lost.Store(cut())
		}
		write := op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync
		if broken.Load() && n > badFrom && write && strings.HasSuffix(op.Path, ".sst") {
			return unix.EIO
		}
		return nil
	})
	s, err := log.OpenStore(log.StoreConfig{Dir: "state", MemTableBytes: 64 << 10}.On(errorfs.Wrap(w.mem, inject)))
	if err != nil {
		t.Fatal(err)
	}
	broken.Store(bad) // not before: the opening pauses with Pebble's lock held, which holds up virtual time
	n := w.match(s)
	w.done = w.done[:n]
	flushed.Store(int64(n))
	twin := w.twin(n)
	for range 20 + w.r.IntN(300) {
		ops := w.randomBatch()
		w.done = append(w.done, ops)
		if bad {
			synctest.Wait() // a flush that fails has failed: Pebble lets who waits for one wait for ever
		}
		if err := commit(s, ops); err != nil {
			if !bad {
				t.Fatal(err)
			}
			break
		}
		if err := commit(twin, ops); err != nil {
			t.Fatal(err)
		}
		if w.r.IntN(25) == 0 {
			if err := s.Flush(context.Background()); err == nil {
				flushed.Store(int64(len(w.done)))
			} else if !bad {
				t.Fatal(err)
			}
		}
		if w.r.IntN(40) == 0 && !maps.Equal(content(t, s), content(t, twin)) {
			t.Fatal("the store and its twin differ")
		}
	}
	if lost.Load() == nil {
		lost.Store(cut())
	}
	if err := errors.Join(s.Close(), twin.Close()); err != nil && !bad {
		t.Fatal(err)
	}
	w.mem, w.floor = lost.Load().mem, lost.Load().floor
}

// The small state is a store without a log: it may lose what came after a flush, from some batch on, and never a piece in the middle.
func TestStoreMatchesItsTwinOverCrashes(t *testing.T) {
	powerSeeds(t, 30, func(t *testing.T, seed uint64) {
		w := &storeWorld{t: t, r: rand.New(rand.NewPCG(seed, 1)), mem: vfs.NewCrashableMem()}
		for life := range 6 {
			w.live(life > 0 && w.r.IntN(4) == 0)
		}
	})
}
