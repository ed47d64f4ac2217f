package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// Bounds of an error's words on the wire, in bytes; longer ones are cut.
const (
	maxErrorCode   = 64
	maxErrorOp     = 128
	maxErrorDetail = 512
)

// errorFixed is the size of an encoded error without its words: kind, owner, term, retry-after, three lengths.
const errorFixed = 1 + 16 + 8 + 8 + 3*2

// AppendError appends err's encoding to dst. An error without an *Error in its chain travels as KindInternal with its
// text; an ended context as KindOutcomeUnknown. Local causes become part of the detail.
func AppendError(dst []byte, err error) []byte {
	e := AsError(err)
	detail := e.Detail
	if e.Err != nil {
		detail = strings.TrimPrefix(detail+": "+e.Err.Error(), ": ")
	}
	code, op, detail := clip(e.Code, maxErrorCode), clip(e.Op, maxErrorOp), clip(detail, maxErrorDetail)
	dst = append(dst, byte(e.Kind))
	dst = append(dst, e.Owner[:]...)
	dst = binary.BigEndian.AppendUint64(dst, e.Term)
	dst = binary.BigEndian.AppendUint64(dst, uint64(max(e.RetryAfter, 0)))
	for _, s := range []string{code, op, detail} {
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
		dst = append(dst, s...)
	}
	return dst
}

// ParseError reads what AppendError wrote. err tells that b is damaged (KindCorrupt). Bytes after the known fields are
// left for later versions.
func ParseError(b []byte) (e *Error, err error) {
	if len(b) < errorFixed {
		return nil, errShort
	}
	e = &Error{Kind: Kind(b[0]), Owner: ring.NodeID(b[1:17]), Term: binary.BigEndian.Uint64(b[17:])}
	if r := binary.BigEndian.Uint64(b[25:]); r <= uint64(24*time.Hour) {
		e.RetryAfter = time.Duration(r)
	}
	b = b[33:]
	for _, s := range []*string{&e.Code, &e.Op, &e.Detail} {
		if len(b) < 2 {
			return nil, errShort
		}
		n := int(binary.BigEndian.Uint16(b))
		if n > len(b)-2 || n > maxErrorDetail {
			return nil, errShort
		}
		*s, b = strings.ToValidUTF8(string(b[2:2+n]), "?"), b[2+n:]
	}
	return e, nil
}

// AsError is the first *Error in err's chain with everything around it dropped, or one made from err: an ended context is
// KindOutcomeUnknown, anything else KindInternal. nil gives KindClosed.
func AsError(err error) *Error {
	if err == nil {
		return &Error{Kind: KindClosed}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &Error{Kind: KindOutcomeUnknown, Code: CodeOutcomeUnknown, Err: err}
	}
	return &Error{Kind: KindInternal, Err: err}
}

// clip cuts s to at most n bytes of valid UTF-8.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}
