package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/skeinmesh/skein/flow/batch"
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/flow/partition"
	"github.com/skeinmesh/skein/flow/replica"
	"github.com/skeinmesh/skein/ring"
)

// DebugLogRequest says which events DebugLog shows.
type DebugLogRequest struct {
	DataDir string
	// What is STREAM/PARTITION, the id of a group, or the path of a segment file, which ends in .seg and needs no DataDir. Empty: one
	// DebugPartition for each replica.
	What string
	// From is the first offset. Limit bounds the batches, or with Values the events; 0: all.
	From   uint64
	Limit  int
	Values bool // give out DebugEvents, too
}

// DebugPartition is a replica's events as a whole. Of one that was asked for it comes last, and counts what was read.
type DebugPartition struct {
	Item        string         `json:"item"` // partition
	Stream      string         `json:"stream,omitempty"`
	Partition   int            `json:"partition"`
	Incarnation *ring.StreamID `json:"incarnation,omitempty"`
	Group       *ring.GroupID  `json:"group,omitempty"` // none: a file by itself
	// Start, Next and Applied are what the state says, where it can be read; First and End what the batches that were read do.
	Start   *uint64 `json:"start,omitempty"`
	Next    *uint64 `json:"next,omitempty"`
	Applied *uint64 `json:"applied_index,omitempty"`
	First   *uint64 `json:"first_offset,omitempty"`
	End     *uint64 `json:"end_offset,omitempty"`
	Dir     string  `json:"dir,omitempty"`
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"` // of the files
	Batches uint64  `json:"batches"`
	Events  uint64  `json:"events"`
	// Sound: no damage was found in what was read. Findings counts everything that was found.
	Sound    bool `json:"sound"`
	Findings int  `json:"findings"`
	Stopped  bool `json:"stopped,omitempty"` // at the limit: the rest was not read
}

// DebugFile is a segment file, before its batches.
type DebugFile struct {
	Item  string `json:"item"` // file
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

// DebugBatch is a batch whose checksums hold.
type DebugBatch struct {
	Item       string `json:"item"` // batch
	File       string `json:"file"`
	Position   int64  `json:"position"`
	Base       uint64 `json:"base_offset"`
	Events     uint64 `json:"events"`
	Duplicates int    `json:"duplicates"` // records that were left out when it was applied
	Bytes      uint32 `json:"bytes"`      // of the payload
	RawBytes   uint32 `json:"raw_bytes"`  // decompressed
	Codec      string `json:"codec"`
	CRC        string `json:"crc"`
	Stamp      int64  `json:"stamp_ms"` // the partition's time, Unix ms
	Session    string `json:"session"`
	Sequence   uint64 `json:"sequence"`
	Identities int    `json:"identities"`
	Term       uint64 `json:"term"`
	Index      uint64 `json:"index"`
}

// DebugEvent is an event of the batch before it. What is no text is in the base64 field of the two.
type DebugEvent struct {
	Item        string        `json:"item"` // event
	Offset      uint64        `json:"offset"`
	Key         *string       `json:"key,omitempty"`
	KeyBase64   []byte        `json:"key_base64,omitempty"`
	Value       *string       `json:"value,omitempty"`
	ValueBase64 []byte        `json:"value_base64,omitempty"`
	ContentType string        `json:"content_type,omitempty"`
	ID          string        `json:"id,omitempty"`
	Source      string        `json:"source,omitempty"`
	Type        string        `json:"type,omitempty"`
	Time        int64         `json:"time_ms,omitempty"` // the publisher's own, Unix ms
	Headers     []DebugHeader `json:"headers,omitempty"`
}

// DebugHeader is a header of an event.
type DebugHeader struct {
	Name        string  `json:"name"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

// errEnough ends a reading at its limit.
var errEnough = errors.New("enough")

// DebugLog shows the events that a stopped node has, batch by batch, with every checksum verified.
func DebugLog(ctx context.Context, req DebugLogRequest, emit func(item any) error) error {
	if strings.HasSuffix(req.What, log.SegmentSuffix) {
		d := &debugging{dir: &dataDir{}, emit: emit}
		r := logReading{ctx: ctx, d: d, req: req, shown: -1, p: DebugPartition{Item: "partition", Partition: -1, Sound: true}}
		return d.end(r.finish(log.InspectSegmentFile(req.What, r.visitor())))
	}
	d, err := openDebug(req.DataDir, false, emit)
	if err != nil {
		return err
	}
	return d.end(d.log(ctx, req))
}

func (d *debugging) log(ctx context.Context, req DebugLogRequest) error {
	strangers := d.strangers()
	if req.What == "" {
		for i := range d.held {
			if h := &d.held[i]; h.Birth.Kind == replica.KindPartition {
				if err := d.partition(ctx, req, h.Birth.Group, maxListed); err != nil {
					return err
				}
			}
		}
		for _, g := range strangers {
			if err := d.partition(ctx, req, g, maxListed); err != nil {
				return err
			}
		}
		return nil
	}
	group, err := d.resolve(req.What, strangers...)
	if err != nil {
		return err
	}
	return d.partition(ctx, req, group, -1)
}

// maxListed bounds the findings of one partition in the list of all: whoever wants all asks for that partition.
const maxListed = 10

// strangers are groups with files here of which neither the journal nor the state knows a replica.
func (d *debugging) strangers() (out []ring.GroupID) {
	entries, err := os.ReadDir(d.path("partitions"))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		var id ring.GroupID
		if id.UnmarshalText([]byte(e.Name())) == nil && !slices.ContainsFunc(d.held, func(h replica.Held) bool { return h.Birth.Group == id }) {
			out = append(out, id)
		}
	}
	return out
}

// partition reads one replica's events. A list shows the first of its findings alone, behind it; -1: all is shown.
func (d *debugging) partition(ctx context.Context, req DebugLogRequest, group ring.GroupID, shown int) error {
	r := &logReading{ctx: ctx, d: d, req: req, shown: shown, p: DebugPartition{Item: "partition", Partition: -1, Group: &group, Sound: true}}
	store := d.readable()
	if i := slices.IndexFunc(d.held, func(h replica.Held) bool { return h.Birth.Group == group }); i >= 0 {
		h := &d.held[i]
		r.p.Stream, r.p.Partition = d.nameOf(h)
		if spec, err := partition.ParseSpec(h.Birth.Spec); err == nil {
			r.p.Incarnation = &spec.Stream
		}
		if h.Birth.Kind != replica.KindPartition {
			return fmt.Errorf("group %s is no partition: skein debug catalog shows it", group)
		}
		if h.Foreign {
			store = nil // its state is of another replica
		}
	} else {
		store = nil
	}
	files, err := partition.FindFiles(d.path("partitions"), store, group, replica.StatePrefix(group))
	if err != nil {
		if err := r.finding(log.Finding{Path: d.path("state"), Kind: log.FoundDamage, Detail: err.Error()}); err != nil {
			return err
		}
	}
	r.p.Dir = files.Dir
	if rec := files.Recovery; rec != nil {
		r.p.Start, r.p.Next, r.p.Applied = &rec.Start, &rec.Next, &rec.AppliedIndex
	}
	return r.finish(log.InspectSegments(files.Dir, files.Recovery, req.From, r.visitor()))
}

// logReading is the reading of one partition, or file.
type logReading struct {
	ctx    context.Context
	d      *debugging
	req    DebugLogRequest
	shown  int // findings to show, behind the partition; -1: all items, as they come
	p      DebugPartition
	behind []log.Finding
	count  int
	reader batch.Reader
}

func (r *logReading) visitor() log.SegmentVisitor {
	return log.SegmentVisitor{File: r.file, Batch: r.batch, Finding: r.finding}
}

// finish gives out the partition, after everything in it was read.
func (r *logReading) finish(err error) error {
	if errors.Is(err, errEnough) {
		r.p.Stopped, err = true, nil
	}
	if err != nil {
		return err
	}
	if err := r.d.emit(&r.p); err != nil {
		return err
	}
	for _, f := range r.behind {
		if err := r.d.found(f); err != nil {
			return err
		}
	}
	return nil
}

func (r *logReading) file(path string, bytes int64) error {
	r.p.Files++
	r.p.Bytes += bytes
	if r.shown >= 0 {
		return r.ctx.Err()
	}
	return r.d.emit(&DebugFile{Item: "file", File: path, Bytes: bytes})
}

func (r *logReading) finding(f log.Finding) error {
	r.p.Findings++
	r.p.Sound = r.p.Sound && !f.Kind.Damage()
	r.d.damage = r.d.damage || f.Kind.Damage()
	switch {
	case r.shown < 0:
		return r.d.found(f)
	case len(r.behind) < r.shown:
		r.behind = append(r.behind, f)
	case len(r.behind) == r.shown:
		r.behind = append(r.behind, log.Finding{Path: filepath.Dir(f.Path), Kind: f.Kind, Detail: "and more: skein debug log with this partition shows all"})
	}
	return r.ctx.Err()
}

func (r *logReading) batch(b *log.InspectedBatch) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	m := &b.Meta
	if m.Next() <= r.req.From {
		return nil
	}
	if r.req.Limit > 0 && r.count >= r.req.Limit {
		return errEnough
	}
	r.p.Batches++
	r.p.Events += m.Offsets()
	if base := m.Base; r.p.First == nil {
		r.p.First = &base
	}
	next := m.Next()
	r.p.End = &next
	if r.shown >= 0 {
		return nil
	}
	if !r.req.Values {
		r.count++
	}
	codec := "none"
	if m.Codec == batch.CodecS2 {
		codec = "s2"
	}
	err := r.d.emit(&DebugBatch{Item: "batch", File: b.Path, Position: b.Pos, Base: m.Base, Events: m.Offsets(), Duplicates: len(m.Skip),
		Bytes: m.PayloadLen, RawBytes: m.RawLen, Codec: codec, CRC: fmt.Sprintf("%08x", m.PayloadCRC), Stamp: m.Stamp,
		Session: hex.EncodeToString(m.Session[:]), Sequence: m.Seq, Identities: len(m.Identities), Term: m.Term, Index: m.Index})
	if err != nil || !r.req.Values {
		return err
	}
	return r.events(b)
}

// events gives out the events of a batch, from the offset that was asked for on.
func (r *logReading) events(b *log.InspectedBatch) error {
	_ = r.reader.Open(&b.Meta, b.Payload, nil) // Err has it
	var rec batch.Record
	for r.reader.Next(&rec) {
		if r.reader.Offset() < r.req.From {
			continue
		}
		if r.req.Limit > 0 && r.count >= r.req.Limit {
			return errEnough
		}
		r.count++
		if err := r.d.emit(describeEvent(r.reader.Offset(), &rec)); err != nil {
			return err
		}
	}
	if err := r.reader.Err(); err != nil {
		return r.finding(log.Finding{Path: b.Path, Pos: b.Pos, Kind: log.FoundDamage, Detail: err.Error()})
	}
	return nil
}

func describeEvent(offset uint64, rec *batch.Record) *DebugEvent {
	e := &DebugEvent{Item: "event", Offset: offset, ContentType: rec.ContentType, ID: rec.ID, Source: rec.Source, Type: rec.Type, Time: rec.Time}
	if rec.HasKey {
		e.Key, e.KeyBase64 = textOr(rec.Key)
	}
	e.Value, e.ValueBase64 = textOr(rec.Value)
	for _, h := range rec.Headers {
		text, raw := textOr([]byte(h.Value))
		e.Headers = append(e.Headers, DebugHeader{Name: h.Name, Value: text, ValueBase64: raw})
	}
	return e
}

// textOr gives bytes back as text where they are some that can be printed.
func textOr(b []byte) (*string, []byte) {
	for rest := b; len(rest) > 0; {
		c, n := utf8.DecodeRune(rest)
		if c == utf8.RuneError && n == 1 || !unicode.IsPrint(c) && c != '\t' && c != '\n' && c != '\r' {
			return nil, b
		}
		rest = rest[n:]
	}
	text := string(b)
	return &text, nil
}
