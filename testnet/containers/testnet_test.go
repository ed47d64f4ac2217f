package containers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// makeTarget runs one target of the Makefile as a person would, on a testnet of the test's own, and returns what it printed.
func makeTarget(t *testing.T, m *Mesh, target string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", target, "TESTNET_PROJECT="+m.o.Project, "TESTNET_PORTS="+strconv.Itoa(m.o.Ports),
		"TESTNET_IMAGE="+image())
	cmd.Dir = filepath.Join("..", "..")
	// What a make around these tests tells its children is not for this one.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "MAKE") || strings.HasPrefix(kv, "MFLAGS=") })
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make %s: %v\n%s", target, err, out)
	}
	return string(out)
}

// TestTestnetComesUpPlaysItsStoryAndGoes: make testnet-up, the line of curl that it ends with, make testnet-demo, make testnet-down.
func TestTestnetComesUpPlaysItsStoryAndGoes(t *testing.T) {
	for _, tool := range []string{"make", "curl", "sh"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the testnet is not tried out as a person would: %v", err)
		}
	}
	m := newMesh(t)
	up := makeTarget(t, m, "testnet-up")
	line := lastLines(up, 1)
	if !strings.HasPrefix(strings.TrimSpace(line), "curl ") {
		t.Fatalf("make testnet-up ends with %q", line)
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"copies":`) || !strings.Contains(string(out), `"value":"hello"`) {
		t.Errorf("%s: %v\n%s", strings.TrimSpace(line), err, out)
	}
	demo := makeTarget(t, m, "testnet-demo")
	t.Logf("%s", demo)
	if !strings.Contains(demo, "Verdict: all promises held") {
		t.Error("the demo ends without its verdict")
	}
	makeTarget(t, m, "testnet-down")
	do(t, func(ctx context.Context) error {
		left, err := m.e.Projects(ctx)
		for _, p := range left {
			if p == m.o.Project {
				return fmt.Errorf("make testnet-down left something of %s", p)
			}
		}
		return err
	})
}
