package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/client"
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

// TestTheMeshIsShownAsOneNodeSeesIt: text names the observer, the time, and how old what it knows is.
func TestTheMeshIsShownAsOneNodeSeesIt(t *testing.T) {
	asOf := time.Date(2026, 1, 31, 12, 0, 5, 0, time.UTC)
	view := `"observer":"n1","as_of":"` + asOf.Format(time.RFC3339) + `"`
	heard := `"members":[{"node":"n1","staleness_ms":0},{"node":"n2","staleness_ms":1234},{"node":"n3","staleness_ms":245678}]`
	answers := map[string]string{
		"/v1/mesh":         `{` + view + `,"health":"ok",` + heard + `}`,
		"/v1/mesh/members": `{` + view + `,` + heard + `}`,
		"/v1/mesh/ring":    `{` + view + `,` + heard + `}`,
		"/v1/mesh/partitions": `{` + view + `,` + heard + `,"partitions":[{"stream":"pay","state":"open","owner":"n2","staleness_ms":1234},
			{"stream":"pay","partition":1,"state":"open","staleness_ms":77}]}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	defer srv.Close()
	seen := "as n1 sees it at " + asOf.Local().Format(time.TimeOnly) + "; heard longest ago: n3, 4m5s\n"
	for args, rows := range map[string][]string{
		"mesh":            nil,
		"mesh members":    {"n2 - - - 0 0 0.00 1.2s", "n3 - - - 0 0 0.00 4m5s", "HEARD-AGO"},
		"mesh ring":       {"n2 - 0 0 0 1.2s", "n3 - 0 0 0 4m5s", "HEARD-AGO"},
		"mesh partitions": {"pay 0 open n2 1.2s 0", "pay 1 open - - 0", "OWNER HEARD-AGO TERM"},
	} {
		r := skein(t, []string{"SKEIN_SERVER=" + srv.URL}, "", strings.Fields(args)...)
		if shown := r.out + r.err; r.code != 0 || strings.Count(shown, seen) != 1 {
			t.Errorf("skein %s: %+v; want %q", args, r, seen)
		}
		if rows != nil && r.err != seen { // tables go into pipes
			t.Errorf("skein %s: standard error has %q", args, r.err)
		}
		words := strings.Join(strings.Fields(r.out), " ")
		for _, row := range rows {
			if !strings.Contains(words, row) {
				t.Errorf("skein %s: no %q in\n%s", args, row, r.out)
			}
		}
	}
	alone := client.View{Observer: "n1", AsOf: asOf}
	if s := seenBy(alone, []client.Staleness{{Node: "n1"}}); strings.Contains(s, "heard") {
		t.Errorf("of a mesh of one: %s", s)
	}
}
