package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/skeinmesh/skein/flow"
)

const (
	// pageBytes ends a page before its limit of events; the next one goes on.
	pageBytes = 8 << 20
	// pageLinger is how long a page that has events waits for more.
	pageLinger = 5 * time.Millisecond
	// pageGlance is how long a page without wait_ms looks for events where the end cannot be known.
	pageGlance = 250 * time.Millisecond
)

// page answers {"events":[…],"next_cursor":…}. Events are written as they come, so that a page costs one buffer; the status is
// settled by the first read.
func (c *Call) page(ctx context.Context, p readParams, sub flow.Subscription) error {
	wait := p.wait
	if wait == 0 {
		wait = pageGlance
		if p.req.UntilEnd {
			wait = p.open
		}
	}
	next := sub.Cursor().String()
	var enc encoder
	buf, n, written := []byte(nil), 0, 0
	for n < p.limit && written+len(buf) < pageBytes {
		chunk, err := nextWithin(ctx, sub, wait, p.limit-n)
		if err != nil {
			if n == 0 && !errors.Is(err, context.DeadlineExceeded) {
				return readError(ctx, err)
			}
			break // nothing more in time; what ails the source is told when the next page is asked
		}
		for i := range chunk.Events {
			if buf == nil {
				buf = c.beginPage()
			}
			if n > 0 {
				buf = append(buf, ',')
			}
			buf = enc.appendEvent(buf, &chunk.Events[i])
			n++
			if len(buf) > 60<<10 {
				written += len(buf)
				if buf, err = c.pagePart(buf); err != nil {
					return nil // the client left
				}
			}
		}
		next = chunk.Cursor.String()
		if chunk.End {
			break
		}
		wait = pageLinger
	}
	if buf == nil {
		buf = c.beginPage()
	}
	c.s.met.delivered[formatJSON].Add(float64(n))
	buf = append(buf, `],"next_cursor":`...)
	buf = appendJSONString(buf, next)
	_, _ = c.pagePart(append(buf, "}\n"...))
	return nil
}

func nextWithin(ctx context.Context, sub flow.Subscription, wait time.Duration, n int) (flow.Chunk, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	chunk, err := sub.Next(ctx, n)
	if err != nil && ctx.Err() != nil && context.Cause(ctx) == context.DeadlineExceeded {
		err = context.DeadlineExceeded
	}
	return chunk, err
}

func (c *Call) beginPage() []byte {
	h := c.w.Header()
	h.Set("Content-Type", contentJSON)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	return append(make([]byte, 0, 64<<10), `{"events":[`...)
}

func (c *Call) pagePart(b []byte) ([]byte, error) {
	_ = http.NewResponseController(c.w.ResponseWriter).SetWriteDeadline(time.Now().Add(c.s.cfg.SlowReader))
	_, err := c.w.Write(b)
	return b[:0], err
}
