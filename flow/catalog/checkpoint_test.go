package catalog

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/transport/wire"
)

// bigShard has a stream whose record alone is larger than a frame.
func bigShard(t testing.TB) (*Machine, *memStore) {
	t.Helper()
	s := newMemStore()
	m := open(t, s)
	big := creation("big", streamID(1), MaxPartitions)
	for i := range big.Partitions {
		big.Partitions[i].Birth.Spec = bytes.Repeat([]byte{byte(i)}, MaxSpecBytes)
	}
	run(t, s, m, big)
	for i := range 20 {
		run(t, s, m, creation(fmt.Sprintf("s%d", i), streamID(byte(10+i)), 4))
	}
	run(t, s, m, DeleteStream{Name: "s7"})
	return m, s
}

func TestACheckpointIsCutIntoFramesAndComesBackWhole(t *testing.T) {
	a, sa := bigShard(t)
	sb := newMemStore()
	b := open(t, sb)
	run(t, sb, b, creation("only-here", streamID(99), 1)) // must be gone afterwards
	list := transfer(t, a, b, sb)
	if len(list) < 4 {
		t.Fatalf("%d frames", len(list))
	}
	for i, f := range list {
		if len(f) > checkpointFrame+1 {
			t.Errorf("frame %d has %d bytes", i, len(f))
		}
	}
	if !maps.Equal(sa.kv, sb.kv) {
		t.Fatal("the stores differ")
	}
	if !maps.EqualFunc(a.state.byName, open(t, sb).state.byName, func(x, y *Stream) bool { return x.Version == y.Version }) {
		t.Fatal("the state differs after a restart")
	}
}

func TestACheckpointIsOfItsMoment(t *testing.T) {
	a, sa := bigShard(t)
	cp, _ := a.Checkpoint()
	run(t, sa, a, DeleteStream{Name: "s3"})
	f := &frames{}
	if err := cp.WriteTo(t.Context(), f, nil); err != nil {
		t.Fatal(err)
	}
	staged, err := a.Fetch(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if staged.(*state).byName["s3"] == nil {
		t.Fatal("a later entry reached the checkpoint")
	}
}

func TestADamagedCheckpointIsRefused(t *testing.T) {
	a, _ := bigShard(t)
	cp, _ := a.Checkpoint()
	whole := &frames{}
	if err := cp.WriteTo(t.Context(), whole, nil); err != nil {
		t.Fatal(err)
	}
	last := len(whole.list) - 1
	damage := map[string]func(l [][]byte) [][]byte{
		"flipped bit":     func(l [][]byte) [][]byte { l[1] = bytes.Clone(l[1]); l[1][1000] ^= 4; return l },
		"missing frame":   func(l [][]byte) [][]byte { return slices.Delete(l, 1, 2) },
		"missing end":     func(l [][]byte) [][]byte { return l[:last] },
		"end too early":   func(l [][]byte) [][]byte { return [][]byte{l[last]} },
		"bytes after":     func(l [][]byte) [][]byte { return slices.Insert(l, last, []byte{frameData, 0}) },
		"wrong checksum":  func(l [][]byte) [][]byte { l[last] = bytes.Clone(l[last]); l[last][2]++; return l },
		"frame too large": func(l [][]byte) [][]byte { l[0] = append(bytes.Clone(l[0]), l[1]...); return l },
		"unknown frame":   func(l [][]byte) [][]byte { l[0] = []byte{'x', 0}; return l },
		"huge record": func(l [][]byte) [][]byte {
			l[0] = []byte(string("d\xff\xff\xff\xff\x7f") + strings.Repeat("x", 99))
			return l
		},
		"nothing":          func(l [][]byte) [][]byte { return nil },
		"empty data frame": func(l [][]byte) [][]byte { return slices.Insert(l, 1, []byte{frameData}) },
	}
	for name, f := range damage {
		if _, err := a.Fetch(t.Context(), &frames{list: f(slices.Clone(whole.list))}); wire.KindOf(err) != wire.KindCorrupt {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// cancelled is a stream that only knows its context.
type cancelled struct{ frames }

func (cancelled) Recv(ctx context.Context) ([]byte, error) { return nil, ctx.Err() }

func TestFetchHonoursItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open(t, newMemStore()).Fetch(ctx, &cancelled{}); err == nil || wire.KindOf(err) == wire.KindCorrupt {
		t.Fatalf("error %v", err)
	}
}

func FuzzFetch(f *testing.F) {
	s := newMemStore()
	m := open(f, s)
	run(f, s, m, creation("a", streamID(1), 2))
	cp, _ := m.Checkpoint()
	fr := &frames{}
	if err := cp.WriteTo(context.Background(), fr, nil); err != nil {
		f.Fatal(err)
	}
	f.Add(fr.list[0], fr.list[1])
	f.Fuzz(func(t *testing.T, first, second []byte) {
		staged, err := m.Fetch(t.Context(), &frames{list: [][]byte{first, second}})
		if err != nil {
			return
		}
		st := newMemStore()
		other := open(t, st)
		b := st.NewBatch()
		if err := other.Install(staged, b); err != nil {
			t.Fatalf("a state that was accepted cannot be stored: %v", err)
		}
		_ = b.Commit()
		if got := open(t, st); got.state.version != other.state.version || len(got.List()) != len(other.List()) {
			t.Fatal("a state that was accepted does not reload")
		}
	})
}
