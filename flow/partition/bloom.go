package partition

import "encoding/binary"

// filter is a Bloom filter (Bloom, 1970) over identities, which are uniform hashes already: their two halves give all the
// probes (Kirsch and Mitzenmacher, 2006). At 10 bits an identity and 6 probes about 1 in 100 lookups of a new identity goes to
// the store for nothing.
type filter []uint64

const (
	filterBits   = 10
	filterProbes = 6
)

func filterWords(n int) int { return (n*filterBits + 63) / 64 }

func newFilter(n int) filter { return make(filter, max(1, filterWords(n))) }

func (f filter) probe(hash [16]byte, do func(word int, bit uint64) bool) bool {
	h, step := binary.LittleEndian.Uint64(hash[:8]), binary.LittleEndian.Uint64(hash[8:])|1
	bits := uint64(len(f)) * 64
	for range filterProbes {
		at := h % bits
		if !do(int(at/64), 1<<(at%64)) {
			return false
		}
		h += step
	}
	return true
}

func (f filter) add(hash [16]byte) {
	f.probe(hash, func(word int, bit uint64) bool { f[word] |= bit; return true })
}

// has reports whether the identity may have been added.
func (f filter) has(hash [16]byte) bool {
	return f.probe(hash, func(word int, bit uint64) bool { return f[word]&bit != 0 })
}
