package api

import (
	"strings"
	"testing"
)

const jsonType = "Content-Type: application/json"

func TestStreamLifeCycle(t *testing.T) {
	w := newWorld(t)
	rec := w.do("PUT", "/v1/streams/a", `{"partitions":4,"retention_ms":60000}`, jsonType, "If-None-Match: *")
	if rec.Code != 201 || rec.Header().Get("ETag") != `"1"` || rec.Header().Get("Location") != "/v1/streams/a" {
		t.Fatalf("%d %v", rec.Code, rec.Header())
	}
	w.expect(200, "", "PUT", "/v1/streams/a", `{"partitions":4,"retention_ms":60000}`, jsonType)
	w.expect(409, "config-differs", "PUT", "/v1/streams/a", `{"partitions":5}`, jsonType)
	w.expect(412, "exists", "PUT", "/v1/streams/a", `{"partitions":4,"retention_ms":60000}`, jsonType, "If-None-Match: *")
	w.expect(201, "", "PUT", "/v1/streams/b", "")

	rec = w.do("GET", "/v1/streams/a", "")
	if rec.Code != 200 || rec.Header().Get("ETag") != `"1"` || !strings.Contains(rec.Body.String(), `"partitions":[{"partition":0`) {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if rec := w.do("GET", "/v1/streams/a", "", `If-None-Match: "1"`); rec.Code != 304 {
		t.Fatalf("%d", rec.Code)
	}
	if v := w.expect(200, "", "GET", "/v1/streams", ""); len(v["streams"].([]any)) != 2 || v["incomplete"] != nil {
		t.Fatalf("%v", v)
	}
	w.broker.incomplete = "1 of 8 does not answer"
	if v := w.expect(200, "", "GET", "/v1/streams", ""); len(v["streams"].([]any)) != 2 || v["incomplete"] != w.broker.incomplete {
		t.Fatalf("%v", v)
	}
	v := w.expect(200, "", "PATCH", "/v1/streams/a", `{"retention_ms":null,"min_copies":2,"pin":{"zone":"a"}}`, "Content-Type: application/merge-patch+json", `If-Match: "1"`)
	cfg := v["config"].(map[string]any)
	if cfg["retention_ms"] != 7*24*3600e3 || cfg["min_copies"] != 2.0 || cfg["partitions"] != 4.0 {
		t.Fatalf("%v", cfg)
	}
	w.expect(412, codePrecondition, "PATCH", "/v1/streams/a", `{"min_copies":1}`, jsonType, `If-Match: "1"`)
	w.expect(412, codePrecondition, "PATCH", "/v1/streams/a", `{"min_copies":1}`, jsonType, `If-Match: W/"x"`)
	w.expect(200, "", "PATCH", "/v1/streams/a", `{"pin":{"zone":null}}`, jsonType)
	w.expect(404, "stream-not-found", "PATCH", "/v1/streams/none", `{}`, jsonType)
	w.expect(400, codeInvalid, "PATCH", "/v1/streams/a", `[]`, jsonType)
	w.expect(400, codeInvalid, "PATCH", "/v1/streams/a", `{"replicas":2}`, jsonType)

	w.expect(400, codeConfirm, "DELETE", "/v1/streams/a", "")
	w.expect(400, codeConfirm, "DELETE", "/v1/streams/a?confirm=b", "")
	w.expect(204, "", "DELETE", "/v1/streams/a?confirm=a", "")
	w.expect(404, "stream-not-found", "DELETE", "/v1/streams/a?confirm=a", "")
	w.expect(404, "stream-not-found", "GET", "/v1/streams/a", "")
}

func TestConditionsAreHeldTo(t *testing.T) {
	w := newWorld(t)
	w.expect(201, "", "PUT", "/v1/streams/a", "")
	for value, status := range map[string]int{`"1"`: 304, `W/"1"`: 304, `"7", W/"1"`: 304, `*`: 304, `"7"`: 200, `1`: 200, ``: 200} {
		for _, method := range []string{"GET", "HEAD"} {
			if rec := w.do(method, "/v1/streams/a", "", "If-None-Match: "+value); rec.Code != status || rec.Header().Get("ETag") != `"1"` {
				t.Errorf("%s If-None-Match %s: %d %v, want %d", method, value, rec.Code, rec.Header(), status)
			}
		}
	}
	const patch, same = "/v1/streams/a", `{"min_copies":1}`
	for _, value := range []string{`"7"`, `W/"1"`, `1`, ``, `"7","8"`} {
		w.expect(412, codePrecondition, "PATCH", patch, same, jsonType, "If-Match: "+value)
	}
	w.expect(200, "", "PATCH", patch, same, jsonType, `If-Match: "7", "1"`)
	w.expect(200, "", "PATCH", patch, same, jsonType, `If-Match: "7"`, `If-Match: "2"`)
	w.expect(200, "", "PATCH", patch, same, jsonType, `If-Match: *`)
	// What cannot be held to is refused, not overlooked.
	w.expect(400, codeInvalid, "DELETE", "/v1/streams/a?confirm=a", "", `If-Match: "7"`)
	w.expect(400, codeInvalid, "PUT", "/v1/streams/a", "", `If-Match: "7"`)
	w.expect(204, "", "DELETE", "/v1/streams/a?confirm=a", "")
}

func TestConfigBodiesAreStrict(t *testing.T) {
	w := newWorld(t)
	for body, want := range map[string]string{
		`{"partitons":3}`:  `did you mean "partitions"`,
		`{"Partitions":3}`: `unknown field "Partitions"`,
		`{"partitions":3,"replicas":1,"partitions":4}`: "given twice",
		`{"pin":{"zone":"a","zone":"b"}}`:              "given twice",
		`{"partitions":"3"}`:                           "field partitions",
		`{"partitions":1e99}`:                          "field partitions",
		`{"partitions":-1}`:                            "partitions",
		`{"partitions":0}`:                             "partitions is 0",
		`{"retention_ms":0}`:                           "retention_ms is 0",
		`{"order":""}`:                                 "order",
		`{"partitions":257}`:                           "256",
		`{"max_event_bytes":2097153}`:                  "2097152",
		`{"order":"random"}`:                           "window",
		`{"partitions":3`:                              "malformed",
		`{"partitions":3} x`:                           "malformed",
		`[]`:                                           "object",
		`null`:                                         "object",
		`{"hot_keys":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`:      "nested",
		`{"pin":` + strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100) + `}`: "nested",
	} {
		rec := w.do("PUT", "/v1/streams/a", body, jsonType)
		if rec.Code != 400 || !strings.Contains(strings.ReplaceAll(rec.Body.String(), `\"`, `"`), want) {
			t.Errorf("%.60s: %d %s, want %q", body, rec.Code, rec.Body, want)
		}
	}
	w.expect(413, "too-large", "PUT", "/v1/streams/a", `{"hot_keys":["`+strings.Repeat("x", maxConfigBytes)+`"]}`, jsonType)
	w.expect(415, codeMediaType, "PUT", "/v1/streams/a", `partitions: 3`, "Content-Type: application/yaml")
	w.expect(415, codeMediaType, "PUT", "/v1/streams/a", `{}`, jsonType, "Content-Encoding: gzip")
	w.expect(400, codeInvalid, "PUT", "/v1/streams/a", `{}`, jsonType, `If-None-Match: "1"`)
	w.expect(400, codeInvalid, "PUT", "/v1/streams/a", `{}`, jsonType, `If-Match: "1"`)
}

func TestStreamNamesAreValidated(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("n", 249)
	for _, ok := range []string{"a", "A.b_c-9", "...", long} {
		w.expect(201, "", "PUT", "/v1/streams/"+ok, "")
	}
	for _, bad := range []string{"..", ".", "%2e%2e", "a%2fb", "..%2f..%2fetc", "%00", "a%20b", "%C3%A4", "%ff", "a:b", long + "n", strings.Repeat("n", 300), "_mesh"} {
		w.expect(400, codeInvalidName, "PUT", "/v1/streams/"+bad, "")
		w.expect(400, codeInvalidName, "POST", "/v1/streams/"+bad+"/events", "x")
		if bad != "_mesh" {
			w.expect(400, codeInvalidName, "GET", "/v1/streams/"+bad, "")
			w.expect(400, codeInvalidName, "GET", "/v1/streams/"+bad+"/events", "")
		}
	}
	w.expect(400, codeInvalidName, "PUT", "/v1/streams/", "")
	w.expect(400, codeInvalidName, "POST", "/v1/streams//events", "x")
	w.expect(400, codeInvalidName, "POST", "/v1/streams//events/batch", "1", ndjsonType)
	w.expect(400, codeInvalidName, "GET", "/v1/streams//events", "")
	w.expect(404, codeNotFound, "PUT", "/v1/streams/a/../b", "")
}
