package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/client/lines"
)

// subOptions are the flags of skein sub.
type subOptions struct {
	server     serverFlags
	from       string
	untilEnd   bool
	cursorFile string
	format     string
	key        string
	partition  int64
	limit      int
}

func (p *process) subCommand() *cobra.Command {
	var o subOptions
	cmd := &cobra.Command{
		Use:   "sub STREAM",
		Short: "Read a stream",
		Long: "Read a stream and write its events to the standard output. A lost connection is taken up again at the next\n" +
			"server, behind the last event.\n\n" +
			"Positions: earliest, latest, @2026-01-31T12:00:00Z, -15m (that long ago), PARTITION:OFFSET[,...], or a cursor.\n" +
			"Formats: value (the bytes and a line feed), json (the whole event, one a line), kv (key, tab, value),\n" +
			"full (time, partition, offset, key and value, for people).\n\n" +
			"With --cursor-file the place is written after the events before it were, and the next run starts there: an event may\n" +
			"come twice after a crash, none is left out.",
		Args: arguments("STREAM"),
		Example: "  skein sub orders --from earliest --until-end\n" +
			"  skein sub orders --from -15m -f json\n" +
			"  skein sub orders --from earliest --cursor-file orders.cursor",
	}
	f := cmd.Flags()
	o.server.add(cmd)
	f.StringVar(&o.from, "from", "latest", "position to start at, where the cursor file holds none")
	f.BoolVar(&o.untilEnd, "until-end", false, "stop at the end as it is now")
	f.StringVar(&o.cursorFile, "cursor-file", "", "remember the place in this file")
	f.StringVarP(&o.format, "format", "f", "value", "value, json, kv or full")
	f.StringVar(&o.key, "key", "", "only events with this key")
	f.Int64Var(&o.partition, "partition", -1, "only this partition")
	f.IntVar(&o.limit, "limit", 0, "stop after so many events")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.sub(cmd, &o, args[0]) }
	return cmd
}

func (p *process) sub(cmd *cobra.Command, o *subOptions, stream string) error {
	write, ok := formats[o.format]
	if !ok {
		return usagef("-f %s: value, json, kv or full is wanted", o.format)
	}
	if o.limit < 0 {
		return usagef("--limit %d is negative", o.limit)
	}
	req := client.SubscribeRequest{From: o.from, UntilEnd: o.untilEnd, Limit: o.limit, Key: o.key, HasKey: cmd.Flags().Changed("key")}
	if cmd.Flags().Changed("partition") {
		if o.partition < 0 || o.partition > 1<<32-1 {
			return usagef("--partition %d: 0 or above is wanted", o.partition)
		}
		n := uint32(o.partition)
		req.Partition = &n
	}
	place := &cursorFile{path: o.cursorFile}
	saved, err := place.load()
	if err != nil {
		return err
	}
	if saved != "" {
		req.From = saved
	}
	c, err := o.server.client(p, true)
	if err != nil {
		return err
	}
	defer c.Close()
	sub, err := c.Subscribe(cmd.Context(), stream, req)
	if err != nil {
		return quietInterrupt(cmd.Context(), err)
	}
	defer sub.Close()
	return p.copyEvents(cmd.Context(), sub, write, place)
}

// quietInterrupt: ending a subscription with Ctrl-C is its normal end.
func quietInterrupt(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// copyEvents writes events as they come; the place is remembered only behind what was written.
func (p *process) copyEvents(ctx context.Context, sub *client.Subscription, write eventWriter, place *cursorFile) error {
	out := bufio.NewWriterSize(p.out, 64<<10)
	for {
		chunk, err := sub.Next()
		if err == io.EOF {
			return place.flush()
		}
		if err != nil {
			return errors.Join(quietInterrupt(ctx, err), place.flush())
		}
		for i := range chunk.Events {
			if err := write(out, &chunk.Events[i]); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if err := place.advance(chunk.Cursor); err != nil {
			return err
		}
	}
}

// cursorFile remembers a place in a stream. It is written at most five times a second, and at the end.
type cursorFile struct {
	path    string
	pending string
	last    time.Time
}

func (c *cursorFile) load() (string, error) {
	if c.path == "" {
		return "", nil
	}
	data, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(data))
	if len(s) > 64<<10 || strings.ContainsAny(s, " \n\t\x00") {
		return "", fmt.Errorf("%s holds no cursor", c.path)
	}
	return s, nil
}

func (c *cursorFile) advance(cursor string) error {
	if c.path == "" || cursor == "" {
		return nil
	}
	c.pending = cursor
	if time.Since(c.last) < 200*time.Millisecond {
		return nil
	}
	return c.flush()
}

func (c *cursorFile) flush() error {
	if c.pending == "" {
		return nil
	}
	if err := lines.WriteFile(c.path, []byte(c.pending+"\n")); err != nil {
		return err
	}
	c.pending, c.last = "", time.Now()
	return nil
}

type eventWriter func(w *bufio.Writer, ev *client.Received) error

var formats = map[string]eventWriter{
	"value": func(w *bufio.Writer, ev *client.Received) error {
		w.Write(ev.Value)
		return w.WriteByte('\n')
	},
	"json": func(w *bufio.Writer, ev *client.Received) error {
		w.Write(ev.Line)
		return w.WriteByte('\n')
	},
	"kv": func(w *bufio.Writer, ev *client.Received) error {
		w.Write(keyOf(ev))
		w.WriteByte('\t')
		w.Write(ev.Value)
		return w.WriteByte('\n')
	},
	"full": func(w *bufio.Writer, ev *client.Received) error {
		key := "-"
		if ev.Key != nil || ev.KeyBase64 != "" {
			key = shown(keyOf(ev))
		}
		_, err := fmt.Fprintf(w, "%s  %d:%d  %s  %s\n", ev.Time.UTC().Format("2006-01-02T15:04:05.000Z"), ev.Partition, ev.Offset, key, shown(ev.Value))
		return err
	},
}

// keyOf is the event's key, empty where it has none.
func keyOf(ev *client.Received) []byte {
	if ev.Key != nil {
		return []byte(*ev.Key)
	}
	key, _ := base64.StdEncoding.DecodeString(ev.KeyBase64) // what is no base64 is no key
	return key
}

// shown is b for people.
func shown(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return "base64:" + base64.StdEncoding.EncodeToString(b)
}
