package api

import (
	"bytes"
	"fmt"
	"strconv"
)

// maxItemExtra is what an event's envelope may add to its value, in bytes.
const maxItemExtra = 1 << 20

// splitter finds the items of a batch body in a buffer that may end anywhere.
type splitter interface {
	// next returns the item that starts at or after b[pos] and the position behind it. last: nothing follows b. Without an item,
	// more says that the item is incomplete and continues behind b (from position to); else the body has ended.
	next(b []byte, pos int, last bool) (item []byte, to int, more bool, err error)
}

// lines splits NDJSON; blank lines are no items.
type lines struct{}

func (lines) next(b []byte, pos int, last bool) ([]byte, int, bool, error) {
	for pos < len(b) {
		end, to := len(b), len(b)
		if i := bytes.IndexByte(b[pos:], '\n'); i >= 0 {
			end, to = pos+i, pos+i+1
		} else if !last {
			return nil, pos, true, nil
		}
		if item := trimLine(b[pos:end]); len(item) > 0 {
			return item, to, false, nil
		}
		pos = to
	}
	return nil, pos, !last, nil
}

// elements splits one JSON array into its elements.
type elements struct {
	state elementState
}

type elementState int

const (
	wantOpen  elementState = iota // the array's bracket
	wantFirst                     // an element, or the closing bracket
	wantComma                     // a comma, or the closing bracket
	wantNext                      // an element
	wantEnd                       // nothing but space
)

func (e *elements) next(b []byte, pos int, last bool) ([]byte, int, bool, error) {
	for {
		if pos = space(b, pos); pos >= len(b) {
			if last && e.state != wantEnd {
				return nil, pos, false, invalid("the JSON array ends early")
			}
			return nil, pos, !last, nil
		}
		switch ch := b[pos]; {
		case e.state == wantOpen && ch == '[':
			e.state, pos = wantFirst, pos+1
		case (e.state == wantFirst || e.state == wantComma) && ch == ']':
			e.state, pos = wantEnd, pos+1
		case e.state == wantComma && ch == ',':
			e.state, pos = wantNext, pos+1
		case (e.state == wantFirst || e.state == wantNext) && ch == '{':
			end := scanValue(b, pos, 1)
			if end < 0 {
				if !last {
					return nil, pos, true, nil
				}
				return nil, pos, false, notJSON(b[pos:])
			}
			e.state = wantComma
			return b[pos:end], end, false, nil
		default:
			return nil, pos, false, invalid(fmt.Sprintf("unexpected %s in the JSON array of events", strconv.QuoteRune(rune(ch))))
		}
	}
}
