package main

import (
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/millrace/millrace/integration/check"
)

// row is the result of one run.
type row struct {
	scenario *scenario
	seed     uint64
	faults   int
	report   *check.Report // nil: the run broke off
	failures []string
	skipped  []string
	notes    []string // what the scenario has to say beside the checker
	took     time.Duration
	dir      string
}

func (w *row) ok() bool { return w.report != nil && w.report.OK() && len(w.failures) == 0 }

// print says how the run ended.
func (w *row) print(out io.Writer) {
	if w.ok() {
		fmt.Fprintf(out, "%s passed in %s: %s\n", w.scenario.name, w.took.Round(time.Second), w.report)
	} else {
		fmt.Fprintf(out, "%s FAILED after %s: seed %d, history and output of the brokers in %s\n", w.scenario.name, w.took.Round(time.Second), w.seed, w.dir)
		for _, f := range w.failures {
			fmt.Fprintf(out, "  %s\n", f)
		}
		if w.report != nil {
			fmt.Fprintf(out, "  %s\n", w.report)
		}
	}
	if w.report != nil {
		for _, f := range w.report.Faults {
			fmt.Fprintf(out, "    %7.1f s  %-80s longest gap %6s\n", f.Begin.Seconds(), f.Fault, f.LongestGap.Round(time.Millisecond))
		}
	}
	for _, n := range w.notes {
		fmt.Fprintf(out, "  %s\n", n)
	}
	for _, s := range w.skipped {
		fmt.Fprintf(out, "  left out: %s\n", s)
	}
}

// results collects the rows.
type results struct {
	rows   []row
	failed int
}

func (t *results) add(w row) {
	t.rows = append(t.rows, w)
	if !w.ok() {
		t.failed++
	}
}

// print writes the table of what was survived.
func (t *results) print(out io.Writer) {
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"scenario", "seed", "faults", "operations", "acknowledged", "lost", "duplicates", "longest gap", "result"})
	w.SetColumnConfigs([]table.ColumnConfig{{Number: 3, Align: text.AlignRight}})
	for _, r := range t.rows {
		if r.report == nil {
			w.AppendRow(table.Row{r.scenario.name, r.seed, r.faults, "", "", "", "", "", "broke off"})
			continue
		}
		c := r.report.Counts
		result := "passed"
		if !r.ok() {
			result = "FAILED"
		} else if len(r.skipped) > 0 {
			result = "passed in part"
		}
		w.AppendRow(table.Row{
			r.scenario.name, r.seed, r.faults, r.report.Sent + r.report.Polled, r.report.Acknowledged, c[check.LostWrite] + c[check.Unseen], c[check.Duplicate],
			r.report.LongestGap.Round(time.Millisecond), result,
		})
	}
	fmt.Fprintln(out, w.Render())
	fmt.Fprintf(out, "%d passed, %d failed\n", len(t.rows)-t.failed, t.failed)
}
