package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/node/config"
)

// TestMain is also the program itself, for tests that want it as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// result is one run of the program.
type result struct {
	code     int
	out, err string
}

// skein runs the command line in this process, with a home of its own.
func skein(t *testing.T, environ []string, in string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	home := filepath.Join(t.TempDir(), "home")
	environ = append([]string{"HOME=" + home, "XDG_STATE_HOME=" + home + "/state"}, environ...)
	t.Setenv("XDG_CONFIG_HOME", home+"/config")
	p := &process{in: strings.NewReader(in), out: &out, err: &errOut, environ: environ}
	code := p.run(context.Background(), args)
	return result{code, out.String(), errOut.String()}
}

func TestExitCodes(t *testing.T) {
	t.Chdir(t.TempDir())
	file := filepath.Join(t.TempDir(), "skein.yaml")
	if err := os.WriteFile(file, []byte("http:\n  adr: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, tc := range []struct {
		args string
		code int
		want string // in stderr, or in stdout with code 0
	}{
		{"", 0, "Available Commands"},
		{"help pub", 0, "skein pub STREAM"},
		{"version", 0, "skein "},
		{"version -o yaml", 0, "platform: "},
		{"completion bash", 0, "bash completion"},
		{"node --config-keys", 0, "SKEIN_HTTP_ADDR"},
		{"node --print-config --found", 0, "found: true  # --found"},
		{"stream", 0, "skein stream [command]"},
		{"nod", 2, `"nod" is no command of "skein"; did you mean node?`},
		{"stream lst", 2, "is no command of \"skein stream\""},
		{"mesh foo", 2, "is no command of \"skein mesh\""},
		{"node --fuond", 2, "unknown flag: --fuond"},
		{"node", 2, "no role given"},
		{"node --config " + file, 2, "skein.yaml:2: http.adr: unknown key, did you mean http.addr?"},
		{"node --http-addr x", 2, `--http-addr: "x": HOST:PORT`},
		{"node --secret-file nosuchfile", 2, "--secret-file: stat nosuchfile"},
		{"pub", 2, "STREAM is missing"},
		{"pub s -k a --key-field b", 2, "exclude each other"},
		{"pub s --key-regex (", 2, "missing closing"},
		{"pub s --resume nosuchrun", 2, "nothing is known of it here"},
		{"sub s -f xml", 2, "-f xml"},
		{"sub s --partition -3", 2, "--partition -3"},
		{"sub a b", 2, `"b" is one word too many`},
		{"stream list -o xml", 2, "-o xml"},
		{"stream create s --retention 7", 2, "has no unit"},
		{"stream delete s", 2, "--confirm s"},
		{"stream alter s", 2, "nothing to change"},
		{"bench --events 0", 2, "events: 0"},
		{"recover", 2, "--data-dir is missing"},
		{"recover --data-dir .", 1, "is not a node's data directory"},
		{"recover --data-dir . --other nosuchfile", 2, "nosuchfile"},
		{"debug", 0, "skein debug [command]"},
		{"debug log", 2, "--data-dir is missing"},
		{"debug log --data-dir . --values", 2, "name it"},
		{"debug log --data-dir . s/0 --limit -1", 2, "--limit -1"},
		{"debug log --data-dir . s/0 --from -1", 2, "invalid argument"},
		{"debug log --data-dir .", 1, "is not a node's data directory"},
		{"debug log nosuchfile.seg", 1, "nosuchfile.seg"},
		{"debug journal --data-dir .", 1, "is not a node's data directory"},
		{"debug catalog x --data-dir .", 2, "one word too many"},
		{"stream list --context nosuch", 2, `no context "nosuch"`},
		{"stream list --server a/b", 2, "is no server address"},
		{"dev --base-port 0", 2, "--base-port 0"},
		{"health --server " + gone.Listener.Addr().String(), 1, "cannot connect to"},
		{"mesh --server " + gone.Listener.Addr().String(), 1, "Is a node running there?"},
		{"pub s nosuchfile", 1, "nosuchfile"},
		{"pub s " + file + " " + filepath.Dir(file) + "/./skein.yaml", 2, "given twice"},
		{"bench --keys 1152921504606846976", 2, "keys: "},
	} {
		r := skein(t, nil, "", strings.Fields(tc.args)...)
		text := r.err
		if tc.code == 0 {
			text = r.out
		}
		if r.code != tc.code || !strings.Contains(text, tc.want) {
			t.Errorf("skein %s: exit code %d, want %d with %q\nstdout: %s\nstderr: %s", tc.args, r.code, tc.code, tc.want, r.out, r.err)
		}
		if tc.code != 0 && (r.out != "" || strings.Contains(r.err, "Flags:") || strings.Contains(r.err, "goroutine")) {
			t.Errorf("skein %s: more than a clear line:\n%s%s", tc.args, r.out, r.err)
		}
	}
}

func TestSecondSignalHurriesACommandThatCan(t *testing.T) {
	p := &process{err: io.Discard}
	hurried := make(chan struct{})
	hurry := func() { close(hurried) }
	p.hurry.Store(&hurry)
	ctx, stop := p.withSignals(t.Context())
	defer stop()
	for _, done := range []<-chan struct{}{ctx.Done(), hurried} {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

func TestMissingStreamIsToldHowToMakeOne(t *testing.T) {
	missing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(404)
		io.WriteString(w, `{"status":404,"code":"stream-not-found","detail":"stream \"s\" does not exist","retryable":false}`)
	}))
	defer missing.Close()
	for _, args := range []string{"pub s -q", "sub s", "stream show s"} {
		r := skein(t, []string{"SKEIN_SERVER=" + missing.URL}, "line\n", strings.Fields(args)...)
		if r.code != 1 || strings.Count(r.err, "skein stream create") != 1 {
			t.Errorf("skein %s: %d %s", args, r.code, r.err)
		}
	}
}

func TestKeygenMakesSecretsThatTheConfigTakes(t *testing.T) {
	a, b := skein(t, nil, "", "keygen"), skein(t, nil, "", "keygen")
	if _, err := config.ParseSecret(a.out); err != nil || a.out == b.out {
		t.Errorf("%v; %q, %q", err, a.out, b.out)
	}
}

func TestPrintConfigMasksSecrets(t *testing.T) {
	secret := config.NewSecret().Text()
	r := skein(t, []string{"SKEIN_SECRET=" + secret}, "", "node", "--print-config")
	if r.code != 0 || strings.Contains(r.out, secret) || !strings.Contains(r.out, config.Mask) || !strings.Contains(r.out, "# SKEIN_SECRET") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
}

// fakeNode takes batches and gives one stream of events out.
type fakeNode struct {
	*httptest.Server
	mu    sync.Mutex
	lines []map[string]any
	ids   map[string]bool
	froms []string
	fail  int    // refuse this many batches
	auth  string // of the last batch
}

func newFakeNode(t *testing.T) *fakeNode {
	f := &fakeNode{ids: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/streams/{s}/events/batch", f.batch)
	mux.HandleFunc("GET /v1/streams/{s}/events", f.events)
	mux.HandleFunc("GET /v1/streams", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"streams":[{"name":"orders","config":{"partitions":8,"replicas":3,"order":"key","retention_ms":604800000}},
			{"name":"old","config":{"retention_ms":9223372036854775807}}]}`)
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeNode) environ() []string { return []string{"SKEIN_SERVER=" + f.URL} }

func (f *fakeNode) batch(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.auth = r.Header.Get("Authorization")
	if f.fail > 0 {
		f.fail--
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(413)
		io.WriteString(w, `{"status":413,"code":"too-large","detail":"too large","retryable":false}`)
		return
	}
	data, _ := io.ReadAll(r.Body)
	var items []string
	for i, l := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var m map[string]any
		json.Unmarshal([]byte(l), &m)
		id := fmt.Sprint(m["source"], "#", m["id"])
		if !f.ids[id] {
			f.ids[id] = true
			f.lines = append(f.lines, m)
		}
		items = append(items, fmt.Sprintf(`{"index":%d,"partition":0,"offset":%d}`, i, i))
	}
	fmt.Fprintf(w, `{"results":[%s]}`, strings.Join(items, ","))
}

// events gives out what came in; a cursor is the number of events before it.
func (f *fakeNode) events(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := r.URL.Query().Get("from")
	f.froms = append(f.froms, from)
	n := 0
	fmt.Sscanf(from, "c%d", &n)
	for i, m := range f.lines[n:] {
		m["partition"], m["offset"], m["time"] = 0, n+i, "2026-01-31T12:00:00Z"
		json.NewEncoder(w).Encode(m)
	}
	fmt.Fprintf(w, `{"cursor":"c%d"}`+"\n", len(f.lines))
}

func TestPublishedLinesComeBackByteForByte(t *testing.T) {
	f := newFakeNode(t)
	text := "a\r\nb\n\n\xff\x00\nlast\n"
	if r := skein(t, f.environ(), text, "pub", "s"); r.code != 0 || r.out != "" || !strings.Contains(r.err, "published 5 lines") {
		t.Fatalf("%+v", r)
	}
	if r := skein(t, f.environ(), "", "sub", "s", "--from", "earliest", "--until-end"); r.code != 0 || r.out != text {
		t.Errorf("got %q, want %q; %s", r.out, text, r.err)
	}
}

func TestFailedRunGoesOnWithResume(t *testing.T) {
	f := newFakeNode(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "lines")
	if err := os.WriteFile(file, []byte("1\n2\n3\n4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := append(f.environ(), "XDG_STATE_HOME="+dir+"/state")
	run := func(args ...string) result {
		var out, errOut bytes.Buffer
		p := &process{in: strings.NewReader(""), out: &out, err: &errOut, environ: environ}
		return result{p.run(context.Background(), append([]string{"pub", "s", file, "--batch", "2"}, args...)), out.String(), errOut.String()}
	}
	f.fail = 1
	r := run()
	named, _, _ := strings.Cut(r.err, "\n") // before anything is sent: a run may be killed at any moment
	_, id, found := strings.Cut(named, "--resume ")
	if r.code != 1 || !found || !strings.HasSuffix(strings.TrimSpace(r.err), "--resume "+id) || !strings.Contains(r.err, file+":1: too large (too-large)") {
		t.Fatalf("%+v", r)
	}
	if r := run("--resume", id); r.code != 0 || len(f.lines) != 4 || f.lines[0]["source"] != "skein-pub/"+id+"/"+file {
		t.Fatalf("%+v, %v", r, f.lines)
	}
	if r := run("--resume", id); r.code != 2 || !strings.Contains(r.err, "it is complete") {
		t.Errorf("%+v", r)
	}
}

func TestCursorFileRemembersThePlace(t *testing.T) {
	f := newFakeNode(t)
	place := filepath.Join(t.TempDir(), "place")
	sub := func() result {
		return skein(t, f.environ(), "", "sub", "s", "--from", "earliest", "--until-end", "--cursor-file", place)
	}
	skein(t, f.environ(), "1\n2\n", "pub", "s", "-q")
	if r := sub(); r.out != "1\n2\n" || r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if data, err := os.ReadFile(place); err != nil || string(data) != "c2\n" {
		t.Fatalf("cursor file %q, %v", data, err)
	}
	skein(t, f.environ(), "3\n", "pub", "s", "-q")
	if r := sub(); r.out != "3\n" || r.code != 0 || f.froms[1] != "c2" {
		t.Errorf("%+v, from %v", r, f.froms)
	}
	if err := os.WriteFile(place, []byte("two words"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := sub(); r.code != 1 || !strings.Contains(r.err, "holds no cursor") {
		t.Errorf("%+v", r)
	}
}

// brokenPipe fails the way a full disk behind the standard output does.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestPlaceDoesNotPassWhatWasNotWritten(t *testing.T) {
	f := newFakeNode(t)
	place := filepath.Join(t.TempDir(), "place")
	skein(t, f.environ(), "1\n", "pub", "s", "-q")
	p := &process{in: strings.NewReader(""), out: brokenPipe{}, err: io.Discard, environ: f.environ()}
	if code := p.run(context.Background(), []string{"sub", "s", "--from", "earliest", "--until-end", "--cursor-file", place}); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(place); !os.IsNotExist(err) {
		t.Errorf("a place was written: %v", err)
	}
}

func TestOutputFormats(t *testing.T) {
	f := newFakeNode(t)
	if r := skein(t, f.environ(), "", "stream", "list"); !strings.HasPrefix(r.out, "STREAM") || !strings.Contains(r.out, "168h0m0s") ||
		!strings.Contains(r.out, "none") {
		t.Errorf("%+v", r)
	}
	if r := skein(t, f.environ(), "", "stream", "list", "-o", "json"); !json.Valid([]byte(r.out)) || !strings.Contains(r.out, `"retention_ms": 604800000`) {
		t.Errorf("%+v", r)
	}
	if r := skein(t, f.environ(), "", "stream", "list", "-o", "yaml"); !strings.Contains(r.out, "- name: orders") {
		t.Errorf("%+v", r)
	}
	skein(t, f.environ(), `{"a":{"b":7}}`, "pub", "s", "--json", "--key-field", "a.b")
	for format, want := range map[string]string{"kv": "7\t{\"a\":{\"b\":7}}\n", "value": "{\"a\":{\"b\":7}}\n", "full": "2026-01-31T12:00:00.000Z  0:0  7  {\"a\":{\"b\":7}}\n"} {
		if r := skein(t, f.environ(), "", "sub", "s", "--from", "earliest", "--until-end", "-f", format); r.out != want {
			t.Errorf("-f %s: %q", format, r.out)
		}
	}
}

func TestKeysThatAreNotTextAreShown(t *testing.T) {
	f := newFakeNode(t)
	skein(t, f.environ(), "x\n", "pub", "s", "-q", "-k", "\xff")
	for format, want := range map[string]string{"kv": "\xff\tx\n", "full": "2026-01-31T12:00:00.000Z  0:0  base64:/w==  x\n"} {
		if r := skein(t, f.environ(), "", "sub", "s", "--from", "earliest", "--until-end", "-f", format); r.out != want {
			t.Errorf("-f %s: %q", format, r.out)
		}
	}
}

func TestContextsNameMeshes(t *testing.T) {
	f := newFakeNode(t)
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	if err := os.MkdirAll(filepath.Join(home, "skein"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "skein", "contexts.yaml"), []byte("current: here\ncontexts:\n  here:\n    servers: ["+f.URL+"]\n    token: t0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) result {
		var out, errOut bytes.Buffer
		p := &process{in: strings.NewReader("a line\n"), out: &out, err: &errOut}
		return result{p.run(context.Background(), args), out.String(), errOut.String()}
	}
	if r := run("stream", "list"); r.code != 0 || !strings.Contains(r.out, "orders") {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"pub", "s", "-q"}, {"bench", "s", "--events", "1"}} {
		f.auth = ""
		if r := run(args...); r.code != 0 || f.auth != "Bearer t0" {
			t.Errorf("%v: authorization %q, %+v", args, f.auth, r)
		}
	}
	if r := run("stream", "list", "--context", "hree"); r.code != 2 || !strings.Contains(r.err, "did you mean here?") {
		t.Errorf("%+v", r)
	}
}

func TestHelpMarksWhatDoesNothingYet(t *testing.T) {
	for _, tc := range []struct {
		command string
		flags   []string
	}{
		{"node", []string{"http-tls-cert", "http-tls-key", "kafka-addr", "session-ms"}},
		{"stream create", []string{"min-partitions", "max-partitions", "order", "order-window", "hot-keys"}},
		{"stream alter", []string{"min-partitions", "max-partitions", "order", "order-window", "hot-keys"}},
	} {
		var marked []string
		for line := range strings.Lines(skein(t, nil, "", append(strings.Fields(tc.command), "--help")...).out) {
			if strings.Contains(line, "not available yet") {
				marked = append(marked, strings.TrimPrefix(strings.Fields(line)[0], "--"))
			}
		}
		slices.Sort(marked)
		if slices.Sort(tc.flags); !slices.Equal(marked, tc.flags) {
			t.Errorf("skein %s marks %v, want %v", tc.command, marked, tc.flags)
		}
	}
}
