package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// fakeDrain is a node whose drain ends at the third look, in the state that it is given.
func fakeDrain(t *testing.T, end string) (environ []string, asked *atomic.Pointer[string]) {
	t.Helper()
	var looks atomic.Int32
	asked = new(atomic.Pointer[string])
	answer := func(w http.ResponseWriter, status int, op client.Operation) {
		raw, err := json.Marshal(op)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
		w.Write(raw)
	}
	op := client.Operation{ID: "op.1", Kind: "drain", State: "running", Node: "n3", Reason: "n3 still holds 2 copies of 3", Progress: &client.Progress{Replicas: 2,
		Remaining: []client.Remaining{{Stream: "s", Partition: 4, Role: "voter", Stuck: true, Reason: "nowhere to go"}, {Stream: "s", Partition: 5, Role: "owner", Reason: "soon"}}}}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		line := r.Method + " " + r.URL.String() + string(body)
		asked.Store(&line)
		if r.URL.Query().Get("dry_run") != "" {
			answer(w, 200, client.Operation{Kind: "drain", State: "planned", Reason: "n3 would become empty", Steps: []string{"first", "second"}})
			return
		}
		answer(w, 202, op)
	})
	mux.HandleFunc("GET /v1/operations/op.1", func(w http.ResponseWriter, _ *http.Request) {
		now := op
		if looks.Add(1) >= 3 {
			now.State, now.Reason, now.Progress = end, "it has ended: "+end, nil
		}
		answer(w, 200, now)
	})
	mux.HandleFunc("GET /v1/operations", func(w http.ResponseWriter, r *http.Request) {
		line := r.URL.String()
		asked.Store(&line)
		io.WriteString(w, `{"next_cursor":"7.n.1.2","operations":[{"id":"op.1","kind":"transfer","stream":"s","partition":0,"state":"done","kept_by":"n1","reason":"n2 owns it"}],"silent":["n9"]}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return []string{"SKEIN_SERVER=" + srv.URL}, asked
}

func TestDrainIsFollowedToItsEnd(t *testing.T) {
	for end, code := range map[string]int{"done": 0, "failed": 1, "cancelled": 1} {
		environ, asked := fakeDrain(t, end)
		r := skein(t, environ, "", "drain", "n3")
		if r.code != code || r.out != "it has ended: "+end+"\n" || strings.Count(r.err, "n3 still holds") != 1 ||
			strings.Count(r.err, "stuck: s partition 4 (voter): nowhere to go") != 1 || strings.Contains(r.err, "soon") || *asked.Load() != "POST /v1/nodes/n3/drain" {
			t.Errorf("%s: %+v, asked %s", end, r, *asked.Load())
		}
	}
}

func TestDrainCanBeStartedWithoutWaiting(t *testing.T) {
	environ, _ := fakeDrain(t, "done")
	r := skein(t, environ, "", "drain", "n3", "--no-wait")
	if r.code != 0 || !strings.HasPrefix(r.out, "n3 still holds") || !strings.Contains(r.out, "nowhere to go") || r.err != "" {
		t.Errorf("%+v", r)
	}
	if r := skein(t, environ, "", "drain", "n3", "--no-wait", "-o", "json"); r.code != 0 || !json.Valid([]byte(r.out)) || !strings.Contains(r.out, `"state": "running"`) {
		t.Errorf("%+v", r)
	}
}

func TestDrainGoesOnWhenTheCommandIsStopped(t *testing.T) {
	environ, _ := fakeDrain(t, "running")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out bytes.Buffer
	errOut := &stopAt{at: "still holds", stop: cancel}
	p := &process{in: strings.NewReader(""), out: &out, err: errOut, environ: append(environ, "HOME="+t.TempDir())}
	if code := p.run(ctx, []string{"drain", "n3"}); code != 1 || !strings.Contains(errOut.b.String(), "the drain goes on") || out.Len() != 0 {
		t.Errorf("%d %s%s", code, out.String(), errOut.b.String())
	}
}

// stopAt calls stop when it is written the words.
type stopAt struct {
	b    bytes.Buffer
	at   string
	stop func()
}

func (s *stopAt) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(s.at)) {
		s.stop()
	}
	return s.b.Write(p)
}

func TestOperationsAskForWhatTheyAreNamedAfter(t *testing.T) {
	for args, want := range map[string]string{
		"drain n3 --cancel --no-wait":        "DELETE /v1/nodes/n3/drain",
		"drain n3 --dry-run":                 "POST /v1/nodes/n3/drain?dry_run=true",
		"cordon a/b":                         "PUT /v1/nodes/a%2Fb/cordon",
		"uncordon n3":                        "DELETE /v1/nodes/n3/cordon",
		"move s 7 --from n1 --to n2":         `POST /v1/streams/s/partitions/7/move{"from":"n1","to":"n2"}`,
		"transfer s 7 --to n2":               `POST /v1/streams/s/partitions/7/transfer{"to":"n2"}`,
		"transfer _mesh 0 --to n2 --dry-run": `POST /v1/streams/_mesh/partitions/0/transfer?dry_run=true{"to":"n2"}`,
	} {
		environ, asked := fakeDrain(t, "done")
		r := skein(t, environ, "", strings.Fields(args)...)
		if got := *asked.Load(); r.code != 0 || got != want {
			t.Errorf("skein %s asked %s, want %s; %+v", args, got, want, r)
		}
		if strings.Contains(args, "--dry-run") && r.out != "n3 would become empty\n  1. first\n  2. second\nThis was a dry run: nothing was done.\n" {
			t.Errorf("skein %s: %s", args, r.out)
		}
	}
}

func TestOperationsThatMakeNoSenseAreUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"drain":                     "NODE is missing",
		"drain n3 --wait --no-wait": "exclude each other",
		"cordon n3 -o xml":          "-o xml",
		"transfer s":                "PARTITION is missing",
		"transfer s x --to n1":      `PARTITION: "x" is not a number`,
		"transfer s 0":              "--to is missing",
		"move s 0 --to n1":          "--from and --to name",
	} {
		if r := skein(t, nil, "", strings.Fields(args)...); r.code != 2 || !strings.Contains(r.err, want) || r.out != "" {
			t.Errorf("skein %s: %+v", args, r)
		}
	}
}

func TestOperationsAreListed(t *testing.T) {
	environ, asked := fakeDrain(t, "done")
	r := skein(t, environ, "", "mesh", "operations")
	if *asked.Load() != "/v1/operations" || !strings.Contains(r.err, "skein mesh operations --cursor 7.n.1.2") {
		t.Errorf("%s, %+v", *asked.Load(), r)
	}
	if skein(t, environ, "", "mesh", "operations", "--limit", "5", "--cursor", "7.n.1.2"); *asked.Load() != "/v1/operations?cursor=7.n.1.2&limit=5" {
		t.Errorf("%s", *asked.Load())
	}
	if r.code != 0 || !strings.Contains(r.out, "s/0") || !strings.Contains(r.out, "n2 owns it") || !strings.Contains(r.err, "n9 does not answer") {
		t.Errorf("%+v", r)
	}
	if r := skein(t, environ, "", "mesh", "operations", "-o", "yaml"); r.code != 0 || !strings.Contains(r.out, "kept_by: n1") {
		t.Errorf("%+v", r)
	}
	if op := (client.Operation{Node: "n1"}); fmt.Sprint(op.What()) != "n1" {
		t.Errorf("%s", op.What())
	}
}

func TestMemberThatLeftWithNothingIsNotSaidToBeReplaced(t *testing.T) {
	at := time.Now()
	gone := client.Member{State: "left", Since: at, ReplacedAt: &at}
	if s := memberState(gone); strings.Contains(s, "replaced") {
		t.Error(s)
	}
	gone.Replicas = 2
	if s := memberState(gone); !strings.Contains(s, "replaced at") {
		t.Error(s)
	}
}
