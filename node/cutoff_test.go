package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// owner returns the index of the node that owns a partition, once one does.
func (m *testMesh) owner(stream string, p ring.PartitionID) int {
	m.t.Helper()
	found := -1
	m.poll(fmt.Sprintf("partition %d of %s has a ready owner", p, stream), 10*time.Second, func() bool {
		for i, tn := range m.nodes {
			for _, g := range tn.host.Groups() {
				pt, ok := g.StateMachine().(*partition.Partition)
				if !ok || pt.Spec().Name != stream || pt.Spec().Partition != p {
					continue
				}
				if st := g.Status(); st.Role == replica.RoleOwner && st.Ready {
					found = i
					return true
				}
			}
		}
		return false
	})
	return found
}

type problem struct {
	Code      string
	Retryable bool
}

func (m *testMesh) problemOf(body string) problem {
	m.t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		m.t.Fatalf("%q is no problem document: %v", body, err)
	}
	return p
}

// inTime begins to time a request with a deadline; the returned function, called at its end, fails the test where that was more than 600 ms
// late. What a pause of the same length took meanwhile, and a request that waits for nothing takes, is the host's doing.
func (m *testMesh) inTime(node int, deadline time.Duration, what string) (answered func()) {
	begin := time.Now()
	paused := make(chan time.Duration, 1)
	time.AfterFunc(deadline, func() { paused <- time.Since(begin) })
	return func() {
		m.t.Helper()
		took, pause, asked := time.Since(begin), <-paused, time.Now()
		m.must(node, 200, "GET", "/version", "")
		if least := pause + time.Since(asked); took > least+600*time.Millisecond {
			m.t.Fatalf("%s with a deadline of %s took %s; on this host it takes %s", what, deadline, took, least)
		}
	}
}

func TestNodeThatIsCutOffRefusesServesWhatIsCommittedAndFollowsAfterHealing(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/pay", `{"partitions":1}`, "If-None-Match", "*")
	for i := range 5 {
		m.must(0, 200, "POST", "/v1/streams/pay/events?key=k", fmt.Sprint(i))
	}
	cut := m.owner("pay", 0)
	others := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == cut })
	if got := m.readAll(cut, "pay"); len(got) != 5 {
		t.Fatalf("before the cut: %d events", len(got))
	}
	for _, o := range others {
		m.net.Cut(m.nodes[cut].addr, m.nodes[o].addr)
	}
	m.poll("the others have an owner of their own", 10*time.Second, func() bool {
		code, _ := m.do(others[0], "POST", "/v1/streams/pay/events?key=k&timeout_ms=500", "after", "ce-id", "after", "ce-source", "t", "ce-specversion", "1.0", "ce-type", "x")
		return code == 200
	})

	// It refuses publishes within the deadline: its ownership has lapsed, so nothing was even sent.
	m.poll("the cut node refuses with no-quorum", 10*time.Second, func() bool {
		answered := m.inTime(cut, 400*time.Millisecond, "a publish")
		code, body := m.do(cut, "POST", "/v1/streams/pay/events?key=k&timeout_ms=400", "lost")
		answered()
		return code == 503 && m.problemOf(body).Code == "no-quorum"
	})
	// It serves what is committed, and does not claim to know the end.
	page := m.must(cut, 200, "GET", "/v1/streams/pay/events?from=earliest&limit=5", "", "Accept", "application/json")
	if n := strings.Count(page, `"offset":`); n != 5 {
		t.Fatalf("the cut node gave %d events, want the 5 committed before: %s", n, page)
	}
	for _, query := range []string{"from=earliest&until=end", "from=latest"} {
		answered := m.inTime(cut, 400*time.Millisecond, query)
		code, body := m.do(cut, "GET", "/v1/streams/pay/events?timeout_ms=400&"+query, "", "Accept", "application/x-ndjson")
		answered()
		if code != 503 || m.problemOf(body).Code != "no-quorum" {
			t.Fatalf("asked for the end by %s, the cut node said %d %s", query, code, body)
		}
	}
	// What it says of the mesh is what it knows, and it says that this is not all.
	for _, path := range []string{"/v1/mesh", "/v1/mesh/partitions", "/v1/mesh/ring", "/v1/streams"} {
		body := m.must(cut, 200, "GET", path+"?timeout_ms=500", "")
		var v struct {
			Streams, Partitions any
			Incomplete          string
		}
		if err := json.Unmarshal([]byte(body), &v); err != nil || !strings.Contains(v.Incomplete, "8 of 8 shards of the catalog do not answer") {
			t.Errorf("%s: %v %s", path, err, body)
		}
		if path == "/v1/mesh" && (v.Streams != 1. || v.Partitions != 1.) || path != "/v1/mesh" && path != "/v1/mesh/ring" && !strings.Contains(body, `"pay"`) {
			t.Errorf("%s lacks what is known: %s", path, body)
		}
	}

	m.net.Heal()
	m.poll("the healed node follows, with no operator", 15*time.Second, func() bool {
		code, body := m.do(cut, "GET", "/v1/streams/pay/events?from=earliest&until=end&timeout_ms=1000", "", "Accept", "application/x-ndjson")
		return code == 200 && strings.Contains(body, `"after"`) && !strings.Contains(body, `"lost"`)
	})
	m.must(cut, 200, "POST", "/v1/streams/pay/events?key=k", "again")
}

func TestDeletedStreamComesBackEmptyAndItsDataIsRemoved(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/tmp", `{"partitions":2}`, "If-None-Match", "*")
	m.must(1, 200, "POST", "/v1/streams/tmp/events?key=a", "old")
	m.must(2, 204, "DELETE", "/v1/streams/tmp?confirm=tmp", "")
	m.poll("replicas and files of the deleted stream are gone", 15*time.Second, func() bool {
		for _, tn := range m.nodes {
			for _, g := range tn.host.Groups() {
				if p, ok := g.StateMachine().(*partition.Partition); ok && p.Spec().Name == "tmp" {
					return false
				}
			}
			if dirs, err := partitionDirs(tn.cfg.DataDir); err != nil || len(dirs) > 0 {
				return false
			}
		}
		return true
	})
	m.poll("every node knows that it is gone", 10*time.Second, func() bool {
		for i := range 3 {
			if code, _ := m.do(i, "POST", "/v1/streams/tmp/events?key=a", "late"); code != 404 {
				return false
			}
		}
		return true
	})
	m.must(1, 201, "PUT", "/v1/streams/tmp", `{"partitions":2}`, "If-None-Match", "*")
	m.must(0, 200, "POST", "/v1/streams/tmp/events?key=a", "new")
	for i := range 3 {
		if got := m.readAll(i, "tmp"); len(got) != 1 || string(got[0].Value) != `"new"` || got[0].Offset != 0 {
			t.Fatalf("node %d reads %v of the new incarnation", i, got)
		}
	}
}

func TestTwoNodesKeepTwoCopies(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	m.must(0, 201, "PUT", "/v1/streams/two", `{"partitions":1}`, "If-None-Match", "*")
	m.poll("an acknowledgement names two copies", 10*time.Second, func() bool {
		return strings.Contains(m.must(1, 200, "POST", "/v1/streams/two/events?key=a", "x"), `"copies":2`)
	})
}

func TestWholeMeshRestartsWithItsStreams(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/kept", `{"partitions":3}`, "If-None-Match", "*")
	for i := range 30 {
		m.must(i%3, 200, "POST", fmt.Sprintf("/v1/streams/kept/events?key=k%d", i), fmt.Sprint(i))
	}
	for _, tn := range m.nodes {
		tn.cancel()
	}
	for _, tn := range m.nodes {
		if err := <-tn.ended; err != nil {
			t.Fatalf("%s: %v", tn.cfg.Name, err)
		}
		tn.cancel = nil
	}
	for i := range m.nodes {
		m.start(i)
	}
	m.waitWhole()
	for i := range 3 {
		if got := m.readAll(i, "kept"); len(got) != 30 {
			t.Fatalf("node %d reads %d events after the restart, want 30", i, len(got))
		}
	}
	m.must(2, 200, "POST", "/v1/streams/kept/events?key=k1", "more")
}
