package bench

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// proc is one process of a system. It is used by one goroutine at a time.
type proc struct {
	name string
	args []string
	log  string // file that takes its output
	cmd  *exec.Cmd
	done chan error
}

func (p *proc) start() error {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// The children die with us, whatever ends us.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.done = make(chan error, 1)
	go func(cmd *exec.Cmd, done chan<- error) { done <- cmd.Wait() }(p.cmd, p.done)
	return nil
}

// kill ends the process as a crash would, and waits for it.
func (p *proc) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	p.cmd = nil
}

// exited reports an early end, with the last lines of the log.
func (p *proc) exited() error {
	if p.cmd == nil {
		return nil
	}
	select {
	case err := <-p.done:
		p.done <- err
		return fmt.Errorf("%s ended early (%v): %s", p.name, err, tail(p.log))
	default:
		return nil
	}
}

func tail(file string) string {
	b, _ := os.ReadFile(file)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// memory returns a figure of /proc/PID/status in MiB: VmRSS (now) or VmHWM (the most so far).
func (p *proc) memory(field string) (float64, error) {
	if p.cmd == nil {
		return 0, errors.New("process is not running")
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), field+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no %s for %s", field, p.name)
}

// freePorts reserves n loopback ports that are free for TCP and UDP right now.
func freePorts(n int) ([]int, error) {
	var ports []int
	for len(ports) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			continue // taken for UDP: try another
		}
		defer u.Close()
		ports = append(ports, port)
	}
	return ports, nil
}

// until calls f until it succeeds; the last error names what was waited for.
func until(d time.Duration, what string, procs []*proc, f func() error) error {
	for deadline := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil {
			return nil
		}
		for _, p := range procs {
			if e := p.exited(); e != nil {
				return e
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, d, err)
		}
	}
}
