package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// mesh is three Skein nodes, spoken to as any HTTP client would.
type mesh struct {
	binary string
	dir    string

	procs []*proc
	urls  []string
	http  *http.Client
}

func newMesh(binary, dir string) *mesh {
	return &mesh{binary: binary, dir: filepath.Join(dir, "skein"), http: newClient()}
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConns: 512, MaxIdleConnsPerHost: 256, DisableCompression: true, ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10,
	}}
}

func (m *mesh) name() string       { return skeinName }
func (m *mesh) processes() []*proc { return m.procs }

func (m *mesh) start(ctx context.Context) error {
	ports, err := freePorts(3 * nodes)
	if err != nil {
		return err
	}
	for i := range nodes {
		dir := filepath.Join(m.dir, fmt.Sprintf("n%d", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		addr := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", ports[3*i+n]) }
		args := []string{
			m.binary, "node", fmt.Sprintf("--name=n%d", i), "--cluster-id=bench", "--data-dir=" + filepath.Join(dir, "data"),
			"--http-addr=" + addr(0), "--quic-addr=" + addr(1), "--gossip-addr=" + addr(2), "--log-level=warn",
		}
		if i == 0 {
			args = append(args, "--found")
		} else {
			args = append(args, fmt.Sprintf("--join=127.0.0.1:%d", ports[2]))
		}
		m.procs = append(m.procs, &proc{name: fmt.Sprintf("skein n%d", i), args: args, log: filepath.Join(dir, "log")})
		m.urls = append(m.urls, "http://"+addr(0))
	}
	for _, p := range m.procs {
		if err := p.start(); err != nil {
			return err
		}
	}
	if err := until(30*time.Second, "skein: three nodes", m.procs, func() error { return m.allAlive(ctx) }); err != nil {
		return err
	}
	if err := m.create(ctx, "first", 1); err != nil {
		return err
	}
	return until(30*time.Second, "skein: first event", m.procs, func() error {
		return m.post(ctx, m.http, m.urls[0]+"/v1/streams/first/events", "application/json", []byte(`"x"`), nil)
	})
}

// allAlive asks every node whether it is ready and sees all three.
func (m *mesh) allAlive(ctx context.Context) error {
	for _, u := range m.urls {
		if err := m.get(ctx, u+"/readyz", nil); err != nil {
			return err
		}
		var got struct {
			Members []struct{ State string }
		}
		if err := m.get(ctx, u+"/v1/mesh/members", &got); err != nil {
			return err
		}
		alive := 0
		for _, member := range got.Members {
			if member.State == "alive" {
				alive++
			}
		}
		if alive < nodes {
			return fmt.Errorf("%s sees %d nodes", u, alive)
		}
	}
	return nil
}

// create makes the stream and waits until every partition has three copies and an owner.
func (m *mesh) create(ctx context.Context, stream string, n int) error {
	body := fmt.Appendf(nil, `{"partitions":%d,"replicas":%d}`, n, nodes)
	err := until(20*time.Second, "skein: create "+stream, m.procs, func() error {
		return m.do(ctx, m.http, http.MethodPut, m.urls[0]+"/v1/streams/"+stream, "application/json", body, nil)
	})
	if err != nil {
		return err
	}
	return until(30*time.Second, "skein: copies of "+stream, m.procs, func() error {
		ps, err := m.partitions(ctx, stream)
		if err != nil {
			return err
		}
		for _, p := range ps {
			if len(p.Replicas) < nodes || p.Owner == "" {
				return fmt.Errorf("partition %d has owner %q and copies on %v", p.Partition, p.Owner, p.Replicas)
			}
		}
		return nil
	})
}

type partition struct {
	Partition int      `json:"partition"`
	Owner     string   `json:"owner"`
	Replicas  []string `json:"replicas"`
}

func (m *mesh) partitions(ctx context.Context, stream string) ([]partition, error) {
	var info struct {
		Partitions []partition `json:"partitions"`
	}
	err := m.get(ctx, m.urls[0]+"/v1/streams/"+stream, &info)
	return info.Partitions, err
}

func (m *mesh) remove(ctx context.Context, stream string) error {
	return m.do(ctx, m.http, http.MethodDelete, m.urls[0]+"/v1/streams/"+stream+"?confirm="+stream, "", nil, nil)
}

func (m *mesh) batched(ctx context.Context, stream string, load *payloads, d time.Duration, limit int) (int, float64, error) {
	var acked, taken atomic.Int64
	began := time.Now()
	err := parallel(connections, func(worker int) error {
		url := m.urls[worker%nodes] + "/v1/streams/" + stream + "/events/batch" + load.ndjsonQuery()
		client := newClient() // a connection of its own
		defer client.CloseIdleConnections()
		for i := worker; time.Since(began) < d && ctx.Err() == nil; i++ {
			if limit > 0 && taken.Add(window) > int64(limit) {
				break
			}
			var sum struct{ OK, Failed int }
			if err := m.post(ctx, client, url, "application/x-ndjson", load.bodies[i%len(load.bodies)], &sum); err != nil {
				return err
			}
			if sum.Failed > 0 || sum.OK != window {
				return fmt.Errorf("a batch of %d: %d stored, %d failed", window, sum.OK, sum.Failed)
			}
			acked.Add(int64(sum.OK))
		}
		return nil
	})
	return int(acked.Load()), float64(acked.Load()) / time.Since(began).Seconds(), err
}

func (m *mesh) one(ctx context.Context, stream string) (publishFunc, func(), error) {
	return m.publisher(stream, 0, 1, 2)
}

func (m *mesh) survivors(ctx context.Context, stream string, but int) (publishFunc, func(), error) {
	return m.publisher(stream, (but+1)%nodes, (but+2)%nodes)
}

func (m *mesh) publisher(stream string, servers ...int) (publishFunc, func(), error) {
	client := newClient()
	var turn atomic.Uint64
	return func(ctx context.Context, value []byte) error {
		url := m.urls[servers[turn.Add(1)%uint64(len(servers))]] + "/v1/streams/" + stream + "/events"
		return m.post(ctx, client, url, "application/json", value, nil)
	}, client.CloseIdleConnections, nil
}

func (m *mesh) read(ctx context.Context, stream string, n int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.urls[1]+"/v1/streams/"+stream+"/events?from=earliest&until=end", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", "application/x-ndjson")
	began := time.Now()
	res, err := m.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, problem(req, res)
	}
	got := 0
	for r := bufio.NewReaderSize(res.Body, 256<<10); ; {
		line, err := r.ReadSlice('\n')
		switch {
		case err == nil && !bytes.HasPrefix(line, []byte(`{"cursor"`)):
			got++
		case err == io.EOF && got >= n:
			return float64(got) / time.Since(began).Seconds(), nil
		case err != nil:
			return 0, fmt.Errorf("read %d of %d events: %w", got, n, err)
		}
	}
}

func (m *mesh) owner(ctx context.Context, stream string) (int, error) {
	ps, err := m.partitions(ctx, stream)
	if err != nil {
		return 0, err
	}
	if len(ps) == 0 || len(ps[0].Owner) != 2 {
		return 0, fmt.Errorf("stream %s has no owner", stream)
	}
	return int(ps[0].Owner[1] - '0'), nil
}

func (m *mesh) stop() {
	m.http.CloseIdleConnections()
	for _, p := range m.procs {
		p.kill()
	}
}

func (m *mesh) get(ctx context.Context, url string, into any) error {
	return m.do(ctx, m.http, http.MethodGet, url, "", nil, into)
}

func (m *mesh) post(ctx context.Context, c *http.Client, url, contentType string, body []byte, into any) error {
	return m.do(ctx, c, http.MethodPost, url, contentType, body, into)
}

func (m *mesh) do(ctx context.Context, c *http.Client, method, url, contentType string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return problem(req, res)
	}
	if into != nil {
		if err := json.NewDecoder(res.Body).Decode(into); err != nil {
			return fmt.Errorf("%s %s: %w", method, url, err)
		}
	}
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

func problem(req *http.Request, res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 500))
	return fmt.Errorf("%s %s: %s: %s", req.Method, req.URL.Path, res.Status, strings.TrimSpace(string(b)))
}
