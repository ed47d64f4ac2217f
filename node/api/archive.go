package api

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/skeinmesh/skein/flow"
)

const (
	contentExport = "application/vnd.skein.export"
	// maxArchives bounds the exports and imports that run at once through this node: each holds a chunk or two in memory.
	maxArchives = 8
	// exportBuffer is what is written to a connection at once.
	exportBuffer = 256 << 10
)

// enterArchive takes one of the places for exports and imports; leave it with the returned function.
func (s *Server) enterArchive() (leave func(), err error) {
	if s.draining() {
		return nil, drainingHere()
	}
	if s.archives.Add(1) > maxArchives {
		s.archives.Add(-1)
		return nil, overloaded("this node runs " + strconv.Itoa(maxArchives) + " exports and imports already; wait, or ask another one")
	}
	return func() { s.archives.Add(-1) }, nil
}

// exportStream sends a stream as a file. An error that comes when part of it was sent cuts the connection: a body that seems complete
// must be.
func (s *Server) exportStream(c *Call) error {
	name := c.Path("stream")
	if err := checkName(name); err != nil {
		return err
	}
	leave, err := s.enterArchive()
	if err != nil {
		return err
	}
	defer leave()
	w := &exportWriter{c: c, ctl: http.NewResponseController(c.w.ResponseWriter)}
	buf := bufio.NewWriterSize(w, exportBuffer)
	if _, err = s.dep.Archives.Export(c.R.Context(), name, buf); err == nil {
		err = buf.Flush()
	}
	switch {
	case err == nil:
		return nil
	case !w.begun:
		return err
	}
	s.log.Warn("an export was cut short", "request", c.ID, "stream", name, "err", err)
	panic(http.ErrAbortHandler)
}

// exportWriter begins the answer with the first bytes, and gives a reader that stopped up in the end.
type exportWriter struct {
	c     *Call
	ctl   *http.ResponseController
	begun bool
}

func (w *exportWriter) Write(b []byte) (int, error) {
	if !w.begun {
		w.begun = true
		h := w.c.w.Header()
		h.Set("Content-Type", contentExport)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
	}
	_ = w.ctl.SetWriteDeadline(time.Now().Add(w.c.s.cfg.SlowReader))
	return w.c.w.Write(b)
}

// importAnswer is what became of an import.
type importAnswer struct {
	Stream string `json:"stream"`
	flow.ArchiveTotals
}

// importStream makes a stream of a file.
func (s *Server) importStream(c *Call) error {
	name := c.Path("stream")
	if err := checkOwnName(name); err != nil {
		return err
	}
	var o flow.ImportOptions
	var err error
	if o.RetentionMS, err = c.Int("retention_ms", 0, -1, math.MaxInt64); err != nil {
		return err
	}
	if o.RetentionBytes, err = c.Int("retention_bytes", 0, -1, math.MaxInt64); err != nil {
		return err
	}
	if enc := c.R.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return NewProblem(http.StatusUnsupportedMediaType, codeMediaType, "this route takes no Content-Encoding: the events in an export are compressed already")
	}
	leave, err := s.enterArchive()
	if err != nil {
		return err
	}
	defer leave()
	body := &importReader{r: c.R.Body, ctl: http.NewResponseController(c.w.ResponseWriter), wait: s.cfg.MaxWait}
	t, err := s.dep.Archives.Import(c.R.Context(), name, body, o)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/streams/"+name)
	return c.JSON(http.StatusCreated, importAnswer{Stream: name, ArchiveTotals: t})
}

// importReader reads a body of any length, and tells one that broke off from a file that ends.
type importReader struct {
	r    io.Reader
	ctl  *http.ResponseController
	wait time.Duration // for each read
}

func (r *importReader) Read(b []byte) (int, error) {
	_ = r.ctl.SetReadDeadline(time.Now().Add(r.wait)) // not every ResponseWriter has a connection behind it
	n, err := r.r.Read(b)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		_ = r.ctl.SetReadDeadline(time.Time{}) // else it would end the request's context while the last events are stored
		return n, io.EOF
	}
	p := problemOf(bodyError(err))
	p.Detail += "; send the same file again, and the import goes on where it stopped"
	return n, p
}
