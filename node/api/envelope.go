package api

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/skeinmesh/skein/flow"
)

// contentJSON is the type of values that come as JSON lines.
const contentJSON = "application/json"

// isJSON reports whether a content type says JSON (RFC 8259, or the +json suffix of RFC 6839).
func isJSON(ct string) bool {
	if ct == contentJSON {
		return true
	}
	mt, _, _ := strings.Cut(ct, ";")
	mt = strings.TrimSpace(mt)
	return strings.EqualFold(mt, contentJSON) || len(mt) > 5 && strings.EqualFold(mt[len(mt)-5:], "+json")
}

// encoder writes events as JSON envelopes. One goroutine uses it.
type encoder struct {
	sec    int64 // the second whose text prefix holds
	prefix []byte
}

// appendEvent appends one event as a JSON object that contains no raw line break, so that it can be a line of NDJSON or of
// server-sent events.
func (e *encoder) appendEvent(b []byte, ev *flow.Event) []byte {
	b = append(b, `{"stream":"`...)
	b = append(b, ev.Stream...) // names need no escape
	b = append(b, `","partition":`...)
	b = strconv.AppendUint(b, uint64(ev.Partition), 10)
	b = append(b, `,"offset":`...)
	b = strconv.AppendUint(b, ev.Offset, 10)
	b = append(b, `,"time":"`...)
	b = e.appendTime(b, ev.Stamp.UnixMilli())
	b = append(b, '"')
	if ev.HasKey {
		b = appendKey(b, ev.Key)
	}
	b = appendValue(b, ev.ContentType, ev.Value)
	b = appendMember(b, `,"content_type":`, ev.ContentType)
	b = e.appendHeaders(b, ev)
	b = appendMember(b, `,"id":`, ev.ID)
	b = appendMember(b, `,"source":`, ev.Source)
	b = appendMember(b, `,"type":`, ev.Type)
	return append(b, '}')
}

func appendMember(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendJSONString(append(b, name...), value)
}

// appendKey appends the key as text, or as key_base64 where it is not UTF-8.
func appendKey(b, key []byte) []byte {
	if utf8.Valid(key) {
		return appendJSONString(append(b, `,"key":`...), key)
	}
	b = append(b, `,"key_base64":"`...)
	return append(base64.StdEncoding.AppendEncode(b, key), '"')
}

// appendValue appends JSON as it is, other UTF-8 as a string, the rest in base64. Content that only claims to be JSON is in base64
// too, so that a string in the value's place always means a JSON string there.
func appendValue(b []byte, ct string, v []byte) []byte {
	if isJSON(ct) {
		t := trimJSON(v)
		if scanJSON(t) {
			b = append(b, `,"value":`...)
			at := len(b)
			b = append(b, t...)
			if bytes.IndexByte(t, '\n') >= 0 || bytes.IndexByte(t, '\r') >= 0 {
				oneLine(b[at:])
			}
			return b
		}
	} else if utf8.Valid(v) {
		return appendJSONString(append(b, `,"value":`...), v)
	}
	b = append(b, `,"value_base64":"`...)
	return append(base64.StdEncoding.AppendEncode(b, v), '"')
}

// oneLine makes spaces of line breaks: in JSON they can only stand between tokens.
func oneLine(b []byte) {
	for i, c := range b {
		if c == '\n' || c == '\r' {
			b[i] = ' '
		}
	}
}

// appendHeaders appends what travels with the event; the publisher's own time, which CloudEvents call time, is ce-time.
func (e *encoder) appendHeaders(b []byte, ev *flow.Event) []byte {
	if len(ev.Headers) == 0 && ev.Time == 0 {
		return b
	}
	b = append(b, `,"headers":`...)
	sep := byte('{')
	for _, h := range ev.Headers {
		b = append(b, sep)
		b = appendJSONString(b, h.Name)
		b = append(b, ':')
		b = appendJSONString(b, h.Value)
		sep = ','
	}
	if ev.Time != 0 {
		b = append(b, sep)
		b = append(b, `"ce-time":"`...)
		b = append(e.appendTime(b, ev.Time), '"')
	}
	return append(b, '}')
}

// appendTime appends Unix milliseconds as RFC 3339. Events of one second come together, so the text of the second is kept.
func (e *encoder) appendTime(b []byte, ms int64) []byte {
	sec, frac := ms/1000, ms%1000
	if frac < 0 {
		sec, frac = sec-1, frac+1000
	}
	if e.prefix == nil || sec != e.sec {
		e.sec = sec
		e.prefix = time.Unix(sec, 0).UTC().AppendFormat(e.prefix[:0], "2006-01-02T15:04:05")
	}
	b = append(b, e.prefix...)
	if frac != 0 {
		b = append(b, '.', byte('0'+frac/100), byte('0'+frac/10%10), byte('0'+frac%10))
	}
	return append(b, 'Z')
}
