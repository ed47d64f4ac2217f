package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SubscribeRequest says what to read.
type SubscribeRequest struct {
	// From is a position (earliest, latest, @RFC3339, -15m, P:OFFSET,…, or a cursor); empty: the server's default, latest.
	From      string
	Key       string
	HasKey    bool
	Partition *uint32
	// UntilEnd stops at the end as it was when the subscription started.
	UntilEnd bool
	// Limit stops after so many events; 0: none.
	Limit int
	// NoReconnect returns a lost connection as an error instead of going on at another server.
	NoReconnect bool
}

// Received is one event as read.
type Received struct {
	Stream      string            `json:"stream"`
	Partition   uint32            `json:"partition"`
	Offset      uint64            `json:"offset"`
	Time        time.Time         `json:"time"`
	Key         *string           `json:"key"` // nil: none, or not UTF-8 (then KeyBase64)
	KeyBase64   string            `json:"key_base64"`
	ContentType string            `json:"content_type"`
	Headers     map[string]string `json:"headers"`
	ID          string            `json:"id"`
	Source      string            `json:"source"`
	Type        string            `json:"type"`
	// Value is the event's bytes.
	Value []byte `json:"-"`
	// Line is the envelope as it came, without its line feed.
	Line []byte `json:"-"`
}

// Chunk is a run of events in order.
type Chunk struct {
	Events []Received
	// Cursor resumes behind Events; empty where the server has not told one since the chunk before.
	Cursor string
}

// maxChunk bounds how many events are gathered before a cursor arrives.
const maxChunk = 4096

// maxLine bounds one line of a subscription (bytes): the largest event in base64 with its headers is well below it.
const maxLine = 16 << 20

// Subscription reads one stream. One goroutine uses it at a time; Close may be called from anywhere.
type Subscription struct {
	c      *Client
	stream string
	req    SubscribeRequest
	ctx    context.Context
	cancel context.CancelCauseFunc

	hangUp    context.CancelCauseFunc // ends the connection, of a server that says nothing for too long too
	body      io.ReadCloser
	server    uint64
	r         *bufio.Reader
	cursor    string            // last told by the server
	seen      map[uint32]uint64 // next offset to deliver; a cursor told after a reconnect may lie before it
	delivered int
	again     int   // delivered since cursor: what a reconnect gets again
	asked     int   // limit of this connection; 0: none
	came      int   // events on this connection
	pending   error // came behind the last chunk
	attempt   int
	done      error
}

// Subscribe starts reading. It returns once a server accepted, or an error that a retry would not mend. The subscription
// lives until ctx ends or Close.
func (c *Client) Subscribe(ctx context.Context, stream string, req SubscribeRequest) (*Subscription, error) {
	if ago, err := time.ParseDuration(req.From); err == nil && ago < 0 {
		// Fixed once, so that a reconnect does not start later than the first try.
		req.From = "@" + time.Now().Add(ago).UTC().Format(time.RFC3339Nano)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Subscription{c: c, stream: stream, req: req, ctx: ctx, cancel: cancel, cursor: req.From, seen: map[uint32]uint64{}}
	if err := s.connect(); err != nil {
		cancel(nil)
		return nil, err
	}
	return s, nil
}

// errClosed is the cause of a context that Close ended.
var errClosed = errors.New("client: the subscription was closed")

// Close ends the subscription; a Next under way returns. Idempotent.
func (s *Subscription) Close() error {
	s.cancel(errClosed)
	return nil
}

// Cursor resumes behind everything that Next returned with a cursor; before the first one it is the position asked for.
func (s *Subscription) Cursor() string { return s.cursor }

// silence is how long a server may send nothing, four times the pause between its signs of life: then it hangs, though its host may
// answer for it.
const silence = time.Minute

// errSilent is the cause of a connection that the client gave up.
var errSilent = errors.New("the server says nothing")

// connect opens the stream at the last cursor, trying servers until one accepts.
func (s *Subscription) connect() error {
	for ; ; s.attempt++ {
		ctx, hangUp := context.WithCancelCause(s.ctx)
		patience := time.AfterFunc(s.c.cfg.AttemptTimeout, func() { hangUp(errSilent) })
		r := s.request()
		resp, idx, err := s.c.send(ctx, r)
		if !patience.Stop() && err == nil {
			resp.Body.Close()
			s.c.turn(idx)
			err = lost(r, s.c.servers[idx%uint64(len(s.c.servers))], errSilent)
		}
		if err == nil {
			s.hangUp = hangUp
			s.server, s.body, s.r = idx, resp.Body, newLineReader(resp.Body)
			return nil
		}
		hangUp(nil)
		if s.ctx.Err() != nil {
			return ctxError(s.ctx, err)
		}
		var e *Error
		if !errors.As(err, &e) || !e.Retryable && !e.OutcomeUnknown() {
			return err
		}
		if err := s.c.pause(s.ctx, s.attempt, err); err != nil {
			return err
		}
	}
}

func (s *Subscription) request() request {
	q := url.Values{}
	if s.cursor != "" {
		q.Set("from", s.cursor)
	}
	if s.req.HasKey || s.req.Key != "" {
		q.Set("key", s.req.Key)
	}
	if s.req.Partition != nil {
		q.Set("partition", strconv.FormatUint(uint64(*s.req.Partition), 10))
	}
	if s.req.UntilEnd {
		q.Set("until", "end")
	}
	if s.req.Limit > 0 {
		// Events already delivered since the cursor come again and are dropped here.
		s.asked, s.came = s.req.Limit-s.delivered+s.again, 0
		q.Set("limit", strconv.Itoa(s.asked))
	}
	return request{
		method: http.MethodGet, path: streamPath(s.stream) + "/events", query: q,
		header: http.Header{"Accept": {"application/x-ndjson"}},
	}
}

// Next waits for events. It returns io.EOF at the end (UntilEnd, Limit) or after Close, the context's error, or an *Error.
// After an error it returns the same again.
func (s *Subscription) Next() (Chunk, error) {
	for s.done == nil {
		if s.pending == nil {
			var chunk Chunk
			chunk, s.pending = s.read()
			s.note(&chunk)
			if len(chunk.Events) > 0 || chunk.Cursor != "" {
				s.attempt = 0
				return chunk, nil
			}
			continue
		}
		err := s.pending
		s.pending = nil
		if err := s.settle(err); err != nil {
			return Chunk{}, err
		}
	}
	return Chunk{}, s.done
}

// note drops what was delivered before a reconnect, and remembers what is delivered now.
func (s *Subscription) note(chunk *Chunk) {
	s.came += len(chunk.Events)
	kept := chunk.Events[:0]
	for _, ev := range chunk.Events {
		if next, ok := s.seen[ev.Partition]; ok && ev.Offset < next {
			continue
		}
		if s.req.Limit > 0 && s.delivered >= s.req.Limit {
			chunk.Cursor = "" // it is behind events that are not given out
			break
		}
		s.seen[ev.Partition] = ev.Offset + 1
		s.delivered++
		s.again++
		kept = append(kept, ev)
	}
	chunk.Events = kept
	if chunk.Cursor != "" {
		s.cursor = chunk.Cursor
		s.again = 0
	}
	if s.req.Limit > 0 && s.delivered >= s.req.Limit {
		s.finish(io.EOF)
	}
}

// drop ends the connection.
func (s *Subscription) drop() {
	s.hangUp(nil)
	s.body.Close()
}

func (s *Subscription) finish(err error) error {
	if s.done == nil {
		s.done = err
		if context.Cause(s.ctx) == errClosed {
			s.done = io.EOF // whatever Close met under way
		}
		s.drop()
		s.cancel(nil)
	}
	return s.done
}

// settle decides what the end of a connection means: the end of the subscription, or a reconnect (nil).
func (s *Subscription) settle(err error) error {
	if s.done != nil {
		return s.done
	}
	if s.ctx.Err() != nil {
		return s.finish(context.Cause(s.ctx))
	}
	if err == io.EOF && s.req.UntilEnd && (s.asked == 0 || s.came < s.asked) {
		return s.finish(io.EOF)
	}
	s.drop()
	var e *Error
	if errors.As(err, &e) && !e.Retryable && !e.OutcomeUnknown() {
		return s.finish(err)
	}
	if err != io.EOF || s.req.NoReconnect {
		if !errors.As(err, &e) {
			err = lost(request{method: http.MethodGet, path: streamPath(s.stream) + "/events"}, s.c.servers[s.server%uint64(len(s.c.servers))], err)
		}
		if s.req.NoReconnect {
			return s.finish(err)
		}
	}
	s.c.turn(s.server)
	if err := s.c.pause(s.ctx, s.attempt, err); err != nil {
		return s.finish(err)
	}
	s.attempt++
	if err := s.connect(); err != nil {
		return s.finish(err)
	}
	return nil
}

// line is any line of a subscription: an event, a cursor, or the reason why it ends.
type line struct {
	Received
	Value       json.RawMessage `json:"value"`
	ValueBase64 *string         `json:"value_base64"`
	Cursor      *string         `json:"cursor"`
	Error       *problem        `json:"error"`
	Goodbye     string          `json:"goodbye"`
}

// reason is why the server ends the subscription with this line, or nil.
func (l *line) reason() error {
	switch {
	case l.Error != nil:
		return l.Error.toError()
	case l.Goodbye != "":
		return &Error{Code: "draining", Title: "the node is going away", Retryable: true}
	}
	return nil
}

// read gathers events up to the next cursor. An error comes together with what was read before it.
func (s *Subscription) read() (Chunk, error) {
	var chunk Chunk
	// It runs while a line is waited for, not while the caller takes its time. It may fire late, when there is another connection.
	hangUp := s.hangUp
	patience := time.AfterFunc(silence, func() { hangUp(errSilent) })
	defer patience.Stop()
	for len(chunk.Events) < maxChunk {
		raw, err := readLine(s.r)
		if err != nil {
			return chunk, err
		}
		patience.Reset(silence)
		if len(raw) == 0 {
			continue
		}
		var l line
		if err := json.Unmarshal(raw, &l); err != nil {
			return chunk, &Error{Code: "bad-answer", Title: "the server sent a line that is not JSON", Err: err}
		}
		if l.Cursor != nil {
			chunk.Cursor = *l.Cursor
			return chunk, l.reason()
		}
		ev := l.Received
		if ev.Value, err = valueBytes(&l); err != nil {
			return chunk, err
		}
		ev.Line = raw
		chunk.Events = append(chunk.Events, ev)
	}
	return chunk, nil
}

// readLine returns a fresh copy of the next line, without its line feed.
func readLine(r *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > maxLine {
			return nil, &Error{Code: "bad-answer", Title: fmt.Sprintf("the server sent a line of more than %d bytes", maxLine)}
		}
		out = append(out, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(out, []byte("\n")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && len(out) > 0:
			return nil, io.ErrUnexpectedEOF // cut in the middle of a line
		default:
			return nil, err
		}
	}
}

// valueBytes is the event's value: a string's text where the content is not JSON, else the JSON itself.
func valueBytes(l *line) ([]byte, error) {
	if l.ValueBase64 != nil {
		b, err := base64.StdEncoding.DecodeString(*l.ValueBase64)
		if err != nil {
			return nil, &Error{Code: "bad-answer", Title: "the server sent a value that is not base64", Err: err}
		}
		return b, nil
	}
	if !isJSON(l.ContentType) && len(l.Value) > 0 && l.Value[0] == '"' {
		var text string
		if err := json.Unmarshal(l.Value, &text); err != nil {
			return nil, &Error{Code: "bad-answer", Title: "the server sent a broken string", Err: err}
		}
		return []byte(text), nil
	}
	return l.Value, nil
}

func newLineReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 256<<10) }
