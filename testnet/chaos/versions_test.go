package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
)

// previous is skein as it speaks the protocol version before, or the release that SKEIN_CHAOS_PREVIOUS names.
var previous = sync.OnceValues(func() (string, error) {
	if given := os.Getenv("SKEIN_CHAOS_PREVIOUS"); given != "" {
		return filepath.Abs(given)
	}
	return build("skein-previous", "-tags", "skein_previous")
})

// versions says which build each node is started with.
type versions struct {
	mu  sync.Mutex
	old map[int]bool
	bin string
}

func oldNodes(t *testing.T, nodes ...int) *versions {
	t.Helper()
	skein(t) // or skip
	bin, err := previous()
	if err != nil {
		t.Fatal(err)
	}
	v := &versions{old: map[int]bool{}, bin: bin}
	for _, n := range nodes {
		v.set(n, true)
	}
	return v
}

func (v *versions) set(node int, old bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.old[node] = old
}

func (v *versions) binary(node int) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.old[node] {
		return v.bin
	}
	return ""
}

// TestMixedVersionsServeTogether kills nodes of both versions in a mesh of both, while publishers and readers go on. What only the newer
// one knows is refused by name, and changes nothing.
func TestMixedVersionsServeTogether(t *testing.T) {
	s := seed(t)
	publishers := 4
	v := oldNodes(t, 0, 1)
	m := startMesh(t, dev.Options{Nodes: 3, NodeBinary: v.binary})
	w := newWorld(t, m.Addresses(), 4)
	l := w.startLoad(s, publishers, 40*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	for _, node := range []int{0, 2} {
		w.progress(5 * publishers)
		kill(t, m, node)
		w.progress(5 * publishers)
		restart(t, m, node)
		waitWhole(t, m)
	}
	file := export(t, m.Address(2), w.stream)
	status, body := importTo(t, m.Address(2), "restored", file)
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "mesh-version") || !strings.Contains(body, m.Name(0)) || !strings.Contains(body, m.Name(1)) {
		t.Errorf("an import into a mesh of both: %d %s", status, body)
	}
	for node := range m.Nodes() {
		if f := format(t, m, node); f != 1 {
			t.Errorf("%s has a directory of format %d", m.Name(node), f)
		}
	}
	w.progress(5 * publishers)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	noneEndedByItself(t, m)
	w.verdict()
}

// TestRollingUpgradeLosesNothing upgrades a mesh node by node under load, then uses what the newer version brought: from then on the
// older one is refused, by its own word and by the others', and nothing is harmed by the attempt.
func TestRollingUpgradeLosesNothing(t *testing.T) {
	s := seed(t)
	publishers := 4
	v := oldNodes(t, 0, 1, 2, 3)
	m := startMesh(t, dev.Options{Nodes: 4, Later: 1, NodeBinary: v.binary})
	w := newWorld(t, m.Addresses()[:3], 4)
	l := w.startLoad(s, publishers, 40*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	upgrade := func(node int, old bool) {
		w.progress(5 * publishers)
		if err := m.Shutdown(node); err != nil {
			t.Fatal(err)
		}
		v.set(node, old)
		restart(t, m, node)
		waitWhole(t, m)
	}
	upgrade(0, false)
	upgrade(0, true) // nothing new was used: it can be taken back
	for node := range 3 {
		upgrade(node, false)
	}
	l.stopPublishing()
	w.progress(0)
	ends := w.readBack()
	l.finishReaders(ends)

	file := export(t, m.Address(1), w.stream)
	if status, body := importTo(t, m.Address(2), "restored", file); status != http.StatusCreated {
		t.Fatalf("import after the upgrade: %d %s", status, body)
	}
	for node := range 3 {
		if f := format(t, m, node); f != 2 {
			t.Errorf("%s has a directory of format %d after the import", m.Name(node), f)
		}
	}
	refusedDowngrade(t, m, v)
	refusedNewcomer(t, m)
	again := &world{t: t, stream: "restored", servers: w.servers, history: w.history, keyOf: w.keyOf}
	if got := again.readBack(); fmt.Sprint(got) != fmt.Sprint(ends) {
		t.Errorf("the imported stream ends at %v, the other at %v", got, ends)
	}
	noneEndedByItself(t, m)
	w.verdict()
}

// refusedDowngrade starts a node with the older build, which must end at once, say why, and leave the directory as it was.
func refusedDowngrade(t *testing.T, m *dev.Mesh, v *versions) {
	t.Helper()
	if err := m.Shutdown(1); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(m.NodeDir(1), "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	v.set(1, true)
	restart(t, m, 1)
	select {
	case e := <-m.Exits():
		if e.Node != 1 || e.Err == nil || !strings.Contains(e.Err.Error(), "format 2") || !strings.Contains(e.Err.Error(), "format") {
			t.Errorf("%s ended with: %v", m.Name(e.Node), e.Err)
		}
	case <-time.After(healWithin):
		t.Error("the older build runs on a directory of the newer format")
	}
	if after, err := os.ReadFile(filepath.Join(m.NodeDir(1), "node.json")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("it changed node.json to %s, %v", after, err)
	}
	v.set(1, false)
	restart(t, m, 1)
	waitWhole(t, m)
}

// refusedNewcomer starts a node of the older build with an empty directory: both sides must say why it does not become a member.
func refusedNewcomer(t *testing.T, m *dev.Mesh) {
	t.Helper()
	restart(t, m, 3)
	m.Retire(3)
	until(t, healWithin, func() error {
		there, err := os.ReadFile(m.LogPath(3))
		if err != nil {
			return err
		}
		if !strings.Contains(string(there), "protocol version") {
			return fmt.Errorf("the older node does not say why it is refused")
		}
		for node := range 3 {
			here := strings.Join(warnings(t, m.LogPath(node)), "\n")
			if strings.Contains(here, "older version") || strings.Contains(here, "protocol version") {
				return nil
			}
		}
		return fmt.Errorf("no node says why the older one is refused")
	})
	if err := m.Shutdown(3); err != nil {
		t.Fatal(err)
	}
}

// format is that of a node's directory.
func format(t *testing.T, m *dev.Mesh, node int) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.NodeDir(node), "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	var id struct{ Format int }
	if err := json.Unmarshal(raw, &id); err != nil {
		t.Fatal(err)
	}
	return id.Format
}

// export is a stream as a file.
func export(t *testing.T, addr, stream string) []byte {
	t.Helper()
	var file []byte
	until(t, healWithin, func() error {
		status, body := exchange(t, http.MethodGet, "http://"+addr+"/v1/streams/"+stream+"/export", nil)
		if status != http.StatusOK {
			return fmt.Errorf("status %d: %s", status, body)
		}
		file = body
		return nil
	})
	return file
}

// importTo makes a stream of a file.
func importTo(t *testing.T, addr, stream string, file []byte) (status int, body string) {
	t.Helper()
	status, raw := exchange(t, http.MethodPost, "http://"+addr+"/v1/streams/"+stream+"/import", file)
	return status, string(raw)
}

func exchange(t *testing.T, method, url string, body []byte) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), healWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, raw
}
