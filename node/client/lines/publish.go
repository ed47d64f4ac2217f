package lines

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skeinmesh/skein/node/client"
)

// Limits of a run.
const (
	MaxLine = 4 << 20 // bytes; no stream takes larger events

	defaultBatchEvents = 1000
	defaultBatchBytes  = 512 << 10
	defaultRetryFor    = 2 * time.Minute
	progressEvery      = 200 * time.Millisecond
)

// Publisher sends batches; *client.Client is one.
type Publisher interface {
	PublishBatch(ctx context.Context, stream string, events []client.Event, o client.PublishOptions) ([]client.Result, error)
}

// Config says how to publish.
type Config struct {
	Stream string
	// Run names the run; it must be new unless the run goes on.
	Run string
	// Key finds a line's key; nil, or ok false: none. It is called from one goroutine, and the line is not to be kept.
	Key func(line []byte) (key []byte, ok bool)
	// ContentType of the lines; empty: text/plain, as bytes where a line is not UTF-8.
	ContentType string
	// Lanes is how many batches may be in flight, each with its own keys; default 1, which keeps the order of all lines.
	Lanes int
	// BatchEvents and BatchBytes bound one batch; defaults 1,000 and 512 KiB.
	BatchEvents, BatchBytes int
	// AckNone does not wait for durability.
	AckNone bool
	// RetryFor bounds how long one batch is repeated; default 2 min.
	RetryFor time.Duration
	// Done holds the watermarks of a run that goes on: lines up to them are skipped.
	Done map[string]int64
	// OnProgress, where not nil, is told a few times a second, from one goroutine, and once at the end.
	OnProgress func(Progress)
}

// Input is one file.
type Input struct {
	// Name goes into the identity of the lines; "-" for the standard input.
	Name string
	R    io.Reader
}

// Progress is how far a run is.
type Progress struct {
	Lines, Bytes int64 // acknowledged, skipped ones included
	Skipped      int64 // lines below the watermarks of the run before
	Duplicates   int64 // lines that the mesh had already
	Keyless      int64 // lines in which Key found none
	// Watermarks say per file up to which line everything is stored.
	Watermarks map[string]int64
}

// LineError says which line failed, and why.
type LineError struct {
	File string
	Line int64
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

type item struct {
	file  *track
	line  int64
	bytes int64
	ev    client.Event
}

// run is one Publish under way.
type run struct {
	cfg   Config
	pub   Publisher
	lanes []chan item
	seed  maphash.Seed

	mu       sync.Mutex
	progress Progress
	tracks   []*track
}

// Publish sends all lines of all inputs, one input after the other, and returns once everything is acknowledged or
// something failed for good. The error is a *LineError where a line is to blame, or the reader's, or the context's.
func Publish(ctx context.Context, pub Publisher, cfg Config, inputs []Input) (Progress, error) {
	setDefaults(&cfg)
	r := &run{cfg: cfg, pub: pub, seed: maphash.MakeSeed()}
	for range cfg.Lanes {
		r.lanes = append(r.lanes, make(chan item, 2*cfg.BatchEvents))
	}
	stop := r.report()
	g, gctx := errgroup.WithContext(ctx)
	for _, lane := range r.lanes {
		g.Go(func() error { return r.send(gctx, lane) })
	}
	g.Go(func() error {
		defer func() {
			for _, lane := range r.lanes {
				close(lane)
			}
		}()
		for _, in := range inputs {
			if err := r.read(gctx, in); err != nil {
				return err
			}
		}
		return nil
	})
	err := g.Wait()
	stop()
	p := r.snapshot()
	if cfg.OnProgress != nil {
		cfg.OnProgress(p)
	}
	return p, err
}

func setDefaults(cfg *Config) {
	cfg.Lanes = max(cfg.Lanes, 1)
	if cfg.BatchEvents <= 0 {
		cfg.BatchEvents = defaultBatchEvents
	}
	if cfg.BatchBytes <= 0 {
		cfg.BatchBytes = defaultBatchBytes
	}
	if cfg.RetryFor <= 0 {
		cfg.RetryFor = defaultRetryFor
	}
	if cfg.ContentType == "" {
		cfg.ContentType = client.TextPlain
	}
}

// report calls OnProgress until the returned stop, which waits.
func (r *run) report() (stop func()) {
	if r.cfg.OnProgress == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				r.cfg.OnProgress(r.snapshot())
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// read cuts one input into lines and hands them to their lanes.
func (r *run) read(ctx context.Context, in Input) error {
	skip := r.cfg.Done[in.Name]
	t := &track{name: in.Name, next: skip + 1, done: map[int64]struct{}{}}
	r.mu.Lock()
	r.tracks = append(r.tracks, t)
	r.mu.Unlock()
	source := "skein-pub/" + r.cfg.Run + "/" + in.Name
	br := bufio.NewReaderSize(in.R, 256<<10)
	for n := int64(1); ; n++ {
		line, size, err := readLine(br)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return &LineError{File: in.Name, Line: n, Err: err}
		}
		if n <= skip {
			r.mu.Lock()
			r.progress.Skipped++
			r.progress.Bytes += size
			r.progress.Lines++
			r.mu.Unlock()
			continue
		}
		it := item{file: t, line: n, bytes: size, ev: client.Event{
			Value: line, ContentType: r.cfg.ContentType, Source: source, ID: strconv.FormatInt(n, 10),
		}}
		lane := r.lane(&it.ev)
		select {
		case r.lanes[lane] <- it:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lane finds the event's key and the lane of that key. Events without one share the first lane, which keeps their order.
func (r *run) lane(ev *client.Event) int {
	if r.cfg.Key == nil {
		return 0
	}
	key, ok := r.cfg.Key(ev.Value)
	if !ok {
		r.mu.Lock()
		r.progress.Keyless++
		r.mu.Unlock()
		return 0
	}
	ev.Key, ev.HasKey = append([]byte(nil), key...), true
	return int(maphash.Bytes(r.seed, ev.Key) % uint64(len(r.lanes)))
}

// readLine returns a fresh copy of the next line without its line feed, and its size with it. The last line needs none.
func readLine(r *bufio.Reader) (line []byte, size int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > MaxLine:
			return nil, 0, fmt.Errorf("the line is longer than %d MiB", MaxLine>>20)
		case err == nil:
			return line[:len(line)-1], int64(len(line)), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && len(line) > 0:
			return line, int64(len(line)), nil
		default:
			return nil, 0, err
		}
	}
}

// send publishes a lane's lines in order, one batch at a time.
func (r *run) send(ctx context.Context, lane <-chan item) error {
	var carry *item // did not fit into the batch before
	for {
		batch, next, err := r.gather(ctx, lane, carry)
		carry = next
		if len(batch) == 0 {
			return err
		}
		if err := r.publish(ctx, batch); err != nil {
			return err
		}
	}
}

// gather waits for one line and takes what else is there already, within the bounds of a batch. No batch and no error: that was all.
func (r *run) gather(ctx context.Context, lane <-chan item, first *item) (batch []item, carry *item, err error) {
	if first == nil {
		select {
		case it, ok := <-lane:
			if !ok {
				return nil, nil, nil
			}
			first = &it
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	batch = append(batch, *first)
	size := len(first.ev.Value)
	for len(batch) < r.cfg.BatchEvents {
		select {
		case it, ok := <-lane:
			if !ok {
				return batch, nil, nil
			}
			if size += len(it.ev.Value); size > r.cfg.BatchBytes {
				return batch, &it, nil
			}
			batch = append(batch, it)
		default:
			return batch, nil, nil
		}
	}
	return batch, nil, nil
}

func (r *run) publish(ctx context.Context, batch []item) error {
	events := make([]client.Event, len(batch))
	for i := range batch {
		events[i] = batch[i].ev
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.RetryFor, fmt.Errorf("gave up after %v", r.cfg.RetryFor))
	defer cancel()
	results, err := r.pub.PublishBatch(ctx, r.cfg.Stream, events, client.PublishOptions{AckNone: r.cfg.AckNone})
	if err != nil {
		return &LineError{File: batch[0].file.name, Line: batch[0].line, Err: err}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed error
	for i, res := range results {
		it := &batch[i]
		if res.Err != nil {
			if failed == nil {
				failed = &LineError{File: it.file.name, Line: it.line, Err: res.Err}
			}
			continue
		}
		it.file.mark(it.line)
		r.progress.Lines++
		r.progress.Bytes += it.bytes
		if res.Duplicate {
			r.progress.Duplicates++
		}
	}
	return failed
}

func (r *run) snapshot() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.progress
	p.Watermarks = map[string]int64{}
	for _, t := range r.tracks {
		p.Watermarks[t.name] = t.next - 1
	}
	return p
}

// track knows which lines of a file are stored; done holds those beyond the watermark, no more than are in flight.
type track struct {
	name string
	next int64 // the first line not known to be stored
	done map[int64]struct{}
}

func (t *track) mark(line int64) {
	t.done[line] = struct{}{}
	for {
		if _, ok := t.done[t.next]; !ok {
			return
		}
		delete(t.done, t.next)
		t.next++
	}
}
