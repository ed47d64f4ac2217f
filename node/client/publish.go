package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// TextPlain is the content type of text that comes back as a string, unchanged.
const TextPlain = "text/plain; charset=utf-8"

// Event is one event to publish.
type Event struct {
	// Key keeps order and place; HasKey tells an empty key from none.
	Key    []byte
	HasKey bool
	// Value is the event's bytes.
	Value []byte
	// ContentType of Value: JSON types are sent as JSON (Value must be valid JSON), text types as a string where Value is
	// UTF-8, anything else, and an empty type, as bytes.
	ContentType string
	Headers     map[string]string
	// Source and ID are the identity. Where both are empty the client makes one, so that its own retries store the event once.
	Source, ID string
	Type       string
	Time       time.Time // zero: not given
}

// PublishOptions are common to all events of a call.
type PublishOptions struct {
	// AckNone returns when the owner took the events, before they are durable.
	AckNone bool
	// NoIdentity leaves events without an identity as they are; then nothing is repeated whose outcome is unknown.
	NoIdentity bool
	// Timeout, where above 0, tells the server how long one try may wait.
	Timeout time.Duration
}

// Result is what became of one event.
type Result struct {
	Partition uint32
	Offset    uint64 // 0 with AckNone: not known yet
	Duplicate bool
	// Err is an *Error, or nil where the event is stored.
	Err error
}

// Publish sends one event and returns where it is. Errors: *Error, or the context's, with the last *Error in its chain.
func (c *Client) Publish(ctx context.Context, stream string, ev Event, o PublishOptions) (Result, error) {
	res, err := c.PublishBatch(ctx, stream, []Event{ev}, o)
	if err != nil {
		return Result{}, err
	}
	return res[0], res[0].Err
}

// PublishBatch sends events in one request, and again those that failed for a passing reason, until ctx ends. Results are
// in the order of the events. err is set where nothing is known of any event; else each event has its own result.
//
// Events of one key lie in one partition and succeed or fail together, so that sending the failed ones again, in their
// order, keeps the order of each key.
func (c *Client) PublishBatch(ctx context.Context, stream string, events []Event, o PublishOptions) ([]Result, error) {
	if len(events) == 0 {
		return nil, nil
	}
	if !o.NoIdentity {
		events = c.identified(events)
	}
	results := make([]Result, len(events))
	todo := make([]int, len(events))
	for i := range todo {
		todo[i] = i
	}
	for attempt := 0; ; attempt++ {
		again, err := c.publishSome(ctx, stream, events, todo, o, results)
		if err != nil {
			if attempt == 0 {
				return nil, err
			}
			for _, i := range todo {
				results[i] = Result{Err: err}
			}
			return results, nil
		}
		if len(again) == 0 {
			return results, nil
		}
		if err := c.pause(ctx, attempt+len(c.servers)-1, results[again[0]].Err); err != nil {
			for _, i := range again {
				results[i].Err = err
			}
			return results, nil
		}
		todo = again
	}
}

// identified gives events without an identity one.
func (c *Client) identified(events []Event) []Event {
	out := events
	for i := range events {
		if events[i].ID != "" || events[i].Source != "" {
			continue
		}
		if &out[0] == &events[0] {
			out = append([]Event(nil), events...)
		}
		out[i].Source, out[i].ID = c.source, strconv.FormatUint(c.seq.Add(1), 10)
	}
	return out
}

type batchAnswer struct {
	// Error says why the rest of the body was not stored; Results then holds only what came before.
	Error   *problem `json:"error"`
	Results []struct {
		Partition uint32   `json:"partition"`
		Offset    uint64   `json:"offset"`
		Duplicate bool     `json:"duplicate"`
		Error     *problem `json:"error"`
	} `json:"results"`
}

// publishSome sends the events named by todo, fills in their results, and returns those to send again.
func (c *Client) publishSome(ctx context.Context, stream string, events []Event, todo []int, o PublishOptions, results []Result) ([]int, error) {
	body, err := encodeBatch(events, todo)
	if err != nil {
		return nil, err
	}
	q := url.Values{"envelope": {"true"}}
	if o.AckNone {
		q.Set("ack", "none")
	}
	if o.Timeout > 0 {
		q.Set("timeout_ms", strconv.FormatInt(max(o.Timeout.Milliseconds(), 1), 10))
	}
	var ans batchAnswer
	_, err = c.do(ctx, request{
		method: http.MethodPost, path: streamPath(stream) + "/events/batch", query: q,
		header: http.Header{"Content-Type": {"application/x-ndjson"}}, body: body, wait: o.Timeout, repeat: !o.NoIdentity,
	}, &ans)
	if err != nil {
		return nil, err
	}
	if len(ans.Results) > len(todo) || len(ans.Results) < len(todo) && ans.Error == nil {
		return nil, fmt.Errorf("client: %d events sent, %d results received", len(todo), len(ans.Results))
	}
	var again []int
	for n, i := range todo {
		p := ans.Error
		results[i] = Result{}
		if n < len(ans.Results) {
			r := ans.Results[n]
			results[i] = Result{Partition: r.Partition, Offset: r.Offset, Duplicate: r.Duplicate}
			p = r.Error
		}
		if p == nil {
			continue
		}
		e := p.toError()
		results[i].Err = e
		if e.OutcomeUnknown() && !o.NoIdentity || e.Retryable && !e.OutcomeUnknown() {
			again = append(again, i)
		}
	}
	return again, nil
}
