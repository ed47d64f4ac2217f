package house

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unheard are codes that no caller of the API is ever answered with.
var unheard = map[string]string{
	"session-unknown": "a node that publishes opens another session",
	"sequence-gap":    "a node that publishes opens another session",
	"batch-full":      "the builder of batches begins another one",
	"short":           "who reads a file takes it for its end, or for damage",
	"compacted":       "raft sends a snapshot",
	"log-unavailable": "raft asks again",
	"unknown-entry":   "a replica stops until its node is upgraded",
}

// TestTheReadmeExplainsEveryErrorCode: its table has every code that a node answers with, once, and no other.
func TestTheReadmeExplainsEveryErrorCode(t *testing.T) {
	source := codesOfTheSource(t)
	explained := codesOfTheReadme(t)
	for _, code := range slices.Sorted(maps.Keys(source)) {
		why, hidden := unheard[code]
		switch n := explained[code]; {
		case hidden && n > 0:
			t.Errorf("README.md explains the code %s, of which it is said here that %s", code, why)
		case !hidden && n != 1:
			t.Errorf("README.md explains the code %s (%s) %d times: say once what it means and what to do", code, source[code], n)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(explained)) {
		if source[code] == "" {
			t.Errorf("README.md explains the code %s, which no node answers with", code)
		}
	}
	for code := range unheard {
		if source[code] == "" {
			t.Errorf("there is no code %s any more: remove its line", code)
		}
	}
}

var codeRow = regexp.MustCompile("`([a-z-]+)`")

// codesOfTheReadme counts the words in the first column of the table of codes.
func codesOfTheReadme(t *testing.T) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(raw), "| code | what it means | what to do |\n")
	if !found {
		t.Fatal("README.md has no table of codes")
	}
	codes := map[string]int{}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		for _, m := range codeRow.FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
			codes[m[1]]++
		}
	}
	return codes
}

// codesOfTheSource finds constants that are named as codes, and codes that are written where an error is made; each with a place. The codes
// that are born in node/client no node answers with.
func codesOfTheSource(t *testing.T) map[string]string {
	t.Helper()
	codes := map[string]string{}
	for _, f := range sources(t) {
		if f.test || f.nested || !within(f.dir, "transport", "flow", "node") || within(f.dir, "node/client") {
			continue
		}
		add := func(e ast.Expr) {
			if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if code, err := strconv.Unquote(lit.Value); err == nil && code != "" {
					codes[code] = f.at(lit.Pos())
				}
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GenDecl:
				for _, spec := range n.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && n.Tok == token.CONST {
						addConstants(v, add)
					}
				}
			case *ast.CallExpr: // wire.Errorf(wire.KindX, "code", …), refusal of the same, NewProblem(status, "code", …)
				if len(n.Args) > 1 && (nameOf(n.Fun) == "NewProblem" || makers[nameOf(n.Fun)] && strings.HasPrefix(nameOf(n.Args[0]), "Kind")) {
					add(n.Args[1])
				}
			case *ast.KeyValueExpr: // wire.Error{Code: "code"}
				if nameOf(n.Key) == "Code" {
					add(n.Value)
				}
			}
			return true
		})
	}
	if len(codes) < 40 {
		t.Fatalf("only %d codes were found", len(codes))
	}
	return codes
}

var makers = map[string]bool{"Errorf": true, "refusal": true}

var codeName = regexp.MustCompile(`^[cC]ode[A-Z]`)

func addConstants(v *ast.ValueSpec, add func(ast.Expr)) {
	for i, name := range v.Names {
		if codeName.MatchString(name.Name) && i < len(v.Values) {
			add(v.Values[i])
		}
	}
}

// nameOf is the last word of a name, qualified or not.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
