package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/node/dev"
)

func TestIdentityRoundTrips(t *testing.T) {
	for _, key := range []string{"k", "", "a/b//c", "ключ"} {
		publisher, got, seq, ok := parseIdentity(identity("p-1", key, 7))
		if publisher != "p-1" || got != key || seq != 7 || !ok {
			t.Errorf("key %q came back as %q %q %d %t", key, publisher, got, seq, ok)
		}
	}
	for _, bad := range [][2]string{{"x/p/k", "1"}, {"demo/p", "1"}, {"demo/p/k", "one"}} {
		if _, _, _, ok := parseIdentity(bad[0], bad[1]); ok {
			t.Errorf("%q was taken for an identity", bad)
		}
	}
}

func TestEachKeyHasOnePublisher(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte(strings.Repeat("a 1\nb 2\nc 3\r\n\n", 50)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []options{{publishers: 3, events: 1000, input: file, keyRegexp: `^(\w)`}, {publishers: 3, events: 1000, seed: 5}} {
		s := newStory(o, io.Discard)
		sources, err := s.sources()
		if err != nil {
			t.Fatal(err)
		}
		home, seq, total := map[string]string{}, map[string]uint64{}, 0
		for _, src := range sources {
			for range src.n {
				ev := src.next()
				if p, ok := home[ev.key]; ok && p != ev.publisher {
					t.Fatalf("key %q has publishers %s and %s", ev.key, p, ev.publisher)
				}
				if home[ev.key] = ev.publisher; ev.publisher != src.name || ev.seq != seq[ev.key]+1 {
					t.Fatalf("key %q: %d after %d by %s in %s", ev.key, ev.seq, seq[ev.key], ev.publisher, src.name)
				}
				seq[ev.key] = ev.seq
				total++
			}
		}
		if total != s.o.events {
			t.Errorf("%d events of %d", total, s.o.events)
		}
	}
}

// TestDemoKillsAnOwnerAndEveryPromiseHolds is a short run of what make demo does.
func TestDemoKillsAnOwnerAndEveryPromiseHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes: left out with -short")
	}
	if _, err := dev.FreeBase(3); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "skein")
	// With the settings that the tests were built with: then most of it is built already.
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/skeinmesh/skein/cmd/skein").CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, text)
	}
	t.Setenv("TMPDIR", dir)
	var out bytes.Buffer
	broken, err := run(t.Context(), options{binary: binary, events: 600, publishers: 3, rate: 400, partitions: 4, nodes: 3, seed: 1}, &out)
	text := out.String()
	if broken || err != nil {
		t.Fatalf("broken: %t, %v\n%s", broken, err, text)
	}
	for _, want := range []string{"kill -9 node-", "ms later", "starts again", "All 601 events are acknowledged", "601 events through node-2", "Verdict: all promises held"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if n := strings.Count(text, "  holds   "); n != 6 {
		t.Errorf("%d promises held of 6", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 { // the binary
		t.Errorf("%v, %v are left", err, left)
	}
	if t.Failed() {
		t.Log(text)
	}
}
