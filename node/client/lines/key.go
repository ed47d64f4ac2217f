package lines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// FixedKey gives every line the same key.
func FixedKey(key string) func([]byte) ([]byte, bool) {
	return func([]byte) ([]byte, bool) { return []byte(key), true }
}

// RegexpKey takes the first match in a line: its first group where the expression has one, else the whole match.
func RegexpKey(expr string) (func([]byte) ([]byte, bool), error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, err
	}
	return func(line []byte) ([]byte, bool) {
		m := re.FindSubmatchIndex(line)
		switch {
		case m == nil:
			return nil, false
		case len(m) > 2:
			if m[2] < 0 {
				return nil, false // the group took no part in the match
			}
			return line[m[2]:m[3]], true
		default:
			return line[m[0]:m[1]], true
		}
	}, nil
}

// FieldKey takes the key from a field of a JSON object, "a.b" for one below another. A string is taken without its quotes, a
// number or truth value as it is written; a line that has no such field has no key.
func FieldKey(path string) (func([]byte) ([]byte, bool), error) {
	names := strings.Split(path, ".")
	for _, n := range names {
		if n == "" {
			return nil, fmt.Errorf("%q is no field: a or a.b is wanted", path)
		}
	}
	return func(line []byte) ([]byte, bool) {
		raw := json.RawMessage(line)
		for _, n := range names {
			var object map[string]json.RawMessage
			if json.Unmarshal(raw, &object) != nil {
				return nil, false
			}
			var ok bool
			if raw, ok = object[n]; !ok {
				return nil, false
			}
		}
		raw = bytes.TrimSpace(raw)
		switch {
		case len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || string(raw) == "null":
			return nil, false
		case raw[0] == '"':
			var s string
			if json.Unmarshal(raw, &s) != nil {
				return nil, false
			}
			return []byte(s), true
		}
		return raw, true
	}, nil
}
