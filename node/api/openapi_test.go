package api

import (
	"encoding/json"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"reflect"

	"github.com/skeinmesh/skein/flow"
)

// TestOpenAPIMatchesTheRoutes holds the document against what is registered, both ways.
func TestOpenAPIMatchesTheRoutes(t *testing.T) {
	w := newWorld(t)
	rec := w.do("GET", "/openapi.json", "")
	type param struct{ Name, In string }
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Schemas   map[string]struct{ Properties map[string]any }
			Responses map[string]any
		}
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("%v, %q", err, doc.OpenAPI)
	}
	documented := map[string][]string{}
	for path, item := range doc.Paths {
		for method, raw := range item {
			if method == "parameters" {
				continue
			}
			var op struct{ Parameters []param }
			if err := json.Unmarshal(raw, &op); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			query := []string{}
			for _, p := range op.Parameters {
				if p.In == "query" {
					query = append(query, p.Name)
				}
			}
			sort.Strings(query)
			documented[strings.ToUpper(method)+" "+path] = query
		}
	}
	for _, rt := range w.s.router.all {
		name := rt.Method + " " + strings.Replace(rt.Pattern, "...}", "}", 1)
		want := slices.Sorted(slices.Values(rt.Query))
		got, ok := documented[name]
		if !ok || !slices.Equal(got, want) {
			t.Errorf("%s: documented %v (%v), takes %v", name, got, ok, want)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("%s is documented and does not exist", name)
	}
	for schema, fields := range map[string][]string{
		"StreamConfig": configFields, "Envelope": envelopeFields, "Stream": jsonFields(flow.StreamInfo{}),
		"MeshSummary": meshFields(MeshSummary{}), "MeshMembers": meshFields(MeshMembers{}), "MeshRing": meshFields(MeshRing{}), "MeshPartitions": meshFields(MeshPartitions{}),
	} {
		var got []string
		for f := range doc.Components.Schemas[schema].Properties {
			got = append(got, f)
		}
		sort.Strings(got)
		if want := slices.Sorted(slices.Values(fields)); !slices.Equal(got, want) {
			t.Errorf("schema %s: %v, want %v", schema, got, want)
		}
	}
	for _, ref := range strings.Split(rec.Body.String(), `"$ref": "#/components/`)[1:] {
		kind, name, _ := strings.Cut(ref[:strings.IndexByte(ref, '"')], "/")
		if _, ok := doc.Components.Schemas[name]; !ok && kind == "schemas" {
			t.Errorf("schema %s is missing", name)
		}
		if _, ok := doc.Components.Responses[name]; !ok && kind == "responses" {
			t.Errorf("response %s is missing", name)
		}
	}
}

func meshFields(v any) []string {
	head := jsonFields(View{})
	own := jsonFields(v)
	if reflect.TypeOf(v).Field(0).Name != "View" {
		panic("a mesh answer without View")
	}
	return append(head, own...)
}

// TestMetricsAreCatalogued compares metrics.md with what the registry has once every route was used.
func TestMetricsAreCatalogued(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 2)
	w.do("GET", "/v1/streams/a/events?until=end", "")
	fams, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Metrics of the HTTP front door\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range fams {
		if !strings.HasPrefix(f.GetName(), "skein_") {
			t.Errorf("%s lacks the prefix", f.GetName())
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		b.WriteString("| `" + f.GetName() + "` | " + strings.ToLower(f.GetType().String()) + " | " + strings.Join(labels, ", ") + " | " + f.GetHelp() + " |\n")
	}
	if os.Getenv("SKEIN_WRITE_DOCS") != "" {
		if err := os.WriteFile("metrics.md", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("metrics.md")
	if err != nil || string(got) != b.String() {
		t.Fatalf("metrics.md is stale (%v); run SKEIN_WRITE_DOCS=1 go test -run TestMetricsAreCatalogued", err)
	}
	page := w.do("GET", "/metrics", "")
	if page.Code != 200 || !strings.Contains(page.Body.String(), `skein_http_requests_total{method="POST",route="/v1/streams/{stream}/events/batch",status="200"} 1`) {
		t.Fatalf("%d %s", page.Code, page.Body)
	}
}
