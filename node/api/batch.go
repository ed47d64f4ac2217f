package api

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/skeinmesh/skein/flow"
	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/transport/wire"
)

// maxBatchEvents bounds the events of one request: their results are held until the end.
const maxBatchEvents = 1 << 20

// publishBatch stores many events: POST /v1/streams/{stream}/events/batch. One chunk is read and parsed while the one before is being
// published; publishing itself is one after the other, which is what keeps the order within a key.
func (s *Server) publishBatch(c *Call) error {
	p, err := c.publishParams()
	if err != nil {
		return err
	}
	f, err := c.newFeed(p)
	if err != nil {
		return err
	}
	summary, err := c.Flag("summary")
	if err != nil {
		return err
	}
	body := c.pacedBody()
	defer body.done()
	var closeDecoder func()
	if f.r, closeDecoder, err = c.decoded(body); err != nil {
		return err
	}
	defer closeDecoder()
	run := &batchRun{c: c, p: p, feed: f, body: body, results: results{summary: summary, c: c}}
	defer func() { s.budget.Release(run.results.charged) }()
	run.all()
	return run.answer()
}

// newFeed reads the parameters that say how the body is cut and parsed.
func (c *Call) newFeed(p publishParams) (*feed, error) {
	f := &feed{c: c, size: chunkBytes, most: c.s.cfg.MaxEventBytes*4/3 + maxItemExtra}
	if n := c.R.ContentLength; n >= 0 && n < chunkBytes && c.R.Header["Content-Encoding"] == nil {
		f.size = int(n) + 1
	}
	envelope, err := c.Flag("envelope")
	if err != nil {
		return nil, err
	}
	rules := &lineRules{envelope: envelope, key: p.key, hasKey: p.hasKey, trace: traceHeaders(c.R.Header)}
	if v, ok := c.Query("key_field"); ok {
		if p.hasKey {
			return nil, invalid("key and key_field exclude each other")
		}
		if rules.keyPath, err = keyPath(v); err != nil {
			return nil, err
		}
	}
	ct := c.R.Header.Get("Content-Type")
	mt, _, err := mime.ParseMediaType(ct)
	switch {
	case err == nil && (mt == "application/x-ndjson" || mt == "application/ndjson" || mt == "application/jsonl"):
		f.split, f.parse = lines{}, rules.parse
	case err == nil && mt == ceBatch:
		if envelope || rules.keyPath != nil {
			return nil, invalid("envelope and key_field are for application/x-ndjson")
		}
		f.split, f.parse = &elements{}, func(item []byte, rec *batch.Record) error {
			*rec = batch.Record{Key: p.key, HasKey: p.hasKey}
			if err := ceJSON(rec, item); err != nil {
				return err
			}
			addTrace(rec, rules.trace)
			return nil
		}
	default:
		return nil, NewProblem(http.StatusUnsupportedMediaType, codeMediaType,
			"a batch is application/x-ndjson or "+ceBatch+", not "+strconv.Quote(clip(ct)))
	}
	return f, nil
}

// batchRun is one batch on its way.
type batchRun struct {
	c       *Call
	p       publishParams
	feed    *feed
	body    *pacedReader
	results results
	stop    *Problem // why the rest of the body was not stored
}

// all publishes the whole body, or up to the first failure that is not one event's own.
func (b *batchRun) all() {
	ch := b.feed.next()
	if ch.end {
		b.publish(ch)
		return
	}
	// The reader runs one chunk ahead; quit and the join below end it.
	chunks, quit := make(chan *chunk), make(chan struct{})
	go func() {
		defer close(chunks)
		for {
			next := b.feed.nextSafely()
			select {
			case chunks <- next:
			case <-quit:
				b.feed.done(next)
				return
			}
			if next.end {
				return
			}
		}
	}()
	for ch != nil {
		if !b.publish(ch) {
			break
		}
		ch = <-chunks
	}
	close(quit)
	if b.stop != nil && b.results.stored() == 0 {
		// Nothing is gained by waiting for the rest: cut the read that the reader may be in.
		_ = b.body.ctl.SetReadDeadline(time.Now())
	}
	for ch := range chunks { // the reader may hand one over although quit is closed
		b.feed.done(ch)
	}
	b.feed.abandon()
	if b.stop != nil && b.results.stored() > 0 {
		// The answer matters now, and a client that still sends may not look for it before it is done.
		_, _ = io.Copy(io.Discard, b.body)
	}
}

// publish stores one chunk and notes its results; false when nothing more should be published.
func (b *batchRun) publish(ch *chunk) bool {
	defer b.feed.done(ch)
	var res []flow.PublishResult
	var err error
	if len(ch.recs) > 0 {
		res, err = b.send(ch)
	}
	if err == nil && len(res) != len(ch.recs) {
		err = wire.Errorf(wire.KindInternal, "", "%d results for %d events", len(res), len(ch.recs))
	}
	if grow := b.results.add(ch, res, err); grow != nil && err == nil {
		b.stop = problemOf(grow)
		return false
	}
	switch {
	case err != nil:
		b.stop = problemOf(err)
	case b.results.fatal != nil:
		b.stop = b.results.fatal
	case ch.err != nil:
		b.stop = problemOf(ch.err)
	case b.results.n > maxBatchEvents:
		b.stop = tooLarge("the batch has more than " + strconv.Itoa(maxBatchEvents) + " events")
	}
	return b.stop == nil && !ch.end
}

func (b *batchRun) send(ch *chunk) ([]flow.PublishResult, error) {
	ctx, cancel := context.WithTimeout(b.c.R.Context(), b.p.wait)
	defer cancel()
	opt := b.p.opt
	if opt.IdempotencyKey != "" && ch.first > 0 {
		// Positions start again with each chunk; its first item keeps the identities apart.
		opt.IdempotencyKey += "\x00" + strconv.Itoa(ch.first)
	}
	n := 0
	for i := range ch.recs {
		n += len(ch.recs[i].Value)
	}
	b.c.s.met.pubBytes.Add(float64(n))
	res, err := b.c.s.dep.Publisher.Publish(ctx, b.p.stream, ch.recs, opt)
	if err != nil {
		b.c.s.met.published["failed"].Add(float64(len(ch.recs)))
		return nil, publishError(err)
	}
	b.c.s.countStored(res)
	return res, nil
}

// answer writes 200 when anything was stored, else it returns the problem that came first.
func (b *batchRun) answer() error {
	r := &b.results
	switch {
	case r.stored() == 0 && b.stop != nil:
		return b.stop
	case r.stored() == 0 && r.n == 0:
		return invalid("the batch has no events")
	case r.stored() == 0:
		p := *r.errs[0].p
		p.Detail = "event " + strconv.Itoa(r.errs[0].item) + ": " + p.Detail
		return &p
	}
	r.write(b.c, b.p.opt.Ack == flow.AckNone, b.stop)
	return nil
}
