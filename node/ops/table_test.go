package ops

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

var start = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func TestTableForgetsTheOldestThatAreOver(t *testing.T) {
	tab := NewTable(ring.NewNodeID(), "n1", 3, 3)
	running, err := tab.Add(start, Operation{Kind: Drain, State: Running, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := tab.Add(start, Operation{Kind: Cordon, State: Done}); err != nil {
			t.Fatal(err)
		}
	}
	list := tab.List()
	if len(list) != 3 || list[2].ID != running.ID || tab.CountRunning() != 1 {
		t.Errorf("%+v", list)
	}
	for range 2 {
		if _, err := tab.Add(start, Operation{Kind: Move, State: Running}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tab.Add(start, Operation{Kind: Move, State: Running}); wire.CodeOf(err) != wire.CodeOverloaded {
		t.Errorf("a full table took one more: %v", err)
	}
}

func TestIDsNameTheirKeeperOverRestarts(t *testing.T) {
	keeper := ring.NewNodeID()
	a, err := NewTable(keeper, "n1", 3, 8).Add(start, Operation{Kind: Drain, State: Running})
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewTable(keeper, "n1", 4, 8).Add(start, Operation{Kind: Drain, State: Running})
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := KeeperOf(a.ID); !ok || got != keeper || a.ID == b.ID || a.Keeper != "n1" {
		t.Errorf("%q %q: %v %v", a.ID, b.ID, got, ok)
	}
	for _, id := range []string{"", "x", keeper.String(), keeper.String() + ".1", keeper.String() + ".1.x", keeper.String() + ".1.2.3", "x.1.2",
		ring.NodeID{}.String() + ".1.2", keeper.String() + "..", keeper.String() + ".1." + strings.Repeat("1", 30)} {
		if _, ok := KeeperOf(id); ok {
			t.Errorf("%q passes for an id", id)
		}
	}
}

func TestWhatIsOverChangesNoMore(t *testing.T) {
	tab := NewTable(ring.NewNodeID(), "n1", 1, 8)
	op, err := tab.Add(start, Operation{Kind: Transfer, State: Running})
	if err != nil {
		t.Fatal(err)
	}
	done, ok := tab.Update(start.Add(time.Second), op.ID, func(o *Operation) { o.State = Done })
	if !ok || done.Ended != At(start.Add(time.Second)) || done.Started != At(start) {
		t.Errorf("%+v", done)
	}
	if _, ok := tab.Update(start, op.ID, func(o *Operation) { o.State = Failed }); ok {
		t.Error("a done operation failed afterwards")
	}
	if _, ok := tab.Update(start, "other", func(*Operation) {}); ok {
		t.Error("an unknown operation was changed")
	}
}

func TestARepeatedQuestionFindsTheOperationUnderWay(t *testing.T) {
	tab := NewTable(ring.NewNodeID(), "n1", 1, 8)
	zero, one := ring.PartitionID(0), ring.PartitionID(1)
	op, err := tab.Add(start, Operation{Kind: Move, State: Running, Stream: "s", Partition: &zero, From: "a", To: "b"})
	if err != nil {
		t.Fatal(err)
	}
	again := zero
	if got, ok := tab.Running(Operation{Kind: Move, Stream: "s", Partition: &again, From: "a", To: "b"}); !ok || got.ID != op.ID {
		t.Errorf("%+v %v", got, ok)
	}
	for _, other := range []Operation{{Kind: Transfer, Stream: "s", Partition: &zero, From: "a", To: "b"}, {Kind: Move, Stream: "s", Partition: &one, From: "a", To: "b"},
		{Kind: Move, Stream: "s", Partition: &zero, From: "a", To: "c"}, {Kind: Move, Stream: "s", From: "a", To: "b"}} {
		if _, ok := tab.Running(other); ok {
			t.Errorf("%+v passes for it", other)
		}
	}
}

// TestOperationsComeThroughBothForms: one type is the JSON of the API and the message between nodes.
func TestOperationsComeThroughBothForms(t *testing.T) {
	p := ring.PartitionID(0)
	op := Operation{ID: "i", Kind: Move, State: Running, Stream: "s", Partition: &p, From: "a", To: "b", Keeper: "n", Reason: "r", Steps: []string{"one"},
		Progress: &Progress{Replicas: 2, Remaining: []Remaining{{Stream: "s", Role: "voter", Reason: "x"}}}, Started: At(start), Updated: At(start)}
	raw, err := wire.Marshal(&op)
	if err != nil {
		t.Fatal(err)
	}
	var back, fromJSON Operation
	if err := wire.Unmarshal(raw, &back); err != nil || !reflect.DeepEqual(op, back) {
		t.Errorf("%v: %+v", err, back)
	}
	text, err := json.Marshal(op)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &fromJSON); err != nil || !reflect.DeepEqual(op, fromJSON) || !strings.Contains(string(text), `"started":"2026-05-04T03:02:01Z"`) ||
		strings.Contains(string(text), "ended") || !strings.Contains(string(text), `"partition":0`) {
		t.Errorf("%v: %s", err, text)
	}
}

func TestAnOperationsTextIsBounded(t *testing.T) {
	tab := NewTable(ring.NewNodeID(), "n1", 1, MaxSteps)
	long := Operation{Kind: Drain, State: Running, Reason: strings.Repeat("ü", 2000), Progress: &Progress{Remaining: make([]Remaining, 500)}}
	for range 200 {
		long.Steps = append(long.Steps, strings.Repeat("x", 5000))
	}
	op, err := tab.Add(start, long)
	if err != nil {
		t.Fatal(err)
	}
	if len(op.Reason) > maxText+4 || len(op.Steps) != MaxSteps || op.Steps[MaxSteps-1] != "and 137 steps more" || len(op.Steps[0]) > maxText+4 ||
		len(op.Progress.Remaining) != MaxRemaining {
		t.Errorf("%d %d %q %d", len(op.Reason), len(op.Steps), op.Steps[len(op.Steps)-1], len(op.Progress.Remaining))
	}
	raw, err := wire.Marshal(&op)
	if err != nil || 256*len(raw) > 32<<20 {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
}

// TestWhatWasGivenOutIsNotWrittenInto: it is being encoded elsewhere while the operation goes on.
func TestWhatWasGivenOutIsNotWrittenInto(t *testing.T) {
	tab := NewTable(ring.NewNodeID(), "n1", 1, 4)
	op, err := tab.Add(start, Operation{Kind: Drain, State: Running, Steps: []string{"one"}, Progress: &Progress{Remaining: make([]Remaining, 2*MaxRemaining)}})
	if err != nil {
		t.Fatal(err)
	}
	now, ok := tab.Update(start, op.ID, func(*Operation) {})
	if !ok || &now.Steps[0] == &op.Steps[0] {
		t.Error("an update wrote into the steps that were given out")
	}
	again, _ := tab.Get(op.ID)
	if len(again.Progress.Remaining) != MaxRemaining || len(again.Steps) != 1 {
		t.Errorf("%+v", again)
	}
}
