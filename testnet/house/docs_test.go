package house

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9]+\b`)
	namedFile = regexp.MustCompile("`([a-z][a-z0-9_/]*\\.go)\\b")
)

// TestTheArchitectureNamesWhatIsThere: every test, fuzz target and source file that ARCHITECTURE.md points to exists, and its map has every package.
func TestTheArchitectureNamesWhatIsThere(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	tests, files, dirs := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range sources(t) {
		files[f.path], files[path.Base(f.path)] = true, true
		files[path.Join(path.Base(f.dir), path.Base(f.path))] = true
		if !f.nested {
			dirs[f.dir] = true
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				tests[fn.Name.Name] = true
			}
		}
	}
	for _, name := range namedTest.FindAllString(text, -1) {
		if !tests[name] {
			t.Errorf("ARCHITECTURE.md names %s, which is not there", name)
		}
	}
	for _, m := range namedFile.FindAllStringSubmatch(text, -1) {
		if name := m[1]; !files[name] {
			t.Errorf("ARCHITECTURE.md names %s, which is not there", name)
		}
	}
	for dir := range dirs {
		if !strings.Contains(text, "`"+dir+"`") {
			t.Errorf("the map of ARCHITECTURE.md lacks %s", dir)
		}
	}
}
