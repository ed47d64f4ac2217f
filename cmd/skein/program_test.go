package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
)

// asProgram, in the environment, makes the test binary skein. Nodes that skein starts inherit it, unlike what begins with SKEIN_.
const asProgram = "RUN_AS_SKEIN"

// program is skein running as a process.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	file  string // its output
	ended chan struct{}
	err   error // of its end
}

// startProgram runs skein until the test ends, in a directory for temporary files of its own.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes: left out with -short")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &program{t: t, cmd: exec.Command(exe, args...), file: filepath.Join(dir, "output"), ended: make(chan struct{})}
	out, err := os.Create(p.file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() // the process has its own
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SKEIN_") {
			p.cmd.Env = append(p.cmd.Env, kv)
		}
	}
	p.cmd.Env = append(p.cmd.Env, asProgram+"=1", "TMPDIR="+dir)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // fails where it is gone already
		<-p.ended
		if t.Failed() {
			t.Log(p.output())
		}
	})
	return p
}

func (p *program) output() string {
	data, err := os.ReadFile(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

func (p *program) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// waitFor polls until the output has the words, and returns what stands behind them in their line.
func (p *program) waitFor(words string) (rest string) {
	p.t.Helper()
	poll(p.t, fmt.Sprintf("the program says %q", words), func() (found bool) {
		over := false
		select {
		case <-p.ended:
			over = true
		default:
		}
		_, rest, found = strings.Cut(p.output(), words)
		if found = found && strings.Contains(rest, "\n"); over && !found {
			p.t.Fatalf("it ended (%v) and did not say %q", p.err, words)
		}
		return found
	})
	rest, _, _ = strings.Cut(rest, "\n")
	return rest
}

// ask makes one request and returns the status and the body; 0 where nobody answered.
func ask(t *testing.T, method, url, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 15 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

var (
	devUp    = regexp.MustCompile(`A mesh of 3 nodes is up \((\d+\.\d) s\)`)
	devNode  = regexp.MustCompile(`(?m)^  (node-\d)  (http://127\.0\.0\.1:\d+)  pid (\d+)  log (\S+)$`)
	devPost  = regexp.MustCompile(`(?m)^  curl -d 'hello' '(\S+)' -H 'Content-Type: text/plain'$`)
	devGet   = regexp.MustCompile(`(?m)^  curl '(\S+)' -H 'Accept: application/x-ndjson'$`)
	devSkein = regexp.MustCompile(`(?m)^  skein (mesh members .*)$`)
)

// TestDevMeshIsAsItSaysAndLeavesNothingBehind: whole when it says so; the commands that it prints work; Ctrl-C ends all of it.
func TestDevMeshIsAsItSaysAndLeavesNothingBehind(t *testing.T) {
	base, err := dev.FreeBase(3)
	if err != nil {
		t.Skip(err)
	}
	began := time.Now()
	p := startProgram(t, "dev", "-n", "3", "--base-port", strconv.Itoa(base))
	p.waitFor("Ctrl-C stops the mesh.")
	took, text := time.Since(began), p.output()
	up := devUp.FindStringSubmatch(text)
	if up == nil {
		t.Fatal("it does not say that a mesh is up")
	}
	if said, err := strconv.ParseFloat(up[1], 64); err != nil || said <= 0 || said > took.Seconds()+0.1 || said > devWait.Seconds() {
		t.Errorf("it says that it took %s s; it took %v, and may take %v", up[1], took, devWait)
	}
	nodes := devNode.FindAllStringSubmatch(text, -1)
	if len(nodes) != 3 {
		t.Fatalf("%d nodes are named", len(nodes))
	}
	for i, n := range nodes {
		if want := fmt.Sprintf("http://127.0.0.1:%d", base+10*i); n[2] != want {
			t.Errorf("%s is at %s, want %s", n[1], n[2], want)
		}
		if status, body := ask(t, "GET", n[2]+"/readyz", ""); status != 200 {
			t.Errorf("%s is not ready: %d %s", n[1], status, body)
		}
	}
	post, get, members := devPost.FindStringSubmatch(text), devGet.FindStringSubmatch(text), devSkein.FindStringSubmatch(text)
	if post == nil || get == nil || members == nil {
		t.Fatal("not all of the three commands are there")
	}
	if status, body := ask(t, "POST", post[1], "hello", "Content-Type", "text/plain"); status != 200 {
		t.Errorf("publishing: %d %s", status, body)
	}
	if status, body := ask(t, "GET", get[1], "", "Accept", "application/x-ndjson"); status != 200 || strings.Count(body, `"value":"hello"`) != 1 {
		t.Errorf("reading: %d %s", status, body)
	}
	if r := skein(t, nil, "", strings.Fields(members[1])...); r.code != exitOK || strings.Count(r.out, " alive ") != 3 || !strings.Contains(r.err, "as node-0 sees it") {
		t.Errorf("skein %s: %+v", members[1], r)
	}

	p.signal(os.Interrupt)
	<-p.ended
	if p.err != nil {
		t.Errorf("after SIGINT: %v", p.err)
	}
	for _, n := range nodes {
		if pid, err := strconv.Atoi(n[3]); err != nil || syscall.Kill(pid, 0) == nil {
			t.Errorf("process %s of %s lives on", n[3], n[1])
		}
		if _, err := os.Stat(filepath.Dir(n[4])); !os.IsNotExist(err) {
			t.Errorf("the data of %s are still there: %v", n[1], err)
		}
	}
}

// TestHangupReloadsAndAWrongConfigurationChangesNothing runs a node with a file that changes under it.
func TestHangupReloadsAndAWrongConfigurationChangesNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "skein.yaml")
	write := func(more string) {
		t.Helper()
		text := "name: n\ndata_dir: " + dir + "/data\nfound: true\nquic: {addr: '127.0.0.1:0'}\ngossip: {addr: '127.0.0.1:0'}\n" + more
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const right = "http: {addr: '127.0.0.1:0'}\n"
	write(right)
	p := startProgram(t, "node", "--config", file)
	up := p.waitFor(`msg="node is up" node=n http=`)
	addr, _, _ := strings.Cut(up, " ")
	url := "http://" + addr
	poll(t, "the node gets ready", func() bool { status, _ := ask(t, "GET", url+"/readyz", ""); return status == 200 })
	publish := func(stream string) int {
		status, _ := ask(t, "POST", url+"/v1/streams/"+stream+"/events", "x", "Content-Type", "text/plain")
		return status
	}
	if status := publish("first"); status != 404 {
		t.Fatalf("a stream that is not there: %d", status)
	}

	write(right + "auto_create_streams: true\nzone: z2\n")
	p.signal(syscall.SIGHUP)
	if changed := p.waitFor(`msg="configuration reloaded" changed=`); changed != "[auto_create_streams]" {
		t.Errorf("changed: %s", changed)
	}
	if keys := p.waitFor(`msg="some changes need a restart" keys=`); keys != "[zone]" {
		t.Errorf("these need a restart: %s", keys)
	}
	if status := publish("first"); status != 200 {
		t.Errorf("after a reload that makes streams: %d", status)
	}

	// What is right in a file that is wrong does not count either.
	write("http: {addr: '127.0.0.1:0', allowed_host: [x]}\nauto_create_streams: false\nlog: {level: error}\n")
	p.signal(syscall.SIGHUP)
	why := p.waitFor(`level=ERROR msg="reload refused, the old configuration stays" error=`)
	for _, want := range []string{file + ":6", "http.allowed_host: unknown key", "did you mean http.allowed_hosts?"} {
		if !strings.Contains(why, want) {
			t.Errorf("the refusal has no %q: %s", want, why)
		}
	}
	if status := publish("second"); status != 200 {
		t.Errorf("after a reload that was refused: %d", status)
	}

	p.signal(syscall.SIGTERM)
	<-p.ended
	if p.err != nil || !strings.Contains(p.output(), "msg=stopped") { // a line that the level would have left out
		t.Errorf("after SIGTERM: %v", p.err)
	}
}

// TestSecondSigtermEndsANodeAtOnce while it hands over to nodes that do not answer.
func TestSecondSigtermEndsANodeAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes: left out with -short")
	}
	if _, err := dev.FreeBase(3); err != nil {
		t.Skip(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// After that much silence an owner gives up its place, and has nothing to hand over.
	m, err := dev.Start(dev.Options{Nodes: 3, BasePort: -1, DataDir: t.TempDir(), Binary: exe, Env: []string{asProgram + "=1"}, Args: []string{"--raft-election-ms", "3000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for node := range m.Nodes() {
			if err := m.Kill(node); err != nil {
				t.Error(err)
			}
		}
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), devWait)
	defer cancel()
	if err := m.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	log := func() string {
		data, err := os.ReadFile(m.LogPath(0))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	signal := func(node int, sig syscall.Signal) {
		t.Helper()
		if err := m.Signal(node, sig); err != nil {
			t.Fatal(err)
		}
	}
	for node := 1; node < 3; node++ {
		signal(node, syscall.SIGSTOP)
	}
	signal(0, syscall.SIGTERM)
	poll(t, "node 0 hands over", func() bool { return strings.Contains(log(), "the partitions owned here are handed over") })
	signal(0, syscall.SIGTERM)
	select {
	case e := <-m.Exits():
		if e.Node != 0 || !strings.Contains(fmt.Sprint(e.Err), "exit status 1") {
			t.Errorf("node %d ended: %v", e.Node, e.Err)
		}
	case <-time.After(devWait):
		t.Error("the second SIGTERM did not end it")
	}
	if strings.Contains(log(), "msg=stopped") {
		t.Error("the end was an orderly one")
	}
}
