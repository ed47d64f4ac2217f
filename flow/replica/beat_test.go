package replica

import (
	"bytes"
	"testing"

	"github.com/skeinmesh/skein/ring"
	"pgregory.net/rapid"
)

func TestBeatsTellOfBothDirections(t *testing.T) {
	a, b := newBeats(1), newBeats(2)
	an, bn := ring.NodeID{1}, ring.NodeID{2}
	if l := a.lease(5, bn); l.boot != 0 || l.good(1<<30) {
		t.Fatalf("a peer never heard of has a lease: %+v", l)
	}
	b.take(1, an, a.next(bn))
	if l := b.lease(1, an); l.boot != 1 || l.silence != 0 || l.good(1<<30) {
		t.Fatalf("heard, and not known to be heard: %+v", l)
	}
	a.take(1, bn, b.next(an))
	if l := a.lease(3, bn); l != (lease{boot: 2, silence: 2, unheard: 2}) || !l.good(2) || l.good(1) {
		t.Fatalf("%+v", l)
	}
	// From here on what a sends is lost: b goes on to say that it heard the first beat, which is no news.
	for now := uint64(4); now < 10; now++ {
		a.next(bn)
		a.take(now, bn, b.next(an))
	}
	if l := a.lease(9, bn); l.silence != 0 || l.unheard != 8 {
		t.Fatalf("%+v", l)
	}
}

func TestBeatsOfAnEarlierRunCountForNothing(t *testing.T) {
	a := newBeats(1)
	bn := ring.NodeID{2}
	old := newBeats(7)
	for range 10 {
		old.next(bn)
	}
	a.next(bn)
	old.take(0, ring.NodeID{1}, beat{boot: 1, seq: 1})
	a.take(1, bn, old.next(ring.NodeID{1}))
	if l := a.lease(1, bn); l.boot != 7 || l.unheard != 0 {
		t.Fatalf("%+v", l)
	}
	a.take(2, bn, beat{boot: 8, seq: 1}) // started again, and has heard nothing
	if l := a.lease(2, bn); l.boot != 8 || l.silence != 0 || l.good(1000) {
		t.Fatalf("%+v", l)
	}
	a.take(3, bn, beat{boot: 8, seq: 2, heardBoot: 5, heardSeq: 1}) // heard an earlier run of ours
	a.take(3, bn, beat{boot: 8, seq: 3, heardBoot: 1, heardSeq: 999})
	if l := a.lease(3, bn); l.good(1000) {
		t.Fatalf("beats that were never sent count as heard: %+v", l)
	}
}

func TestBeatsOfPeersLongGoneAreForgotten(t *testing.T) {
	a := newBeats(1)
	a.take(1, ring.NodeID{2}, beat{boot: 2, seq: 1})
	a.take(forgetAfter, ring.NodeID{3}, beat{boot: 2, seq: 1})
	into := map[ring.NodeID]lease{{9}: {}}
	a.leases(forgetAfter+2, into)
	if len(into) != 1 || len(a.peers) != 1 {
		t.Fatalf("%v, %d kept", into, len(a.peers))
	}
}

// However beats are lost, doubled and reordered, a lease never tells of a shorter time than the truth.
func TestLeasesNeverPromiseMoreThanWasHeard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bs := [2]*beats{newBeats(1), newBeats(2)}
		id := [2]ring.NodeID{{1}, {2}}
		var sent [2][]beat      // by sender
		sentAt := [2][]uint64{} // when
		heardAt := [2]uint64{never, never}
		now := uint64(1)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			s := rapid.IntRange(0, 1).Draw(t, "who")
			r := 1 - s
			if rapid.Bool().Draw(t, "send") || len(sent[s]) == 0 {
				sent[s] = append(sent[s], bs[s].next(id[r]))
				sentAt[s] = append(sentAt[s], now)
			} else {
				bs[r].take(now, id[s], sent[s][rapid.IntRange(0, len(sent[s])-1).Draw(t, "which")])
				heardAt[r] = now
			}
			now += rapid.Uint64Range(0, 3).Draw(t, "pass")
			for i := range 2 {
				l := bs[i].lease(now, id[1-i])
				if heardAt[i] == never {
					if l.boot != 0 {
						t.Fatal("a lease without a beat")
					}
				} else if l.silence < now-heardAt[i] {
					t.Fatalf("silence %d, last heard %d ago", l.silence, now-heardAt[i])
				}
				if l.unheard < never && heardAt[1-i] == never {
					t.Fatal("heard, but nothing arrived there")
				}
			}
		}
	})
}

// A node of a version without beats reads one as a message for a group that it does not have.
func TestBeatTravelsAsAMessageOfNoGroup(t *testing.T) {
	want := beat{boot: 1<<63 + 5, seq: 77, heardBoot: 3, heardSeq: 1 << 40}
	frame := appendEnvelope([]byte{frameVersion}, ring.GroupID{}, beatMessage(want))
	n := 0
	if err := decodeFrame(frame, func(e envelope) {
		n++
		if got, ok := beatOf(e.msg); !ok || got != want || !e.group.IsZero() {
			t.Errorf("%+v %v", got, ok)
		}
	}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if len(frame) > 64 || bytes.Count(frame, []byte{0}) < 16 {
		t.Errorf("%d bytes", len(frame))
	}
}
