package node

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/config"
)

// views are the routes that show the mesh as one node sees it.
var views = []string{"/v1/mesh", "/v1/mesh/members", "/v1/mesh/ring", "/v1/mesh/partitions"}

// staleness is who observes, of when, and how old what it knows of each node is.
func (m *testMesh) staleness(i int, path string) (observer string, asOf time.Time, age map[string]time.Duration) {
	m.t.Helper()
	var v struct {
		Observer string
		AsOf     time.Time `json:"as_of"`
		Members  []struct {
			Node        string
			StalenessMS *int64 `json:"staleness_ms"`
		}
	}
	if err := json.Unmarshal([]byte(m.must(i, 200, "GET", path, "")), &v); err != nil {
		m.t.Fatal(err)
	}
	age = map[string]time.Duration{}
	for _, mb := range v.Members {
		if mb.StalenessMS == nil {
			m.t.Fatalf("%s tells no age of %s", path, mb.Node)
		}
		age[mb.Node] = time.Duration(*mb.StalenessMS) * time.Millisecond
	}
	return v.Observer, v.AsOf, age
}

// TestViewsNameTheirObserverAndAgeWhereNodesAreNotHeard: from one that falls silent, what is known grows old on the others.
func TestViewsNameTheirObserverAndAgeWhereNodesAreNotHeard(t *testing.T) {
	t.Parallel()
	m := startMeshWith(t, 3, func(c *config.Config) { c.TelemetryIntervalMS = 100 })
	for i, tn := range m.nodes {
		for _, path := range views {
			began := time.Now()
			observer, asOf, age := m.staleness(i, path)
			if observer != tn.cfg.Name || asOf.Before(began) || asOf.After(time.Now()) {
				t.Errorf("%s of %s: observer %q at %v, asked at %v", path, tn.cfg.Name, observer, asOf, began)
			}
			if own, told := age[tn.cfg.Name]; len(age) != 3 || !told || own != 0 {
				t.Errorf("%s of %s tells the ages %v", path, tn.cfg.Name, age)
			}
		}
	}
	m.kill(2)
	for _, path := range views {
		_, _, before := m.staleness(0, path)
		m.poll(path+": n2 grows old, and n1 does not", 20*time.Second, func() bool {
			_, _, age := m.staleness(0, path)
			return age["n2"] > before["n2"]+time.Second && age["n1"] < time.Second
		})
	}
}
