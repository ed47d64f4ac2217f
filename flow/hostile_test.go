package flow

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// rawBatch is a batch frame of one event.
func rawBatch(session [16]byte, seq uint64, value string, spoil func(frame []byte) []byte) []byte {
	o := newOutBatch()
	r := event("k", value)
	if err := o.builder.Add(&r); err != nil {
		panic(err)
	}
	o.seal(session, seq)
	if spoil != nil {
		return spoil(o.frame)
	}
	return o.frame
}

// talk opens a publish session by hand, sends frames, and gives the owner's answers up to the stream's end.
func (m *mesh) talk(owner *node, h publishHello, frames ...[]byte) (answers []*publishAck, end error) {
	m.t.Helper()
	body, err := wire.Marshal(&h)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx := m.within(5 * time.Second)
	st, err := (&fakePeers{owner}).Open(ctx, owner.id, wire.ClassBulk, wire.MethodPublish, body)
	if err != nil {
		m.t.Fatal(err)
	}
	defer st.Close(nil) //nolint:errcheck // the stream is over either way
	for _, f := range frames {
		_ = st.Send(ctx, f)
	}
	for {
		frame, err := st.Recv(ctx)
		if err != nil {
			return answers, err
		}
		a, err := parseAnswer(frame)
		if err != nil {
			m.t.Fatal(err)
		}
		answers = append(answers, a)
	}
}

func TestForgedSessionsAndBrokenBatchesStoreNothing(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		g := info.Partitions[0].Group
		owner := m.owner(g)
		forged := [16]byte{9}
		flip := func(f []byte) []byte { f[len(f)-1] ^= 1; return f }
		cases := []struct {
			name   string
			hello  publishHello
			frames [][]byte
			answer wire.Kind // of the last answer; 0: none but the credit
		}{
			{"a session that nobody opened", publishHello{Group: g, Session: forged}, [][]byte{rawBatch(forged, 1, "x", nil)}, wire.KindFenced},
			{"a gap", publishHello{Group: g, Session: [16]byte{1}, New: true}, [][]byte{rawBatch(forged, 7, "x", nil)}, wire.KindFenced},
			{"number zero", publishHello{Group: g, Session: [16]byte{2}, New: true}, [][]byte{rawBatch(forged, 0, "x", nil)}, wire.KindInvalid},
			{"a flipped bit", publishHello{Group: g, Session: [16]byte{3}, New: true}, [][]byte{rawBatch(forged, 1, "x", flip)}, wire.KindCorrupt},
			{"no batch", publishHello{Group: g, Session: [16]byte{4}, New: true}, [][]byte{{}, {1}}, 0},
			{"a cut header", publishHello{Group: g, Session: [16]byte{5}, New: true}, [][]byte{rawBatch(forged, 1, "x", nil)[:20]}, 0},
			{"a foreign group", publishHello{Group: ring.GroupID{1}, New: true}, nil, 0},
			{"a catalog shard", publishHello{Group: ring.CatalogGroup(m.id, 0), New: true}, nil, 0},
		}
		for _, c := range cases {
			answers, end := m.talk(owner, c.hello, c.frames...)
			switch {
			case c.answer == 0 && (len(answers) > 1 || errors.Is(end, io.EOF)):
				t.Errorf("%s: %d answers, %v", c.name, len(answers), end)
			case c.answer != 0 && (len(answers) != 2 || answers[1].Err == nil || answers[1].Err.Kind != c.answer || !errors.Is(end, io.EOF)):
				t.Errorf("%s: %d answers, %v", c.name, len(answers), end)
			}
		}
		m.put(0, "orders", "k", "fine")
		if got := values(m.readAll(1, "orders", earliest())); len(got) != 1 || got[0] != "fine" {
			t.Errorf("got %q", got)
		}
		if n := owner.broker.cfg.OwnerBudget.Used(); n != 0 {
			t.Errorf("%d bytes still reserved", n)
		}
	})
}

func TestBatchSentTwiceIsAnsweredTwiceAndStoredOnce(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		g := info.Partitions[0].Group
		id := [16]byte{1}
		a, b := rawBatch(id, 1, "a", nil), rawBatch(id, 2, "b", nil)
		// The last frame is another batch under a number that is taken.
		answers, _ := m.talk(m.owner(g), publishHello{Group: g, Session: id, New: true}, a, b, a, b, rawBatch(id, 2, "other", nil))
		if len(answers) != 6 {
			t.Fatalf("%d answers", len(answers))
		}
		for i, want := range []uint64{0, 1, 0, 1} {
			if got := answers[i+1]; got.Err != nil || got.Base != want {
				t.Errorf("answer %d: offset %d, %v", i, got.Base, got.Err)
			}
		}
		if e := answers[5].Err; e == nil || e.Kind != wire.KindConflict {
			t.Errorf("another batch under the same number: %v", e)
		}
		if got := values(m.readAll(2, "orders", earliest())); len(got) != 2 {
			t.Errorf("got %q", got)
		}
	})
}

func TestEventsOfOneRequestHaveTheirOwnResults(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 4, Replicas: 1, MaxEventBytes: 1000})
		var recs []batch.Record
		for i := range 50 {
			size := 10
			if i%10 == 7 {
				size = 2000
			}
			recs = append(recs, event(string(rune('a'+i)), noise(i, size)))
		}
		res, err := m.nodes[0].broker.Publish(m.within(5*time.Second), "orders", recs, PublishOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range res {
			if tooLarge := i%10 == 7; tooLarge != (wire.CodeOf(r.Err) == wire.CodeTooLarge) {
				t.Errorf("event %d: %v", i, r.Err)
			}
		}
		if n := len(m.readAll(0, "orders", earliest())); n != 45 {
			t.Errorf("%d events", n)
		}
	})
}
