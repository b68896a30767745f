package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/millrace/millrace"

// mayImport is the import order of the architecture: a package may import the
// packages listed and nothing else of ours. Calls go down, news comes up
// through metadata.Image or a callback. Think hard before adding an arrow.
var mayImport = map[string][]string{
	"log/vfs":             {},
	"log/record":          {},
	"log":                 {"log/vfs", "log/record"},
	"metadata/membership": {},
	"metadata/metadatapb": {},
	"metadata/raftlog":    {},
	"metadata":            {"metadata/membership", "metadata/metadatapb", "metadata/raftlog"},
	"replication":         {"metadata", "log", "log/record", "log/vfs"},
	"group/drive":         {"metadata"},
	"group":               {"group/drive", "metadata"},
	"group/txn":           {"group/drive", "metadata", "group"},
	"transport":           {},
	"transport/kafka":     {"transport", "group", "group/txn", "replication", "metadata", "log", "log/record"},
	// A follower is a Kafka client of its leader: it reads and writes Fetch where the broker does.
	"transport/peer":    {"transport", "transport/kafka", "group", "group/txn", "replication", "metadata", "metadata/membership", "log", "log/record"},
	"transport/console": {"group", "group/txn", "replication", "metadata", "log"},
	"cmd/broker":        {"transport", "transport/kafka", "transport/peer", "transport/console", "group", "group/txn", "replication", "metadata", "metadata/membership", "log", "log/record", "log/vfs"},
	"cmd/replay":        {"log/record"},
	// The CLI speaks Kafka to a broker; it knows the broker only to run one,
	// the log only to read its files offline, and the console for the documents
	// of the admin API.
	"cmd/millrace": {"cmd/broker", "transport/console", "cmd/replay", "metadata", "log", "log/record", "log/vfs"},
}

// topLevel is everything that may stand at the top of the repository.
var topLevel = []string{
	"cmd", "group", "integration", "log", "metadata", "replication", "transport",
	"go.mod", "go.sum", "Justfile", "README.md", "LICENSE", "CHANGELOG.md",
}

// vagueNames say nothing about what a package owns.
var vagueNames = []string{"util", "utils", "common", "helpers", "helper", "structs", "types", "misc", "shared", "base"}

// bannedImports are kept out of the packages named by a prefix of their folder
// ("" is everywhere), with the reason a reader deserves.
var bannedImports = []struct {
	folder, path, reason string
	tests                bool // in tests too
}{
	{"", "log", "the word is ours; log through an injected *slog.Logger", true},
	{"", "io/ioutil", "replaced by io and os", true},
	{"log", "os", "files are reached through log/vfs, so that the crash model sees every operation", false},
	{"replication", "os", "files are reached through log/vfs", false},
	{"replication", "net", "peers are an interface that transport implements", false},
	{"metadata", "net/http", "no web server below transport", false},
}

// sourceFile is one parsed Go file of the module.
type sourceFile struct {
	folder string // slash separated, relative to the module; "" is the top
	name   string
	ast    *ast.File
}

func (f sourceFile) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// sources parses every Go file in-process: asking `go list` would let `go test`
// answer from its cache after a violation was added.
func sources(t *testing.T) []sourceFile {
	t.Helper()
	root := ".."
	var files []sourceFile
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != root && (strings.HasPrefix(name, ".") || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return fmt.Errorf("parse %s: %w", p, err)
		}
		folder, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		files = append(files, sourceFile{folder: strings.TrimPrefix(filepath.ToSlash(folder), "."), name: name, ast: parsed})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d Go files found from %s: the walk is broken", len(files), root)
	}
	return files
}

func TestImportOrder(t *testing.T) {
	for _, f := range sources(t) {
		if f.folder == "integration" || strings.HasPrefix(f.folder, "integration/") {
			continue
		}
		allowed, known := mayImport[f.folder]
		if !known {
			t.Errorf("%s/%s: the package %q is not on the map: give it a place in mayImport and in the README, or move the file", f.folder, f.name, f.folder)
			continue
		}
		for _, violation := range importViolations(f, allowed) {
			t.Error(violation)
		}
	}
}

// importViolations lists what one file imports against the map.
func importViolations(f sourceFile, allowed []string) []string {
	var out []string
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			out = append(out, fmt.Sprintf("%s/%s: import %s: %v", f.folder, f.name, spec.Path.Value, err))
			continue
		}
		for _, ban := range bannedImports {
			if p == ban.path && under(f.folder, ban.folder) && f.folder != "log/vfs" && (ban.tests || !f.isTest()) {
				out = append(out, fmt.Sprintf("%s/%s imports %q: %s", f.folder, f.name, p, ban.reason))
			}
		}
		ours, found := strings.CutPrefix(p, module+"/")
		if !found || ours == f.folder {
			continue
		}
		// Tests above the storage may build their broker on the in-memory disk.
		if f.isTest() && (ours == "log/vfs" || ours == "log/record" || ours == "cmd/broker") {
			continue
		}
		if !slices.Contains(allowed, ours) {
			out = append(out, fmt.Sprintf("%s/%s imports %s: %q may import only %v", f.folder, f.name, ours, f.folder, allowed))
		}
	}
	return out
}

func under(folder, prefix string) bool {
	return prefix == "" || folder == prefix || strings.HasPrefix(folder, prefix+"/")
}

// TestImportOrderSees makes sure that the check above can fail.
func TestImportOrderSees(t *testing.T) {
	check := func(folder, imports string, want int) {
		t.Helper()
		parsed, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nimport (\n"+imports+"\n)\n", parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		got := importViolations(sourceFile{folder: folder, name: "x.go", ast: parsed}, mayImport[folder])
		if len(got) != want {
			t.Errorf("%s importing %s: %d violations %v, want %d", folder, imports, len(got), got, want)
		}
	}
	check("log", `"`+module+`/metadata"`, 1)
	check("metadata", `"`+module+`/log"`, 1)
	check("replication", `"`+module+`/group"`, 1)
	check("replication", `"`+module+`/log"`, 0)
	check("log", `"log"; "os"`, 2)
	check("transport/kafka", `"log"`, 1)
	check("cmd/broker", `"os"`, 0)
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range sources(t) {
		if f.isTest() {
			continue
		}
		if f.ast.Doc != nil && len(strings.Fields(f.ast.Doc.Text())) >= 8 {
			documented[f.folder] = true
		} else if !documented[f.folder] {
			documented[f.folder] = false
		}
		for _, vague := range vagueNames {
			if path.Base(f.folder) == vague {
				t.Errorf("package %s: the name says nothing about what it owns", f.folder)
			}
		}
	}
	for folder, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment: what it owns, its invariants, who calls it", folder)
		}
	}
}

func TestNoSleepInTests(t *testing.T) {
	for _, f := range sources(t) {
		if !f.isTest() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && sel.Sel.Name == "Sleep" && !sleepsInBubble(f) {
				t.Errorf("%s/%s sleeps: wait on a condition or use testing/synctest", f.folder, f.name)
			}
			return true
		})
	}
}

// sleepsInBubble tells whether a test file uses fake time, in which a sleep
// costs nothing and is exact.
func sleepsInBubble(f sourceFile) bool {
	for _, spec := range f.ast.Imports {
		if spec.Path.Value == `"testing/synctest"` {
			return true
		}
	}
	return false
}

// TestOnlyTheErrorMapKnowsCodes keeps Kafka's error numbers in one file (D18).
func TestOnlyTheErrorMapKnowsCodes(t *testing.T) {
	for _, f := range sources(t) {
		if f.isTest() || !strings.HasPrefix(f.folder, "transport") && !strings.HasPrefix(f.folder, "cmd/broker") && f.folder != "replication" && f.folder != "metadata" && !under(f.folder, "log") {
			continue
		}
		if f.folder == "transport/kafka" && f.name == "errors.go" {
			continue
		}
		for _, spec := range f.ast.Imports {
			if strings.HasSuffix(strings.Trim(spec.Path.Value, `"`), "/franz-go/pkg/kerr") {
				t.Errorf("%s/%s imports kerr: error codes belong to transport/kafka/errors.go", f.folder, f.name)
			}
		}
	}
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(topLevel, e.Name()) && !ignoredAtTop(e.Name()) {
			t.Errorf("%s does not belong at the top of the repository; it holds %v", e.Name(), topLevel)
		}
	}
}

// ignoredAtTop are the build products that .gitignore names.
func ignoredAtTop(name string) bool {
	return name == "millrace" || name == "dist" || name == "millrace-data" ||
		strings.HasSuffix(name, ".test") || strings.HasSuffix(name, ".out") || strings.HasSuffix(name, ".prof")
}
