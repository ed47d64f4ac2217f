package node

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// sensorEvent is a CloudEvent whose content follows from source and id, as that of a publisher that repeats it would.
func sensorEvent(t *testing.T, source, id string) cloudevents.Event {
	t.Helper()
	e := cloudevents.NewEvent()
	e.SetID(id)
	e.SetSource(source)
	e.SetType("reading")
	e.SetSubject(`room "ä 7%"`)
	e.SetTime(time.UnixMilli(1_780_000_000_123))
	e.SetExtension("partitionkey", "k-"+id)
	if err := e.SetData("application/json", map[string]any{"from": source, "v": id}); err != nil {
		t.Fatal(err)
	}
	return e
}

// publishers sends events through node i by the CloudEvents SDK, in each of its modes.
func (m *testMesh) publishers(client *http.Client) map[string]func(i int, e cloudevents.Event) {
	send := func(ctx context.Context, i int, e cloudevents.Event) {
		m.t.Helper()
		c, err := cloudevents.NewClientHTTP(cloudevents.WithTarget("http://"+m.nodes[i].HTTPAddr()+"/v1/streams/ce/events"), cehttp.WithClient(*client))
		if err != nil {
			m.t.Fatal(err)
		}
		if res := c.Send(ctx, e); !cloudevents.IsACK(res) {
			m.t.Fatalf("%s %s through node %d: %v", e.Source(), e.ID(), i, res)
		}
	}
	return map[string]func(i int, e cloudevents.Event){
		"binary":     func(i int, e cloudevents.Event) { send(binding.WithForceBinary(m.t.Context()), i, e) },
		"structured": func(i int, e cloudevents.Event) { send(binding.WithForceStructured(m.t.Context()), i, e) },
		"batch": func(i int, e cloudevents.Event) {
			m.t.Helper()
			req, err := cehttp.NewHTTPRequestFromEvents(m.t.Context(), "http://"+m.nodes[i].HTTPAddr()+"/v1/streams/ce/events/batch", []cloudevents.Event{e})
			if err != nil {
				m.t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				m.t.Fatal(err)
			}
			defer res.Body.Close()
			if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || !strings.Contains(string(b), `"failed":0`) {
				m.t.Fatalf("%s %s through node %d: %d %s", e.Source(), e.ID(), i, res.StatusCode, b)
			}
		},
	}
}

// Each event is published in one mode first, and again in all three through all nodes: source and id say that it is the same one.
func TestCloudEventsAreStoredOnceInWhateverModesTheyCome(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 3)
	m.must(0, 201, "PUT", "/v1/streams/ce", `{"partitions":3}`, "If-None-Match", "*")
	publish := m.publishers(&http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}})
	modes := []string{"binary", "structured", "batch"}
	want := map[string]bool{}
	for first, mode := range modes {
		// The same id of two sources is two events.
		for _, source := range []string{"/sensors/1", "/sensors/2"} {
			e := sensorEvent(t, source, "first-"+mode)
			want[source+" "+e.ID()] = true
			publish[mode](first, e)
			for again, mode := range modes {
				publish[mode]((first+again)%3, e)
			}
		}
	}
	for i := range m.nodes {
		body := m.must(i, 200, "GET", "/v1/streams/ce/events?from=earliest&until=end", "", "Accept", "application/x-ndjson")
		var got []string
		for line := range strings.Lines(body) {
			var e struct {
				Offset                *uint64
				Key, ID, Source, Type string
				ContentType           string `json:"content_type"`
				Headers               map[string]string
				Value                 struct{ From, V string }
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if e.Offset == nil {
				continue // a cursor
			}
			got = append(got, e.Source+" "+e.ID)
			if e.Type != "reading" || e.Key != "k-"+e.ID || e.ContentType != "application/json" || e.Value.From != e.Source || e.Value.V != e.ID ||
				e.Headers["ce-subject"] != `room "ä 7%"` || e.Headers["ce-time"] != "2026-05-28T20:26:40.123Z" {
				t.Errorf("node %d gives %s", i, line)
			}
		}
		slices.Sort(got)
		if want := slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
			t.Errorf("node %d has %v, want %v", i, got, want)
		}
	}
}
