package catalog

import (
	"testing"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestImportedStreamOpensOnceItIsComplete(t *testing.T) {
	store := newMemStore()
	m := open(t, store)
	begin := BeginImport{Create: creation("orders", streamID(1), 2), Export: [16]byte{7}}
	s := wantStream(t, run(t, store, m, begin), true)
	if !s.Importing() || s.Partitions[1].State != Importing || s.Partitions[1].State.String() != "importing" || s.For(5) != nil {
		t.Fatalf("%+v", s)
	}
	if len(m.Births()) != 2 {
		t.Fatal("its partitions are not born")
	}
	wantStream(t, run(t, store, m, begin), true) // a retry
	again := begin
	again.Create = creation("orders", streamID(2), 2)
	if s := wantStream(t, run(t, store, m, again), false); s.ID != streamID(1) {
		t.Fatal("the same export does not find the import under way")
	}
	other := again
	other.Export = [16]byte{8}
	wantErr(t, run(t, store, m, other), wire.KindConflict, CodeExists)
	wantErr(t, run(t, store, m, EndImport{Name: "orders", ID: streamID(2)}), wire.KindConflict, CodeVersionMismatch)
	wantErr(t, run(t, store, m, EndImport{Name: "else", ID: streamID(1)}), wire.KindNotFound, wire.CodeStreamNotFound)

	m = open(t, store) // what it is filled from outlives a restart
	s, _ = m.Get("orders")
	if !s.Importing() || s.Import != begin.Export {
		t.Fatalf("after a restart: %+v", s)
	}
	version := s.Version
	end := EndImport{Name: "orders", ID: streamID(1)}
	s = wantStream(t, run(t, store, m, end), false)
	if s.Importing() || s.Partitions[0].State != Open || s.Partitions[1].State != Open || s.For(5) == nil || s.Version <= version {
		t.Fatalf("%+v", s)
	}
	wantStream(t, run(t, store, m, end), false) // a retry
	wantErr(t, run(t, store, m, begin), wire.KindConflict, CodeExists)
	wantErr(t, run(t, store, m, DeleteStream{Name: "orders", ID: streamID(1), Importing: true}), wire.KindConflict, CodeExists)
}

func TestImportWithoutAnExportIsRefused(t *testing.T) {
	for _, c := range []Command{
		BeginImport{Create: creation("orders", streamID(1), 2)},
		BeginImport{Create: creation("orders", ring.StreamID{}, 2), Export: [16]byte{1}},
		EndImport{Name: "no/name"},
	} {
		if _, err := Encode(c); wire.KindOf(err) != wire.KindInvalid {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
