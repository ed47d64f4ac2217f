package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node"
)

// maxReport bounds a report of another survivor, bytes.
const maxReport = 256 << 20

func (p *process) recoverCommand() *cobra.Command {
	var o outputFlag
	var req node.RecoverRequest
	var others []string
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Go on after the majority of a mesh was lost for good",
		Long: "Go on from what a surviving node has, after the majority of the replicas of some groups was lost for good. It works on the\n" +
			"data directory of a stopped node. What only the lost nodes had is gone, acknowledged or not; their disks are refused if they\n" +
			"ever come back. While they may come back, wait for them instead: nothing is lost then.\n\n" +
			"1. Stop the surviving nodes. One that was killed: start it and stop it in order, so that it applies what it has.\n" +
			"2. Look, without --confirm: which groups lack a majority, and how far the replicas here go. Nothing is changed.\n" +
			"3. Where several nodes survive: do that on each with -o json > NAME.json, and give each the others' files with --other;\n" +
			"   of several replicas of a group, the one that has most is chosen on all sides.\n" +
			"   Catalog shards without a copy here are listed. Where every node that is known is lost or gave its report, and none has a\n" +
			"   copy, one survivor makes them anew with --new-catalog-shards, the same on each survivor: with the streams of all partitions\n" +
			"   that survivors have. It must be all survivors: what another one has of other streams in these shards would be removed.\n" +
			"4. Recover with --confirm CLUSTER_ID on each survivor, keep the file that it names, and start the survivors. New nodes that\n" +
			"   join get copies by themselves.",
		Example: "  skein recover --data-dir /var/lib/skein\n" +
			"  skein recover --data-dir /var/lib/skein --lost n1,n2\n" +
			"  skein recover --data-dir /var/lib/skein --lost n1,n2 --confirm skein\n" +
			"  skein recover --data-dir /var/lib/skein --lost n1,n2,n3 --other n5.json --new-catalog-shards 2,5 --confirm skein",
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if req.DataDir == "" {
				return usagef("--data-dir is missing: the directory of the stopped node")
			}
			for _, path := range others {
				r, err := readReport(path)
				if err != nil {
					return usageError{err}
				}
				req.Others = append(req.Others, r)
			}
			r, err := node.Recover(cmd.Context(), req)
			if err != nil && len(r.Groups) == 0 {
				return err
			}
			if perr := p.print(o, r, func() error { return p.printRecovery(r) }); err == nil {
				err = perr
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.DataDir, "data-dir", p.getenv("SKEIN_DATA_DIR"), "data directory of the stopped node (SKEIN_DATA_DIR)")
	f.StringSliceVar(&req.Lost, "lost", nil, "nodes that never come back, by id or by the name that they last had")
	f.StringSliceVar(&others, "other", nil, "files with the output (-o json) of this command on other survivors")
	f.IntSliceVar(&req.NewShards, "new-catalog-shards", nil, "catalog shards to make anew, by number: there is no other survivor that may have a copy")
	f.StringSliceVar(&req.Forget, "forget-stream", nil, "stream ids that new catalog shards are not to know: their partitions are removed")
	f.StringVar(&req.Confirm, "confirm", "", "the mesh's cluster_id: do it; without it nothing is changed")
	o.add(cmd)
	return cmd
}

func readReport(path string) (r node.RecoverReport, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxReport)).Decode(&r); err != nil {
		return r, fmt.Errorf("%s is no output of `skein recover -o json`: %w", path, err)
	}
	return r, nil
}

func (p *process) printRecovery(r node.RecoverReport) error {
	names := func(ns []node.RecoverNode) string {
		var out []string
		for _, n := range ns {
			switch {
			case n.ID == r.Node:
				out = append(out, "(here)")
			case n.Name != "":
				out = append(out, n.Name)
			default:
				out = append(out, n.ID.String())
			}
		}
		return strings.Join(out, ",")
	}
	var rows [][]string
	counts := map[string]int{}
	for i := range r.Groups {
		g := &r.Groups[i]
		counts[g.Verdict]++
		next := ""
		if g.Next != nil {
			next = fmt.Sprint(*g.Next)
		}
		rows = append(rows, []string{strings.ReplaceAll(g.Name(), " ", "-"), names(g.Voters), names(g.Learners), next,
			fmt.Sprintf("%d@%d", g.LastIndex, g.LastTerm), g.Verdict, g.Reason})
	}
	if err := p.table("GROUP VOTERS LEARNERS NEXT_OFFSET LAST_ENTRY VERDICT REASON", rows); err != nil {
		return err
	}
	shards, err := p.printMissingShards(r)
	if err != nil {
		return err
	}
	text := ""
	switch here := counts[node.RecoverHere]; {
	case r.Done:
		text = fmt.Sprintf("%d groups go on from this node alone. What was done is in %s. Start the node; nobody lets the lost nodes in again.", here, r.Audit)
	case len(r.Lost) == 0:
		text = "Nothing was changed. Name the nodes that never come back with --lost to see which groups have lost their majority with them."
	case counts[node.RecoverBlocked] > 0:
		text = "Nothing was changed. Other survivors may have more of some groups: see step 3 of --help."
	case here == 0:
		text = "Nothing was changed: no group goes on from this node."
	default:
		text = fmt.Sprintf("Nothing was changed. With --confirm %s, %d groups go on from what this node has: what only the lost nodes (%s) had is gone for good.",
			r.Cluster, here, names(r.Lost))
	}
	_, err = fmt.Fprintln(p.out, "\n"+text+shards)
	return err
}

// printMissingShards lists the catalog shards without a copy here, and returns what is to be said of them.
func (p *process) printMissingShards(r node.RecoverReport) (text string, err error) {
	var rows, configs [][]string
	numbers := map[string][]string{}
	for i := range r.Shards {
		s := &r.Shards[i]
		numbers[s.Verdict] = append(numbers[s.Verdict], fmt.Sprint(s.Number))
		var streams []string
		for _, st := range s.Streams {
			streams = append(streams, fmt.Sprintf("%s(%d/%d)", st.Name, st.Partitions-len(st.Absent), st.Partitions))
			configs = append(configs, restoredRow(&st))
		}
		rows = append(rows, []string{strings.ReplaceAll(s.Name(), " ", "-"), s.Verdict, strings.Join(streams, ","), s.Reason})
	}
	if len(rows) == 0 {
		return "", nil
	}
	if _, err := fmt.Fprintln(p.out, "\nWithout a copy on this node:"); err != nil {
		return "", err
	}
	if err := p.table("SHARD VERDICT STREAMS(PARTITIONS) REASON", rows); err != nil {
		return "", err
	}
	if len(configs) > 0 {
		if _, err := fmt.Fprintln(p.out, "\nStreams that they know when they are made anew:"); err != nil {
			return "", err
		}
		if err := p.table("STREAM RETENTION RETENTION_BYTES REPLICAS MIN_COPIES ONLY_REMOVED_COPIES_OF", configs); err != nil {
			return "", err
		}
	}
	list := func(verdict string) string { return strings.Join(numbers[verdict], ",") }
	if s := list(node.RecoverUnknown); s != "" && len(r.Lost) > 0 {
		text += fmt.Sprintf("\nCatalog shards %s may have copies on other survivors: see step 3 of --help.", s)
	}
	if s := list(node.RecoverGone); s != "" {
		text += fmt.Sprintf("\nCatalog shards %s are gone: streams whose names fall into them can be neither listed, made nor changed. If no other node survived, "+
			"--new-catalog-shards %s makes them anew here.", s, s)
	}
	if s := list(node.RecoverAnew); s != "" {
		made := "With --confirm they are made anew here"
		if r.Done {
			made = "They were made anew here"
		}
		text += fmt.Sprintf("\nCatalog shards %s are gone. %s, with the streams above; of partitions that no survivor has, nothing is left.", s, made)
	}
	return text, nil
}

// restoredRow shows a stream as a new shard knows it.
func restoredRow(s *node.RecoverStream) []string {
	c := &s.Config
	size := "none"
	if c.RetentionBytes >= 0 {
		size = fmt.Sprint(c.RetentionBytes)
	}
	var removed []string
	for _, p := range s.Removed {
		removed = append(removed, fmt.Sprint(p))
	}
	return []string{s.Name, retentionText(float64(c.RetentionMS)), size, fmt.Sprint(c.Replicas), fmt.Sprint(c.MinCopies), strings.Join(removed, ",")}
}
