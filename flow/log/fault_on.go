//go:build skeinfault

package log

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// faults are read once from SKEIN_FAULT, a comma-separated list of:
//
//	fsync_delay=50ms       every fsync of a journal or segment file takes that much longer
//	fsync_delay_while=PATH only while there is a file of that name
//	fsync_fail_after=N     the N+1st fsync and all that follow fail with EIO
//	full_while=PATH        no new file of the journal or the store finds space while there is a file of that name
//
// They exist in builds with the tag skeinfault alone.
var faults = sync.OnceValue(func() *faultPlan {
	p := &faultPlan{failAfter: -1}
	for _, s := range strings.Split(os.Getenv("SKEIN_FAULT"), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(s), "=")
		switch name {
		case "fsync_delay":
			p.delay, _ = time.ParseDuration(value)
		case "fsync_delay_while":
			p.while = value
		case "full_while":
			p.full = value
		case "fsync_fail_after":
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				p.failAfter = n
			}
		}
	}
	return p
})

type faultPlan struct {
	delay     time.Duration
	while     string // "": always
	full      string // "": never
	failAfter int64  // -1: never
	count     atomic.Int64
}

func syncFile(f File) error {
	p := faults()
	if p.delay > 0 && p.slowNow() {
		time.Sleep(p.delay)
	}
	if n := p.count.Add(1); p.failAfter >= 0 && n > p.failAfter {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: unix.EIO}
	}
	return f.Sync()
}

func (p *faultPlan) slowNow() bool { return p.while == "" || isThere(p.while) }

func spaceFor(path string) error {
	if p := faults(); p.full != "" && isThere(p.full) {
		return &os.PathError{Op: "fallocate", Path: path, Err: unix.ENOSPC}
	}
	return nil
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
