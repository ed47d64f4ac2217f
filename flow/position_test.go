package flow

import (
	"maps"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
	"pgregory.net/rapid"
)

func TestPositionsOfEveryKindParse(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	cur := Cursor{Stream: ring.NewStreamID(), Next: map[ring.PartitionID]uint64{0: 7, 300: 1 << 40}}
	for _, tc := range []struct {
		in   string
		want Position
	}{
		{"", Position{Kind: FromLatest}},
		{"latest", Position{Kind: FromLatest}},
		{"earliest", Position{Kind: FromEarliest}},
		{"@2026-01-01T00:00:00Z", Position{Kind: FromTime, At: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}},
		{"-15m", Position{Kind: FromTime, At: now.Add(-15 * time.Minute)}},
		{"0:12", Position{Kind: FromOffsets, Offsets: map[ring.PartitionID]uint64{0: 12}}},
		{"0:12,3:0", Position{Kind: FromOffsets, Offsets: map[ring.PartitionID]uint64{0: 12, 3: 0}}},
		{cur.String(), Position{Kind: FromCursor, Cursor: cur}},
	} {
		got, err := ParsePosition(tc.in, now)
		if err != nil {
			t.Errorf("%q: %v", tc.in, err)
			continue
		}
		if got.Kind != tc.want.Kind || !got.At.Equal(tc.want.At) || !maps.Equal(got.Offsets, tc.want.Offsets) ||
			got.Cursor.Stream != tc.want.Cursor.Stream || !maps.Equal(got.Cursor.Next, tc.want.Cursor.Next) {
			t.Errorf("%q: got %+v, want %+v", tc.in, got, tc.want)
		}
	}
}

func TestBadPositionsAreInvalidAndNamed(t *testing.T) {
	good := Cursor{Stream: ring.NewStreamID(), Next: map[ring.PartitionID]uint64{1: 2}}.String()
	flipped := []byte(good)
	flipped[5] ^= 1
	for _, in := range []string{"@yesterday", "-5", "-banana", "0:-1", "-1:5", "0:9223372036854775808", "0:", ":", "0:1,0:2",
		"4294967296:0", "hello", good[:10], good + "A", string(flipped), "\x00"} {
		if _, err := ParsePosition(in, time.Now()); wire.KindOf(err) != wire.KindInvalid {
			t.Errorf("%q: got %v, want an invalid error", in, err)
		}
	}
}

func TestCursorTextRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Cursor{Stream: ring.NewStreamID(), Next: map[ring.PartitionID]uint64{}}
		for _, p := range rapid.SliceOfN(rapid.Uint32(), 0, 50).Draw(t, "partitions") {
			c.Next[ring.PartitionID(p)] = rapid.Uint64Max(1<<63-1).Draw(t, "offset")
		}
		back, err := ParseCursor(c.String())
		if err != nil || back.Stream != c.Stream || !maps.Equal(back.Next, c.Next) {
			t.Fatalf("%v: got %v, %v", c, back, err)
		}
	})
}

func FuzzParseCursor(f *testing.F) {
	f.Add(Cursor{Stream: ring.NewStreamID(), Next: map[ring.PartitionID]uint64{1: 2}}.String())
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCursor(s)
		if err == nil && c.String() == "" {
			_ = c.Clone()
		}
		_, _ = ParsePosition(s, time.Unix(0, 0))
	})
}
