package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		s := newStory(o)
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
