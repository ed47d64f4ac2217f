package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/backup"
	"github.com/skeinmesh/skein/transport/wire"
)

// fakeArchives exports what it holds, a little at a time, and takes what is imported.
type fakeArchives struct {
	file      string
	exportErr error // after the file
	importErr error
	got       string
	readErr   error
	options   flow.ImportOptions
	hold      chan struct{} // imports wait until it is closed
	begun     chan struct{} // told when an import begins
}

func (a *fakeArchives) Export(_ context.Context, stream string, w io.Writer) (flow.ArchiveTotals, error) {
	if stream == "nothing" {
		return flow.ArchiveTotals{}, notFoundStream(stream)
	}
	for len(a.file) > 0 {
		n := min(len(a.file), 100_000)
		if _, err := io.WriteString(w, a.file[:n]); err != nil {
			return flow.ArchiveTotals{}, err
		}
		a.file = a.file[n:]
	}
	return flow.ArchiveTotals{Partitions: 1}, a.exportErr
}

func (a *fakeArchives) Import(_ context.Context, _ string, r io.Reader, o flow.ImportOptions) (flow.ArchiveTotals, error) {
	if a.hold != nil {
		<-a.hold
		return flow.ArchiveTotals{}, nil
	}
	if a.begun != nil {
		a.begun <- struct{}{}
	}
	a.options = o
	raw, err := io.ReadAll(r)
	a.got, a.readErr = string(raw), err
	if err != nil {
		return flow.ArchiveTotals{}, err
	}
	return flow.ArchiveTotals{Partitions: 2, Events: 3}, a.importErr
}

func TestExportIsSentWhole(t *testing.T) {
	w := newWorld(t)
	w.archives.file = strings.Repeat("0123456789", 100_000)
	resp, err := http.Get(w.url() + "/v1/streams/orders/export")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || len(body) != 1_000_000 || resp.Header.Get("Content-Type") != contentExport {
		t.Fatalf("%d, %d bytes, %v, %v", resp.StatusCode, len(body), resp.Header, err)
	}
	w.expect(404, wire.CodeStreamNotFound, "GET", "/v1/streams/nothing/export", "")
	w.expect(400, codeInvalidName, "GET", "/v1/streams/a%2fb/export", "")
}

func TestExportThatFailsMidwaySeemsNotComplete(t *testing.T) {
	w := newWorld(t)
	w.archives.file, w.archives.exportErr = strings.Repeat("0123456789", 100_000), errors.New("no replica answers any more")
	resp, err := http.Get(w.url() + "/v1/streams/orders/export")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Fatalf("%d bytes and a good end", n)
	}
	if !strings.Contains(w.log.String(), "an export was cut short") {
		t.Error("the log does not tell")
	}
}

func TestImportAnswersWhatItMade(t *testing.T) {
	w := newWorld(t)
	file := strings.Repeat("x", 1<<20)
	got := w.expect(201, "", "POST", "/v1/streams/restored/import?retention_ms=-1&retention_bytes=7", file)
	if got["stream"] != "restored" || got["events"] != 3.0 || got["partitions"] != 2.0 || w.archives.got != file {
		t.Fatalf("%v after %d bytes", got, len(w.archives.got))
	}
	if w.archives.options != (flow.ImportOptions{RetentionMS: -1, RetentionBytes: 7}) {
		t.Fatalf("%+v", w.archives.options)
	}
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{wire.Errorf(wire.KindCorrupt, backup.CodeDamaged, "at byte 7"), 400, backup.CodeDamaged},
		{wire.Errorf(wire.KindConflict, "exists", "there"), 409, "exists"},
		{wire.Errorf(wire.KindUnavailable, wire.CodeMeshVersion, "n2 is too old"), 503, wire.CodeMeshVersion},
	} {
		w.archives.importErr = c.err
		w.expect(c.status, c.code, "POST", "/v1/streams/restored/import", file)
	}
	w.expect(400, codeInvalidName, "POST", "/v1/streams/_own/import", file)
	w.expect(400, codeInvalid, "POST", "/v1/streams/restored/import?retention_ms=-2", file)
	w.expect(415, codeMediaType, "POST", "/v1/streams/restored/import", file, "Content-Encoding: gzip")
}

func TestImportThatBreaksOffIsNoFileThatEnds(t *testing.T) {
	w := newWorld(t)
	w.archives.begun = make(chan struct{})
	pr, pw := io.Pipe()
	req, err := http.NewRequest(http.MethodPost, w.url()+"/v1/streams/restored/import", pr)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.WriteString(pw, "the beginning")
		<-w.archives.begun
		_ = pw.CloseWithError(errors.New("the sender died"))
	}()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Fatal("it was answered:", resp.Status)
	}
	w.s.Drain()
	w.http.Close() // waits for the handler
	if w.archives.readErr == nil || wire.CodeOf(w.archives.readErr) == backup.CodeDamaged || !strings.Contains(w.archives.readErr.Error(), "goes on where it stopped") {
		t.Fatalf("the import read %q, %v", w.archives.got, w.archives.readErr)
	}
	w.http = nil
}

func TestArchivesAtOnceAreBounded(t *testing.T) {
	w := newWorld(t)
	w.archives.hold = make(chan struct{})
	done := make(chan int, maxArchives)
	for range maxArchives {
		go func() { done <- w.do("POST", "/v1/streams/a/import", "x").Code }()
	}
	for w.s.archives.Load() < maxArchives {
		select {
		case code := <-done:
			t.Fatal("one was answered:", code)
		default:
		}
	}
	w.expect(503, wire.CodeOverloaded, "POST", "/v1/streams/b/import", "x")
	w.expect(503, wire.CodeOverloaded, "GET", "/v1/streams/b/export", "")
	close(w.archives.hold)
	for range maxArchives {
		if code := <-done; code != 201 {
			t.Fatal(code)
		}
	}
	w.s.Drain()
	w.expect(503, wire.CodeDraining, "GET", "/v1/streams/b/export", "")
}
