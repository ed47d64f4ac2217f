package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/node"
)

// nodeWithEvents is the data directory of a stopped node with a stream of three events in two batches, and a deleted stream.
func nodeWithEvents(t *testing.T) string {
	t.Helper()
	cfg := soloNode(t)
	dir := cfg.DataDir
	runReady(t, cfg, func(url string) {
		do := func(args ...string) {
			t.Helper()
			if r := skein(t, nil, "", append(args, "--server", url)...); r.code != exitOK {
				t.Fatalf("%v: %+v", args, r)
			}
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		post := func(path, contentType, body string) {
			t.Helper()
			resp, err := client.Post(url+path, contentType, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", path, answer)
			}
		}
		do("stream", "create", "orders", "--partitions", "1")
		post("/v1/streams/orders/events/batch?envelope=true", "application/x-ndjson",
			`{"key":"k","value":"one","content_type":"text/plain","headers":{"a":"b"},"time":"2026-01-02T03:04:05Z"}`+"\n"+`{"key":"k","value":"two"}`+"\n")
		post("/v1/streams/orders/events", "application/octet-stream", "\x1b[31mred")
		do("stream", "create", "gone", "--partitions", "1")
		do("stream", "delete", "gone", "--confirm", "gone")
		poll(t, "the files of the deleted stream go", func() bool {
			left, err := os.ReadDir(filepath.Join(dir, "partitions"))
			return err == nil && len(left) == 1
		})
		if r := skein(t, nil, "", "debug", "log", "--data-dir", dir); r.code != exitFailed || !strings.Contains(r.err, "is in use: stop the node first") || r.out != "" {
			t.Errorf("while the node runs: %+v", r)
		}
	})
	return dir
}

// tree is everything below a directory, with times.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&out, path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// copyOf is a copy of a data directory, without its lock file.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(to, "lock")); err != nil {
		t.Fatal(err)
	}
	return to
}

// unlike is what differs from run to run, and what stands for it.
var unlike = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`/\S*?/((partitions|journal)/)`), "DIR/$1"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "ID"},
	{regexp.MustCompile(` *\d+ +\d+ [0-9a-f]{32} +\d+`), " TERM INDEX SESSION SEQ"},
	{regexp.MustCompile(`("(session|sequence|term|index|applied_index|stamp_ms)":)("[0-9a-f]+"|\d+)`), "${1}N"},
	{regexp.MustCompile(`index \d+, term \d+ \(end of its journal: index \d+\)`), "INDEX"},
	{regexp.MustCompile(`(TIME|created|changed|CRC|version \d,) 20\d\d-\d\d-\d\dT[0-9:.]+Z`), "$1 TIME"},
	{regexp.MustCompile(` [0-9a-f]{8} 20\d\d-\d\d-\d\dT[0-9:.]+Z`), " CRC TIME"},
	{regexp.MustCompile(`keys [0-9a-f]+-[0-9a-f]+`), "keys KEYS"},
}

// golden compares output with what is wanted, once what differs from run to run is replaced.
func golden(t *testing.T, got result, code int, want string) {
	t.Helper()
	text := got.out
	for _, u := range unlike {
		text = u.re.ReplaceAllString(text, u.to)
	}
	if want = strings.TrimPrefix(want, "\n"); got.code != code || text != want {
		t.Errorf("exit code %d, want %d\n%s--- want\n%s--- stderr\n%s", got.code, code, text, want, got.err)
	}
}

const listed = `
PARTITION                START       NEXT        FILES        BYTES    BATCHES       EVENTS CHECK    GROUP
orders/0                 0           3                1          296          2            3 ok       ID of stream ID
`

const values = `
DIR/partitions/ID/00000000/00000000000000000000.seg: 296 bytes
      OFFSET EVENTS DUP    BYTES      RAW CODEC CRC      TIME                     TERM      INDEX SESSION                               SEQ   POSITION
           0      2   0       70       70 none  CRC TIME TERM INDEX SESSION SEQ          0
  0 key="k" content-type="text/plain" time=2026-01-02T03:04:05.000Z a="b" value="one"
  1 key="k" content-type="application/json" value="\"two\""
           2      1   0       42       42 none  CRC TIME TERM INDEX SESSION SEQ        162
  2 content-type="application/octet-stream" value=base64:G1szMW1yZWQ=

PARTITION                START       NEXT        FILES        BYTES    BATCHES       EVENTS CHECK    GROUP
orders/0                 0           3                1          296          2            3 ok       ID of stream ID
`

const valuesJSON = `
{"item":"file","file":"DIR/partitions/ID/00000000/00000000000000000000.seg","bytes":296}
{"item":"batch","file":"DIR/partitions/ID/00000000/00000000000000000000.seg","position":0,"base_offset":0,"events":2,"duplicates":0,"bytes":70,"raw_bytes":70,"codec":"none","crc":"d3f1328f","stamp_ms":N,"session":N,"sequence":N,"identities":0,"term":N,"index":N}
{"item":"event","offset":1,"key":"k","value":"\"two\"","content_type":"application/json"}
{"item":"partition","stream":"orders","partition":0,"incarnation":"ID","group":"ID","start":0,"next":3,"applied_index":N,"first_offset":0,"end_offset":2,"dir":"DIR/partitions/ID/00000000","files":1,"bytes":296,"batches":1,"events":2,"sound":true,"findings":0,"stopped":true}
`

// shards is what the catalog shows of shards without streams.
func shards(from, to int) (out string) {
	for i := from; i <= to; i++ {
		out += fmt.Sprintf("shard %d: group ID, no stream was ever made in it\n  this node's copy, as of INDEX; other nodes may be ahead\n\n", i)
	}
	return out
}

const ordersShard = `shard 5: group ID, version 3, TIME
  this node's copy, as of INDEX; other nodes may be ahead
stream orders: incarnation ID, version 1, created TIME, changed TIME
  {"partitions":1,"min_partitions":1,"max_partitions":256,"replicas":3,"min_copies":1,"order":"key","retention_ms":604800000,"retention_bytes":10737418240,"dedupe_window_ms":600000,"max_event_bytes":1048576}
  orders/0: group ID, open, keys KEYS, founded on ID
deleted gone: incarnation ID, version 3, TIME, 1 partitions

`

func TestDebugShowsAStoppedNodeAndChangesNothing(t *testing.T) {
	dir := nodeWithEvents(t)
	before := tree(t, dir)
	debug := func(args ...string) result {
		return skein(t, nil, "", append(append([]string{"debug"}, args...), "--data-dir", dir)...)
	}

	golden(t, debug("log"), exitOK, listed)
	golden(t, debug("log", "orders/0", "--values"), exitOK, values)
	golden(t, debug("log", "orders/0", "--from", "1", "--limit", "1", "--values", "--json"), exitOK, valuesJSON)
	golden(t, debug("catalog"), exitOK, shards(0, 4)+ordersShard+strings.TrimSuffix(shards(6, 7), "\n"))

	r := debug("journal", "--group", "orders/0")
	for _, want := range []string{"birth               0      0      180 ", "entry              1", " term 1, vote 0, commit 10\n", "valid up to byte ", "The next start takes the journal as: sound\n"} {
		if r.code != exitOK || !strings.Contains(r.out, want) || strings.Contains(r.out, "_mesh") {
			t.Errorf("%q is missing: %+v", want, r)
		}
	}
	kinds := map[string]int{}
	for line := range strings.Lines(debug("journal", "--json").out) {
		var item struct{ Item, Kind, Name, Verdict string }
		if err := json.Unmarshal([]byte(line), &item); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		kinds[item.Item+item.Verdict]++
		if item.Kind == "birth" {
			kinds["birth of "+item.Name]++
		}
	}
	if kinds["file"] != 1 || kinds["end"] != 1 || kinds["journalsound"] != 1 || kinds["record"] < 40 || kinds["birth of _mesh/7"] != 1 || kinds["birth of orders/0"] != 1 {
		t.Errorf("%v", kinds)
	}
	if r := debug("journal", "--limit", "5"); !strings.Contains(r.out, "5 records shown, stopped at the limit") {
		t.Errorf("%+v", r)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no such partition": {[]string{"log", "orders/1"}, "orders/1 has no replica here"},
		"no such group":     {[]string{"log", "00000000-0000-0000-0000-000000000001"}, "has nothing here"},
		"no partition":      {[]string{"log", "orders"}, `"orders" is neither STREAM/PARTITION nor the id of a group`},
		"a catalog shard":   {[]string{"log", "_mesh/0"}, "skein debug catalog shows it"},
		"no group":          {[]string{"journal", "--group", "nothing/0"}, "nothing/0 has no replica here"},
	} {
		if r := debug(c.args...); r.code != exitFailed || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if tree(t, dir) != before {
		t.Error("the directory was changed")
	}
}

// damaged changes a file, calls what looks at it, and puts it back.
func damaged(t *testing.T, path string, change func(b []byte) []byte, look func()) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(bytes.Clone(whole)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	look()
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
}

func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func TestDebugNamesDamageAndGoesOn(t *testing.T) {
	dir := copyOf(t, nodeWithEvents(t))
	debug := func(args ...string) result {
		return skein(t, nil, "", append(append([]string{"debug"}, args...), "--data-dir", dir)...)
	}
	want := func(r result, code int, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(r.out, text) {
				t.Errorf("%q is missing", text)
			}
		}
		if r.code != code || code == exitDamage && !strings.Contains(r.err, "damage was found") {
			t.Errorf("exit code %d, want %d", r.code, code)
		}
		if t.Failed() {
			t.Fatalf("%s\n%s", r.out, r.err)
		}
	}
	segment := one(t, filepath.Join(dir, "partitions", "*", "*", "*.seg"))
	flip := func(at int) func([]byte) []byte { return func(b []byte) []byte { b[at] ^= 1; return b } }
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }

	// So soon nothing of the segment was known to be durable: the journal has it.
	damaged(t, segment, flip(100), func() {
		want(debug("log"), exitOK, "! "+segment+": torn at byte 0: batch payload fails its CRC: it was never known to be durable; ", "; 162 bytes up to byte 162")
		want(debug("log", "orders/0", "--values"), exitOK, ": torn at byte 0", "  2 content-type=")
		want(skein(t, nil, "", "debug", "log", segment, "--json"), exitDamage, `"kind":"damage","damage":true`, `"base_offset":2`, `"sound":false`)
		want(skein(t, nil, "", "debug", "log", segment), exitDamage, "DAMAGED", "! "+segment+": damage at byte 0: batch payload fails its CRC; 162 bytes up to byte 162")
	})
	damaged(t, segment, cut(200), func() {
		want(skein(t, nil, "", "debug", "log", segment), exitDamage, "damage at byte 162: the bytes end inside a batch; 38 bytes up to byte 200", "           0      2   0")
	})
	copied := filepath.Join(t.TempDir(), "x.seg")
	if err := os.Link(segment, copied); err != nil {
		t.Fatal(err)
	}
	want(skein(t, nil, "", "debug", "log", copied), exitOK, "ok")

	journal := one(t, filepath.Join(dir, "journal", "*.journal"))
	damaged(t, journal, flip(120), func() {
		want(debug("journal"), exitDamage, journal+": damage at byte 100: no valid record, but one at byte ", "orders/0", "takes the journal as: damaged")
		want(debug("log"), exitDamage, filepath.Dir(journal)+": damage at byte 0: ", "orders/0                 0           3 ")
		want(debug("catalog"), exitDamage, "stream orders", "end of its journal: not known")
	})
	damaged(t, journal, cut(20), func() {
		want(debug("journal"), exitDamage, "damage at byte 0: the file header does not check out", "the checkpoint does not check out")
	})

	manifest := one(t, filepath.Join(dir, "state", "MANIFEST-*"))
	damaged(t, manifest, cut(10), func() {
		want(debug("log", "orders/0", "--values"), exitDamage, filepath.Join(dir, "state")+": damage", `value="one"`, "orders/0                 ?           ? ")
		want(debug("catalog"), exitDamage, "shard 5")
	})
	want(debug("log"), exitOK, "ok")
	want(debug("journal"), exitOK, "sound")
}

func TestDebugOfADirectoryWithoutEvents(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{dir, file, filepath.Join(dir, "nothing")} {
		for _, cmd := range []string{"log", "journal", "catalog"} {
			if r := skein(t, nil, "", "debug", cmd, "--data-dir", what); r.code != exitFailed || !strings.Contains(r.err, "is not a node's data directory") {
				t.Errorf("%s of %s: %+v", cmd, what, r)
			}
		}
	}
	// A node that never ran with a mesh has nothing to show.
	identity := `{"format":1,"node_id":"00000000-0000-0000-0000-000000000001"}`
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte(identity), 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	for _, cmd := range []string{"log", "journal", "catalog"} {
		if r := skein(t, nil, "", "debug", cmd, "--data-dir", dir); r.code != exitOK || r.err != "" {
			t.Errorf("%s: %+v", cmd, r)
		}
	}
	if tree(t, dir) != before {
		t.Error("the directory was changed")
	}
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"format":99}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := skein(t, nil, "", "debug", "log", "--data-dir", dir); r.code != exitFailed || !strings.Contains(r.err, "format 99") {
		t.Errorf("%+v", r)
	}
}

func TestDebugPrintsNothingThatATerminalWouldObey(t *testing.T) {
	evil := "a\x1b]0;b\a"
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	text := &debugText{w: w}
	for _, item := range []any{
		&node.DebugPartition{Stream: evil}, &node.DebugFile{File: evil}, &node.DebugFinding{File: evil, Detail: evil},
		&node.DebugEvent{Key: &evil, ID: evil, Headers: []node.DebugHeader{{Name: evil, Value: &evil}}, Time: 1 << 62},
		&node.DebugBatch{Stamp: -1 << 62}, &node.DebugRecord{Name: evil, Kind: "entry"}, &node.DebugStream{Name: evil}, &node.DebugTombstone{Name: evil},
	} {
		if err := text.item(item); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil || bytes.ContainsAny(out.Bytes(), "\x1b\a") || !strings.Contains(out.String(), "4611686018427387904ms") {
		t.Fatalf("%v\n%q", err, out.String())
	}
}
