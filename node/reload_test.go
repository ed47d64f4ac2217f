package node

import (
	"strings"
	"testing"
)

func TestReloadChangesWhatARunningNodeMayTakeOver(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 1)
	m.must(0, 404, "POST", "/v1/streams/fresh/events", "x")
	cfg := m.nodes[0].cfg
	cfg.AutoCreateStreams = true
	cfg.MaxBodyBytes = 2048
	cfg.Name = "another" // needs a restart
	m.nodes[0].Reload(cfg)
	m.must(0, 200, "POST", "/v1/streams/fresh/events", "x")
	m.must(0, 413, "POST", "/v1/streams/fresh/events", strings.Repeat("x", 4096))
	if got := m.nodes[0].Node.cfg.Load().Name; got != "n0" {
		t.Fatalf("the name became %q without a restart", got)
	}
}
