package containers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestImageIsTheBinaryAlone: it runs as nobody, tells its health by itself, and its disk is its own.
func TestImageIsTheBinaryAlone(t *testing.T) {
	engine(t)
	for template, want := range map[string]string{
		"{{.Config.User}}": "65532:65532", "{{json .Config.Entrypoint}}": `["/skein"]`, "{{json .Config.Volumes}}": `{"/data":{}}`,
		"{{json .Config.Healthcheck.Test}}": `["CMD","/skein","health","--server","127.0.0.1:8400","--timeout","3s"]`,
	} {
		do(t, func(ctx context.Context) error {
			got, err := run(ctx, nil, "docker", "image", "inspect", "-f", template, image())
			if err == nil && got != want {
				err = fmt.Errorf("%s is %s, want %s", template, got, want)
			}
			return err
		})
	}
	do(t, func(ctx context.Context) error {
		out, err := run(ctx, nil, "docker", "run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "none", image(), "version")
		if err == nil && !strings.HasPrefix(out, "skein ") {
			err = fmt.Errorf("skein version prints %q", out)
		}
		return err
	})
}

// TestKilledHostIsDoneWithoutReplacedAndComesBack: docker kill of an owner. The others go on; when it has been dead for replace_after its
// copies are made elsewhere; then it comes back with its old disk, and takes part.
func TestKilledHostIsDoneWithoutReplacedAndComesBack(t *testing.T) {
	m := newMesh(t, "SKEIN_TESTNET_REPLACE_AFTER=4s")
	w := start(t, m)
	w.healthyToTheEngine(0)
	w.progress(50)
	victim, parts := w.someOwner()
	killed := time.Now()
	do(t, func(ctx context.Context) error { return m.Kill(ctx, victim) })
	w.disown(victim)
	t.Logf("%s, owner of %v, is dead: each of its partitions has another owner %d ms later", m.Name(victim), parts, time.Since(killed).Milliseconds())
	w.progress(50)
	w.waitCopies(m.Name(victim))
	t.Logf("its copies are made elsewhere %.1f s after the kill", time.Since(killed).Seconds())
	do(t, func(ctx context.Context) error { return m.Start(ctx, victim) })
	w.waitReady(victim)
	w.progress(50)
	w.waitCopies("")
	w.verdict(0, 1, 2, 3, 4)
}

// TestPausedHostIsFencedAndFollows: docker pause for longer than an election takes. The node that goes on thinks for a moment that it
// still owns what others own by now; nothing that it says then counts.
func TestPausedHostIsFencedAndFollows(t *testing.T) {
	m := newMesh(t)
	w := start(t, m)
	w.progress(50)
	victim, parts := w.someOwner()
	do(t, func(ctx context.Context) error { return m.Pause(ctx, victim) })
	paused := time.Now()
	w.disown(victim)
	t.Logf("%s, owner of %v, is paused: each of its partitions has another owner %d ms later", m.Name(victim), parts, time.Since(paused).Milliseconds())
	w.progress(100)
	do(t, func(ctx context.Context) error { return m.Unpause(ctx, victim) })
	w.waitReady(victim)
	w.publishesThrough(victim)
	w.progress(50)
	w.waitCopies("")
	w.verdict(0, 1, 2, 3, 4)
}

// TestHostOffTheNetworkIsDoneWithoutAndRejoinsUnaided: docker network disconnect, gossip and all. Long runs keep it off for two minutes, in
// which the others have long forgotten it as a member.
func TestHostOffTheNetworkIsDoneWithoutAndRejoinsUnaided(t *testing.T) {
	m := newMesh(t, "SKEIN_TESTNET_REPLACE_AFTER=10m")
	w := start(t, m)
	w.progress(50)
	victim, _ := w.someOwner()
	before := w.address(victim)
	do(t, func(ctx context.Context) error { return m.Disconnect(ctx, victim) })
	cut := time.Now()
	w.disown(victim)
	off := 8 * time.Second
	if long() {
		off = 2 * time.Minute
	}
	until(t, off+wholeIn, "the others hold it for dead", func(ctx context.Context) error {
		if state := w.state(ctx, victim); state != "dead" || time.Since(cut) < off {
			return fmt.Errorf("it is %s, %.0f s after the cut", state, time.Since(cut).Seconds())
		}
		return nil
	})
	w.progress(100)
	do(t, func(ctx context.Context) error { return m.Connect(ctx, victim) })
	healed := time.Now()
	if after := w.address(victim); after != before {
		t.Fatalf("the engine gave %s another address, %s after %s: what is tested here is a cable that was pulled", m.Name(victim), after, before)
	}
	until(t, wholeIn, "the others see it again", func(ctx context.Context) error {
		if state := w.state(ctx, victim); state != "alive" {
			return fmt.Errorf("it is %s", state)
		}
		return m.Ready(ctx, victim)
	})
	t.Logf("%s takes part again %d ms after healing", m.Name(victim), time.Since(healed).Milliseconds())
	w.publishesThrough(victim)
	w.progress(50)
	w.waitCopies("")
	w.verdict(0, 1, 2, 3, 4)
}

// TestStarvedHostCausesNoPlacementChurn: one node has 5 % of a CPU, for longer than a node may be dead before its copies are made
// elsewhere. It may be slow, lose what it owns, and be held for dead for a moment; but it is alive, and no copy is moved for it, neither
// while it starves nor when it is fed again.
func TestStarvedHostCausesNoPlacementChurn(t *testing.T) {
	m := newMesh(t, "SKEIN_TESTNET_REPLACE_AFTER=8s")
	w := start(t, m)
	w.progress(50)
	before := w.settledPlacement()
	victim, _ := w.someOwner()
	do(t, func(ctx context.Context) error { return m.Limit(ctx, victim, 0.05) })
	do(t, func(ctx context.Context) error {
		if got, err := m.Inspect(ctx, victim, "{{.HostConfig.NanoCpus}}"); err != nil || got != "50000000" {
			return fmt.Errorf("%s may use %s billionths of a CPU: %w", m.Name(victim), got, err)
		}
		return nil
	})
	starves := 20 * time.Second
	if long() {
		starves = 2 * time.Minute
	}
	state := "alive"
	for began := time.Now(); time.Since(began) < starves; {
		w.progress(20)
		do(t, func(ctx context.Context) error {
			if now := w.state(ctx, victim); now != state {
				t.Logf("%s is %s to the others %.1f s after it began to starve", m.Name(victim), now, time.Since(began).Seconds())
				state = now
			}
			return nil
		})
		w.keepsPlacement(before, w.but(victim)...)
	}
	do(t, func(ctx context.Context) error { return m.Limit(ctx, victim, 2) })
	w.waitReady(victim)
	w.waitCopies("")
	w.progress(50)
	w.keepsPlacement(before, w.nodes...)
	w.verdict(0, 1, 2, 3, 4)
}

// TestMeshComesBackAtOtherAddressesAfterPowerLoss: docker kill of all nodes at once. They start in another order, so that the engine gives
// each another's address; they find each other by name, and nothing that was acknowledged is missing.
func TestMeshComesBackAtOtherAddressesAfterPowerLoss(t *testing.T) {
	m := newMesh(t)
	w := start(t, m)
	w.progress(100)
	before := map[int]string{}
	for _, i := range w.nodes {
		before[i] = w.address(i)
	}
	errs := make(chan error, len(w.nodes))
	for _, i := range w.nodes {
		go func() { errs <- m.Kill(t.Context(), i) }()
	}
	for range w.nodes {
		do(t, func(context.Context) error { return <-errs })
	}
	// By the addresses that they had, the highest first: each lowest free one goes to another node than before.
	order := slices.SortedFunc(maps.Keys(before), func(a, b int) int { return strings.Compare(before[b], before[a]) })
	began := time.Now()
	moved := 0
	for _, i := range order {
		do(t, func(ctx context.Context) error { return m.Start(ctx, i) })
		if w.address(i) != before[i] {
			moved++
		}
	}
	w.waitReady(w.nodes...)
	t.Logf("%d of %d nodes have another address; all are ready %.1f s after power is back", moved, len(order), time.Since(began).Seconds())
	if moved == 0 {
		t.Error("every node has its old address: that tests less than it says")
	}
	w.progress(50)
	w.waitCopies("")
	w.verdict(0, 1, 2, 3, 4)
}

// someOwner is a node that owns partitions of the stream, the one with the most.
func (w *traffic) someOwner() (node int, owned []uint32) {
	w.t.Helper()
	by := map[string][]uint32{}
	for _, p := range w.waitCopies("") {
		by[p.Owner] = append(by[p.Owner], p.Partition)
	}
	node = -1
	for _, name := range slices.Sorted(maps.Keys(by)) {
		if i := w.m.Index(name); i >= 0 && len(by[name]) > len(owned) {
			node, owned = i, by[name]
		}
	}
	if node < 0 {
		w.t.Fatalf("nobody owns anything: %v", by)
	}
	return node, owned
}

// disown waits until every partition has an owner that is not the node, as the others see it.
func (w *traffic) disown(node int) {
	w.t.Helper()
	w.nodes = w.but(node)
	defer func() { w.nodes = append(w.nodes, node) }()
	until(w.t, wholeIn, "others own its partitions", func(ctx context.Context) error {
		parts, err := w.partitions(ctx)
		for _, p := range parts {
			if p.Owner == "" || p.Owner == w.m.Name(node) {
				return fmt.Errorf("partition %d is owned by %q", p.Partition, p.Owner)
			}
		}
		if len(parts) < partitions {
			return errors.Join(err, fmt.Errorf("%d partitions are known", len(parts)))
		}
		return err
	})
}

// settledPlacement is where copies lie once that has stayed for a while: what a stream is born with, when the mesh has just been founded,
// is evened out.
func (w *traffic) settledPlacement() map[string]string {
	w.t.Helper()
	const stays = 5 * time.Second
	var now map[string]string
	since := time.Now()
	until(w.t, wholeIn, "copies stay where they are", func(ctx context.Context) error {
		w.waitCopies("")
		then, err := w.placement(ctx, w.nodes...)
		if err != nil {
			return err
		}
		if !maps.Equal(now, then) {
			now, since = then, time.Now()
		}
		if d := time.Since(since); d < stays {
			return fmt.Errorf("copies lie at %v, since %s", now, d)
		}
		return nil
	})
	return now
}

// placement is which nodes hold a copy, by partition of the stream and of the catalog, as one of some nodes tells.
func (w *traffic) placement(ctx context.Context, nodes ...int) (map[string]string, error) {
	c := w.client(nodes...)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out := map[string]string{}
	for _, stream := range []string{w.stream, Catalog} {
		parts, err := c.Partitions(ctx, stream)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			if len(p.Replicas) == 0 {
				return nil, fmt.Errorf("nobody tells where copies of %s/%d lie", stream, p.Partition)
			}
			out[fmt.Sprintf("%s/%d", stream, p.Partition)] = strings.Join(slices.Sorted(slices.Values(append(slices.Clone(p.Replicas), p.Learners...))), " ")
		}
	}
	return out, nil
}

// keepsPlacement: copies lie where they lay, as some nodes tell.
func (w *traffic) keepsPlacement(before map[string]string, nodes ...int) {
	w.t.Helper()
	until(w.t, wholeIn, "a node answers", func(ctx context.Context) error {
		now, err := w.placement(ctx, nodes...)
		if err == nil && !maps.Equal(now, before) {
			w.t.Fatalf("copies lie at %v, and lay at %v before", now, before)
		}
		return err
	})
}

// publishesThrough publishes one event of each partition through one node alone.
func (w *traffic) publishesThrough(node int) {
	w.t.Helper()
	keys := map[uint32]string{}
	w.mu.Lock()
	for key, p := range w.partOfKey {
		keys[p] = key
	}
	w.mu.Unlock()
	c := w.client(node)
	defer c.Close()
	for _, p := range slices.Sorted(maps.Keys(keys)) {
		if err := w.send(c, []value{{"through " + w.m.Name(node), keys[p], 1}}); err != nil {
			w.t.Errorf("publish to partition %d through %s: %v", p, w.m.Name(node), err)
		}
	}
}

// but are the other nodes.
func (w *traffic) but(node int) []int {
	return slices.DeleteFunc(slices.Clone(w.nodes), func(i int) bool { return i == node })
}

// state is what the other nodes say of one.
func (w *traffic) state(ctx context.Context, node int) string {
	c := w.client(w.but(node)...)
	defer c.Close()
	members, err := c.Members(ctx)
	if err != nil {
		return err.Error()
	}
	for _, mb := range members {
		if mb.Node == w.m.Name(node) {
			return mb.State
		}
	}
	return "forgotten"
}

// address is the node's address on the mesh's network.
func (w *traffic) address(node int) (addr string) {
	w.t.Helper()
	do(w.t, func(ctx context.Context) (err error) {
		addr, err = w.m.Inspect(ctx, node, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
		return err
	})
	return addr
}

// healthyToTheEngine: the image's own check, run by the engine every few seconds, finds the node healthy.
func (w *traffic) healthyToTheEngine(node int) {
	w.t.Helper()
	until(w.t, wholeIn, "the engine calls the node healthy", func(ctx context.Context) error {
		health, err := w.m.Inspect(ctx, node, "{{.State.Health.Status}}")
		if err == nil && health != "healthy" {
			err = fmt.Errorf("it is %s", health)
		}
		return err
	})
}

// TestDrainKillAndCutAtOnce: while a node is drained another one is killed, and a third has its cable pulled. Some partitions are without a
// majority then; when both are back, the drain ends, and nothing that was acknowledged is missing.
func TestDrainKillAndCutAtOnce(t *testing.T) {
	m := newMesh(t)
	w := start(t, m)
	w.progress(50)
	const drained, killed, cut = 4, 3, 2
	back := []func(ctx context.Context) error{
		func(ctx context.Context) error { return m.Start(ctx, killed) }, func(ctx context.Context) error { return m.Connect(ctx, cut) },
	}
	if w.address(cut) < w.address(killed) {
		slices.Reverse(back) // whoever comes first gets the lowest address that is free: each its own
	}
	c := w.client(0, 1)
	defer c.Close()
	do(t, func(ctx context.Context) error {
		_, err := c.Drain(ctx, m.Name(drained), false)
		return err
	})
	do(t, func(ctx context.Context) error { return m.Kill(ctx, killed) })
	do(t, func(ctx context.Context) error { return m.Disconnect(ctx, cut) })
	until(t, wholeIn, "the others hold both for dead", func(ctx context.Context) error {
		members, err := c.Members(ctx)
		if err != nil {
			return err
		}
		for _, mb := range members {
			if (mb.Node == m.Name(killed) || mb.Node == m.Name(cut)) && mb.State != "dead" {
				return fmt.Errorf("%s is %s", mb.Node, mb.State)
			}
		}
		return nil
	})
	for _, f := range back {
		do(t, f)
	}
	healed := time.Now()
	w.waitReady(killed, cut)
	w.progress(50)
	w.waitCopies(m.Name(drained))
	// The command of an operator who comes later shows the same drain, and ends with it.
	do(t, func(ctx context.Context) error {
		out, err := m.Skein(ctx, 0, "drain", m.Name(drained))
		t.Logf("%s", out)
		return err
	})
	t.Logf("%s is empty %.1f s after the others are back", m.Name(drained), time.Since(healed).Seconds())
	do(t, func(ctx context.Context) error { return m.Stop(ctx, drained) })
	w.progress(50)
	w.verdict(0, 1, 2, 3)
}
