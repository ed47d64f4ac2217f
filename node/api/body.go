package api

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"github.com/skeinmesh/skein/transport/wire"
)

// Bounds on what a compressed body may unfold to, besides Config.MaxBodyBytes.
const (
	maxRatio      = 256     // unfolded to compressed, once past ratioFree
	ratioFree     = 1 << 20 // bytes that any body may unfold to
	maxZstdWindow = 8 << 20
)

// ownBudget is the Budget of a server that was given none.
type ownBudget struct{ sem *semaphore.Weighted }

func newOwnBudget(n int64) ownBudget { return ownBudget{semaphore.NewWeighted(n)} }

func (b ownBudget) Reserve(ctx context.Context, n int64) error { return b.sem.Acquire(ctx, n) }
func (b ownBudget) Release(n int64)                            { b.sem.Release(n) }

// reserve takes n bytes of the budget for the request, or says overloaded.
func (c *Call) reserve(ctx context.Context, n int64) error {
	err := c.s.budget.Reserve(ctx, n)
	if err == nil {
		return nil
	}
	if c.R.Context().Err() != nil {
		return c.R.Context().Err()
	}
	c.s.met.overBudget.Inc()
	p := overloaded("the memory for bodies being received is taken (memory_budget); wait and send again")
	p.cause = err
	return p
}

// pacedReader cuts clients that send too slowly to ever finish: n bytes must be there after grace + n/rate.
type pacedReader struct {
	r     io.Reader
	ctl   *http.ResponseController
	start time.Time
	grace time.Duration
	rate  int64
	n     int64 // bytes read
	armed int64 // n when the deadline was set last
	want  int64 // Content-Length, or -1
	on    bool
	eof   bool
}

// pacedBody is the request's body, bounded in size and in time. done must be called when reading ended.
func (c *Call) pacedBody() *pacedReader {
	return &pacedReader{r: http.MaxBytesReader(c.w.ResponseWriter, c.R.Body, c.s.live().MaxBodyBytes),
		ctl: http.NewResponseController(c.w.ResponseWriter), start: time.Now(), grace: c.s.cfg.ReadGrace, rate: c.s.cfg.MinReadRate,
		want: c.R.ContentLength}
}

func (p *pacedReader) Read(b []byte) (int, error) {
	// Before each read that has more behind it: a deadline from further back would cut a client that keeps to the rate.
	if !p.on || p.n > p.armed {
		p.on, p.armed = true, p.n
		// Not every ResponseWriter has a connection behind it; then nothing is slow either.
		_ = p.ctl.SetReadDeadline(p.start.Add(p.grace + time.Duration(p.n/p.rate)*time.Second))
	}
	n, err := p.r.Read(b)
	p.n += int64(n)
	p.eof = p.eof || errors.Is(err, io.EOF) || p.n == p.want
	return n, err
}

// done lifts the deadline once all was read: else it would end the request's context while the handler still works. A body left
// unread keeps it, since the HTTP server reads on for a while before it answers.
func (p *pacedReader) done() {
	if p.on && p.eof {
		_ = p.ctl.SetReadDeadline(time.Time{})
	}
}

// bodyError says what a failed read of a body means.
func bodyError(err error) error {
	if _, ok := errors.AsType[*Problem](err); ok {
		return err
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problemOf(err)
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) {
		return NewProblem(http.StatusRequestTimeout, codeTooSlow, "the body arrived too slowly")
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return tooLarge(fmt.Sprintf("the zstd window is larger than %d bytes", maxZstdWindow))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("the body ended early")
	}
	return invalid("the body cannot be read: " + clip(err.Error()))
}

// decoded unfolds the Content-Encoding of body. Chains are refused: nobody needs them but bombs. The close function returns
// decoders to their pool.
func (c *Call) decoded(body *pacedReader) (io.Reader, func(), error) {
	enc := strings.ToLower(strings.TrimSpace(strings.Join(c.R.Header.Values("Content-Encoding"), ",")))
	bounded := func(r io.Reader) io.Reader { return &unfolded{r: r, src: body, most: c.s.live().MaxBodyBytes} }
	switch enc {
	case "", "identity":
		return body, func() {}, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, nil, badEncoding("gzip", err)
		}
		return bounded(z), func() {}, nil
	case "zstd":
		z, err := takeZstd(body)
		if err != nil {
			return nil, nil, badEncoding("zstd", err)
		}
		return bounded(z), func() { giveZstd(z) }, nil
	}
	detail := "Content-Encoding " + clip(enc) + " is not known; gzip and zstd are"
	if strings.Contains(enc, ",") {
		detail = "chained Content-Encodings are refused; use one of gzip and zstd"
	}
	return nil, nil, NewProblem(http.StatusUnsupportedMediaType, codeMediaType, detail)
}

func badEncoding(name string, err error) error {
	p := problemOf(bodyError(err))
	if p.Code == codeInvalid {
		p = invalid("the body is not " + name + ": " + clip(err.Error()))
	}
	return p
}

// unfolded stops bombs by size and by ratio.
type unfolded struct {
	r    io.Reader
	src  *pacedReader
	most int64
	n    int64
}

func (u *unfolded) Read(b []byte) (int, error) {
	n, err := u.r.Read(b)
	u.n += int64(n)
	if u.n > u.most {
		return 0, tooLarge(fmt.Sprintf("the body unfolds to more than %d bytes (max_body_bytes)", u.most))
	}
	if u.n > ratioFree && u.n > maxRatio*u.src.n {
		return 0, tooLarge(fmt.Sprintf("the body unfolds to more than %d times its size", maxRatio))
	}
	return n, err
}

// zstdPool keeps decoders: each costs its window.
var zstdPool sync.Pool

func takeZstd(r io.Reader) (*zstd.Decoder, error) {
	if z, ok := zstdPool.Get().(*zstd.Decoder); ok {
		if err := z.Reset(r); err != nil {
			return nil, err
		}
		return z, nil
	}
	// Concurrency 1 decodes in the caller: no goroutines to wait for.
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderMaxMemory(1<<30))
}

func giveZstd(z *zstd.Decoder) {
	if z.Reset(nil) == nil {
		zstdPool.Put(z)
	}
}

// hasBody refuses requests that do not say where their body ends: an empty event must be meant.
func (c *Call) hasBody() error {
	r := c.R
	if r.ContentLength == 0 && r.ProtoMajor == 1 && len(r.Header["Content-Length"]) == 0 && len(r.TransferEncoding) == 0 {
		return NewProblem(http.StatusLengthRequired, codeLength, "send a body with Content-Length, or chunked; Content-Length: 0 means an empty event")
	}
	if r.ContentLength > c.s.live().MaxBodyBytes {
		return NewProblem(http.StatusRequestEntityTooLarge, wire.CodeTooLarge,
			fmt.Sprintf("the body has %d bytes; at most %d are taken (max_body_bytes)", r.ContentLength, c.s.live().MaxBodyBytes))
	}
	return nil
}
