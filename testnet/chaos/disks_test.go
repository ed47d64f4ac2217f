package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
)

// TestDisksThatAreWipedRolledBackOrDamaged takes what a node has on disk away, puts an older copy back, damages it, and starts a copy of it
// beside the node, while publishers and readers go on. After each step all partitions have three live copies again, with all that was
// acknowledged before, and the nodes go on in the processes that they were started in.
func TestDisksThatAreWipedRolledBackOrDamaged(t *testing.T) {
	s := seed(t)
	rounds := 1
	if long() {
		rounds = 6
	}
	m := startMesh(t, dev.Options{Nodes: 3, Args: []string{"--replace-after", replaceAfter.String()}})
	w := newWorld(t, m.Addresses(), 8)
	l := w.startLoad(s, 8, 100*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	d := &disks{world: w, m: m, counted: manyPartitions{t: t, m: m}, rng: rand.New(rand.NewPCG(s, 7<<32)), copies: dataDir(t)}
	d.settled(m, "three nodes", 0, 1, 2)
	for round := range rounds {
		d.progress(200)
		// A first node without data founds a mesh, so that another one is wiped. The one whose segment is to be damaged is left alone
		// until then, for its checkpoints are counted.
		wiped := 1 + d.rng.IntN(2)
		rest := slices.DeleteFunc(d.rng.Perm(3), func(node int) bool { return node == wiped })
		d.spot = d.findSpot(rest[1])
		for i, node := range []int{wiped, rest[0], rest[1], d.rng.IntN(3), d.rng.IntN(3)} {
			d.step(round, diskFaults[i], node)
		}
	}
	d.progress(100)
	w.judgeEachReplica(m, l)
}

// disks is a mesh whose disks suffer.
type disks struct {
	*world
	m       *dev.Mesh
	counted manyPartitions
	rng     *rand.Rand
	copies  string // where copies of data directories go
	spot    spot
	made    int // copies of data directories
}

// diskFault happens to the disk of a running node, which runs again at its end.
type diskFault struct {
	what string
	do   func(d *disks, node int)
}

var diskFaults = []diskFault{
	{"its disk is wiped", (*disks).wipedDisk},
	{"an older copy of its disk is put back", (*disks).rolledBackDisk},
	{"a byte of a segment flips", (*disks).damagedSegment},
	{"a byte of its journal flips", (*disks).damagedJournal},
	{"a copy of its directory is started beside it", (*disks).copiedDirectory},
}

// step lets a fault happen, and waits until nothing of it is left.
func (d *disks) step(round int, f diskFault, node int) {
	d.t.Helper()
	what := fmt.Sprintf("round %d, %s: %s", round+1, d.m.Name(node), f.what)
	d.progress(50)
	before, err := d.readToEnd("before "+what, (node+1)%3)
	if err != nil {
		d.t.Fatal(err)
	}
	f.do(d, node)
	begin := time.Now()
	waitWhole(d.t, d.m) // fails where a process ended
	until(d.t, healWithin, func() error { return d.lacking(node) })
	d.t.Logf("%s; it has its copies %v after it was up again", what, time.Since(begin).Round(100*time.Millisecond))
	d.settled(d.m, what, 0, 1, 2)
	d.progress(50)
	after, err := d.readToEnd("after "+what, node)
	if err != nil {
		d.t.Fatalf("%s: reading through it: %v", what, err)
	}
	for p, end := range before {
		if after[p] < end {
			d.t.Errorf("%s: partition %d reaches to offset %d of %d through it", what, p, after[p], end)
		}
	}
}

// lacking says which copies are not alive, or not there.
func (d *disks) lacking(node int) error {
	ctx, cancel := context.WithTimeout(d.t.Context(), 5*time.Second)
	defer cancel()
	c := d.only((node + 1) % 3)
	defer c.Close()
	parts, err := c.Partitions(ctx, "")
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Live != 3 || p.Lack != "" {
			return fmt.Errorf("partition %d of %s has %d live copies: %s", p.Partition, p.Stream, p.Live, p.Lack)
		}
	}
	groups := len(parts) + catalogGroups
	for name, want := range map[string]int{"skein_replica_groups": groups, "skein_replica_damaged_groups": 0, "skein_replica_closed_groups": 0,
		"skein_transport_peers_up": 2} {
		if n, err := d.counted.metric(name, node); err != nil || int(n) != want {
			return fmt.Errorf("%s of %s is %v, not %v: %v", name, d.m.Name(node), n, want, err)
		}
	}
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	id := identityIn(d.t, d.m.NodeDir(node)).NodeID // its former self has the same name
	for _, mb := range members {
		if mb.State == "alive" && (mb.Replicas != groups || mb.Node == d.m.Name(node) && mb.ID != id) {
			return fmt.Errorf("%s, %s, is alive and holds %d copies of %d", mb.Node, mb.ID, mb.Replicas, groups)
		}
	}
	return nil
}

// wipedDisk: whoever comes back without data is another node.
func (d *disks) wipedDisk(node int) {
	had := identityIn(d.t, d.m.NodeDir(node))
	d.stop(node)
	d.progress(20)
	d.wipe(node)
	restart(d.t, d.m, node)
	until(d.t, healWithin, func() error { return ready(d.m.Address(node)) })
	if id := identityIn(d.t, d.m.NodeDir(node)); id.NodeID == had.NodeID || len(id.Former) > 0 {
		d.t.Errorf("%s is %+v, and was %s", d.m.Name(node), id, had.NodeID)
	}
}

// rolledBackDisk: what was acknowledged since the copy is missing in it, so that it must not be used.
func (d *disks) rolledBackDisk(node int) {
	had := identityIn(d.t, d.m.NodeDir(node))
	d.stop(node)
	old := d.copyDir(node)
	restart(d.t, d.m, node)
	waitWhole(d.t, d.m)
	d.progress(200)
	d.stop(node)
	d.progress(20)
	d.wipe(node)
	if err := errors.Join(os.CopyFS(d.m.NodeDir(node), os.DirFS(old)), os.RemoveAll(old)); err != nil {
		d.t.Fatal(err)
	}
	said := d.startAgain(node)
	d.awaitGivenUp(node, had.NodeID, "rolled-back")
	d.awaitSaid(said, "this node gives up its node id", "an older copy of itself")
	d.awaitSaid(said, "starting again as an empty node of the mesh")
}

// damagedSegment: the replica votes all the same. Another node is down when the damaged one comes back, so that no partition has a majority
// without it.
func (d *disks) damagedSegment(node int) {
	had := identityIn(d.t, d.m.NodeDir(node))
	d.awaitDurable(node)
	d.stop(node)
	flipByte(d.t, d.spot.path, d.spot.at)
	other := (node + 1 + d.rng.IntN(2)) % 3
	kill(d.t, d.m, other)
	said := d.startAgain(node)
	d.awaitSaid(said, "replica is damaged: it votes", filepath.Base(d.spot.path))
	d.progress(200)
	d.awaitSaid(said, "replica is mended")
	restart(d.t, d.m, other)
	if id := identityIn(d.t, d.m.NodeDir(node)); id.NodeID != had.NodeID {
		d.t.Errorf("%s is %s now, and was %s", d.m.Name(node), id.NodeID, had.NodeID)
	}
}

// damagedJournal: votes are in there, so that the node must not go on as who it was.
func (d *disks) damagedJournal(node int) {
	had := identityIn(d.t, d.m.NodeDir(node))
	d.stop(node)
	files, err := filepath.Glob(filepath.Join(d.m.NodeDir(node), "journal", "*.journal"))
	if err != nil || len(files) == 0 {
		d.t.Fatalf("journal files: %v, %v", files, err)
	}
	flipByte(d.t, files[0], 200) // in the first records, long synced
	said := d.startAgain(node)
	d.awaitSaid(said, "what this node has on disk is damaged", "damage at byte")
	d.awaitGivenUp(node, had.NodeID, "damaged-journal")
}

// copiedDirectory: of two processes with one node id the newcomer ends, says what to do, and changes nothing.
func (d *disks) copiedDirectory(node int) {
	var ids []identityFile
	var pids []int
	for i := range d.m.Nodes() {
		ids, pids = append(ids, identityIn(d.t, d.m.NodeDir(i))), append(pids, d.m.PID(i))
	}
	d.signal(node, syscall.SIGSTOP) // files come and go
	dir := d.copyDir(node)
	d.signal(node, syscall.SIGCONT)
	until(d.t, healWithin, func() error { return d.lacking(node) })

	http := aside(d.t, d.m.Address(node), 5)
	s := stranger{secretFile: filepath.Join(d.m.DataDir(), "secret"), cluster: "dev", dataDir: dir, http: http}
	twin := newProcess(d.t, d.copies, "copy-"+strconv.Itoa(d.made),
		s.args(d.t, "--name", d.m.Name(node), "--join", aside(d.t, d.m.Address((node+1)%3), 2)+","+aside(d.t, d.m.Address((node+2)%3), 2))...)
	twin.start()
	code, err := twin.exitCode(healWithin)
	lines := strings.Split(twin.logged(), "\n")
	if last := lines[len(lines)-1]; err != nil || code == 0 || !strings.HasPrefix(last, "skein: ") ||
		!strings.Contains(last, "nothing here was changed: stop one of the two, and start a new node with an empty data directory") {
		d.t.Errorf("the copy ended with status %d, %v, and at last said: %s", code, err, last)
	}
	if id := identityIn(d.t, dir); id.NodeID != ids[node].NodeID || !slices.Equal(id.Former, ids[node].Former) {
		d.t.Errorf("the copy is %+v now, and was %+v", id, ids[node])
	}
	d.progress(100)
	for i := range d.m.Nodes() {
		if id, pid := identityIn(d.t, d.m.NodeDir(i)), d.m.PID(i); id.NodeID != ids[i].NodeID || id.Boot != ids[i].Boot || pid != pids[i] {
			d.t.Errorf("%s is %+v in process %d, and was %+v in %d", d.m.Name(i), id, pid, ids[i], pids[i])
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		d.t.Fatal(err)
	}
}

// stop ends a node in one of the ways in which nodes end.
func (d *disks) stop(node int) {
	d.t.Helper()
	if d.rng.IntN(2) == 0 {
		kill(d.t, d.m, node)
		return
	}
	if err := d.m.Shutdown(node); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disks) signal(node int, sig syscall.Signal) {
	d.t.Helper()
	if err := d.m.Signal(node, sig); err != nil {
		d.t.Fatal(err)
	}
}

// wipe removes all that a stopped node has on disk.
func (d *disks) wipe(node int) {
	d.t.Helper()
	entries, err := os.ReadDir(d.m.NodeDir(node))
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(d.m.NodeDir(node), e.Name())))
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// copyDir copies the data directory of a node that stands still.
func (d *disks) copyDir(node int) string {
	d.t.Helper()
	d.made++
	to := filepath.Join(d.copies, "data-"+strconv.Itoa(d.made))
	if err := os.CopyFS(to, os.DirFS(d.m.NodeDir(node))); err != nil {
		d.t.Fatal(err)
	}
	return to
}

// sayings is what a node's log says from a place on.
type sayings struct {
	path string
	from int
}

// startAgain starts a node, and returns the place in its log.
func (d *disks) startAgain(node int) sayings {
	d.t.Helper()
	path := d.m.LogPath(node)
	before, err := os.ReadFile(path)
	if err != nil {
		d.t.Fatal(err)
	}
	restart(d.t, d.m, node)
	return sayings{path, len(before)}
}

// awaitSaid waits for a line with all of the words.
func (d *disks) awaitSaid(s sayings, words ...string) {
	d.t.Helper()
	until(d.t, healWithin, func() error {
		all, err := os.ReadFile(s.path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(all[s.from:])) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return nil
			}
		}
		return fmt.Errorf("no line of %s says %q", filepath.Base(s.path), words)
	})
}

// awaitGivenUp waits until a node came back under a new id with what it had set aside, in the process that it was started in.
func (d *disks) awaitGivenUp(node int, had, reason string) {
	d.t.Helper()
	pid := d.m.PID(node)
	var id identityFile
	until(d.t, healWithin, func() error {
		if id = identityIn(d.t, d.m.NodeDir(node)); id.NodeID == had {
			return fmt.Errorf("%s goes on as %s", d.m.Name(node), had)
		}
		return ready(d.m.Address(node))
	})
	if now := d.m.PID(node); pid == 0 || now != pid {
		d.t.Errorf("%s runs in process %d, and was started in %d", d.m.Name(node), now, pid)
	}
	if len(id.Former) == 0 || id.Former[0].NodeID != had || id.Former[0].Reason != reason {
		d.t.Fatalf("%s gave up %+v, not %s as %s", d.m.Name(node), id.Former, had, reason)
	}
	for _, name := range []string{"node.json", "journal", "state", "partitions"} {
		if _, err := os.Stat(filepath.Join(d.m.NodeDir(node), "quarantine", id.Former[0].Dir, name)); err != nil {
			d.t.Errorf("what %s had is not set aside: %v", d.m.Name(node), err)
		}
	}
	if n, err := d.counted.metric("skein_node_quarantined_bytes", node); err != nil || n == 0 {
		d.t.Errorf("%s tells of %v bytes in quarantine, %v", d.m.Name(node), n, err)
	}
}

// identityFile is what a data directory says of its node.
type identityFile struct {
	NodeID string         `json:"node_id"`
	Boot   uint64         `json:"boot"`
	Former []formerNodeID `json:"former"`
}

type formerNodeID struct {
	NodeID string `json:"node_id"`
	Reason string `json:"reason"`
	Dir    string `json:"dir"`
}

func identityIn(t *testing.T, dir string) (id identityFile) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if err == nil {
		err = json.Unmarshal(raw, &id)
	}
	if err != nil || id.NodeID == "" {
		t.Fatalf("the identity in %s: %s, %v", dir, raw, err)
	}
	return id
}

// spot is the middle of a segment file, and how many checkpoints its node had made when it was looked for.
type spot struct {
	path        string
	at          int64
	checkpoints float64
}

const checkpoints = "skein_replica_checkpoints_total"

// findSpot looks for the largest segment file of a node.
func (d *disks) findSpot(node int) (s spot) {
	d.t.Helper()
	until(d.t, healWithin, func() (err error) {
		s.checkpoints, err = d.counted.metric(checkpoints, node)
		return err
	})
	files, err := filepath.Glob(filepath.Join(d.m.NodeDir(node), "partitions", "*", "*", "*.seg"))
	if err != nil {
		d.t.Fatal(err)
	}
	sizes := map[string]int64{}
	for _, path := range files {
		if info, err := os.Stat(path); err == nil { // files come and go
			sizes[path] = info.Size()
		}
	}
	if len(sizes) == 0 {
		d.t.Fatalf("%s has no segments", d.m.Name(node))
	}
	s.path = slices.MaxFunc(slices.Collect(maps.Keys(sizes)), func(a, b string) int { return int(sizes[a] - sizes[b]) })
	s.at = sizes[s.path] / 2
	return s
}

// awaitDurable waits until the spot was made durable: bytes that are damaged sooner are written again from the journal. A checkpoint may
// have been under way when the spot was found; the next one has it.
func (d *disks) awaitDurable(node int) {
	d.t.Helper()
	until(d.t, healWithin, func() error {
		n, err := d.counted.metric(checkpoints, node)
		if err == nil && n < d.spot.checkpoints+2 {
			return fmt.Errorf("%s made %v checkpoints, of %v + 2", d.m.Name(node), n, d.spot.checkpoints)
		}
		return err
	})
}

// flipByte changes one byte of a file of a stopped node.
func flipByte(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	was := make([]byte, 1)
	if _, err := f.ReadAt(was, at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{was[0] ^ 0x40}, at); err != nil {
		t.Fatal(err)
	}
}
