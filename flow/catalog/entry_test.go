package catalog

import (
	"bytes"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

func TestEncodeRefusesWhatTheStateCouldNotRelyOn(t *testing.T) {
	cases := map[string]func(c *CreateStream){
		"no name":             func(c *CreateStream) { c.Name = "" },
		"dots":                func(c *CreateStream) { c.Name = ".." },
		"slash":               func(c *CreateStream) { c.Name = "a/b" },
		"long name":           func(c *CreateStream) { c.Name = strings.Repeat("a", MaxNameBytes+1) },
		"no id":               func(c *CreateStream) { c.ID = ring.StreamID{} },
		"no partitions":       func(c *CreateStream) { c.Partitions = nil },
		"config disagrees":    func(c *CreateStream) { c.Config.Partitions = 7 },
		"gap":                 func(c *CreateStream) { c.Partitions[1].Range.Lo++ },
		"overlap":             func(c *CreateStream) { c.Partitions[1].Range.Lo-- },
		"does not start at 0": func(c *CreateStream) { c.Partitions[0].Range.Lo = 1 },
		"ends early":          func(c *CreateStream) { c.Partitions[2].Range.Hi-- },
		"ends twice":          func(c *CreateStream) { c.Partitions[1].Range.Hi = ^uint64(0) },
		"inverted range":      func(c *CreateStream) { c.Partitions[1].Range.Hi = c.Partitions[1].Range.Lo - 1 },
		"ids do not ascend":   func(c *CreateStream) { c.Partitions[1].ID = 0 },
		"foreign group":       func(c *CreateStream) { c.Partitions[1].Group = ring.GroupID{1} },
		"parents":             func(c *CreateStream) { c.Partitions[1].Parents = []ring.PartitionID{0} },
		"birth of another":    func(c *CreateStream) { c.Partitions[1].Birth.Group = ring.GroupID{1} },
		"birth kind":          func(c *CreateStream) { c.Partitions[1].Birth.Kind = replica.KindCatalog },
		"birth self":          func(c *CreateStream) { c.Partitions[1].Birth.Self = 1 },
		"birth empty":         func(c *CreateStream) { c.Partitions[1].Birth.Empty = true },
		"no members":          func(c *CreateStream) { c.Partitions[1].Birth.Members = nil },
		"no voter": func(c *CreateStream) {
			c.Partitions[1].Birth.Members = []replica.Member{{ID: 1, Node: ring.NodeID{1}, Learner: true}}
		},
		"member twice":  func(c *CreateStream) { m := c.Partitions[1].Birth.Members; m[1].ID = m[0].ID },
		"node twice":    func(c *CreateStream) { m := c.Partitions[1].Birth.Members; m[1].Node = m[0].Node },
		"member 0":      func(c *CreateStream) { c.Partitions[1].Birth.Members[0].ID = 0 },
		"large spec":    func(c *CreateStream) { c.Partitions[1].Birth.Spec = make([]byte, MaxSpecBytes+1) },
		"hot keys":      func(c *CreateStream) { c.Config.HotKeys = make([]string, MaxHotKeys+1) },
		"large hot key": func(c *CreateStream) { c.Config.HotKeys = []string{strings.Repeat("a", MaxHotKeyBytes+1)} },
		"rule":          func(c *CreateStream) { c.Config.Pin = map[string]string{"zone": strings.Repeat("a", MaxRuleBytes+1)} },
	}
	for name, breakIt := range cases {
		c := creation("orders", streamID(1), 3)
		breakIt(&c)
		if _, err := Encode(c); wire.KindOf(err) != wire.KindInvalid {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := Encode(creation("_mesh.A-9", streamID(1), MaxPartitions)); err != nil {
		t.Errorf("a valid creation: %v", err)
	}
}

func TestTheLargestCreationFitsAnEntry(t *testing.T) {
	c := creation(strings.Repeat("n", MaxNameBytes), streamID(1), MaxPartitions)
	for i := range c.Partitions {
		b := &c.Partitions[i].Birth
		b.Spec = make([]byte, MaxSpecBytes)
		b.Members = nil
		for n := range 5 {
			b.Members = append(b.Members, replica.Member{ID: ring.ReplicaID(n + 1), Node: ring.NodeID{byte(n + 1)}})
		}
	}
	if _, err := Encode(c); err != nil {
		t.Fatal(err)
	}
}

func TestConfigDefaultsAreValidAndBoundsAreNamed(t *testing.T) {
	if err := (StreamConfig{}).WithDefaults().Validate(); err != nil {
		t.Fatal(err)
	}
	cases := map[string]func(c *StreamConfig){
		"partitions":       func(c *StreamConfig) { c.Partitions = 257 },
		"min_partitions":   func(c *StreamConfig) { c.MinPartitions = 300 },
		"max_partitions":   func(c *StreamConfig) { c.MaxPartitions = -1 },
		"replicas":         func(c *StreamConfig) { c.Replicas = 2 },
		"min_copies":       func(c *StreamConfig) { c.MinCopies = 4 },
		"order":            func(c *StreamConfig) { c.Order = "time" },
		"order_window_ms":  func(c *StreamConfig) { c.Order = OrderWindow },
		"retention_ms":     func(c *StreamConfig) { c.RetentionMS = -2 },
		"retention_bytes":  func(c *StreamConfig) { c.RetentionBytes = -7 },
		"dedupe_window_ms": func(c *StreamConfig) { c.DedupeWindowMS = -1 },
		"max_event_bytes":  func(c *StreamConfig) { c.MaxEventBytes = MaxEventBytes + 1 },
		"hot_keys":         func(c *StreamConfig) { c.HotKeys = []string{""} },
		"affinity":         func(c *StreamConfig) { c.Affinity = map[string]string{"": "x"} },
		"pin":              func(c *StreamConfig) { c.Pin = map[string]string{"zone": ""} },
	}
	for field, breakIt := range cases {
		c := StreamConfig{}.WithDefaults()
		breakIt(&c)
		if err := c.Validate(); wire.KindOf(err) != wire.KindInvalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
	w := StreamConfig{Order: OrderWindow, OrderWindowMS: 500, RetentionMS: -1, RetentionBytes: -1}.WithDefaults()
	if err := w.Validate(); err != nil {
		t.Errorf("a window stream without limits: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range []Command{
		creation("a", streamID(1), 2),
		UpdateStream{Name: "a", Version: 1, Config: StreamConfig{Affinity: map[string]string{"zone": "x"}}},
		DeleteStream{Name: "a", ID: streamID(1)},
		DeleteStream{Name: "a", ID: streamID(1), Importing: true},
		BeginImport{Create: creation("a", streamID(1), 2), Export: [16]byte{1}},
		EndImport{Name: "a", ID: streamID(1)},
	} {
		data, err := Encode(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte{1, 1, 0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode(data)
		if err != nil {
			if k := wire.KindOf(err); k != wire.KindInvalid && k != wire.KindUnavailable {
				t.Fatalf("error %v of kind %v", err, k)
			}
			return
		}
		again, err := Encode(c)
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		back, err := Decode(again)
		if err != nil {
			t.Fatal(err)
		}
		third, err := Encode(back)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatal("encoding is not stable")
		}
		s := newMemStore()
		m := open(t, s)
		runEntry(t, s, m, data)
		if len(open(t, s).List()) != len(m.List()) {
			t.Fatal("the state does not reload")
		}
	})
}
