package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archive is a node that exports "the whole file", cut short for the stream "cut", and imports what it is sent, after refusals.
func archive(t *testing.T, refusals int) (env []string, imported *[]string) {
	t.Helper()
	imported = new([]string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, "the whole file")
			if strings.Contains(r.URL.Path, "/cut/") {
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			return
		}
		body, _ := io.ReadAll(r.Body)
		*imported = append(*imported, r.URL.RequestURI()+" "+string(body))
		if len(*imported) <= refusals {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"status":503,"code":"no-quorum","detail":"wait","retryable":true,"retry_after_ms":1}`)
			return
		}
		w.WriteHeader(201)
		_, _ = io.WriteString(w, `{"stream":"s","partitions":2,"events":7,"bytes":2048}`)
	}))
	t.Cleanup(srv.Close)
	return []string{"SKEIN_SERVER=" + srv.URL}, imported
}

func TestExportAppearsOnceItIsComplete(t *testing.T) {
	env, _ := archive(t, 0)
	dir := t.TempDir()
	file := filepath.Join(dir, "orders.skein")
	if r := skein(t, env, "", "export", "cut", file); r.code != 1 || !strings.Contains(r.err, "cut short") {
		t.Fatalf("%+v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatalf("%v, %v are left", left, err)
	}
	if r := skein(t, env, "", "export", "orders", file); r.code != 0 || r.out != "" {
		t.Fatalf("%+v", r)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "the whole file" {
		t.Fatalf("%q, %v", raw, err)
	}
	if r := skein(t, env, "", "export", "orders", file); r.code != 2 || !strings.Contains(r.err, "exists") {
		t.Fatalf("over a file that is there: %+v", r)
	}
	for _, args := range [][]string{{"export", "orders"}, {"export", "orders", "-"}} {
		if r := skein(t, env, "", args...); r.code != 0 || r.out != "the whole file" {
			t.Fatalf("%v: %+v", args, r)
		}
	}
}

func TestImportSendsTheFileAgainWhereItCan(t *testing.T) {
	env, imported := archive(t, 2)
	file := filepath.Join(t.TempDir(), "orders.skein")
	if err := os.WriteFile(file, []byte("the whole file"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := skein(t, env, "", "import", "s", file, "--retention", "none", "--retention-bytes", "1KiB")
	if r.code != 0 || !strings.Contains(r.out, "stream s: 7 events in 2 partitions") {
		t.Fatalf("%+v", r)
	}
	want := "/v1/streams/s/import?retention_bytes=1024&retention_ms=-1 the whole file"
	if len(*imported) != 3 || (*imported)[0] != want || (*imported)[2] != want {
		t.Fatalf("%q", *imported)
	}
	env, imported = archive(t, 0)
	if r := skein(t, env, "from stdin", "import", "s", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"events": 7`) || !strings.HasSuffix((*imported)[0], "from stdin") {
		t.Fatalf("%+v, %q", r, *imported)
	}
	if r := skein(t, env, "", "import", "s", file+".gone"); r.code != 2 {
		t.Fatalf("%+v", r)
	}
}
