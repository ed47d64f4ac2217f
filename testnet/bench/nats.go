package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsCluster is three NATS servers with JetStream. A stream of n partitions is n streams with one subject each.
type natsCluster struct {
	binary string
	dir    string
	sync   string // sync_interval: "always", or "" for the server's default
	label  string

	procs []*proc
	urls  []string
	nc    *nats.Conn
	js    jetstream.JetStream
}

func newNATS(binary, dir, label, sync string) *natsCluster {
	return &natsCluster{binary: binary, dir: filepath.Join(dir, label), label: label, sync: sync}
}

func (c *natsCluster) name() string       { return c.label }
func (c *natsCluster) processes() []*proc { return c.procs }

func (c *natsCluster) start(ctx context.Context) error {
	ports, err := freePorts(2 * nodes)
	if err != nil {
		return err
	}
	var routes []string
	for i := range nodes {
		routes = append(routes, fmt.Sprintf("nats-route://127.0.0.1:%d", ports[2*i+1]))
	}
	for i := range nodes {
		p, err := c.configure(i, ports[2*i], ports[2*i+1], routes)
		if err != nil {
			return err
		}
		c.procs = append(c.procs, p)
		c.urls = append(c.urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[2*i]))
	}
	for _, p := range c.procs {
		if err := p.start(); err != nil {
			return err
		}
	}
	err = until(30*time.Second, c.label+": connect", c.procs, func() (err error) {
		c.nc, err = nats.Connect(strings.Join(c.urls, ","), nats.Timeout(time.Second), nats.MaxReconnects(-1),
			nats.ReconnectWait(50*time.Millisecond))
		return err
	})
	if err != nil {
		return err
	}
	if c.js, err = jetstream.New(c.nc); err != nil {
		return err
	}
	return until(30*time.Second, c.label+": first event", c.procs, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if err := c.create(ctx, "first", 1); err != nil {
			return err
		}
		_, err := c.js.Publish(ctx, subject("first", 0), []byte("x"))
		return err
	})
}

// configure writes one server's configuration file.
func (c *natsCluster) configure(i, port, clusterPort int, routes []string) (*proc, error) {
	dir := filepath.Join(c.dir, fmt.Sprintf("n%d", i))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	syncLine := ""
	if c.sync != "" {
		syncLine = "sync_interval: " + c.sync
	}
	conf := fmt.Sprintf(`server_name: n%d
listen: "127.0.0.1:%d"
max_payload: 8MB
jetstream { store_dir: %q, %s }
cluster { name: %q, listen: "127.0.0.1:%d", routes: [ %s ] }
`, i, port, filepath.Join(dir, "data"), syncLine, c.label, clusterPort, strings.Join(routes, ", "))
	file := filepath.Join(dir, "server.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	return &proc{name: fmt.Sprintf("%s n%d", c.label, i), args: []string{c.binary, file}, log: filepath.Join(dir, "log")}, nil
}

// connect makes a connection of its own to server i alone, so that load is spread and a failover is not hidden by a reconnect.
func (c *natsCluster) connect(i int) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(c.urls[i%nodes], nats.Timeout(2*time.Second), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.IgnoreDiscoveredServers())
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}

func subject(stream string, i int) string    { return fmt.Sprintf("%s.%d", stream, i) }
func streamName(stream string, i int) string { return fmt.Sprintf("%s-%d", stream, i) }

func (c *natsCluster) create(ctx context.Context, stream string, n int) error {
	for i := range n {
		cfg := jetstream.StreamConfig{
			Name: streamName(stream, i), Subjects: []string{subject(stream, i)}, Replicas: nodes,
			Storage: jetstream.FileStorage, Duplicates: 10 * time.Minute,
		}
		if _, err := c.js.CreateOrUpdateStream(ctx, cfg); err != nil {
			return fmt.Errorf("create %s: %w", cfg.Name, err)
		}
	}
	return nil
}

func (c *natsCluster) remove(ctx context.Context, stream string) error {
	for _, n := range c.parts(ctx, stream) {
		if err := c.js.DeleteStream(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// parts are the names of the streams that make up one of ours.
func (c *natsCluster) parts(ctx context.Context, stream string) (names []string) {
	for n := range c.js.StreamNames(ctx).Name() {
		if strings.HasPrefix(n, stream+"-") {
			names = append(names, n)
		}
	}
	return names
}

func (c *natsCluster) batched(ctx context.Context, stream string, load *payloads, d time.Duration, limit int) (int, float64, error) {
	n := max(len(c.parts(ctx, stream)), 1)
	var acked, taken atomic.Int64
	began := time.Now()
	err := parallel(connections, func(worker int) error {
		nc, js, err := c.connect(worker)
		if err != nil {
			return err
		}
		defer nc.Close()
		var under []jetstream.PubAckFuture
		wait := func() error {
			f := under[0]
			under = under[1:]
			select {
			case <-f.Ok():
				acked.Add(1)
				return nil
			case err := <-f.Err():
				return err
			case <-time.After(20 * time.Second):
				return errors.New("no acknowledgement within 20 s")
			}
		}
		for i := worker * window; time.Since(began) < d && ctx.Err() == nil; i++ {
			if limit > 0 && taken.Add(1) > int64(limit) {
				break
			}
			if len(under) >= window {
				if err := wait(); err != nil {
					return err
				}
			}
			f, err := js.PublishAsync(subject(stream, i%n), load.values[i%len(load.values)])
			if err != nil {
				return err
			}
			under = append(under, f)
		}
		for len(under) > 0 {
			if err := wait(); err != nil {
				return err
			}
		}
		return nil
	})
	return int(acked.Load()), float64(acked.Load()) / time.Since(began).Seconds(), err
}

func (c *natsCluster) one(ctx context.Context, stream string) (publishFunc, func(), error) {
	return c.publisher(stream, 0, 1, 2)
}

func (c *natsCluster) survivors(ctx context.Context, stream string, but int) (publishFunc, func(), error) {
	return c.publisher(stream, (but+1)%nodes, (but+2)%nodes)
}

// publisher takes the named servers in turn.
func (c *natsCluster) publisher(stream string, servers ...int) (publishFunc, func(), error) {
	var conns []*nats.Conn
	var jss []jetstream.JetStream
	done := func() {
		for _, nc := range conns {
			nc.Close()
		}
	}
	for _, i := range servers {
		nc, js, err := c.connect(i)
		if err != nil {
			done()
			return nil, nil, err
		}
		conns, jss = append(conns, nc), append(jss, js)
	}
	var turn atomic.Uint64
	return func(ctx context.Context, value []byte) error {
		_, err := jss[turn.Add(1)%uint64(len(jss))].Publish(ctx, subject(stream, 0), value, jetstream.WithRetryAttempts(0))
		return err
	}, done, nil
}

func (c *natsCluster) read(ctx context.Context, stream string, n int) (float64, error) {
	cons, err := c.js.CreateOrUpdateConsumer(ctx, streamName(stream, 0), jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return 0, err
	}
	began, got := time.Now(), 0
	for got < n {
		batch, err := cons.Fetch(min(5000, n-got), jetstream.FetchMaxWait(10*time.Second))
		if err != nil {
			return 0, err
		}
		before := got
		for range batch.Messages() {
			got++
		}
		if err := batch.Error(); err != nil {
			return 0, err
		}
		if got == before {
			return 0, fmt.Errorf("read %d of %d events, then none within 10 s", got, n)
		}
	}
	return float64(got) / time.Since(began).Seconds(), nil
}

func (c *natsCluster) owner(ctx context.Context, stream string) (int, error) {
	s, err := c.js.Stream(ctx, streamName(stream, 0))
	if err != nil {
		return 0, err
	}
	cl := s.CachedInfo().Cluster
	if cl == nil || len(cl.Leader) != 2 {
		return 0, fmt.Errorf("stream %s has no leader", stream)
	}
	return int(cl.Leader[1] - '0'), nil
}

func (c *natsCluster) stop() {
	if c.nc != nil {
		c.nc.Close()
	}
	for _, p := range c.procs {
		p.kill()
	}
}

// parallel runs f n times at once and returns the errors of all.
func parallel(n int, f func(worker int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
