package api

import (
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strings"
	"testing"

	"reflect"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/node/ops"
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
		"Operation": jsonFields(ops.Operation{}), "Operations": jsonFields(ops.List{}),
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
	for _, nested := range []struct {
		schema, field string
		v             any
	}{{"MeshSummary", "under_replicated", UnderReplicated{}}, {"MeshMembers", "members", Member{}}, {"MeshPartitions", "partitions", MeshPartition{}},
		{"MeshRing", "members", RingShare{}}} {
		var list struct {
			Items struct{ Properties map[string]any }
		}
		raw, err := json.Marshal(doc.Components.Schemas[nested.schema].Properties[nested.field])
		if err != nil || json.Unmarshal(raw, &list) != nil {
			t.Fatalf("%s.%s: %v", nested.schema, nested.field, err)
		}
		got, want := slices.Sorted(maps.Keys(list.Items.Properties)), slices.Sorted(slices.Values(jsonFields(nested.v)))
		if !slices.Equal(got, want) {
			t.Errorf("schema %s.%s: %v, want %v", nested.schema, nested.field, got, want)
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

// TestMetricsPageShowsTheRegistry; that every metric is catalogued is node's to test, which has them all.
func TestMetricsPageShowsTheRegistry(t *testing.T) {
	w := newWorld(t)
	w.seed("a", 2)
	page := w.do("GET", "/metrics", "")
	if page.Code != 200 || !strings.Contains(page.Body.String(), `skein_http_requests_total{method="POST",route="/v1/streams/{stream}/events/batch",status="200"} 1`) {
		t.Fatalf("%d %s", page.Code, page.Body)
	}
}

// What is kept and not acted upon must not look as if it worked.
func TestSettingsWithoutEffectAreMarked(t *testing.T) {
	w := newWorld(t)
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Description string }
			}
		}
	}
	if err := json.Unmarshal(w.do("GET", "/openapi.json", "").Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	var marked []string
	for name, p := range doc.Components.Schemas["StreamConfig"].Properties {
		if strings.Contains(strings.ToLower(p.Description), "not available yet") {
			marked = append(marked, name)
		}
	}
	sort.Strings(marked)
	if want := []string{"affinity", "hot_keys", "max_partitions", "min_partitions", "order", "order_window_ms", "pin"}; !slices.Equal(marked, want) {
		t.Errorf("marked as not available yet: %v, want %v", marked, want)
	}
}
