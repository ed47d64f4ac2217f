package bounds

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
)

const (
	// handover is what the node here may take to hand over what it owns.
	handover = 2 * time.Second
	// stopping is what a node takes at most to stop after that: telling the others, and stopTime of package node.
	stopping = 23 * time.Second
)

func TestNodeOnAFullDiskEndsWithOneSigtermAndLosesNothing(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full")
	// What waits for the journal must be more than its queue holds.
	m := start(t, dev.Options{Nodes: 1, Env: []string{"SKEIN_FAULT=full_while=" + full}, StopTimeout: handover + stopping,
		Args: []string{"--handover-time", handover.String(), "--memory-budget", "268435456"}})
	if _, err := m.at(0).CreateStream(t.Context(), "orders", map[string]any{"partitions": 64}, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFlood(m, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx, 256, 0)
	}()
	m.eventually("the journal waits and its queue is full", func() bool {
		return strings.Contains(m.log(0), "the journal waits for space") && m.metric("skein_journal_queue_bytes") > 31<<20
	})
	begin := time.Now()
	if err := m.Shutdown(0); err != nil {
		t.Error(err)
	}
	t.Logf("ended after %v", time.Since(begin))
	cancel()
	<-done
	log := strings.TrimSpace(m.log(0))
	if last := log[strings.LastIndexByte(log, '\n')+1:]; !strings.Contains(last, "msg=stopped") || !strings.Contains(log, "closed on a full disk") {
		t.Errorf("its last word was %q, and no word of the disk", last)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(0); err != nil {
		t.Fatal(err)
	}
	m.wait()
	f.verify()
}
