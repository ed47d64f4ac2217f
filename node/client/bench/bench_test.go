package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/skeinmesh/skein/node/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunCountsWhatWasStored(t *testing.T) {
	var mu sync.Mutex
	keys := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		var items []string
		mu.Lock()
		defer mu.Unlock()
		for i, l := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			var ev struct{ Key, Value string }
			if err := json.Unmarshal([]byte(l), &ev); err != nil || len(ev.Value) != 100 {
				t.Errorf("line %q: %v", l, err)
			}
			keys[ev.Key]++
			if ev.Key == "key-3" {
				items = append(items, fmt.Sprintf(`{"index":%d,"error":{"code":"too-large","status":413,"detail":"no"}}`, i))
				continue
			}
			items = append(items, fmt.Sprintf(`{"index":%d,"partition":%d,"offset":0}`, i, i%2))
		}
		fmt.Fprintf(w, `{"results":[%s]}`, strings.Join(items, ","))
	}))
	defer s.Close()
	c, err := client.New(client.Config{Servers: []string{s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := Run(t.Context(), []*client.Client{c}, Config{Stream: "s", Events: 1003, Size: 100, Clients: 4, Batch: 10, Keys: 5, KeySkew: 1, OnProgress: func(int) {}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Events+r.Failed != 1003 || r.Failed != keys["key-3"] || r.Requests != 101 || r.FirstError == "" || r.PerPartition[0]+r.PerPartition[1] != r.Events {
		t.Errorf("%+v, keys %v", r, keys)
	}
	if keys["key-0"] < keys["key-4"] || r.Latency.P50 <= 0 || r.Latency.Max < r.Latency.P99 {
		t.Errorf("%+v, keys %v", r.Latency, keys)
	}
}

func TestConfigThatMakesNoSense(t *testing.T) {
	good := Config{Events: 1, Clients: 1, Batch: 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Events = 0 }, func(c *Config) { c.Size = -1 }, func(c *Config) { c.Clients = 0 },
		func(c *Config) { c.Batch = 0 }, func(c *Config) { c.Keys = -1 }, func(c *Config) { c.KeySkew = -1 },
		func(c *Config) { c.Keys = 1 << 60 }, func(c *Config) { c.KeySkew = math.NaN() },
	} {
		c := good
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func TestQuantilesAreNearestRank(t *testing.T) {
	var d []time.Duration
	for i := range 100 {
		d = append(d, time.Duration(i+1)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.9: 90, 0.99: 99, 0.999: 100, 1: 100} {
		if got := quantile(d, q); got != want {
			t.Errorf("quantile %g = %g, want %g", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("no durations")
	}
}

func TestZipfFollowsItsExponent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tc := range []struct{ s, first float64 }{{0, 0.1}, {1, 0.341}, {2, 0.645}} {
		z, hits := newZipf(10, tc.s), 0
		for range 20_000 {
			if z.draw(rng) == 0 {
				hits++
			}
		}
		if got := float64(hits) / 20_000; got < tc.first-0.02 || got > tc.first+0.02 {
			t.Errorf("exponent %g: the first of 10 has %.3f, want %.3f", tc.s, got, tc.first)
		}
	}
}
