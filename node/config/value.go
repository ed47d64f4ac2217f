package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// scalarKind is what a source wrote, before the key says what it wants.
type scalarKind uint8

const (
	isText   scalarKind = iota // a flag or an environment variable: text that stands for any type
	isString                   // a string in a file
	isInt
	isFloat
	isBool
	isList
)

// scalar is one value as its source wrote it.
type scalar struct {
	kind scalarKind
	text string
	list []string // isList
}

func textScalar(s string) scalar { return scalar{kind: isText, text: s} }

// describe names the value in a complaint.
func (s scalar) describe() string {
	switch s.kind {
	case isInt, isFloat:
		return "the number " + s.text
	case isBool:
		return s.text
	case isList:
		return "a list"
	default:
		return strconv.Quote(s.text)
	}
}

// set stores v in the key's field of c, or says why v does not fit.
func (k *Key) set(c *Config, v scalar) error {
	switch f := k.field(c).(type) {
	case *string:
		if v.kind != isText && v.kind != isString {
			return k.mismatch(v, "; put it in quotes if it is meant as text")
		}
		*f = v.text
	case *bool:
		return k.setBool(f, v)
	case *int:
		n, err := strconv.Atoi(v.text)
		if err != nil || (v.kind != isText && v.kind != isInt) {
			return k.mismatch(v, "")
		}
		*f = n
	case *float64:
		n, err := strconv.ParseFloat(v.text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || v.kind == isString || v.kind == isList {
			return k.mismatch(v, "")
		}
		*f = n
	case *size:
		return k.setSize(f, v)
	case *Millis:
		return k.setMillis(f, v)
	case *time.Duration:
		return k.setDuration(f, v)
	case *[]string:
		return k.setList(f, v)
	case *Secret:
		return k.setSecret(f, v)
	}
	return nil
}

func (k *Key) mismatch(v scalar, hint string) error {
	return fmt.Errorf("wants %s, got %s%s", k.Type(), v.describe(), hint)
}

func (k *Key) setBool(f *bool, v scalar) error {
	if v.kind != isText && v.kind != isBool {
		return k.mismatch(v, "")
	}
	b, err := strconv.ParseBool(v.text)
	if err != nil {
		return k.mismatch(v, "")
	}
	*f = b
	return nil
}

func (k *Key) setSize(f *size, v scalar) error {
	if v.kind == isList || v.kind == isBool || v.kind == isFloat {
		return k.mismatch(v, "")
	}
	n, err := ParseSize(v.text)
	if err != nil {
		return err
	}
	*f = size(n)
	return nil
}

func (k *Key) setMillis(f *Millis, v scalar) error {
	if v.kind == isList || v.kind == isBool || v.kind == isFloat {
		return k.mismatch(v, "")
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("%s is out of range", v.text)
	}
	if err == nil {
		if n < 0 || n > math.MaxInt64/int64(time.Millisecond) {
			return fmt.Errorf("%d is out of range", n)
		}
		*f = Millis(n)
		return nil
	}
	d, err := ParseDuration(v.text)
	if err != nil {
		return err
	}
	if d%time.Millisecond != 0 {
		return fmt.Errorf("%q is not a whole number of milliseconds", v.text)
	}
	*f = Millis(d / time.Millisecond)
	return nil
}

func (k *Key) setDuration(f *time.Duration, v scalar) error {
	if v.kind != isText && v.kind != isString {
		return k.mismatch(v, "")
	}
	d, err := ParseDuration(v.text)
	if err != nil {
		return err
	}
	*f = d
	return nil
}

func (k *Key) setList(f *[]string, v scalar) error {
	items := v.list
	switch v.kind {
	case isList:
	case isText, isString:
		items = strings.Split(v.text, ",")
	default:
		return k.mismatch(v, "")
	}
	var out []string
	for _, s := range items {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		} else if v.kind == isList {
			return fmt.Errorf("holds an empty entry")
		}
	}
	*f = out
	return nil
}

func (k *Key) setSecret(f *Secret, v scalar) error {
	if v.kind != isText && v.kind != isString {
		return fmt.Errorf("wants %s", k.Type()) // never the value itself
	}
	s, err := ParseSecret(v.text)
	if err != nil {
		return err
	}
	*f = s
	return nil
}

// get is the key's value in c as text that set reads back; lists are joined by commas.
func (k *Key) get(c *Config) (text string, list []string) {
	switch f := k.field(c).(type) {
	case *string:
		return *f, nil
	case *bool:
		return strconv.FormatBool(*f), nil
	case *int:
		return strconv.Itoa(*f), nil
	case *float64:
		return strconv.FormatFloat(*f, 'g', -1, 64), nil
	case *size:
		return FormatSize(int64(*f)), nil
	case *Millis:
		return strconv.FormatInt(int64(*f), 10), nil
	case *time.Duration:
		return formatDuration(*f), nil
	case *[]string:
		return strings.Join(*f, ","), *f
	case *Secret:
		return f.String(), nil
	}
	panic("config: key " + k.Name + " has a field of unknown type")
}
