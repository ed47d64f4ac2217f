package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport"
	"github.com/skeinmesh/skein/transport/memnet"
)

// copyDir copies a data directory, locks and all.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// putBack replaces a stopped node's data directory by a copy.
func (m *testMesh) putBack(i int, copied string) {
	m.t.Helper()
	m.wipe(i)
	copyDir(m.t, copied, m.nodes[i].cfg.DataDir)
}

// waitGaveUp waits until node i ended because it gave its id up, starts it again, and returns the id that it had.
func (m *testMesh) waitGaveUp(i int) ring.NodeID {
	m.t.Helper()
	tn := m.nodes[i]
	had := tn.data.id.NodeID
	select {
	case err := <-tn.ended:
		tn.cancel = nil
		if !errors.Is(err, ErrGaveUp) {
			m.t.Fatalf("%s ended: %v", tn.cfg.Name, err)
		}
	case <-time.After(20 * time.Second):
		m.t.Fatalf("%s goes on as it is", tn.cfg.Name)
	}
	m.start(i)
	return had
}

// quarantined lists what node i has set aside: "reason/entry".
func (m *testMesh) quarantined(i int) []string {
	m.t.Helper()
	var out []string
	dirs, err := filepath.Glob(filepath.Join(m.nodes[i].cfg.DataDir, quarantineDir, "*", "*"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, d := range dirs {
		_, reason, _ := strings.Cut(filepath.Base(filepath.Dir(d)), "-")
		out = append(out, reason+"/"+filepath.Base(d))
	}
	return out
}

// waitMember waits until every other node sees node i under its present id.
func (m *testMesh) waitMember(i int) {
	m.t.Helper()
	m.poll(fmt.Sprintf("all see node %d under its present id", i), 20*time.Second, func() bool {
		return !slices.ContainsFunc(m.nodes, func(tn *testNode) bool { return !tn.gossip.View().Alive(m.nodes[i].data.id.NodeID) })
	})
}

// owns counts the groups that node i owns.
func (m *testMesh) owns(i int) int {
	n := 0
	for _, g := range m.nodes[i].host.Groups() {
		if g.Status().Role == replica.RoleOwner {
			n++
		}
	}
	return n
}

func TestRolledBackDiskIsSetAsideAndTheNodeComesBackEmptyUnderANewID(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":2}`)
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k", "before")
	m.leave(2)
	old := filepath.Join(t.TempDir(), "copy")
	copyDir(t, m.nodes[2].cfg.DataDir, old)
	m.start(2)
	m.waitWhole()
	m.must(2, 200, "POST", "/v1/streams/s/events?key=k", "since")
	m.leave(2)
	// The others remember over a restart, too.
	m.leave(1)
	m.start(1)
	m.poll("node 1 is ready", 20*time.Second, func() bool { return len(m.failing(1)) == 0 })

	m.putBack(2, old)
	m.start(2)
	had := m.waitGaveUp(2)
	if m.nodes[2].data.id.NodeID == had {
		t.Fatal("it has its old id")
	}
	m.waitMember(2)
	for _, want := range []string{"rolled-back/journal", "rolled-back/state", "rolled-back/partitions", "rolled-back/node.json"} {
		if got := m.quarantined(2); !slices.Contains(got, want) {
			t.Errorf("set aside: %q, without %s", got, want)
		}
	}
	if s := m.summary(2); !slices.ContainsFunc(s.Reasons, func(r string) bool { return strings.Contains(r, "gave up its former node id "+had.String()) }) {
		t.Errorf("the summary does not say so: %q", s.Reasons)
	}
	m.poll("the others let nobody in under its old id", 10*time.Second, func() bool {
		return m.nodes[0].starts.isGivenUp(had) && m.nodes[1].starts.isGivenUp(had)
	})
	if got := m.readAll(2, "s"); len(got) != 2 {
		t.Errorf("%d events through the newcomer", len(got))
	}

	// What was set aside is refused for good, whatever it counts.
	id := m.nodes[2].data.id.NodeID
	m.leave(2)
	m.putBack(2, old)
	m.edit(2, func(d *dataDir) error {
		d.id.Boot += 100
		return save(d.path, d.id)
	})
	m.start(2)
	if again := m.waitGaveUp(2); again != had || m.nodes[2].data.id.NodeID == id {
		t.Fatalf("it gave up %s", again)
	}
	if got := m.quarantined(2); !slices.Contains(got, "refused/journal") {
		t.Errorf("set aside: %q", got)
	}
	m.waitMember(2)
}

// A copy that is put back within the start that it was taken from counts as its successor: its groups notice.
func TestDiskRolledBackWithinOneStartIsNoticedByItsGroups(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
	m.leave(2)
	old := filepath.Join(t.TempDir(), "copy")
	copyDir(t, m.nodes[2].cfg.DataDir, old)
	m.start(2)
	m.waitWhole()
	for i := range 20 {
		m.must(i%2, 200, "POST", "/v1/streams/s/events?key=k", "since")
	}
	m.poll("node 2 has all of it", 10*time.Second, func() bool { return len(m.readAll(2, "s")) == 20 })
	m.leave(2)
	m.putBack(2, old)
	m.edit(2, func(*dataDir) error { return nil }) // as if it had been taken during the last start
	m.start(2)
	m.waitGaveUp(2)
	if m.logged("gives up its node id", "lacks entries that it acknowledged") == 0 {
		t.Error("not by its groups")
	}
	m.waitMember(2)
	if got := m.readAll(2, "s"); len(got) != 20 {
		t.Errorf("%d events", len(got))
	}
}

// Of two nodes one has the only vote: put back from a copy, it must not lead before the other one was there to tell.
func TestOnlyVoterThatWasRolledBackAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
	m.leave(0)
	old := filepath.Join(t.TempDir(), "copy")
	copyDir(t, m.nodes[0].cfg.DataDir, old)
	m.start(0)
	m.waitWhole()
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k", "since")
	m.leave(0)
	m.leave(1)
	m.putBack(0, old)
	m.start(0)
	m.start(1)
	watching := m.nodes[0].Node
	for ended := false; !ended; {
		select {
		case err := <-m.nodes[0].ended:
			if !errors.Is(err, ErrGaveUp) {
				t.Fatal(err)
			}
			ended = true
		default:
			for _, g := range watching.host.Groups() {
				if g.Status().Role == replica.RoleOwner {
					t.Fatal("it owns a group")
				}
			}
			pause()
		}
	}
	m.nodes[0].cancel = nil
}

func TestOnlySurvivorTakesPartAfterAWhile(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 2)
	m.leave(1)
	m.leave(0)
	m.start(0)
	m.poll("the only voter owns its groups", 20*time.Second, func() bool { return m.owns(0) == catalogShards })
	if m.logged("no node that met this one before is there", "node=n0") != 1 {
		t.Error("no line says that nobody confirmed")
	}
}

// damageJournal flips a byte in the middle of what was synced.
func damageJournal(t *testing.T, dataDir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dataDir, "journal", "*.journal"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	const at = 200 // in the checkpoint, which was synced before the file got its name
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedJournalIsSetAsideAndTheNodeComesBackEmpty(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":2}`)
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k", "v")
	m.leave(1)
	had := m.nodes[1].data.id.NodeID
	damageJournal(t, m.nodes[1].cfg.DataDir)
	m.start(1)
	if m.nodes[1].data.id.NodeID == had {
		t.Fatal("it has its old id")
	}
	if got := m.quarantined(1); !slices.Contains(got, "damaged-journal/journal") || !slices.Contains(got, "damaged-journal/partitions") {
		t.Fatalf("set aside: %q", got)
	}
	if m.logged("level=ERROR", "what this node has on disk is damaged", "damage at byte", "nothing is deleted") != 1 {
		t.Error("no line says so")
	}
	m.waitMember(1)
	m.must(2, 200, "POST", "/v1/streams/s/events?key=k", "w")
	if got := m.readAll(1, "s"); len(got) != 2 {
		t.Errorf("%d events", len(got))
	}
}

func TestDamagedJournalOfTheOnlyNodeIsLeftToTheOperator(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 1)
	m.leave(0)
	damageJournal(t, m.nodes[0].cfg.DataDir)
	before, err := os.ReadFile(filepath.Join(m.nodes[0].cfg.DataDir, identityFile))
	if err != nil {
		t.Fatal(err)
	}
	_, err = newNode(m.nodes[0].cfg, slog.New(slog.DiscardHandler), m.net.Node(m.nodes[0].addr))
	if err == nil || !strings.Contains(err.Error(), "damage at byte") || !strings.Contains(err.Error(), "no other node is known") {
		t.Fatal(err)
	}
	after, err := os.ReadFile(filepath.Join(m.nodes[0].cfg.DataDir, identityFile))
	if err != nil || strings.Contains(string(after), "given_up") || len(m.quarantined(0)) > 0 || !strings.Contains(string(before), m.nodes[0].data.id.NodeID.String()) {
		t.Fatalf("%v; it was changed: %s", err, after)
	}
}

func TestCopyOfARunningNodesDirectoryStopsAndChangesNothing(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":2}`)
	cfg := m.nodes[1].cfg
	cfg.DataDir = filepath.Join(t.TempDir(), "copy")
	copyDir(t, m.nodes[1].cfg.DataDir, cfg.DataDir)
	cfg.Gossip.Addr = gossipAddr()
	logs := &syncBuffer{}
	n, err := newNode(cfg, slog.New(slog.NewTextHandler(logs, nil)), m.net.Node("127.0.9.77:1"))
	if err != nil {
		t.Fatal(err)
	}
	err = n.Run(context.Background())
	if !errors.Is(err, errTwin) || errors.Is(err, ErrGaveUp) ||
		!strings.Contains(err.Error(), "stop one of the two, and start a new node with an empty data directory") {
		t.Fatalf("the copy ended: %v", err)
	}
	if _, err := os.Stat(filepath.Join(cfg.DataDir, quarantineDir)); !os.IsNotExist(err) {
		t.Error("its data was set aside")
	}
	if len(n.host.Groups()) > 0 {
		t.Error("it took part in its groups")
	}
	if m.logged("runs already, in another process that answers") == 0 {
		t.Error("no line of the others says so")
	}
	for i := range m.nodes {
		m.must(i, 200, "POST", "/v1/streams/s/events?key=k", "v")
	}
	if len(m.nodes[1].ended) > 0 {
		t.Fatal("the first one stopped")
	}
}

func TestNodeKeepsItsIDUnderANewAddressAndANewName(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":2}`)
	id := m.nodes[2].data.id.NodeID
	m.leave(2)
	m.nodes[2].cfg.Gossip.Addr, m.nodes[2].addr = gossipAddr(), "127.0.9.33:1"
	m.start(2)
	m.waitWhole()
	m.leave(2)
	m.nodes[2].cfg.Name = "renamed"
	m.start(2)
	m.waitWhole()
	if m.nodes[2].data.id.NodeID != id {
		t.Fatal("it has another id")
	}
	for _, tn := range m.nodes[:2] {
		got, ok := tn.gossip.View().Member(id)
		if !ok || got.GossipAddr != m.nodes[2].cfg.Gossip.Addr || got.QUICAddr != "127.0.9.33:1" || tn.dir.Name(id) != "renamed" {
			t.Errorf("%s sees it as %q at %s", tn.cfg.Name, got.Name, got.GossipAddr)
		}
	}
	for _, line := range []string{"member has a new address: it keeps its node id and what it holds; nothing is to be done",
		"member has a new name: it keeps its node id and what it holds; nothing is to be done"} {
		if m.logged(line) == 0 {
			t.Errorf("nobody says %q", line)
		}
	}
	m.must(2, 200, "POST", "/v1/streams/s/events?key=k", "v")
}

// foundedApart are n nodes that each founded a mesh of its own; none runs.
func foundedApart(t *testing.T, n int) *testMesh {
	t.Helper()
	m := &testMesh{t: t, net: memnet.New(), logs: &syncBuffer{}}
	dir := t.TempDir()
	t.Cleanup(m.stop)
	for i := range n {
		cfg := testConfig(fmt.Sprintf("n%d", i), dir)
		cfg.Found = true
		m.nodes = append(m.nodes, &testNode{cfg: cfg, addr: fmt.Sprintf("127.0.9.%d:1", i+1)})
		m.start(i)
		m.poll("the mesh is founded", 10*time.Second, func() bool { return len(m.failing(i)) == 0 })
	}
	for i := range m.nodes {
		m.leave(i)
	}
	return m
}

func TestNodesFoundedApartNeverMergeAndSayWhatToDo(t *testing.T) {
	t.Parallel()
	m := foundedApart(t, 3)
	var meshes []ring.MeshID
	for i, tn := range m.nodes {
		meshes = append(meshes, tn.mesh())
		tn.cfg.Found = false
		for j, other := range m.nodes {
			if i != j {
				tn.cfg.Join = append(tn.cfg.Join, other.cfg.Gossip.Addr)
			}
		}
		m.start(i)
	}
	const line = "two meshes with the same cluster_id never merge; to let a node change its mesh, start it with an empty data directory"
	m.poll("each says so about each other", 20*time.Second, func() bool {
		for i, tn := range m.nodes {
			for j, other := range meshes {
				if i != j && m.logged(line, "node="+tn.cfg.Name, "their_mesh="+other.String()) == 0 {
					return false
				}
			}
		}
		return true
	})
	for i, tn := range m.nodes {
		if tn.mesh() != meshes[i] || tn.gossip.View().CountPresent() != 1 {
			t.Fatalf("node %d is in mesh %s with %d members", i, tn.mesh(), tn.gossip.View().CountPresent())
		}
	}
	// As the line says: emptied, two of them join the third.
	m.leave(1) // before either starts again: an empty node belongs to whoever of its cluster speaks to it first
	m.leave(2)
	for _, i := range []int{1, 2} {
		m.wipe(i)
		m.nodes[i].cfg.Join = []string{m.nodes[0].cfg.Gossip.Addr}
		m.start(i)
	}
	m.waitWhole()
	if m.nodes[2].mesh() != meshes[0] {
		t.Fatal("an emptied node did not join")
	}
}

func TestMeshesBridgedByReusedAddressesNeverMerge(t *testing.T) {
	t.Parallel()
	m := foundedApart(t, 2)
	dir := t.TempDir()
	for i := range 2 { // each gets a second member
		cfg := m.nodes[i].cfg
		cfg.Name, cfg.Found, cfg.Join = fmt.Sprintf("m%d", i), false, []string{m.nodes[i].cfg.Gossip.Addr}
		cfg.DataDir, cfg.Gossip.Addr = filepath.Join(dir, cfg.Name), gossipAddr()
		m.nodes = append(m.nodes, &testNode{cfg: cfg, addr: fmt.Sprintf("127.0.9.%d:1", i+11)})
	}
	apart := func() bool {
		for i, tn := range m.nodes {
			own, foreign := m.nodes[(i+2)%4], []*testNode{m.nodes[(i+1)%4], m.nodes[(i+3)%4]}
			if tn.mesh() != own.mesh() || tn.mesh().IsZero() || !tn.gossip.View().Alive(own.data.id.NodeID) || !tn.peers.Up(own.data.id.NodeID) {
				return false
			}
			for _, f := range foreign {
				if tn.mesh() == f.mesh() || tn.gossip.View().Alive(f.data.id.NodeID) || tn.peers.Up(f.data.id.NodeID) {
					t.Fatalf("%s and %s met", tn.cfg.Name, f.cfg.Name)
				}
			}
		}
		return true
	}
	for i := range m.nodes {
		m.start(i)
	}
	m.poll("there are two meshes of two", 20*time.Second, apart)
	m.leave(2)
	m.leave(3)
	a, b := m.nodes[2], m.nodes[3]
	a.addr, b.addr, a.cfg.Gossip.Addr, b.cfg.Gossip.Addr = b.addr, a.addr, b.cfg.Gossip.Addr, a.cfg.Gossip.Addr
	m.start(2)
	m.start(3)
	m.poll("each second member is back in its own mesh", 30*time.Second, apart)
}

func TestGivingUpThatIsCutShortIsFinishedAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	d, err := openDataDir(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	had := d.id.NodeID
	mesh := ring.NewMeshID()
	if err := errors.Join(d.setMesh(mesh, false), os.MkdirAll(filepath.Join(dir, "journal"), 0o750), os.MkdirAll(filepath.Join(dir, "state"), 0o750),
		d.giveUp(reasonRolledBack, "test"), d.giveUp(reasonDamagedJournal, "too late")); err != nil {
		t.Fatal(err)
	}
	// Cut short after the first directory was moved.
	aside := filepath.Join(dir, quarantineDir, d.id.GivenUp.Dir)
	if err := errors.Join(os.MkdirAll(aside, 0o750), os.Rename(filepath.Join(dir, "journal"), filepath.Join(aside, "journal")), d.close()); err != nil {
		t.Fatal(err)
	}
	if d, err = openDataDir(dir, "test"); err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if d.id.NodeID == had || d.id.MeshID != mesh || d.id.Boot != 1 || d.id.GivenUp != nil || len(d.id.Former) != 1 || d.former()[0] != had {
		t.Fatalf("%+v", d.id)
	}
	for _, name := range []string{"journal", "state", identityFile} {
		if _, err := os.Stat(filepath.Join(aside, name)); err != nil {
			t.Error(err)
		}
	}
	if kept, _ := d.kept(); len(kept) != 1 || kept[0].Reason != reasonRolledBack {
		t.Errorf("kept: %+v", kept)
	}
	if err := os.RemoveAll(aside); err != nil {
		t.Fatal(err)
	}
	if kept, bytes := d.kept(); len(kept) > 0 || bytes > 0 {
		t.Errorf("kept after its removal: %+v, %d bytes", kept, bytes)
	}
}

func TestGivenUpNodeIDsAreForgottenLast(t *testing.T) {
	s, err := openStarts(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	given, gone := ring.NewNodeID(), ring.NewNodeID()
	s.giveUp(given)
	s.saw(gone, "gone", transport.Start{Boot: 1})
	for range maxStarts {
		s.saw(ring.NewNodeID(), "x", transport.Start{Boot: 1})
	}
	known := s.transport()
	if _, kept := known[gone]; kept || len(known) != maxStarts || !s.isGivenUp(given) {
		t.Fatalf("%d are remembered; the oldest: %t, the one given up: %t", len(known), kept, s.isGivenUp(given))
	}
}

func TestStartsAreRememberedBoundedAndSurviveDamage(t *testing.T) {
	dir := t.TempDir()
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	s, err := openStarts(dir, logger)
	if err != nil {
		t.Fatal(err)
	}
	a, b := ring.NewNodeID(), ring.NewNodeID()
	s.saw(a, "a", transport.Start{Boot: 3, Nonce: 1<<63 + 1})
	s.saw(b, "b", transport.Start{Boot: 1})
	if !s.giveUp(b) || s.giveUp(b) {
		t.Fatal("given up twice")
	}
	s.saw(b, "b", transport.Start{Boot: 9}) // changes nothing
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.run(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err = openStarts(dir, logger); err != nil {
		t.Fatal(err)
	}
	known := s.transport()
	if known[a] != (transport.Start{Boot: 3, Nonce: 1<<63 + 1}) || known[b] != transport.GivenUp || len(known) != 2 || s.name(a) != "a" {
		t.Fatalf("%+v", known)
	}
	if others := s.others(); len(others) != 1 || others[0] != a {
		t.Fatalf("%v", others)
	}
	s.there(a, "10.0.0.1:8402", time.Now().Add(2*seenEvery)) // it is there still
	for range maxStarts {
		s.saw(ring.NewNodeID(), "x", transport.Start{Boot: 1})
	}
	if n := len(s.transport()); n != maxStarts || s.name(a) != "a" {
		t.Fatalf("%d nodes are remembered, of those that are there %q", n, s.name(a))
	}
	if err := os.WriteFile(filepath.Join(dir, startsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = openStarts(dir, logger); err != nil || len(s.transport()) != 0 {
		t.Fatalf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, startsFile+".damaged")); err != nil {
		t.Error("what could not be read is not kept:", err)
	}
}
