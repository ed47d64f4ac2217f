package node

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// request makes one HTTP request to a node.
func request(t *testing.T, n *testNode, method, path string, body io.Reader) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.HTTPAddr()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(path, "/batch") {
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, raw
}

// everything is all that is in a stream, as lines with partition and offset.
func everything(t *testing.T, n *testNode, stream string) string {
	t.Helper()
	var out strings.Builder
	for p := range 3 {
		code, raw := request(t, n, "GET", fmt.Sprintf("/v1/streams/%s/events?from=earliest&until=end&partition=%d&limit=10000", stream, p), nil)
		if code != 200 {
			t.Fatalf("%d: %s", code, raw)
		}
		_, events, _ := strings.Cut(string(raw), `"events"`)
		events, _, _ = strings.Cut(events, `"next_cursor"`)
		out.WriteString(strings.ReplaceAll(events, `"stream":"`+stream+`"`, ""))
	}
	return out.String()
}

func TestStreamMovesToAnotherMesh(t *testing.T) {
	t.Parallel()
	a := startMesh(t, 3)
	if code, raw := request(t, a.nodes[0], "PUT", "/v1/streams/orders", strings.NewReader(`{"partitions":3}`)); code != 201 {
		t.Fatalf("%d: %s", code, raw)
	}
	var lines strings.Builder
	for i := range 500 {
		fmt.Fprintf(&lines, `{"key":"k%d","value":{"n":%d},"id":"%d","source":"s","type":"t","headers":{"h":"v"}}`+"\n", i%17, i, i)
	}
	lines.WriteString(`{"value_base64":"` + strings.Repeat("AP8A", 340_000) + `"}` + "\n" + `{"key":"","value":"of an empty key"}` + "\n")
	if code, raw := request(t, a.nodes[1], "POST", "/v1/streams/orders/events/batch?envelope=true&summary=true", strings.NewReader(lines.String())); code != 200 || !strings.Contains(string(raw), `"failed":0`) {
		t.Fatalf("%d: %s", code, raw)
	}
	want := everything(t, a.nodes[0], "orders")
	code, file := request(t, a.nodes[2], "GET", "/v1/streams/orders/export", nil)
	if code != 200 {
		t.Fatalf("%d: %s", code, file)
	}
	b := startMesh(t, 1)
	for name, n := range map[string]*testNode{"orders": b.nodes[0], "copy": a.nodes[1]} {
		code, raw := request(t, n, "POST", "/v1/streams/"+name+"/import", bytes.NewReader(file))
		if code != 201 || !strings.Contains(string(raw), `"events":502`) {
			t.Fatalf("%s: %d: %s", name, code, raw)
		}
		if got := everything(t, n, name); got != want {
			t.Fatalf("%s has other events", name)
		}
		if code, raw := request(t, n, "POST", "/v1/streams/"+name+"/import", bytes.NewReader(file)); code != 409 {
			t.Fatalf("%s again: %d: %s", name, code, raw)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
