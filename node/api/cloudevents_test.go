package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// TestCloudEventsSDKPublishesInAllModes drives the server with an independent client.
func TestCloudEventsSDKPublishesInAllModes(t *testing.T) {
	w := newWorld(t)
	client, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(w.url() + "/v1/streams/a/events"))
	if err != nil {
		t.Fatal(err)
	}
	event := func(id string) cloudevents.Event {
		e := cloudevents.NewEvent()
		e.SetID(id)
		e.SetSource("/sensors/1")
		e.SetType("reading")
		e.SetSubject("room \"ä 7%\"")
		e.SetTime(time.UnixMilli(1_780_000_000_123))
		e.SetExtension("partitionkey", "p-"+id)
		e.SetExtension("level", 3)
		if err := e.SetData("application/json", map[string]int{"v": 1}); err != nil {
			t.Fatal(err)
		}
		return e
	}
	send := func(ctx context.Context, id string) {
		if res := client.Send(ctx, event(id)); !cloudevents.IsACK(res) {
			t.Fatalf("%s: %v", id, res)
		}
	}
	send(binding.WithForceBinary(t.Context()), "bin")
	send(binding.WithForceStructured(t.Context()), "struct")
	req, err := cehttp.NewHTTPRequestFromEvents(t.Context(), w.url()+"/v1/streams/a/events/batch", []cloudevents.Event{event("b1"), event("b2"), event("bin")})
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || !bytes.Contains(b, []byte(`"duplicate":true`)) {
		t.Fatalf("the event sent before in another mode is no duplicate: %d %s", res.StatusCode, b)
	}
	evs := w.all("a")
	if len(evs) != 4 {
		t.Fatalf("%d events", len(evs))
	}
	for _, e := range evs {
		h := e["headers"].(map[string]any)
		if e["source"] != "/sensors/1" || e["type"] != "reading" || e["key"] != fmt.Sprintf("p-%v", e["id"]) || h["ce-subject"] != `room "ä 7%"` ||
			h["ce-level"] != "3" || h["ce-time"] != "2026-05-28T20:26:40.123Z" || e["value"].(map[string]any)["v"] != 1.0 {
			t.Errorf("%v", e)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestBadCloudEventsAreRefused(t *testing.T) {
	w := newWorld(t)
	good := []string{"Ce-Specversion: 1.0", "Ce-Id: 1", "Ce-Source: /s", "Ce-Type: t"}
	w.expect(200, "", "POST", "/v1/streams/a/events", "x", append(good, textType)...)
	for _, bad := range []string{"Ce-Subject: %ff%fe", "Ce-Subject: \xff", "Ce-Time: noon", "Ce-Datacontenttype: a/b", "Ce-A_b: 1", "Ce-Id: 2",
		"Ce-Subject: ", `Ce-Partitionkey: ""`, "Ce-Dataschema: "} {
		w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "x", append(good, bad)...)
	}
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "x", good[1:]...)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "x", good[:3]...)
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "x", "Ce-Specversion: 0.3", good[1], good[2], good[3])
	w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", "x", append(good, "Content-Type: application/cloudevents+json")...)
	for _, body := range []string{`{}`, `[]`, `{"specversion":"1.0","id":"1","source":"s"}`, `{"specversion":"1.0","id":1,"source":"s","type":"t"}`,
		`{"specversion":"1.0","id":"1","id":"2","source":"s","type":"t"}`, `{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,"data_base64":"AA=="}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"*"}`, `{"specversion":"1.0","id":"1","source":"s","type":"t","x":{}}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t"`, `{"specversion":"1.0","id":"1","source":"s","type":"t","UP":"x"}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","subject":""}`} {
		w.expect(400, codeInvalid, "POST", "/v1/streams/a/events", body, "Content-Type: application/cloudevents+json; charset=utf-8")
		w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch", "["+body+"]", "Content-Type: application/cloudevents-batch+json")
	}
	for _, body := range []string{``, `{}`, `[`, `[1]`, `[{}`, `[]x`, `[,]`} {
		w.expect(400, codeInvalid, "POST", "/v1/streams/a/events/batch", body, "Content-Type: application/cloudevents-batch+json")
	}
}
