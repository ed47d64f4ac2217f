package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// inShard is a stream name that falls into a catalog shard.
func inShard(prefix string, shard int) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s%d", prefix, i); ring.CatalogShard(name, catalogShards) == shard {
			return name
		}
	}
}

// twoWithoutAShard stops all of five nodes and finds two of them, and the catalog shards of which neither has a copy. Of the first shard's
// stream "part", the two have some partitions, and not all.
func (m *testMesh) twoWithoutAShard() (shards, survivors, gone []int) {
	m.t.Helper()
	has := make([][]int, catalogShards)
	parts := make([]map[int]int, catalogShards) // by node
	for i := len(m.nodes) - 1; i >= 0; i-- {
		m.leave(i)
	}
	for i, tn := range m.nodes {
		r, err := Recover(context.Background(), RecoverRequest{DataDir: tn.cfg.DataDir})
		if err != nil {
			m.t.Fatal(err)
		}
		for s := range catalogShards {
			if hasCopy(&r, s) {
				has[s] = append(has[s], i)
			}
			if parts[s] == nil {
				parts[s] = map[int]int{}
			}
			for _, g := range r.Groups {
				if g.Stream == inShard("part", s) && g.memberOn(r.Node) {
					parts[s][i]++
				}
			}
		}
	}
	for s, with := range has {
		there := 0
		for i, n := range parts[s] {
			if !slices.Contains(with, i) {
				there += n
			}
		}
		if gone == nil && len(with) == 3 && there > 0 && there < 20 {
			gone, shards = with, []int{s}
		}
	}
	for s, with := range has {
		if gone != nil && s != shards[0] && slices.Equal(with, gone) {
			shards = append(shards, s)
		}
	}
	for i := range m.nodes {
		if !slices.Contains(gone, i) {
			survivors = append(survivors, i)
		}
	}
	if len(survivors) != 2 {
		m.t.Fatalf("no catalog shard lacks copies on two nodes that have some of its partitions: %v %v", has, parts)
	}
	return shards, survivors, gone
}

func TestCatalogShardThatNoSurvivorHasIsMadeAnewByOneOfThem(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 5)
	for s := range catalogShards {
		// All through one node, which counts what it placed a moment ago: so many partitions are spread over most nodes then.
		m.must(0, 201, "PUT", "/v1/streams/"+inShard("full", s), `{"partitions":1,"replicas":5,"retention_ms":86400000}`)
		m.must(0, 201, "PUT", "/v1/streams/"+inShard("part", s), `{"partitions":20,"replicas":1}`)
		for i := range 6 {
			m.must(i%5, 200, "POST", fmt.Sprintf("/v1/streams/%s/events?key=k%d", inShard("full", s), i), fmt.Sprint(i))
		}
	}
	m.poll("every catalog shard has three voters, and full streams five", 60*time.Second, func() bool {
		n := 0
		for _, tn := range m.nodes {
			for _, g := range tn.host.Groups() {
				st := g.Status()
				p, ok := g.StateMachine().(*partition.Partition)
				if st.Ready && (!ok && len(st.Members) == 3 || ok && p.WantReplicas() == 5 && len(st.Members) == 5) {
					n++
				}
			}
		}
		return n == 2*catalogShards // itself, and a full stream
	})
	shards, two, three := m.twoWithoutAShard()
	shard := shards[0]
	var lost []string
	for _, i := range three {
		lost = append(lost, m.nodes[i].cfg.Name)
	}
	ctx := context.Background()
	recover := func(i int, req RecoverRequest) (RecoverReport, error) {
		req.DataDir, req.Lost = m.nodes[i].cfg.DataDir, lost
		return Recover(ctx, req)
	}
	look := func(i int, req RecoverRequest) (RecoverReport, *RecoverShard) {
		t.Helper()
		r, err := recover(i, req)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(r) // as the others get it
		if err != nil {
			t.Fatal(err)
		}
		r = RecoverReport{}
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		k := slices.IndexFunc(r.Shards, func(s RecoverShard) bool { return s.Number == shard })
		if k < 0 {
			t.Fatalf("node %d does not say that it lacks shard %d: %+v", i, shard, r.Shards)
		}
		return r, &r.Shards[k]
	}
	slices.SortFunc(two, func(a, b int) int { return m.nodes[a].data.id.NodeID.Compare(m.nodes[b].data.id.NodeID) })
	maker, other := two[0], two[1]

	// Each alone may not: the other one might have a copy, or make one, too.
	reports := map[int]RecoverReport{}
	for _, i := range two {
		var s *RecoverShard
		if reports[i], s = look(i, RecoverRequest{}); s.Verdict != RecoverUnknown {
			t.Fatalf("without the other's report: %+v", s)
		}
		if _, err := recover(i, RecoverRequest{NewShards: shards, Confirm: "test"}); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Fatalf("without the other's report: %v", err)
		}
	}
	request := func(i int, confirm string, shards ...int) RecoverRequest {
		return RecoverRequest{Others: []RecoverReport{reports[two[0]+two[1]-i]}, NewShards: shards, Confirm: confirm}
	}
	if _, s := look(maker, request(maker, "")); s.Verdict != RecoverGone || len(s.Streams) != 2 || s.Streams[0].Partitions != 1 || len(s.Streams[0].Absent) > 0 || len(s.Streams[1].Absent) == 0 {
		t.Fatalf("not asked for: %+v", s)
	}
	if _, s := look(other, request(other, "", shards...)); s.Verdict != RecoverElsewhere {
		t.Fatalf("both make it: %+v", s)
	}
	for _, i := range two {
		r, s := look(i, request(i, "test", shards...))
		if want := map[bool]string{true: RecoverAnew, false: RecoverElsewhere}[i == maker]; s.Verdict != want || !r.Done {
			t.Fatalf("node %d: %+v", i, s)
		}
	}
	if _, err := recover(maker, request(maker, "test", shards...)); err == nil || !strings.Contains(err.Error(), "has a copy on this node") {
		t.Fatalf("once more: %v", err)
	}
	absent := m.afterShardsAreMadeAnew(shard, two)
	if !absent {
		t.Error("no partition without a copy was shown")
	}
	m.lostAreRefused(three)
}

// afterShardsAreMadeAnew starts the survivors and uses the streams of a shard that one of them made; true where partitions have no copy.
func (m *testMesh) afterShardsAreMadeAnew(shard int, two []int) (absent bool) {
	m.t.Helper()
	for _, i := range two {
		m.start(i)
	}
	at := two[1] // which did not make it
	full, part := "/v1/streams/"+inShard("full", shard), "/v1/streams/"+inShard("part", shard)
	m.poll("the shard's streams are there", 30*time.Second, func() bool { code, _ := m.do(at, "GET", full, ""); return code == 200 })
	var info flow.StreamInfo
	if err := json.Unmarshal([]byte(m.must(at, 200, "GET", full, "")), &info); err != nil || info.Config.RetentionMS != 86400000 || info.Config.Replicas != 5 {
		m.t.Errorf("%v: %+v", err, info.Config)
	}
	m.poll("the events of the full stream are there", 30*time.Second, func() bool {
		code, _ := m.do(at, "POST", full+"/events?key=k1", "7")
		return code == 200
	})
	if got := m.readAll(at, inShard("full", shard)); len(got) < 7 {
		m.t.Errorf("%d of 7 events", len(got))
	}
	m.must(at, 200, "PATCH", full, `{"retention_ms":90000000}`, "Content-Type", "application/merge-patch+json")
	if err := json.Unmarshal([]byte(m.must(at, 200, "GET", part, "")), &info); err != nil {
		m.t.Fatal(err)
	}
	for _, p := range info.Partitions {
		absent = absent || p.Owner == ""
	}
	held := func(prefix string) (n int) {
		for _, i := range two {
			for _, g := range m.nodes[i].host.Groups() {
				if p, ok := g.StateMachine().(*partition.Partition); ok && p.Spec().Name == inShard(prefix, shard) {
					n++
				}
			}
		}
		return n
	}
	before := held("full")
	if held("part") == 0 || before == 0 {
		m.t.Errorf("%d and %d partitions", held("part"), before)
	}
	m.must(at, 204, "DELETE", part+"?confirm="+inShard("part", shard), "")
	m.poll("the deleted stream's partitions go", 30*time.Second, func() bool { return held("part") == 0 })
	if held("full") < before { // the shard was asked for the fate of both at once; more copies may have come meanwhile
		m.t.Errorf("%d of %d partitions of the full stream", held("full"), before)
	}
	m.must(at, 201, "PUT", part, `{"partitions":1}`)
	m.must(at, 200, "POST", part+"/events?key=k", "1")
	var all struct{ Streams []flow.StreamInfo }
	if err := json.Unmarshal([]byte(m.must(at, 200, "GET", "/v1/streams", "")), &all); err != nil || len(all.Streams) < 2 {
		m.t.Errorf("%v: %d streams", err, len(all.Streams))
	}
	return absent
}

// lostAreRefused brings the lost nodes back: their copies of the shard are a majority of what it once was, and none is believed.
func (m *testMesh) lostAreRefused(three []int) {
	m.t.Helper()
	for _, i := range three {
		m.start(i)
	}
	for _, i := range three {
		m.waitGaveUp(i)
	}
	m.poll("every shard has one owner, and three copies", 60*time.Second, func() bool {
		owners, copies := map[ring.GroupID]int{}, map[ring.GroupID]int{}
		for _, tn := range m.nodes {
			for _, g := range tn.host.Groups() {
				if st := g.Status(); st.Kind == replica.KindCatalog && st.Ready {
					owners[st.Group]++
					copies[st.Group] = len(st.Members)
				}
			}
		}
		for i := range catalogShards {
			if g := ring.CatalogGroup(m.nodes[three[0]].mesh(), i); owners[g] != 1 || copies[g] != 3 {
				return false
			}
		}
		return true
	})
}

func TestShardIsMadeAnewOnlyWhereAllSurvivorsAreHeardAndHaveNone(t *testing.T) {
	node := func(i int) RecoverNode { return RecoverNode{ID: ring.NodeID{15: byte(i)}} }
	mesh := ring.MeshID{1}
	report := func(i int, survivors ...int) RecoverReport {
		r := RecoverReport{Node: node(i).ID, Mesh: mesh, Lost: []RecoverNode{node(9)}, Survivors: []RecoverNode{}}
		for _, s := range survivors {
			r.Survivors = append(r.Survivors, node(s))
		}
		return r
	}
	copyOn := func(r RecoverReport, voters ...int) RecoverReport {
		g := RecoverGroup{Kind: kindCatalog, Number: 3}
		for _, v := range voters {
			g.Voters = append(g.Voters, node(v))
		}
		r.Groups = append(r.Groups, g)
		return r
	}
	nobody, older := report(1), report(2, 1)
	nobody.Lost, older.Survivors = nil, nil
	for name, c := range map[string]struct {
		own    RecoverReport
		others []RecoverReport
		want   string
		reason string
	}{
		"the only survivor":           {report(1), nil, RecoverGone, "no survivor"},
		"nobody is lost":              {nobody, nil, RecoverUnknown, "nobody is said to be lost"},
		"a survivor gave no report":   {report(1, 2), nil, RecoverUnknown, "neither said to be lost nor heard"},
		"one of two gave no report":   {report(1, 2, 3), []RecoverReport{report(2, 1, 3)}, RecoverUnknown, node(3).ID.String()},
		"a report of an older build":  {report(1, 2), []RecoverReport{older}, RecoverUnknown, "older build"},
		"both heard, the first":       {report(1, 2), []RecoverReport{report(2, 1)}, RecoverGone, "no survivor"},
		"both heard, the second":      {report(2, 1), []RecoverReport{report(1, 2)}, RecoverElsewhere, node(1).ID.String()},
		"the other has a copy":        {report(1, 2), []RecoverReport{copyOn(report(2, 1), 2, 9)}, RecoverElsewhere, "has a copy"},
		"the other's was removed":     {report(1, 2), []RecoverReport{copyOn(report(2, 1), 8, 9)}, RecoverGone, "no survivor"},
		"a copy, and one not heard":   {report(1, 2, 3), []RecoverReport{copyOn(report(2, 1), 2)}, RecoverElsewhere, "has a copy"},
		"the one here was removed":    {copyOn(report(1), 8, 9), nil, RecoverGone, "no survivor"},
		"the other one is not listed": {report(2), []RecoverReport{report(1, 2)}, RecoverElsewhere, node(1).ID.String()},
	} {
		r := &recovery{report: c.own, req: RecoverRequest{Others: c.others}, entries: map[int][][]byte{}}
		if s := r.judgeShard(3); s.Verdict != c.want || !strings.Contains(s.Reason, c.reason) {
			t.Errorf("%s: %+v", name, s)
		}
		if hasCopy(&c.own, 3) {
			t.Errorf("%s: a removed replica counts", name)
		}
	}
}

// partitionGroup is a group of a report, of a stream with one partition, and with a voter on a node.
func partitionGroup(t *testing.T, id ring.StreamID, name string, retention int64, voter ring.NodeID) RecoverGroup {
	t.Helper()
	spec, err := (partition.Spec{Stream: id, Name: name, Range: ring.EvenRanges(1)[0],
		Limits: partition.Limits{DedupeWindowMS: 1, RetentionMS: retention, RetentionBytes: -1, MaxEventBytes: 1, Replicas: 1, MinCopies: 1}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return RecoverGroup{Kind: kindPartition, Stream: name, StreamID: id, Spec: spec, Replica: 1, Voters: []RecoverNode{{ID: voter}}}
}

func TestNewShardTakesNoRemovedReplicaForACopy(t *testing.T) {
	a, b, c := ring.NodeID{1}, ring.NodeID{2}, ring.NodeID{3}
	name := inShard("s", 3)
	of := func(voter ring.NodeID, retention int64, last uint64) RecoverGroup {
		g := partitionGroup(t, ring.StreamID{1}, name, retention, voter)
		g.LastIndex, g.Replica = last, ring.ReplicaID(last)
		return g
	}
	again := of(b, 7, 9) // removed, and its node has another one by now
	again.Removed = true
	for what, k := range map[string]struct {
		own, other RecoverGroup
		removed    []bool // of the remnants, the one that has most first
		retention  int64
		absent     []ring.PartitionID
	}{
		"both are members":         {of(a, 5, 1), of(b, 7, 2), []bool{false, false}, 7, nil},
		"the other's was removed":  {of(a, 5, 1), of(c, 7, 2), []bool{true, false}, 5, nil},
		"and its node has a newer": {of(a, 5, 1), again, []bool{true, false}, 5, nil},
		"the one here was removed": {of(c, 5, 3), of(b, 7, 2), []bool{true, false}, 7, nil},
		"both were, in this order": {of(c, 5, 3), of(c, 7, 2), []bool{true, true}, 7, []ring.PartitionID{0}},
		"both were, in that one":   {of(c, 5, 1), again, []bool{true, true}, 7, []ring.PartitionID{0}},
	} {
		r := &recovery{entries: map[int][][]byte{}, req: RecoverRequest{Others: []RecoverReport{{Node: b, Survivors: []RecoverNode{}, Groups: []RecoverGroup{k.other}}}},
			report: RecoverReport{Node: a, Lost: []RecoverNode{{ID: c}}, Survivors: []RecoverNode{{ID: b}}, Groups: []RecoverGroup{k.own}}}
		var removed []bool
		for _, rem := range r.remnants(3) {
			removed = append(removed, rem.Removed)
		}
		if !slices.Equal(removed, k.removed) {
			t.Errorf("%s: %v", what, removed)
		}
		s := r.judgeShard(3)
		if len(s.Streams) != 1 || s.Streams[0].Config.RetentionMS != k.retention || !slices.Equal(s.Streams[0].Absent, k.absent) || !slices.Equal(s.Streams[0].Removed, k.absent) {
			t.Errorf("%s: %+v", what, s)
		}
	}
}

func TestWhatAnEarlierReplicaLeftIsNotOpened(t *testing.T) {
	g := partitionGroup(t, ring.StreamID{1}, "s", 5, ring.NodeID{1})
	r := &recovery{dir: &dataDir{path: t.TempDir()}} // without a store that could be read
	got := r.describe(replica.Survivor{Foreign: true, Birth: replica.Birth{Kind: replica.KindPartition, Spec: g.Spec}})
	if got.Next == nil || *got.Next != 0 || got.Stream != "s" || !slices.Equal(got.Spec, g.Spec) {
		t.Fatalf("%+v", got)
	}
}

func TestOperatorSaysWhichOfTwoIncarnationsANewShardForgets(t *testing.T) {
	name := inShard("s", 3)
	deleted, alive := ring.StreamID{1}, ring.StreamID{2}
	self, other := ring.NodeID{1}, ring.NodeID{2}
	of := func(id ring.StreamID, on ring.NodeID) RecoverGroup { return partitionGroup(t, id, name, -1, on) }
	r := &recovery{entries: map[int][][]byte{}, req: RecoverRequest{NewShards: []int{3},
		Others: []RecoverReport{{Node: other, Survivors: []RecoverNode{}, Groups: []RecoverGroup{of(deleted, other)}}}}}
	fresh := RecoverReport{Node: self, Lost: []RecoverNode{{ID: ring.NodeID{9}}}, Survivors: []RecoverNode{{ID: other}}, Groups: []RecoverGroup{of(alive, self)}}
	r.report = fresh
	if err := r.lookForShards(); err != nil {
		t.Fatal(err)
	}
	if err := r.checkNewShards(); err == nil || !strings.Contains(err.Error(), deleted.String()) || !strings.Contains(err.Error(), alive.String()) {
		t.Fatalf("both are there: %v", err)
	}
	r.report, r.req.Forget = fresh, []string{deleted.String()}
	if err := r.lookForShards(); err != nil {
		t.Fatal(err)
	}
	if s := r.report.Shards[3]; s.Verdict != RecoverAnew || len(s.Streams) != 1 || s.Streams[0].ID != alive || len(r.entries[3]) != 1 {
		t.Fatalf("%+v", s)
	}
	r.report, r.req.Forget = fresh, []string{ring.StreamID{3}.String()}
	if err := r.lookForShards(); err == nil || !strings.Contains(err.Error(), "no survivor has a partition") {
		t.Fatalf("a stream that is not there: %v", err)
	}
	r.report, r.req = fresh, RecoverRequest{NewShards: []int{8}}
	if err := r.lookForShards(); err == nil || !strings.Contains(err.Error(), "0 to 7") {
		t.Fatalf("a shard that is not there: %v", err)
	}
}
