package house

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// The aim is half of these; what is beyond them cannot be read at one sitting.
const (
	maxFileLines     = 800
	maxFunctionLines = 100
)

func TestFilesAndFunctionsAreShortEnoughToRead(t *testing.T) {
	for _, f := range sources(t) {
		if f.lines > maxFileLines {
			t.Errorf("%s has %d lines; at most %d", f.path, f.lines, maxFileLines)
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			n := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
			if n > maxFunctionLines && !tableTest(f, fn) {
				t.Errorf("%s: %s has %d lines; at most %d", f.at(fn.Pos()), fn.Name.Name, n, maxFunctionLines)
			}
		}
	}
}

// tableTest reports whether most of a test function is one table: a list of cases is as long as there are cases.
func tableTest(f *file, fn *ast.FuncDecl) bool {
	if !f.test {
		return false
	}
	longest := 0
	ast.Inspect(fn, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok {
			longest = max(longest, f.fset.Position(lit.End()).Line-f.fset.Position(lit.Pos()).Line)
		}
		return true
	})
	return f.fset.Position(fn.End()).Line-f.fset.Position(fn.Pos()).Line-longest <= maxFunctionLines/2
}

func TestEveryPackageHasADoc(t *testing.T) {
	docs := map[string]string{} // folder -> first line of its doc, or ""
	names := map[string]string{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		names[f.dir] = f.ast.Name.Name
		if f.ast.Doc == nil {
			docs[f.dir] += ""
			continue
		}
		if docs[f.dir] != "" {
			t.Errorf("%s: the package has a second doc; it belongs into one file", f.path)
		}
		docs[f.dir] = f.ast.Doc.Text()
	}
	for _, dir := range slices.Sorted(maps.Keys(names)) {
		doc, name := docs[dir], names[dir]
		switch {
		case doc == "":
			t.Errorf("%s: package %s has no doc; say what it owns, what it does not, and what order it guarantees", dir, name)
		case name != "main" && !strings.HasPrefix(doc, "Package "+name+" "):
			t.Errorf("%s: the doc of package %s starts with %.30q, not with its name", dir, name, doc)
		}
	}
}

// TestNoTestSleepsForReal leaves time.Sleep to the pause of a loop that polls what is real. Elsewhere virtual.Sleep makes sure that the time
// is virtual.
func TestNoTestSleepsForReal(t *testing.T) {
	for _, f := range sources(t) {
		if !f.test || f.nested {
			continue
		}
		f.uses("time", func(name string, at token.Pos) {
			if name == "Sleep" && !f.inLoop(at) {
				t.Errorf("%s sleeps: wait for the event itself, poll with a deadline, or use testing/synctest with virtual.Sleep", f.at(at))
			}
		})
	}
}

// inLoop reports whether a place lies in the body of a loop.
func (f *file) inLoop(at token.Pos) (found bool) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch loop := n.(type) {
		case *ast.ForStmt:
			found = found || loop.Pos() <= at && at < loop.End()
		case *ast.RangeStmt:
			found = found || loop.Pos() <= at && at < loop.End()
		}
		return !found
	})
	return found
}
