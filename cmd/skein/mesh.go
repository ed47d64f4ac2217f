package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node/client"
)

func (p *process) meshCommand() *cobra.Command {
	cmd := p.meshQuery("mesh", "Show the mesh on one screen", "/v1/mesh", p.meshText)
	cmd.AddCommand(
		p.meshQuery("members", "List the nodes", "/v1/mesh/members", p.membersText),
		p.meshQuery("ring", "Show how the ring is shared", "/v1/mesh/ring", p.ringText),
		p.meshOperations(),
	)
	var stream string
	partitions := p.meshQueryWith("partitions [STREAM]", "List partitions, their owners and replicas", "/v1/mesh/partitions", func(args []string) url.Values {
		q := url.Values{}
		if len(args) > 0 {
			stream = args[0]
		}
		if stream != "" {
			q.Set("stream", stream)
		}
		return q
	}, p.partitionsText)
	partitions.Args = arguments("[STREAM]")
	partitions.Flags().StringVar(&stream, "stream", "", "only this stream")
	cmd.AddCommand(partitions)
	cmd.Args = noSuchCommand
	return cmd
}

func (p *process) meshQuery(use, short, path string, text func(json.RawMessage) error) *cobra.Command {
	return p.meshQueryWith(use, short, path, func([]string) url.Values { return nil }, text)
}

// meshQueryWith is a command that shows the answer to one GET: as it came for -o json, or in words.
func (p *process) meshQueryWith(use, short, path string, query func(args []string) url.Values, text func(json.RawMessage) error) *cobra.Command {
	var s serverFlags
	var o outputFlag
	cmd := &cobra.Command{Use: use, Short: short, Args: arguments()}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.ask(cmd, &s, &o, func(ctx context.Context, c *client.Client) error {
			raw, err := c.Raw(ctx, path, query(args))
			if err != nil {
				return err
			}
			return p.print(o, raw, func() error { return text(raw) })
		})
	}
	s.add(cmd)
	o.add(cmd)
	return cmd
}

func (p *process) meshText(raw json.RawMessage) error {
	var m client.Mesh
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	streams := fmt.Sprintf("%d with %d partitions, %d without an owner", m.Streams, m.Partitions, m.Ownerless)
	switch {
	case m.Incomplete != "" && m.Streams == 0:
		streams = "not known"
	case m.Incomplete != "":
		streams = "not all known; of those that are: " + streams
	}
	_, err := fmt.Fprintf(p.out, "%s  mesh %s, %s\nnodes       %d alive of %d, %d suspect\nstreams     %s\n",
		p.bold(m.Health), m.Cluster, seenBy(m.View, m.Members), m.Alive, m.Nodes, m.Suspect, streams)
	for _, r := range m.Reasons {
		if err == nil {
			_, err = fmt.Fprintf(p.out, "because     %s\n", r)
		}
	}
	for _, n := range m.Notes {
		if err == nil {
			_, err = fmt.Fprintf(p.out, "note        %s\n", n)
		}
	}
	if err != nil || len(m.UnderReplicated) == 0 {
		return err
	}
	const most = 20
	var rows [][]string
	for _, u := range m.UnderReplicated[:min(len(m.UnderReplicated), most)] {
		rows = append(rows, []string{u.Stream, fmt.Sprint(u.Partition), fmt.Sprintf("%d/%d", u.Live, u.Wanted), u.Reason})
	}
	if err := p.table("STREAM PARTITION COPIES LACKS", rows); err != nil {
		return err
	}
	if more := len(m.UnderReplicated) - most; more > 0 {
		_, err = fmt.Fprintf(p.out, "and more; skein mesh partitions lists all\n")
	}
	return err
}

// seenBy says whose picture an answer is, of when, and what in it is oldest.
func seenBy(v client.View, heard []client.Staleness) string {
	s := fmt.Sprintf("as %s sees it at %s", v.Observer, v.AsOf.Local().Format(time.TimeOnly))
	var oldest client.Staleness
	for _, h := range heard {
		if h.StalenessMS > oldest.StalenessMS {
			oldest = h
		}
	}
	if oldest.Node == "" {
		return s
	}
	return fmt.Sprintf("%s; heard longest ago: %s, %s", s, oldest.Node, age(oldest.StalenessMS))
}

// seen says beside a table, which goes into pipes, whose picture it is.
func (p *process) seen(v client.View, heard []client.Staleness) {
	fmt.Fprintln(p.err, seenBy(v, heard))
}

// age is a time in so many digits as people read.
func age(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return d.String()
	case d < time.Minute:
		return d.Truncate(100 * time.Millisecond).String()
	}
	return d.Truncate(time.Second).String()
}

func (p *process) membersText(raw json.RawMessage) error {
	var ans struct {
		client.View
		Members []client.Member
	}
	if err := json.Unmarshal(raw, &ans); err != nil {
		return err
	}
	var rows [][]string
	var heard []client.Staleness
	for _, m := range ans.Members {
		heard = append(heard, client.Staleness{Node: m.Node, StalenessMS: m.StalenessMS})
		rows = append(rows, []string{m.Node, memberState(m), m.Zone, m.HTTP, fmt.Sprint(m.Owned), fmt.Sprint(m.Replicas),
			fmt.Sprintf("%.2f", m.Fatigue), age(m.StalenessMS)})
	}
	if err := p.table("NODE STATE ZONE HTTP OWNED REPLICAS FATIGUE HEARD-AGO", rows); err != nil {
		return err
	}
	p.seen(ans.View, heard)
	return nil
}

// memberState is a member's state, with what it is about.
func memberState(m client.Member) string {
	switch {
	case m.ReplacedAt != nil && m.State != "alive" && m.State != "suspect":
		since := fmt.Sprintf("%s since %s", m.State, m.Since.Local().Format(time.TimeOnly))
		if m.Replicas == 0 {
			return since // nothing of it is to be replaced
		}
		return since + ", replaced at " + m.ReplacedAt.Local().Format(time.TimeOnly)
	case m.Leaving:
		return m.State + ", stopping"
	case m.Draining:
		return m.State + ", draining"
	case m.Cordoned:
		return m.State + ", cordoned"
	}
	return m.State
}

func (p *process) ringText(raw json.RawMessage) error {
	var r client.Ring
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	var rows [][]string
	var heard []client.Staleness
	for _, m := range r.Members {
		heard = append(heard, client.Staleness{Node: m.Node, StalenessMS: m.StalenessMS})
		rows = append(rows, []string{m.Node, m.Zone, fmt.Sprintf("%g", m.Weight), fmt.Sprint(m.Slots), fmt.Sprint(m.Homes), age(m.StalenessMS)})
	}
	if err := p.table("NODE ZONE WEIGHT SLOTS HOMES HEARD-AGO", rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(p.out, "%d slots, load factor %g, epoch %s\n", r.Slots, r.Factor, r.Epoch); err != nil {
		return err
	}
	p.seen(r.View, heard)
	return whole(r.Incomplete)
}

// whole is an error where an answer that was shown is not all that there is.
func whole(incomplete string) error {
	if incomplete == "" {
		return nil
	}
	return &client.Incomplete{Detail: incomplete}
}

func (p *process) partitionsText(raw json.RawMessage) error {
	var ans struct {
		client.View
		Partitions []client.MeshPartition
		Members    []client.Staleness
		Incomplete string
	}
	if err := json.Unmarshal(raw, &ans); err != nil {
		return err
	}
	var rows [][]string
	for _, m := range ans.Partitions {
		heard := ""
		if m.Owner != "" {
			heard = age(m.StalenessMS)
		}
		rows = append(rows, []string{m.Stream, fmt.Sprint(m.Partition), m.State, m.Owner, heard, fmt.Sprint(m.Term),
			strings.Join(m.Replicas, ","), strings.Join(m.Learners, ","), fmt.Sprintf("%d/%d", m.Live, m.Wanted), m.Home, partitionNote(m)})
	}
	if err := p.table("STREAM PARTITION STATE OWNER HEARD-AGO TERM REPLICAS LEARNERS COPIES HOME NOTE", rows); err != nil {
		return err
	}
	p.seen(ans.View, ans.Members)
	return whole(ans.Incomplete)
}

// partitionNote says what goes on with a partition's copies.
func partitionNote(m client.MeshPartition) string {
	switch {
	case m.Move != nil && m.Move.Reason != "":
		return fmt.Sprintf("moves from %s to %s, %s: %s", m.Move.From, m.Move.To, m.Move.Phase, m.Move.Reason)
	case m.Move != nil:
		return fmt.Sprintf("moves from %s to %s, %s", m.Move.From, m.Move.To, m.Move.Phase)
	case m.Lack != "":
		return m.Lack
	}
	return m.Waits
}
