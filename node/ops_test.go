package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/ops"
)

// ask has node i carry an operation out and returns what it says of it.
func (m *testMesh) ask(i, want int, method, path, body string) ops.Operation {
	m.t.Helper()
	var header []string
	if body != "" {
		header = []string{"Content-Type", "application/json"}
	}
	return m.operation(m.must(i, want, method, path, body, header...))
}

func (m *testMesh) operation(body string) ops.Operation {
	m.t.Helper()
	var op ops.Operation
	if err := json.Unmarshal([]byte(body), &op); err != nil {
		m.t.Fatalf("%q is no operation: %v", body, err)
	}
	return op
}

// look asks node i how an operation stands.
func (m *testMesh) look(i int, id string) ops.Operation {
	m.t.Helper()
	return m.operation(m.must(i, 200, "GET", "/v1/operations/"+id, ""))
}

// seen waits until every node sees node i as wanted.
func (m *testMesh) seen(i int, cordoned, draining bool) {
	m.t.Helper()
	m.poll(fmt.Sprintf("all see that %s is cordoned %v, draining %v", m.nodes[i].cfg.Name, cordoned, draining), 10*time.Second, func() bool {
		for _, tn := range m.nodes {
			if tn.cancel == nil {
				continue
			}
			v, ok := tn.gossip.View().Member(m.nodes[i].data.id.NodeID)
			if !ok || v.Cordoned() != cordoned || v.Draining() != draining {
				return false
			}
		}
		return true
	})
}

func (m *testMesh) restart(i int) {
	m.t.Helper()
	m.leave(i)
	m.start(i)
}

func TestACordonIsKeptByTheNodeAndSurvivesARestart(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	if op := m.ask(0, 200, "PUT", "/v1/nodes/n1/cordon?dry_run", ""); op.State != ops.Planned || op.ID != "" || len(op.Steps) != 1 {
		t.Fatalf("%+v", op)
	}
	if m.nodes[1].data.marks().Cordoned {
		t.Fatal("a dry run cordoned")
	}
	op := m.ask(0, 202, "PUT", "/v1/nodes/n1/cordon", "")
	if op.State != ops.Done || op.Keeper != "n1" {
		t.Fatalf("%+v", op)
	}
	m.seen(1, true, false)
	for i := range m.nodes {
		if got := m.look(i, op.ID); got.ID != op.ID || got.State != ops.Done {
			t.Fatalf("node %d: %+v", i, got)
		}
	}
	m.restart(1)
	m.seen(1, true, false)
	m.ask(1, 202, "DELETE", "/v1/nodes/n1/cordon", "")
	m.seen(1, false, false)
	if op := m.ask(1, 202, "DELETE", "/v1/nodes/n1/cordon", ""); !strings.Contains(op.Reason, "is not cordoned") {
		t.Errorf("%+v", op)
	}
}

func TestAnOperationOnAnUnknownNodeNamesTheKnownOnes(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	code, body := m.do(0, "POST", "/v1/nodes/n7/drain", "")
	if code != 404 || m.problemOf(body).Code != codeNodeNotFound || !strings.Contains(body, "known are n0, n1") {
		t.Errorf("%d %s", code, body)
	}
	for _, id := range []string{"x", ops.Operation{}.ID + "a.1.1", m.nodes[1].data.id.NodeID.String() + ".1.99"} {
		if code, body := m.do(0, "GET", "/v1/operations/"+id, ""); code != 404 || m.problemOf(body).Code != codeOperationNotFound {
			t.Errorf("%d %s", code, body)
		}
	}
}

func TestTheLastNodeCannotBeDrained(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 1)
	code, body := m.do(0, "POST", "/v1/nodes/n0/drain", "")
	if code != 409 || m.problemOf(body).Code != codeLastNode || m.nodes[0].data.marks().draining() {
		t.Errorf("%d %s", code, body)
	}
}

func TestADrainSurvivesARestartUnderItsIDAndIsCancelled(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":2}`)
	if op := m.ask(0, 200, "POST", "/v1/nodes/n2/drain?dry_run=true", ""); op.State != ops.Planned || len(op.Steps) == 0 || op.Progress.Replicas == 0 {
		t.Fatalf("%+v", op)
	}
	if m.nodes[2].data.marks().draining() {
		t.Fatal("a dry run drained")
	}
	m.ask(2, 202, "PUT", "/v1/nodes/n2/cordon", "")
	op := m.ask(0, 202, "POST", "/v1/nodes/n2/drain", "")
	m.seen(2, true, true)
	if again := m.ask(1, 202, "POST", "/v1/nodes/n2/drain", ""); again.ID != op.ID {
		t.Fatalf("a repeated drain is %s, not %s", again.ID, op.ID)
	}
	code, body := m.do(1, "DELETE", "/v1/nodes/n2/cordon", "")
	if code != 409 || m.problemOf(body).Code != codeNodeDraining {
		t.Fatalf("%d %s", code, body)
	}
	m.restart(2)
	m.seen(2, true, true)
	if got := m.look(2, op.ID); got.ID != op.ID || got.Started != op.Started {
		t.Fatalf("after the restart: %+v", got)
	}
	m.poll("the others reach the node that came back", 10*time.Second, func() bool {
		code, _ := m.do(0, "GET", "/v1/operations/"+op.ID, "")
		return code == 200
	})
	cancel := m.ask(0, 202, "DELETE", "/v1/nodes/n2/drain", "")
	if cancel.State != ops.Done || !strings.Contains(cancel.Reason, "stays cordoned") {
		t.Fatalf("%+v", cancel)
	}
	m.seen(2, true, false)
	if got := m.look(1, op.ID); got.State != ops.Cancelled && got.State != ops.Done {
		t.Fatalf("%+v", got)
	}
}

func TestATransferIsDoneByTheOwnerWhoeverIsAsked(t *testing.T) {
	t.Parallel()
	m := startStill(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k", "v")
	owner := m.owner("s", 0)
	to, asked := (owner+1)%3, (owner+2)%3
	body := fmt.Sprintf(`{"to":%q}`, m.nodes[to].cfg.Name)
	m.poll("the copy there is fit to own", 10*time.Second, func() bool {
		code, answer := m.do(asked, "POST", "/v1/streams/s/partitions/0/transfer?dry_run", body)
		return code == 200 && m.operation(answer).State == ops.Planned && m.operation(answer).From == m.nodes[owner].cfg.Name
	})
	if m.owner("s", 0) != owner {
		t.Fatal("a dry run handed it over")
	}
	op := m.ask(asked, 202, "POST", "/v1/streams/s/partitions/0/transfer", body)
	m.poll("the transfer is done", 10*time.Second, func() bool { return m.look(asked, op.ID).State == ops.Done })
	m.poll("the new owner is there", 10*time.Second, func() bool { return m.owner("s", 0) == to })
	if op := m.ask(asked, 202, "POST", "/v1/streams/s/partitions/0/transfer", body); op.State != ops.Done || !strings.Contains(op.Reason, "already") {
		t.Errorf("%+v", op)
	}
	m.ask(0, 202, "PUT", "/v1/nodes/"+m.nodes[owner].cfg.Name+"/cordon", "")
	m.seen(owner, true, false)
	for body, want := range map[string]string{fmt.Sprintf(`{"to":%q}`, m.nodes[owner].cfg.Name): codeNotPossible, `{"to":"n9"}`: codeNodeNotFound} {
		code, answer := m.do(asked, "POST", "/v1/streams/s/partitions/0/transfer", body, "Content-Type", "application/json")
		if m.problemOf(answer).Code != want {
			t.Errorf("%d %s", code, answer)
		}
	}
	if code, answer := m.do(0, "POST", "/v1/streams/s/partitions/7/transfer", `{"to":"n0"}`); code != 404 || m.problemOf(answer).Code != codePartitionNotFound {
		t.Errorf("%d %s", code, answer)
	}
	if code, answer := m.do(0, "POST", "/v1/streams/none/partitions/0/transfer", `{"to":"n0"}`); code != 404 || m.problemOf(answer).Code != "stream-not-found" {
		t.Errorf("%d %s", code, answer)
	}
	var list ops.List
	if err := json.Unmarshal([]byte(m.must(asked, http.StatusOK, "GET", "/v1/operations", "")), &list); err != nil || len(list.Operations) < 3 || len(list.Silent) != 0 || list.NextCursor != "" {
		t.Errorf("%v: %+v", err, list)
	}
	// Page by page, from another node, it is the same list: each node gives its part.
	var paged []string
	for query := "?limit=1"; query != ""; {
		var page ops.List
		if err := json.Unmarshal([]byte(m.must(to, http.StatusOK, "GET", "/v1/operations"+query, "")), &page); err != nil || len(page.Operations) != 1 {
			t.Fatalf("%v: %+v", err, page)
		}
		paged, query = append(paged, page.Operations[0].ID), ""
		if page.NextCursor != "" {
			query = "?limit=1&cursor=" + page.NextCursor
		}
	}
	if !slices.EqualFunc(paged, list.Operations, func(id string, op ops.Operation) bool { return id == op.ID }) {
		t.Errorf("by pages %v, at once %+v", paged, list.Operations)
	}
}

func TestANodeThatIsGoneCannotBeToldAndTheDryRunSaysWhatHappens(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
	m.leave(2)
	m.poll("node 0 sees that node 2 has gone", 10*time.Second, func() bool { return !m.nodes[0].dir.Alive(m.nodes[2].data.id.NodeID) })
	code, body := m.do(0, "POST", "/v1/nodes/n2/drain", "")
	if code != 409 || m.problemOf(body).Code != codeNodeGone || !strings.Contains(body, "replaced on other nodes by themselves") {
		t.Fatalf("%d %s", code, body)
	}
	m.poll("the owners tell of its copies", 10*time.Second, func() bool {
		op := m.ask(0, 200, "POST", "/v1/nodes/n2/drain?dry_run", "")
		return op.State == ops.Planned && strings.Contains(strings.Join(op.Steps, "\n"), "s partition 0: it keeps 2 copies")
	})
}
