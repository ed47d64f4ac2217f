package node

import (
	"context"
	"fmt"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// DebugJournalRequest says which records DebugJournal shows.
type DebugJournalRequest struct {
	DataDir string
	// Group is the id of a group, STREAM/PARTITION, or _mesh/SHARD; empty: all.
	Group string
	Limit int // bounds the records; 0: all
}

// DebugJournalFile is a file of the journal, before its records.
type DebugJournalFile struct {
	Item        string `json:"item"` // file
	File        string `json:"file"`
	Sequence    uint64 `json:"sequence"`
	Bytes       int64  `json:"bytes"`
	PreviousEnd int64  `json:"previous_end"` // where the file before ended
}

// DebugRecord is a record of the journal whose checksum holds. What index and term are depends on the kind: an entry's own; of a hard state
// the commit index and the term; of truncate, reset and group the last entry that is left; of a checkpoint the number of groups.
type DebugRecord struct {
	Item      string        `json:"item"` // record
	Kind      string        `json:"kind"` // entry, hard-state, truncate, reset, birth, tombstone, group, checkpoint, mark
	File      string        `json:"file"`
	Position  int64         `json:"position"`
	Group     *ring.GroupID `json:"group,omitempty"`
	Name      string        `json:"name,omitempty"` // of the group
	Index     uint64        `json:"index"`
	Term      uint64        `json:"term"`
	EntryType uint8         `json:"entry_type,omitempty"` // 1, 2: changes of the configuration
	Bytes     int           `json:"bytes"`                // of the data
	CRC       string        `json:"crc"`
	Durable   int64         `json:"durable"` // everything before it was durable when the record was made
	Last      bool          `json:"last"`    // of its unit
	HardState *DebugState   `json:"hard_state,omitempty"`
	Tombstone uint64        `json:"tombstone,omitempty"` // highest replica id that was removed here
	Birth     bool          `json:"birth,omitempty"`
}

// DebugState is what raft remembers of a group.
type DebugState struct {
	Term   uint64 `json:"term"`
	Vote   uint64 `json:"vote"`
	Commit uint64 `json:"commit"`
}

// DebugJournalEnd says where the valid part of a file ends.
type DebugJournalEnd struct {
	Item string `json:"item"` // end
	File string `json:"file"`
	End  int64  `json:"end"`
}

// DebugJournalSummary comes last.
type DebugJournalSummary struct {
	Item    string `json:"item"` // journal
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes"`
	Records uint64 `json:"records"` // shown
	Groups  int    `json:"groups"`  // that it knows, removed ones too
	// Verdict is what the next start makes of it: sound, torn (the end is cut away, and the journal goes on), or damaged.
	Verdict string `json:"verdict"`
	Stopped bool   `json:"stopped,omitempty"` // at the limit: the rest was not shown
}

// DebugJournal shows the records of a stopped node's journal, with every checksum verified, and what the next start will make of it. The
// data of the records is not shown: it holds events.
func DebugJournal(ctx context.Context, req DebugJournalRequest, emit func(item any) error) error {
	d, err := openDebug(req.DataDir, true, emit)
	if err != nil {
		return err
	}
	return d.end(d.journal(ctx, req))
}

func (d *debugging) journal(ctx context.Context, req DebugJournalRequest) error {
	r := &journalReading{ctx: ctx, d: d, req: req, names: map[ring.GroupID]string{}, sum: DebugJournalSummary{Item: "journal", Groups: len(d.groups), Verdict: "sound"}}
	for i := range d.held {
		stream, n := d.nameOf(&d.held[i])
		r.names[d.held[i].Birth.Group] = fmt.Sprintf("%s/%d", stream, n)
	}
	if req.Group != "" {
		id, err := d.resolve(req.Group)
		if err != nil {
			return err
		}
		r.only = &id
	}
	dir := d.path("journal")
	if exists(dir) {
		err := log.InspectJournal(dir, log.JournalVisitor{File: r.file, Record: r.record, Finding: r.finding, End: r.end})
		if r.sum.Stopped = err == errEnough; err != nil && !r.sum.Stopped {
			return err
		}
	}
	// Records may check out, and not fit each other: the recovery itself has the last word.
	if d.refused != nil && r.sum.Verdict != "damaged" {
		if wire.KindOf(d.refused) != wire.KindCorrupt {
			return d.refused
		}
		if err := r.finding(log.Finding{Path: dir, Kind: log.FoundDamage, Detail: d.refused.Error()}); err != nil {
			return err
		}
	}
	return d.emit(&r.sum)
}

// journalReading is one reading of the journal.
type journalReading struct {
	ctx   context.Context
	d     *debugging
	req   DebugJournalRequest
	only  *ring.GroupID
	names map[ring.GroupID]string
	sum   DebugJournalSummary
}

func (r *journalReading) file(f log.JournalFile) error {
	r.sum.Files++
	r.sum.Bytes += f.Bytes
	return r.d.emit(&DebugJournalFile{Item: "file", File: f.Path, Sequence: f.Sequence, Bytes: f.Bytes, PreviousEnd: f.PrevEnd})
}

func (r *journalReading) record(rec *log.JournalRecord) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if r.only != nil && rec.Group != *r.only {
		return nil
	}
	if r.req.Limit > 0 && r.sum.Records >= uint64(r.req.Limit) {
		return errEnough
	}
	r.sum.Records++
	out := &DebugRecord{Item: "record", Kind: rec.Kind, File: rec.Path, Position: rec.Pos, Index: rec.Index, Term: rec.Term, EntryType: uint8(rec.Type),
		Bytes: rec.Bytes, CRC: fmt.Sprintf("%08x", rec.CRC), Durable: rec.Durable, Last: rec.Last, Tombstone: rec.Tombstone, Birth: rec.Birth}
	if !rec.Group.IsZero() {
		out.Group, out.Name = &rec.Group, r.names[rec.Group]
	}
	if hs := rec.HardState; hs != nil {
		out.HardState = &DebugState{Term: hs.Term, Vote: hs.Vote, Commit: hs.Commit}
	}
	return r.d.emit(out)
}

func (r *journalReading) finding(f log.Finding) error {
	switch {
	case f.Kind.Damage():
		r.sum.Verdict = "damaged"
	case r.sum.Verdict == "sound":
		r.sum.Verdict = "torn"
	}
	return r.d.found(f)
}

func (r *journalReading) end(path string, end int64) error {
	return r.d.emit(&DebugJournalEnd{Item: "end", File: path, End: end})
}
