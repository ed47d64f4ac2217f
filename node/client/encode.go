package client

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// encodeBatch writes the events named by which as envelopes, one a line. It is written by append functions, not by
// reflection, for another reason than speed: encoding/json would compact the space inside JSON values, which are to come
// back as they were.
func encodeBatch(events []Event, which []int) ([]byte, error) {
	size := 0
	for _, i := range which {
		size += len(events[i].Value) + len(events[i].Value)/8 + 256
	}
	buf := make([]byte, 0, size)
	for _, i := range which {
		var err error
		if buf, err = appendEvent(buf, &events[i]); err != nil {
			return nil, fmt.Errorf("client: event %d: %w", i, err)
		}
	}
	return buf, nil
}

func appendEvent(b []byte, ev *Event) ([]byte, error) {
	b = append(b, '{')
	b, err := appendValue(b, ev)
	if err != nil {
		return nil, err
	}
	if ev.HasKey || len(ev.Key) > 0 {
		if utf8.Valid(ev.Key) {
			b = appendString(append(b, `,"key":`...), ev.Key)
		} else {
			b = append(b, `,"key_base64":"`...)
			b = append(base64.StdEncoding.AppendEncode(b, ev.Key), '"')
		}
	}
	b = appendMember(b, `,"content_type":`, ev.ContentType)
	b = appendMember(b, `,"source":`, ev.Source)
	b = appendMember(b, `,"id":`, ev.ID)
	b = appendMember(b, `,"type":`, ev.Type)
	if !ev.Time.IsZero() {
		b = append(b, `,"time":"`...)
		b = append(ev.Time.UTC().AppendFormat(b, time.RFC3339Nano), '"')
	}
	if len(ev.Headers) > 0 {
		b = append(b, `,"headers":`...)
		sep := byte('{')
		for _, k := range slices.Sorted(maps.Keys(ev.Headers)) {
			b = append(b, sep)
			b = appendString(b, []byte(k))
			b = appendString(append(b, ':'), []byte(ev.Headers[k]))
			sep = ','
		}
		b = append(b, '}')
	}
	return append(b, "}\n"...), nil
}

func appendValue(b []byte, ev *Event) ([]byte, error) {
	switch {
	case isJSON(ev.ContentType):
		if !json.Valid(ev.Value) {
			return nil, fmt.Errorf("the value is not JSON, but its content type is %s", ev.ContentType)
		}
		b = append(b, `"value":`...)
		from := len(b)
		b = append(b, bytes.TrimSpace(ev.Value)...)
		for i, c := range b[from:] {
			if c == '\n' || c == '\r' { // in valid JSON only between tokens; a line must stay one
				b[from+i] = ' '
			}
		}
		return b, nil
	case isText(ev.ContentType) && utf8.Valid(ev.Value):
		from := len(b)
		b = appendString(append(b, `"value":`...), ev.Value)
		if len(b)-from <= len(valueBase64)+base64.StdEncoding.EncodedLen(len(ev.Value))+1 {
			return b, nil
		}
		b = b[:from] // control characters for the most part: escaped they could be longer than a server takes
	}
	b = append(b, valueBase64...)
	return append(base64.StdEncoding.AppendEncode(b, ev.Value), '"'), nil
}

const valueBase64 = `"value_base64":"`

func appendMember(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendString(append(b, name...), []byte(value))
}

const hexDigits = "0123456789abcdef"

// appendString appends UTF-8 text as a JSON string; bytes that are not UTF-8 become U+FFFD.
func appendString(b, s []byte) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[from:i]...), "\ufffd"...)
				from = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
