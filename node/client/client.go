package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Config says whom to ask and how patiently.
type Config struct {
	// Servers are addresses of nodes, host:port or http(s)://host:port; at least one. They are tried in turn.
	Servers []string
	// HTTP is the client to use; nil: one of its own, whose connections Close ends.
	HTTP *http.Client
	// Token, where not empty, is sent as a bearer token.
	Token string
	// AttemptTimeout bounds one try of a request, and of a subscription the wait for its answer to begin; default 15 s. A try whose
	// PublishOptions.Timeout comes near it or is above it may take 5 s more than that.
	AttemptTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause between tries, which doubles and is jittered by half; defaults 25 ms and
	// 1 s. A Retry-After of the server replaces it, capped by MaxRetryAfter (default 5 s).
	MinBackoff, MaxBackoff, MaxRetryAfter time.Duration
	// GiveUpUnreachable makes a call fail once no server could be connected to, each tried once, instead of trying until its context ends:
	// for commands that a person waits for. A subscription tries on in any case.
	GiveUpUnreachable bool
	// OnRetry, where not nil, is told of each failed try that is about to be repeated.
	OnRetry func(err error, wait time.Duration)
}

// Client is one user of a mesh.
type Client struct {
	cfg     Config
	servers []string
	http    *http.Client
	own     bool
	current atomic.Uint64 // index of the server that answered last
	source  string        // of identities made here
	seq     atomic.Uint64
}

// New checks the addresses; it connects to nothing.
func New(cfg Config) (*Client, error) {
	c := &Client{cfg: cfg, http: cfg.HTTP}
	for _, s := range cfg.Servers {
		base, err := baseURL(s)
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, base)
	}
	if len(c.servers) == 0 {
		return nil, errors.New("client: no server address given")
	}
	orDefault(&c.cfg.AttemptTimeout, 15*time.Second)
	orDefault(&c.cfg.MinBackoff, 25*time.Millisecond)
	orDefault(&c.cfg.MaxBackoff, time.Second)
	orDefault(&c.cfg.MaxRetryAfter, 5*time.Second)
	if c.http == nil {
		c.own, c.http = true, &http.Client{Transport: newTransport()}
	}
	c.source = "skein-client/" + RandomID()
	return c, nil
}

func orDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

func newTransport() *http.Transport {
	dialer := &net.Dialer{
		Timeout:         2 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		Proxy:               http.ProxyFromEnvironment,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}
}

func baseURL(s string) (string, error) {
	raw := strings.TrimSuffix(strings.TrimSpace(s), "/")
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.Path != "" || u.RawQuery != "" {
		return "", fmt.Errorf("client: %q is no server address: host:port or http://host:port is wanted", s)
	}
	return raw, nil
}

// RandomID is 12 random bytes in hex, for naming runs and sources.
func RandomID() string {
	var b [12]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// Close ends idle connections that the client opened. Idempotent.
func (c *Client) Close() {
	if c.own {
		c.http.CloseIdleConnections()
	}
}

// request is one call, repeatable because its body is bytes.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte
	// wait is how long the server was told that it may wait; 0: not told.
	wait time.Duration
	// repeat: may be sent again although an earlier try may have had its effect.
	repeat bool
	// ends: it leaves nothing behind, so that a stream which is not found after a try of unknown outcome means success.
	ends bool
}

// do sends r until it is answered with a status below 400, fails for good, or ctx ends; then it decodes the answer into out
// (nil: discarded).
func (c *Client) do(ctx context.Context, r request, out any) (http.Header, error) {
	unreachable, unknown := 0, false
	var last error
	for attempt := 0; ; attempt++ {
		header, err := c.try(ctx, r, out)
		if err == nil {
			return header, nil
		}
		if r.ends && unknown && CodeOf(err) == "stream-not-found" {
			return nil, nil
		}
		if ctx.Err() != nil {
			return nil, ctxError(ctx, cmp.Or(last, err)) // what failed before says more than a try that was called off
		}
		last = err
		unknown = unknown || outcomeUnknown(err)
		if !c.mayRetry(r, err) {
			return nil, err
		}
		if CodeOf(err) != CodeConnect {
			unreachable = 0
		} else if unreachable++; c.cfg.GiveUpUnreachable && unreachable >= len(c.servers) {
			return nil, err
		}
		if err := c.pause(ctx, attempt, err); err != nil {
			return nil, err
		}
	}
}

// ctxError says that ctx ended, and what had failed by then.
func ctxError(ctx context.Context, err error) error {
	return fmt.Errorf("%w: %w", context.Cause(ctx), err)
}

// mayRetry: what certainly had no effect may always go again; what may have had one only if its identity makes it harmless.
func (c *Client) mayRetry(r request, err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch {
	case e.Code == CodeConnect:
		return true
	case e.OutcomeUnknown():
		return r.repeat
	default:
		return e.Retryable
	}
}

// pause waits before the next try. Nothing is kept of err but its hint.
func (c *Client) pause(ctx context.Context, attempt int, err error) error {
	wait := c.backoff(attempt)
	var e *Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		wait = jitter(min(e.RetryAfter, c.cfg.MaxRetryAfter))
	}
	if c.cfg.OnRetry != nil {
		c.cfg.OnRetry(err, wait)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctxError(ctx, err)
	}
}

func (c *Client) backoff(attempt int) time.Duration {
	// With other servers left to try, the first round is not worth waiting for.
	if attempt < len(c.servers)-1 {
		return 0
	}
	d := c.cfg.MinBackoff << min(attempt-len(c.servers)+1, 16)
	return jitter(min(d, c.cfg.MaxBackoff))
}

// jitter spreads clients that failed together: between half of d and d.
func jitter(d time.Duration) time.Duration {
	if d <= 1 {
		return d
	}
	return d/2 + mrand.N(d/2+1)
}

// server is the base URL to use now, and a token for turning away from it.
func (c *Client) server() (string, uint64) {
	i := c.current.Load()
	return c.servers[i%uint64(len(c.servers))], i
}

// turn moves on to the next server, unless another call has done so since.
func (c *Client) turn(from uint64) { c.current.CompareAndSwap(from, from+1) }

func (c *Client) try(ctx context.Context, r request, out any) (http.Header, error) {
	limit := c.cfg.AttemptTimeout
	if r.wait > 0 {
		limit = max(limit, r.wait+answerTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, idx, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		c.turn(idx)
		return nil, lost(r, c.servers[idx%uint64(len(c.servers))], err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("client: %s %s: the answer is larger than %d bytes", r.method, r.path, maxAnswer)
	}
	if out == nil {
		return resp.Header, nil
	}
	if raw, ok := out.(*json.RawMessage); ok {
		*raw = data
		return resp.Header, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("client: %s %s: read the answer: %w", r.method, r.path, err)
	}
	return resp.Header, nil
}

// answerTime is how long an answer may be on its way once the server waited as long as it was told.
const answerTime = 5 * time.Second

// maxAnswer bounds what one answer may take in memory, in bytes.
const maxAnswer = 256 << 20

// send makes one try and returns an answer with a status below 400, or an error.
func (c *Client) send(ctx context.Context, r request) (*http.Response, uint64, error) {
	return c.sendBody(ctx, r, bytes.NewReader(r.body))
}

// sendBody is send with a body that may be of any length.
func (c *Client) sendBody(ctx context.Context, r request, body io.Reader) (*http.Response, uint64, error) {
	base, idx := c.server()
	u := base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		return nil, idx, fmt.Errorf("client: %w", err)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if c.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.turn(idx)
		return nil, idx, lost(r, base, err)
	}
	if resp.StatusCode < 400 {
		return resp, idx, nil
	}
	defer resp.Body.Close()
	e := decodeProblem(resp)
	e.Op = r.method + " " + r.path
	if e.Status >= 500 || e.Code == "draining" {
		c.turn(idx) // another node may have a better view, or less to do
	}
	return nil, idx, e
}
