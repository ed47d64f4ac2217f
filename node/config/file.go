package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	maxFile  = 1 << 20 // bytes of a configuration file
	maxDepth = 8       // nesting of sections and lists
)

// entry is one key as a source gave it.
type entry struct {
	key    string
	origin string
	value  scalar
	err    error // the value has a shape that no key takes
}

// readFile returns the entries of a YAML or JSON file (JSON is read by the same decoder: it is YAML's flow style).
func readFile(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err // it names the file
	}
	if len(data) > maxFile {
		return nil, &Error{Origin: path, Msg: "is larger than 1 MiB: that is no configuration file"}
	}
	return parseFile(path, data)
}

func parseFile(path string, data []byte) ([]entry, error) {
	notConfig := &Error{Origin: path, Msg: "is neither YAML nor JSON: `key: value` lines or one JSON object are wanted"}
	if strings.ContainsRune(string(data), 0) {
		return nil, notConfig
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		var y yaml.Error
		if errors.As(err, &y) && y.GetToken() != nil && y.GetToken().Position != nil {
			return nil, &Error{Origin: at(path, y.GetToken()), Msg: "not YAML or JSON: " + y.GetMessage()}
		}
		return nil, notConfig
	}
	var bodies []ast.Node
	for _, d := range file.Docs {
		if d.Body != nil {
			bodies = append(bodies, d.Body)
		}
	}
	switch len(bodies) {
	case 0:
		return nil, nil
	case 1:
	default:
		return nil, &Error{Origin: at(path, bodies[1].GetToken()), Msg: "holds a second document; one is wanted"}
	}
	w := walker{path: path}
	if _, ok := bodies[0].(ast.MapNode); !ok {
		return nil, notConfig
	}
	w.walk("", bodies[0], 0)
	return w.out, nil
}

func at(path string, t *token.Token) string {
	if t == nil || t.Position == nil {
		return path
	}
	return path + ":" + strconv.Itoa(t.Position.Line)
}

// walker flattens nested sections to dotted keys.
type walker struct {
	path string
	out  []entry
}

func (w *walker) walk(prefix string, n ast.Node, depth int) {
	m, ok := n.(ast.MapNode)
	if !ok {
		w.leaf(prefix, n)
		return
	}
	if depth > maxDepth {
		w.fail(prefix, n, "is nested too deep")
		return
	}
	for it := m.MapRange(); it.Next(); {
		key, t := it.Key().String(), it.Key().GetToken()
		if t != nil {
			key = t.Value
		}
		if prefix != "" {
			key = prefix + "." + key
		}
		if _, known := Lookup(key); known {
			w.leafAt(key, t, it.Value())
			continue
		}
		if _, isMap := it.Value().(ast.MapNode); isMap && isSection(key) {
			w.walk(key, it.Value(), depth+1)
			continue
		}
		if _, empty := it.Value().(*ast.NullNode); empty && isSection(key) {
			continue // all of its keys are commented out
		}
		if isSection(key) {
			w.out = append(w.out, entry{key: key, origin: at(w.path, t), err: fmt.Errorf("is a section; it takes the keys %s", sectionKeys(key))})
			continue
		}
		if _, isMap := it.Value().(ast.MapNode); isMap {
			w.walk(key, it.Value(), depth+1) // an unknown section: each of its keys is reported
			continue
		}
		w.leafAt(key, t, it.Value())
	}
}

func (w *walker) fail(key string, n ast.Node, msg string) {
	w.out = append(w.out, entry{key: key, origin: at(w.path, n.GetToken()), err: errors.New(msg)})
}

func (w *walker) leaf(key string, n ast.Node) { w.leafAt(key, n.GetToken(), n) }

func (w *walker) leafAt(key string, t *token.Token, n ast.Node) {
	v, err := scalarOf(n)
	w.out = append(w.out, entry{key: key, origin: at(w.path, t), value: v, err: err})
}

func scalarOf(n ast.Node) (scalar, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return scalar{kind: isString, text: n.Value}, nil
	case *ast.LiteralNode:
		return scalar{kind: isString, text: strings.TrimSuffix(n.Value.Value, "\n")}, nil
	case *ast.IntegerNode:
		return scalar{kind: isInt, text: strings.ReplaceAll(n.GetToken().Value, "_", "")}, nil
	case *ast.FloatNode:
		return scalar{kind: isFloat, text: n.GetToken().Value}, nil
	case *ast.BoolNode:
		return scalar{kind: isBool, text: strconv.FormatBool(n.Value)}, nil
	case *ast.NullNode, nil:
		return scalar{}, errors.New("has no value; leave the key out to keep its default")
	case *ast.SequenceNode:
		out := scalar{kind: isList, list: make([]string, 0, len(n.Values))}
		for _, item := range n.Values {
			v, err := scalarOf(item)
			if err != nil || v.kind == isList {
				return scalar{}, errors.New("wants plain text in its list")
			}
			out.list = append(out.list, v.text)
		}
		return out, nil
	case ast.MapNode:
		return scalar{}, errors.New("wants one value, got a section")
	default:
		return scalar{}, errors.New("wants a plain value; anchors, aliases and tags are not read")
	}
}

func isSection(key string) bool { return sectionKeys(key) != "" }

func sectionKeys(section string) string {
	var out []string
	for _, k := range table {
		if rest, ok := strings.CutPrefix(k.Name, section+"."); ok {
			out = append(out, rest)
		}
	}
	return strings.Join(out, ", ")
}
