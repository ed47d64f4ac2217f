package partition

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestFindFilesFindsWhatAnOpeningWouldReadWithoutOne(t *testing.T) {
	dir := t.TempDir()
	disk := logtest.NewDisk(logtest.Config{})
	h := newHost(t, dir, disk, Config{})
	h.sync(true)
	h.close()
	store := disk.OpenStore()
	defer func() { _ = store.Close() }()
	own := filepath.Join(dir, testGroup.String())
	want := filepath.Join(own, "00000000")
	if f, err := FindFiles(dir, store, testGroup, testPrefix); err != nil || f.Dir != want || f.Recovery == nil {
		t.Fatalf("%+v, %v", f, err)
	}
	st := state{applied: 17, next: 5, start: 2, dirGen: 3}
	b := store.NewBatch()
	b.Set((keyspace{testPrefix}).state(), st.encode())
	b.Set((keyspace{testPrefix}).synced(3), []byte("synced"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	f, err := FindFiles(dir, store, testGroup, testPrefix)
	if r := f.Recovery; err != nil || f.Dir != filepath.Join(own, "00000003") || r.AppliedIndex != 17 || r.Next != 5 || r.Start != 2 || string(r.Synced) != "synced" {
		t.Fatalf("%+v, %v", f, err)
	}
	// Without a state the newest generation is what there is.
	if err := os.MkdirAll(filepath.Join(own, "0000000a"), 0o750); err != nil {
		t.Fatal(err)
	}
	b = store.NewBatch()
	b.Set((keyspace{testPrefix}).state(), []byte("no state"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []log.Store{nil, store} {
		f, err := FindFiles(dir, s, testGroup, testPrefix)
		if f.Dir != filepath.Join(own, "0000000a") || f.Recovery != nil || s == nil && err != nil || s != nil && wire.KindOf(err) != wire.KindCorrupt {
			t.Fatalf("%+v, %v", f, err)
		}
	}
	if _, err := os.Stat(filepath.Join(own, "00000003")); !os.IsNotExist(err) {
		t.Fatal("a directory was made")
	}
}
