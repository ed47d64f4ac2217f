package api

import (
	"net/http"
	"testing"
	"unicode/utf8"
)

// FuzzTrace holds that only a trace context of its form is passed on.
func FuzzTrace(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b")
	f.Add("ff-00000000000000000000000000000000-0000000000000000-00", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		for _, h := range traceHeaders(http.Header{"Traceparent": {parent}, "Tracestate": {state}}) {
			if len(h.Value) > 512 || h.Name == "traceparent" && !utf8.ValidString(h.Value[:55]) {
				t.Fatalf("%q was passed on", h)
			}
		}
	})
}

// FuzzConfig holds that a stream's config that is taken is valid.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"partitions":4,"replicas":3,"labels":{"a":"b"}}`))
	f.Add([]byte(`{"partitions":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		cfg, err := readConfig(b)
		if err == nil {
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
		}
		var numbers map[string]any
		_ = decodeNumbers(b, &numbers)
	})
}
