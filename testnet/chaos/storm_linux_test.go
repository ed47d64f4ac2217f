package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/testnet/impair"
)

const (
	stormNodes = 5
	smallNode  = 4         // its file system is so small that it can be filled
	smallDisk  = 768 << 20 // bytes
	// episode is how long one mesh lasts: what all readers saw of it is held in memory.
	episode = 3 * time.Minute
)

// TestStormOfFaultsLosesNothing lets faults of all kinds happen to five nodes, one to three at once, while publishers and readers go on.
// After each round all is put right, and the mesh must be whole by itself: all groups with three live copies, nothing damaged. At the end
// of each episode everything is read back through every node. SKEIN_CHAOS_MINUTES says for how long (`make chaos MINUTES= SEED=`).
func TestStormOfFaultsLosesNothing(t *testing.T) {
	sd := seed(t)
	minutes, lasts := os.Getenv("SKEIN_CHAOS_MINUTES"), time.Duration(0)
	if minutes != "" {
		n, err := strconv.Atoi(minutes)
		if err != nil || n < 1 {
			t.Fatalf("SKEIN_CHAOS_MINUTES: %q is no number of minutes", minutes)
		}
		lasts = time.Duration(n) * time.Minute
	}
	deck := &deck{rng: rand.New(rand.NewPCG(sd, 8<<32)), drawn: map[string]int{}}
	var acked, read uint64
	begin := time.Now()
	for n := uint64(0); n == 0 || time.Since(begin) < lasts; n++ {
		ok := t.Run(fmt.Sprint("episode ", n+1), func(t *testing.T) {
			st := newStorm(t, sd+n<<32, deck)
			st.rage(min(episode, lasts-time.Since(begin)))
			a, _, _, r := st.history.Counts()
			acked, read = acked+uint64(a), read+uint64(r)
		})
		if !ok {
			break
		}
	}
	if minutes == "" {
		return
	}
	t.Logf("%d events acknowledged, %d reads, in %v", acked, read, time.Since(begin).Round(time.Second))
	for _, tr := range troubles {
		t.Logf("%3d times: %s", deck.drawn[tr.name], tr.name)
	}
}

// deck deals troubles so that each comes as often as every other one.
type deck struct {
	rng   *rand.Rand
	cards []trouble
	drawn map[string]int
}

// deal returns one to three troubles that may happen together: at most one that takes something off a disk, for a second copy of the
// same partition could be on the other disk.
func (d *deck) deal() (hand []trouble) {
	var kept []trouble
	for want := 1 + d.rng.IntN(3); len(hand) < want; {
		if len(d.cards) == 0 {
			d.cards = slices.Clone(troubles)
			d.rng.Shuffle(len(d.cards), func(i, j int) { d.cards[i], d.cards[j] = d.cards[j], d.cards[i] })
		}
		next := d.cards[0]
		d.cards = d.cards[1:]
		if slices.ContainsFunc(hand, func(tr trouble) bool { return tr.name == next.name || tr.takes && next.takes }) {
			kept = append(kept, next)
			continue
		}
		d.drawn[next.name]++
		hand = append(hand, next)
	}
	d.cards = append(kept, d.cards...)
	return hand
}

// storm is a mesh to which bad things happen. Only the test's own goroutine touches it.
type storm struct {
	*world
	s       *site
	links   *impair.Net
	rng     *rand.Rand
	deck    *deck
	dir     string // of what the faults need
	starved map[int]bool
	leaving map[int]bool // was sent SIGTERM
	drained map[int]bool
	small   bool // there is a small disk
	full    bool // and it is
	ticks   int
}

func newStorm(t *testing.T, seed uint64, d *deck) *storm {
	t.Helper()
	s := prepareSite(t, stormNodes)
	bin, err := slowable()
	if err != nil {
		t.Fatal(err)
	}
	st := &storm{s: s, deck: d, rng: rand.New(rand.NewPCG(seed, 9<<32)), dir: t.TempDir(),
		starved: map[int]bool{}, leaving: map[int]bool{}, drained: map[int]bool{}}
	st.links = s.impaired(seed)
	s.bin, s.args = bin, []string{"--replace-after", replaceAfter.String()}
	s.env = func(i int) []string {
		return []string{fmt.Sprintf("SKEIN_FAULT=fsync_delay=%dms,fsync_delay_while=%s", 50+st.rng.IntN(1200), st.slowMark(i))}
	}
	st.mountSmallDisk()
	s.start()
	st.world = newWorld(t, s.servers(), 8)
	return st
}

func (st *storm) slowMark(i int) string { return filepath.Join(st.dir, fmt.Sprint("slow-", i)) }
func (st *storm) ballast() string       { return filepath.Join(st.s.dirs[smallNode], "ballast") }

// mountSmallDisk has the small node's data lie on a file system of its own. Where there are no loop devices, it shares the others'.
func (st *storm) mountSmallDisk() {
	t, dir, image := st.s.t, st.s.dirs[smallNode], filepath.Join(st.dir, "disk")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(smallDisk)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := runAll("mkfs.ext4 -q -m 0 "+image, "mount -o loop "+image+" "+dir); err != nil {
		t.Logf("no small file system here, so that none is filled: %v", err)
		return
	}
	st.small = true
	t.Cleanup(func() {
		for _, p := range st.s.nodes {
			p.kill()
		}
		if err := run("umount", dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Remove(filepath.Join(dir, "lost+found")); err != nil {
		t.Fatal(err)
	}
}

// rage lets round follow round for that long, two of them at least, and judges.
func (st *storm) rage(lasts time.Duration) {
	t := st.s.t
	l := st.startLoad(st.rng.Uint64(), 6, 40*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	for begin, round := time.Now(), 1; round <= 2 || time.Since(begin) < lasts; round++ {
		st.progress(50)
		hand, order := st.deck.deal(), st.rng.Perm(stormNodes)
		nodes := slices.Clone(order)
		var names []string
		struck := time.Now()
		for _, tr := range hand {
			names = append(names, tr.name)
			tr.strike(st, nodes)
			nodes = append(nodes[1:], nodes[0]) // the next one's first victim is another node
			st.hold(st.rng.IntN(1500))
		}
		st.hold(st.rng.IntN(3000))
		raged := time.Since(struck)
		st.putRight()
		right := time.Now()
		until(t, 2*healWithin, st.well)
		t.Logf("round %d, nodes %v: %s; for %v, well %v later", round, order, strings.Join(names, " + "),
			raged.Round(100*time.Millisecond), time.Since(right).Round(100*time.Millisecond))
		l.readersProgress(50)
	}
	st.progress(50)
	l.stopPublishing()
	l.finishReaders(st.readBack())
	st.verdict()
}

// hold lets the troubles go on for so many milliseconds. Who is starved gets a tenth of the time.
func (st *storm) hold(ms int) {
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(end); st.ticks++ {
		for i := range st.starved {
			if st.ticks%10 == 0 {
				st.signal(i, syscall.SIGCONT)
			} else {
				st.signal(i, syscall.SIGSTOP)
			}
		}
		pause(st.t.Context(), 100*time.Millisecond)
	}
}

// putRight ends all troubles, whichever they are.
func (st *storm) putRight() {
	t := st.s.t
	t.Helper()
	st.links.Heal()
	clear(st.starved)
	for i := range stormNodes {
		st.signal(i, syscall.SIGCONT)
		_ = os.Remove(st.slowMark(i)) // most are not slow
	}
	if st.full {
		if err := os.Remove(st.ballast()); err != nil {
			t.Error(err)
		}
	}
	for i, p := range st.s.nodes {
		if st.leaving[i] {
			if _, err := p.exitCode(healWithin); err != nil {
				t.Error(err)
			}
		}
		if !p.runs() {
			if p.cmd != nil && !st.leaving[i] && !st.foundNoRoom(i) {
				t.Errorf("node %d ended by itself", i)
			}
			st.stop(i)
			p.start()
		}
	}
	clear(st.leaving)
	st.full = false
	for i := range st.drained {
		st.ops(i, func(ctx context.Context, name string) error {
			c := st.client(i)
			defer c.Close()
			_, err := c.CancelDrain(ctx, name, false)
			return err
		})
	}
	clear(st.drained)
}

// foundNoRoom reports whether a node could not start on the full disk, and said so.
func (st *storm) foundNoRoom(i int) bool {
	lines := strings.Split(st.s.nodes[i].logged(), "\n")
	return st.full && i == smallNode && strings.Contains(lines[len(lines)-1], "no space left on device")
}

// ops repeats what is asked of an operator until it is done: the mesh may just be getting well.
func (st *storm) ops(node int, ask func(ctx context.Context, name string) error) {
	st.t.Helper()
	until(st.t, healWithin, func() error {
		ctx, cancel := context.WithTimeout(st.t.Context(), 5*time.Second)
		defer cancel()
		return ask(ctx, nodeName(node))
	})
}

// well: all nodes run and see each other, and all groups have three live copies, none of them damaged.
func (st *storm) well() error {
	if err := st.s.whole(); err != nil {
		return err
	}
	var names []string
	for i := range stormNodes {
		names = append(names, nodeName(i))
	}
	if _, err := st.unsettledAmong(0, names, stormNodes); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(st.t.Context(), 5*time.Second)
	defer cancel()
	c := st.client(1)
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
	for i, addr := range st.servers {
		for _, name := range []string{"skein_replica_damaged_groups", "skein_replica_closed_groups"} {
			if n, err := metric(addr, name); err != nil || n != 0 {
				return fmt.Errorf("%s of node %d is %v: %v", name, i, n, err)
			}
		}
		// An operator makes room, once all is well.
		if err := os.RemoveAll(filepath.Join(st.s.dirs[i], "quarantine")); err != nil {
			return err
		}
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprint("node-", i) }

// signal reaches a node that runs.
func (st *storm) signal(i int, sig syscall.Signal) {
	if p := st.s.nodes[i]; p.runs() {
		_ = p.cmd.Process.Signal(sig) // it may be ending
	}
}

// stop ends a node with SIGKILL, if it runs.
func (st *storm) stop(nodes ...int) {
	var g errgroup.Group
	for _, i := range nodes {
		g.Go(func() error { st.s.nodes[i].kill(); return nil })
	}
	_ = g.Wait()
}

// start starts a node that does not run.
func (st *storm) start(i int) {
	if p := st.s.nodes[i]; !p.runs() {
		p.kill() // what is left of it
		delete(st.leaving, i)
		p.start()
	}
}
