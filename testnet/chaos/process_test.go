package chaos

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a node that dev.Mesh cannot run: a stranger, or one in a network namespace.
type process struct {
	t    *testing.T
	name string
	log  string
	args []string // command first
	env  []string // besides that of the test, without its settings
	cmd  *exec.Cmd
	gone chan struct{}
}

// newProcess names the log; start starts it. It is killed when the test ends.
func newProcess(t *testing.T, dir, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, log: filepath.Join(dir, name+".log"), args: args}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			lines := strings.Split(p.logged(), "\n")
			t.Logf("last lines of %s:\n%s", name, strings.Join(lines[max(0, len(lines)-12):], "\n"))
		}
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SKEIN_") {
			p.cmd.Env = append(p.cmd.Env, kv)
		}
	}
	p.cmd.Env = append(p.cmd.Env, p.env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	gone := make(chan struct{})
	p.gone = gone
	go func() {
		_ = p.cmd.Wait() // kill waits for it
		close(gone)
	}()
}

func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails where it is gone already
	<-p.gone
	p.cmd = nil
}

// ended reports whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// runs reports whether the process was started, and neither killed nor gone.
func (p *process) runs() bool { return p.cmd != nil && !p.ended() }

// exitCode waits for the process to end by itself.
func (p *process) exitCode(within time.Duration) (int, error) {
	select {
	case <-p.gone:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(within):
		return 0, fmt.Errorf("%s still runs after %v", p.name, within)
	}
}

func (p *process) logged() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data))
}

// warnings are the lines of a node's log that an operator should act on.
func warnings(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// ready asks /readyz.
func ready(addr string) error {
	c := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + addr + "/readyz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return err
}

// until polls until f returns nil, and fails the test with f's last error after the time.
func until(t *testing.T, within time.Duration, f func() error) {
	t.Helper()
	if err := poll(within, f); err != nil {
		t.Fatal(err)
	}
}

// poll polls until f returns nil, and returns f's last error after the time.
func poll(within time.Duration, f func() error) error {
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %w", within, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
