package dev

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// spawner starts processes from one OS thread that lives as long as it does: the kernel's parent-death signal is tied to
// the thread that forked, and Go's threads come and go.
type spawner struct {
	jobs chan func()
	quit chan struct{} // closed by close
	done chan struct{}
	once sync.Once
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and what it still started with the thread
		for {
			select {
			case f := <-s.jobs:
				f()
			case <-s.quit:
				return
			}
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	select {
	case s.jobs <- func() { result <- cmd.Start() }:
		return <-result
	case <-s.done:
		return errors.New("the mesh was stopped")
	}
}

func (s *spawner) close() {
	if s == nil {
		return
	}
	s.once.Do(func() { close(s.quit) })
	<-s.done
}

// process is one node's, started any number of times.
type process struct {
	name, log string

	mu    sync.Mutex
	cmd   *exec.Cmd
	gone  chan struct{} // closed when the current process was waited for
	asked bool          // we ended it
}

// start runs the binary; ended is called once if the process ends without having been asked to.
func (p *process) start(s *spawner, binary string, args, env []string, ended func(error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("dev: %s is running", p.name)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
	// A process group of its own: Ctrl-C reaches the parent alone, which then stops the nodes in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.start(cmd); err != nil {
		return fmt.Errorf("dev: start %s: %w", p.name, err)
	}
	gone := make(chan struct{})
	p.cmd, p.gone, p.asked = cmd, gone, false
	go func() { // ends with the process; end waits for it through gone
		err := cmd.Wait()
		p.mu.Lock()
		asked := p.asked
		p.cmd = nil
		p.mu.Unlock()
		close(gone)
		if !asked {
			ended(p.lastWords(err))
		}
	}()
	return nil
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("dev: %s is not running", p.name)
	}
	return p.cmd.Process.Signal(sig)
}

// end signals the process and waits until it is gone, killing it after timeout. One that is not running is fine.
func (p *process) end(sig syscall.Signal, timeout time.Duration) error {
	p.mu.Lock()
	cmd, gone := p.cmd, p.gone
	if cmd == nil {
		p.mu.Unlock()
		return nil
	}
	p.asked = true
	err := cmd.Process.Signal(sig)
	if sig != syscall.SIGKILL {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGCONT)) // a stopped process would not hear it
	}
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("dev: end %s: %w", p.name, err)
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-gone:
		return nil
	case <-t.C:
	}
	cmd.Process.Kill()
	<-gone
	return fmt.Errorf("dev: %s did not end within %v and was killed", p.name, timeout)
}

// lastWords adds the end of the log to what the process ended with.
func (p *process) lastWords(err error) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	if tail := logTail(p.log, 5); tail != "" {
		return fmt.Errorf("%w; its last words (%s):\n%s", err, p.log, tail)
	}
	return fmt.Errorf("%w; its log: %s", err, p.log)
}

func logTail(path string, lines int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 8192 {
		f.Seek(-8192, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(f, 8192))
	all := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// plainEnv drops configuration meant for the surrounding program.
func plainEnv(environ []string) []string {
	var out []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "SKEIN_") {
			out = append(out, kv)
		}
	}
	return out
}
