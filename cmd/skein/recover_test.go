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
)

// stoppedNode is the data directory of a node that founded a mesh and was stopped.
func stoppedNode(t *testing.T) string {
	t.Helper()
	cfg := config.Default()
	cfg.Name, cfg.ClusterID, cfg.DataDir, cfg.Found = "n", "test", filepath.Join(t.TempDir(), "data"), true
	cfg.HTTP.Addr, cfg.QUIC.Addr, cfg.Gossip.Addr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	n, err := node.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(20 * time.Second); ; {
		resp, err := client.Get("http://" + n.HTTPAddr() + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the node does not get ready: %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
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
		"not a directory": {[]string{"--data-dir", file}, "is not a node's data directory"},
	} {
		r := skein(t, nil, "", append([]string{"recover", "--data-dir", dir}, c.args...)...)
		if r.code != exitFailed || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
