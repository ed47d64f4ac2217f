package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Stream is a stream's definition.
type Stream struct {
	Name        string         `json:"name"`
	Incarnation string         `json:"incarnation"`
	Version     uint64         `json:"version"`
	Created     time.Time      `json:"created"`
	Config      map[string]any `json:"config"`
	Partitions  []Partition    `json:"partitions"`
}

// Partition is one partition of a stream's lineage.
type Partition struct {
	ID       uint32   `json:"partition"`
	State    string   `json:"state"` // open | sealed
	Parents  []uint32 `json:"parents"`
	Children []uint32 `json:"children"`
	Owner    string   `json:"owner"`
	Term     uint64   `json:"term"`
	Replicas []string `json:"replicas"`
}

// Open counts the partitions that take events.
func (s Stream) Open() int {
	n := 0
	for _, p := range s.Partitions {
		if p.State != "sealed" {
			n++
		}
	}
	return n
}

func streamPath(name string) string { return "/v1/streams/" + url.PathEscape(name) }

// CreateStream makes a stream with the settings of config (names as in the API; what is left out takes its default). An equal
// stream that exists is fine, unless onlyNew.
func (c *Client) CreateStream(ctx context.Context, name string, config map[string]any, onlyNew bool) (Stream, error) {
	if config == nil {
		config = map[string]any{}
	}
	body, err := json.Marshal(config)
	if err != nil {
		return Stream{}, fmt.Errorf("client: %w", err)
	}
	h := http.Header{"Content-Type": {"application/json"}}
	if onlyNew {
		h.Set("If-None-Match", "*")
	}
	var out Stream
	_, err = c.do(ctx, request{method: http.MethodPut, path: streamPath(name), header: h, body: body, repeat: !onlyNew}, &out)
	return out, err
}

// GetStream returns one stream with its lineage. A stream that does not exist is an *Error with code stream-not-found.
func (c *Client) GetStream(ctx context.Context, name string) (Stream, error) {
	var out Stream
	_, err := c.do(ctx, request{method: http.MethodGet, path: streamPath(name), repeat: true}, &out)
	return out, err
}

// ListStreams returns all streams. Of a list that is not whole the error is *Incomplete.
func (c *Client) ListStreams(ctx context.Context) ([]Stream, error) {
	var out struct {
		Streams    []Stream `json:"streams"`
		Incomplete string   `json:"incomplete"`
	}
	_, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/streams", repeat: true}, &out)
	return out.Streams, whole(err, out.Incomplete)
}

// AlterStream merges patch into the stream's settings; version, where not 0, must be the stream's.
func (c *Client) AlterStream(ctx context.Context, name string, version uint64, patch map[string]any) (Stream, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return Stream{}, fmt.Errorf("client: %w", err)
	}
	h := http.Header{"Content-Type": {"application/merge-patch+json"}}
	if version != 0 {
		h.Set("If-Match", fmt.Sprintf("%q", fmt.Sprint(version)))
	}
	var out Stream
	_, err = c.do(ctx, request{method: http.MethodPatch, path: streamPath(name), header: h, body: body, repeat: version == 0}, &out)
	return out, err
}

// DeleteStream removes a stream and all of its events.
func (c *Client) DeleteStream(ctx context.Context, name string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: streamPath(name), query: url.Values{"confirm": {name}}, repeat: true, ends: true}, nil)
	return err
}
