package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/skeinmesh/skein/node"
)

const debugCodes = "Exit codes: 0 no damage was found, 1 it could not be read, 2 usage, 3 damage was found: what is sound was shown nevertheless."

func (p *process) debugCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Look at what a stopped node has on disk",
		Long: "Look at what a stopped node has on disk, and verify its checksums. Nothing is written, repaired or made, so that it works on a read-only\n" +
			"copy and without root. While the node runs it is refused, and while this runs the node does not start; in a copy without a lock file\n" +
			"nothing is locked.\n\n" + debugCodes,
	}
	cmd.AddCommand(p.debugLogCommand(), p.debugJournalCommand(), p.debugCatalogCommand())
	return cmd
}

// debugFlags are those of all debug commands.
type debugFlags struct {
	dataDir string
	json    bool
	limit   int
}

func (f *debugFlags) add(p *process, cmd *cobra.Command, limited string) {
	cmd.Flags().StringVar(&f.dataDir, "data-dir", p.getenv("SKEIN_DATA_DIR"), "data directory of the stopped node (SKEIN_DATA_DIR)")
	cmd.Flags().BoolVar(&f.json, "json", false, "one JSON object a line, each with an \"item\" that says what it is")
	if limited != "" {
		cmd.Flags().IntVar(&f.limit, "limit", 0, "stop after so many "+limited+"; 0: all")
	}
}

func (f *debugFlags) check(dirWanted bool) error {
	switch {
	case dirWanted && f.dataDir == "":
		return usagef("--data-dir is missing: the directory of the stopped node")
	case f.limit < 0:
		return usagef("--limit %d: 0 or more is wanted", f.limit)
	}
	return nil
}

func (p *process) debugLogCommand() *cobra.Command {
	var f debugFlags
	var req node.DebugLogRequest
	cmd := &cobra.Command{
		Use:   "log [PARTITION|GROUP|FILE]",
		Short: "Show the events of a stopped node: partitions, batches, values",
		Long: "Show the events of a stopped node, with every checksum verified: without an argument a line for each partition, with one its batches,\n" +
			"and with --values their events. PARTITION is STREAM/NUMBER; GROUP is the id of its replica group; FILE is one segment file, which ends\n" +
			"in .seg, is read by itself and needs no --data-dir: whatever does not check out is damage there, also a write that is under way.\n\n" +
			"What was found besides sound batches:\n" +
			"  damage, missing  bytes or files that were durable and are not as they were written\n" +
			"  torn             a write that was never known to be durable; the next start cuts it away, and writes what was\n" +
			"                   applied of it again from the journal\n" +
			"  unapplied        sound batches later than the state; the next start writes them again from the journal\n" +
			"  leftover         files that the next start removes\n\n" + debugCodes,
		Args: arguments("[PARTITION|GROUP|FILE]"),
		Example: "  skein debug log --data-dir /var/lib/skein\n" +
			"  skein debug log --data-dir /var/lib/skein orders/0 --from 1000 --limit 20 --values\n" +
			"  skein debug log /mnt/copy/partitions/GROUP/00000000/00000000000000000000.seg --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				req.What = args[0]
			}
			if req.What == "" && (req.Values || cmd.Flags().Changed("from") || cmd.Flags().Changed("limit")) {
				return usagef("--from, --limit and --values are for one partition: name it")
			}
			if err := f.check(!strings.HasSuffix(req.What, ".seg")); err != nil {
				return err
			}
			req.DataDir, req.Limit = f.dataDir, f.limit
			return p.debug(&f, func(emit func(any) error) error { return node.DebugLog(cmd.Context(), req, emit) })
		},
	}
	f.add(p, cmd, "batches, or with --values events")
	cmd.Flags().Uint64Var(&req.From, "from", 0, "first offset")
	cmd.Flags().BoolVar(&req.Values, "values", false, "show the events, too: key, headers, value; what is no text as base64")
	return cmd
}

func (p *process) debugJournalCommand() *cobra.Command {
	var f debugFlags
	var req node.DebugJournalRequest
	cmd := &cobra.Command{
		Use:   "journal",
		Short: "Show the journal of a stopped node, record by record",
		Long: "Show the records of a stopped node's journal, with every checksum verified, where the valid part of each file ends, and what the next\n" +
			"start makes of the rest: torn (a write that was never known to be durable; it is cut away) or damage. The data of the records is not\n" +
			"shown. DURABLE is where a record says that everything before it was synced; * ends a unit.\n\n" + debugCodes,
		Args:    arguments(),
		Example: "  skein debug journal --data-dir /var/lib/skein\n  skein debug journal --data-dir /var/lib/skein --group orders/0 --limit 100 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(true); err != nil {
				return err
			}
			req.DataDir, req.Limit = f.dataDir, f.limit
			return p.debug(&f, func(emit func(any) error) error { return node.DebugJournal(cmd.Context(), req, emit) })
		},
	}
	f.add(p, cmd, "records")
	cmd.Flags().StringVar(&req.Group, "group", "", "only this group: its id, STREAM/PARTITION, or _mesh/SHARD of the catalog")
	return cmd
}

func (p *process) debugCatalogCommand() *cobra.Command {
	var f debugFlags
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "Show the catalog as a stopped node has it: streams and deleted streams",
		Long: "Show every catalog shard that has a copy on a stopped node: definitions of streams with their partitions, and streams that were deleted.\n" +
			"It is what this node's copy holds, as of the applied index that is shown. Other nodes may be ahead, and so may this node's own journal.\n" +
			"Secrets are left out.\n\n" + debugCodes,
		Args:    arguments(),
		Example: "  skein debug catalog --data-dir /var/lib/skein\n  skein debug catalog --data-dir /var/lib/skein --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(true); err != nil {
				return err
			}
			return p.debug(&f, func(emit func(any) error) error { return node.DebugCatalog(cmd.Context(), f.dataDir, emit) })
		},
	}
	f.add(p, cmd, "")
	return cmd
}

// debug writes what look gives out as it comes.
func (p *process) debug(f *debugFlags, look func(emit func(any) error) error) error {
	w := bufio.NewWriterSize(p.out, 64<<10)
	emit := (&debugText{w: w}).item
	if f.json {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		emit = enc.Encode
	}
	err := look(func(item any) error {
		err := emit(item)
		if _, ok := item.(*node.DebugPartition); ok { // reading the next one may take long
			err = errors.Join(err, w.Flush())
		}
		return err
	})
	if errors.Is(err, node.ErrDamage) {
		err = codeError{error: err, code: exitDamage}
	}
	return errors.Join(err, w.Flush())
}

// debugText writes items for people: a line each, under a heading where the kind of line changes.
type debugText struct {
	w       *bufio.Writer
	heading string
	begun   bool
}

func (t *debugText) row(heading, format string, args ...any) error {
	if t.heading != heading {
		t.heading = heading
		if heading != "" {
			fmt.Fprintln(t.w, heading)
		}
	}
	t.begun = true
	_, err := fmt.Fprintf(t.w, format+"\n", args...)
	return err
}

// part begins a part, with an empty line before it.
func (t *debugText) part(format string, args ...any) error {
	t.heading = ""
	if t.begun {
		fmt.Fprintln(t.w)
	}
	return t.row("", format, args...)
}

func (t *debugText) item(v any) error {
	switch v := v.(type) {
	case *node.DebugPartition:
		return t.partition(v)
	case *node.DebugFile:
		return t.part("%s: %d bytes", printable(v.File), v.Bytes)
	case *node.DebugBatch:
		return t.row(batchHeading, batchFormat, v.Base, v.Events, v.Duplicates, v.Bytes, v.RawBytes, v.Codec, v.CRC, stamp(v.Stamp), v.Term, v.Index,
			v.Session, v.Sequence, v.Position)
	case *node.DebugEvent:
		return t.row(t.heading, "  %d%s", v.Offset, eventText(v))
	case *node.DebugFinding:
		return t.row(t.heading, "! %s", findingText(v))
	case *node.DebugJournalFile:
		return t.part("%s: sequence %d, %d bytes; the file before ended at byte %d", printable(v.File), v.Sequence, v.Bytes, v.PreviousEnd)
	case *node.DebugRecord:
		return t.record(v)
	case *node.DebugJournalEnd:
		return t.row(t.heading, "valid up to byte %d", v.End)
	case *node.DebugJournalSummary:
		return t.part("%d files of %d bytes, %d groups; %d records shown%s. The next start takes the journal as: %s", v.Files, v.Bytes, v.Groups, v.Records,
			stopped(v.Stopped), v.Verdict)
	case *node.DebugShard:
		return t.shard(v)
	case *node.DebugStream:
		return t.stream(v)
	case *node.DebugTombstone:
		return t.row(t.heading, "deleted %s: incarnation %s, version %d, %s, %d partitions", printable(v.Name), v.Incarnation, v.Version, stamp(v.DeletedMS), len(v.Groups))
	}
	return fmt.Errorf("%T cannot be shown", v)
}

const (
	batchHeading = "      OFFSET EVENTS DUP    BYTES      RAW CODEC CRC      TIME                     TERM      INDEX SESSION                               SEQ   POSITION"
	batchFormat  = "%12d %6d %3d %8d %8d %-5s %s %s %4d %10d %s %8d %10d"

	partitionHeading = "PARTITION                START       NEXT        FILES        BYTES    BATCHES       EVENTS CHECK    GROUP"
	partitionFormat  = "%-24s %-11s %-11s %6d %12d %10d %12d %-8s %s"

	recordHeading = "    POSITION KIND            INDEX   TERM    BYTES CRC         DURABLE   GROUP"
	recordFormat  = "%12d %-10s %10d %6d %8d %s %10d %s %s"
)

func (t *debugText) partition(v *node.DebugPartition) error {
	number := func(n *uint64) string {
		if n == nil {
			return "?"
		}
		return strconv.FormatUint(*n, 10)
	}
	name, group, check := "-", "-", "ok"
	if v.Stream != "" {
		name = fmt.Sprintf("%s/%d", printable(v.Stream), v.Partition)
	}
	if v.Group != nil {
		group = v.Group.String()
	}
	if v.Incarnation != nil {
		group += " of stream " + v.Incarnation.String()
	}
	switch {
	case !v.Sound:
		check = "DAMAGED"
	case v.Stopped:
		check = "stopped"
	}
	if t.heading != "" && t.heading != partitionHeading {
		fmt.Fprintln(t.w)
	}
	return t.row(partitionHeading, partitionFormat, name, number(v.Start), number(v.Next), v.Files, v.Bytes, v.Batches, v.Events, check, group)
}

func (t *debugText) record(v *node.DebugRecord) error {
	last, group, more := " ", "", ""
	if v.Last {
		last = "*"
	}
	if v.Group != nil {
		if group = v.Group.String(); v.Name != "" {
			group += " " + printable(v.Name)
		}
	}
	if v.EntryType > 0 {
		more += " configuration"
	}
	if v.HardState != nil {
		more += fmt.Sprintf(" term %d, vote %d, commit %d", v.HardState.Term, v.HardState.Vote, v.HardState.Commit)
	}
	if v.Tombstone > 0 {
		more += fmt.Sprintf(" removed up to replica %d", v.Tombstone)
	}
	return t.row(recordHeading, recordFormat, v.Position, v.Kind, v.Index, v.Term, v.Bytes, v.CRC, v.Durable, last, group+more)
}

func (t *debugText) shard(v *node.DebugShard) error {
	state, journal := "no stream was ever made in it", "not known"
	if v.Version > 0 {
		state = fmt.Sprintf("version %d, %s", v.Version, stamp(v.ClockMS))
	}
	if v.Last > 0 {
		journal = fmt.Sprintf("index %d", v.Last)
	}
	return t.part("shard %d: group %s, %s\n  this node's copy, as of index %d, term %d (end of its journal: %s); other nodes may be ahead",
		v.Shard, v.Group, state, v.Applied, v.AppliedTerm, journal)
}

func (t *debugText) stream(v *node.DebugStream) error {
	importing := ""
	if v.Importing {
		importing = ", importing"
	}
	config, err := json.Marshal(v.Config)
	if err != nil {
		return err
	}
	if err := t.row(t.heading, "stream %s: incarnation %s, version %d, created %s, changed %s%s\n  %s", printable(v.Name), v.Incarnation, v.Version, stamp(v.CreatedMS),
		stamp(v.UpdatedMS), importing, printable(string(config))); err != nil {
		return err
	}
	for _, d := range v.Partitions {
		if err := t.row(t.heading, "  %s/%d: group %s, %s, keys %s-%s, founded on %s", printable(v.Name), d.Partition, d.Group, d.State, d.RangeLo, d.RangeHi,
			strings.Trim(fmt.Sprint(d.Founders), "[]")); err != nil {
			return err
		}
	}
	return nil
}

func findingText(v *node.DebugFinding) string {
	text := fmt.Sprintf("%s: %s at byte %d: %s", printable(v.File), v.Kind, v.Position, printable(v.Detail))
	if v.End > v.Position {
		text += fmt.Sprintf("; %d bytes up to byte %d", v.End-v.Position, v.End)
	}
	return text
}

// eventText is what an event says, on one line and safe for a terminal.
func eventText(v *node.DebugEvent) string {
	var b strings.Builder
	part := func(name string, text *string, raw []byte) {
		switch {
		case text != nil:
			fmt.Fprintf(&b, " %s=%q", name, *text)
		case raw != nil:
			fmt.Fprintf(&b, " %s=base64:%s", name, base64.StdEncoding.EncodeToString(raw))
		}
	}
	part("key", v.Key, v.KeyBase64)
	for _, a := range []struct{ name, text string }{{"id", v.ID}, {"source", v.Source}, {"type", v.Type}, {"content-type", v.ContentType}} {
		if a.text != "" {
			part(a.name, &a.text, nil)
		}
	}
	if v.Time != 0 {
		fmt.Fprintf(&b, " time=%s", stamp(v.Time))
	}
	for _, h := range v.Headers {
		part(printable(h.Name), h.Value, h.ValueBase64)
	}
	part("value", v.Value, v.ValueBase64)
	return b.String()
}

func stopped(yes bool) string {
	if yes {
		return ", stopped at the limit"
	}
	return ""
}

// stamp is a time in Unix ms, whatever number that is.
func stamp(ms int64) string {
	at := time.UnixMilli(ms).UTC()
	if at.Year() < 1 || at.Year() > 9999 {
		return fmt.Sprintf("%dms", ms)
	}
	return at.Format("2006-01-02T15:04:05.000Z")
}

// printable makes text from a disk safe for a terminal.
func printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}
