package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmesh/skein/flow/batch"
)

// lineRules say how a line of a batch becomes an event.
type lineRules struct {
	envelope bool
	keyPath  []string       // of key_field; nil: none
	key      []byte         // of ?key=, for events without one of their own
	hasKey   bool           // an empty key is a key
	trace    []batch.Header // of the request, for events without one of their own
}

func lineError(format string, args ...any) error { return invalid(fmt.Sprintf(format, args...)) }

// parse turns one line, without its line break and not empty, into rec. The record's bytes are views of line.
func (l *lineRules) parse(line []byte, rec *batch.Record) error {
	*rec = batch.Record{Key: l.key, HasKey: l.hasKey}
	if l.envelope {
		return l.parseEnvelope(line, rec)
	}
	rec.Value, rec.ContentType, rec.Headers = line, contentJSON, l.trace
	if l.keyPath != nil {
		return l.takeKey(line, rec)
	}
	if !scanJSON(line) {
		return notJSON(line)
	}
	return nil
}

func notJSON(b []byte) error {
	return lineError("not a JSON value in UTF-8 nested at most %d deep: %q", maxJSONDepth, clip(string(b[:min(len(b), 60)])))
}

// takeKey checks the value and takes its key in one pass.
func (l *lineRules) takeKey(value []byte, rec *batch.Record) error {
	var at []byte
	twice := false
	if end := findField(value, 0, 1, l.keyPath, &at, &twice); end != len(value) {
		return notJSON(value)
	}
	path := strings.Join(l.keyPath, ".")
	switch {
	case twice:
		return lineError("key_field %s: the value has it twice", clip(path))
	case at == nil:
		return lineError("key_field %s: the value has no such field", clip(path))
	case at[0] == '"':
		rec.Key = unquote(at[1 : len(at)-1])
	case at[0] == '{' || at[0] == '[' || at[0] == 'n':
		return lineError("key_field %s: a key is a string, a number or a boolean", clip(path))
	default:
		rec.Key = at
	}
	rec.HasKey = true
	return nil
}

// findField scans the value at b[i] and notes the value at path inside it.
func findField(b []byte, i, depth int, path []string, at *[]byte, twice *bool) int {
	if len(path) == 0 {
		end := scanValue(b, i, depth-1)
		if end > 0 {
			*twice = *at != nil
			*at = b[i:end]
		}
		return end
	}
	if i >= len(b) || b[i] != '{' {
		return scanValue(b, i, depth-1)
	}
	return members(b, i, depth, func(name []byte, v int) int {
		if string(unquote(name)) == path[0] {
			return findField(b, v, depth+1, path[1:], at, twice)
		}
		return scanValue(b, v, depth)
	})
}

// envelopeFields are the names that a line may have with ?envelope=true; the index is the bit that notes a double.
var envelopeFields = []string{"key", "key_base64", "value", "value_base64", "content_type", "headers", "id", "source", "type", "time"}

const (
	fieldKey = iota
	fieldKeyBase64
	fieldValue
	fieldValueBase64
	fieldContentType
	fieldHeaders
	fieldID
	fieldSource
	fieldType
	fieldTime
)

func (l *lineRules) parseEnvelope(line []byte, rec *batch.Record) error {
	var err error
	var seen uint32
	var value []byte // raw JSON of "value"
	end := members(line, 0, 1, func(name []byte, i int) int {
		j := scanValue(line, i, 1)
		if j < 0 {
			return -1
		}
		f := fieldIndex(name)
		if f < 0 {
			err = NewProblem(http.StatusBadRequest, codeUnknownField,
				"unknown field "+strconv.Quote(clip(string(name)))+suggest(string(name), envelopeFields))
			return -1
		}
		if seen&(1<<f) != 0 {
			err = lineError("field %q is given twice", envelopeFields[f])
			return -1
		}
		seen |= 1 << f
		raw := line[i:j]
		if f == fieldValue {
			value = raw
		} else if raw[0] != 'n' { // null is absent
			err = setField(rec, f, raw)
		}
		if err != nil {
			return -1
		}
		return j
	})
	switch {
	case err != nil:
		return err
	case end != len(line):
		return notJSON(line)
	case seen&(1<<fieldKey) != 0 && seen&(1<<fieldKeyBase64) != 0:
		return lineError("key and key_base64 exclude each other")
	case value != nil && rec.Value != nil:
		return lineError("value and value_base64 exclude each other")
	}
	if err := l.finishEnvelope(rec, value); err != nil {
		return err
	}
	if !rec.HasKey && l.keyPath != nil {
		return l.takeKey(rec.Value, rec)
	}
	return nil
}

// finishEnvelope settles what depends on several fields: a string is the text itself unless the content is JSON.
func (l *lineRules) finishEnvelope(rec *batch.Record, value []byte) error {
	switch {
	case value == nil && rec.Value == nil:
		return lineError("the envelope has neither value nor value_base64")
	case value == nil:
		def(&rec.ContentType, "application/octet-stream")
	case rec.ContentType == "" || isJSON(rec.ContentType):
		def(&rec.ContentType, contentJSON)
		rec.Value = value
	case value[0] == '"':
		rec.Value = unquote(value[1 : len(value)-1])
	default:
		rec.Value = value
	}
	if (rec.ID == "") != (rec.Source == "") {
		return lineError("id and source make an event's identity together: give both or none")
	}
	addTrace(rec, l.trace)
	return nil
}

func fieldIndex(name []byte) int {
	for i, f := range envelopeFields {
		if string(name) == f {
			return i
		}
	}
	return -1
}

func setField(rec *batch.Record, f int, raw []byte) error {
	if f == fieldHeaders {
		return setHeaders(rec, raw)
	}
	if raw[0] != '"' {
		return lineError("field %q must be a string", envelopeFields[f])
	}
	text := unquote(raw[1 : len(raw)-1])
	switch f {
	case fieldKey:
		rec.Key, rec.HasKey = text, true
	case fieldKeyBase64, fieldValueBase64:
		out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
		n, err := base64.StdEncoding.Decode(out, text)
		if err != nil {
			return lineError("field %q is not base64", envelopeFields[f])
		}
		if f == fieldKeyBase64 {
			rec.Key, rec.HasKey = out[:n], true
		} else {
			rec.Value = out[:n]
		}
	case fieldContentType:
		rec.ContentType = contentType(text)
	case fieldID:
		rec.ID = string(text)
	case fieldSource:
		rec.Source = string(text)
	case fieldType:
		rec.Type = string(text)
	case fieldTime:
		return setTime(rec, string(text))
	}
	return nil
}

// contentType makes a string without allocating for what nearly all events have.
func contentType(b []byte) string {
	if string(b) == contentJSON {
		return contentJSON
	}
	return string(b)
}

// timeHeader is the publisher's own time among an event's headers.
const timeHeader = "ce-time"

func setTime(rec *batch.Record, text string) error {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return lineError("time %q is not RFC 3339, such as 2026-01-31T12:00:00Z", clip(text))
	}
	if rec.Time = t.UnixMilli(); rec.Time == 0 {
		// The record's zero is no time at all: the epoch itself is kept under the name that readers find it by.
		rec.Headers = append(rec.Headers, batch.Header{Name: timeHeader, Value: t.UTC().Format(time.RFC3339)})
	}
	return nil
}

func setHeaders(rec *batch.Record, raw []byte) error {
	var err error
	// The grammar was checked with the whole line, so members cannot fail but through visit.
	end := members(raw, 0, 2, func(name []byte, i int) int {
		j := scanValue(raw, i, 2)
		if raw[i] != '"' || len(rec.Headers) >= batch.MaxHeaders {
			err = lineError("headers must be at most %d strings", batch.MaxHeaders)
			return -1
		}
		k, v := string(unquote(name)), string(unquote(raw[i+1:j-1]))
		if k == "" || hasHeader(rec.Headers, k) {
			err = lineError("header %q is empty or given twice", clip(k))
			return -1
		}
		if k == timeHeader {
			if err = setTime(rec, v); err != nil {
				return -1
			}
			return j
		}
		rec.Headers = append(rec.Headers, batch.Header{Name: k, Value: v})
		return j
	})
	if err == nil && end < 0 {
		err = lineError("headers must be an object of strings")
	}
	return err
}

func hasHeader(hs []batch.Header, name string) bool {
	for i := range hs {
		if hs[i].Name == name {
			return true
		}
	}
	return false
}

// traceHeaders are the W3C trace context of a request, where it is well formed; a malformed one is ignored, as the
// recommendation asks.
func traceHeaders(h http.Header) []batch.Header {
	tp := h.Get("Traceparent")
	if tp == "" || !validTraceparent(tp) {
		return nil
	}
	out := []batch.Header{{Name: "traceparent", Value: tp}}
	if ts := strings.Join(h.Values("Tracestate"), ","); ts != "" && len(ts) <= 512 {
		out = append(out, batch.Header{Name: "tracestate", Value: ts})
	}
	return out
}

// addTrace gives rec the trace context of its request, unless it has one of its own, in whole or in part, or as many headers as there
// may be: a trace is no reason to refuse an event.
func addTrace(rec *batch.Record, trace []batch.Header) {
	if len(rec.Headers)+len(trace) > batch.MaxHeaders || hasHeader(rec.Headers, "traceparent") || hasHeader(rec.Headers, "tracestate") {
		return
	}
	rec.Headers = append(rec.Headers, trace...)
}

// validTraceparent checks version-trace-span-flags: 2, 32, 16 and 2 hexadecimal digits.
func validTraceparent(s string) bool {
	if len(s) < 55 || len(s) > 128 || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || len(s) > 55 && s[55] != '-' {
		return false
	}
	for i, c := range []byte(s[:55]) {
		if i != 2 && i != 35 && i != 52 && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return s[3:35] != strings.Repeat("0", 32) && s[36:52] != strings.Repeat("0", 16)
}

// keyPath reads key_field: names joined by dots.
func keyPath(v string) ([]string, error) {
	path := strings.Split(v, ".")
	if len(v) > 1024 || len(path) > 16 {
		return nil, invalid("key_field is too long: at most 16 names in 1024 bytes")
	}
	for _, p := range path {
		if p == "" {
			return nil, invalid("key_field " + strconv.Quote(clip(v)) + " has an empty name; it is names joined by dots")
		}
	}
	return path, nil
}

// trimLine takes off the space around a line.
func trimLine(b []byte) []byte {
	if n := len(b); n > 0 && b[0] > ' ' && b[n-1] > ' ' {
		return b
	}
	return bytes.Trim(b, " \t\r")
}

// trimJSON takes off the space that JSON allows around a value.
func trimJSON(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }
