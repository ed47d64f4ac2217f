package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// Three small records stand beside the batches: the synced position (kept by the caller's store), the trim mark, and the index of a
// complete file. All are little-endian, begin with a magic and a version, and end with a CRC-32C of what precedes it.
const (
	syncedMagic = "SkS1"
	markMagic   = "SkT1"
	indexMagic  = "SkI1"
)

// sealRecord appends the checksum.
func sealRecord(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// openRecord checks magic and checksum and returns what is between.
func openRecord(b []byte, magic string) (body []byte, ok bool) {
	n := len(b) - 4
	if n < len(magic) || string(b[:len(magic)]) != magic || binary.LittleEndian.Uint32(b[n:]) != crc32.Checksum(b[:n], castagnoli) {
		return nil, false
	}
	return b[len(magic):n], true
}

// syncedPos says that all files before the one at base, and length bytes of that one, are durable; next is the offset after them.
type syncedPos struct {
	base   uint64
	length int64
	next   uint64
}

func (p syncedPos) encode() []byte {
	if p == (syncedPos{}) {
		return nil
	}
	b := append(make([]byte, 0, 32), syncedMagic...)
	b = binary.LittleEndian.AppendUint64(b, p.base)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.length))
	return sealRecord(binary.LittleEndian.AppendUint64(b, p.next))
}

func parseSynced(b []byte) (p syncedPos, ok bool) {
	if len(b) == 0 {
		return p, true
	}
	body, ok := openRecord(b, syncedMagic)
	if !ok || len(body) != 24 {
		return p, false
	}
	p.base = binary.LittleEndian.Uint64(body)
	p.length = int64(binary.LittleEndian.Uint64(body[8:]))
	p.next = binary.LittleEndian.Uint64(body[16:])
	return p, p.length >= 0
}

// lengthOf is how many bytes of a file are known to be durable. size is what the file has now.
func (p syncedPos) lengthOf(base uint64, size int64) int64 {
	switch {
	case base > p.base:
		return 0
	case base < p.base:
		return size
	}
	return p.length
}

// trimMark says which files may be missing: those below start were trimmed, and whatever is below resetAt is left over from
// before a reset. It is durable before the first file goes, whatever the small state remembers.
type trimMark struct{ start, resetAt uint64 }

const markName = "start"

func writeMark(fsys FS, dir string, m trimMark) error {
	b := append(make([]byte, 0, 24), markMagic...)
	b = binary.LittleEndian.AppendUint64(b, m.start)
	b = sealRecord(binary.LittleEndian.AppendUint64(b, m.resetAt))
	return ioError("segment trim", replaceFile(fsys, filepath.Join(dir, markName), b, true))
}

func readMark(fsys FS, dir string) (m trimMark, err error) {
	path := filepath.Join(dir, markName)
	b, err := readFile(fsys, path)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, ioError("open segments", err)
	}
	body, ok := openRecord(b, markMagic)
	if !ok || len(body) != 16 {
		return m, corrupt(path, 0, "the trim mark does not check out")
	}
	return trimMark{start: binary.LittleEndian.Uint64(body), resetAt: binary.LittleEndian.Uint64(body[8:])}, nil
}

const indexSuffix = ".idx"

func indexPath(dir string, base uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", base, indexSuffix))
}

// appendIndex encodes what is known of a complete file.
func appendIndex(b []byte, seg *segment) []byte {
	b = append(b, indexMagic...)
	for _, v := range []uint64{seg.base, uint64(seg.size), seg.next, seg.last, uint64(seg.stamp), uint64(len(seg.sparse))} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, e := range seg.sparse {
		b = binary.LittleEndian.AppendUint64(b, e.offset)
		b = binary.LittleEndian.AppendUint64(b, uint64(e.pos))
		b = binary.LittleEndian.AppendUint64(b, uint64(e.stamp))
	}
	return sealRecord(b)
}

// parseIndex fills seg from what appendIndex wrote; false where it is for another file, or damaged.
func parseIndex(b []byte, seg *segment) bool {
	body, ok := openRecord(b, indexMagic)
	if !ok || len(body) < 48 || (len(body)-48)%24 != 0 {
		return false
	}
	u := func(i int) uint64 { return binary.LittleEndian.Uint64(body[8*i:]) }
	n := (len(body) - 48) / 24
	if u(0) != seg.base || int64(u(1)) != seg.size || u(2) <= seg.base || u(5) != uint64(n) || n == 0 {
		return false
	}
	list := make([]sparse, n)
	for i := range list {
		list[i] = sparse{offset: u(6 + 3*i), pos: int64(u(7 + 3*i)), stamp: int64(u(8 + 3*i))}
		e := &list[i]
		if e.pos < 0 || e.pos >= seg.size || e.offset >= u(2) ||
			(i == 0 && (e.pos != 0 || e.offset != seg.base)) ||
			(i > 0 && (e.pos <= list[i-1].pos || e.offset <= list[i-1].offset)) {
			return false
		}
	}
	seg.next, seg.last, seg.stamp, seg.sparse = u(2), u(3), int64(u(4)), list
	return true
}

// writeIndex leaves the index of a complete file to the OS: it only saves time, and is checked where it is read.
func writeIndex(fsys FS, dir string, seg *segment) error {
	return replaceFile(fsys, indexPath(dir, seg.base), appendIndex(nil, seg), false)
}
