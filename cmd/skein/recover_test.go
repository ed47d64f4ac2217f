package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node"
	"github.com/skeinmesh/skein/node/config"
	"github.com/skeinmesh/skein/ring"
)

// soloNode is the configuration of a node that founds a mesh.
func soloNode(t *testing.T) config.Config {
	t.Helper()
	cfg := config.Default()
	cfg.Name, cfg.ClusterID, cfg.DataDir, cfg.Found = "n", "test", filepath.Join(t.TempDir(), "data"), true
	cfg.HTTP.Addr, cfg.QUIC.Addr, cfg.Gossip.Addr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	return cfg
}

// runReady runs a node until it is ready and use is done with it.
func runReady(t *testing.T, cfg config.Config, use func(url string)) {
	t.Helper()
	n, err := node.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	poll(t, "the node gets ready", func() bool {
		resp, err := client.Get("http://" + n.HTTPAddr() + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	use("http://" + n.HTTPAddr())
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// poll looks again and again at what a running node does in its own time.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for end := time.After(20 * time.Second); !ok(); {
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("in vain: %s", what)
		}
	}
}

// stoppedNode is the data directory of a node that founded a mesh and was stopped.
func stoppedNode(t *testing.T) string {
	t.Helper()
	cfg := soloNode(t)
	runReady(t, cfg, func(string) {})
	return cfg.DataDir
}

func TestRecoverShowsWhatThereIsAndChangesNothing(t *testing.T) {
	dir := stoppedNode(t)
	r := skein(t, nil, "", "recover", "--data-dir", dir)
	if r.code != exitOK || !strings.Contains(r.out, "catalog-shard-7") || !strings.Contains(r.out, "Nothing was changed. Name the nodes that never come back with --lost") {
		t.Fatalf("%+v", r)
	}
	r = skein(t, nil, "", "recover", "--data-dir", dir, "-o", "json")
	var report node.RecoverReport
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || len(report.Groups) != 8 || report.Done {
		t.Fatalf("%v: %+v", err, r)
	}
	file := filepath.Join(t.TempDir(), "n.json")
	if err := os.WriteFile(file, []byte(r.out), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nobody is lost":  {[]string{"--confirm", "test"}, "nobody is said to be lost"},
		"another mesh":    {[]string{"--confirm", "prod"}, `belongs to cluster_id "test"`},
		"unknown node":    {[]string{"--lost", "m"}, `no node "m" is known here`},
		"its own report":  {[]string{"--other", file}, "of this node"},
		"no such shard":   {[]string{"--new-catalog-shards", "2,8"}, "there is no catalog shard 8"},
		"a copy is here":  {[]string{"--new-catalog-shards", "2"}, "catalog shard 2 has a copy on this node"},
		"no such stream":  {[]string{"--forget-stream", "s"}, "no survivor has a partition of a stream with the id s"},
		"not a directory": {[]string{"--data-dir", file}, "is not a node's data directory"},
	} {
		r := skein(t, nil, "", append([]string{"recover", "--data-dir", dir}, c.args...)...)
		if r.code != exitFailed || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestRecoverShowsTheStreamsOfAShardThatIsMadeAnew(t *testing.T) {
	var out strings.Builder
	p := &process{out: &out}
	orders := node.RecoverStream{Name: "orders", Partitions: 4, Absent: []ring.PartitionID{1, 3}, Removed: []ring.PartitionID{1, 3}}
	orders.Config.RetentionMS, orders.Config.RetentionBytes, orders.Config.Replicas, orders.Config.MinCopies = 90_000, 1<<20, 5, 2
	audit := node.RecoverStream{Name: "audit", Partitions: 1}
	audit.Config.RetentionMS, audit.Config.RetentionBytes, audit.Config.Replicas, audit.Config.MinCopies = -1, -1, 3, 1
	report := node.RecoverReport{Shards: []node.RecoverShard{{Number: 3, Verdict: node.RecoverGone, Streams: []node.RecoverStream{orders, audit}}}}
	if err := p.printRecovery(report); err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"orders(2/4),audit(1/1)", "orders 1m30s 1048576 5 2 1,3 ", "audit none none 3 1 - "} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// A node that had not been given any copy yet when the others were lost.
func TestRecoverMakesCatalogShardsAnewWhenToldSo(t *testing.T) {
	cfg := soloNode(t)
	runReady(t, cfg, func(string) {})
	for _, sub := range []string{"journal", "state"} {
		if err := os.RemoveAll(filepath.Join(cfg.DataDir, sub)); err != nil {
			t.Fatal(err)
		}
	}
	peers := `{"format":1,"peers":{"11111111-1111-4111-8111-111111111111":{"name":"m","seen":"2026-01-01T00:00:00Z"}}}`
	if err := os.WriteFile(filepath.Join(cfg.DataDir, "peers.json"), []byte(peers), 0o600); err != nil {
		t.Fatal(err)
	}
	all := "0,1,2,3,4,5,6,7"
	recover := func(want string, args ...string) {
		t.Helper()
		r := skein(t, nil, "", append([]string{"recover", "--data-dir", cfg.DataDir}, args...)...)
		if !strings.Contains(r.out+r.err, want) {
			t.Fatalf("%q says no %q: %+v", args, want, r)
		}
	}
	recover("catalog-shard-5  unknown", "--confirm", "")
	recover("--new-catalog-shards "+all+" makes them anew here", "--lost", "m")
	recover("With --confirm they are made anew here", "--lost", "m", "--new-catalog-shards", all)
	recover("nobody is said to be lost", "--new-catalog-shards", all, "--confirm", "test")
	recover("They were made anew here", "--lost", "m", "--new-catalog-shards", all, "--confirm", "test")
	runReady(t, cfg, func(url string) { // which needs an owner for each shard
		r := skein(t, nil, "", "stream", "create", "s", "--server", url)
		if r.code != exitOK {
			t.Fatalf("%+v", r)
		}
	})
}
