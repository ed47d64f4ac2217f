package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/ring"
)

// shownItems are the items of a Debug function, as JSON.
type shownItems []string

func (s *shownItems) emit(item any) error {
	raw, err := json.Marshal(item)
	*s = append(*s, string(raw))
	return err
}

// count is how many items have all the texts.
func (s shownItems) count(texts ...string) (n int) {
items:
	for _, item := range s {
		for _, text := range texts {
			if !strings.Contains(item, text) {
				continue items
			}
		}
		n++
	}
	return n
}

// debugLog runs DebugLog, which must end with err.
func debugLog(t *testing.T, req DebugLogRequest, want error) (items shownItems) {
	t.Helper()
	if err := DebugLog(t.Context(), req, items.emit); !errors.Is(err, want) {
		t.Fatalf("%+v: %v, want %v\n%s", req, err, want, strings.Join(items, "\n"))
	}
	return items
}

func TestDebugTellsDamageInWhatWasDurableFromWhatTheNextStartMends(t *testing.T) {
	m := startMesh(t, 1)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1}`)
	for i := range 20 {
		m.must(0, 200, "POST", "/v1/streams/s/events?key=k", fmt.Sprintf("event %d", i))
	}
	if err := m.nodes[0].host.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k", "event 20")
	dir := m.nodes[0].cfg.DataDir
	if err := DebugLog(t.Context(), DebugLogRequest{DataDir: dir}, new(shownItems).emit); err == nil || !strings.Contains(err.Error(), "stop the node first") {
		t.Fatalf("a running node: %v", err)
	}
	m.leave(0)
	all, one := DebugLogRequest{DataDir: dir}, DebugLogRequest{DataDir: dir, What: "s/0", Values: true}
	if items := debugLog(t, all, nil); items.count(`"stream":"s"`, `"next":21`, `"events":21`, `"sound":true`, `"findings":0`) != 1 || len(items) != 1 {
		t.Fatalf("%s", items)
	}
	if items := debugLog(t, one, nil); items.count(`"item":"event"`) != 21 || items.count(`"value":"event 7"`) != 1 {
		t.Fatalf("%s", items)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "partitions", "*", "*", "*.seg"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("%v, %v", segments, err)
	}
	whole, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	change := func(fn func(b []byte) []byte) {
		t.Helper()
		if err := os.WriteFile(segments[0], fn(append([]byte{}, whole...)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := fmt.Sprintf("%q", segments[0])

	change(func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	if items := debugLog(t, one, ErrDamage); items.count(`"kind":"damage"`, file) != 1 || items.count(`"item":"event"`) != 20 || items.count(`"events":20`, `"sound":false`) != 1 {
		t.Fatalf("a bit in the middle: %s", items)
	}
	if items := debugLog(t, all, ErrDamage); items.count(`"kind":"damage"`, file) != 1 || items.count(`"sound":false`) != 1 {
		t.Fatalf("a bit in the middle: %s", items)
	}
	change(func(b []byte) []byte { return b[:len(b)-1] })
	if items := debugLog(t, one, nil); items.count(`"kind":"torn"`, file) != 1 || items.count(`"item":"event"`) != 20 {
		t.Fatalf("an end that was never synced is cut: %s", items)
	}
	change(func(b []byte) []byte { return b[:len(b)/2] })
	if items := debugLog(t, one, ErrDamage); items.count(`"kind":"damage"`, file) != 1 || items.count(`"item":"event"`) < 9 {
		t.Fatalf("half a file: %s", items)
	}
	change(func(b []byte) []byte {
		for at := 100; at < len(b); at += 150 {
			b[at] ^= 1
		}
		return b
	})
	if items := debugLog(t, all, ErrDamage); items.count(`"kind":"damage"`) > maxListed+1 || items.count("and more") != 1 && len(items) > maxListed+1 {
		t.Fatalf("a list is bounded: %s", items)
	}
	if err := os.Remove(segments[0]); err != nil {
		t.Fatal(err)
	}
	if items := debugLog(t, one, ErrDamage); items.count(`"kind":"missing"`, file) != 1 {
		t.Fatalf("no file: %s", items)
	}
	change(func(b []byte) []byte { return b })
	debugKeepsTheNodeFromStarting(t, m.nodes[0].cfg.ClusterID, all)
	debugWithoutState(t, dir)
}

func debugKeepsTheNodeFromStarting(t *testing.T, cluster string, req DebugLogRequest) {
	t.Helper()
	looked := false
	err := DebugLog(t.Context(), req, func(any) error {
		looked = true
		if _, err := openDataDir(req.DataDir, cluster); err == nil || !strings.Contains(err.Error(), "is in use by another node") {
			t.Errorf("the node may start meanwhile: %v", err)
		}
		return DebugJournal(t.Context(), DebugJournalRequest{DataDir: req.DataDir, Limit: 1}, new(shownItems).emit) // two may look
	})
	if err != nil || !looked {
		t.Fatal(err)
	}
}

// debugWithoutState takes one part of a directory away after the other.
func debugWithoutState(t *testing.T, dir string) {
	t.Helper()
	one := DebugLogRequest{DataDir: dir, What: "s/0", Values: true}
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	if items := debugLog(t, one, nil); items.count(`"item":"event"`) != 21 || items.count(`"item":"partition"`, `"start"`) != 0 {
		t.Fatalf("without the state: %s", items)
	}
	var items shownItems
	if err := DebugCatalog(t.Context(), dir, items.emit); err != nil || items.count(`"item":"shard"`) != catalogShards {
		t.Fatalf("without the state: %v, %s", err, items)
	}
	if err := os.RemoveAll(filepath.Join(dir, "journal")); err != nil {
		t.Fatal(err)
	}
	items = debugLog(t, DebugLogRequest{DataDir: dir}, nil)
	if items.count(`"item":"partition"`, `"events":21`) != 1 {
		t.Fatalf("with nothing but the segments: %s", items)
	}
	var p struct{ Group ring.GroupID }
	if err := json.Unmarshal([]byte(items[0]), &p); err != nil {
		t.Fatal(err)
	}
	one.What = p.Group.String()
	if items := debugLog(t, one, nil); items.count(`"item":"event"`) != 21 {
		t.Fatalf("by its group: %s", items)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := DebugLog(ctx, one, new(shownItems).emit); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	if err := DebugLog(t.Context(), one, func(any) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
}
