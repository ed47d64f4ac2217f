package gossip

import (
	"fmt"
	"testing"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
)

func testMetrics() *metrics {
	return newMetrics(nil, func() *view.View { return view.New(ring.NodeID{}, view.Limits{}) })
}

func TestFullInboxDropsAndNeverBlocks(t *testing.T) {
	b := newInbox(testMetrics())
	for range maxInboxMessages + 10 {
		b.putMessage(message{kind: kindLoad})
	}
	b.putMessage(message{kind: kindState, hints: []ownerHints{{hints: make([]agedHint, 1)}}})
	if _, got := b.take(); len(got) != maxInboxMessages {
		t.Errorf("%d messages kept", len(got))
	}
	for range 3 { // hints are bounded apart from messages
		b.putMessage(message{kind: kindState, hints: []ownerHints{{hints: make([]agedHint, maxStateHints)}}})
	}
	if _, got := b.take(); len(got) != maxInboxHints/maxStateHints {
		t.Errorf("%d full states kept", len(got))
	}
}

func TestInboxKeepsTheLastBeliefAndTheIdentity(t *testing.T) {
	b := newInbox(testMetrics())
	id := view.Identity{ID: ring.NodeID{1}, Name: "a", Incarnation: 3}
	b.putMember(view.Member{Identity: id, State: view.StateAlive})
	b.putMember(view.Member{Identity: view.Identity{ID: id.ID}, State: view.StateSuspect})
	members, _ := b.take()
	m := members[id.ID]
	if len(members) != 1 || m.State != view.StateSuspect || m.Name != "a" || m.Observed != 3 {
		t.Errorf("%+v", m)
	}
}

func TestNoticesOfOneKeyAreWrittenOncePerPause(t *testing.T) {
	n := newNotices(testMetrics())
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		key  string
		at   time.Duration
		want bool
	}{{"a", 0, true}, {"a", noticePause - 1, false}, {"b", 1, true}, {"a", noticePause, true}} {
		if got := n.due(c.key, now.Add(c.at)); got != c.want {
			t.Errorf("%s at %s: %v", c.key, c.at, got)
		}
	}
	for i := range 2 * maxNotices { // a flood of keys is bounded
		n.due(fmt.Sprint(i), now)
	}
	if len(n.last) > maxNotices {
		t.Errorf("%d keys remembered", len(n.last))
	}
}

func TestNoticeQueueDropsWhenFull(t *testing.T) {
	n := newNotices(testMetrics())
	for range maxNotices + 5 {
		n.put(notice{msg: "x"})
	}
	n.put(notice{msg: "y", key: "k"})
	if len(n.ch) != maxNotices {
		t.Errorf("%d lines", len(n.ch))
	}
	if !n.due("k", time.Now()) {
		t.Error("a dropped line counts as written")
	}
}
