package logtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disks keeps one disk per directory name, so that the twins can be opened again.
type disks map[string]*Disk

func (d disks) at(dir string, cfg Config) *Disk {
	if d[dir] == nil {
		d[dir] = NewDisk(cfg)
	}
	return d[dir]
}

func TestTwinJournalConforms(t *testing.T) {
	d := disks{}
	RunJournal(t, func(_ testing.TB, dir string) log.Journal {
		return d.at(dir, Config{RetainBytes: 100 << 10}).OpenJournal()
	})
}

func TestTwinStoreConforms(t *testing.T) {
	d := disks{}
	RunStore(t, func(_ testing.TB, dir string) log.Store { return d.at(dir, Config{}).OpenStore() })
}

func TestCrashKeepsWhatWasSyncedAndDropsTheRest(t *testing.T) {
	var pending []func()
	d := NewDisk(Config{Defer: func(complete func()) { pending = append(pending, complete) }})
	j := d.OpenJournal()
	called := 0
	j.Append(context.Background(), []log.Write{{Group: groupOf(0), Entries: run(1, 1, 3, 10)}}, true, func(error) { called++ })
	pending[0]()
	j.Append(context.Background(), []log.Write{{Group: groupOf(0), Entries: run(1, 3, 5, 10)}}, true, func(error) { called++ })
	check(t, j, groupOf(0), log.Mark{}, run(1, 1, 3, 10)) // not durable, so not visible
	d.Crash()
	pending[1]()
	if called != 1 {
		t.Fatalf("%d dones were called", called)
	}
	j = d.OpenJournal()
	check(t, j, groupOf(0), log.Mark{}, run(1, 1, 3, 10))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCrashKeepsAPrefixOfTheUnsynced(t *testing.T) {
	seen := map[uint64]bool{}
	for seed := range uint64(100) {
		d := NewDisk(Config{Rand: rand.New(rand.NewPCG(seed, 1)), Defer: func(func()) {}})
		j, s := d.OpenJournal(), d.OpenStore()
		for i := uint64(1); i < 6; i++ {
			j.Append(context.Background(), []log.Write{{Group: groupOf(0), Entries: run(1, i, i+1, 10)}}, true, func(error) {})
			b := s.NewBatch()
			b.Set([]byte{byte(i)}, nil)
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		d.Crash()
		j, s = d.OpenJournal(), d.OpenStore()
		st, _ := j.Load(groupOf(0))
		if st.Last > 0 {
			check(t, j, groupOf(0), log.Mark{}, run(1, 1, st.Last+1, 10))
		}
		seen[st.Last] = true
		n := byte(0)
		if err := s.Scan(nil, func(k, _ []byte) error {
			if n++; k[0] != n {
				t.Errorf("seed %d: key %d at place %d", seed, k[0], n)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 6 {
		t.Fatalf("lengths that survived: %v", seen)
	}
}

func TestFailedSyncIsTheEnd(t *testing.T) {
	d := NewDisk(Config{})
	j := d.OpenJournal()
	bad := errors.New("bad disk")
	d.FailSync(bad)
	for range 2 {
		if err := write(j, true, log.Write{Group: groupOf(0), Entries: run(1, 1, 2, 10)}); !errors.Is(err, bad) {
			t.Fatalf("append: %v", err)
		}
		<-j.Failed()
		d.FailSync(nil) // the disk seems well again; the journal must not believe it
	}
	_ = j.Close()
}

func TestFlushMakesCommitsDurable(t *testing.T) {
	d := NewDisk(Config{})
	s := d.OpenStore()
	for i := range 3 {
		b := s.NewBatch()
		b.Set([]byte{byte(i)}, []byte{1})
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			if err := s.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.Crash()
	if _, _, err := s.Get([]byte{0}); !errors.Is(err, ErrCrashed) {
		t.Fatalf("get after the crash: %v", err)
	}
	s = d.OpenStore()
	n := 0
	_ = s.Scan(nil, func(_, _ []byte) error { n++; return nil })
	if n != 2 {
		t.Fatalf("%d keys", n)
	}
}
