package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Codes of errors that are born in the client.
const (
	CodeConnect = "connect"         // nothing was sent: no server could be reached
	CodeLost    = "connection-lost" // something was sent, and no answer came: the outcome is not known
	// CodeNotReady: the node asked is not ready to take traffic.
	CodeNotReady = "not-ready"
)

// Incomplete is the error of a list that is not whole. It comes with what is known.
type Incomplete struct{ Detail string }

func (e *Incomplete) Error() string { return "not all is known: " + e.Detail }

// whole is err, or that an answer was incomplete.
func whole(err error, incomplete string) error {
	if err == nil && incomplete != "" {
		return &Incomplete{incomplete}
	}
	return err
}

// Error is a refusal of the server (RFC 9457), or a connection that failed.
type Error struct {
	Op     string // "POST /v1/streams/orders/events"
	Status int    // HTTP status; 0 where no answer came
	// Code is the stable word of the API: "no-quorum", "stream-not-found", …; or one of the codes above.
	Code      string
	Title     string
	Detail    string
	Node      string // who refused
	Retryable bool
	// RetryAfter is the server's hint; 0: none.
	RetryAfter time.Duration
	Err        error // the local cause
}

func (e *Error) Error() string {
	msg := e.Detail
	if msg == "" {
		msg = e.Title
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	if e.Status != 0 && e.Code != "" {
		msg += " (" + e.Code + ")"
	}
	return msg
}

func (e *Error) Unwrap() error { return e.Err }

// OutcomeUnknown reports whether the request may have had its effect although it failed.
func (e *Error) OutcomeUnknown() bool {
	return e.Code == CodeLost || e.Code == "outcome-unknown" || e.Status == http.StatusGatewayTimeout
}

func outcomeUnknown(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.OutcomeUnknown()
}

// CodeOf is the code of the first *Error in err's chain, or "".
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// problem is the body of a refusal.
type problem struct {
	Title        string `json:"title"`
	Status       int    `json:"status"`
	Detail       string `json:"detail"`
	Code         string `json:"code"`
	Retryable    bool   `json:"retryable"`
	Node         string `json:"node"`
	RetryAfterMS int64  `json:"retry_after_ms"`
}

func (p problem) toError() *Error {
	return &Error{
		Status: p.Status, Code: p.Code, Title: p.Title, Detail: p.Detail, Node: p.Node, Retryable: p.Retryable,
		RetryAfter: time.Duration(max(p.RetryAfterMS, 0)) * time.Millisecond,
	}
}

// unready is the answer of /readyz where the node takes no traffic.
type unready struct {
	Node    string   `json:"node"`
	Failing []string `json:"failing"`
	Checks  []struct {
		Name   string `json:"name"`
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
	} `json:"checks"`
}

func (u unready) toError() *Error {
	why := u.Failing
	if len(u.Checks) > 0 {
		why = nil
	}
	for _, c := range u.Checks {
		if c.OK {
			continue
		}
		if c.Detail != "" {
			c.Name += " (" + c.Detail + ")"
		}
		why = append(why, c.Name)
	}
	return &Error{Code: CodeNotReady, Detail: "node " + u.Node + " takes no traffic yet, or no longer: " + strings.Join(why, ", "), Node: u.Node, Retryable: true}
}

func decodeProblem(resp *http.Response) *Error {
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	e := &Error{}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p problem
	var u unready
	switch {
	case strings.HasSuffix(kind, "json") && json.Unmarshal(data, &p) == nil && p.Code != "":
		e = p.toError()
	case strings.HasSuffix(kind, "json") && json.Unmarshal(data, &u) == nil && len(u.Failing) > 0:
		e = u.toError()
	default:
		e.Detail = strings.TrimSpace(string(data[:min(len(data), 200)]))
		// Not one of ours: a proxy between. 502 and 503 are worth another try by their definition.
		e.Retryable = resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusServiceUnavailable
	}
	e.Status = resp.StatusCode
	if e.Title == "" {
		e.Title = fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))
	}
	if s := resp.Header.Get("Retry-After"); e.RetryAfter == 0 && s != "" {
		if n, err := strconv.Atoi(s); err == nil && n >= 0 {
			e.RetryAfter = time.Duration(n) * time.Second
		}
	}
	return e
}

// lost classifies a failed exchange: a dial that failed sent nothing; anything else may have arrived.
func lost(r request, server string, err error) *Error {
	server = strings.TrimPrefix(server, "http://")
	e := &Error{Op: r.method + " " + r.path, Code: CodeLost, Title: "the connection to " + server + " was lost", Retryable: true, Err: err}
	if u, ok := errors.AsType[*url.Error](err); ok {
		e.Err = u.Err // the method and address are said already
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		e.Code, e.Title, e.Err = CodeConnect, "cannot connect to "+server, op.Err
		if sys, ok := errors.AsType[*os.SyscallError](op.Err); ok {
			e.Err = sys.Err
		}
	}
	return e
}
