package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/client/lines"
)

// pubOptions are the flags of skein pub.
type pubOptions struct {
	server      serverFlags
	key         string
	keyField    string
	keyRegexp   string
	contentType string
	json        bool
	resume      string
	lanes       int
	batch       int
	ackNone     bool
	retryFor    time.Duration
	quiet       bool
}

func (p *process) pubCommand() *cobra.Command {
	var o pubOptions
	cmd := &cobra.Command{
		Use:   "pub STREAM [FILE...]",
		Short: "Publish lines, from files or the standard input",
		Long: "Publish each line as one event. A line is everything up to a line feed; a carriage return belongs to it.\n\n" +
			"The identity of a line is run id, file and line number: retries store it once, and running the command again\n" +
			"publishes again. An interrupted run goes on with --resume and the run id that was printed.\n\n" +
			"Lines of one key stay in order, and so do lines without a key.",
		Args: arguments("STREAM", "[FILE...]"),
		Example: "  tail -f app.log | skein pub logs\n" +
			"  skein pub orders orders.ndjson --json --key-field customer.id\n" +
			"  skein pub blocks hdfs.log --key-regex 'blk_-?[0-9]+'",
	}
	f := cmd.Flags()
	o.server.add(cmd)
	f.StringVarP(&o.key, "key", "k", "", "the key of every line")
	f.StringVar(&o.keyField, "key-field", "", "take the key from this field of a JSON line, such as customer.id")
	f.StringVar(&o.keyRegexp, "key-regex", "", "take the key from the first match in a line (its first group, if there is one)")
	f.StringVar(&o.contentType, "content-type", "", "content type of the lines (default "+client.TextPlain+")")
	f.BoolVar(&o.json, "json", false, "lines are JSON: the same as --content-type application/json")
	f.StringVar(&o.resume, "resume", "", "go on with an interrupted run")
	f.IntVar(&o.lanes, "lanes", 0, "batches in flight, 1 to 64, each with its own keys; 1 keeps the order of all lines (default up to 4, never more than partitions)")
	f.IntVar(&o.batch, "batch", 0, "most lines in one request (default 1000)")
	f.BoolVar(&o.ackNone, "no-wait", false, "do not wait until events are durable (ack=none)")
	f.DurationVar(&o.retryFor, "retry-for", 2*time.Minute, "how long to repeat a batch before giving up")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no progress and no summary")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.pub(cmd, &o, args[0], args[1:])
	}
	return cmd
}

// keyFunc finds keys as the flags say; nil: no keys.
func (o *pubOptions) keyFunc(cmd *cobra.Command) (func([]byte) ([]byte, bool), error) {
	given := 0
	for _, name := range []string{"key", "key-field", "key-regex"} {
		if cmd.Flags().Changed(name) {
			given++
		}
	}
	if given > 1 {
		return nil, usagef("--key, --key-field and --key-regex exclude each other")
	}
	var f func([]byte) ([]byte, bool)
	var err error
	switch {
	case cmd.Flags().Changed("key"):
		return lines.FixedKey(o.key), nil
	case o.keyField != "":
		f, err = lines.FieldKey(o.keyField)
	case o.keyRegexp != "":
		f, err = lines.RegexpKey(o.keyRegexp)
	}
	if err != nil {
		return nil, usageError{err}
	}
	return f, nil
}

func (o *pubOptions) check() error {
	if o.json && o.contentType != "" {
		return usagef("--json and --content-type exclude each other")
	}
	if o.json {
		o.contentType = "application/json"
	}
	if o.lanes < 0 || o.lanes > 64 {
		return usagef("--lanes %d: 1 to 64 is wanted", o.lanes)
	}
	if o.batch < 0 || o.batch > 10_000 {
		return usagef("--batch %d: 1 to 10000 is wanted", o.batch)
	}
	return nil
}

func (p *process) pub(cmd *cobra.Command, o *pubOptions, stream string, files []string) error {
	if err := o.check(); err != nil {
		return err
	}
	key, err := o.keyFunc(cmd)
	if err != nil {
		return err
	}
	dir, dirErr := lines.StateDir(p.getenv)
	state, err := o.state(dir, dirErr, stream)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	inputs, total, closeAll, err := p.openInputs(ctx, files)
	if err != nil {
		return err
	}
	defer closeAll()
	c, err := o.server.client(p, !o.quiet)
	if err != nil {
		return err
	}
	defer c.Close()
	bar := &progressBar{w: p.err, total: total, shown: p.terminal && !o.quiet, start: time.Now()}
	keeper := &stateKeeper{state: state, dir: dir, on: dirErr == nil}
	cfg := lines.Config{
		Stream: stream, Run: state.Run, Key: key, ContentType: o.contentType, BatchEvents: o.batch, AckNone: o.ackNone,
		RetryFor: o.retryFor, Done: state.Done, Lanes: o.lanesFor(ctx, c, stream, key != nil),
		OnProgress: func(pr lines.Progress) { bar.draw(pr); keeper.keep(pr) },
	}
	keeper.begin(p.err, o.quiet)
	progress, err := lines.Publish(ctx, c, cfg, inputs)
	bar.clear()
	if err != nil {
		return p.pubFailed(o, keeper, progress, err)
	}
	if dirErr == nil {
		if err := lines.RemoveState(dir, state.Run); err != nil {
			fmt.Fprintf(p.err, "skein: %v\n", err)
		}
	}
	if !o.quiet {
		fmt.Fprintln(p.err, summary(progress, time.Since(bar.start)))
	}
	return nil
}

// state is that of the run to go on with, or of a new one.
func (o *pubOptions) state(dir string, dirErr error, stream string) (lines.State, error) {
	if o.resume == "" {
		return lines.State{Run: client.RandomID(), Stream: stream}, nil
	}
	if dirErr != nil {
		return lines.State{}, dirErr
	}
	s, err := lines.LoadState(dir, o.resume)
	if errors.Is(err, lines.ErrNoState) {
		return s, usagef("run %s: nothing is known of it here; it is complete, or ran as another user", o.resume)
	}
	if err == nil && s.Stream != stream {
		return s, usagef("run %s publishes to %s, not to %s", o.resume, s.Stream, stream)
	}
	return s, err
}

// lanesFor chooses how many batches may be in flight: one where that keeps the order of all lines (no keys, or a stream with one
// partition), else up to four.
func (o *pubOptions) lanesFor(ctx context.Context, c *client.Client, stream string, keyed bool) int {
	if o.lanes > 0 {
		return o.lanes
	}
	if !keyed {
		return 1
	}
	ctx, cancel := questionContext(ctx)
	defer cancel()
	st, err := c.GetStream(ctx, stream)
	if err != nil {
		return 1 // publishing will say what is wrong, if anything is
	}
	return max(1, min(4, st.Open()))
}

func (p *process) openInputs(ctx context.Context, files []string) (in []lines.Input, total int64, closeAll func(), err error) {
	if len(files) == 0 {
		files = []string{"-"}
	}
	var opened []*os.File
	closeAll = func() {
		for _, f := range opened {
			f.Close()
		}
	}
	seen := map[string]bool{}
	for _, name := range files {
		clean := filepath.Clean(name)
		if seen[clean] { // the lines would have the same identities
			closeAll()
			return nil, 0, nil, usagef("%s is given twice", name)
		}
		seen[clean] = true
		if name == "-" {
			in, total = append(in, lines.Input{Name: "-", R: interruptible(ctx, p.in)}), -1
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			closeAll()
			return nil, 0, nil, err
		}
		opened = append(opened, f)
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && total >= 0 {
			total += info.Size()
		} else {
			total = -1
		}
		in = append(in, lines.Input{Name: clean, R: interruptible(ctx, f)})
	}
	return in, total, closeAll, nil
}

// pubFailed keeps what is needed to go on, and says how.
func (p *process) pubFailed(o *pubOptions, keeper *stateKeeper, pr lines.Progress, err error) error {
	keeper.last = time.Time{}
	keeper.keep(pr)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(p.err, "skein: %v\n", err)
	p.hint(err)
	if keeper.on && keeper.err == nil && !o.quiet {
		fmt.Fprintf(p.err, "skein: %d lines are stored; go on with the same command and --resume %s\n", pr.Lines, keeper.state.Run)
	}
	return errReported
}

// begin names the run and keeps it before the first line is sent: only so can a run be gone on with that was killed at any moment.
func (k *stateKeeper) begin(w io.Writer, quiet bool) {
	if !k.on {
		return
	}
	if k.err = k.state.Save(k.dir); k.err == nil && !quiet {
		fmt.Fprintf(w, "run %s; if it is cut short, go on with the same command and --resume %s\n", k.state.Run, k.state.Run)
	}
}

// stateKeeper writes the watermarks at most once a second.
type stateKeeper struct {
	state lines.State
	dir   string
	on    bool
	last  time.Time
	err   error
}

func (k *stateKeeper) keep(pr lines.Progress) {
	if !k.on || time.Since(k.last) < time.Second {
		return
	}
	k.last = time.Now()
	k.state.Done = pr.Watermarks
	k.err = k.state.Save(k.dir)
}

func summary(pr lines.Progress, took time.Duration) string {
	parts := []string{fmt.Sprintf("published %d lines, %s in %s", pr.Lines-pr.Skipped, bytesText(pr.Bytes), took.Round(time.Millisecond))}
	if pr.Skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d were stored before", pr.Skipped))
	}
	if pr.Duplicates > 0 {
		parts = append(parts, fmt.Sprintf("%d were there already", pr.Duplicates))
	}
	if pr.Keyless > 0 {
		parts = append(parts, fmt.Sprintf("%d had no key", pr.Keyless))
	}
	return strings.Join(parts, ", ")
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// progressBar is one line on a terminal that is drawn over.
type progressBar struct {
	w     io.Writer
	total int64 // bytes; below 0: not known
	shown bool
	start time.Time
	drawn bool
}

func (b *progressBar) draw(pr lines.Progress) {
	if !b.shown {
		return
	}
	b.drawn = true
	rate := float64(pr.Lines-pr.Skipped) / max(time.Since(b.start).Seconds(), 0.001)
	if b.total <= 0 {
		fmt.Fprintf(b.w, "\r\x1b[K%d lines, %s, %.0f lines/s", pr.Lines, bytesText(pr.Bytes), rate)
		return
	}
	const width = 30
	part := min(float64(pr.Bytes)/float64(b.total), 1)
	filled := int(part * width)
	fmt.Fprintf(b.w, "\r\x1b[K[%s%s] %3.0f %%  %d lines, %.0f lines/s", strings.Repeat("=", filled), strings.Repeat(" ", width-filled), part*100, pr.Lines, rate)
}

func (b *progressBar) clear() {
	if b.drawn {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
