package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/ops"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// fakeOps keeps what it is asked and answers with err where there is one.
type fakeOps struct {
	asked []ops.Request
	err   error
	page  ops.Page
}

func (f *fakeOps) Ask(_ context.Context, r ops.Request) (ops.Operation, error) {
	f.asked = append(f.asked, r)
	op := ops.Operation{Kind: r.Kind, State: ops.Running, Node: r.Node, Keeper: "n1", Started: ops.At(time.Unix(1_800_000_000, 0)), Reason: "so it is"}
	if r.DryRun {
		op.State = ops.Planned
		return op, f.err
	}
	op.ID = fmt.Sprintf("op.%d", len(f.asked))
	return op, f.err
}

func (f *fakeOps) Operation(_ context.Context, id string) (ops.Operation, error) {
	if f.err != nil {
		return ops.Operation{}, f.err
	}
	if id != "op.1" {
		return ops.Operation{}, wire.Errorf(wire.KindNotFound, "operation-not-found", "no operation %s", id)
	}
	return ops.Operation{ID: id, Kind: ops.Drain, State: ops.Done, Progress: &ops.Progress{SafeToPowerDown: true}}, nil
}

func (f *fakeOps) Operations(_ context.Context, page ops.Page) (ops.List, error) {
	f.page = page
	return ops.List{Observer: "n1", Operations: []ops.Operation{{ID: "op.1"}}, Silent: []string{"n3"}}, f.err
}

func TestOperationsAreAcceptedWithAPlaceToLook(t *testing.T) {
	for _, tc := range []struct {
		method, target, body string
		want                 ops.Request
	}{
		{"POST", "/v1/nodes/n2/drain", "", ops.Request{Kind: ops.Drain, Node: "n2"}},
		{"DELETE", "/v1/nodes/n2/drain", "", ops.Request{Kind: ops.CancelDrain, Node: "n2"}},
		{"PUT", "/v1/nodes/n2/cordon", "{}", ops.Request{Kind: ops.Cordon, Node: "n2"}},
		{"DELETE", "/v1/nodes/n2/cordon", "", ops.Request{Kind: ops.Uncordon, Node: "n2"}},
		{"POST", "/v1/streams/s/partitions/3/move", `{"from":"n1","to":"n2"}`, ops.Request{Kind: ops.Move, Stream: "s", Partition: 3, From: "n1", To: "n2"}},
		{"POST", "/v1/streams/s/partitions/3/transfer", `{"to":"n2"}`, ops.Request{Kind: ops.Transfer, Stream: "s", Partition: 3, To: "n2"}},
		{"POST", "/v1/streams/_mesh/partitions/0/transfer", `{"to":"n2"}`, ops.Request{Kind: ops.Transfer, Stream: "_mesh", To: "n2"}},
	} {
		w := newWorld(t)
		rec := w.do(tc.method, tc.target, tc.body)
		if rec.Code != 202 || rec.Header().Get("Location") != "/v1/operations/op.1" || !strings.Contains(rec.Body.String(), `"started":"2027-01-15T08:00:00Z"`) {
			t.Errorf("%s %s: %d %v %s", tc.method, tc.target, rec.Code, rec.Header(), rec.Body)
		}
		dry := w.expect(200, "", tc.method, tc.target+"?dry_run=true", tc.body)
		want := tc.want
		want.DryRun = true
		if len(w.ops.asked) != 2 || w.ops.asked[0] != tc.want || w.ops.asked[1] != want || dry["state"] != "planned" || dry["id"] != nil {
			t.Errorf("%s %s: asked %+v, dry run %v", tc.method, tc.target, w.ops.asked, dry)
		}
	}
}

func TestOperationsThatMakeNoSenseAreRefused(t *testing.T) {
	w := newWorld(t)
	w.expect(400, codeUnknownParam, "POST", "/v1/nodes/n2/drain?dryrun", "")
	w.expect(400, codeInvalid, "POST", "/v1/nodes/n2/drain?dry_run=maybe", "")
	w.expect(400, codeInvalid, "POST", "/v1/nodes/n2/drain", `{"force":true}`)
	w.expect(400, codeUnknownField, "POST", "/v1/streams/s/partitions/0/transfer", `{"too":"n2"}`)
	w.expect(400, codeUnknownField, "POST", "/v1/streams/s/partitions/0/transfer", `{"from":"n1","to":"n2"}`)
	w.expect(400, codeInvalid, "POST", "/v1/streams/s/partitions/0/transfer", `{"to":7}`)
	w.expect(400, codeInvalid, "POST", "/v1/streams/s/partitions/0/transfer", `{}`)
	w.expect(400, codeInvalid, "POST", "/v1/streams/s/partitions/0/transfer", ``)
	w.expect(400, codeInvalid, "POST", "/v1/streams/s/partitions/0/move", `{"to":"n2"}`)
	w.expect(400, codeInvalid, "POST", "/v1/streams/s/partitions/-1/transfer", `{"to":"n2"}`)
	w.expect(400, codeInvalidName, "POST", "/v1/streams/a%2fb/partitions/0/transfer", `{"to":"n2"}`)
	w.expect(415, codeMediaType, "POST", "/v1/streams/s/partitions/0/transfer", `to=n2`, "Content-Type: text/plain")
	w.expect(405, codeMethod, "GET", "/v1/nodes/n2/drain", "")
	if len(w.ops.asked) != 0 {
		t.Errorf("asked %+v", w.ops.asked)
	}
}

func TestRefusedOperationsKeepTheirCode(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status int
		code   string
	}{
		{wire.Errorf(wire.KindNotFound, "node-not-found", "no node n9; known are n1, n2"), 404, "node-not-found"},
		{wire.Errorf(wire.KindConflict, "last-node", "n1 is the only node left"), 409, "last-node"},
		{wire.Errorf(wire.KindConflict, "node-draining", "cancel the drain"), 409, "node-draining"},
		{wire.Errorf(wire.KindUnavailable, "", "n2 does not answer"), 503, "unavailable"},
		{wire.Errorf(wire.KindNoCredit, wire.CodeOverloaded, "too many"), 503, "overloaded"},
		{wire.Errorf(wire.KindOutcomeUnknown, "", "sent, and no answer"), 504, "outcome-unknown"},
		{context.DeadlineExceeded, 503, codeTimeout},
	} {
		w := newWorld(t)
		w.ops.err = tc.err
		w.expect(tc.status, tc.code, "POST", "/v1/nodes/n2/drain", "")
	}
}

func TestOperationsAreLookedUp(t *testing.T) {
	w := newWorld(t)
	op := w.expect(200, "", "GET", "/v1/operations/op.1", "")
	if p, _ := op["progress"].(map[string]any); op["state"] != "done" || p["safe_to_power_down"] != true {
		t.Errorf("%v", op)
	}
	w.expect(404, "operation-not-found", "GET", "/v1/operations/op.2", "")
	list := w.expect(200, "", "GET", "/v1/operations", "")
	if all, _ := list["operations"].([]any); len(all) != 1 || list["observer"] != "n1" || fmt.Sprint(list["silent"]) != "[n3]" {
		t.Errorf("%v", list)
	}
	if w.ops.page != (ops.Page{Limit: operationsPage}) {
		t.Errorf("asked for %+v", w.ops.page)
	}
	at := ops.Place{Started: 7, ID: ring.NodeID{1}.String() + ".2.3"}
	w.expect(200, "", "GET", "/v1/operations?limit=5&cursor="+at.String(), "")
	if w.ops.page != (ops.Page{Limit: 5, After: at}) {
		t.Errorf("asked for %+v", w.ops.page)
	}
	for _, bad := range []string{"limit=0", "limit=1001", "cursor=", "cursor=7", "cursor=x." + at.ID, "cursor=7.x.2.3"} {
		w.expect(400, codeInvalid, "GET", "/v1/operations?"+bad, "")
	}
}

// TestOperatorsNeedTheirScope: an authorizer is asked for admin where something is done, and for view where one only looks.
func TestOperatorsNeedTheirScope(t *testing.T) {
	w := newWorld(t)
	for _, rt := range w.s.router.all {
		if strings.HasPrefix(rt.Pattern, "/v1/nodes/") || strings.HasSuffix(rt.Pattern, "/transfer") || strings.HasSuffix(rt.Pattern, "/move") {
			if rt.Access != ScopeAdmin {
				t.Errorf("%s %s takes %s", rt.Method, rt.Pattern, rt.Access)
			}
		}
	}
}
