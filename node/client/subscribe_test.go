package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmesh/skein/testnet/virtual"
)

// feed answers subscriptions one after the other and notes their queries.
func feed(t *testing.T, answers ...func(w http.ResponseWriter)) (s *httptest.Server, asked func() []string) {
	var mu sync.Mutex
	var queries []string
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n := len(queries)
		queries = append(queries, r.URL.RawQuery)
		mu.Unlock()
		if n < len(answers) {
			answers[n](w)
			return
		}
		refuse(w, 404, "stream-not-found", false, 0)
	}))
	t.Cleanup(s.Close)
	return s, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), queries...)
	}
}

func ev(p, o int) string {
	return fmt.Sprintf(`{"stream":"s","partition":%d,"offset":%d,"time":"2026-01-31T12:00:00Z","key":"k","value":"v%d/%d","content_type":"text/plain"}`+"\n", p, o, p, o)
}

func send(parts ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		io.WriteString(w, strings.Join(parts, ""))
		w.(http.Flusher).Flush()
	}
}

func sendAndCut(parts ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		send(parts...)(w)
		panic(http.ErrAbortHandler)
	}
}

func readAll(t *testing.T, sub *Subscription) (got []string, err error) {
	t.Helper()
	for {
		chunk, err := sub.Next()
		for _, e := range chunk.Events {
			got = append(got, string(e.Value))
		}
		if err != nil {
			return got, err
		}
	}
}

func TestSubscriptionComesBackBehindTheLastEvent(t *testing.T) {
	s, queries := feed(t,
		sendAndCut(ev(0, 0), ev(0, 1), `{"cursor":"c1"}`+"\n", ev(0, 2), ev(1, 0), `{"stream":"s","par`),
		func(w http.ResponseWriter) { refuse(w, 503, "no-quorum", true, 1) },
		send(ev(0, 2), ev(0, 3), `{"cursor":"c2","goodbye":"draining"}`+"\n"),
		send(ev(1, 0), ev(1, 1), `{"cursor":"c3"}`+"\n"),
	)
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	sub, err := c.Subscribe(testContext(t), "s", SubscribeRequest{From: "earliest", UntilEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	got, err := readAll(t, sub)
	// After the cut, 0/2 was not handed out before the connection was found broken or it was: in both cases it comes once.
	if err != io.EOF || strings.Join(got, " ") != "v0/0 v0/1 v0/2 v1/0 v0/3 v1/1" && strings.Join(got, " ") != "v0/0 v0/1 v0/2 v0/3 v1/0 v1/1" {
		t.Errorf("got %v, %v", got, err)
	}
	if sub.Cursor() != "c3" || len(queries()) != 4 || !strings.Contains(queries()[1], "from=c1") || !strings.Contains(queries()[3], "from=c2") {
		t.Errorf("cursor %s, queries %v", sub.Cursor(), queries())
	}
}

func TestSubscriptionEndsWithAnErrorThatWillNotPass(t *testing.T) {
	s, _ := feed(t, send(ev(0, 0), `{"cursor":"c1","error":{"code":"offset-expired","status":410,"detail":"gone","retryable":false,"earliest":17}}`+"\n"))
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	sub, err := c.Subscribe(testContext(t), "s", SubscribeRequest{From: "0:0"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, sub)
	if len(got) != 1 || CodeOf(err) != "offset-expired" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, again := sub.Next(); again != err {
		t.Errorf("then %v", again)
	}
}

func TestExpiredOffsetIsNamedWhereASubscriptionBegins(t *testing.T) {
	s, _ := feed(t, func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusGone)
		fmt.Fprint(w, `{"title":"Gone","status":410,"detail":"the earliest offset is 17","code":"offset-expired","retryable":false,"earliest":17}`)
	})
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	_, err := c.Subscribe(testContext(t), "s", SubscribeRequest{From: "0:0"})
	if CodeOf(err) != "offset-expired" || !strings.Contains(err.Error(), "the earliest offset is 17 (offset-expired)") {
		t.Errorf("got %v", err)
	}
}

func TestLimitCountsOverReconnects(t *testing.T) {
	s, queries := feed(t,
		sendAndCut(ev(0, 0), `{"cursor":"c1"}`+"\n", ev(0, 1)),
		send(ev(0, 1), ev(0, 2), `{"cursor":"c2"}`+"\n"),
	)
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	sub, err := c.Subscribe(testContext(t), "s", SubscribeRequest{From: "earliest", Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, sub)
	if err != io.EOF || strings.Join(got, " ") != "v0/0 v0/1 v0/2" {
		t.Errorf("got %v, %v; queries %v", got, err, queries())
	}
}

// hanging is a body that gives what it has and then nothing until ctx ends.
type hanging struct {
	io.Reader
	ctx context.Context
}

func (h *hanging) Read(b []byte) (int, error) {
	if n, err := h.Reader.Read(b); err == nil {
		return n, nil
	}
	<-h.ctx.Done()
	return 0, context.Cause(h.ctx)
}

func (h *hanging) Close() error { return nil }

func TestSubscriptionLeavesAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		answer := func(r *http.Request) (*http.Response, error) {
			asked = append(asked, r.URL.Host+" "+r.URL.Query().Get("from"))
			var rest io.Reader
			switch len(asked) {
			case 1: // takes the connection, and that is all
				<-r.Context().Done()
				return nil, context.Cause(r.Context())
			case 2: // stops in the middle
				rest = strings.NewReader(ev(0, 0) + `{"cursor":"c1"}` + "\n" + `{"stream"`)
			default:
				rest = strings.NewReader(ev(0, 1) + `{"cursor":"c2"}` + "\n")
				return &http.Response{StatusCode: 200, Body: io.NopCloser(rest)}, nil
			}
			return &http.Response{StatusCode: 200, Body: &hanging{rest, r.Context()}}, nil
		}
		c := newTestClient(t, Config{Servers: []string{"a", "b", "c"}, HTTP: &http.Client{Transport: roundTrip(answer)}})
		sub, err := c.Subscribe(t.Context(), "s", SubscribeRequest{From: "earliest", UntilEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		first, err := sub.Next()
		if err != nil || len(first.Events) != 1 {
			t.Fatalf("%v, %v", first, err)
		}
		virtual.Sleep(time.Hour) // a reader may take its time
		got, err := readAll(t, sub)
		if err != io.EOF || strings.Join(got, " ") != "v0/1" || strings.Join(asked, ", ") != "a earliest, b earliest, c c1" {
			t.Errorf("got %v, %v; asked %q", got, err, asked)
		}
	})
}

// dying is a body that fails just when the client would give it up.
type dying struct{}

func (dying) Read([]byte) (int, error) {
	virtual.Sleep(silence)
	return 0, io.ErrUnexpectedEOF
}

func TestConnectionIsNotHungUpForTheSilenceOfTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		answer := func(r *http.Request) (*http.Response, error) {
			if asked++; asked < 20 { // each is a race of the timer with what comes after the failure; -race sees it
				return &http.Response{StatusCode: 200, Body: io.NopCloser(dying{})}, nil
			}
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(ev(0, 0) + `{"cursor":"c1"}` + "\n"))}, nil
		}
		c := newTestClient(t, Config{Servers: []string{"a", "b"}, HTTP: &http.Client{Transport: roundTrip(answer)}})
		sub, err := c.Subscribe(t.Context(), "s", SubscribeRequest{From: "earliest", UntilEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readAll(t, sub); err != io.EOF || strings.Join(got, " ") != "v0/0" {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestCursorDoesNotPassWhatTheLimitLeftOut(t *testing.T) {
	s, _ := feed(t,
		sendAndCut(ev(0, 0), ev(0, 1), `{"cursor":"c1"}`+"\n", ev(0, 2)),
		// The other partition comes first this time: of three events two are new, and one was wanted.
		send(ev(1, 0), ev(1, 1), `{"cursor":"c2"}`+"\n"),
	)
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	sub, err := c.Subscribe(testContext(t), "s", SubscribeRequest{From: "earliest", Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, sub)
	if err != io.EOF || strings.Join(got, " ") != "v0/0 v0/1 v0/2 v1/0" {
		t.Errorf("got %v, %v", got, err)
	}
	if sub.Cursor() != "c1" {
		t.Errorf("the cursor %s is behind 1/1, which was not given out", sub.Cursor())
	}
}

func TestCloseEndsAWaitingNext(t *testing.T) {
	hold := make(chan struct{})
	s, _ := feed(t, func(w http.ResponseWriter) { send(`{"cursor":"c0"}` + "\n")(w); <-hold })
	defer close(hold)
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	sub, err := c.Subscribe(testContext(t), "s", SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if chunk, err := sub.Next(); err != nil || chunk.Cursor != "c0" {
		t.Fatalf("%+v, %v", chunk, err)
	}
	done := make(chan error)
	go func() { _, err := sub.Next(); done <- err }()
	sub.Close()
	if err := <-done; err != io.EOF {
		t.Errorf("got %v", err)
	}
}

func TestCloseEndsANextThatReconnects(t *testing.T) {
	s, _ := feed(t, sendAndCut(ev(0, 0), `{"cursor":"c1"}`+"\n"))
	var sub *Subscription
	c := newTestClient(t, Config{Servers: []string{s.URL}, OnRetry: func(error, time.Duration) { sub.Close() }})
	var err error
	if sub, err = c.Subscribe(testContext(t), "s", SubscribeRequest{}); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(t, sub); err != io.EOF || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestReaderThatIsCalledOffIsNotToldOfAnEnd(t *testing.T) {
	hold := make(chan struct{})
	s, _ := feed(t, func(w http.ResponseWriter) { send(ev(0, 0), `{"cursor":"c1"}`+"\n")(w); <-hold })
	defer close(hold)
	ctx, callOff := context.WithCancel(testContext(t))
	sub, err := newTestClient(t, Config{Servers: []string{s.URL}}).Subscribe(ctx, "s", SubscribeRequest{UntilEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Next(); err != nil {
		t.Fatal(err)
	}
	callOff()
	if _, err := sub.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestValuesComeBackAsTheirBytes(t *testing.T) {
	s, _ := feed(t, send(
		`{"partition":0,"offset":0,"value":"a\r","content_type":"text/plain"}`+"\n",
		`{"partition":0,"offset":1,"value_base64":"AP8=","key_base64":"/w=="}`+"\n",
		`{"partition":0,"offset":2,"value":{"a" : 1},"content_type":"application/json"}`+"\n",
		`{"partition":0,"offset":3,"value":"text","content_type":"application/json"}`+"\n",
		`{"cursor":"c"}`+"\n"))
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	sub, err := c.Subscribe(testContext(t), "s", SubscribeRequest{UntilEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, sub)
	if err != io.EOF || fmt.Sprintf("%q", got) != `["a\r" "\x00\xff" "{\"a\" : 1}" "\"text\""]` {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNoReconnectReportsTheLoss(t *testing.T) {
	s, _ := feed(t, sendAndCut(ev(0, 0)))
	c := newTestClient(t, Config{Servers: []string{s.URL}})
	sub, err := c.Subscribe(testContext(t), "s", SubscribeRequest{NoReconnect: true})
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, sub)
	var e *Error
	if len(got) != 1 || !errors.As(err, &e) || e.Code != CodeLost {
		t.Errorf("got %v, %v", got, err)
	}
}

func FuzzLine(f *testing.F) {
	f.Add(ev(0, 1) + `{"cursor":"c"}` + "\n")
	f.Add(`{"cursor":null,"value":5}` + "\n\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		s := &Subscription{r: newLineReader(strings.NewReader(text))}
		for {
			if _, err := s.read(); err != nil {
				return
			}
		}
	})
}
