package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skeinmesh/skein/flow/backup"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// Recovery is for the day on which the majority of some groups is lost for good: their survivors cannot elect anybody, and nothing that
// runs may decide by itself that the others never come back. An operator stops the surviving node and says who is lost; the groups without
// a majority then go on from what this node has, as their only member, and grow again when it runs. It happens on a stopped node, because
// nothing must move while somebody decides, and because each survivor has only its own word to give.

// recoverDir holds, below the data directory, one file for each recovery.
const recoverDir = "recover"

// RecoverRequest says what Recover is to look at and do.
type RecoverRequest struct {
	DataDir string
	// Lost are the nodes that are lost for good, by id, or by the name that they last had.
	Lost []string
	// Others are the answers of Recover on other survivors, with the same Lost, for groups of which several replicas are left.
	Others []RecoverReport
	// NewShards are the catalog shards to make anew where no survivor has a copy: the operator's word that there are no other survivors.
	NewShards []int
	// Forget are stream incarnations, by id, that new shards are not to know: their partitions are removed.
	Forget []string
	// Confirm is the cluster_id: without it nothing is changed.
	Confirm string
}

// RecoverReport is what Recover found, and did.
type RecoverReport struct {
	Node    ring.NodeID   `json:"node_id"`
	Mesh    ring.MeshID   `json:"mesh_id"`
	Cluster string        `json:"cluster_id"`
	Lost    []RecoverNode `json:"lost"`
	// Survivors are the other nodes known here that are not said to be lost.
	Survivors []RecoverNode  `json:"survivors"`
	Groups    []RecoverGroup `json:"groups"`
	// Shards are the catalog shards without a copy here.
	Shards []RecoverShard `json:"missing_catalog_shards"`
	At     time.Time      `json:"at"`
	Done   bool           `json:"done"`            // the groups whose verdict is recover were recovered
	Audit  string         `json:"audit,omitempty"` // the file that tells of it
}

// RecoverNode is another node, with the name that it last had.
type RecoverNode struct {
	ID   ring.NodeID `json:"node_id"`
	Name string      `json:"name,omitempty"`
}

// Verdicts on a group.
const (
	RecoverKeep      = "keep"      // it has a majority, or no replica here that counts
	RecoverHere      = "recover"   // it goes on from the replica here
	RecoverElsewhere = "elsewhere" // another survivor has more
	RecoverBlocked   = "blocked"   // another survivor's answer is missing
)

// Kinds of groups in a report.
const (
	kindCatalog   = "catalog"
	kindPartition = "partition"
)

// RecoverGroup is one group of which this node has a replica.
type RecoverGroup struct {
	Group     ring.GroupID   `json:"group"`
	Kind      string         `json:"kind"`             // catalog or partition
	Replica   ring.ReplicaID `json:"replica_id"`       // the one here
	Stream    string         `json:"stream,omitempty"` // of a partition, as the next three
	StreamID  ring.StreamID  `json:"stream_id,omitzero"`
	Spec      []byte         `json:"spec,omitempty"` // what catalog shards that are made anew know of it
	Import    *RecoverImport `json:"import,omitempty"`
	Number    int            `json:"number"` // of the partition in its stream, or of the shard
	Voters    []RecoverNode  `json:"voters"`
	Learners  []RecoverNode  `json:"learners,omitempty"`
	Learner   bool           `json:"learner,omitempty"` // the replica here is one
	Removed   bool           `json:"removed,omitempty"` // the replica here is no member any more
	LastIndex uint64         `json:"last_index"`
	LastTerm  uint64         `json:"last_term"`
	Applied   uint64         `json:"applied_index"`
	Next      *uint64        `json:"next_offset,omitempty"` // of a partition, as of applied_index
	Verdict   string         `json:"verdict"`
	Reason    string         `json:"reason,omitempty"`

	survivor replica.Survivor
}

// RecoverImport tells from which export a partition was filled.
type RecoverImport struct {
	Export   backup.ExportID `json:"export_id"`
	Complete bool            `json:"complete"`
}

// Name is what people call the group.
func (g *RecoverGroup) Name() string {
	if g.Kind == kindCatalog {
		return shardName(g.Number)
	}
	return fmt.Sprintf("%s/%d", g.Stream, g.Number)
}

// memberOn reports whether the replica, on a node, is a member of the group: the group can go on from it.
func (g *RecoverGroup) memberOn(id ring.NodeID) bool {
	here := func(n RecoverNode) bool { return n.ID == id }
	return !g.Removed && (slices.ContainsFunc(g.Voters, here) || slices.ContainsFunc(g.Learners, here))
}

// recovery is one run of Recover.
type recovery struct {
	req     RecoverRequest
	dir     *dataDir
	starts  *peerStarts
	journal *log.FileJournal
	store   *log.PebbleStore
	report  RecoverReport
	lost    map[ring.NodeID]bool
	entries map[int][][]byte // what catalog shards that are made anew begin with
}

// Recover looks at a stopped node, and with a confirmation makes the replicas here the only members of the groups whose majority is lost.
// Without one nothing is changed but what opening the directory mends. Errors say what to do.
func Recover(ctx context.Context, req RecoverRequest) (report RecoverReport, err error) {
	r := &recovery{req: req, lost: map[ring.NodeID]bool{}, entries: map[int][][]byte{}}
	if err := r.open(); err != nil {
		return report, errors.Join(err, r.close())
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.look(); err != nil {
		return r.report, err
	}
	if req.Confirm == "" {
		return r.report, nil
	}
	return r.report, r.perform(ctx)
}

func (r *recovery) open() (err error) {
	if r.dir, err = openStopped(r.req.DataDir); err != nil {
		return err
	}
	if r.dir.id.GivenUp != nil {
		return fmt.Errorf("data_dir: the node of %s gave up its node id (%s): its data may lack what it acknowledged; start it, and it comes back empty",
			r.dir.path, r.dir.id.GivenUp.Reason)
	}
	if r.req.Confirm != "" && r.req.Confirm != r.dir.id.ClusterID {
		return fmt.Errorf("the confirmation says %q, and %s belongs to cluster_id %q: nothing was changed", r.req.Confirm, r.dir.path, r.dir.id.ClusterID)
	}
	if r.starts, err = openStarts(r.dir.path, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if r.journal, err = log.OpenJournal(log.JournalConfig{Dir: filepath.Join(r.dir.path, "journal")}); err != nil {
		return err
	}
	r.store, err = log.OpenStore(log.StoreConfig{Dir: filepath.Join(r.dir.path, "state")})
	return err
}

func (r *recovery) close() error {
	var errs []error
	if r.store != nil {
		errs = append(errs, r.store.Close())
	}
	if r.journal != nil {
		errs = append(errs, r.journal.Close())
	}
	if r.dir != nil {
		errs = append(errs, r.dir.close())
	}
	return errors.Join(errs...)
}

// look finds the groups and judges them.
func (r *recovery) look() error {
	id := r.dir.id
	r.report = RecoverReport{Node: id.NodeID, Mesh: id.MeshID, Cluster: id.ClusterID, Lost: []RecoverNode{}, Groups: []RecoverGroup{},
		Survivors: []RecoverNode{}, Shards: []RecoverShard{}, At: time.Now().UTC().Truncate(time.Second)}
	survivors, err := replica.Survivors(r.journal, r.store)
	if err != nil {
		return err
	}
	if err := r.resolve(survivors); err != nil {
		return err
	}
	for _, o := range r.req.Others {
		if o.Mesh != id.MeshID || o.Node == id.NodeID || r.lost[o.Node] {
			return fmt.Errorf("the report of node %s is of another mesh, of this node, or of a node that is lost", o.Node)
		}
		if !slices.EqualFunc(o.Lost, r.report.Lost, func(a, b RecoverNode) bool { return a.ID == b.ID }) {
			return fmt.Errorf("the report of node %s was made with other lost nodes: make it again with the same --lost", o.Node)
		}
	}
	for _, s := range survivors {
		g := r.describe(s)
		g.Verdict, g.Reason = judgeSurvivor(&g, id.NodeID, r.lost, r.req.Others)
		r.report.Groups = append(r.report.Groups, g)
	}
	slices.SortFunc(r.report.Groups, func(a, b RecoverGroup) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Number, b.Number), a.Group.Compare(b.Group))
	})
	return r.lookForShards()
}

// resolve finds the nodes that are said to be lost.
func (r *recovery) resolve(survivors []replica.Survivor) error {
	known := map[ring.NodeID]string{}
	for _, s := range survivors {
		for _, m := range s.Members {
			known[m.Node] = r.starts.name(m.Node)
		}
	}
	for _, id := range r.starts.others() {
		known[id] = r.starts.name(id)
	}
	for _, id := range r.dir.id.Lost { // by an earlier recovery
		known[id] = r.starts.name(id)
	}
	for _, o := range r.req.Others {
		for _, n := range slices.Concat([]RecoverNode{{ID: o.Node}}, o.Lost, o.Survivors) {
			known[n.ID] = cmp.Or(r.starts.name(n.ID), n.Name)
		}
	}
	delete(known, r.dir.id.NodeID)
	var all []string
	for id, name := range known {
		all = append(all, strings.TrimSpace(name+" "+id.String()))
	}
	slices.Sort(all)
	for _, word := range r.req.Lost {
		var found []ring.NodeID
		for id, name := range known {
			if id.String() == word || name == word {
				found = append(found, id)
			}
		}
		switch {
		case word == r.dir.id.NodeID.String():
			return fmt.Errorf("node %s is this one: run the command on the survivors only", word)
		case len(found) == 0:
			return fmt.Errorf("no node %q is known here; known are: %s", word, strings.Join(all, ", "))
		case len(found) > 1:
			return fmt.Errorf("several nodes were called %q: give the id; known are: %s", word, strings.Join(all, ", "))
		}
		if !r.lost[found[0]] {
			r.lost[found[0]] = true
			r.report.Lost = append(r.report.Lost, r.node(found[0]))
		}
	}
	for id := range known {
		if !r.lost[id] && !r.starts.isGivenUp(id) {
			r.report.Survivors = append(r.report.Survivors, r.node(id))
		}
	}
	for _, ns := range [][]RecoverNode{r.report.Lost, r.report.Survivors} {
		slices.SortFunc(ns, func(a, b RecoverNode) int { return a.ID.Compare(b.ID) })
	}
	return nil
}

func (r *recovery) node(id ring.NodeID) RecoverNode {
	return RecoverNode{ID: id, Name: r.starts.name(id)}
}

// describe puts a survivor into words.
func (r *recovery) describe(s replica.Survivor) RecoverGroup {
	g := RecoverGroup{Group: s.Birth.Group, Kind: kindCatalog, Number: -1, Learner: s.Learner(), Removed: !s.Member(), LastIndex: s.Last.Index, LastTerm: s.Last.Term,
		Applied: s.Applied.Index, Voters: []RecoverNode{}, Replica: s.Birth.Self, survivor: s}
	for _, m := range s.Members {
		if m.Learner {
			g.Learners = append(g.Learners, r.node(m.Node))
		} else {
			g.Voters = append(g.Voters, r.node(m.Node))
		}
	}
	if s.Birth.Kind == replica.KindCatalog {
		if i, ok := shardOf(r.dir.id.MeshID, g.Group); ok {
			g.Number = i
		}
		return g
	}
	g.Kind = kindPartition
	if spec, err := partition.ParseSpec(s.Birth.Spec); err == nil {
		g.Stream, g.StreamID, g.Number, g.Spec = spec.Name, spec.Stream, int(spec.Partition), s.Birth.Spec
	}
	if s.Foreign { // what is there is another replica's; this one has nothing yet
		g.Next = new(uint64)
		return g
	}
	p, err := partition.Open(partition.Config{Dir: filepath.Join(r.dir.path, "partitions"), Store: r.store}, g.Group, s.Birth.Spec,
		replica.StatePrefix(g.Group))
	if err != nil {
		g.Reason = err.Error()
		return g
	}
	next := p.Next()
	g.Next = &next
	spec := p.Spec()
	if now, err := spec.Encode(); err == nil {
		g.Spec = now
	}
	if export, complete := p.Imported(); export != [16]byte{} {
		g.Import = &RecoverImport{Export: export, Complete: complete}
	}
	_ = p.Close() // it was only read
	return g
}

// judgeSurvivor decides about one group: recover means that of all replicas that are left, the one here has most.
func judgeSurvivor(g *RecoverGroup, self ring.NodeID, lost map[ring.NodeID]bool, others []RecoverReport) (verdict, reason string) {
	s := &g.survivor
	switch {
	case !s.Member():
		return RecoverKeep, "the replica here was removed from the group"
	case s.Quorum(func(n ring.NodeID) bool { return lost[n] }):
		return RecoverKeep, ""
	}
	for _, m := range s.Members {
		if m.Node == self || lost[m.Node] {
			continue
		}
		i := slices.IndexFunc(others, func(o RecoverReport) bool { return o.Node == m.Node })
		if i < 0 {
			return RecoverBlocked, fmt.Sprintf("node %s has a replica, too, and is not said to be lost: stop it, and give its report", m.Node)
		}
		for j := range others[i].Groups {
			if o := &others[i].Groups[j]; o.Group == g.Group && o.compare(others[i].Node, g, self) < 0 {
				return RecoverElsewhere, fmt.Sprintf("node %s has more of it", m.Node)
			}
		}
	}
	if g.Learner {
		return RecoverHere, "a learner: it may lack the last events that were acknowledged without it"
	}
	return RecoverHere, ""
}

// compare is below 0 where the group should rather go on from g's replica, on node a, than from o's on node b. All sides come to the same.
func (g *RecoverGroup) compare(a ring.NodeID, o *RecoverGroup, b ring.NodeID) int {
	learner := func(x *RecoverGroup) int {
		if x.Learner {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(o.LastTerm, g.LastTerm), cmp.Compare(o.LastIndex, g.LastIndex), cmp.Compare(learner(g), learner(o)), a.Compare(b))
}

// perform does what the report says. The file that tells of it comes first, the fence against the lost nodes next: if they come back while
// this is under way, or ever, nobody lets them in.
func (r *recovery) perform(ctx context.Context) error {
	here, blocked := 0, []string{}
	for i := range r.report.Groups {
		switch g := &r.report.Groups[i]; g.Verdict {
		case RecoverHere:
			here++
		case RecoverBlocked:
			blocked = append(blocked, g.Name())
		}
	}
	switch {
	case len(r.report.Lost) == 0:
		return errors.New("nobody is said to be lost: name the nodes that never come back with --lost")
	case len(blocked) > 0:
		return fmt.Errorf("nothing was changed: other survivors may have more of %s", strings.Join(blocked, ", "))
	}
	if err := r.checkNewShards(); err != nil {
		return err
	}
	dir := filepath.Join(r.dir.path, recoverDir)
	if err := makeDir(dir); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	r.report.Audit = filepath.Join(dir, r.report.At.Format("20060102T150405Z")+".json")
	if err := r.audit(); err != nil {
		return err
	}
	for _, l := range r.report.Lost {
		r.starts.giveUp(l.ID)
	}
	if err := errors.Join(r.starts.write(), r.dir.declareLost(r.report.Lost)); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	for i := range r.report.Groups {
		if g := &r.report.Groups[i]; g.Verdict == RecoverHere {
			if err := replica.GoOnAlone(r.journal, r.store, g.Group); err != nil {
				return fmt.Errorf("%s: %w", g.Name(), err)
			}
		}
	}
	if err := r.makeShards(); err != nil {
		return err
	}
	if err := r.store.Flush(ctx); err != nil {
		return err
	}
	r.report.Done = true
	return r.audit()
}

// audit writes the report beside the data.
func (r *recovery) audit() error {
	raw, err := json.MarshalIndent(r.report, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(r.report.Audit, append(raw, '\n')); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	return nil
}

// openStopped locks the directory of a node that does not run, and reads its identity without counting a start.
func openStopped(path string) (*dataDir, error) { return openWith(path, lockFile) }

// openWith is openStopped with another way to lock.
func openWith(path string, lockIt func(path string) (*os.File, error)) (*dataDir, error) {
	if _, err := os.Stat(filepath.Join(path, identityFile)); errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("data_dir: %w", err)
	} else if err != nil {
		return nil, fmt.Errorf("data_dir: %s is not a node's data directory: %w", path, err)
	}
	lock, err := lockIt(filepath.Join(path, "lock"))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("data_dir: %s is in use: stop the node first: %w", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("data_dir: %s cannot be locked: %w", path, err)
	}
	d := &dataDir{path: path, lock: lock}
	raw, err := os.ReadFile(filepath.Join(path, identityFile))
	if err == nil {
		err = json.Unmarshal(raw, &d.id)
	}
	if err == nil {
		err = d.checkFormat()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data_dir: %w", err), d.close())
	}
	return d, nil
}

// declareLost notes that an operator declared other nodes lost.
func (d *dataDir) declareLost(lost []RecoverNode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	to := d.id
	for _, l := range lost {
		if !slices.Contains(to.Lost, l.ID) {
			to.Lost = append([]ring.NodeID{l.ID}, to.Lost...)
		}
	}
	to.Lost = to.Lost[:min(len(to.Lost), maxFormer)]
	return d.changeLocked(to)
}

// recovered describes the recoveries whose files are still there.
func (d *dataDir) recovered() (out []string) {
	files, err := os.ReadDir(filepath.Join(d.path, recoverDir))
	if err != nil {
		return nil
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".json" {
			continue
		}
		out = append(out, fmt.Sprintf("groups of this node went on alone after their majority was lost: what only the lost nodes had is gone; %s tells which: "+
			"remove that file when it was read", filepath.Join(d.path, recoverDir, f.Name())))
	}
	return out
}
