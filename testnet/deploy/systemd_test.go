package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const installed = "/usr/local/bin/skein"

// unit is the unit's text with another program in the place of the installed one, which is not here.
func unit(t *testing.T) (text, path string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("systemd", "skein.service"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), "\nExecStart="+installed+" ") {
		t.Fatalf("the unit does not start %s", installed)
	}
	text = strings.ReplaceAll(string(raw), "\nExecStart="+installed+" ", "\nExecStart=/bin/true ")
	path = filepath.Join(t.TempDir(), "skein.service")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return text, path
}

// analyze runs systemd-analyze, which needs no running systemd for this.
func analyze(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skipf("the unit is not verified, for systemd is not installed here: %v", err)
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestUnitIsVerifiedBySystemd(t *testing.T) {
	_, path := unit(t)
	if out := analyze(t, "verify", "--man=no", path); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify says:\n%s", out)
	}
}

// TestUnitIsHardened holds the unit below an exposure of 2.0, which systemd calls OK; 9.6 is what a unit without any of it has.
func TestUnitIsHardened(t *testing.T) {
	_, path := unit(t)
	analyze(t, "security", "--no-pager", "--offline=true", "--threshold=20", path)
}

// settings are the unit's last values by name.
func settings(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			out[name] = value
		}
	}
	return out
}

// handOver is the longest that a node takes to give away what it owns, and stopping what it then takes to tell the others and to end, also
// on a disk that does not answer.
const (
	handOver = 30 * time.Second
	stopping = 23 * time.Second
)

func TestUnitLetsANodeLeaveInGoodOrder(t *testing.T) {
	text, _ := unit(t)
	set := settings(text)
	if n, err := strconv.Atoi(set["TimeoutStopSec"]); err != nil || time.Duration(n)*time.Second < handOver+stopping {
		t.Errorf("TimeoutStopSec=%s: handing over may take %v, stopping %v", set["TimeoutStopSec"], handOver, stopping)
	}
	for name, want := range map[string]string{
		"Restart": "on-failure", "RestartPreventExitStatus": "2", "ExecReload": "/bin/kill -HUP $MAINPID", "Type": "exec",
		"StateDirectory": "skein", "ProtectSystem": "strict", "DynamicUser": "yes",
	} {
		if set[name] != want {
			t.Errorf("%s=%s, want %s", name, set[name], want)
		}
	}
	if n, err := strconv.Atoi(set["LimitNOFILE"]); err != nil || n < 1<<16 {
		t.Errorf("LimitNOFILE=%s", set["LimitNOFILE"])
	}
}
