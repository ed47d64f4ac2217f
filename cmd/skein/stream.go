package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/skeinmesh/skein/node/client"
	"github.com/skeinmesh/skein/node/config"
)

func (p *process) streamCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "stream", Short: "Create, list, show, alter and delete streams"}
	cmd.AddCommand(p.streamCreate(), p.streamList(), p.streamShow(), p.streamAlter(), p.streamDelete())
	return cmd
}

// settingFlags are a stream's settings. Only flags that were given are sent: the mesh knows the defaults.
func settingFlags(f *pflag.FlagSet) {
	f.Int("partitions", 0, "partitions to start with (default 8)")
	f.Int("min-partitions", 0, "merge to no fewer (default 1; merges are not available yet)")
	f.Int("max-partitions", 0, "split to no more (default 256; splits are not available yet)")
	f.Int("replicas", 0, "copies: 1, 3 or 5 (default 3)")
	f.Int("min-copies", 0, "refuse publishes that could not reach so many copies (default 1)")
	f.String("order", "", "key, window or none (default key; the others are not available yet: they are kept, and change nothing)")
	f.String("order-window", "", "with order window: its length, such as 1s (not available yet)")
	f.StringSlice("hot-keys", nil, "patterns of keys to isolate ahead of time (not available yet: they are kept, and change nothing)")
	f.String("retention", "", "keep events so long, such as 7d; none: without limit (default 7d)")
	f.String("retention-bytes", "", "keep so many bytes per stream, such as 10GiB; none: without limit (default 10GiB)")
	f.String("dedupe-window", "", "recognise a repeated identity for so long (default 10m)")
	f.String("max-event-bytes", "", "largest event (default 1MiB)")
}

// settings turns the given flags into the API's names.
func settings(f *pflag.FlagSet) (map[string]any, error) {
	out := map[string]any{}
	var bad error
	f.Visit(func(fl *pflag.Flag) {
		name := strings.ReplaceAll(fl.Name, "-", "_")
		value := fl.Value.String()
		fail := func(err error) {
			if bad == nil && err != nil {
				bad = usagef("--%s: %v", fl.Name, err)
			}
		}
		switch fl.Name {
		case "partitions", "min-partitions", "max-partitions", "replicas", "min-copies":
			out[name], _ = f.GetInt(fl.Name)
		case "order":
			out[name] = value
		case "hot-keys":
			out[name], _ = f.GetStringSlice(fl.Name)
		case "order-window", "dedupe-window", "retention":
			if value == "none" && fl.Name == "retention" {
				out["retention_ms"] = -1
				return
			}
			d, err := config.ParseDuration(value)
			fail(err)
			out[name+"_ms"] = d.Milliseconds()
		case "retention-bytes", "max-event-bytes":
			if value == "none" && fl.Name == "retention-bytes" {
				out[name] = -1
				return
			}
			n, err := config.ParseSize(value)
			fail(err)
			out[name] = n
		}
	})
	return out, bad
}

func (p *process) streamCreate() *cobra.Command {
	var s serverFlags
	var o outputFlag
	var onlyNew bool
	cmd := &cobra.Command{
		Use:     "create STREAM",
		Short:   "Create a stream; one that exists with equal settings is fine",
		Args:    arguments("STREAM"),
		Example: "  skein stream create orders --partitions 8 --retention 7d",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := settings(cmd.Flags())
		if err != nil {
			return err
		}
		return p.ask(cmd, &s, &o, func(ctx context.Context, c *client.Client) error {
			st, err := c.CreateStream(ctx, args[0], cfg, onlyNew)
			if err != nil {
				return err
			}
			return p.print(o, st, func() error {
				_, err := fmt.Fprintf(p.out, "stream %s: %d partitions, %v replicas\n", st.Name, st.Open(), st.Config["replicas"])
				return err
			})
		})
	}
	settingFlags(cmd.Flags())
	cmd.Flags().BoolVar(&onlyNew, "only-new", false, "fail where the stream exists")
	s.add(cmd)
	o.add(cmd)
	return cmd
}

func (p *process) streamList() *cobra.Command {
	var s serverFlags
	var o outputFlag
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List streams", Args: arguments()}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.ask(cmd, &s, &o, func(ctx context.Context, c *client.Client) error {
			if o.format != "text" {
				raw, err := c.Raw(ctx, "/v1/streams", nil)
				if err != nil {
					return err
				}
				return p.print(o, raw, nil)
			}
			list, err := c.ListStreams(ctx)
			if _, part := errors.AsType[*client.Incomplete](err); err != nil && !part {
				return err // else it is told after what is known
			}
			var rows [][]string
			for _, st := range list {
				rows = append(rows, []string{st.Name, fmt.Sprint(st.Config["partitions"]), fmt.Sprint(st.Config["replicas"]),
					fmt.Sprint(st.Config["order"]), retention(st), st.Created.Local().Format(time.DateTime)})
			}
			return cmp.Or(p.table("STREAM PARTITIONS REPLICAS ORDER RETENTION CREATED", rows), err)
		})
	}
	s.add(cmd)
	o.add(cmd)
	return cmd
}

func retention(st client.Stream) string {
	ms, ok := st.Config["retention_ms"].(float64)
	if !ok {
		return ""
	}
	return retentionText(ms)
}

func retentionText(ms float64) string {
	if ms < 0 || ms > float64(math.MaxInt64/time.Millisecond) { // more than 292 years
		return "none"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

func (p *process) streamShow() *cobra.Command {
	var s serverFlags
	var o outputFlag
	cmd := &cobra.Command{Use: "show STREAM", Short: "Show a stream's settings and partitions", Args: arguments("STREAM")}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.ask(cmd, &s, &o, func(ctx context.Context, c *client.Client) error {
			raw, err := c.Raw(ctx, "/v1/streams/"+url.PathEscape(args[0]), nil)
			if err != nil {
				return err
			}
			return p.print(o, raw, func() error { return p.streamText(raw) })
		})
	}
	s.add(cmd)
	o.add(cmd)
	return cmd
}

func (p *process) streamText(raw json.RawMessage) error {
	var st client.Stream
	if err := json.Unmarshal(raw, &st); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "%s  version %d, created %s\n", p.bold(st.Name), st.Version, st.Created.Local().Format(time.DateTime))
	for _, name := range []string{"partitions", "min_partitions", "max_partitions", "replicas", "min_copies", "order", "retention_ms", "retention_bytes", "dedupe_window_ms", "max_event_bytes"} {
		if v, ok := st.Config[name]; ok {
			if f, isNumber := v.(float64); isNumber {
				v = int64(f)
			}
			fmt.Fprintf(p.out, "  %-18s %v\n", name, v)
		}
	}
	var rows [][]string
	for _, pt := range st.Partitions {
		rows = append(rows, []string{fmt.Sprint(pt.ID), pt.State, pt.Owner, fmt.Sprint(pt.Term), strings.Join(pt.Replicas, ",")})
	}
	return p.table("PARTITION STATE OWNER TERM REPLICAS", rows)
}

func (p *process) streamAlter() *cobra.Command {
	var s serverFlags
	var o outputFlag
	var version uint64
	cmd := &cobra.Command{
		Use:     "alter STREAM",
		Short:   "Change a stream's settings",
		Args:    arguments("STREAM"),
		Example: "  skein stream alter orders --retention 14d",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		patch, err := settings(cmd.Flags())
		if err != nil {
			return err
		}
		if len(patch) == 0 {
			return usagef("nothing to change: name at least one setting")
		}
		return p.ask(cmd, &s, &o, func(ctx context.Context, c *client.Client) error {
			st, err := c.AlterStream(ctx, args[0], version, patch)
			if err != nil {
				return err
			}
			return p.print(o, st, func() error {
				_, err := fmt.Fprintf(p.out, "stream %s: version %d\n", st.Name, st.Version)
				return err
			})
		})
	}
	settingFlags(cmd.Flags())
	cmd.Flags().Uint64Var(&version, "if-version", 0, "only where the stream has this version")
	s.add(cmd)
	o.add(cmd)
	return cmd
}

func (p *process) streamDelete() *cobra.Command {
	var s serverFlags
	var confirm string
	cmd := &cobra.Command{
		Use:     "delete STREAM --confirm STREAM",
		Short:   "Delete a stream with all of its events",
		Args:    arguments("STREAM"),
		Example: "  skein stream delete orders --confirm orders",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if confirm != args[0] {
			return usagef("this deletes every event of %s: say --confirm %s", args[0], args[0])
		}
		return p.ask(cmd, &s, nil, func(ctx context.Context, c *client.Client) error {
			if err := c.DeleteStream(ctx, args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(p.out, "stream %s deleted\n", args[0])
			return err
		})
	}
	cmd.Flags().StringVar(&confirm, "confirm", "", "the stream's name once more")
	s.add(cmd)
	return cmd
}
