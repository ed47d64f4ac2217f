package api

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// maxJSONDepth bounds nesting in events: deeper values only exist to hurt readers.
const maxJSONDepth = 256

// The scanner below checks RFC 8259 grammar and UTF-8 without building anything. A scan function takes the position of a value's
// first byte and returns the position behind it, or -1. It is several times as fast as encoding/json because it looks at
// strings eight bytes at a time.

// scanJSON checks that b is exactly one JSON value without surrounding space.
func scanJSON(b []byte) bool { return len(b) > 0 && scanValue(b, 0, 0) == len(b) }

func scanValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch c := b[i]; c {
	case '"':
		return scanString(b, i+1)
	case '{':
		return members(b, i, depth+1, func(_ []byte, at int) int { return scanValue(b, at, depth+1) })
	case '[':
		return scanArray(b, i+1, depth+1)
	case 't':
		return scanWord(b, i, "true")
	case 'f':
		return scanWord(b, i, "false")
	case 'n':
		return scanWord(b, i, "null")
	default:
		if c == '-' || c-'0' <= 9 {
			return scanNumber(b, i)
		}
	}
	return -1
}

func scanWord(b []byte, i int, w string) int {
	if len(b)-i >= len(w) && string(b[i:i+len(w)]) == w {
		return i + len(w)
	}
	return -1
}

func space(b []byte, i int) int {
	for i < len(b) {
		switch b[i] {
		case ' ', '\t', '\r', '\n':
			i++
		default:
			return i
		}
	}
	return i
}

func scanArray(b []byte, i, depth int) int {
	if depth > maxJSONDepth {
		return -1
	}
	if i = space(b, i); i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if i = scanValue(b, i, depth); i < 0 {
			return -1
		}
		if i = space(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i = space(b, i+1)
		case ']':
			return i + 1
		default:
			return -1
		}
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks the first byte of x that is a quote, a backslash, a control character or not ASCII; marks above the first may be
// false (a borrow), so only the lowest counts.
func special(x uint64) uint64 {
	q := x ^ '"'*ones
	s := x ^ '\\'*ones
	return ((q-ones)&^q | (s-ones)&^s | (x-0x20*ones)&^x | x) & highs
}

// scanString takes the position behind the opening quote.
func scanString(b []byte, i int) int {
	for {
		for len(b)-i >= 8 {
			m := special(binary.LittleEndian.Uint64(b[i:]))
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			return -1
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = scanEscape(b, i+1); i < 0 {
				return -1
			}
		case c < 0x20:
			return -1
		case c < utf8.RuneSelf:
			i++
		default:
			_, n := utf8.DecodeRune(b[i:])
			if n == 1 {
				return -1
			}
			i += n
		}
	}
}

func scanEscape(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if _, ok := hex4(b, i+1); ok {
			return i + 5
		}
	}
	return -1
}

func hex4(b []byte, i int) (rune, bool) {
	if len(b)-i < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func scanNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b):
		return -1
	case b[i] == '0':
		i++
	default:
		if i = digits(b, i); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i] == '.' {
		if i = digits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return digits(b, i)
	}
	return i
}

// digits takes one or more.
func digits(b []byte, i int) int {
	start := i
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// members walks the object at b[i] (its opening brace) and calls visit with each raw name, without its quotes, and the position
// of its value; visit returns the position behind the value, or -1 to stop. Returns like a scan function.
func members(b []byte, i, depth int, visit func(name []byte, at int) int) int {
	if i >= len(b) || b[i] != '{' || depth > maxJSONDepth {
		return -1
	}
	if i = space(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return -1
		}
		start := i + 1
		if i = scanString(b, start); i < 0 {
			return -1
		}
		name := b[start : i-1]
		if i = space(b, i); i >= len(b) || b[i] != ':' {
			return -1
		}
		if i = visit(name, space(b, i+1)); i < 0 {
			return -1
		}
		if i = space(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i = space(b, i+1)
		case '}':
			return i + 1
		default:
			return -1
		}
	}
}

// unquote gives the text of a scanned string, without its quotes: a view of b where nothing is escaped, else a copy. Lone
// surrogates become U+FFFD, as encoding/json has it.
func unquote(b []byte) []byte {
	i := 0
	for i < len(b) && b[i] != '\\' {
		i++
	}
	if i == len(b) {
		return b
	}
	out := make([]byte, i, len(b))
	copy(out, b)
	for i < len(b) {
		c := b[i]
		if c != '\\' {
			out = append(out, c)
			i++
			continue
		}
		i++
		switch c = b[i]; c {
		case 'u':
			r, n := surrogates(b, i+1)
			out = utf8.AppendRune(out, r)
			i += n
		default:
			out = append(out, unescaped(c))
		}
		i++
	}
	return out
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// surrogates reads the four hexadecimal digits of a \u escape at b[i], and a low surrogate that follows; n is the bytes taken.
func surrogates(b []byte, i int) (r rune, n int) {
	r, _ = hex4(b, i)
	if r < 0xd800 || r > 0xdfff {
		return r, 4
	}
	if r < 0xdc00 && len(b)-i >= 10 && b[i+4] == '\\' && b[i+5] == 'u' {
		if lo, ok := hex4(b, i+6); ok && lo >= 0xdc00 && lo <= 0xdfff {
			return 0x10000 + (r-0xd800)<<10 + (lo - 0xdc00), 10
		}
	}
	return utf8.RuneError, 4
}

const hexDigits = "0123456789abcdef"

// appendJSONString appends s, which should be UTF-8 (what is not becomes U+FFFD), as a JSON string with its quotes.
func appendJSONString[T ~string | ~[]byte](b []byte, s T) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := decodeRune(s, i)
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[start:i]...), `\ufffd`...)
				start = i + 1
			}
			i += n
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}

func decodeRune[T ~string | ~[]byte](s T, i int) (rune, int) {
	var buf [utf8.UTFMax]byte
	n := copy(buf[:], s[i:])
	return utf8.DecodeRune(buf[:n])
}
