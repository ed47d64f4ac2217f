package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/skeinmesh/skein"
	root   = "../.."
)

// file is one parsed Go file of the repository.
type file struct {
	path string // relative to the repository's root, with slashes
	dir  string // the same of its folder; also its import path below the module
	test bool
	// nested: the file belongs to a module of its own below this one.
	nested  bool
	ast     *ast.File
	fset    *token.FileSet
	lines   int
	imports map[string]string // import path -> name it is used by
}

func (f *file) at(p token.Pos) string {
	return f.path + ":" + strconv.Itoa(f.fset.Position(p).Line)
}

var load = sync.OnceValues(func() ([]*file, error) {
	var files []*file
	var nested []string
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch name := d.Name(); {
		case d.IsDir() && rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin"):
			return filepath.SkipDir
		case rel != "go.mod" && name == "go.mod":
			nested = append(nested, path.Dir(rel)+"/")
		case !d.IsDir() && strings.HasSuffix(name, ".go"):
			f, err := parse(fset, p, rel)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		return nil
	})
	for _, f := range files {
		for _, n := range nested {
			f.nested = f.nested || strings.HasPrefix(f.path, n)
		}
	}
	return files, err
})

func parse(fset *token.FileSet, p, rel string) (*file, error) {
	src, err := os.ReadFile(p)
	if err != nil {
		return nil, err
	}
	tree, err := parser.ParseFile(fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &file{
		path: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
		ast: tree, fset: fset, lines: strings.Count(string(src), "\n"), imports: map[string]string{},
	}
	for _, im := range tree.Imports {
		imported, _ := strconv.Unquote(im.Path.Value)
		name := path.Base(imported)
		if len(name) > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9' {
			name = path.Base(path.Dir(imported))
		}
		if im.Name != nil {
			name = im.Name.Name
		}
		f.imports[imported] = name
	}
	return f, nil
}

// sources returns all Go files of the repository.
func sources(t *testing.T) []*file {
	t.Helper()
	files, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d Go files below %s: the tests must run in their own folder", len(files), root)
	}
	return files
}

// uses calls fn for each mention of a name of the imported package.
func (f *file) uses(imported string, fn func(name string, at token.Pos)) {
	local, ok := f.imports[imported]
	if !ok {
		return
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
				fn(sel.Sel.Name, sel.Pos())
			}
		}
		return true
	})
}

// within reports whether dir is one of the folders or lies below one.
func within(dir string, folders ...string) bool {
	for _, f := range folders {
		if dir == f || strings.HasPrefix(dir, f+"/") {
			return true
		}
	}
	return false
}
