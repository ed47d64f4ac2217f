package api

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"
)

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	w.expect(200, "", "GET", "/livez", "")
	w.mesh.checks = []Check{{Name: "gossip", OK: true}}
	if v := w.expect(200, "", "GET", "/readyz?verbose", ""); v["checks"] == nil {
		t.Fatalf("%v", v)
	}
	w.mesh.checks = append(w.mesh.checks, Check{Name: "catalog", Detail: "no quorum"})
	if v := w.expect(503, codeNotReady, "GET", "/readyz", ""); !slices.Equal(v["failing"].([]any), []any{"catalog"}) || v["checks"] != nil {
		t.Fatalf("%v", v)
	}
	w.mesh.checks = nil
	if v := w.expect(200, "", "GET", "/readyz", ""); v["status"] != "ready" || v["code"] != nil || v["retryable"] != nil || v["retry_after_ms"] != nil {
		t.Fatalf("a node that is ready says %v", v)
	}
	w.s.Drain()
	if v := w.expect(503, codeNotReady, "GET", "/readyz?verbose", ""); !slices.Equal(v["failing"].([]any), []any{"http"}) || len(v["checks"].([]any)) != 1 {
		t.Fatalf("%v", v)
	}
	w.expect(200, "", "GET", "/livez", "")
	w.expect(503, "draining", "GET", "/v1/streams/a/events", "")
}

func TestVersionAndProfiles(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *Deps) { c.Version = "1.2.3" })
	if v := w.expect(200, "", "GET", "/version", ""); v["version"] != "1.2.3" || v["node"] != "n1" {
		t.Fatalf("%v", v)
	}
	w.expect(403, codeLoopbackOnly, "GET", "/debug/pprof/heap", "") // the recorder's peer is 192.0.2.1
	res, err := http.Get(w.url() + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || !bytes.Contains(b, []byte("goroutine")) {
		t.Fatalf("%d %s", res.StatusCode, b)
	}
	http.DefaultClient.CloseIdleConnections()
}
