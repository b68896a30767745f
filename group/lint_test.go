package group

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

// The step core is deterministic because it cannot be otherwise: no goroutine, clock, lock, channel or I/O
// (correctness.md 6).
var consumerMaps = []string{"members", "instances", "owners", "dirty", "removed", "regexps"}

func TestCoreIsPure(t *testing.T) {
	var files []string
	for _, pattern := range []string{"core*.go", "classic*.go", "consumer*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	if len(files) < 10 {
		t.Fatalf("only %v", files)
	}
	allowed := []string{"bytes", "cmp", "encoding/binary", "errors", "fmt", "hash/fnv", "maps", "regexp", "slices", "strings", "github.com/millrace/millrace/metadata", "time"}
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
			case *ast.MapType:
				if !strings.HasPrefix(name, "consumer") {
					t.Errorf("%s: a map, whose order is not the same twice", fset.Position(n.Pos()))
				}
			case *ast.RangeStmt:
				// Consumer groups look things up in maps. They walk them by sorted keys alone.
				if x, ok := n.X.(*ast.SelectorExpr); ok && strings.HasPrefix(name, "consumer") && slices.Contains(consumerMaps, x.Sel.Name) {
					t.Errorf("%s: %s is walked in an order that is not the same twice", fset.Position(n.Pos()), x.Sel.Name)
				}
			case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt, *ast.ChanType, *ast.DeferStmt:
				t.Errorf("%s: %T", fset.Position(n.Pos()), n)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains([]string{"Duration", "Nanosecond", "Millisecond", "Second", "Minute", "Hour"}, n.Sel.Name) {
					t.Errorf("%s: time.%s", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}
