package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// bodyPool keeps buffers for small bodies, which are nearly all.
var bodyPool = sync.Pool{New: func() any { b := make([]byte, pooledBody); return &b }}

const pooledBody = 16 << 10

// publishOne stores one event: POST /v1/streams/{stream}/events.
func (s *Server) publishOne(c *Call) error {
	p, err := c.publishParams()
	if err != nil {
		return err
	}
	var rec batch.Record
	body, release, err := c.readEvent(&rec)
	if err != nil {
		return err
	}
	defer release()
	rec.Key, rec.HasKey = p.key, p.hasKey
	if err := c.fillEvent(&rec, body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.R.Context(), p.wait)
	defer cancel()
	recs := [1]batch.Record{rec}
	res, err := s.dep.Publisher.Publish(ctx, p.stream, recs[:], p.opt)
	if err == nil && len(res) == 1 {
		err = res[0].Err
	}
	if err != nil {
		s.met.published["failed"].Inc()
		return publishError(err)
	}
	s.met.pubBytes.Add(float64(len(rec.Value)))
	s.countStored(res)
	return c.published(p, &res[0])
}

func (s *Server) countStored(res []flow.PublishResult) {
	stored, dup, failed := 0, 0, 0
	for i := range res {
		switch {
		case res[i].Err != nil:
			failed++
		case res[i].Duplicate:
			dup++
		default:
			stored++
		}
	}
	s.met.published["stored"].Add(float64(stored))
	s.met.published["duplicate"].Add(float64(dup))
	s.met.published["failed"].Add(float64(failed))
}

// published answers for one stored event. With ack=none the offset is not known yet.
func (c *Call) published(p publishParams, r *flow.PublishResult) error {
	if c.s.dep.Owner != nil {
		if owner := c.s.dep.Owner(p.stream, r.Partition); owner != "" {
			c.w.Header().Set("Skein-Owner", owner)
		}
	}
	b := make([]byte, 0, 192)
	b = append(b, `{"stream":"`...)
	b = append(b, p.stream...)
	b = append(b, `","partition":`...)
	b = strconv.AppendUint(b, uint64(r.Partition), 10)
	if p.opt.Ack == flow.AckNone {
		return c.Bytes(http.StatusAccepted, contentJSON, append(b, "}\n"...))
	}
	b = append(b, `,"offset":`...)
	b = strconv.AppendUint(b, r.Offset, 10)
	b = append(b, `,"time":"`...)
	b = r.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","copies":`...)
	b = strconv.AppendInt(b, int64(r.Copies), 10)
	b = append(b, `,"duplicate":`...)
	b = strconv.AppendBool(b, r.Duplicate)
	return c.Bytes(http.StatusOK, contentJSON, append(b, "}\n"...))
}

// publishParams is what both publish routes take from the request line and headers.
type publishParams struct {
	stream string
	key    []byte
	hasKey bool
	wait   time.Duration
	opt    flow.PublishOptions
}

func (c *Call) publishParams() (p publishParams, err error) {
	p.stream = c.Path("stream")
	if err := checkOwnName(p.stream); err != nil {
		return p, err
	}
	if err := c.hasBody(); err != nil {
		return p, err
	}
	if v, ok := c.Query("key"); ok {
		p.key, p.hasKey = []byte(v), true
	}
	if p.wait, err = c.Millis("timeout_ms", c.s.live().PublishDeadline, 1); err != nil {
		return p, err
	}
	switch v, ok := c.Query("ack"); {
	case !ok || v == "quorum":
	case v == "none":
		p.opt.Ack = flow.AckNone
	default:
		return p, invalid("query parameter ack: " + strconv.Quote(clip(v)) + " is neither quorum nor none")
	}
	p.opt.AutoCreate = c.s.live().AutoCreate
	p.opt.IdempotencyKey, err = idempotencyKey(c.R.Header)
	return p, err
}

// maxIdempotencyKey bounds the header, in bytes.
const maxIdempotencyKey = 255

func idempotencyKey(h http.Header) (string, error) {
	vs := h["Idempotency-Key"]
	if len(vs) == 0 {
		return "", nil
	}
	v := vs[0]
	if len(vs) > 1 || v == "" || len(v) > maxIdempotencyKey {
		return "", invalid(fmt.Sprintf("Idempotency-Key must be given once, with 1 to %d bytes", maxIdempotencyKey))
	}
	for i := range len(v) {
		if v[i] < 0x20 || v[i] > 0x7e {
			return "", invalid("Idempotency-Key must be printable ASCII")
		}
	}
	return v, nil
}

// publishError says what an error of a publish means: when time ran out and nobody classified it, the outcome is unknown.
func publishError(err error) error {
	_, classified := errors.AsType[*wire.Error](err)
	if !classified && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return wire.Errorf(wire.KindOutcomeUnknown, wire.CodeOutcomeUnknown,
			"no answer in time; the event may have been stored: send it again with the same identity")
	}
	return err
}

// readEvent reads the body of a single publish whole, against the budget; release gives its memory back.
func (c *Call) readEvent(rec *batch.Record) (body []byte, release func(), err error) {
	limit := int64(c.s.cfg.MaxEventBytes)
	switch ct := c.R.Header.Get("Content-Type"); {
	case ct == "" || ct == contentJSON:
		rec.ContentType = ct
	default:
		mt, _, err := mime.ParseMediaType(ct)
		if err != nil || len(ct) > batch.MaxAttr || !utf8.ValidString(ct) {
			return nil, nil, NewProblem(http.StatusUnsupportedMediaType, codeMediaType, "Content-Type "+strconv.Quote(clip(ct))+" is malformed")
		}
		if mt == ceBatch {
			return nil, nil, NewProblem(http.StatusUnsupportedMediaType, codeMediaType, "batches go to "+c.R.URL.Path+"/batch")
		}
		rec.ContentType = ct
		if mt == ceStructured {
			limit += limit/3 + maxItemExtra
		}
	}
	if n := c.R.ContentLength; n >= 0 && len(c.R.Header["Content-Encoding"]) == 0 {
		return c.readKnown(n, limit)
	}
	return c.readGrowing(limit)
}

func eventTooLarge(limit int64) error {
	return tooLarge(fmt.Sprintf("one event may have at most %d bytes (max_event_bytes)", limit))
}

func (c *Call) readKnown(n, limit int64) ([]byte, func(), error) {
	if n > limit {
		return nil, nil, eventTooLarge(limit)
	}
	if n == 0 {
		return []byte{}, func() {}, nil
	}
	if err := c.reserveBriefly(n); err != nil {
		return nil, nil, err
	}
	var buf []byte
	release := func() { c.s.budget.Release(n) }
	if n <= pooledBody {
		pooled := bodyPool.Get().(*[]byte)
		buf = (*pooled)[:n]
		release = func() { bodyPool.Put(pooled); c.s.budget.Release(n) }
	} else {
		buf = make([]byte, n)
	}
	body := c.pacedBody()
	_, err := io.ReadFull(body, buf)
	body.done()
	if err != nil {
		release()
		return nil, nil, bodyError(err)
	}
	return buf, release, nil
}

// readGrowing reads a body of unknown length, doubling the buffer and its reservation.
func (c *Call) readGrowing(limit int64) ([]byte, func(), error) {
	body := c.pacedBody()
	defer body.done()
	taken := int64(8 << 10)
	if err := c.reserveBriefly(taken); err != nil {
		return nil, nil, err
	}
	release := func() { c.s.budget.Release(taken) }
	fail := func(err error) ([]byte, func(), error) { release(); return nil, nil, err }
	r, closeDecoder, err := c.decoded(body)
	if err != nil {
		return fail(err)
	}
	defer closeDecoder()
	buf := make([]byte, 0, taken)
	for {
		if len(buf) == cap(buf) {
			if err := c.reserveBriefly(taken); err != nil {
				return fail(err)
			}
			taken *= 2
			buf = append(make([]byte, 0, taken), buf...)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit:
			return fail(eventTooLarge(limit))
		case errors.Is(err, io.EOF):
			return buf, release, nil
		case err != nil:
			return fail(bodyError(err))
		}
	}
}

// reserveWait is how long a body waits for memory before it is refused: its sender waits better than this node.
const reserveWait = time.Second

func (c *Call) reserveBriefly(n int64) error {
	ctx, cancel := context.WithTimeout(c.R.Context(), c.s.reserveWait)
	defer cancel()
	return c.reserve(ctx, n)
}

// fillEvent makes the record of a body: raw, CloudEvents binary or structured. A key from the query beats the event's own.
func (c *Call) fillEvent(rec *batch.Record, body []byte) error {
	if mt, _, _ := strings.Cut(rec.ContentType, ";"); strings.EqualFold(strings.TrimSpace(mt), ceStructured) {
		if c.R.Header["Ce-Specversion"] != nil {
			return invalid("the event is both in structured mode (Content-Type) and in binary mode (ce-* headers)")
		}
		rec.ContentType = ""
		if err := ceJSON(rec, trimJSON(body)); err != nil {
			return err
		}
	} else {
		rec.Value = body
		if hasCE(c.R.Header) {
			if err := ceBinary(rec, c.R.Header); err != nil {
				return err
			}
		}
	}
	addTrace(rec, traceHeaders(c.R.Header))
	return nil
}
