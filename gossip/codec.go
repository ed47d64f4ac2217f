package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/skeinmesh/skein/gossip/view"
	"github.com/skeinmesh/skein/ring"
	"github.com/skeinmesh/skein/transport/wire"
)

// Everything that gossip carries is small and frequent, so it has a compact form of its own: fixed ids, varints, strings
// with their length. Each record may grow at its end; a decoder ignores what it does not know there. Counts and lengths are
// checked against the caps and against the bytes that are left before anything is allocated.

// metaVersion leads an announcement, msgVersion a message. A decoder refuses other numbers: they mean an incompatible form.
const (
	metaVersion = 1
	msgVersion  = 1
)

// Kinds of messages. Append only.
const (
	kindLoad  = 1
	kindHints = 2
	kindState = 3
)

// Caps on what one peer may send.
const (
	maxMeta        = 512
	maxHintsPerMsg = 256
	maxStateLoads  = 8192
	maxStateHints  = 131_072
	maxStateOwners = 8192
	maxLoadRecord  = 512
)

var (
	errTruncated   = errors.New("truncated")
	errBeyondCap   = errors.New("beyond the cap")
	errVersion     = errors.New("unknown version")
	errNotANumber  = errors.New("not a finite number")
	errUnknownKind = errors.New("unknown kind")
)

// reader takes values off the front of buf; after the first error it yields zeros.
type reader struct {
	buf []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.buf = nil
}

func (r *reader) take(n int) []byte {
	if n > len(r.buf) {
		r.fail(errTruncated)
		return nil
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) id() (id [16]byte) {
	copy(id[:], r.take(16))
	return id
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.buf)
	if n <= 0 {
		r.fail(errTruncated)
		return 0
	}
	r.buf = r.buf[n:]
	return v
}

// count reads a number of records of at least size bytes each.
func (r *reader) count(most, size int) int {
	n := r.uvarint()
	if n > uint64(most) {
		r.fail(errBeyondCap)
		return 0
	}
	if n > uint64(len(r.buf)/size) {
		r.fail(errTruncated)
		return 0
	}
	return int(n)
}

func (r *reader) uint32() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.fail(errBeyondCap)
		return 0
	}
	return uint32(v)
}

func (r *reader) uint16() uint16 {
	v := r.uvarint()
	if v > math.MaxUint16 {
		r.fail(errBeyondCap)
		return 0
	}
	return uint16(v)
}

func (r *reader) string(most int) string {
	n := int(r.byte())
	if n > most {
		r.fail(errBeyondCap)
		return ""
	}
	return string(r.take(n))
}

func (r *reader) float() float32 {
	b := r.take(4)
	if b == nil {
		return 0
	}
	f := math.Float32frombits(binary.LittleEndian.Uint32(b))
	if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
		r.fail(errNotANumber)
		return 0
	}
	return f
}

func (r *reader) duration(unit time.Duration) time.Duration {
	return time.Duration(min(r.uvarint(), uint64(math.MaxInt64/int64(unit)))) * unit
}

func appendString(b []byte, s string, most int) []byte {
	s = s[:min(len(s), most)]
	return append(append(b, byte(len(s))), s...)
}

func appendFloat(b []byte, f float32) []byte {
	if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
		f = 0
	}
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
}

func appendDuration(b []byte, d, unit time.Duration) []byte {
	return binary.AppendUvarint(b, uint64(max(0, d)/unit))
}

// encodeMeta is the announcement that travels as memberlist's metadata: all of an identity that memberlist does not carry
// itself (id and gossip address).
func encodeMeta(id view.Identity) []byte {
	b := make([]byte, 0, 256)
	b = append(b, metaVersion)
	b = append(b, id.Mesh[:]...)
	b = binary.AppendUvarint(b, id.Incarnation)
	b = binary.AppendUvarint(b, uint64(id.Weight))
	b = append(b, byte(id.Flags))
	b = appendString(b, id.Cluster, maxCluster)
	b = appendString(b, id.Name, maxName)
	b = appendString(b, id.Zone, maxZone)
	b = appendString(b, id.Version, maxVersion)
	b = appendString(b, id.HTTPAddr, maxAddr)
	b = appendString(b, id.QUICAddr, maxAddr)
	if wire.Newest < wire.Version2 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(id.Protocol))
	b = binary.AppendUvarint(b, uint64(id.Floor))
	former := 0
	for former < len(id.Former) && !id.Former[former].IsZero() {
		former++
	}
	if former == 0 {
		return b
	}
	b = append(b, byte(former))
	for _, f := range id.Former[:former] {
		b = append(b, f[:]...)
	}
	return b
}

// decodeMeta reads what encodeMeta wrote; ID and GossipAddr stay zero.
func decodeMeta(b []byte) (view.Identity, error) {
	if len(b) > maxMeta {
		return view.Identity{}, fmt.Errorf("announcement of %d bytes: %w", len(b), errBeyondCap)
	}
	r := &reader{buf: b}
	if v := r.byte(); r.err == nil && v != metaVersion {
		return view.Identity{}, fmt.Errorf("announcement version %d: %w", v, errVersion)
	}
	var id view.Identity
	id.Mesh = r.id()
	id.Incarnation = r.uvarint()
	id.Weight = r.uint32()
	id.Flags = view.Flags(r.byte())
	id.Cluster = r.string(maxCluster)
	id.Name = r.string(maxName)
	id.Zone = r.string(maxZone)
	id.Version = r.string(maxVersion)
	id.HTTPAddr = r.string(maxAddr)
	id.QUICAddr = r.string(maxAddr)
	if len(r.buf) > 0 { // since version 2
		id.Protocol, id.Floor = r.uint16(), r.uint16()
	}
	if len(r.buf) > 0 {
		for i := range r.count(len(id.Former), len(ring.NodeID{})) {
			id.Former[i] = r.id()
		}
	}
	if r.err != nil {
		return view.Identity{}, fmt.Errorf("announcement: %w", r.err)
	}
	return id, nil
}

// report is a load as it travels: with its age instead of a time, for clocks differ.
type report struct {
	node        ring.NodeID
	incarnation uint64 // the newest announcement of node that the sender knows
	seq         uint64
	age         time.Duration
	load        view.Load
}

// ownerHints are hints of one owner; age is how long ago the owner vouched for them.
type ownerHints struct {
	owner ring.NodeID
	hints []agedHint
}

type agedHint struct {
	group ring.GroupID
	term  uint64
	age   time.Duration
}

// message is any message between nodes.
type message struct {
	kind byte
	mesh ring.MeshID
	// reports has one entry in a load message.
	reports []report
	// hints has one entry in a hints message.
	hints []ownerHints
}

func appendHeader(b []byte, kind byte, mesh ring.MeshID) []byte {
	b = append(b, msgVersion, kind)
	return append(b, mesh[:]...)
}

func appendReport(b []byte, p report) []byte {
	body := make([]byte, 0, 128)
	body = append(body, p.node[:]...)
	body = binary.AppendUvarint(body, p.incarnation)
	body = binary.AppendUvarint(body, p.seq)
	body = appendDuration(body, p.age, time.Millisecond)
	l := p.load
	for _, f := range [...]float32{l.CPUPercent, l.MemPercent, l.Fatigue, l.CreditStarved} {
		body = appendFloat(body, f)
	}
	for _, v := range [...]uint64{uint64(l.FsyncMicros), l.QueuedBytes, l.ReadLag, l.BytesIn, l.BytesOut, l.EventsIn,
		l.EventsOut, uint64(l.Partitions), uint64(l.Owned)} {
		body = binary.AppendUvarint(body, v)
	}
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

func (r *reader) report() (p report) {
	n := r.uvarint()
	if n > maxLoadRecord {
		r.fail(errBeyondCap)
		return p
	}
	s := &reader{buf: r.take(int(n)), err: r.err}
	p.node = s.id()
	p.incarnation = s.uvarint()
	p.seq = s.uvarint()
	p.age = s.duration(time.Millisecond)
	l := &p.load
	for _, f := range [...]*float32{&l.CPUPercent, &l.MemPercent, &l.Fatigue, &l.CreditStarved} {
		*f = s.float()
	}
	l.FsyncMicros = s.uint32()
	for _, v := range [...]*uint64{&l.QueuedBytes, &l.ReadLag, &l.BytesIn, &l.BytesOut, &l.EventsIn, &l.EventsOut} {
		*v = s.uvarint()
	}
	l.Partitions = s.uint32()
	l.Owned = s.uint32()
	if s.err != nil {
		r.fail(s.err)
	}
	return p
}

// A hint takes 16 bytes of group and at least one each of term and age.
const minHintSize = 18

func appendOwnerHints(b []byte, o ownerHints) []byte {
	b = append(b, o.owner[:]...)
	b = binary.AppendUvarint(b, uint64(len(o.hints)))
	for _, h := range o.hints {
		b = append(b, h.group[:]...)
		b = binary.AppendUvarint(b, h.term)
		b = appendDuration(b, h.age, time.Second)
	}
	return b
}

func (r *reader) ownerHints(most int) (o ownerHints) {
	o.owner = r.id()
	n := r.count(most, minHintSize)
	o.hints = make([]agedHint, 0, n)
	for range n {
		h := agedHint{group: r.id(), term: r.uvarint(), age: r.duration(time.Second)}
		if r.err != nil {
			return o
		}
		o.hints = append(o.hints, h)
	}
	return o
}

func encodeLoad(mesh ring.MeshID, p report) []byte {
	return appendReport(appendHeader(make([]byte, 0, 160), kindLoad, mesh), p)
}

func encodeHints(mesh ring.MeshID, o ownerHints) []byte {
	return appendOwnerHints(appendHeader(make([]byte, 0, 40+len(o.hints)*24), kindHints, mesh), o)
}

func encodeState(mesh ring.MeshID, reports []report, hints []ownerHints) []byte {
	b := appendHeader(make([]byte, 0, 1024), kindState, mesh)
	reports = reports[:min(len(reports), maxStateLoads)]
	b = binary.AppendUvarint(b, uint64(len(reports)))
	for _, p := range reports {
		b = appendReport(b, p)
	}
	hints = hints[:min(len(hints), maxStateOwners)]
	b = binary.AppendUvarint(b, uint64(len(hints)))
	for _, o := range hints {
		b = appendOwnerHints(b, o)
	}
	return b
}

// decodeMessage reads any message and keeps nothing of b.
func decodeMessage(b []byte) (message, error) {
	r := &reader{buf: b}
	if v := r.byte(); r.err == nil && v != msgVersion {
		return message{}, fmt.Errorf("message version %d: %w", v, errVersion)
	}
	m := message{kind: r.byte(), mesh: r.id()}
	switch {
	case r.err != nil:
	case m.kind == kindLoad:
		m.reports = []report{r.report()}
	case m.kind == kindHints:
		m.hints = []ownerHints{r.ownerHints(maxHintsPerMsg)}
	case m.kind == kindState:
		r.state(&m)
	default:
		return message{}, fmt.Errorf("message kind %d: %w", m.kind, errUnknownKind)
	}
	if r.err != nil {
		return message{}, fmt.Errorf("message kind %d: %w", m.kind, r.err)
	}
	return m, nil
}

func (r *reader) state(m *message) {
	n := r.count(maxStateLoads, 17)
	m.reports = make([]report, 0, min(n, 1024))
	for range n {
		p := r.report()
		if r.err != nil {
			return
		}
		m.reports = append(m.reports, p)
	}
	n = r.count(maxStateOwners, 17)
	left := maxStateHints
	m.hints = make([]ownerHints, 0, min(n, 1024))
	for range n {
		o := r.ownerHints(left)
		if r.err != nil {
			return
		}
		left -= len(o.hints)
		m.hints = append(m.hints, o)
	}
}
