package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

func TestSurvivorOfThreeIsRecoveredAndTheOldDisksAreRefused(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":4}`)
	for i := range 40 {
		m.must(i%3, 200, "POST", fmt.Sprintf("/v1/streams/s/events?key=k%d", i%9), fmt.Sprint(i))
	}
	old := []ring.NodeID{m.nodes[1].data.id.NodeID, m.nodes[2].data.id.NodeID}
	ctx, dir := context.Background(), m.nodes[0].cfg.DataDir
	if _, err := Recover(ctx, RecoverRequest{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "stop the node first") {
		t.Fatalf("a running node: %v", err)
	}
	for _, i := range []int{1, 2, 0} {
		m.leave(i)
	}

	verdicts := func(req RecoverRequest) (counts map[string]int, r RecoverReport) {
		t.Helper()
		req.DataDir = dir
		r, err := Recover(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		counts = map[string]int{}
		for _, g := range r.Groups {
			counts[g.Verdict]++
		}
		return counts, r
	}
	all := catalogShards + 4
	if counts, r := verdicts(RecoverRequest{}); counts[RecoverKeep] != all || r.Done {
		t.Fatalf("nobody is lost: %v", counts)
	}
	if counts, _ := verdicts(RecoverRequest{Lost: []string{"n1"}}); counts[RecoverKeep] != all {
		t.Fatalf("one is lost: %v", counts)
	}
	lost := []string{"n1", old[1].String()}
	counts, r := verdicts(RecoverRequest{Lost: lost})
	if counts[RecoverHere] != all || r.Done || len(r.Lost) != 2 {
		t.Fatalf("two are lost: %v", counts)
	}
	events := uint64(0)
	for _, g := range r.Groups {
		if g.Kind == "partition" {
			events += *g.Next
		}
	}
	if events != 40 {
		t.Errorf("it shows %d events", events)
	}
	refusesToRecover(t, dir, m.nodes[0].data.id.NodeID, lost)
	if _, r = verdicts(RecoverRequest{Lost: lost, Confirm: "test"}); !r.Done {
		t.Fatal("it was not done")
	}
	if raw, err := os.ReadFile(r.Audit); err != nil || !strings.Contains(string(raw), `"done": true`) || !strings.Contains(string(raw), old[0].String()) {
		t.Fatalf("%v: the file does not tell of it: %s", err, raw)
	}

	m.start(0)
	m.poll("the survivor owns everything", 20*time.Second, func() bool { return m.owns(0) == all })
	if got := m.readAll(0, "s"); len(got) != 40 {
		t.Fatalf("%d of 40 events", len(got))
	}
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k1", "41")
	if s := m.summary(0); !slices.ContainsFunc(s.Reasons, func(r string) bool { return strings.Contains(r, "went on alone after their majority was lost") }) {
		t.Errorf("the summary does not say so: %q", s.Reasons)
	}
	// The old disks are a majority of what the groups once were: they must not become one again.
	m.start(1)
	m.start(2)
	for i := range old {
		if had := m.waitGaveUp(i + 1); had != old[i] {
			t.Errorf("node %d gave up %s", i+1, had)
		}
	}
	m.poll("the newcomers have copies of everything", 60*time.Second, func() bool {
		for _, g := range m.nodes[0].host.Groups() {
			if len(g.Status().Members) != 3 {
				return false
			}
		}
		return true
	})
	for i := range m.nodes {
		if got := m.readAll(i, "s"); len(got) != 41 {
			t.Errorf("%d of 41 events through node %d", len(got), i)
		}
	}
}

func TestRecoveriesAreFoundWhateverTheDataDirectoryIsCalled(t *testing.T) {
	d := dataDir{path: filepath.Join(t.TempDir(), "data[1]*")}
	path := filepath.Join(d.path, recoverDir, "1.json")
	if len(d.recovered()) > 0 {
		t.Error("found where none was")
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := d.recovered(); len(got) != 1 || !strings.Contains(got[0], path) {
		t.Errorf("found %q", got)
	}
}

// refusesToRecover makes requests that must change nothing.
func refusesToRecover(t *testing.T, dir string, self ring.NodeID, lost []string) {
	t.Helper()
	for name, req := range map[string]RecoverRequest{
		"another mesh":  {Lost: lost, Confirm: "production"},
		"nobody lost":   {Confirm: "test"},
		"unknown node":  {Lost: []string{"n9"}, Confirm: "test"},
		"the node here": {Lost: []string{self.String()}, Confirm: "test"},
	} {
		req.DataDir = dir
		if _, err := Recover(context.Background(), req); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, recoverDir)); !os.IsNotExist(err) {
		t.Fatal("something was done without a confirmation")
	}
}

func TestOfSeveralSurvivorsTheOneThatHasMostIsChosenOnAllSides(t *testing.T) {
	node := func(i int) ring.NodeID { return ring.NodeID{15: byte(i)} }
	lost := map[ring.NodeID]bool{node(1): true, node(2): true, node(3): true}
	group := func(self int, term, index uint64, learner bool) RecoverGroup {
		g := RecoverGroup{Group: ring.GroupID{1}, LastTerm: term, LastIndex: index, Learner: learner}
		g.survivor = replica.Survivor{Birth: replica.Birth{Self: ring.ReplicaID(self)}, Halves: [][]ring.ReplicaID{{1, 2, 3, 4, 5}}, Last: log.Mark{Index: index, Term: term}}
		for i := 1; i <= 5; i++ {
			g.survivor.Members = append(g.survivor.Members, replica.Member{ID: ring.ReplicaID(i), Node: node(i), Learner: learner && i == self})
		}
		return g
	}
	for _, c := range []struct {
		name     string
		four     RecoverGroup
		five     RecoverGroup
		fourWins bool
	}{
		{"a later term", group(4, 3, 10, false), group(5, 2, 90, false), true},
		{"a longer log", group(4, 3, 10, false), group(5, 3, 11, false), false},
		{"a voter before a learner", group(4, 3, 10, true), group(5, 3, 10, false), false},
		{"as far as each other", group(4, 3, 10, false), group(5, 3, 10, false), true},
	} {
		want := func(wins bool) string {
			if wins {
				return RecoverHere
			}
			return RecoverElsewhere
		}
		if v, _ := judgeSurvivor(&c.four, node(4), lost, []RecoverReport{{Node: node(5), Groups: []RecoverGroup{c.five}}}); v != want(c.fourWins) {
			t.Errorf("%s: node 4 says %s", c.name, v)
		}
		if v, _ := judgeSurvivor(&c.five, node(5), lost, []RecoverReport{{Node: node(4), Groups: []RecoverGroup{c.four}}}); v != want(!c.fourWins) {
			t.Errorf("%s: node 5 says %s", c.name, v)
		}
		if v, why := judgeSurvivor(&c.four, node(4), lost, nil); v != RecoverBlocked || !strings.Contains(why, node(5).String()) {
			t.Errorf("%s: without the other's report: %s, %s", c.name, v, why)
		}
	}
	alone := group(4, 3, 10, false)
	if v, _ := judgeSurvivor(&alone, node(4), lost, []RecoverReport{{Node: node(5)}}); v != RecoverHere {
		t.Errorf("the other has no replica any more: %s", v)
	}
	alone.survivor.Members = alone.survivor.Members[:3]
	if v, _ := judgeSurvivor(&alone, node(4), lost, nil); v != RecoverKeep {
		t.Errorf("a replica that was removed: %s", v)
	}
}
