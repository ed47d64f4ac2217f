package replica

import (
	"reflect"
	"testing"

	"github.com/skeinmesh/skein/flow/log/logtest"
	"github.com/skeinmesh/skein/ring"
)

// FuzzBirth holds that births, and what damaged replicas say, are read back as they were written.
func FuzzBirth(f *testing.F) {
	f.Add(encodeBirth(Birth{Group: ring.GroupID{1}, Spec: []byte("s"), Members: []Member{{ID: 1, Node: ring.NodeID{1}}}, Self: 1, Empty: true}))
	f.Add(encodeUnfit(ring.GroupID{1}, 300))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if b, err := decodeBirth(raw); err == nil {
			if again, err := decodeBirth(encodeBirth(b)); err != nil || !reflect.DeepEqual(b, again) {
				t.Fatalf("%+v became %+v, %v", b, again, err)
			}
		}
		if group, id, err := decodeUnfit(raw); err == nil {
			if g, i, err := decodeUnfit(encodeUnfit(group, id)); err != nil || g != group || i != id {
				t.Fatalf("%v %d became %v %d, %v", group, id, g, i, err)
			}
		}
	})
}

// FuzzLoadState holds that a group's records in the store are refused, or read back as they were written.
func FuzzLoadState(f *testing.F) {
	group := ring.GroupID{1}
	st := bornState(Birth{Group: group, Members: []Member{{ID: 1, Node: ring.NodeID{1}}}, Self: 1})
	f.Add(encodeApplied(st.applied), st.encodeConf())
	f.Fuzz(func(t *testing.T, applied, conf []byte) {
		store := logtest.NewDisk(logtest.Config{}).OpenStore()
		defer store.Close()
		b := store.NewBatch()
		b.Set(ownKey(group, keyApplied), applied)
		b.Set(ownKey(group, keyConf), conf)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		st, ok, err := loadState(store, group)
		if err != nil || !ok {
			return
		}
		b = store.NewBatch()
		st.dropNodes()
		st.save(b, group, true)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		again, ok, err := loadState(store, group)
		if err != nil || !ok || again.applied != st.applied || again.lastID != st.lastID || !reflect.DeepEqual(again.members(), st.members()) {
			t.Fatalf("%+v became %+v, %t, %v", st, again, ok, err)
		}
	})
}
