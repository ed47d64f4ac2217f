package partition

import (
	"encoding/binary"
	"sort"
)

// sizes remembers how many bytes were appended before some of the offsets, so that retention by size finds its place without
// reading the files. It differs between replicas, whose batches may have come in a snapshot: only the owner's proposes a trim.
type sizes struct {
	total uint64 // bytes appended since this replica began to count
	marks []sizeMark
	dirty bool // marks changed since they were stored
}

// sizeMark: before bytes were appended when the batch at base came.
type sizeMark struct{ base, before uint64 }

const (
	marksKept = 128
	minStep   = 64 << 10
)

// add counts a batch of n bytes at base. limit is the size that retention allows, at or below 0: none.
func (s *sizes) add(base uint64, n int, limit int64) {
	step := uint64(64 << 20)
	if limit > 0 {
		step = max(uint64(limit)/32, minStep)
	}
	if k := len(s.marks); k == 0 || s.total-s.marks[k-1].before >= step {
		s.thin()
		s.marks = append(s.marks, sizeMark{base: base, before: s.total})
		s.dirty = true
	}
	s.total += uint64(n)
}

// thin makes room for one more mark, if need be by leaving out every other one.
func (s *sizes) thin() {
	if len(s.marks) < marksKept {
		return
	}
	for i := range marksKept / 2 {
		s.marks[i] = s.marks[2*i]
	}
	s.marks = s.marks[:marksKept/2]
}

// trim forgets the marks that are no longer needed when the log starts at an offset.
func (s *sizes) trim(start uint64) {
	n := sort.Search(len(s.marks), func(i int) bool { return s.marks[i].base > start })
	if n > 1 {
		s.marks = append(s.marks[:0:0], s.marks[n-1:]...)
		s.dirty = true
	}
}

// seek is the first base known from which on at most limit bytes follow, or the last base known.
func (s *sizes) seek(limit int64) uint64 {
	if len(s.marks) == 0 {
		return 0
	}
	i := sort.Search(len(s.marks), func(i int) bool { return s.total-s.marks[i].before <= uint64(limit) })
	return s.marks[min(i, len(s.marks)-1)].base
}

// clone copies s for another owner.
func (s *sizes) clone() sizes {
	return sizes{total: s.total, marks: append([]sizeMark(nil), s.marks...), dirty: true}
}

func (s *sizes) encode() []byte {
	b := make([]byte, 0, 1+16*len(s.marks))
	b = append(b, stateVersion)
	for _, m := range s.marks {
		b = binary.LittleEndian.AppendUint64(b, m.base)
		b = binary.LittleEndian.AppendUint64(b, m.before)
	}
	return b
}

func (s *sizes) decode(b []byte) error {
	if len(b) < 1 || b[0] != stateVersion || (len(b)-1)%16 != 0 || len(b) > 1+16*marksKept {
		return corrupt("size marks of %d bytes", len(b))
	}
	s.marks = nil
	for b = b[1:]; len(b) > 0; b = b[16:] {
		s.marks = append(s.marks, sizeMark{base: binary.LittleEndian.Uint64(b), before: binary.LittleEndian.Uint64(b[8:])})
	}
	return nil
}
