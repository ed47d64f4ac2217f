package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// readParams is what a subscriber asked for.
type readParams struct {
	stream string
	format string
	req    flow.SubscribeRequest
	limit  int // events; 0: no limit
	wait   time.Duration
	open   time.Duration // how long opening, or a whole page, may take
	// endGuess: the end is asked only to know when a page without wait_ms is complete; reading goes on without it.
	endGuess bool
}

const (
	pageLimit    = 100    // events of a page where no limit is given
	pageLimitMax = 10_000 // and at most
	// endGuessTime bounds the question where the end is, when a page only wants to know that it is complete.
	endGuessTime = time.Second
)

// subscribe reads a stream as server-sent events, as lines, or one page: GET /v1/streams/{stream}/events.
func (s *Server) subscribe(c *Call) error {
	p, err := c.readParams()
	if err != nil {
		return err
	}
	if s.draining() {
		return drainingHere()
	}
	if s.subs.Add(1) > int64(s.cfg.MaxSubscribers) {
		s.subs.Add(-1)
		return overloaded("this node has " + strconv.Itoa(s.cfg.MaxSubscribers) + " subscriptions already; try another one")
	}
	defer s.subs.Add(-1)
	gauge := s.met.subs.WithLabelValues(p.format)
	gauge.Inc()
	defer gauge.Dec()

	ctx, cancel := context.WithCancelCause(c.R.Context())
	defer cancel(nil)
	sub, err := s.open(ctx, cancel, p)
	if err != nil {
		return err
	}
	// A subscription that ended by itself has nothing left to say.
	defer func() { _ = sub.Close() }()
	if p.format == formatJSON {
		return c.page(ctx, p, sub)
	}
	newPump(c, p, sub).run(ctx, cancel)
	return nil
}

// open subscribes within p.open and before the node drains; the context goes on to live as long as the subscription. One that came too
// late is of no use: its context has ended, or is about to.
func (s *Server) open(ctx context.Context, cancel context.CancelCauseFunc, p readParams) (flow.Subscription, error) {
	timer := time.AfterFunc(p.open, func() { cancel(context.DeadlineExceeded) })
	stays := context.AfterFunc(s.drain, func() { cancel(drainingHere()) })
	sub, err := s.subscribeTo(ctx, p)
	var late error
	if !timer.Stop() {
		late = context.DeadlineExceeded
	} else if !stays() {
		late = drainingHere()
	}
	if late != nil && err == nil {
		_ = sub.Close()
		sub, err = nil, late
	}
	return sub, readError(ctx, err)
}

// subscribeTo subscribes, for a page first with a guess of where its end is.
func (s *Server) subscribeTo(ctx context.Context, p readParams) (flow.Subscription, error) {
	if p.endGuess {
		guess, giveUp := context.WithCancelCause(ctx)
		guessing := time.AfterFunc(min(p.open/2, endGuessTime), func() { giveUp(context.DeadlineExceeded) })
		sub, err := s.dep.Subscriber.Subscribe(guess, p.stream, p.req)
		inTime := guessing.Stop()
		if err == nil && inTime {
			context.AfterFunc(ctx, func() { giveUp(context.Cause(ctx)) })
			return sub, nil
		}
		if err == nil {
			_ = sub.Close()
		}
		giveUp(nil)
		if inTime && wire.KindOf(err) != wire.KindUnavailable {
			return nil, err
		}
		p.req.UntilEnd = false
	}
	return s.dep.Subscriber.Subscribe(ctx, p.stream, p.req)
}

// readError says what an error of reading means: a cause given to the context beats the context's own words.
func readError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*wire.Error](err); !ok && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *Call) readParams() (p readParams, err error) {
	p.stream = c.Path("stream")
	if err := checkName(p.stream); err != nil {
		return p, err
	}
	if p.format, err = negotiate(c.R.Header); err != nil {
		return p, err
	}
	if p.open, err = c.Millis("timeout_ms", c.s.live().PublishDeadline, 1); err != nil {
		return p, err
	}
	if v, ok := c.Query("key"); ok {
		p.req.Key, p.req.HasKey = []byte(v), true
	}
	if v, ok := c.Query("partition"); ok {
		id, err := partitionID(v)
		if err != nil {
			return p, err
		}
		p.req.Partition = &id
	}
	switch v, ok := c.Query("until"); {
	case !ok:
	case v == "end":
		p.req.UntilEnd = true
	default:
		return p, invalid("query parameter until: " + strconv.Quote(clip(v)) + " is not end, the only value")
	}
	if err := c.limits(&p); err != nil {
		return p, err
	}
	p.req.From, err = c.position(p)
	return p, err
}

func (c *Call) limits(p *readParams) error {
	def, most := int64(0), int64(math.MaxInt32)
	if p.format == formatJSON {
		def, most = pageLimit, pageLimitMax
	}
	limit, err := c.Int("limit", def, 1, most)
	if err != nil {
		return err
	}
	p.limit = int(limit)
	_, waits := c.Query("wait_ms")
	if waits && p.format != formatJSON {
		return invalid("wait_ms is for pages (Accept: application/json); a stream waits by itself")
	}
	if p.wait, err = c.Millis("wait_ms", 0, 0); err != nil {
		return err
	}
	if p.format == formatJSON {
		p.open = max(p.open, p.wait+time.Second)
		p.endGuess = p.wait == 0 && !p.req.UntilEnd
		p.req.UntilEnd = p.req.UntilEnd || p.endGuess
	}
	return nil
}

// position is where to start: Last-Event-ID, which a reconnecting client sends by itself, beats from. Live reading starts at the
// latest event, everything that ends at the earliest.
func (c *Call) position(p readParams) (flow.Position, error) {
	if id := c.R.Header.Get("Last-Event-ID"); id != "" {
		cur, err := flow.ParseCursor(id)
		return flow.Position{Kind: flow.FromCursor, Cursor: cur}, err
	}
	from, ok := c.Query("from")
	if !ok {
		if p.req.UntilEnd || p.format == formatJSON {
			return flow.Position{Kind: flow.FromEarliest}, nil
		}
		return flow.Position{Kind: flow.FromLatest}, nil
	}
	if from == "" {
		return flow.Position{}, invalid("query parameter from is empty; it is earliest, latest, @TIME, -DURATION, PARTITION:OFFSET or a cursor")
	}
	return flow.ParsePosition(from, c.s.now())
}

func partitionID(v string) (ring.PartitionID, error) {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		return 0, invalid("partition " + strconv.Quote(clip(v)) + " is not a whole number within 0 and 4294967295")
	}
	return ring.PartitionID(n), nil
}

// eventAt answers with one event: GET /v1/streams/{stream}/partitions/{partition}/events/{offset}.
func (s *Server) eventAt(c *Call) error {
	name := c.Path("stream")
	if err := checkName(name); err != nil {
		return err
	}
	part, err := partitionID(c.Path("partition"))
	if err != nil {
		return err
	}
	offset, err := strconv.ParseUint(c.Path("offset"), 10, 63)
	if err != nil {
		return invalid("offset " + strconv.Quote(clip(c.Path("offset"))) + " is not a whole number within 0 and 2^63-1")
	}
	ctx, cancel, err := c.Deadline(readDeadline)
	if err != nil {
		return err
	}
	defer cancel()
	ev, err := s.dep.Subscriber.EventAt(ctx, name, part, offset)
	if err != nil {
		return err
	}
	var enc encoder
	return c.Bytes(http.StatusOK, contentJSON, append(enc.appendEvent(nil, &ev), '\n'))
}
