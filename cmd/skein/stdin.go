package main

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// interruptible makes reads of a file end with ctx: a read of a terminal or a pipe cannot be called off once it waits, so it
// waits in poll instead, a tenth of a second at a time.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	f, ok := r.(*os.File)
	if !ok {
		return r
	}
	return &pollReader{ctx: ctx, f: f}
}

type pollReader struct {
	ctx context.Context
	f   *os.File
}

func (p *pollReader) Read(b []byte) (int, error) {
	fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}}
	for {
		if err := p.ctx.Err(); err != nil {
			return 0, context.Cause(p.ctx)
		}
		n, err := unix.Poll(fds, 100)
		if err != nil && err != unix.EINTR || n > 0 {
			return p.f.Read(b)
		}
	}
}
