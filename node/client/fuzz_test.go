package client

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// FuzzProblem feeds answers that need not be ours: an error comes of each, and it has the answer's status.
func FuzzProblem(f *testing.F) {
	f.Add("application/problem+json", "1", []byte(`{"code":"overloaded","status":503,"retryable":true,"retry_after_ms":-1}`))
	f.Add("application/json", "", []byte(`{"failing":["gossip"],"checks":[{"name":"gossip"}]}`))
	f.Add("text/html", "99999999999999999999", []byte("<html>"))
	f.Fuzz(func(t *testing.T, kind, after string, body []byte) {
		h := http.Header{"Content-Type": {kind}, "Retry-After": {after}}
		e := decodeProblem(&http.Response{StatusCode: http.StatusServiceUnavailable, Header: h, Body: io.NopCloser(bytes.NewReader(body))})
		if e.Status != http.StatusServiceUnavailable || e.Title == "" || e.RetryAfter < 0 {
			t.Fatalf("%+v", e)
		}
	})
}
