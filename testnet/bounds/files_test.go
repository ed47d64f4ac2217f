package bounds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/skeinmesh/skein/node/dev"
)

// dataset reads a real log file from where the environment says.
func dataset(t *testing.T, name string) []byte {
	t.Helper()
	dir := os.Getenv("SKEIN_TESTDATA")
	if dir == "" {
		t.Skipf("SKEIN_TESTDATA is not set: it names the folder of %s, see CONTRIBUTING.md", name)
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var blockID = regexp.MustCompile(`blk_-?\d+`)

// byKey splits lines, keeping the order within each key.
func byKey(lines [][]byte) map[string][]string {
	out := map[string][]string{}
	for _, l := range lines {
		k := string(blockID.Find(l))
		out[k] = append(out[k], string(l))
	}
	return out
}

func TestThirdsOfAFileThroughThreeNodesComeBackInOrderOfEachKey(t *testing.T) {
	lines := bytes.SplitAfter(dataset(t, "hdfs_2k.log"), []byte("\n"))
	lines = slices.DeleteFunc(lines, func(l []byte) bool { return len(l) == 0 })
	m := start(t, dev.Options{})
	m.create("blocks", 8)
	for node := range 3 {
		third := lines[len(lines)*node/3 : len(lines)*(node+1)/3]
		m.skein(node, bytes.Join(third, nil), "pub", "blocks", "--quiet", "--key-regex", `blk_-?\d+`)
	}
	got := readAll(t, fmt.Sprintf("http://%s/v1/streams/blocks/events?from=earliest&until=end", m.Address(2)))
	if len(got) != len(lines) || len(lines) != 2000 {
		t.Errorf("%d of %d events came back", len(got), len(lines))
	}
	for i := range lines {
		lines[i] = bytes.TrimSuffix(lines[i], []byte("\n"))
	}
	want, have := byKey(lines), byKey(got)
	if len(have) != len(want) || len(want) < 100 {
		t.Errorf("%d keys came back of %d", len(have), len(want))
	}
	for k, w := range want {
		if !slices.Equal(w, have[k]) {
			t.Errorf("key %s: %q came back as %q", k, w, have[k])
		}
	}
}

// readAll reads a stream as any HTTP client would.
func readAll(t *testing.T, url string) (values [][]byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/x-ndjson")
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", url, resp.Status)
	}
	for d := json.NewDecoder(resp.Body); d.More(); {
		var l struct {
			Key, Value, Cursor *string
			Error              json.RawMessage
		}
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		if l.Error != nil {
			t.Fatalf("the stream ended with %s", l.Error)
		}
		if l.Cursor != nil {
			continue
		}
		if l.Value == nil || l.Key == nil || *l.Key != string(blockID.Find([]byte(*l.Value))) {
			t.Fatalf("an event without its key or value: %+v", l)
		}
		values = append(values, []byte(*l.Value))
	}
	return values
}

func TestFileComesBackByteIdenticalFromOnePartition(t *testing.T) {
	files := map[string][]byte{}
	for _, name := range []string{"hdfs_2k.log", "proxifier_2k.log", "zookeeper_2k.log"} {
		files[name] = dataset(t, name)
	}
	m := start(t, dev.Options{})
	for name, want := range files {
		m.create(name, 1)
		m.skein(0, nil, "pub", name, "--quiet", filepath.Join(os.Getenv("SKEIN_TESTDATA"), name))
		got := m.skein(2, nil, "sub", name, "--from", "earliest", "--until-end")
		if !bytes.HasSuffix(want, []byte("\n")) {
			want = append(bytes.Clone(want), '\n') // a line feed follows every event
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes came back as %d bytes, alike up to byte %d", name, len(want), len(got), common(want, got))
		}
	}
}

// common is the length of the common start.
func common(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
