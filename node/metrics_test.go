package node

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// catalogued is one row of metrics.md.
type catalogued struct{ typ, unit, labels, meaning string }

// readCatalogue reads the table rows that begin with the name of a metric.
func readCatalogue(t *testing.T) map[string]catalogued {
	t.Helper()
	raw, err := os.ReadFile("metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]catalogued{}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "| `skein_") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 6 || cells[5] == "" {
			t.Errorf("metrics.md: %q has not six cells, or does not say when to worry", line)
			continue
		}
		name := strings.Trim(cells[0], "`")
		if _, twice := out[name]; twice {
			t.Errorf("metrics.md lists %s twice", name)
		}
		out[name] = catalogued{typ: cells[1], unit: cells[2], labels: cells[3], meaning: cells[4]}
	}
	return out
}

// description takes a Desc apart: its fields are not exported.
var description = regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: "(.*)", unit: "\w*", constLabels: \{(.*)\}, variableLabels: \{([^}]*)\}\}$`)

// registered describes every metric of a node, those included that have no value yet.
func registered(t *testing.T, reg *prometheus.Registry) map[string]catalogued {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		reg.Describe(descs)
		close(descs)
	}()
	out := map[string]catalogued{}
	for d := range descs {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("a description of unknown form: %s", d)
		}
		var labels []string
		for l := range strings.SplitSeq(m[3]+","+m[4], ",") {
			if name, _, _ := strings.Cut(l, "="); strings.TrimSpace(name) != "" {
				labels = append(labels, strings.TrimSpace(name))
			}
		}
		slices.Sort(labels)
		out[m[1]] = catalogued{labels: strings.Join(labels, ", "), meaning: strings.ReplaceAll(m[2], `\"`, `"`), unit: unitOf(m[1])}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		m := out[f.GetName()]
		m.typ = strings.ToLower(f.GetType().String())
		out[f.GetName()] = m
	}
	return out
}

// unitOf is the unit that a metric's name ends with, by the conventions of Prometheus.
func unitOf(name string) string {
	switch name = strings.TrimSuffix(name, "_total"); {
	case strings.HasSuffix(name, "_seconds"):
		return "seconds"
	case strings.HasSuffix(name, "_bytes"):
		return "bytes"
	}
	return "count"
}

// TestEveryMetricOfANodeIsCatalogued holds metrics.md and the registry of a running node against each other, both ways.
func TestEveryMetricOfANodeIsCatalogued(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 1)
	m.must(0, 201, "PUT", "/v1/streams/s", `{"partitions":1,"replicas":1}`)
	m.must(0, 200, "POST", "/v1/streams/s/events?key=k", "v")
	have, documented := registered(t, m.nodes[0].registry), readCatalogue(t)
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue // the collectors that every Go program has; metrics.md names them as such
		}
		is, doc := have[name], documented[name]
		delete(documented, name)
		if is.typ == "" {
			is.typ = doc.typ // no value yet: the registry does not tell
			if counts := strings.HasSuffix(name, "_total"); counts != (doc.typ == "counter") {
				t.Errorf("%s: a counter's name ends with _total, and no other's does; metrics.md says %s", name, doc.typ)
			}
		}
		if is != doc {
			t.Errorf("%s:\n the node has %+v\n metrics.md   %+v", name, is, doc)
		}
	}
	for name := range documented {
		t.Errorf("metrics.md lists %s, which no node has", name)
	}
}
