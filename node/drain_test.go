package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
)

// publishSome makes a stream and publishes n events to it.
func (m *testMesh) publishSome(stream string, partitions, n int) {
	m.t.Helper()
	m.must(0, 201, "PUT", "/v1/streams/"+stream, fmt.Sprintf(`{"partitions":%d}`, partitions))
	for i := range n {
		m.must(0, 200, "POST", fmt.Sprintf("/v1/streams/%s/events?key=k%d", stream, i), "v")
	}
}

// drained waits until a drain is done, and holds the node to it.
func (m *testMesh) drained(asked, i int, id string) {
	m.t.Helper()
	var op ops.Operation
	deadline := time.Now().Add(90 * time.Second)
	for op = m.look(asked, id); op.State == ops.Running && time.Now().Before(deadline); op = m.look(asked, id) {
		pause()
	}
	if op.State != ops.Done || !op.Progress.SafeToPowerDown || !strings.Contains(op.Reason, "safe to power it down") || len(m.nodes[i].host.Groups()) != 0 {
		m.t.Fatalf("%s %s, %+v; %d groups are left", op.State, op.Reason, op.Progress, len(m.nodes[i].host.Groups()))
	}
}

func TestADrainEmptiesANodeAndSaysThatItIsSafe(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 4)
	m.publishSome("s", 4, 20)
	plan := m.ask(0, 200, "POST", "/v1/nodes/n3/drain?dry_run", "")
	if plan.State != ops.Planned || !strings.Contains(plan.Reason, "would become empty") {
		t.Fatalf("%+v", plan)
	}
	op := m.ask(0, 202, "POST", "/v1/nodes/n3/drain", "")
	m.drained(1, 3, op.ID)
	if again := m.ask(2, 202, "POST", "/v1/nodes/n3/drain", ""); again.ID != op.ID || again.State != ops.Done {
		t.Errorf("%+v", again)
	}
	if got := m.readAll(3, "s"); len(got) != 20 {
		t.Errorf("the empty node gives %d events", len(got))
	}
	m.poll("the catalog and the stream have their copies on the others", 20*time.Second, func() bool {
		s := m.summary(0)
		return s.Health == "ok" && slices.Contains(s.Notes, "n3 is drained: it holds nothing")
	})
	m.ask(0, 202, "DELETE", "/v1/nodes/n3/drain", "")
	m.seen(3, false, false)
}

// TestStreamsAreCreatedAtOnceWhileANodeDrains: whoever is asked, has heard of the drain or not.
func TestStreamsAreCreatedAtOnceWhileANodeDrains(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 4)
	m.publishSome("s", 4, 4)
	op := m.ask(0, 202, "POST", "/v1/nodes/n2/drain", "")
	for i := range m.nodes {
		stream := fmt.Sprintf("s%d", i)
		m.must(i, 201, "PUT", "/v1/streams/"+stream, `{"partitions":4}`)
		for k := range 8 {
			m.must((i+k)%4, 200, "POST", fmt.Sprintf("/v1/streams/%s/events?key=k%d", stream, k), "v")
		}
	}
	m.drained(1, 2, op.ID)
	for i := range m.nodes {
		if got := m.readAll(2, fmt.Sprintf("s%d", i)); len(got) != 8 {
			t.Errorf("s%d has %d events", i, len(got))
		}
	}
	if strings.Contains(m.logs.String(), "did not create a replica") {
		t.Error("that a node drains is taken for a fault")
	}
}

// TestADrainOfOneOfThreeLeavesTwoCopies: no other node can take the third, and the drain ends all the same.
func TestADrainOfOneOfThreeLeavesTwoCopies(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.publishSome("s", 2, 10)
	plan := m.ask(0, 200, "POST", "/v1/nodes/n1/drain?dry_run", "")
	if !strings.Contains(plan.Reason, "fewer copies than wanted") || !slices.Contains(plan.Steps, "s keeps 2 copies of the 3 that it wants: no further node can take one") {
		t.Fatalf("%+v", plan)
	}
	op := m.ask(2, 202, "POST", "/v1/nodes/n1/drain", "")
	m.drained(0, 1, op.ID)
	m.leave(1)
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k0", "after")
	if got := m.readAll(2, "s"); len(got) != 11 {
		t.Errorf("%d events are left", len(got))
	}
}

func TestADrainGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 4)
	m.publishSome("s", 4, 8)
	op := m.ask(0, 202, "POST", "/v1/nodes/n0/drain", "")
	m.restart(0)
	m.drained(0, 0, op.ID)
	m.restart(0)
	if got := m.look(0, op.ID); got.State != ops.Done || !got.Progress.SafeToPowerDown || got.Started != op.Started || got.Ended < got.Started {
		t.Errorf("%+v", got)
	}
}

func TestACopyMovesFromOneNodeToAnother(t *testing.T) {
	t.Parallel()
	m := startStill(t, 4)
	m.publishSome("s", 1, 10)
	g := m.group("s", 0)
	has := func(i int) bool {
		lg, ok := m.nodes[i].host.Group(g)
		return ok && slices.ContainsFunc(lg.Status().Members, func(mem replica.Member) bool { return mem.Node == m.nodes[i].data.id.NodeID && !mem.Learner })
	}
	to := slices.IndexFunc(m.nodes, func(tn *testNode) bool { _, ok := tn.host.Group(g); return !ok })
	from := m.owner("s", 0)
	path, body := "/v1/streams/s/partitions/0/move", fmt.Sprintf(`{"from":%q,"to":%q}`, m.nodes[from].cfg.Name, m.nodes[to].cfg.Name)
	m.poll("the others have caught up", 10*time.Second, func() bool {
		code, answer := m.do(to, "POST", path+"?dry_run", body)
		return code == 200 && m.operation(answer).State == ops.Planned && len(m.operation(answer).Steps) > 3
	})
	if has(to) {
		t.Fatal("a dry run moved it")
	}
	op := m.ask(to, 202, "POST", path, body)
	if again := m.ask(to, 202, "POST", path, body); again.ID != op.ID {
		t.Errorf("a repeated move is another operation: %+v", again)
	}
	m.poll("the copy has moved", 60*time.Second, func() bool { return has(to) && !has(from) })
	m.poll("the operation is done", 20*time.Second, func() bool { return m.look(to, op.ID).State == ops.Done })
	if got := m.readAll(from, "s"); len(got) != 10 {
		t.Errorf("%d events are left", len(got))
	}
	for body, want := range map[string]string{body: codeNotPossible, fmt.Sprintf(`{"from":%q,"to":"n9"}`, m.nodes[to].cfg.Name): codeNodeNotFound} {
		code, answer := m.do(0, "POST", path, body)
		if m.problemOf(answer).Code != want || strings.Contains(answer, m.nodes[from].data.id.NodeID.String()) {
			t.Errorf("%d %s", code, answer)
		}
	}
}

// An owner whose own copy moves hands the ownership over first: the next owner, asked for the same move, finds it where it began.
func TestARepeatedMoveIsFoundWithTheOwnerThatBeganIt(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	began, next := m.nodes[0], m.nodes[1]
	var p ring.PartitionID
	op, err := began.ops.add(ops.Operation{Kind: ops.Move, State: ops.Running, Stream: "s", Partition: &p, From: "n0", To: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	req := ops.Request{Kind: ops.Move, Stream: "s", From: began.data.id.NodeID.String(), To: next.data.id.NodeID.String()}
	if got, ok := next.ops.begunBy(t.Context(), began.data.id.NodeID, req); !ok || got.ID != op.ID {
		t.Errorf("found %v: %+v", ok, got)
	}
	other, dry := req, req
	other.Partition, dry.DryRun = 1, true
	for what, r := range map[string]ops.Request{"another partition": other, "a dry run": dry} {
		if got, ok := next.ops.begunBy(t.Context(), began.data.id.NodeID, r); ok {
			t.Errorf("%s is taken for it: %+v", what, got)
		}
	}
	began.ops.update(op.ID, func(op *ops.Operation) { op.State = ops.Done })
	if got, ok := next.ops.begunBy(t.Context(), began.data.id.NodeID, req); ok {
		t.Errorf("what is over is found: %+v", got)
	}
}

// group is the group of a stream's partition.
func (m *testMesh) group(stream string, p ring.PartitionID) ring.GroupID {
	m.t.Helper()
	g, err := m.nodes[0].ops.groupOf(m.t.Context(), stream, p)
	if err != nil {
		m.t.Fatal(err)
	}
	return g
}
