package flow

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/credit"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/testnet/virtual"
	"github.com/skeinmesh/skein/transport/wire"
)

func offsets(at map[ring.PartitionID]uint64) Position {
	return Position{Kind: FromOffsets, Offsets: at}
}

func TestEveryPositionStartsWhereItSays(t *testing.T) {
	for _, replicas := range []int{1, 3} { // 1: two of three nodes read from afar
		t.Run(fmt.Sprintf("replicas=%d", replicas), func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				info := m.create("orders", StreamConfig{Partitions: 1, Replicas: replicas})
				var at time.Time
				for i := range 10 {
					if i == 6 {
						at = time.Now()
					}
					m.put(0, "orders", "k", fmt.Sprint(i))
					virtual.Sleep(time.Second)
				}
				cursor := Cursor{Stream: info.ID, Next: map[ring.PartitionID]uint64{0: 7}}
				cases := map[string]struct {
					from Position
					want string
				}{
					"earliest":       {Position{Kind: FromEarliest}, "0123456789"},
					"latest":         {Position{Kind: FromLatest}, ""},
					"time":           {Position{Kind: FromTime, At: at}, "6789"},
					"future":         {Position{Kind: FromTime, At: at.Add(time.Hour)}, ""},
					"offset":         {offsets(map[ring.PartitionID]uint64{0: 4}), "456789"},
					"end":            {offsets(map[ring.PartitionID]uint64{0: 10}), ""},
					"beyond the end": {offsets(map[ring.PartitionID]uint64{0: 50}), ""},
					"cursor":         {Position{Kind: FromCursor, Cursor: cursor}, "789"},
					"forged cursor":  {Position{Kind: FromCursor, Cursor: Cursor{Stream: info.ID, Next: map[ring.PartitionID]uint64{0: 1<<63 - 1}}}, ""},
				}
				for name, c := range cases {
					for i := range 3 {
						if got := strings.Join(values(m.readAll(i, "orders", SubscribeRequest{From: c.from})), ""); got != c.want {
							t.Errorf("%s through node %d: %q, want %q", name, i, got, c.want)
						}
					}
				}
				bad := map[string]Position{
					"foreign-cursor":      {Kind: FromCursor, Cursor: Cursor{Stream: ring.NewStreamID()}},
					"partition-not-found": offsets(map[ring.PartitionID]uint64{9: 0}),
				}
				for code, from := range bad {
					if _, err := m.nodes[1].broker.Subscribe(t.Context(), "orders", SubscribeRequest{From: from}); wire.CodeOf(err) != code {
						t.Errorf("got %v, want %s", err, code)
					}
				}
			})
		})
	}
}

func TestCursorResumesWithoutGapOrRepeat(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 3})
		const n = 200
		for i := range n {
			m.put(i%3, "orders", fmt.Sprint("k", i%7), fmt.Sprintf("%d-%d", i%7, i))
		}
		seen := map[string]bool{}
		req := earliest()
		for step := 0; len(seen) < n; step++ {
			if step > n {
				t.Fatalf("%d events after %d steps", len(seen), step)
			}
			sub, err := m.nodes[step%3].broker.Subscribe(t.Context(), "orders", req)
			if err != nil {
				t.Fatal(err)
			}
			c, err := sub.Next(m.within(10*time.Second), 1+step%9)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range c.Events {
				if seen[string(e.Value)] {
					t.Errorf("%s comes twice", e.Value)
				}
				seen[string(e.Value)] = true
			}
			text := c.Cursor.String()
			if text != sub.Cursor().String() {
				t.Error("the chunk's cursor is not the subscription's")
			}
			if err := sub.Close(); err != nil {
				t.Fatal(err)
			}
			if req.From, err = ParsePosition(text, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestKeyAndPartitionFilters(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 4})
		want, perPartition := "", map[ring.PartitionID]int{}
		for i := range 60 {
			r := m.put(0, "orders", fmt.Sprint("k", i%5), fmt.Sprint(i, " "))
			perPartition[r.Partition]++
			if i%5 == 3 {
				want += fmt.Sprint(i, " ")
			}
		}
		req := earliest()
		req.Key, req.HasKey = []byte("k3"), true
		if got := strings.Join(values(m.readAll(1, "orders", req)), ""); got != want {
			t.Errorf("key k3: %q", got)
		}
		for p := range ring.PartitionID(4) {
			req := earliest()
			req.Partition = &p
			if got := m.readAll(2, "orders", req); len(got) != perPartition[p] {
				t.Errorf("partition %d: %d events, want %d", p, len(got), perPartition[p])
			}
		}
		none := ring.PartitionID(77)
		if _, err := m.nodes[0].broker.Subscribe(t.Context(), "orders", SubscribeRequest{Partition: &none}); wire.CodeOf(err) != "partition-not-found" {
			t.Errorf("got %v", err)
		}
	})
}

func TestUntilEndStopsAtTheEndAsItWas(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 2})
		for i := range 20 {
			m.put(0, "orders", fmt.Sprint(i), "old")
		}
		req := earliest()
		req.UntilEnd = true
		sub, err := m.nodes[1].broker.Subscribe(m.within(5*time.Second), "orders", req)
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close() //nolint:errcheck // it returns nil
		for i := range 20 {
			m.put(0, "orders", fmt.Sprint(i), "new")
		}
		for _, v := range values(m.drain(sub, 0)) {
			if v != "old" {
				t.Error("an event from after the end")
			}
		}
	})
}

// The reader is slow, so that what was published since it asked is read together with the last events before its end.
func TestUntilEndGivesAllBeforeTheEndWhateverComesAfterIt(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("replicas=%d", replicas), func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				m.create("orders", StreamConfig{Partitions: 1, Replicas: replicas})
				const n, size = 40, 16 << 10
				for i := range n {
					m.put(0, "orders", "k", noise(i, size))
				}
				for i := range 3 {
					req := earliest()
					req.UntilEnd = true
					sub, err := m.nodes[i].broker.Subscribe(m.within(5*time.Second), "orders", req)
					if err != nil {
						t.Fatal(err)
					}
					defer sub.Close() //nolint:errcheck // it returns nil
					virtual.Sleep(time.Second)
					m.put(0, "orders", "k", "since")
					got := m.drain(sub, 0)
					if len(got) != n+i || got[len(got)-1].Offset != uint64(n+i-1) {
						t.Errorf("node %d: %d events before the end, want %d", i, len(got), n+i)
					}
				}
			})
		})
	}
}

func TestLiveReaderFollowsThroughOwnerChanges(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		subs := make([]Subscription, 3)
		for i := range subs {
			var err error
			if subs[i], err = m.nodes[i].broker.Subscribe(t.Context(), "orders", earliest()); err != nil {
				t.Fatal(err)
			}
			defer subs[i].Close() //nolint:errcheck // it returns nil
		}
		for i := range 30 {
			m.put(i%3, "orders", "k", fmt.Sprintf("%03d", i))
			if i%10 == 9 {
				owner := m.owner(info.Partitions[0].Group)
				lg, _ := owner.host.Group(info.Partitions[0].Group)
				_ = lg.Transfer(m.within(2*time.Second), m.nodes[(owner.i+1)%3].id)
			}
		}
		for i, sub := range subs {
			for n, e := range m.drain(sub, 30) {
				if string(e.Value) != fmt.Sprintf("%03d", n) || e.Offset != uint64(n) {
					t.Errorf("node %d: event %d is %s at %d", i, n, e.Value, e.Offset)
				}
			}
		}
	})
}

func TestStoppedReaderHoldsAFewChunksAndGetsEverythingLater(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("replicas=%d", replicas), func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				m.create("orders", StreamConfig{Partitions: 4, Replicas: replicas})
				sub, err := m.nodes[2].broker.Subscribe(t.Context(), "orders", earliest())
				if err != nil {
					t.Fatal(err)
				}
				defer sub.Close() //nolint:errcheck // it returns nil
				const n, size = 80, 32 << 10
				for i := range n {
					m.put(0, "orders", fmt.Sprint(i), noise(i, size))
				}
				virtual.Sleep(time.Minute)
				s := sub.(*subscription)
				if got := len(s.chunks); got > readTokens {
					t.Errorf("%d chunks read ahead", got)
				}
				held := 0
				for range len(s.chunks) {
					c := <-s.chunks
					for _, b := range c.batches {
						held += len(b.Payload)
					}
					s.chunks <- c
				}
				if held > readTokens*(chunkBytes+size) {
					t.Errorf("%d bytes read ahead", held)
				}
				if got := m.drain(sub, n); len(got) != n {
					t.Errorf("%d events", len(got))
				}
			})
		})
	}
}

func TestTooManyReadersAreRefused(t *testing.T) {
	tune := func(c *Config) { c.ReadBudget = credit.NewBudget(40 << 10) }
	inMesh(t, 1, tune, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 1, Replicas: 1})
		var subs []Subscription
		var err error
		for range 10 {
			var sub Subscription
			if sub, err = m.nodes[0].broker.Subscribe(t.Context(), "orders", earliest()); err != nil {
				break
			}
			subs = append(subs, sub)
		}
		if wire.CodeOf(err) != wire.CodeOverloaded {
			t.Errorf("%d readers, then %v", len(subs), err)
		}
		for _, sub := range subs {
			_ = sub.Close()
			_ = sub.Close()
		}
		if n := m.nodes[0].broker.cfg.ReadBudget.Used(); n != 0 {
			t.Errorf("%d bytes not given back", n)
		}
	})
}

func TestExpiredOffsetSaysWhereTheStreamBegins(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("replicas=%d", replicas), func(t *testing.T) {
			inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
				info := m.create("orders", StreamConfig{Partitions: 1, Replicas: replicas})
				for i := range 10 {
					m.put(0, "orders", "k", fmt.Sprint(i))
				}
				lg, _ := m.owner(info.Partitions[0].Group).host.Group(info.Partitions[0].Group)
				if out := lg.ProposeWait(t.Context(), partition.EncodeTrim(nil, 4, time.Now().UnixMilli())); out.Err != nil {
					t.Fatal(out.Err)
				}
				virtual.Sleep(time.Second)
				for i := range 3 {
					_, err := m.nodes[i].broker.Subscribe(m.within(5*time.Second), "orders", SubscribeRequest{From: offsets(map[ring.PartitionID]uint64{0: 2})})
					if wire.CodeOf(err) != wire.CodeOffsetExpired || wire.AsError(err).Term != 4 {
						t.Errorf("node %d: %v", i, err)
					}
					if _, err := m.nodes[i].broker.EventAt(m.within(5*time.Second), "orders", 0, 3); wire.CodeOf(err) != wire.CodeOffsetExpired {
						t.Errorf("node %d, one event: %v", i, err)
					}
					if e, err := m.nodes[i].broker.EventAt(m.within(5*time.Second), "orders", 0, 5); err != nil || string(e.Value) != "5" {
						t.Errorf("node %d: %+v, %v", i, e, err)
					}
					if _, err := m.nodes[i].broker.EventAt(m.within(5*time.Second), "orders", 0, 10); wire.CodeOf(err) != "offset-not-found" {
						t.Errorf("node %d, beyond the end: %v", i, err)
					}
					if got := strings.Join(values(m.readAll(i, "orders", earliest())), ""); got != "456789" {
						t.Errorf("node %d reads %q", i, got)
					}
				}
			})
		})
	}
}

func TestNodeCutOffServesWhatItHasAndDoesNotKnowTheEnd(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1})
		for i := range 5 {
			m.put(0, "orders", "k", fmt.Sprint(i))
		}
		virtual.Sleep(time.Second)
		cut := m.owner(info.Partitions[0].Group).i
		m.isolate(cut, true)
		virtual.Sleep(3 * time.Second)
		sub, err := m.nodes[cut].broker.Subscribe(m.within(2*time.Second), "orders", earliest())
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(values(m.drain(sub, 5)), ""); got != "01234" {
			t.Errorf("got %q", got)
		}
		_ = sub.Close()
		for _, req := range []SubscribeRequest{{From: Position{Kind: FromLatest}}, {From: Position{Kind: FromEarliest}, UntilEnd: true}} {
			_, err := m.nodes[cut].broker.Subscribe(m.within(2*time.Second), "orders", req)
			if wire.KindOf(err) != wire.KindUnavailable || wire.CodeOf(err) != wire.CodeNoQuorum {
				t.Errorf("end without a quorum: %v", err)
			}
		}
		m.isolate(cut, false)
		m.put(cut, "orders", "k", "5")
		if got := strings.Join(values(m.readAll(cut, "orders", earliest())), ""); got != "012345" {
			t.Errorf("got %q after healing", got)
		}
	})
}

func TestReaderOfADeletedStreamIsTold(t *testing.T) {
	inMesh(t, 3, nil, func(t *testing.T, m *mesh) {
		m.create("orders", StreamConfig{Partitions: 2, Replicas: 1})
		m.put(0, "orders", "k", "a")
		subs := make([]Subscription, 3)
		for i := range subs {
			var err error
			if subs[i], err = m.nodes[i].broker.Subscribe(t.Context(), "orders", earliest()); err != nil {
				t.Fatal(err)
			}
			defer subs[i].Close() //nolint:errcheck // it returns nil
			m.drain(subs[i], 1)
		}
		if err := m.nodes[1].broker.Delete(m.within(5*time.Second), "orders"); err != nil {
			t.Fatal(err)
		}
		m.create("orders", StreamConfig{Partitions: 2, Replicas: 1})
		m.put(0, "orders", "k", "b")
		for i, sub := range subs {
			if c, err := sub.Next(m.within(30*time.Second), 0); wire.CodeOf(err) != wire.CodeStreamNotFound {
				t.Errorf("node %d: %d events, %v", i, len(c.Events), err)
			}
		}
	})
}

func TestHostileSubscribeHello(t *testing.T) {
	inMesh(t, 1, nil, func(t *testing.T, m *mesh) {
		info := m.create("orders", StreamConfig{Partitions: 1, Replicas: 1})
		m.put(0, "orders", "k", "a")
		peers := &fakePeers{m.nodes[0]}
		for _, h := range []subscribeHello{{}, {Group: info.Partitions[0].Group, Credit: -1 << 62},
			{Group: info.Partitions[0].Group, From: 1 << 62, Credit: 1 << 62}} {
			body, err := wire.Marshal(&h)
			if err != nil {
				t.Fatal(err)
			}
			st, err := peers.Open(t.Context(), m.nodes[0].id, wire.ClassBulk, wire.MethodSubscribe, body)
			if err != nil {
				t.Fatal(err)
			}
			bad, err := wire.Marshal(&creditFrame{Credit: -5})
			if err != nil {
				t.Fatal(err)
			}
			_ = st.Send(t.Context(), bad)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			for err == nil {
				_, err = st.Recv(ctx)
			}
			if ctx.Err() != nil {
				t.Errorf("%+v: the stream goes on", h)
			}
			cancel()
			_ = st.Close(nil)
		}
	})
}
