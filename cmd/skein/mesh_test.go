package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestWhatIsNotKnownIsNotShownAsNothing: with shards of the catalog that do not answer.
func TestWhatIsNotKnownIsNotShownAsNothing(t *testing.T) {
	const why = `"incomplete":"3 of 8 shards of the catalog do not answer"`
	answers := map[string]string{
		"/v1/mesh":            `{"health":"critical","streams":2,"partitions":9,` + why + `}`,
		"/v1/mesh/partitions": `{"partitions":[{"stream":"pay","owner":"n1"}],` + why + `}`,
		"/v1/mesh/ring":       `{"members":[{"node":"n1"}],` + why + `}`,
		"/v1/streams":         `{"streams":[{"name":"pay"}],` + why + `}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	defer srv.Close()
	environ := []string{"SKEIN_SERVER=" + srv.URL}
	for args, shown := range map[string]string{"mesh partitions": "pay", "mesh ring": "n1", "stream list": "pay"} {
		if r := skein(t, environ, "", strings.Fields(args)...); r.code != 1 || !strings.Contains(r.out, shown) || !strings.Contains(r.err, "3 of 8 shards") {
			t.Errorf("skein %s: %+v", args, r)
		}
		if r := skein(t, environ, "", append(strings.Fields(args), "-o", "json")...); r.code != 0 || !strings.Contains(r.out, "3 of 8 shards") {
			t.Errorf("skein %s -o json: %+v", args, r)
		}
	}
	if r := skein(t, environ, "", "mesh"); r.code != 0 || !strings.Contains(r.out, "not all known; of those that are: 2 with 9 partitions") {
		t.Errorf("skein mesh: %+v", r)
	}
	answers["/v1/mesh"] = `{"health":"critical","streams":0,` + why + `}`
	if r := skein(t, environ, "", "mesh"); r.code != 0 || !strings.Contains(r.out, "streams     not known\n") {
		t.Errorf("skein mesh: %+v", r)
	}
}
