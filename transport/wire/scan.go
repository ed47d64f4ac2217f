package wire

import "encoding/binary"

// Caps of every msgpack message between nodes. A message beyond them is refused before anything is allocated for it.
const (
	// MaxDepth bounds the nesting of arrays and maps.
	MaxDepth = 16
	// MaxElements bounds all values in one message, keys included: one byte on the wire can become a struct in memory. The most that
	// messages need are a page of reports of groups, and the duplicates of a whole batch.
	MaxElements = 1 << 18
	// emptyCost is what nil, an empty map or an empty array count as: of a byte each, they can stand for the largest structs.
	emptyCost = 8
)

// scan walks one msgpack value (msgpack specification, "Formats") without allocating and returns its size in bytes. Every
// length is held against the bytes that are really there, so that a decoder run afterwards can trust all of them.
func scan(b []byte, most int) (int, error) {
	var left [MaxDepth + 1]uint64 // values still to come at each depth
	left[0] = 1
	depth, pos, elements := 0, 0, uint64(0)
	for {
		for left[depth] == 0 {
			if depth == 0 {
				return pos, nil
			}
			depth--
		}
		left[depth]--
		if pos < len(b) && (b[pos] == 0xc0 || b[pos] == 0x80 || b[pos] == 0x90) {
			elements += emptyCost - 1
		}
		if elements++; elements > uint64(most) {
			return 0, Errorf(KindCorrupt, "", "message has more than %d values", most)
		}
		head, children, err := scanHead(b[pos:])
		if err != nil {
			return 0, err
		}
		pos += head
		if children == 0 {
			continue
		}
		if children > uint64(len(b)-pos) {
			return 0, errShort
		}
		if depth++; depth > MaxDepth {
			return 0, Errorf(KindCorrupt, "", "message is nested deeper than %d", MaxDepth)
		}
		left[depth] = children
	}
}

var (
	errShort     = &Error{Kind: KindCorrupt, Detail: "message is shorter than the lengths in it"}
	errExtension = &Error{Kind: KindCorrupt, Detail: "message has a msgpack extension, which no message may have"}
	errCode      = &Error{Kind: KindCorrupt, Detail: "message has a byte that is no msgpack type"}
	errTrailing  = &Error{Kind: KindCorrupt, Detail: "message has bytes after its end"}
)

// scanHead returns how many bytes the value at the start of b takes itself, and how many values follow inside it.
func scanHead(b []byte) (size int, children uint64, err error) {
	if len(b) == 0 {
		return 0, 0, errShort
	}
	c := b[0]
	switch {
	case c <= 0x7f || c >= 0xe0: // small integers
		return 1, 0, nil
	case c <= 0x8f: // small map
		return 1, 2 * uint64(c&0x0f), nil
	case c <= 0x9f: // small array
		return 1, uint64(c & 0x0f), nil
	case c <= 0xbf: // small string
		return scanFixed(b, 1+int(c&0x1f))
	}
	switch c {
	case 0xc0, 0xc2, 0xc3: // nil, false, true
		return 1, 0, nil
	case 0xcc, 0xd0: // 8 bits
		return scanFixed(b, 2)
	case 0xcd, 0xd1: // 16 bits
		return scanFixed(b, 3)
	case 0xca, 0xce, 0xd2: // 32 bits
		return scanFixed(b, 5)
	case 0xcb, 0xcf, 0xd3: // 64 bits
		return scanFixed(b, 9)
	case 0xc4, 0xd9: // binary, string
		return scanSized(b, 1)
	case 0xc5, 0xda:
		return scanSized(b, 2)
	case 0xc6, 0xdb:
		return scanSized(b, 4)
	case 0xc7, 0xc8, 0xc9, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		// No message of ours has an extension, and the library takes what is inside one for a map when it wants a map: lengths that
		// this scan passed over as opaque.
		return 0, 0, errExtension
	case 0xdc:
		return scanCount(b, 2, 1)
	case 0xdd:
		return scanCount(b, 4, 1)
	case 0xde:
		return scanCount(b, 2, 2)
	case 0xdf:
		return scanCount(b, 4, 2)
	}
	return 0, 0, errCode
}

func scanFixed(b []byte, n int) (int, uint64, error) {
	if len(b) < n {
		return 0, 0, errShort
	}
	return n, 0, nil
}

// scanSized reads a length of width bytes after the type byte; so many bytes follow.
func scanSized(b []byte, width int) (int, uint64, error) {
	n, err := scanUint(b, width)
	if err != nil {
		return 0, 0, err
	}
	total := uint64(1+width) + n
	if total > uint64(len(b)) {
		return 0, 0, errShort
	}
	return int(total), 0, nil
}

// scanCount reads a count of width bytes after the type byte; each item is per values.
func scanCount(b []byte, width int, per uint64) (int, uint64, error) {
	n, err := scanUint(b, width)
	return 1 + width, n * per, err
}

func scanUint(b []byte, width int) (uint64, error) {
	if len(b) < 1+width {
		return 0, errShort
	}
	switch width {
	case 1:
		return uint64(b[1]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b[1:])), nil
	default:
		return uint64(binary.BigEndian.Uint32(b[1:])), nil
	}
}
