package check

import (
	"fmt"
	"sync"

	"github.com/skeinmesh/skein/ring"
)

// ID names one event for as long as the history lives.
type ID struct {
	Publisher string
	Key       string
	Seq       uint64
}

func (id ID) String() string {
	return fmt.Sprintf("event %d of key %q by %s", id.Seq, id.Key, id.Publisher)
}

// Place is where an event lies in its stream.
type Place struct {
	Partition ring.PartitionID
	Offset    uint64
}

func (p Place) String() string { return fmt.Sprintf("partition %d offset %d", p.Partition, p.Offset) }

// History gathers what clients saw. All methods are safe for concurrent use; the order of calls is the real-time order that the
// checkers rely on, so a client records Sent before it sends and an outcome after the answer arrived.
type History struct {
	mu     sync.Mutex
	clock  uint64 // counts records: a common time for all clients
	events map[ID]*event
	order  []ID // in order of first mention
	reads  []read
	finals []string
	ends   []end
	claims map[claim]map[string]bool
	asked  []claim // in order of first mention
}

// event is what publishers know of one event.
type event struct {
	sent    uint64 // clock of the first Sent: any try may be the one that was stored; 0: not recorded
	acked   uint64 // clock of the first Acked; 0: never
	places  []Place
	refused int
	unknown int
}

type read struct {
	reader string
	place  Place
	id     ID
}

// end is a reading of everything up to the end, as it was when the reading began.
type end struct {
	reader string
	begun  uint64 // clock
}

// claim is something that only one value may ever be claimed for.
type claim struct {
	what      string // violation name
	partition ring.PartitionID
	at        uint64 // term, replica id or index
}

// Sent records that the event is about to be sent, for the first time or again: the first time counts. It is optional: without it,
// order between publishers is not checked.
func (h *History) Sent(publisher, key string, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.eventLocked(ID{publisher, key, seq})
	h.clock++
	if e.sent == 0 {
		e.sent = h.clock
	}
}

// Acked records an acknowledgement with the place that it named. dup says that the mesh called the event a duplicate of an earlier
// try: it then counts as acknowledged, but its place is not held against the reads.
func (h *History) Acked(publisher, key string, seq uint64, p ring.PartitionID, offset uint64, dup bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.eventLocked(ID{publisher, key, seq})
	h.clock++
	if e.acked == 0 {
		e.acked = h.clock
	}
	if !dup {
		e.places = append(e.places, Place{p, offset})
	}
}

// Refused records an answer that says: certainly not stored.
func (h *History) Refused(publisher, key string, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eventLocked(ID{publisher, key, seq}).refused++
}

// Unknown records that no answer came, or one that says: outcome unknown.
func (h *History) Unknown(publisher, key string, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eventLocked(ID{publisher, key, seq}).unknown++
}

// Read records that a reader was given an event. Calls of one reader must be in the order in which it got them.
func (h *History) Read(reader string, p ring.PartitionID, offset uint64, publisher, key string, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads = append(h.reads, read{reader, Place{p, offset}, ID{publisher, key, seq}})
}

// Final marks a reader that read everything after healing: it must have seen each acknowledged event.
func (h *History) Final(reader string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finals = append(h.finals, reader)
}

// Now is the common time, for ReadUntil: what was acknowledged so far is not after it.
func (h *History) Now() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clock
}

// ReadUntil marks a reader that read everything from the earliest offset to the end, and was told that this is the end. begun is what
// Now said before it asked: it must have seen each event that was acknowledged by then.
func (h *History) ReadUntil(reader string, begun uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends = append(h.ends, end{reader, begun})
}

// Owned records that a node acted as owner of a partition in a term.
func (h *History) Owned(p ring.PartitionID, term uint64, node string) {
	h.claim(claim{"two-owners", p, term}, node)
}

// Member records that a node holds a replica of a partition under an id, as a configuration says that a quorum has.
func (h *History) Member(p ring.PartitionID, id ring.ReplicaID, node string) {
	h.claim(claim{"reused-replica-id", p, uint64(id)}, node)
}

// Applied records a replica's hash over all entries of a partition up to an index.
func (h *History) Applied(p ring.PartitionID, index uint64, node string, hash uint64) {
	h.claim(claim{"divergent-replicas", p, index}, fmt.Sprintf("%016x", hash))
}

func (h *History) claim(c claim, value string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.claims == nil {
		h.claims = map[claim]map[string]bool{}
	}
	if h.claims[c] == nil {
		h.claims[c] = map[string]bool{}
		h.asked = append(h.asked, c)
	}
	h.claims[c][value] = true
}

// Counts says how much was recorded: a check of nothing finds nothing.
func (h *History) Counts() (acked, refused, unknown, reads int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		switch {
		case e.acked > 0:
			acked++
		case e.unknown > 0:
			unknown++
		case e.refused > 0:
			refused++
		}
	}
	return acked, refused, unknown, len(h.reads)
}

func (h *History) eventLocked(id ID) *event {
	if e := h.events[id]; e != nil {
		return e
	}
	if h.events == nil {
		h.events = map[ID]*event{}
	}
	e := &event{}
	h.events[id] = e
	h.order = append(h.order, id)
	return e
}
