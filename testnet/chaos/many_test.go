package chaos

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/dev"
)

const (
	// ownersWithin is how long it may take in all until every partition has an owner after a node was killed, stopped or started again, and
	// until every replica of the one started again runs.
	ownersWithin = 15 * time.Second
	// homeStays is longer than a group waits before it goes home.
	homeStays = 40 * time.Second
	// restPercent is how much of one core a node may use while a thousand partitions rest.
	restPercent = 10
)

// TestRestartWithManyPartitionsMakesNoElectionStorm kills, stops and starts nodes of a mesh with hundreds of partitions at rest: each
// time all of them have owners again within a bound, for about one election each. The long run has a thousand partitions, and bounds
// what they cost while nothing happens.
func TestRestartWithManyPartitionsMakesNoElectionStorm(t *testing.T) {
	seed(t)
	streams, partitions := 2, 100
	if long() {
		streams, partitions = 4, 250
	}
	m := startMesh(t, dev.Options{Nodes: 3})
	mp := &manyPartitions{t: t, m: m, groups: streams*partitions + catalogGroups}
	mp.create(streams, partitions)
	mp.allOwned(0, 1, 2)
	mp.atRest()
	if long() {
		mp.atHome()
		mp.restsCheaply(30 * time.Second)
	}

	owned := mp.sum("skein_replica_owned_groups", 2)
	mp.electing("killed", owned, func() {
		kill(t, m, 2)
		mp.allOwned(0, 1)
	})
	mp.electing("started again", owned, func() {
		restart(t, m, 2)
		mp.allRun(2)
		mp.allOwned(0, 1, 2)
	})
	waitWhole(t, m)
	mp.atRest()

	owned = mp.sum("skein_replica_owned_groups", 1)
	mp.electing("stopped with SIGTERM", owned, func() {
		if err := m.Shutdown(1); err != nil {
			t.Fatal(err)
		}
		mp.allOwned(0, 2)
	})
	mp.electing("started again", owned, func() {
		restart(t, m, 1)
		mp.allRun(1)
		mp.allOwned(0, 1, 2)
	})
	waitWhole(t, m)
	mp.atRest()

	kill(t, m, 0, 1, 2)
	mp.electing("all killed and started again", mp.groups, func() {
		restart(t, m, 0, 1, 2)
		mp.allOwned(0, 1, 2)
	})
	waitWhole(t, m)
	mp.atRest()
	noneEndedByItself(t, m)
}

// catalogGroups is how many groups a mesh has without streams.
const catalogGroups = 8

type manyPartitions struct {
	t      *testing.T
	m      *dev.Mesh
	groups int
}

func (mp *manyPartitions) create(streams, partitions int) {
	mp.t.Helper()
	ctx, cancel := context.WithTimeout(mp.t.Context(), healWithin)
	defer cancel()
	c, err := client.New(client.Config{Servers: mp.m.Addresses()})
	if err != nil {
		mp.t.Fatal(err)
	}
	defer c.Close()
	begin := time.Now()
	for i := range streams {
		if _, err := c.CreateStream(ctx, fmt.Sprintf("many-%d", i), map[string]any{"partitions": partitions, "replicas": 3}, true); err != nil {
			mp.t.Fatalf("create a stream: %v", err)
		}
	}
	mp.t.Logf("%d partitions created in %v", streams*partitions, time.Since(begin).Round(time.Millisecond))
}

// metric reads one metric of one node, summed over its labels; an error where it does not answer.
func (mp *manyPartitions) metric(name string, node int) (float64, error) {
	return metric(mp.m.Address(node), name)
}

func metric(addr, name string) (float64, error) {
	hc := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := hc.Get("http://" + addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var sum float64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && (rest[0] == ' ' || rest[0] == '{') {
			v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			if err != nil {
				return 0, err
			}
			sum += v
		}
	}
	return sum, lines.Err()
}

// sum adds a metric up over nodes that run.
func (mp *manyPartitions) sum(name string, nodes ...int) (sum int) {
	mp.t.Helper()
	for _, i := range nodes {
		until(mp.t, healWithin, func() error {
			v, err := mp.metric(name, i)
			if err == nil {
				sum += int(v)
			}
			return err
		})
	}
	return sum
}

// allOwned waits until the nodes own every group among them.
func (mp *manyPartitions) allOwned(nodes ...int) {
	mp.t.Helper()
	until(mp.t, patience(ownersWithin), func() error {
		if n := mp.sum("skein_replica_owned_groups", nodes...); n < mp.groups {
			return fmt.Errorf("%d of %d groups have an owner", n, mp.groups)
		}
		return nil
	})
}

// allRun waits until every replica of a node runs.
func (mp *manyPartitions) allRun(node int) {
	mp.t.Helper()
	until(mp.t, patience(ownersWithin), func() error {
		if n := mp.sum("skein_replica_groups", node); n < mp.groups {
			return fmt.Errorf("%d of %d replicas run", n, mp.groups)
		}
		return nil
	})
}

// atRest waits until all groups rest everywhere.
func (mp *manyPartitions) atRest() {
	mp.t.Helper()
	until(mp.t, 2*healWithin, func() error {
		if n := mp.sum("skein_replica_resting_groups", 0, 1, 2); n < 3*mp.groups {
			return fmt.Errorf("%d of %d replicas rest", n, 3*mp.groups)
		}
		return nil
	})
}

// atHome waits until no group goes to another owner any more: each goes home when that node has had all of it for half a minute.
func (mp *manyPartitions) atHome() {
	mp.t.Helper()
	const name = "skein_replica_elections_won_total"
	last, since := -1, time.Now()
	until(mp.t, 10*time.Minute, func() error {
		if won := mp.sum(name, 0, 1, 2); won != last {
			last, since = won, time.Now()
		}
		if d := time.Since(since); d < homeStays {
			return fmt.Errorf("the last group went to another owner %v ago", d.Round(time.Second))
		}
		return nil
	})
	mp.atRest()
}

// electing does something that makes so many groups elect, and holds the number of elections to that, and the time to ownersWithin.
func (mp *manyPartitions) electing(what string, groups int, do func()) {
	mp.t.Helper()
	const name = "skein_replica_elections_won_total"
	before := map[int]float64{}
	for i := range mp.m.Nodes() {
		if v, err := mp.metric(name, i); err == nil {
			before[i] = v
		}
	}
	begin := time.Now()
	do()
	took := time.Since(begin)
	won := 0.0
	for i := range mp.m.Nodes() {
		v, err := mp.metric(name, i)
		if err != nil {
			continue // does not run
		}
		if v < before[i] {
			before[i] = 0 // it was started again
		}
		won += v - before[i]
	}
	mp.t.Logf("node(s) %s: all %d groups have owners after %v; %d had to elect, %.0f elections were won", what, mp.groups,
		took.Round(time.Millisecond), groups, won)
	if most := patience(ownersWithin); took > most {
		mp.t.Errorf("%s: all groups have owners after %v, and should within %v", what, took.Round(time.Millisecond), most)
	}
	if most := patientCount(2*groups+mp.groups/10, mp.groups); won > float64(most) {
		mp.t.Errorf("%s: %.0f elections were won, for %d groups without an owner", what, won, groups)
	}
}

// patientCount allows more where other tests share the host: a node that gets no CPU for half a second loses what it owns.
func patientCount(quiet, more int) int {
	if long() {
		return quiet
	}
	return quiet + more
}

// restsCheaply holds what each node uses while nothing happens to restPercent.
func (mp *manyPartitions) restsCheaply(d time.Duration) {
	mp.t.Helper()
	begin := map[int]time.Duration{}
	for i := range mp.m.Nodes() {
		begin[i] = cpuTime(mp.t, mp.m.PID(i))
	}
	pause(mp.t.Context(), d)
	for i := range mp.m.Nodes() {
		used := cpuTime(mp.t, mp.m.PID(i)) - begin[i]
		percent := 100 * used.Seconds() / d.Seconds()
		mp.t.Logf("%s uses %.1f %% of one core with %d groups at rest", mp.m.Name(i), percent, mp.groups)
		if percent > restPercent {
			mp.t.Errorf("%s uses %.1f %% of one core at rest, more than %d %%", mp.m.Name(i), percent, restPercent)
		}
	}
}

// cpuTime is what a process has used, in user and system mode.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
