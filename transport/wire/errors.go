package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/skeinmesh/skein/ring"
)

// Kind says what a caller can do about an error. The numbers travel between nodes: append only.
type Kind uint8

const (
	KindInternal       Kind = 0  // our own fault, or one that nobody classified
	KindInvalid        Kind = 1  // the request is wrong; sending it again will not help
	KindNotFound       Kind = 2  // no such stream, partition, offset, node
	KindNotOwner       Kind = 3  // ask Owner (if known) instead
	KindFenced         Kind = 4  // an older term, epoch or session: start over
	KindNoCredit       Kind = 5  // overloaded: wait RetryAfter
	KindUnavailable    Kind = 6  // certainly not done; may work later (no quorum, draining, disk full)
	KindOutcomeUnknown Kind = 7  // may or may not have been done: retry with the same identity
	KindCorrupt        Kind = 8  // bytes failed their checksum or their bounds
	KindClosed         Kind = 9  // the part asked has been closed
	KindConflict       Kind = 10 // exists already with other content, or a version did not match
)

// Error is the one error type that crosses nodes. Zero fields mean "not known".
type Error struct {
	Kind Kind
	// Code is the API's stable word for it, such as "no-quorum" (API.md); empty where Kind says all.
	Code string
	// Op names what was attempted: "publish", "catalog get".
	Op string
	// Detail says what was wrong and what to do, for a human.
	Detail string
	// Owner and Term are a hint with KindNotOwner and KindFenced.
	Owner ring.NodeID
	Term  uint64
	// RetryAfter is a hint with KindNoCredit and KindUnavailable.
	RetryAfter time.Duration
	// Err is the local cause; it does not travel.
	Err error
}

func (e *Error) Error() string {
	s := e.Detail
	if s == "" {
		s = e.Code
	}
	if s == "" {
		s = e.Kind.String()
	}
	if e.Op != "" {
		s = e.Op + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is matches errors of the same Kind, and of the same Code where the target has one.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind && (t.Code == "" || t.Code == e.Code)
}

// KindOf is the kind of the first *Error in err's chain, or KindInternal.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}

// CodeOf is the code of the first *Error in err's chain, or "".
func CodeOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// Errorf makes an error of a kind and code with a formatted detail.
func Errorf(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Detail: fmt.Sprintf(format, args...)}
}

var kindNames = [...]string{"internal", "invalid", "not found", "not owner", "fenced", "no credit", "unavailable",
	"outcome unknown", "corrupt", "closed", "conflict"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Codes of API.md that are born below the HTTP layer.
const (
	CodeNoQuorum         = "no-quorum"
	CodeOverloaded       = "overloaded"
	CodeDraining         = "draining"
	CodeDiskFull         = "disk-full"
	CodeTooFewCopies     = "too-few-copies"
	CodeOutcomeUnknown   = "outcome-unknown"
	CodeStreamNotFound   = "stream-not-found"
	CodeOffsetExpired    = "offset-expired"
	CodeIdempotencyReuse = "idempotency-reuse"
	CodeTooLarge         = "too-large"
	CodeUnsupported      = "unsupported"  // the node asked runs an older version, which does not know the request
	CodeMeshVersion      = "mesh-version" // some member of the mesh runs a version too old for what was asked
)
