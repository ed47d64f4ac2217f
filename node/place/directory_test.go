package place

import (
	"testing"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

func TestWipedNodeIsToldApartFromItsFormerSelf(t *testing.T) {
	self, former, fresh, dead := ring.NewNodeID(), ring.NewNodeID(), ring.NewNodeID(), ring.NewNodeID()
	member := func(id ring.NodeID, name, quic string, state view.State) view.Member {
		return view.Member{Identity: view.Identity{ID: id, Name: name, QUICAddr: quic, Incarnation: 1}, State: state}
	}
	v, _ := view.New(self, view.Limits{}).Merge(view.Update{Members: []view.Member{
		member(self, "a", "10.0.0.1:8401", view.StateAlive),
		member(former, "b", "10.0.0.2:8401", view.StateLeft),
		member(fresh, "b", "10.0.0.2:8401", view.StateAlive),
		member(dead, "c", "10.0.0.3:8401", view.StateDead),
	}})
	d := New(Config{Self: self, Name: "a", View: func() *view.View { return v }})

	if got, want := d.Name(former), "b~"+former.String()[:8]; got != want {
		t.Errorf("the former self is called %q, want %q", got, want)
	}
	if m, ok := v.ByName(d.Name(former)); ok {
		t.Errorf("copies of the former self would count as those of %v", m.ID)
	}
	for id, want := range map[ring.NodeID]string{self: "a", fresh: "b", dead: "c"} {
		if got := d.Name(id); got != want {
			t.Errorf("got name %q, want %q", got, want)
		}
	}
	addrs := d.Addresses()
	if _, ok := addrs[former]; ok {
		t.Error("the former self is looked for at an address that another node has")
	}
	if addrs[fresh] != "10.0.0.2:8401" || addrs[dead] != "10.0.0.3:8401" {
		t.Errorf("addresses: %v", addrs)
	}
}
