package catalog

import (
	"reflect"
	"testing"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func wantErr(t *testing.T, r Result, kind wire.Kind, code string) {
	t.Helper()
	if r.Err == nil || r.Err.Kind != kind || r.Err.Code != code || r.Stream != nil || r.Created {
		t.Fatalf("got %+v (error %v), want an error of kind %v, code %q", r, r.Err, kind, code)
	}
}

func wantStream(t *testing.T, r Result, created bool) *Stream {
	t.Helper()
	if r.Err != nil || r.Stream == nil || r.Created != created {
		t.Fatalf("got %+v (error %v), want a stream, created=%v", r, r.Err, created)
	}
	return r.Stream
}

func TestCreateMakesAStreamThatIsFoundAndBorn(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	st := wantStream(t, run(t, s, m, creation("orders", streamID(1), 3)), true)
	if st.Version != 1 || st.CreatedMS != 1000 || st.Partitions[2].State != Open || len(st.Partitions[2].Birth.Members) != 3 {
		t.Fatalf("got %+v", st)
	}
	if got, ok := m.Get("orders"); !ok || got != st {
		t.Fatal("Get does not find it")
	}
	if b := m.Births(); len(b) != 3 || b[0].Group != ring.PartitionGroup(streamID(1), 0) || b[0].Kind != replica.KindPartition {
		t.Fatalf("births are %+v", b)
	}
	if m.Fate(streamID(1)) != FateAlive || m.Fate(streamID(2)) != FateUnknown {
		t.Fatal("fate is wrong")
	}
	if p := st.For(^uint64(0)); p == nil || p.ID != 2 {
		t.Fatalf("the last hash belongs to %v", p)
	}
}

func TestCreateAgainComparesTheConfig(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	first := wantStream(t, run(t, s, m, creation("orders", streamID(1), 3)), true)

	same := creation("orders", streamID(2), 3)
	same.Config.HotKeys = []string{} // absent and empty are alike
	if st := wantStream(t, run(t, s, m, same), false); st != first {
		t.Fatal("an equal creation gave another stream")
	}
	wantErr(t, run(t, s, m, creation("orders", streamID(2), 4)), wire.KindConflict, CodeConfigDiffers)

	only := creation("orders", streamID(2), 3)
	only.Mode = CreateOnly
	wantErr(t, run(t, s, m, only), wire.KindConflict, CodeExists)

	retry := creation("orders", streamID(1), 3)
	retry.Mode = CreateOnly
	wantStream(t, run(t, s, m, retry), true)

	wantErr(t, run(t, s, m, creation("other", streamID(1), 3)), wire.KindConflict, CodeExists)
	if m.state.version != 1 {
		t.Fatalf("refusals changed the version to %d", m.state.version)
	}
}

func TestUpdateIsCompareAndSet(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	wantErr(t, run(t, s, m, UpdateStream{Name: "orders", Config: StreamConfig{}.WithDefaults()}), wire.KindNotFound, wire.CodeStreamNotFound)
	st := wantStream(t, run(t, s, m, creation("orders", streamID(1), 3)), true)

	cfg := st.Config
	cfg.RetentionMS = 5
	up := UpdateStream{Name: "orders", Version: st.Version, Config: cfg, NowMS: 500}
	v2 := wantStream(t, run(t, s, m, up), false)
	if v2.Version != 2 || v2.Config.RetentionMS != 5 || v2.UpdatedMS != 1000 {
		t.Fatalf("got %+v; the time must not go back", v2)
	}
	if st.Config.RetentionMS == 5 {
		t.Fatal("an older snapshot changed")
	}
	if got, _ := m.Get("orders"); got != v2 {
		t.Fatal("Get gives the older definition")
	}
	if again := wantStream(t, run(t, s, m, up), false); again != v2 {
		t.Fatal("a retry of the applied update changed something")
	}
	up.Config.RetentionMS = 6
	wantErr(t, run(t, s, m, up), wire.KindConflict, CodeVersionMismatch)
	up.Version = 0
	wantStream(t, run(t, s, m, up), false)

	for _, change := range []func(*StreamConfig){
		func(c *StreamConfig) { c.Partitions = 9 },
		func(c *StreamConfig) { c.Order = OrderNone },
		func(c *StreamConfig) { c.OrderWindowMS = 9 },
	} {
		c := cfg
		change(&c)
		wantErr(t, run(t, s, m, UpdateStream{Name: "orders", Config: c}), wire.KindInvalid, CodeImmutable)
	}
}

func TestDeleteLeavesATombstoneAndAnewIncarnationMayFollow(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	wantErr(t, run(t, s, m, DeleteStream{Name: "orders"}), wire.KindNotFound, wire.CodeStreamNotFound)
	old := wantStream(t, run(t, s, m, creation("orders", streamID(1), 3)), true)
	wantErr(t, run(t, s, m, DeleteStream{Name: "orders", ID: streamID(9)}), wire.KindConflict, CodeVersionMismatch)
	wantStream(t, run(t, s, m, DeleteStream{Name: "orders", ID: streamID(1), NowMS: 2000}), false)

	if m.Fate(streamID(1)) != FateDeleted {
		t.Fatal("the deleted incarnation is not remembered")
	}
	if _, ok := m.Get("orders"); ok {
		t.Fatal("a deleted stream is still found")
	}
	if ts := m.state.tombstones; len(ts) != 1 || len(ts[0].Groups) != 3 || ts[0].Name != "orders" || ts[0].DeletedMS != 2000 {
		t.Fatalf("tombstones are %+v", ts)
	}
	wantErr(t, run(t, s, m, creation("orders", streamID(1), 3)), wire.KindConflict, CodeDeleted)
	st := wantStream(t, run(t, s, m, creation("orders", streamID(2), 3)), true)
	if st.Version <= old.Version {
		t.Fatalf("version %d of the new incarnation could match one of the old", st.Version)
	}
	wantErr(t, run(t, s, m, DeleteStream{Name: "orders", ID: streamID(1)}), wire.KindConflict, CodeVersionMismatch)
}

// Its first copy made the stream: that the name is another client's now must not read as if it had been so all along.
func TestLateCopyOfACreationIsToldThatItsStreamWasDeletedThoughTheNameIsTakenAgain(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	for _, mode := range []CreateMode{CreateOrSame, CreateOnly} {
		first, second := creation("orders", streamID(1+2*byte(mode)), 3), creation("orders", streamID(2+2*byte(mode)), 3)
		first.Mode = mode
		wantStream(t, run(t, s, m, first), true)
		wantStream(t, run(t, s, m, DeleteStream{Name: "orders"}), false)
		other := wantStream(t, run(t, s, m, second), true)
		wantErr(t, run(t, s, m, first), wire.KindConflict, CodeDeleted)
		if now, ok := m.Get("orders"); !ok || now != other {
			t.Fatalf("mode %d: the stream of another client is now %+v", mode, now)
		}
		wantStream(t, run(t, s, m, DeleteStream{Name: "orders"}), false)
	}
}

func TestTombstonesAreForgottenByAgeAndByCount(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	id := func(n int) ring.StreamID { return ring.StreamID{byte(n), byte(n >> 8), 1} }
	for n := range MaxTombstones + 3 {
		wantStream(t, run(t, s, m, creation("x", id(n), 1)), true)
		wantStream(t, run(t, s, m, DeleteStream{Name: "x"}), false)
	}
	if got := len(m.state.tombstones); got != MaxTombstones || m.Fate(id(2)) != FateUnknown || m.Fate(id(3)) != FateDeleted {
		t.Fatalf("%d tombstones, fates %v %v", got, m.Fate(id(2)), m.Fate(id(3)))
	}
	run(t, s, m, creation("x", streamID(1), 1))
	run(t, s, m, DeleteStream{Name: "x", NowMS: 1000 + TombstoneAgeMS + 1})
	if got := m.state.tombstones; len(got) != 1 || got[0].Stream != streamID(1) {
		t.Fatalf("%d tombstones after their age", len(got))
	}
	if got := open(t, s).state.tombstones; len(got) != 1 {
		t.Fatalf("%d tombstones on disk", len(got))
	}
}

func TestAFullShardRefusesFurtherStreams(t *testing.T) {
	st := newState()
	for n := range MaxStreams {
		name := "s" + string(rune('a'+n%26)) + ring.NewStreamID().String()
		st.byName[name] = &Stream{Name: name}
	}
	c := creation("one-more", streamID(1), 1)
	r, ch := st.create(&c)
	wantErr(t, r, wire.KindUnavailable, CodeTooManyStreams)
	if ch != nil {
		t.Fatal("a refusal changed the state")
	}
}

func TestMalformedEntriesAreRefusedAndNewerOnesStopTheReplica(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	if r := runEntry(t, s, m, nil); r != (Result{}) {
		t.Fatalf("an empty entry gave %+v", r)
	}
	wantErr(t, runEntry(t, s, m, []byte{1, 1, 0xc1}), wire.KindInvalid, "")
	wantErr(t, runEntry(t, s, m, []byte{1}), wire.KindInvalid, "")
	for _, data := range [][]byte{{200, 1, 0x80}, {1, 2, 0x80}} {
		if _, err := m.Apply(log.Entry{Data: data}, s.NewBatch()); wire.CodeOf(err) != codeUnknownEntry {
			t.Fatalf("entry %v: error %v", data, err)
		}
	}
	if len(s.kv) != 0 {
		t.Fatal("something was written")
	}
}

func TestDestroyRemovesAllKeysAndNoOthers(t *testing.T) {
	s := newMemStore()
	s.kv["g/0/s"], s.kv["g/1"], s.kv["g/1/applied"], s.kv["g/2/m"] = "a", "b", "c", "d"
	m := open(t, s)
	run(t, s, m, creation("orders", streamID(1), 3))
	run(t, s, m, DeleteStream{Name: "orders"})
	run(t, s, m, creation("orders", streamID(2), 3))
	b := s.NewBatch()
	if err := m.Destroy(b); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"g/0/s": "a", "g/1": "b", "g/1/applied": "c", "g/2/m": "d"}
	if !reflect.DeepEqual(s.kv, want) {
		t.Fatalf("the store holds %v", s.kv)
	}
	if len(m.List()) != 0 {
		t.Fatal("streams are still listed")
	}
}

func TestDamagedStateIsRefusedAtOpen(t *testing.T) {
	fresh := func() *memStore {
		s := newMemStore()
		m := open(t, s)
		run(t, s, m, creation("a", streamID(1), 1))
		run(t, s, m, creation("b", streamID(2), 1))
		run(t, s, m, DeleteStream{Name: "b"})
		return s
	}
	for key := range fresh().kv {
		s := fresh()
		s.kv[key] = s.kv[key][:len(s.kv[key])-1]
		_, err := NewFactory(s)(replica.Birth{Group: testGroup, Kind: replica.KindCatalog}, []byte(testPrefix))
		if wire.KindOf(err) != wire.KindCorrupt {
			t.Errorf("key %q cut: error %v", key, err)
		}
	}
	if _, err := NewFactory(fresh())(replica.Birth{Kind: replica.KindPartition}, nil); err == nil {
		t.Error("a partition's group was opened as a catalog shard")
	}
}

func TestTheCatalogHasNoBulkData(t *testing.T) {
	m := open(t, newMemStore())
	if m.BulkIndex() != ^uint64(0) || m.BulkHave() != nil || m.Complete(log.Entry{}) != nil || m.Sync() != nil || m.Close() != nil {
		t.Fatal("bulk methods do something")
	}
}
