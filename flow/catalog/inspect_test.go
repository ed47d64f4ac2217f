package catalog

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// inspection is what Inspect gave out.
type inspection struct {
	version          uint64
	streams, buried  []string
	damaged          []string
	refuse, upToHere error
}

func (i *inspection) visitor() Visitor {
	return Visitor{
		Head:      func(version uint64, _ int64) error { i.version = version; return i.upToHere },
		Stream:    func(s *Stream) error { i.streams = append(i.streams, s.Name); return i.refuse },
		Tombstone: func(t *Tombstone) error { i.buried = append(i.buried, t.Name); return nil },
		Damaged:   func(err error) error { i.damaged = append(i.damaged, err.Error()); return nil },
	}
}

func TestInspectGivesOutAShardAndGoesOnAfterADamagedRecord(t *testing.T) {
	s := newMemStore()
	m := open(t, s)
	for i, name := range []string{"a", "b", "c", "d"} {
		wantStream(t, run(t, s, m, creation(name, streamID(byte(i+1)), 2)), true)
	}
	wantStream(t, run(t, s, m, DeleteStream{Name: "d", NowMS: 1}), false)
	prefix := m.disk.prefix
	var got inspection
	if err := Inspect(s, prefix, got.visitor()); err != nil || got.version != 5 || len(got.damaged) > 0 {
		t.Fatalf("%v, %+v", err, got)
	}
	if !slices.Equal(got.streams, []string{"a", "b", "c"}) || !slices.Equal(got.buried, []string{"d"}) {
		t.Fatalf("%+v", got)
	}
	s.kv[string(m.disk.streamKey("a"))] = "\xc1"
	s.kv[string(m.disk.streamKey("b"))] = s.kv[string(m.disk.streamKey("c"))]
	s.kv[string(m.disk.tombstoneKey(7))] = s.kv[string(m.disk.tombstoneKey(5))]
	got = inspection{}
	if err := Inspect(s, prefix, got.visitor()); err != nil || len(got.damaged) != 3 || !slices.Equal(got.buried, []string{"d"}) || !slices.Contains(got.streams, "c") {
		t.Fatalf("%v, %+v", err, got)
	}
	for i, want := range []string{`stored stream "a" is damaged`, `stored stream "b" is damaged: it is of "c"`, "stored tombstone is damaged"} {
		if !strings.Contains(got.damaged[i], want) {
			t.Errorf("%q lacks %q", got.damaged[i], want)
		}
	}
	enough := errors.New("enough")
	if err := Inspect(s, prefix, (&inspection{refuse: enough}).visitor()); !errors.Is(err, enough) {
		t.Fatal(err)
	}
	s.kv[string(m.disk.key(keyHead))] = "\xc1"
	got = inspection{}
	if err := Inspect(s, prefix, got.visitor()); err != nil || !slices.Contains(got.streams, "c") || !strings.Contains(got.damaged[0], "stored head is damaged") {
		t.Fatalf("%v, %+v", err, got)
	}
	if err := Inspect(newMemStore(), prefix, (&inspection{}).visitor()); err != nil {
		t.Fatal(err)
	}
}

// FuzzInspect reads arbitrary records. Whatever they hold is given out, or called damaged.
func FuzzInspect(f *testing.F) {
	s := newMemStore()
	m := open(f, s)
	run(f, s, m, creation("a", streamID(1), 2))
	run(f, s, m, creation("b", streamID(2), 2))
	run(f, s, m, DeleteStream{Name: "b", NowMS: 1})
	prefix := m.disk.prefix
	f.Add([]byte(s.kv[string(m.disk.key(keyHead))]), []byte(s.kv[string(m.disk.streamKey("a"))]), []byte(s.kv[string(m.disk.tombstoneKey(3))]))
	f.Add([]byte("\xdd\xff\xff\xff\xff"), []byte("\xdf\xff\xff\xff\xff"), []byte("\xc6\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, head, stream, tombstone []byte) {
		s := newMemStore()
		s.kv[string(m.disk.key(keyHead))] = string(head)
		s.kv[string(m.disk.streamKey("a"))] = string(stream)
		s.kv[string(m.disk.tombstoneKey(3))] = string(tombstone)
		var got inspection
		if err := Inspect(s, prefix, got.visitor()); err != nil {
			t.Fatal(err)
		}
		if len(got.streams)+len(got.buried)+len(got.damaged) == 0 {
			t.Fatal("nothing was said of the records")
		}
	})
}
