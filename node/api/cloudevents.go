package api

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/skeinmesh/skein/flow/batch"
)

// CloudEvents 1.0: JSON event format, and the HTTP binding's binary, structured and batched modes. Attributes that a Record has no
// field for are kept as headers named as in binary mode ("ce-subject").
const (
	ceStructured = "application/cloudevents+json"
	ceBatch      = "application/cloudevents-batch+json"
	ceVersion    = "1.0"
)

// ceAttr sets one attribute, by its CloudEvents name.
func ceAttr(rec *batch.Record, name, value string) error {
	if !utf8.ValidString(value) {
		return invalid("ce-" + clip(name) + " is not UTF-8")
	}
	switch name {
	case "subject", "partitionkey", "dataschema", "datacontenttype":
		if value == "" { // as a key it would gather all such events in one partition
			return invalid("CloudEvents attribute " + name + " is empty; leave it out where there is none")
		}
	}
	switch name {
	case "specversion":
		if value != ceVersion {
			return invalid("CloudEvents specversion " + strconv.Quote(clip(value)) + " is not supported; 1.0 is")
		}
	case "id":
		rec.ID = value
	case "source":
		rec.Source = value
	case "type":
		rec.Type = value
	case "time":
		return setTime(rec, value)
	case "datacontenttype":
		rec.ContentType = value
	default:
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			return invalid("CloudEvents attribute " + strconv.Quote(clip(name)) + ": only a–z and 0–9 are allowed")
		}
		if len(rec.Headers) >= batch.MaxHeaders {
			return invalid(fmt.Sprintf("the event has more than %d attributes", batch.MaxHeaders))
		}
		rec.Headers = append(rec.Headers, batch.Header{Name: ceName(name), Value: value})
	}
	return nil
}

// ceName is the header that an attribute is kept under; the trace context is what it is in any mode.
func ceName(attr string) string {
	if attr == "traceparent" || attr == "tracestate" {
		return attr
	}
	return "ce-" + attr
}

// ceFinish checks the required attributes and falls back to the partition key, then the subject, as key.
func ceFinish(rec *batch.Record) error {
	for _, a := range []struct{ name, value string }{{"id", rec.ID}, {"source", rec.Source}, {"type", rec.Type}} {
		if a.value == "" {
			return invalid("the CloudEvent lacks its required attribute " + a.name)
		}
	}
	if rec.HasKey {
		return nil
	}
	for _, name := range []string{"ce-partitionkey", "ce-subject"} {
		for _, h := range rec.Headers {
			if h.Name == name {
				rec.Key, rec.HasKey = []byte(h.Value), true
				return nil
			}
		}
	}
	return nil
}

// hasCE reports whether a request has CloudEvents headers.
func hasCE(h http.Header) bool {
	if h["Ce-Specversion"] != nil {
		return true
	}
	for k := range h {
		if strings.HasPrefix(k, "Ce-") {
			return true
		}
	}
	return false
}

// ceBinary reads the attributes from headers (HTTP binding, section 3.1).
func ceBinary(rec *batch.Record, h http.Header) error {
	if h["Ce-Specversion"] == nil {
		return invalid("there are ce-* headers but no ce-specversion: 1.0")
	}
	for _, k := range slices.Sorted(maps.Keys(h)) { // sorted, so that a retry has the same content
		if !strings.HasPrefix(k, "Ce-") {
			continue
		}
		if len(h[k]) > 1 {
			return invalid("header " + clip(k) + " is given more than once")
		}
		name := strings.ToLower(k[3:])
		if name == "datacontenttype" {
			return invalid("in binary mode the Content-Type header is the datacontenttype; ce-datacontenttype is not allowed")
		}
		value, err := ceDecode(h[k][0])
		if err != nil {
			return invalid("header " + clip(k) + ": " + err.Error())
		}
		if err := ceAttr(rec, name, value); err != nil {
			return err
		}
	}
	return ceFinish(rec)
}

// ceDecode undoes quoting and then percent-encoding, once each (HTTP binding, section 3.1.3.2).
func ceDecode(v string) (string, error) {
	if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		v = unquoteHeader(v[1 : len(v)-1])
	}
	if strings.IndexByte(v, '%') >= 0 {
		b := make([]byte, 0, len(v))
		for i := 0; i < len(v); i++ {
			if v[i] != '%' {
				b = append(b, v[i])
				continue
			}
			n, err := strconv.ParseUint(v[i+1:min(i+3, len(v))], 16, 8)
			if err != nil || i+3 > len(v) { // common clients send a lone % as it is
				b = append(b, v[i])
				continue
			}
			b = append(b, byte(n))
			i += 2
		}
		v = string(b)
	}
	if !utf8.ValidString(v) {
		return "", fmt.Errorf("the value is not UTF-8")
	}
	return v, nil
}

func unquoteHeader(v string) string {
	if strings.IndexByte(v, '\\') < 0 {
		return v
	}
	b := make([]byte, 0, len(v))
	for i := 0; i < len(v); i++ {
		if v[i] == '\\' && i+1 < len(v) {
			i++
		}
		b = append(b, v[i])
	}
	return string(b)
}

// ceJSON reads one event of the JSON format (section 3). The record's value is a view of b where nothing is escaped.
func ceJSON(rec *batch.Record, b []byte) error {
	var err error
	var data, data64 []byte
	version := false
	var names []string
	end := members(b, 0, 1, func(rawName []byte, i int) int {
		j := scanValue(b, i, 1)
		if j < 0 {
			return -1
		}
		name, raw := string(unquote(rawName)), b[i:j]
		if slices.Contains(names, name) {
			err = invalid("attribute " + strconv.Quote(clip(name)) + " is given twice")
			return -1
		}
		if names = append(names, name); len(names) > batch.MaxHeaders+10 {
			err = invalid(fmt.Sprintf("the event has more than %d attributes", batch.MaxHeaders))
			return -1
		}
		switch {
		case name == "data":
			data = raw
		case raw[0] == 'n': // null is absent
		case name == "data_base64":
			data64 = raw
		default:
			version = version || name == "specversion"
			if err = ceMember(rec, name, raw); err != nil {
				return -1
			}
		}
		return j
	})
	switch {
	case err != nil:
		return err
	case end != len(b):
		return notJSON(b)
	case !version:
		return invalid("the CloudEvent lacks its required attribute specversion")
	}
	if err := ceData(rec, data, data64); err != nil {
		return err
	}
	return ceFinish(rec)
}

func ceMember(rec *batch.Record, name string, raw []byte) error {
	switch raw[0] {
	case '"':
		return ceAttr(rec, name, string(unquote(raw[1:len(raw)-1])))
	case '{', '[':
		return invalid("attribute " + strconv.Quote(clip(name)) + " must be a string, a number or a boolean")
	}
	switch name {
	case "specversion", "id", "source", "type", "time", "datacontenttype", "subject", "dataschema":
		return invalid("attribute " + name + " must be a string")
	}
	return ceAttr(rec, name, string(raw))
}

func ceData(rec *batch.Record, data, data64 []byte) error {
	switch {
	case data != nil && data64 != nil:
		return invalid("data and data_base64 exclude each other")
	case data64 != nil:
		if data64[0] != '"' {
			return invalid("data_base64 must be a string")
		}
		text := unquote(data64[1 : len(data64)-1])
		rec.Value = make([]byte, base64.StdEncoding.DecodedLen(len(text)))
		n, err := base64.StdEncoding.Decode(rec.Value, text)
		if err != nil {
			return invalid("data_base64 is not base64")
		}
		rec.Value = rec.Value[:n]
	case data == nil:
	case rec.ContentType == "" || isJSON(rec.ContentType):
		def(&rec.ContentType, contentJSON)
		rec.Value = data
	case data[0] == '"':
		rec.Value = unquote(data[1 : len(data)-1])
	default:
		rec.Value = data
	}
	return nil
}
