package ring

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// Member is one node as placement sees it.
type Member struct {
	ID NodeID
	// Zone is the failure domain; all members with an empty zone share one.
	Zone string
	// Weight is the relative capacity; 0 and below count as 1.
	Weight int
	// Cordoned members keep what they hold and get nothing new: they are nobody's home.
	Cordoned bool
	// Leaving members are to hold nothing: they are draining, or dead for so long that their copies are made elsewhere.
	Leaving bool
}

// taking reports whether the member may get something new.
func (m Member) taking() bool { return !m.Cordoned && !m.Leaving }

// MaxSlots bounds the slots of a ring, so that a wrong setting costs memory for a million slots at most.
const MaxSlots = 1 << 20

const defaultSlots = 4096

// Seeds that every node shares: placement needs agreement, not secrecy. Changing one moves every group of every mesh.
var (
	slotSeed       = Seed{'s', 'k', 'e', 'i', 'n', '/', 's', 'l', 'o', 't', '/', 'v', '1'}
	rendezvousSeed = Seed{'s', 'k', 'e', 'i', 'n', '/', 'h', 'r', 'w', '/', 'v', '1'}
	zoneSeed       = Seed{'s', 'k', 'e', 'i', 'n', '/', 'z', 'o', 'n', 'e', '/', 'v', '1'}
	epochSeed      = Seed{'s', 'k', 'e', 'i', 'n', '/', 'e', 'p', 'o', 'c', 'h', '/', 'v', '1'}
	catalogSeed    = Seed{'s', 'k', 'e', 'i', 'n', '/', 'c', 'a', 't', '/', 'v', '1'}
)

// Ring is an immutable placement for one set of members: the same members give the same ring on every node, whatever the
// order in which they were heard of.
type Ring struct {
	members []Member // by id
	index   map[NodeID]int32
	zones   []zone  // by name
	zoneOf  []int32 // member index -> zone index
	weights []float64
	slots   []int32 // slot -> member index; empty without an eligible member
	nslots  int
	epoch   uint64
}

// zone is the members of one failure domain, by index.
type zone struct {
	name    string
	members []int32
	weight  float64 // of those that may get something new
}

// New places slots on members. slots <= 0 means the larger of 4096 and 4 per member; above MaxSlots it is cut.
// Of members with one id the least in (zone, weight, cordoned, leaving) counts. New keeps nothing of its arguments.
func New(members []Member, slots int) *Ring {
	ms := canonical(members)
	if slots <= 0 {
		slots = max(defaultSlots, 4*len(ms))
	}
	slots = min(slots, MaxSlots)
	r := &Ring{
		members: ms,
		index:   make(map[NodeID]int32, len(ms)),
		zoneOf:  make([]int32, len(ms)),
		weights: make([]float64, len(ms)),
		nslots:  slots,
		epoch:   fingerprint(ms, slots),
	}
	for i, m := range ms {
		r.index[m.ID] = int32(i)
		r.weights[i] = float64(m.Weight)
	}
	r.groupByZone()
	r.slots = assignSlots(ms, slots)
	return r
}

// canonical sorts a copy by id, drops doubles and makes every weight at least 1.
func canonical(members []Member) []Member {
	ms := slices.Clone(members)
	for i := range ms {
		ms[i].Weight = max(ms[i].Weight, 1)
	}
	slices.SortFunc(ms, func(a, b Member) int {
		return cmp.Or(a.ID.Compare(b.ID), strings.Compare(a.Zone, b.Zone), cmp.Compare(a.Weight, b.Weight),
			cmp.Compare(boolInt(a.Cordoned), boolInt(b.Cordoned)), cmp.Compare(boolInt(a.Leaving), boolInt(b.Leaving)))
	})
	return slices.CompactFunc(ms, func(a, b Member) bool { return a.ID == b.ID })
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (r *Ring) groupByZone() {
	byName := make(map[string]int32)
	names := make([]string, 0, 8)
	for _, m := range r.members {
		if _, ok := byName[m.Zone]; !ok {
			byName[m.Zone] = 0
			names = append(names, m.Zone)
		}
	}
	slices.Sort(names)
	r.zones = make([]zone, len(names))
	for i, n := range names {
		byName[n] = int32(i)
		r.zones[i].name = n
	}
	for i, m := range r.members {
		z := byName[m.Zone]
		r.zoneOf[i] = z
		r.zones[z].members = append(r.zones[z].members, int32(i))
		if m.taking() {
			r.zones[z].weight += r.weights[i]
		}
	}
}

func fingerprint(ms []Member, slots int) uint64 {
	buf := binary.AppendUvarint(nil, uint64(slots))
	for _, m := range ms {
		buf = append(buf, m.ID[:]...)
		buf = binary.AppendUvarint(buf, uint64(len(m.Zone)))
		buf = append(buf, m.Zone...)
		buf = binary.AppendUvarint(buf, uint64(m.Weight))
		buf = append(buf, byte(boolInt(m.Cordoned)|boolInt(m.Leaving)<<1))
	}
	return Hash(epochSeed, buf)
}

// Epoch is a fingerprint of the members and slots: rings with one epoch place alike, so it is the key to cache answers by.
func (r *Ring) Epoch() uint64 { return r.epoch }

// Len is the number of members, cordoned and leaving ones included.
func (r *Ring) Len() int { return len(r.members) }

// Slots is the number of slots.
func (r *Ring) Slots() int { return r.nslots }

// Members returns a copy of the members, by id, with weights of at least 1.
func (r *Ring) Members() []Member { return slices.Clone(r.members) }

// Member returns the member with the given id.
func (r *Ring) Member(id NodeID) (Member, bool) {
	i, ok := r.index[id]
	if !ok {
		return Member{}, false
	}
	return r.members[i], true
}

// Slot is the slot of a group.
func (r *Ring) Slot(g GroupID) int { return int(Hash(slotSeed, g[:]) % uint64(r.nslots)) }

// SlotHome is the home of a slot; false when there is no such slot, or nobody may get anything new.
func (r *Ring) SlotHome(slot int) (NodeID, bool) {
	if slot < 0 || slot >= len(r.slots) {
		return NodeID{}, false
	}
	return r.members[r.slots[slot]].ID, true
}

// Home is the member that a group's slot belongs to: the first candidate for a new group. False when nobody may get
// anything new (no members, or all cordoned or leaving).
func (r *Ring) Home(g GroupID) (NodeID, bool) { return r.SlotHome(r.Slot(g)) }

// home is Home by index, or -1.
func (r *Ring) home(g GroupID) int32 {
	if len(r.slots) == 0 {
		return -1
	}
	return r.slots[r.Slot(g)]
}

// score is weighted rendezvous (Thaler and Ravishankar, 1998; weighted by Schindelhauer and Schomaker, 2005): the lowest
// wins, each with a chance in proportion to its weight, and a change of one weight moves only what that one wins or loses.
func score(hash uint64, weight float64) float64 {
	if weight <= 0 {
		return math.Inf(1)
	}
	u := (float64(hash>>11) + 0.5) / (1 << 53) // in (0, 1), never an end
	return -math.Log(u) / weight
}

func (r *Ring) memberScore(g GroupID, i int32) float64 {
	var buf [32]byte
	copy(buf[:16], g[:])
	copy(buf[16:], r.members[i].ID[:])
	return score(Hash(rendezvousSeed, buf[:]), r.weights[i])
}

func (r *Ring) zoneScore(g GroupID, z int32) float64 {
	var buf [80]byte
	b := append(buf[:0], g[:]...)
	b = append(b, r.zones[z].name...)
	return score(Hash(zoneSeed, b), r.zones[z].weight)
}

// CatalogShard is the catalog shard, from 0 to shards-1, that holds the stream called name. shards below 1 counts as 1.
func CatalogShard(name string, shards int) int {
	if shards <= 1 {
		return 0
	}
	return int(Hash(catalogSeed, []byte(name)) % uint64(shards))
}
