package ring

import (
	"math"
	"strconv"

	"github.com/buraksezer/consistent"
)

// LoadFactor lets a member hold 25 % more slots than its share. It must exceed 1: below, slots find no room.
const LoadFactor = 1.25

// maxUnits bounds how many ring entries the heaviest member gets, that is the precision of weights.
const maxUnits = 16

// unit is one entry of a member on the slot ring; a member has as many as its weight asks for.
type unit struct {
	member int32
	name   string
}

func (u unit) String() string { return u.name }

type slotHasher struct{}

func (slotHasher) Sum64(b []byte) uint64 { return Hash(slotSeed, b) }

// assignSlots maps each slot to the index of a member that may get something new, by consistent hashing with bounded loads
// (Mirrokni, Thorup and Zadimoghaddam, 2016). Nil when there is no such member.
//
// The library has no weights and panics where slots find no room. Weights become entries of their own; and with a load
// factor above 1 there is always room: entries times ceil(factor * slots / entries) is never less than slots.
func assignSlots(ms []Member, slots int) []int32 {
	units := unitsOf(ms)
	if len(units) == 0 {
		return nil
	}
	entries := make([]consistent.Member, len(units))
	for i, u := range units {
		entries[i] = u
	}
	c := consistent.New(entries, consistent.Config{
		Hasher:            slotHasher{},
		PartitionCount:    slots,
		ReplicationFactor: pointsPerUnit(len(units)),
		Load:              LoadFactor,
	})
	out := make([]int32, slots)
	for i := range out {
		out[i] = c.GetPartitionOwner(i).(unit).member
	}
	return out
}

// unitsOf lists the ring entries in member order. Equal weights, whatever their size, give one entry each.
func unitsOf(ms []Member) []unit {
	divisor, largest, eligible := 0, 0, 0
	for _, m := range ms {
		if !m.taking() {
			continue
		}
		eligible++
		divisor = gcd(divisor, m.Weight)
		largest = max(largest, m.Weight)
	}
	if eligible == 0 {
		return nil
	}
	most := min(maxUnits, max(2, 1024/eligible)) // keep the ring small where there are many members
	exact := largest/divisor <= most
	units := make([]unit, 0, eligible)
	for i, m := range ms {
		if !m.taking() {
			continue
		}
		n := m.Weight / divisor
		if !exact {
			n = max(1, int(math.Round(float64(m.Weight)*float64(most)/float64(largest))))
		}
		id := m.ID.String()
		for k := range n {
			units = append(units, unit{member: int32(i), name: id + "#" + strconv.Itoa(k)})
		}
	}
	return units
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// pointsPerUnit is how often an entry appears on the ring. More points make the neighbours of a removed member share its
// slots more evenly; but the library sorts the whole ring for each entry, so large rings get fewer. The steps are coarse,
// for crossing one reshuffles homes.
func pointsPerUnit(units int) int {
	switch {
	case units <= 128:
		return 20
	case units <= 512:
		return 8
	default:
		return 4
	}
}
