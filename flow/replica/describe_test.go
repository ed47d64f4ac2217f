package replica

import (
	"slices"
	"testing"

	"github.com/skeinmesh/skein/ring"
)

func TestLogOfAStepLeavesOutWhatTheStepDoesNotHave(t *testing.T) {
	got := Step{Kind: StepTransfer, Node: ring.NodeID{1}, Reason: "why"}.attrs()
	if !slices.Equal(got, []any{"step", StepTransfer.String(), "to", ring.NodeID{1}.String(), "reason", "why"}) {
		t.Error(got)
	}
	got = Step{Kind: StepPromote, IDs: []ring.ReplicaID{2}, Remove: []ring.ReplicaID{1}, Reason: "why"}.attrs()
	if len(got) != 8 || got[2] != "ids" || got[4] != "remove" {
		t.Error(got)
	}
}
