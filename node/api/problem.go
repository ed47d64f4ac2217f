package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/skeinmesh/skein/flow/backup"
	"github.com/skeinmesh/skein/transport/wire"
)

// Problem is an error as HTTP callers see it (RFC 9457).
type Problem struct {
	Status    int    // HTTP status
	Code      string // stable word
	Detail    string // what was wrong and what to do
	Retryable bool   // sending the same request again may succeed
	// RetryAfter is a hint with 429 and 503; zero means one second.
	RetryAfter time.Duration
	// Earliest is the first offset that still exists, with offset-expired.
	Earliest *uint64
	// Allow lists the methods that a route has, with 405.
	Allow string
	cause error // for the log, never for the client
}

func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

func (p *Problem) Unwrap() error { return p.cause }

// NewProblem makes a problem; whether it is worth a retry follows from the status.
func NewProblem(status int, code, detail string) *Problem {
	return &Problem{Status: status, Code: code, Detail: detail, Retryable: retryableStatus(status)}
}

// Codes that are born in this package.
const (
	codeInvalid      = "invalid"
	codeNotFound     = "not-found"
	codeMethod       = "method-not-allowed"
	codeNotAccepted  = "not-acceptable"
	codeMediaType    = "unsupported-media-type"
	codeLength       = "length-required"
	codeTimeout      = "timeout"
	codeTooSlow      = "request-too-slow"
	codeInternal     = "internal"
	codeHost         = "host-not-allowed"
	codeCrossOrigin  = "cross-origin"
	codePrecondition = "precondition-failed"
	codeConfirm      = "confirmation-required"
	codeConflict     = "conflict"
	codeUnknownParam = "unknown-parameter"
	codeUnknownField = "unknown-field"
	codeInvalidName  = "invalid-name"
	codeLoopbackOnly = "loopback-only"
	codeNotReady     = "not-ready"
	codeFenced       = "fenced"
	codeUnavailable  = "unavailable"
	codeCorrupt      = "corrupt"
)

func invalid(detail string) *Problem { return NewProblem(http.StatusBadRequest, codeInvalid, detail) }

func tooLarge(detail string) *Problem {
	return NewProblem(http.StatusRequestEntityTooLarge, wire.CodeTooLarge, detail)
}

func overloaded(detail string) *Problem {
	return NewProblem(http.StatusServiceUnavailable, wire.CodeOverloaded, detail)
}

func retryableStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// byCode and byKind are the one place where errors from below become statuses; a known code beats its kind.
var byCode = map[string]int{
	wire.CodeNoQuorum:         http.StatusServiceUnavailable,
	wire.CodeOverloaded:       http.StatusServiceUnavailable,
	wire.CodeDraining:         http.StatusServiceUnavailable,
	wire.CodeDiskFull:         http.StatusServiceUnavailable,
	wire.CodeTooFewCopies:     http.StatusServiceUnavailable,
	wire.CodeOutcomeUnknown:   http.StatusGatewayTimeout,
	wire.CodeStreamNotFound:   http.StatusNotFound,
	wire.CodeOffsetExpired:    http.StatusGone,
	wire.CodeIdempotencyReuse: http.StatusUnprocessableEntity,
	wire.CodeTooLarge:         http.StatusRequestEntityTooLarge,
	"quota":                   http.StatusTooManyRequests,
	"version-mismatch":        http.StatusPreconditionFailed,
	backup.CodeDamaged:        http.StatusBadRequest,
}

var byKind = map[wire.Kind]struct {
	status int
	code   string
}{
	wire.KindInternal:       {http.StatusInternalServerError, codeInternal},
	wire.KindInvalid:        {http.StatusBadRequest, codeInvalid},
	wire.KindNotFound:       {http.StatusNotFound, codeNotFound},
	wire.KindNotOwner:       {http.StatusServiceUnavailable, wire.CodeNoQuorum},
	wire.KindFenced:         {http.StatusConflict, codeFenced},
	wire.KindNoCredit:       {http.StatusServiceUnavailable, wire.CodeOverloaded},
	wire.KindUnavailable:    {http.StatusServiceUnavailable, codeUnavailable},
	wire.KindOutcomeUnknown: {http.StatusGatewayTimeout, wire.CodeOutcomeUnknown},
	wire.KindCorrupt:        {http.StatusInternalServerError, codeCorrupt},
	wire.KindClosed:         {http.StatusServiceUnavailable, wire.CodeDraining},
	wire.KindConflict:       {http.StatusConflict, codeConflict},
}

// problemOf turns any error into what the client is told. Errors that nobody classified are 500 without their text: it may
// name files or addresses; the log has it.
func problemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return problemOfWire(e, err)
	}
	if tooBig, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge("the body is larger than " + strconv.FormatInt(tooBig.Limit, 10) + " bytes (max_body_bytes)")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		p := NewProblem(http.StatusServiceUnavailable, codeTimeout, "no answer within the time allowed (timeout_ms)")
		p.cause = err
		return p
	}
	return &Problem{Status: http.StatusInternalServerError, Code: codeInternal,
		Detail: "internal error; the node's log names the cause under this request's id", cause: err}
}

func problemOfWire(e *wire.Error, err error) *Problem {
	row := byKind[e.Kind]
	if row.status == 0 {
		row = byKind[wire.KindInternal]
	}
	status, code := row.status, row.code
	if e.Code != "" {
		code = e.Code
		if s, ok := byCode[e.Code]; ok {
			status = s
		}
	}
	p := NewProblem(status, code, e.Detail)
	p.RetryAfter, p.cause = e.RetryAfter, err
	if p.Detail == "" {
		p.Detail = e.Kind.String()
	}
	if status == http.StatusInternalServerError && e.Kind == wire.KindInternal {
		p.Detail = "internal error; the node's log names the cause under this request's id"
	}
	if code == wire.CodeOffsetExpired {
		p.Earliest = earliestIn(e.Detail)
	}
	return p
}

var earliestPattern = regexp.MustCompile(`earliest\D*(\d+)`)

// earliestIn finds the offset that the detail of offset-expired names.
func earliestIn(detail string) *uint64 {
	m := earliestPattern.FindStringSubmatch(detail)
	if m == nil {
		return nil
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// appendProblem encodes p as a problem+json object.
func appendProblem(b []byte, p *Problem, node, requestID string) []byte {
	b = append(b, `{"type":"urn:skein:problem:`...)
	b = append(b, p.Code...)
	b = append(b, `","title":`...)
	b = appendJSONString(b, http.StatusText(p.Status))
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(p.Status), 10)
	b = append(b, `,"detail":`...)
	b = appendJSONString(b, p.Detail)
	b = append(b, `,"code":`...)
	b = appendJSONString(b, p.Code)
	b = append(b, `,"retryable":`...)
	b = strconv.AppendBool(b, p.Retryable)
	b = append(b, `,"node":`...)
	b = appendJSONString(b, node)
	if requestID != "" {
		b = append(b, `,"request_id":`...)
		b = appendJSONString(b, requestID)
	}
	if p.Earliest != nil {
		b = append(b, `,"earliest":`...)
		b = strconv.AppendUint(b, *p.Earliest, 10)
	}
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		b = append(b, `,"retry_after_ms":`...)
		b = strconv.AppendInt(b, retryAfter(p).Milliseconds(), 10)
	}
	return append(b, '}')
}

func retryAfter(p *Problem) time.Duration {
	if p.RetryAfter <= 0 {
		return time.Second
	}
	return p.RetryAfter
}

const (
	// refusalGrace is how long a piece of a refused body may take to arrive.
	refusalGrace = 500 * time.Millisecond
	// refusalReads is for how long the rest of a refused body is read.
	refusalReads = 5 * time.Second
)

// Fail answers the request with err as problem+json. Nothing may have been written before.
func (c *Call) Fail(err error) {
	p := problemOf(err)
	left := errors.Is(err, context.Canceled) && c.R.Context().Err() != nil // the client did; nothing is wrong here
	if p.Status >= 500 && p.Status != http.StatusServiceUnavailable && p.Status != http.StatusGatewayTimeout && !left {
		c.s.log.Error("request failed", "request", c.ID, "route", c.route.Pattern, "err", err)
	}
	h := c.w.Header()
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		secs := int64((retryAfter(p) + time.Second - 1) / time.Second)
		h.Set("Retry-After", strconv.FormatInt(max(secs, 1), 10))
	}
	if p.Allow != "" {
		h.Set("Allow", p.Allow)
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="skein"`)
	}
	ctl := http.NewResponseController(c.w.ResponseWriter)
	if c.R.ContentLength != 0 {
		// The HTTP server reads what is left of a small body before it answers; a client that sends nothing must not hold it up.
		_ = ctl.SetReadDeadline(time.Now().Add(refusalGrace))
	}
	c.problem = p.Code
	_ = c.Bytes(p.Status, "application/problem+json", appendProblem(nil, p, c.s.cfg.Identity.Node, c.ID))
	if c.R.ContentLength != 0 {
		c.readRest(ctl)
	}
}

// readRest sends the answer and reads on for a while: where the connection were closed on a client that still sends, that client would
// find it broken, and not find the answer.
func (c *Call) readRest(ctl *http.ResponseController) {
	if ctl.Flush() != nil {
		return
	}
	piece := make([]byte, 32<<10)
	for end := time.Now().Add(refusalReads); time.Now().Before(end); {
		if ctl.SetReadDeadline(time.Now().Add(refusalGrace)) != nil {
			return
		}
		if _, err := c.R.Body.Read(piece); err != nil {
			return
		}
	}
}

// JSON answers with v, encoded by encoding/json: for answers off the hot path. Its error is that of the encoding.
func (c *Call) JSON(status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Bytes(status, contentJSON, append(b, '\n'))
}

// answerTime is how long a whole answer may take to be written.
const answerTime = 30 * time.Second

// Bytes answers with a whole body. It returns nil: a client that left needs no answer.
func (c *Call) Bytes(status int, contentType string, body []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	if time.Since(c.start) > c.s.cfg.MaxWait {
		// A body that came slowly used up the time for the answer.
		_ = http.NewResponseController(c.w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTime))
	}
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body)
	return nil
}
