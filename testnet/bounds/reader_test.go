package bounds

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/skeinmesh/skein/node/dev"
)

const valueBytes = 8 << 10

// outcome is one run with or without stopped readers.
type outcome struct {
	peak int64   // bytes the owner took at most
	rate float64 // bytes per second of the slowest reader that reads
}

func TestReaderThatStopsReadingCostsNobodyAnythingAndLosesNothing(t *testing.T) {
	events, hold, pairs := 20<<20/valueBytes, 3*time.Second, 1
	if full() {
		events, hold, pairs = 800<<20/valueBytes, 60*time.Second, 5 // 200 MB are gone in two seconds, too short to compare rates
	}
	var with, without []outcome
	for pair := range pairs {
		for _, stopped := range []bool{pair%2 == 0, pair%2 != 0} {
			name, to := "control", &without
			if stopped {
				name, to = "stopped", &with
			}
			t.Run(fmt.Sprintf("%s-%d", name, pair), func(t *testing.T) {
				o := stoppedReaderRun(t, events, hold, stopped)
				t.Logf("owner's peak %s, readers' rate %s/s", mib(o.peak), mib(int64(o.rate)))
				*to = append(*to, o)
			})
		}
	}
	if t.Failed() || len(with) != pairs || len(without) != pairs {
		return
	}
	more := medianOf(with, func(o outcome) float64 { return float64(o.peak) }) - medianOf(without, func(o outcome) float64 { return float64(o.peak) })
	ratio := medianOf(with, func(o outcome) float64 { return o.rate }) / medianOf(without, func(o outcome) float64 { return o.rate })
	t.Logf("medians of %d: two stopped readers cost the owner %s, and the others' rate is %.2f of that without", pairs, mib(int64(more)), ratio)
	most := float64(64 << 20) // one short pair shows only that nothing is held on the reader's behalf
	if full() {
		most = 16 << 20
		if ratio < 0.9 {
			t.Errorf("the other readers were slowed down to %.2f; 0.9 or more is promised", ratio)
		}
	}
	if more >= most {
		t.Errorf("stopped readers cost %s; below %s is wanted", mib(int64(more)), mib(int64(most)))
	}
}

func medianOf(os []outcome, of func(outcome) float64) float64 {
	var vs []float64
	for _, o := range os {
		vs = append(vs, of(o))
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}

// stoppedReaderRun publishes events to one partition while two readers read at its owner, and, where stopped is set, one more of each
// format does not: they ask, and do not read for hold or as long as publishing takes, whichever is longer.
func stoppedReaderRun(t *testing.T, events int, hold time.Duration, stopped bool) outcome {
	m := start(t, dev.Options{})
	parts := m.create("feed", 1)
	owner := m.Index(parts[0].Owner)
	if owner < 0 {
		t.Fatalf("partition 0 is owned by %q", parts[0].Owner)
	}
	begin := time.Now()
	var still []*rawReader
	if stopped {
		for _, format := range []string{"application/x-ndjson", "text/event-stream"} {
			still = append(still, dial(t, m.Address(owner), "feed", format))
		}
	}
	var readers sync.WaitGroup
	rates := make([]float64, 2)
	for i := range rates {
		r := dial(t, m.Address(owner), "feed", "application/x-ndjson")
		readers.Go(func() {
			if err := r.read(events); err != nil {
				t.Errorf("reader %d: %v", i, err)
			}
			rates[i] = float64(events*valueBytes) / time.Since(begin).Seconds()
		})
	}
	publishNumbers(t, m, owner, events)
	readers.Wait()
	if stopped {
		timer := time.NewTimer(hold - time.Since(begin))
		<-timer.C
	}
	o := outcome{peak: m.memory(owner, "VmHWM"), rate: slices.Min(rates)}
	resumed := time.Now()
	for _, r := range still {
		if err := r.read(events); err != nil {
			t.Errorf("the reader that had stopped (%s): %v", r.format, err)
		}
	}
	if stopped {
		t.Logf("stopped for %v, then everything read in %v", resumed.Sub(begin).Round(time.Millisecond), time.Since(resumed).Round(time.Millisecond))
	}
	return o
}

// publishNumbers publishes events with the numbers 0, 1, 2, … in order.
func publishNumbers(t *testing.T, m *mesh, node, events int) {
	t.Helper()
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	padding := make([]byte, 0, 4*valueBytes) // text that compression makes little of, from another place for each event
	for rnd := rand.New(rand.NewPCG(1, 2)); len(padding) < cap(padding); {
		padding = strconv.AppendUint(padding, rnd.Uint64(), 36)
	}
	var body bytes.Buffer
	for n := 0; n < events; {
		body.Reset()
		for range min(64, events-n) {
			number := fmt.Sprintf(`{"n":%d,"pad":"`, n)
			body.WriteString(number)
			from := n * 97 % (3 * valueBytes)
			body.Write(padding[from : from+valueBytes-len(number)-2])
			body.WriteString("\"}\n")
			n++
		}
		resp, err := hc.Post(fmt.Sprintf("http://%s/v1/streams/feed/events/batch?summary=true&key=k", m.Address(node)), "application/x-ndjson", &body)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"failed":0`)) {
			t.Fatalf("publish: %s %s", resp.Status, answer)
		}
	}
}

// rawReader is a subscriber that reads nothing before it is told to, not even the answer's header.
type rawReader struct {
	conn   net.Conn
	format string
}

func dial(t *testing.T, addr, stream, format string) *rawReader {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_, err = fmt.Fprintf(conn, "GET /v1/streams/%s/events?from=earliest HTTP/1.1\r\nHost: %s\r\nAccept: %s\r\n\r\n", stream, addr, format)
	if err != nil {
		t.Fatal(err)
	}
	return &rawReader{conn: conn, format: format}
}

// read reads events 0, 1, 2, … up to as many as there are.
func (r *rawReader) read(events int) error {
	if err := r.conn.SetReadDeadline(time.Now().Add(3 * time.Minute)); err != nil {
		return err
	}
	br := bufio.NewReaderSize(r.conn, 256<<10)
	for { // the header
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	lines := bufio.NewReaderSize(httputil.NewChunkedReader(br), 256<<10)
	for next := 0; next < events; {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("after %d of %d events: %w", next, events, err)
		}
		if r.format == "text/event-stream" {
			var isData bool
			if line, isData = bytes.CutPrefix(line, []byte("data:")); !isData {
				continue
			}
		}
		if !bytes.Contains(line, []byte(`"pad"`)) {
			continue // a cursor
		}
		got, err := number(line)
		if err != nil {
			return err
		}
		if got != next {
			return fmt.Errorf("event %d came where %d was due", got, next)
		}
		next++
	}
	return nil
}

// number finds an event's number, whether the line is the value itself or an envelope.
func number(line []byte) (int, error) {
	i := bytes.Index(line, []byte(`{"n":`))
	if i < 0 {
		return -1, fmt.Errorf("no number in %.80q", line)
	}
	rest := line[i+len(`{"n":`):]
	end := bytes.IndexByte(rest, ',')
	if end < 0 {
		return -1, fmt.Errorf("no number in %.80q", line)
	}
	var n int
	return n, json.Unmarshal(rest[:end], &n)
}
