package gossip

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
	"pgregory.net/rapid"
)

func fullIdentity() view.Identity {
	return view.Identity{
		Name: strings.Repeat("n", maxName), Zone: strings.Repeat("z", maxZone), Version: strings.Repeat("v", maxVersion),
		Cluster: strings.Repeat("c", maxCluster), Mesh: testMesh, HTTPAddr: strings.Repeat("h", maxAddr),
		QUICAddr: strings.Repeat("q", maxAddr), Weight: math.MaxUint32, Flags: 0xff, Incarnation: math.MaxUint64,
		Protocol: math.MaxUint16, Floor: math.MaxUint16, Former: [view.MaxFormer]ring.NodeID{{1}, {2}, {3}, {4}},
	}
}

func someReport() report {
	return report{node: ring.NodeID{5}, incarnation: 1 << 40, seq: 1 << 41, age: 1500 * time.Millisecond, load: view.Load{
		CPUPercent: 12.5, MemPercent: 99, Fatigue: 1.25, CreditStarved: 0.5, FsyncMicros: 300, QueuedBytes: 1 << 50, ReadLag: 3,
		BytesIn: 4, BytesOut: 5, EventsIn: 6, EventsOut: 7, Partitions: 8, Owned: 9,
	}}
}

func TestLargestAnnouncementFits(t *testing.T) {
	b := encodeMeta(fullIdentity())
	if len(b) > maxMeta {
		t.Fatalf("%d bytes", len(b))
	}
	got, err := decodeMeta(b)
	if err != nil || got != fullIdentity() {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := decodeMeta(append(b, "of a later version"...)); err != nil {
		t.Error("an announcement that grew at its end is refused:", err)
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := someReport()
		r.seq = rapid.Uint64().Draw(t, "seq")
		r.load.CPUPercent = float32(rapid.Float32Range(-1e6, 1e6).Draw(t, "cpu"))
		r.load.Owned = rapid.Uint32().Draw(t, "owned")
		var hints []agedHint
		for i := range rapid.IntRange(0, hintsPerMsg).Draw(t, "hints") {
			hints = append(hints, agedHint{group: ring.GroupID{byte(i)}, term: rapid.Uint64().Draw(t, "term"),
				age: time.Duration(rapid.IntRange(0, 1000).Draw(t, "age")) * time.Second})
		}
		o := ownerHints{owner: ring.NodeID{1}, hints: hints}
		for _, b := range [][]byte{encodeLoad(testMesh, r), encodeHints(testMesh, o), encodeState(testMesh, []report{r, r}, []ownerHints{o})} {
			m, err := decodeMessage(b)
			if err != nil || m.mesh != testMesh {
				t.Fatalf("%+v, %v", m, err)
			}
			for _, got := range m.reports {
				if got != r {
					t.Fatalf("report %+v", got)
				}
			}
			for _, got := range m.hints {
				if len(got.hints) != len(hints) || len(hints) > 0 && !reflect.DeepEqual(got, o) {
					t.Fatalf("hints %+v", got)
				}
			}
		}
	})
}

func TestBroadcastsFitAPacket(t *testing.T) {
	o := ownerHints{hints: make([]agedHint, hintsPerMsg)}
	for i := range o.hints {
		o.hints[i].term = math.MaxUint64
	}
	r := someReport()
	r.seq, r.incarnation, r.age = math.MaxUint64, math.MaxUint64, math.MaxInt64
	for _, b := range [][]byte{encodeHints(testMesh, o), encodeLoad(testMesh, r)} {
		if len(b) > 1200 { // of 1400, less label, encryption and compound headers
			t.Errorf("%d bytes", len(b))
		}
	}
}

func TestDecodersRefuseHostileInput(t *testing.T) {
	header := appendHeader(nil, kindState, testMesh)
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}
	nan := encodeLoad(testMesh, someReport())
	i := bytes.Index(nan, []byte{0, 0, 0x48, 0x41}) // 12.5
	copy(nan[i:], []byte{0, 0, 0xc0, 0x7f})
	for name, b := range map[string][]byte{
		"empty":               nil,
		"version":             {9},
		"kind":                appendHeader(nil, 99, testMesh),
		"huge number of load": append(bytes.Clone(header), huge...),
		"more than there is":  append(bytes.Clone(header), 200, 1),
		"huge hints":          append(append(appendHeader(nil, kindHints, testMesh), make([]byte, 16)...), huge...),
		"huge record":         append(appendHeader(nil, kindLoad, testMesh), huge...),
		"not a number":        nan,
	} {
		if _, err := decodeMessage(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	whole := encodeState(testMesh, []report{someReport()}, []ownerHints{{hints: []agedHint{{term: 1}}}})
	for n := range whole {
		if _, err := decodeMessage(whole[:n]); err == nil {
			t.Errorf("accepted the first %d of %d bytes", n, len(whole))
		}
	}
	meta := encodeMeta(fullIdentity())
	former := len(meta) - 1 - view.MaxFormer*16
	for n := range meta {
		_, err := decodeMeta(meta[:n])
		if n == former || n == former-6 { // what older versions say
			if err != nil {
				t.Errorf("an announcement of an older version: %v", err)
			}
			continue
		}
		if err == nil {
			t.Errorf("accepted the first %d of %d bytes of an announcement", n, len(meta))
		}
	}
	if _, err := decodeMeta(make([]byte, maxMeta+1)); err == nil {
		t.Error("accepted an announcement beyond the cap")
	}
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add(encodeMeta(fullIdentity()))
	f.Add([]byte{metaVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := decodeMeta(b)
		if err != nil {
			return
		}
		again, err := decodeMeta(encodeMeta(id))
		if err != nil || again != id {
			t.Fatalf("%+v became %+v, %v", id, again, err)
		}
	})
}

func FuzzDecodeMessage(f *testing.F) {
	o := ownerHints{owner: ring.NodeID{1}, hints: []agedHint{{group: ring.GroupID{2}, term: 3, age: time.Minute}}}
	f.Add(encodeLoad(testMesh, someReport()))
	f.Add(encodeHints(testMesh, o))
	f.Add(encodeState(testMesh, []report{someReport()}, []ownerHints{o, o}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			return
		}
		if len(m.reports) > maxStateLoads || len(m.hints) > maxStateOwners {
			t.Fatal("beyond the caps")
		}
		if m.kind == kindState {
			if again, err := decodeMessage(encodeState(m.mesh, m.reports, m.hints)); err != nil || again.mesh != m.mesh {
				t.Fatal(err)
			}
		}
	})
}
