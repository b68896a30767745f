package txn

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The step core is deterministic because it cannot be otherwise: no goroutine, clock, lock, channel or I/O, and no map
// (correctness.md 6).
func TestCoreIsPure(t *testing.T) {
	files, err := filepath.Glob("core*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	if len(files) < 5 {
		t.Fatalf("only %v", files)
	}
	allowed := []string{"errors", "time", "github.com/millrace/millrace/metadata"}
	fset := token.NewFileSet()
	for _, name := range files {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			if path, _ := strconv.Unquote(imp.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt, *ast.ChanType, *ast.DeferStmt, *ast.MapType:
				t.Errorf("%s: %T", fset.Position(n.Pos()), n)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains([]string{"Duration", "Millisecond"}, n.Sel.Name) {
					t.Errorf("%s: time.%s", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}
