package catalog

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"testing"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"pgregory.net/rapid"
)

// model is the catalog in its plainest form.
type model struct {
	live map[string]modelStream
	dead map[ring.StreamID]bool
}

type modelStream struct {
	id      ring.StreamID
	version uint64
	cfg     StreamConfig
}

// genCommand draws from a small world, so that names and incarnations collide.
func genCommand(t *rapid.T, m *model) Command {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	id := streamID(rapid.Byte().Draw(t, "id") % 8)
	now := rapid.Int64Range(0, 5000).Draw(t, "now")
	cur := m.live[name]
	switch rapid.IntRange(0, 3).Draw(t, "command") {
	case 0, 1:
		c := creation(name, id, rapid.IntRange(1, 3).Draw(t, "partitions"))
		c.Mode = CreateMode(rapid.IntRange(0, 1).Draw(t, "mode"))
		c.NowMS = now
		return c
	case 2:
		cfg := cur.cfg.WithDefaults()
		cfg.RetentionMS = rapid.Int64Range(1, 3).Draw(t, "retention")
		v := rapid.SampledFrom([]uint64{0, cur.version, cur.version + 1}).Draw(t, "version")
		return UpdateStream{Name: name, Version: v, Config: cfg, NowMS: now}
	default:
		return DeleteStream{Name: name, ID: rapid.SampledFrom([]ring.StreamID{{}, cur.id, id}).Draw(t, "incarnation"), NowMS: now}
	}
}

// step says what must come of a command, and follows the machine's answer where it is free to choose (the version).
func (m *model) step(c Command, r Result) error {
	switch c := c.(type) {
	case CreateStream:
		cur, exists := m.live[c.Name]
		elsewhere := false
		for n, o := range m.live {
			elsewhere = elsewhere || n != c.Name && o.id == c.ID
		}
		switch {
		case m.dead[c.ID]:
			return expect(r, CodeDeleted, false, nil)
		case exists && cur.id == c.ID:
			return expect(r, "", true, &cur)
		case exists && c.Mode == CreateOnly:
			return expect(r, CodeExists, false, nil)
		case exists && !cur.cfg.Equal(c.Config):
			return expect(r, CodeConfigDiffers, false, nil)
		case exists:
			return expect(r, "", false, &cur)
		case elsewhere:
			return expect(r, CodeExists, false, nil)
		}
		return m.put(c.Name, c.ID, c.Config, r, true)
	case UpdateStream:
		cur, exists := m.live[c.Name]
		switch {
		case !exists:
			return expect(r, wire.CodeStreamNotFound, false, nil)
		case cur.cfg.Equal(c.Config) && c.Version <= cur.version:
			return expect(r, "", false, &cur)
		case c.Version != 0 && c.Version != cur.version:
			return expect(r, CodeVersionMismatch, false, nil)
		}
		return m.put(c.Name, cur.id, c.Config, r, false)
	case DeleteStream:
		cur, exists := m.live[c.Name]
		switch {
		case !exists:
			return expect(r, wire.CodeStreamNotFound, false, nil)
		case !c.ID.IsZero() && c.ID != cur.id:
			return expect(r, CodeVersionMismatch, false, nil)
		}
		delete(m.live, c.Name)
		m.dead[cur.id] = true
		return expect(r, "", false, &cur)
	}
	return fmt.Errorf("unknown command %T", c)
}

func (m *model) put(name string, id ring.StreamID, cfg StreamConfig, r Result, created bool) error {
	if r.Stream == nil {
		return fmt.Errorf("refused: %v", r.Err)
	}
	for _, o := range m.live {
		if r.Stream.Version <= o.version {
			return fmt.Errorf("version %d was given before", r.Stream.Version)
		}
	}
	next := modelStream{id, r.Stream.Version, cfg}
	m.live[name] = next
	return expect(r, "", created, &next)
}

func expect(r Result, code string, created bool, want *modelStream) error {
	if want == nil {
		if r.Err == nil || r.Err.Code != code || r.Stream != nil {
			return fmt.Errorf("got %+v, want code %q", r, code)
		}
		return nil
	}
	if r.Err != nil || r.Created != created {
		return fmt.Errorf("got %+v (%v), want created=%v", r, r.Err, created)
	}
	if s := r.Stream; s.ID != want.id || s.Version != want.version || !s.Config.Equal(want.cfg) {
		return fmt.Errorf("got %+v, want %+v", s, want)
	}
	return nil
}

func (m *model) agrees(got *Machine) error {
	list := got.List()
	if len(list) != len(m.live) {
		return fmt.Errorf("%d streams, want %d", len(list), len(m.live))
	}
	births := 0
	for _, s := range list {
		w := m.live[s.Name]
		if s.ID != w.id || s.Version != w.version || !s.Config.Equal(w.cfg) {
			return fmt.Errorf("stream %+v, want %+v", s, w)
		}
		births += len(s.Partitions)
	}
	if len(got.Births()) != births {
		return fmt.Errorf("%d births, want %d", len(got.Births()), births)
	}
	for id := range m.dead {
		if got.Fate(id) != FateDeleted {
			return fmt.Errorf("incarnation %s is not held for deleted", id)
		}
	}
	return nil
}

// transfer sends a's state to b as a snapshot does.
func transfer(t testing.TB, a, b *Machine, store *memStore) [][]byte {
	t.Helper()
	cp, err := a.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	f := &frames{}
	if err := cp.WriteTo(t.Context(), f, b.BulkHave()); err != nil {
		t.Fatal(err)
	}
	staged, err := b.Fetch(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	batch := store.NewBatch()
	if err := b.Install(staged, batch); err != nil {
		t.Fatal(err)
	}
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	return f.list
}

// Three replicas take the same entries: one undisturbed, one that restarts, one that is replaced by snapshots. All three must agree
// with each other to the byte, and with the model.
func TestReplicasAgreeThroughRestartsAndSnapshots(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{live: map[string]modelStream{}, dead: map[ring.StreamID]bool{}}
		stores := []*memStore{newMemStore(), newMemStore(), newMemStore()}
		machines := []*Machine{open(t, stores[0]), open(t, stores[1]), open(t, stores[2])}
		for range rapid.IntRange(1, 30).Draw(rt, "entries") {
			c := genCommand(rt, m)
			var results []Result
			for i := range machines {
				results = append(results, run(t, stores[i], machines[i], c))
			}
			if err := m.step(c, results[0]); err != nil {
				rt.Fatalf("%+v: %v", c, err)
			}
			if !reflect.DeepEqual(results[0], results[1]) || !reflect.DeepEqual(results[0], results[2]) {
				rt.Fatalf("%+v: replicas answered differently: %+v", c, results)
			}
			if rapid.Bool().Draw(rt, "restart") {
				stores[1] = stores[1].clone()
				machines[1] = open(t, stores[1])
			}
			if rapid.IntRange(0, 3).Draw(rt, "snapshot") == 0 {
				transfer(t, machines[0], machines[2], stores[2])
			}
			for i := range machines {
				if err := m.agrees(machines[i]); err != nil {
					rt.Fatalf("replica %d: %v", i, err)
				}
				if !maps.Equal(stores[0].kv, stores[i].kv) {
					rt.Fatalf("replica %d stores other bytes than replica 0", i)
				}
			}
		}
	})
}

func TestEntriesSurviveEncodeAndDecode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{live: map[string]modelStream{}}
		c := genCommand(rt, m)
		data, err := Encode(c)
		if err != nil {
			rt.Fatal(err)
		}
		back, err := Decode(data)
		if err != nil {
			rt.Fatal(err)
		}
		again, err := Encode(back)
		if err != nil || !bytes.Equal(data, again) {
			rt.Fatalf("%+v became %+v (%v)", c, back, err)
		}
	})
}
