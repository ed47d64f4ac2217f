package flow

import (
	"slices"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/flow/catalog"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// remnantOf is a replica of partition p of n, with a stream's config.
func remnantOf(t *testing.T, id ring.StreamID, cfg StreamConfig, p, on int) Remnant {
	t.Helper()
	cfg = cfg.WithDefaults()
	spec, err := specOf(&catalog.CreateStream{Name: "s", ID: id, Seed: ring.Seed{7}, Config: cfg}, ring.PartitionID(p), ring.EvenRanges(cfg.Partitions)[p])
	if err != nil {
		t.Fatal(err)
	}
	return Remnant{Spec: spec, Replica: replica.Member{ID: ring.ReplicaID(10 + on), Node: ring.NodeID{byte(on)}}}
}

func TestDefinitionIsMadeAgainFromWhatItsPartitionsTell(t *testing.T) {
	id, lost := ring.StreamID{1}, ring.NodeID{15: 9}
	cfg := StreamConfig{Partitions: 5, Replicas: 5, MinCopies: 2, RetentionMS: -1, RetentionBytes: 1003, DedupeWindowMS: 5, MaxEventBytes: 77}.WithDefaults()
	out, err := Restore([]Remnant{remnantOf(t, id, cfg, 3, 1), remnantOf(t, id, cfg, 1, 2), remnantOf(t, id, cfg, 3, 2)}, lost, 99)
	if err != nil || len(out) != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	if s := out[0]; s.Name != "s" || s.ID != id || s.Partitions != 5 || !slices.Equal(s.Absent, []ring.PartitionID{0, 2, 4}) {
		t.Fatalf("%+v", s)
	}
	cmd, err := catalog.Decode(out[0].Entry)
	if err != nil {
		t.Fatal(err)
	}
	c := cmd.(catalog.CreateStream)
	if limitsOf(c.Config) != limitsOf(cfg) || c.Seed != (ring.Seed{7}) || c.NowMS != 99 {
		t.Fatalf("%+v", c)
	}
	for i := range c.Partitions {
		p := &c.Partitions[i]
		spec, err := partition.ParseSpec(p.Birth.Spec)
		if err != nil || spec.Stream != id || spec.Partition != p.ID || spec.Range != p.Range || spec.Seed != c.Seed || spec.Limits != limitsOf(cfg) {
			t.Errorf("partition %d: %+v, %v", p.ID, spec, err)
		}
		members := map[int][]replica.Member{1: {{ID: 12, Node: ring.NodeID{2}}}, 3: {{ID: 11, Node: ring.NodeID{1}}, {ID: 12, Node: ring.NodeID{2}}}}[i]
		if members == nil {
			members = []replica.Member{{ID: 1, Node: lost}} // nobody brings it into being
		}
		if !slices.Equal(p.Birth.Members, members) {
			t.Errorf("partition %d: %+v", p.ID, p.Birth.Members)
		}
	}
}

// restoredOf is what Restore makes of one stream's remnants.
func restoredOf(t *testing.T, remnants ...Remnant) (Restored, catalog.CreateStream) {
	t.Helper()
	out, err := Restore(remnants, ring.NodeID{15: 9}, 1)
	if err != nil || len(out) != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	cmd, err := catalog.Decode(out[0].Entry)
	if err != nil {
		t.Fatal(err)
	}
	c := cmd.(catalog.CreateStream)
	if !c.Config.Equal(out[0].Config) {
		t.Errorf("%+v is shown of %+v", out[0].Config, c.Config)
	}
	return out[0], c
}

func TestDefinitionThatIsMadeAgainKeepsAtLeastWhatAnyReplicaKept(t *testing.T) {
	id := ring.StreamID{1}
	old := StreamConfig{Partitions: 2, Replicas: 1, MinCopies: 1, RetentionMS: 1000, RetentionBytes: -1, DedupeWindowMS: 9, MaxEventBytes: 10}
	changed := StreamConfig{Partitions: 2, Replicas: 5, MinCopies: 3, RetentionMS: 5000, RetentionBytes: 100, DedupeWindowMS: 5, MaxEventBytes: 20}
	want := StreamConfig{Partitions: 2, Replicas: 5, MinCopies: 3, RetentionMS: 5000, RetentionBytes: -1, DedupeWindowMS: 9, MaxEventBytes: 20}.WithDefaults()
	for name, rs := range map[string][]Remnant{
		"a replica lags":                 {remnantOf(t, id, changed, 0, 2), remnantOf(t, id, old, 0, 1)},
		"the oldest replica lags":        {remnantOf(t, id, old, 0, 1), remnantOf(t, id, changed, 0, 2)},
		"a partition lags":               {remnantOf(t, id, old, 0, 1), remnantOf(t, id, changed, 1, 2)},
		"a partition is ahead of others": {remnantOf(t, id, changed, 0, 1), remnantOf(t, id, old, 1, 2), remnantOf(t, id, old, 1, 1)},
	} {
		s, c := restoredOf(t, rs...)
		if !s.Config.Equal(want) {
			t.Errorf("%s: %+v", name, s.Config)
		}
		for _, p := range c.Partitions {
			if spec, err := partition.ParseSpec(p.Birth.Spec); err != nil || spec.Limits != limitsOf(want) {
				t.Errorf("%s, partition %d: %+v, %v", name, p.ID, spec, err)
			}
		}
	}
	both, none := old, changed
	both.RetentionBytes, none.RetentionMS = 301, -1
	if s, _ := restoredOf(t, remnantOf(t, id, both, 0, 1), remnantOf(t, id, none, 1, 1)); s.Config.RetentionMS != -1 || s.Config.RetentionBytes != 300 {
		t.Errorf("%+v", s.Config)
	}
}

func TestRemovedReplicaIsNoCopyAndTellsOnlyWhereNoMemberIsLeft(t *testing.T) {
	id := ring.StreamID{1}
	removed := func(p, on int) Remnant {
		r := remnantOf(t, id, StreamConfig{Partitions: 3, RetentionMS: 9000}, p, on)
		r.Removed = true
		return r
	}
	member := remnantOf(t, id, StreamConfig{Partitions: 3, RetentionMS: 5000}, 1, 2)
	s, c := restoredOf(t, removed(0, 1), removed(1, 1), member)
	if s.Config.RetentionMS != 5000 || !slices.Equal(s.Absent, []ring.PartitionID{0, 2}) || !slices.Equal(s.Removed, []ring.PartitionID{0}) {
		t.Fatalf("%+v", s)
	}
	if m := c.Partitions[1].Birth.Members; !slices.Equal(m, []replica.Member{member.Replica}) {
		t.Errorf("%+v", m)
	}
	if m := c.Partitions[0].Birth.Members; !slices.Equal(m, []replica.Member{{ID: 1, Node: ring.NodeID{15: 9}}}) {
		t.Errorf("%+v", m)
	}
	s, _ = restoredOf(t, removed(1, 1))
	if s.Config.RetentionMS != 9000 || len(s.Absent) != 3 || !slices.Equal(s.Removed, []ring.PartitionID{1}) {
		t.Fatalf("no member is left: %+v", s)
	}
}

func TestStreamThatWasBeingFilledIsMadeAgainAsSuch(t *testing.T) {
	part := func(p, on int, imported, filled bool) Remnant {
		r := remnantOf(t, ring.StreamID{1}, StreamConfig{Partitions: 2}, p, on)
		if r.Filled = filled; imported {
			r.Export = [16]byte{5}
		}
		return r
	}
	for name, c := range map[string]struct {
		parts   []Remnant
		filling bool
	}{
		"never":                         {[]Remnant{part(0, 1, false, false), part(1, 1, false, false)}, false},
		"all of it":                     {[]Remnant{part(0, 1, true, true), part(1, 1, true, true)}, false},
		"a replica lags":                {[]Remnant{part(0, 1, true, true), part(0, 2, true, false), part(1, 1, true, true)}, false},
		"it goes on from one that lags": {[]Remnant{part(0, 1, true, false), part(0, 2, true, true), part(1, 1, true, true)}, true},
		"within a partition":            {[]Remnant{part(0, 1, true, false)}, true},
		"between two":                   {[]Remnant{part(0, 1, true, true), part(1, 1, false, false)}, true},
		"one that cannot be asked":      {[]Remnant{part(0, 1, true, true), part(1, 1, false, true)}, false},
	} {
		out, err := Restore(c.parts, ring.NodeID{9}, 1)
		if err != nil {
			t.Fatal(err)
		}
		cmd, err := catalog.Decode(out[0].Entry)
		if err != nil {
			t.Fatal(err)
		}
		begin, filling := cmd.(catalog.BeginImport)
		if filling != c.filling || filling && begin.Export != [16]byte{5} {
			t.Errorf("%s: %T", name, cmd)
		}
	}
}

func TestWhatDoesNotTellOneDefinitionMakesNone(t *testing.T) {
	odd := func() Remnant {
		r := remnantOf(t, ring.StreamID{1}, StreamConfig{Partitions: 4}, 1, 1)
		spec, err := partition.ParseSpec(r.Spec)
		if err != nil {
			t.Fatal(err)
		}
		spec.Range.Hi--
		r.Spec, err = spec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, c := range map[string]struct {
		parts []Remnant
		want  string
	}{
		"two incarnations": {[]Remnant{remnantOf(t, ring.StreamID{1}, StreamConfig{}, 1, 1), remnantOf(t, ring.StreamID{2}, StreamConfig{}, 1, 1)}, "two incarnations of stream s"},
		"an odd range":     {[]Remnant{odd()}, "how many partitions"},
		"two numbers":      {[]Remnant{remnantOf(t, ring.StreamID{1}, StreamConfig{Partitions: 4}, 1, 1), remnantOf(t, ring.StreamID{1}, StreamConfig{Partitions: 5}, 2, 1)}, "how many partitions"},
		"a damaged spec":   {[]Remnant{{Spec: []byte("?")}}, ""},
	} {
		if out, err := Restore(c.parts, ring.NodeID{9}, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	if out, err := Restore(nil, ring.NodeID{9}, 1); err != nil || len(out) != 0 {
		t.Errorf("nothing: %+v, %v", out, err)
	}
}
