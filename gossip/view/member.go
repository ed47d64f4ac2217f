package view

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// State is what the observer believes of a member. The order matters: of two beliefs of one rank the graver one wins.
type State uint8

const (
	// StateUnknown marks a member of whom only the load was heard so far.
	StateUnknown State = iota
	// StateAlive members answer probes.
	StateAlive
	// StateSuspect members failed a probe of this observer and have not refuted it yet.
	StateSuspect
	// StateDead members failed for longer than the suspicion time.
	StateDead
	// StateLeft members said that they leave.
	StateLeft
)

var stateNames = [...]string{"unknown", "alive", "suspect", "dead", "left"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// Flags are what a member announces about itself.
type Flags uint8

const (
	// Cordoned members take nothing new.
	Cordoned Flags = 1 << iota
	// Draining members hand away what they hold.
	Draining
	// Leaving members are about to go on purpose.
	Leaving
)

// MaxFormer bounds the given up ids that a member announces: so many fit.
const MaxFormer = 4

// Identity is what a member announces of itself. The caps on its strings are those of the gossip codec.
type Identity struct {
	ID      ring.NodeID
	Name    string
	Zone    string
	Version string
	// Cluster is the human name of the mesh; Mesh its id, zero while the member has not joined one yet.
	Cluster string
	Mesh    ring.MeshID
	// HTTPAddr, QUICAddr and GossipAddr are host:port as other members can reach them.
	HTTPAddr   string
	QUICAddr   string
	GossipAddr string
	// Weight is the relative capacity.
	Weight uint32
	Flags  Flags
	// Protocol is the highest wire.Version that the member speaks, Floor the lowest that it puts up with; 0 counts as 1.
	Protocol uint16
	Floor    uint16
	// Former are node ids that the member had and gave up, or was told are lost for good: nobody may use them, and what they held is lost.
	Former [MaxFormer]ring.NodeID
	// Incarnation orders the announcements of one member, over restarts too; the highest wins.
	Incarnation uint64
}

// Load is a member's measure of itself.
type Load struct {
	// CPUPercent and MemPercent are of what the member's cgroup or host allows, 0 to 100.
	CPUPercent float32
	MemPercent float32
	// Fatigue is the largest share of any resource's limit in use; 1.0 is at the limit.
	Fatigue float32
	// CreditStarved is the share of time in which publishers waited for credit, 0 to 1.
	CreditStarved float32
	// FsyncMicros is the disk's recent sync latency in µs.
	FsyncMicros uint32
	// QueuedBytes are accepted and not yet committed; ReadLag is what subscribers have not read yet (events).
	QueuedBytes uint64
	ReadLag     uint64
	// BytesIn, BytesOut, EventsIn and EventsOut are per second.
	BytesIn   uint64
	BytesOut  uint64
	EventsIn  uint64
	EventsOut uint64
	// Partitions are the groups the member holds a replica of; Owned those that it owns.
	Partitions uint32
	Owned      uint32
}

// Member is one member as the observer sees it.
type Member struct {
	Identity
	State State
	// Since is when the observer began to believe State; Observed numbers its beliefs about this member.
	Since    time.Time
	Observed uint64
	// Load is the newest heard, numbered LoadSeq by the member; LoadAt is when it was measured, by the observer's clock.
	// LoadSeq 0: none heard.
	Load    Load
	LoadSeq uint64
	LoadAt  time.Time
}

// Cordoned reports whether the member takes nothing new.
func (m Member) Cordoned() bool { return m.Flags&(Cordoned|Draining) != 0 }

// Draining reports whether the member hands away what it holds.
func (m Member) Draining() bool { return m.Flags&Draining != 0 }

// Leaving reports whether the member is about to go on purpose.
func (m Member) Leaving() bool { return m.Flags&Leaving != 0 }

// Present reports whether the member counts as there: alive or merely suspected.
func (m Member) Present() bool { return m.State == StateAlive || m.State == StateSuspect }

// Staleness is the age of the member's load at now; negative clock steps count as 0. False when no load was heard.
func (m Member) Staleness(now time.Time) (time.Duration, bool) {
	if m.LoadSeq == 0 {
		return 0, false
	}
	return max(0, now.Sub(m.LoadAt)), true
}

// merge joins two pictures of one member: each part takes the newer of both.
func (m Member) merge(o Member) Member {
	if compareIdentity(m.Identity, o.Identity) < 0 {
		m.Identity = o.Identity
	}
	if compareBelief(m, o) < 0 {
		m.State, m.Since, m.Observed = o.State, o.Since, o.Observed
	}
	if compareLoad(m, o) < 0 {
		m.Load, m.LoadSeq, m.LoadAt = o.Load, o.LoadSeq, o.LoadAt
	}
	return m
}

func compareIdentity(a, b Identity) int {
	return cmp.Or(cmp.Compare(a.Incarnation, b.Incarnation), a.ID.Compare(b.ID),
		bytes.Compare(a.Mesh[:], b.Mesh[:]), strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Name, b.Name),
		strings.Compare(a.Zone, b.Zone), strings.Compare(a.Version, b.Version), strings.Compare(a.HTTPAddr, b.HTTPAddr),
		strings.Compare(a.QUICAddr, b.QUICAddr), strings.Compare(a.GossipAddr, b.GossipAddr),
		cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.Flags, b.Flags), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Floor, b.Floor),
		slices.CompareFunc(a.Former[:], b.Former[:], ring.NodeID.Compare))
}

func compareBelief(a, b Member) int {
	return cmp.Or(cmp.Compare(a.Observed, b.Observed), cmp.Compare(a.State, b.State), b.Since.Compare(a.Since))
}

// compareLoad prefers the higher number, and of one report heard twice the earlier time: relays only add delay.
func compareLoad(a, b Member) int {
	return cmp.Or(cmp.Compare(a.LoadSeq, b.LoadSeq), a.Load.compare(b.Load), b.LoadAt.Compare(a.LoadAt))
}

func (l Load) compare(o Load) int {
	return cmp.Or(cmp.Compare(l.CPUPercent, o.CPUPercent), cmp.Compare(l.MemPercent, o.MemPercent),
		cmp.Compare(l.Fatigue, o.Fatigue), cmp.Compare(l.CreditStarved, o.CreditStarved),
		cmp.Compare(l.FsyncMicros, o.FsyncMicros), cmp.Compare(l.QueuedBytes, o.QueuedBytes),
		cmp.Compare(l.ReadLag, o.ReadLag), cmp.Compare(l.BytesIn, o.BytesIn), cmp.Compare(l.BytesOut, o.BytesOut),
		cmp.Compare(l.EventsIn, o.EventsIn), cmp.Compare(l.EventsOut, o.EventsOut),
		cmp.Compare(l.Partitions, o.Partitions), cmp.Compare(l.Owned, o.Owned))
}

// Differs reports whether some figure changed by at least share (0.05 is 5 %) of the larger one, or percentages by share
// of 100. Small absolute figures do not count: below the floors a change says nothing about load.
func (l Load) Differs(o Load, share float64) bool {
	percent := func(a, b float32) bool { return abs(float64(a)-float64(b)) >= share*100 }
	ratio := func(a, b float32) bool { return abs(float64(a)-float64(b)) >= share }
	count := func(a, b, floor uint64) bool {
		high, low := max(a, b), min(a, b)
		return high >= floor && float64(high-low) >= share*float64(high)
	}
	return percent(l.CPUPercent, o.CPUPercent) || percent(l.MemPercent, o.MemPercent) ||
		ratio(l.Fatigue, o.Fatigue) || ratio(l.CreditStarved, o.CreditStarved) ||
		count(uint64(l.FsyncMicros)/2, uint64(o.FsyncMicros)/2, 1000) ||
		count(l.QueuedBytes, o.QueuedBytes, 1<<20) || count(l.ReadLag, o.ReadLag, 10_000) ||
		count(l.BytesIn, o.BytesIn, 1<<20) || count(l.BytesOut, o.BytesOut, 1<<20) ||
		count(l.EventsIn, o.EventsIn, 1000) || count(l.EventsOut, o.EventsOut, 1000) ||
		l.Partitions != o.Partitions || l.Owned != o.Owned
}

func abs(x float64) float64 {
	if x < 0 {
		return -x
	}
	return x
}
