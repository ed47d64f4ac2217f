package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
)

// Archived counts what an import moved.
type Archived struct {
	Stream     string `json:"stream"`
	Partitions int    `json:"partitions"`
	Batches    uint64 `json:"batches"`
	Events     uint64 `json:"events"`
	Bytes      uint64 `json:"bytes"`
}

// ImportOptions change what an export says of its stream; 0 leaves it, -1 is no limit.
type ImportOptions struct {
	RetentionMS    int64
	RetentionBytes int64
}

// Export copies a stream as a file to w, and returns how many bytes that were. It is not repeated once bytes came: an error leaves a
// part of the file in w, without one it is whole.
func (c *Client) Export(ctx context.Context, stream string, w io.Writer) (int64, error) {
	r := request{method: http.MethodGet, path: "/v1/streams/" + url.PathEscape(stream) + "/export"}
	resp, err := c.reach(ctx, r, http.NoBody)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, resp.Body)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the export was cut short, by the node or on the way; the node's log may say why")
	}
	return n, err
}

// Import sends a file that Export wrote. Where it breaks off and file can be read again from its beginning, it is sent again until ctx
// ends: the mesh goes on where it stopped.
func (c *Client) Import(ctx context.Context, stream string, file io.Reader, o ImportOptions) (Archived, error) {
	r := request{method: http.MethodPost, path: "/v1/streams/" + url.PathEscape(stream) + "/import", query: url.Values{}, repeat: true,
		header: http.Header{"Content-Type": {"application/vnd.skein.export"}}}
	for name, v := range map[string]int64{"retention_ms": o.RetentionMS, "retention_bytes": o.RetentionBytes} {
		if v != 0 {
			r.query.Set(name, strconv.FormatInt(v, 10))
		}
	}
	seeker, again := file.(io.Seeker)
	for attempt := 0; ; attempt++ {
		body := &body{r: file}
		out, err := c.importOnce(ctx, r, body)
		if err == nil || !again || ctx.Err() != nil || CodeOf(err) == CodeConnect || !c.mayRetry(r, err) {
			return out, err
		}
		body.leave()
		if _, serr := seeker.Seek(0, io.SeekStart); serr != nil {
			return out, err // a pipe; what went wrong first says more
		}
		if err := c.pause(ctx, attempt, err); err != nil {
			return out, err
		}
	}
}

// body is what one try reads of a file. The HTTP client may go on reading when the answer is there, and closes it some time later.
type body struct {
	mu   sync.Mutex // held while the file is read
	r    io.Reader
	over bool
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return 0, io.ErrClosedPipe
	}
	return b.r.Read(p)
}

// Close leaves the file open: it may be sent again.
func (b *body) Close() error { return nil }

// leave returns when the file is not being read, and will not be.
func (b *body) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

func (c *Client) importOnce(ctx context.Context, r request, file io.Reader) (out Archived, err error) {
	resp, err := c.reach(ctx, r, file)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return out, fmt.Errorf("client: %s %s: read the answer: %w", r.method, r.path, err)
	}
	return out, nil
}

// reach sends a request to the first server that can be connected to. Nothing of body is read before.
func (c *Client) reach(ctx context.Context, r request, body io.Reader) (*http.Response, error) {
	var last error
	for range c.servers {
		resp, _, err := c.sendBody(ctx, r, body)
		if err == nil || CodeOf(err) != CodeConnect {
			return resp, err
		}
		last = err
	}
	return nil, last
}
