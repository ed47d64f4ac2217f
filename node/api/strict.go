package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// maxConfigDepth bounds nesting in config bodies.
const maxConfigDepth = 16

// jsonFields lists the JSON names of a struct's fields.
func jsonFields(v any) []string {
	t := reflect.TypeOf(v)
	var names []string
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// strictObject checks that b is one JSON object whose names are known and nowhere doubled. encoding/json would take the last
// of two, ignore strangers, and match without regard to case: all three hide mistakes.
func strictObject(b []byte, known []string) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	tok, err := d.Token()
	if err != nil {
		return invalid("malformed JSON: " + clip(err.Error()))
	}
	if tok != json.Delim('{') {
		return invalid("the body must be a JSON object")
	}
	if err := strictMembers(d, known, 1); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid("malformed JSON: more follows the object")
	}
	return nil
}

// strictMembers reads up to the closing brace; known nil allows any name.
func strictMembers(d *json.Decoder, known []string, depth int) error {
	if depth > maxConfigDepth {
		return invalid(fmt.Sprintf("the JSON is nested deeper than %d", maxConfigDepth))
	}
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return invalid("malformed JSON: " + clip(err.Error()))
		}
		name := tok.(string) // Token gives nothing else in a name's place
		if known != nil && !slices.Contains(known, name) {
			return NewProblem(http.StatusBadRequest, codeUnknownField, "unknown field "+strconv.Quote(clip(name))+suggest(name, known))
		}
		if seen[name] {
			return invalid("field " + strconv.Quote(clip(name)) + " is given twice")
		}
		seen[name] = true
		if err := strictValue(d, depth); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return invalid("malformed JSON: " + clip(err.Error()))
	}
	return nil
}

func strictValue(d *json.Decoder, depth int) error {
	tok, err := d.Token()
	if err != nil {
		return invalid("malformed JSON: " + clip(err.Error()))
	}
	switch tok {
	case json.Delim('{'):
		return strictMembers(d, nil, depth+1)
	case json.Delim('['):
		if depth >= maxConfigDepth {
			return invalid(fmt.Sprintf("the JSON is nested deeper than %d", maxConfigDepth))
		}
		for d.More() {
			if err := strictValue(d, depth+1); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return invalid("malformed JSON: " + clip(err.Error()))
		}
	}
	return nil
}
