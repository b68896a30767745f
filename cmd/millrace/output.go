package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"go.yaml.in/yaml/v3"

	"github.com/millrace/millrace/transport/console"
)

// outputFormats are the values of --format.
var outputFormats = []string{"table", "wide", "json", "yaml", "help"}

// column is one column of a table; wide ones are shown with --format wide only. Numbers stand to the right.
type column struct {
	name  string
	wide  bool
	right bool
}

// columns makes columns from their names: a leading "+" marks a wide one, a trailing "#" a number.
func columns(names ...string) []column {
	cols := make([]column, len(names))
	for i, n := range names {
		cols[i].wide = strings.HasPrefix(n, "+")
		cols[i].right = strings.HasSuffix(n, "#")
		cols[i].name = strings.TrimSuffix(strings.TrimPrefix(n, "+"), "#")
	}
	return cols
}

// writeTable prints rows under headers in capitals, two spaces between columns, nothing around them: the form that
// kafka-* tools and kubectl share, and that awk reads. width > 0 cuts lines to a terminal's width.
func writeTable(w io.Writer, cols []column, rows [][]any, wide bool, width int) {
	t := table.NewWriter()
	t.SetOutputMirror(nil)
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	if width > 0 {
		t.SetAllowedRowLength(width)
	}
	var header table.Row
	var configs []table.ColumnConfig
	var keep []int
	for i, c := range cols {
		if c.wide && !wide {
			continue
		}
		keep = append(keep, i)
		header = append(header, c.name)
		align := text.AlignLeft
		if c.right {
			align = text.AlignRight
		}
		configs = append(configs, table.ColumnConfig{Number: len(keep), Align: align, AlignHeader: align})
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(header)
	for _, r := range rows {
		var row table.Row
		for _, i := range keep {
			row = append(row, cell(r[i]))
		}
		t.AppendRow(row)
	}
	for line := range strings.SplitSeq(t.Render(), "\n") {
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// cell is how a value stands in a table: in one line, whatever is in it.
func cell(v any) any {
	switch v := v.(type) {
	case []int32:
		return joinInts(v)
	case nil:
		return "-"
	case string:
		if v == "" {
			return "-"
		}
		return console.Printable(v)
	}
	return v
}

// joinInts prints broker ids as Kafka's tools do: 1,2,3; "-" for none.
func joinInts(ids []int32) string {
	if len(ids) == 0 {
		return "-"
	}
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, id)
	}
	return b.String()
}

// writeJSON prints one document, two spaces deep. Text stays as it is: no <.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(notNil(v))
}

// notNil turns a nil slice into an empty one: a list that is empty is [], never null.
func notNil(v any) any {
	r := reflect.ValueOf(v)
	if r.Kind() == reflect.Slice && r.IsNil() {
		return reflect.MakeSlice(r.Type(), 0, 0).Interface()
	}
	return v
}

// writeYAML prints the same document as YAML, fields in the same order.
func writeYAML(w io.Writer, v any) error {
	var b bytes.Buffer
	if err := writeJSON(&b, v); err != nil {
		return err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(b.Bytes(), &node); err != nil {
		return fmt.Errorf("turn JSON into YAML: %w", err)
	}
	blockStyle(&node)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&node); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return e.Close()
}

// blockStyle takes off the flow style and the quotes that JSON brought; the encoder quotes again what needs it.
func blockStyle(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0
	} else {
		n.Style &^= yaml.FlowStyle
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}

// writeFields prints the fields of the JSON form of v (a struct, or a slice of structs): what --format help shows.
func writeFields(w io.Writer, v any) {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Slice {
		fmt.Fprintln(w, "a list; each item has:")
		t = t.Elem()
	}
	var rows [][]any
	fieldsOf(t, "", &rows)
	writeTable(w, columns("FIELD", "TYPE", "MEANING"), rows, false, 0)
}

func fieldsOf(t reflect.Type, prefix string, rows *[][]any) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			fieldsOf(f.Type, prefix, rows) // its fields are the outer one's, as in JSON
			continue
		}
		if name == "-" || name == "" {
			continue
		}
		meaning := f.Tag.Get("doc")
		if strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero") {
			meaning += " (left out when there is none)"
		}
		ft, list := f.Type, ""
		for ft.Kind() == reflect.Pointer || ft.Kind() == reflect.Slice && ft.Elem().Kind() != reflect.Uint8 {
			if ft.Kind() == reflect.Slice {
				list += "list of "
			} else if list == "" && ft.Elem().Kind() != reflect.Struct {
				list += "null or "
			}
			ft = ft.Elem()
		}
		kind := map[reflect.Kind]string{
			reflect.String: "string", reflect.Bool: "true or false", reflect.Struct: "object", reflect.Map: "object", reflect.Float64: "number",
		}[ft.Kind()]
		switch {
		case ft == reflect.TypeFor[time.Time]():
			kind = "time"
		case kind == "":
			kind = "integer"
		}
		*rows = append(*rows, []any{prefix + name, list + kind, meaning})
		if kind == "object" && ft.Kind() == reflect.Struct {
			fieldsOf(ft, prefix+name+".", rows)
		}
	}
}

// result is what a command prints: a document for machines and a table for people.
type result struct {
	value any // a struct or a slice of structs, with json and doc tags
	cols  []column
	rows  [][]any
	// text, when not nil, prints the table form instead of cols and rows.
	text func(w io.Writer, wide bool)
}

// emit prints r in the format that was asked for.
func (e *env) emit(r result) error {
	switch e.format {
	case "json":
		return writeJSON(e.stdout, r.value)
	case "yaml":
		return writeYAML(e.stdout, r.value)
	}
	wide := e.format == "wide"
	if r.text != nil {
		r.text(e.stdout, wide)
		return nil
	}
	writeTable(e.stdout, r.cols, r.rows, wide, e.stdoutWidth())
	return nil
}

// wantsFields prints the fields of v when --format help was given, and says whether it did.
func (e *env) wantsFields(v any) bool {
	if e.format != "help" {
		return false
	}
	writeFields(e.stdout, v)
	return true
}

func checkFormat(format string) error {
	if slices.Contains(outputFormats, format) {
		return nil
	}
	f := usageError(fmt.Sprintf("unknown output format %q", format), "--format table")
	f.why = "--format is one of " + strings.Join(outputFormats, ", ")
	return f
}

// writeJSONLine prints one document on one line, as streams do.
func writeJSONLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
