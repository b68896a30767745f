package kafka

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Trap: a kmsg struct made by literal has zeros where the protocol's defaults are
// -1, and with its tagged fields they go out: a fetch answer would tell consumers
// to truncate to offset 0. Structs come from NewX, NewPtrX, Default or
// ResponseKind. Slices of them (make) are filled with such values.
func TestNoKmsgLiterals(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if sel := kmsgType(n.Type); sel != "" && sel != "Tags" {
					t.Errorf("%s: kmsg.%s made by literal", set.Position(n.Pos()), sel)
				}
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && fn.Name == "new" && len(n.Args) == 1 && kmsgType(n.Args[0]) != "" {
					t.Errorf("%s: kmsg.%s made by new", set.Position(n.Pos()), kmsgType(n.Args[0]))
				}
			}
			return true
		})
	}
}

func kmsgType(e ast.Expr) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "kmsg" {
		return ""
	}
	return sel.Sel.Name
}

// One handler file per API key, numbered, opening with its versions.
func TestHandlerFiles(t *testing.T) {
	numbered := map[string]bool{}
	files, err := filepath.Glob("[0-9][0-9]_*.go")
	require.NoError(t, err)
	for _, file := range files {
		numbered[file[:2]] = true
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Regexp(t, regexp.MustCompile(`\n// \w+ \(key \d+\), versions? \d`), string(text), "%s does not open with its versions", file)
	}
	for _, a := range table() {
		require.True(t, numbered[string([]byte{byte('0' + a.key/10), byte('0' + a.key%10)})], "no file for %s", a.name)
	}
}
