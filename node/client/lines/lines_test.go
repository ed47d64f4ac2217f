package lines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/client"
)

// fakeMesh stores what it is sent, as a mesh would: an identity once, in order of arrival.
type fakeMesh struct {
	mu     sync.Mutex
	stored []client.Event
	ids    map[string]bool
	fail   func(call int, events []client.Event) error
	calls  int
}

func (f *fakeMesh) PublishBatch(ctx context.Context, _ string, events []client.Event, _ client.PublishOptions) ([]client.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.fail != nil {
		if err := f.fail(f.calls, events); err != nil {
			return nil, err
		}
	}
	if f.ids == nil {
		f.ids = map[string]bool{}
	}
	res := make([]client.Result, len(events))
	for i, ev := range events {
		id := ev.Source + "#" + ev.ID
		if res[i].Duplicate = f.ids[id]; !f.ids[id] {
			f.ids[id] = true
			f.stored = append(f.stored, ev)
		}
	}
	return res, nil
}

func (f *fakeMesh) text() string {
	var b strings.Builder
	for _, ev := range f.stored {
		b.Write(ev.Value)
		b.WriteByte('\n')
	}
	return b.String()
}

func TestLinesComeBackByteForByte(t *testing.T) {
	text := "plain\r\n\n\xff\xfe binary \x00\r\r\n" + strings.Repeat("long ", 100_000) + "\nlast without a line feed"
	f := &fakeMesh{}
	p, err := Publish(t.Context(), f, Config{Stream: "s", Run: "r", BatchEvents: 2}, []Input{{Name: "f", R: strings.NewReader(text)}})
	if err != nil {
		t.Fatal(err)
	}
	if f.text() != text+"\n" || p.Lines != 5 || p.Bytes != int64(len(text)) || p.Watermarks["f"] != 5 {
		t.Errorf("%d lines, %d bytes, watermark %d", p.Lines, p.Bytes, p.Watermarks["f"])
	}
}

func TestIdentityIsRunFileAndLine(t *testing.T) {
	f := &fakeMesh{}
	run := func(id string) {
		t.Helper()
		in := []Input{{Name: "a", R: strings.NewReader("1\n2\n")}, {Name: "b", R: strings.NewReader("1\n")}}
		if _, err := Publish(t.Context(), f, Config{Stream: "s", Run: id}, in); err != nil {
			t.Fatal(err)
		}
	}
	run("x")
	run("x") // a repeated run doubles nothing
	if len(f.stored) != 3 || f.stored[1].Source != "skein-pub/x/a" || f.stored[1].ID != "2" || f.stored[2].Source != "skein-pub/x/b" {
		t.Errorf("stored %+v", f.stored)
	}
	run("y") // a deliberate second run publishes again
	if len(f.stored) != 6 {
		t.Errorf("%d stored after a second run", len(f.stored))
	}
}

func TestOrderOfEachKeyHoldsOverLanes(t *testing.T) {
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "key-%d %d\n", i*i%37, i)
	}
	key, err := RegexpKey(`key-(\d+)`)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeMesh{}
	if _, err := Publish(t.Context(), f, Config{Stream: "s", Run: "r", Lanes: 8, BatchEvents: 16, Key: key}, []Input{{Name: "f", R: strings.NewReader(text.String())}}); err != nil {
		t.Fatal(err)
	}
	last := map[string]int{}
	for _, ev := range f.stored {
		var k, n int
		fmt.Sscanf(string(ev.Value), "key-%d %d", &k, &n)
		if string(ev.Key) != fmt.Sprint(k) || n <= last[string(ev.Key)]-1 {
			t.Fatalf("key %q: %d after %d", ev.Key, n, last[string(ev.Key)])
		}
		last[string(ev.Key)] = n + 1
	}
	if len(f.stored) != 5000 {
		t.Errorf("%d stored", len(f.stored))
	}
}

func TestInterruptedRunGoesOnBehindItsWatermark(t *testing.T) {
	text := strings.Repeat("line\n", 100)
	f := &fakeMesh{fail: func(call int, _ []client.Event) error {
		if call == 4 {
			return errors.New("the mesh is gone")
		}
		return nil
	}}
	cfg := Config{Stream: "s", Run: "r", BatchEvents: 10}
	p, err := Publish(t.Context(), f, cfg, []Input{{Name: "f", R: strings.NewReader(text)}})
	var at *LineError
	if !errors.As(err, &at) || at.File != "f" || at.Line != p.Watermarks["f"]+1 || p.Watermarks["f"] == 0 || p.Watermarks["f"] >= 100 {
		t.Fatalf("%v, watermark %d", err, p.Watermarks["f"])
	}
	cfg.Done = p.Watermarks
	f.ids = nil // the dedupe window is over: only the watermark keeps lines from being stored twice
	q, err := Publish(t.Context(), f, cfg, []Input{{Name: "f", R: strings.NewReader(text)}})
	if err != nil || len(f.stored) != 100 || q.Skipped != p.Watermarks["f"] || q.Lines != 100 {
		t.Errorf("%v: %d stored, %+v", err, len(f.stored), q)
	}
}

func TestWatermarkWaitsForTheSlowestLane(t *testing.T) {
	tr := &track{next: 1, done: map[int64]struct{}{}}
	for _, n := range []int64{2, 3, 5} {
		tr.mark(n)
	}
	if tr.next != 1 {
		t.Errorf("next %d before line 1", tr.next)
	}
	tr.mark(1)
	if tr.next != 4 || len(tr.done) != 1 {
		t.Errorf("next %d, %d beyond", tr.next, len(tr.done))
	}
}

func TestCancelEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fakeMesh{fail: func(call int, _ []client.Event) error {
		cancel()
		return context.Canceled
	}}
	_, err := Publish(ctx, f, Config{Stream: "s", Run: "r", BatchEvents: 1, OnProgress: func(Progress) {}}, []Input{{Name: "f", R: strings.NewReader(strings.Repeat("x\n", 1000))}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// lastRead tells when everything was read.
type lastRead struct {
	io.Reader
	end func()
}

func (r lastRead) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err == io.EOF {
		r.end()
	}
	return n, err
}

func TestCancelAfterTheLastLineWasReadIsNoSuccess(t *testing.T) {
	for range 100 { // each is a race of the cancel with the lines that wait
		ctx, cancel := context.WithCancel(t.Context())
		read := make(chan struct{})
		f := &fakeMesh{fail: func(int, []client.Event) error {
			<-read
			cancel()
			return nil
		}}
		in := lastRead{strings.NewReader("a\nb\nc\n"), sync.OnceFunc(func() { close(read) })}
		_, err := Publish(ctx, f, Config{Stream: "s", Run: "r", BatchEvents: 1}, []Input{{Name: "f", R: in}})
		if n := len(f.stored); n < 3 && !errors.Is(err, context.Canceled) {
			t.Fatalf("%d of 3 lines are stored: %v", n, err)
		}
	}
}

func TestTooLongLineIsNamed(t *testing.T) {
	_, err := Publish(t.Context(), &fakeMesh{}, Config{Stream: "s", Run: "r"}, []Input{{Name: "f", R: bytes.NewReader(append([]byte("ok\n"), make([]byte, MaxLine+1)...))}})
	if err == nil || !strings.HasPrefix(err.Error(), "f:2: the line is longer") {
		t.Errorf("got %v", err)
	}
}

func TestKeys(t *testing.T) {
	field, err := FieldKey("a.b")
	if err != nil {
		t.Fatal(err)
	}
	whole, _ := RegexpKey(`blk_-?\d+`)
	group, _ := RegexpKey(`(?:id=(\d+)|none)`)
	for _, tc := range []struct {
		f    func([]byte) ([]byte, bool)
		line string
		want string
		ok   bool
	}{
		{field, `{"a":{"b":"x\u0041"}}`, "xA", true},
		{field, `{"a":{"b": 1.50 }}`, "1.50", true},
		{field, `{"a":{"b":true}}`, "true", true},
		{field, `{"a":{"b":null}}`, "", false},
		{field, `{"a":{"b":{}}}`, "", false},
		{field, `{"a":1}`, "", false},
		{field, `not json`, "", false},
		{whole, "x blk_-12 blk_3", "blk_-12", true},
		{whole, "nothing", "", false},
		{group, "id=7", "7", true},
		{group, "none", "", false},
		{FixedKey("k"), "any", "k", true},
	} {
		if key, ok := tc.f([]byte(tc.line)); string(key) != tc.want || ok != tc.ok {
			t.Errorf("%s: key %q, %t; want %q, %t", tc.line, key, ok, tc.want, tc.ok)
		}
	}
	if _, err := FieldKey("a..b"); err == nil {
		t.Error("an empty field name was accepted")
	}
	if _, err := RegexpKey("("); err == nil {
		t.Error("a broken expression was accepted")
	}
}

func TestStateSurvives(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	s := State{Run: "abc", Stream: "s", Done: map[string]int64{"f": 7}}
	if _, err := LoadState(dir, "abc"); !errors.Is(err, ErrNoState) {
		t.Fatalf("got %v", err)
	}
	for range 2 {
		if err := s.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	got, err := LoadState(dir, "abc")
	if err != nil || got.Stream != "s" || !maps.Equal(got.Done, s.Done) {
		t.Fatalf("%+v, %v", got, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files left behind: %v", left)
	}
	if err := RemoveState(dir, "abc"); err != nil {
		t.Fatal(err)
	}
	if err := RemoveState(dir, "abc"); err != nil {
		t.Errorf("removing twice: %v", err)
	}
	for _, bad := range []string{"", "../x", "a/b", ".x"} {
		if err := (State{Run: bad}).Save(dir); err == nil {
			t.Errorf("run id %q was accepted", bad)
		}
	}
}

func TestProgressIsToldAtTheEnd(t *testing.T) {
	var last Progress
	_, err := Publish(t.Context(), &fakeMesh{}, Config{Stream: "s", Run: "r", RetryFor: time.Second, OnProgress: func(p Progress) { last = p }}, []Input{{Name: "f", R: strings.NewReader("a\nb\n")}})
	if err != nil || last.Lines != 2 {
		t.Errorf("%+v, %v", last, err)
	}
}
