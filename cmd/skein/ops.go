package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
)

// opFlags are common to the commands that change where things are.
type opFlags struct {
	serverFlags
	outputFlag
	dryRun bool
	noWait bool
}

func (f *opFlags) add(cmd *cobra.Command, waits bool) {
	f.serverFlags.add(cmd)
	f.outputFlag.add(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only tell what would happen, and why")
	if waits {
		cmd.Flags().BoolVar(&f.noWait, "no-wait", false, "return once it has begun")
	}
}

func (p *process) drainCommand() *cobra.Command {
	var f opFlags
	var wait, cancel bool
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Empty a node, and tell when it is safe to power down",
		Long: "Empty a node: it takes nothing new, its ownerships and copies go to others, and this command shows how far that is until the\n" +
			"node holds nothing and is safe to power down. The drain goes on when the command is stopped, and when the node is restarted;\n" +
			"the same command shows it again. Exit code 0 says that the node is empty, 1 that it is not.",
		Args:    arguments("NODE"),
		Example: "  skein drain n3 --dry-run\n  skein drain n3\n  skein drain n3 --cancel",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.noWait && wait && cmd.Flags().Changed("wait") {
			return usagef("--wait and --no-wait exclude each other")
		}
		f.noWait = f.noWait || !wait
		if cancel {
			return p.operate(cmd, &f, func(ctx context.Context, c *client.Client) (client.Operation, error) {
				return c.CancelDrain(ctx, args[0], f.dryRun)
			})
		}
		err := p.operate(cmd, &f, func(ctx context.Context, c *client.Client) (client.Operation, error) {
			return c.Drain(ctx, args[0], f.dryRun)
		})
		if errors.Is(err, context.Canceled) {
			fmt.Fprintf(p.err, "skein: the drain goes on; skein drain %s shows it again, with --cancel it ends\n", args[0])
			return errReported
		}
		return err
	}
	f.add(cmd, true)
	cmd.Flags().BoolVar(&wait, "wait", true, "show how far it is until it has ended (the default)")
	cmd.Flags().BoolVar(&cancel, "cancel", false, "take the node back into service")
	return cmd
}

func (p *process) cordonCommand() *cobra.Command {
	return p.nodeOp("cordon NODE", "Keep new work off a node", "The node keeps what it has and gets no new copy and no new ownership, also after a restart.",
		(*client.Client).Cordon)
}

func (p *process) uncordonCommand() *cobra.Command {
	return p.nodeOp("uncordon NODE", "Let a node take its share again", "Takes back what cordon did. A drain is taken back by skein drain NODE --cancel.",
		(*client.Client).Uncordon)
}

func (p *process) nodeOp(use, short, long string, ask func(c *client.Client, ctx context.Context, node string, dryRun bool) (client.Operation, error)) *cobra.Command {
	var f opFlags
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: arguments("NODE")}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.operate(cmd, &f, func(ctx context.Context, c *client.Client) (client.Operation, error) {
			return ask(c, ctx, args[0], f.dryRun)
		})
	}
	f.add(cmd, false)
	return cmd
}

func (p *process) transferCommand() *cobra.Command {
	var f opFlags
	var to string
	cmd := &cobra.Command{
		Use:   "transfer STREAM PARTITION --to NODE",
		Short: "Hand the ownership of a partition to another of its nodes",
		Long: "Hand the ownership of a partition to another node that has a caught-up copy of it. No bytes move. Balancing may hand it on later.\n" +
			"The catalog's shards are the partitions of _mesh.",
		Args:    arguments("STREAM", "PARTITION"),
		Example: "  skein mesh partitions orders\n  skein transfer orders 3 --to n2",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		partition, err := partitionArg(args[1])
		if err != nil {
			return err
		}
		if to == "" {
			return usagef("--to is missing: which node is to own it?")
		}
		return p.operate(cmd, &f, func(ctx context.Context, c *client.Client) (client.Operation, error) {
			return c.Transfer(ctx, args[0], partition, to, f.dryRun)
		})
	}
	f.add(cmd, true)
	cmd.Flags().StringVar(&to, "to", "", "the node that is to own it")
	return cmd
}

func (p *process) moveCommand() *cobra.Command {
	var f opFlags
	var from, to string
	cmd := &cobra.Command{
		Use:   "move STREAM PARTITION --from NODE --to NODE",
		Short: "Move one copy of a partition to another node",
		Long: "Move one copy of a partition to another node: the new copy catches up, then takes the place of the old one in one step. Publishers and\n" +
			"readers go on meanwhile. The catalog's shards are the partitions of _mesh.",
		Args:    arguments("STREAM", "PARTITION"),
		Example: "  skein mesh partitions orders\n  skein move orders 3 --from n1 --to n4 --dry-run\n  skein move orders 3 --from n1 --to n4",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		partition, err := partitionArg(args[1])
		if err != nil {
			return err
		}
		if from == "" || to == "" {
			return usagef("--from and --to name the node that has the copy and the one that is to get it")
		}
		return p.operate(cmd, &f, func(ctx context.Context, c *client.Client) (client.Operation, error) {
			return c.Move(ctx, args[0], partition, from, to, f.dryRun)
		})
	}
	f.add(cmd, true)
	cmd.Flags().StringVar(&from, "from", "", "the node that has the copy")
	cmd.Flags().StringVar(&to, "to", "", "the node that is to get it")
	return cmd
}

func partitionArg(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, usagef("PARTITION: %q is not a number", s)
	}
	return uint32(n), nil
}

// operate asks for an operation, and unless told otherwise follows it to its end, with its progress on the standard error.
func (p *process) operate(cmd *cobra.Command, f *opFlags, ask func(ctx context.Context, c *client.Client) (client.Operation, error)) error {
	var op client.Operation
	err := p.ask(cmd, &f.serverFlags, &f.outputFlag, func(ctx context.Context, c *client.Client) (err error) {
		op, err = ask(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	if !op.Over() && !f.noWait {
		if op, err = p.follow(cmd.Context(), &f.serverFlags, op); err != nil {
			return err
		}
	}
	if err := p.print(f.outputFlag, op.Raw, func() error { return p.operationText(op) }); err != nil {
		return err
	}
	if op.State == "failed" || op.State == "cancelled" {
		return errReported
	}
	return nil
}

// followEvery is how often an operation is looked up.
const followEvery = 500 * time.Millisecond

// follow shows each change of an operation until it is over. It goes on through failures of the nodes asked.
func (p *process) follow(ctx context.Context, s *serverFlags, op client.Operation) (client.Operation, error) {
	c, err := s.client(p, true)
	if err != nil {
		return op, err
	}
	defer c.Close()
	t := time.NewTicker(followEvery)
	defer t.Stop()
	news := newNews(p)
	for !op.Over() {
		news.show(op)
		select {
		case <-t.C:
		case <-ctx.Done():
			return op, ctx.Err()
		}
		next, err := c.Operation(ctx, op.ID)
		switch {
		case ctx.Err() != nil:
			return op, ctx.Err()
		case err != nil:
			return op, err
		}
		op = next
	}
	return op, nil
}

// news tells of an operation what was not told yet.
type news struct {
	p      *process
	reason string
	stuck  map[string]bool
}

func newNews(p *process) *news { return &news{p: p, stuck: map[string]bool{}} }

func (s *news) show(op client.Operation) {
	if op.Reason != s.reason {
		s.reason = op.Reason
		fmt.Fprintf(s.p.err, "%s  %s\n", time.Now().Format(time.TimeOnly), op.Reason)
	}
	if op.Progress == nil {
		return
	}
	for _, r := range op.Progress.Remaining {
		line := fmt.Sprintf("          stuck: %s partition %d (%s): %s", r.Stream, r.Partition, r.Role, r.Reason)
		if r.Stuck && !s.stuck[line] && len(s.stuck) < 1000 {
			s.stuck[line] = true
			fmt.Fprintln(s.p.err, line)
		}
	}
}

// operationText tells of an operation in words: the sentence, then the steps of a plan, or what remains.
func (p *process) operationText(op client.Operation) error {
	if _, err := fmt.Fprintln(p.out, op.Reason); err != nil {
		return err
	}
	if op.State == "planned" {
		for i, s := range op.Steps {
			if _, err := fmt.Fprintf(p.out, "%3d. %s\n", i+1, s); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintln(p.out, "This was a dry run: nothing was done.")
		return err
	}
	if op.Progress == nil || len(op.Progress.Remaining) == 0 {
		return nil
	}
	var rows [][]string
	for _, r := range op.Progress.Remaining {
		stuck := ""
		if r.Stuck {
			stuck = "stuck"
		}
		rows = append(rows, []string{r.Stream, fmt.Sprint(r.Partition), r.Role, stuck, r.Reason})
	}
	return p.table("STREAM PARTITION ROLE STUCK WAITS-FOR", rows)
}

// meshOperations lists a page of operations.
func (p *process) meshOperations() *cobra.Command {
	var limit int
	var cursor string
	cmd := p.meshQueryWith("operations", "List what operators asked for, and how it stands", "/v1/operations", func([]string) url.Values {
		q := url.Values{}
		if limit != 0 {
			q.Set("limit", strconv.Itoa(limit))
		}
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		return q
	}, p.operationsText)
	cmd.Flags().IntVar(&limit, "limit", 0, "show so many, the newest first; at most 1000 (default 100)")
	cmd.Flags().StringVar(&cursor, "cursor", "", "go on where a list before ended, as it said")
	return cmd
}

func (p *process) operationsText(raw json.RawMessage) error {
	var list struct {
		Operations []client.Operation `json:"operations"`
		Silent     []string           `json:"silent"`
		NextCursor string             `json:"next_cursor"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	var rows [][]string
	for _, op := range list.Operations {
		rows = append(rows, []string{op.Started.Local().Format(time.DateTime), op.Kind, op.What(), op.State, op.Keeper, op.Reason})
	}
	if err := p.table("STARTED KIND WHAT STATE KEPT-BY HOW-IT-STANDS", rows); err != nil {
		return err
	}
	for _, n := range list.Silent {
		fmt.Fprintf(p.err, "skein: %s does not answer; what it keeps is not shown\n", n)
	}
	if list.NextCursor != "" {
		fmt.Fprintf(p.err, "skein: older ones: skein mesh operations --cursor %s\n", list.NextCursor)
	}
	return nil
}
