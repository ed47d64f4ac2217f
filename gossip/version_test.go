package gossip

import (
	"testing"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

func TestAnnouncementOfTheFirstVersionIsRead(t *testing.T) {
	want := fullIdentity()
	want.Protocol, want.Floor = 0, 0
	want.Former = [view.MaxFormer]ring.NodeID{}
	b := encodeMeta(want)
	got, err := decodeMeta(b[:len(b)-2]) // it ended before the two zeros
	if err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestVersionsBelowTheFloorAreRefused(t *testing.T) {
	nodes := mesh(t, 2, func(_ int, c *Config) { c.Self.Protocol, c.Self.Floor = 2, 1 })
	a, b := nodes[0], nodes[1]
	a.SetFloor(2)
	a.SetFloor(1) // it never sinks
	eventually(t, "the floor is known elsewhere", func() bool {
		m, _ := b.View().Member(a.cfg.Self.ID)
		return m.Floor == 2 && m.Protocol == 2
	})
	b.SetFloor(2)
	c := fastConfig("old")
	c.Seeds = []string{a.Addr()}
	start(t, c) // announces no version: the first
	eventually(t, "one line says so", func() bool { return a.log.count("level=WARN", "older version", "old") == 1 })
	for _, n := range nodes {
		if m, ok := n.View().Member(c.Self.ID); ok && m.State != view.StateUnknown {
			t.Fatalf("it was admitted: %+v", m)
		}
	}
}
