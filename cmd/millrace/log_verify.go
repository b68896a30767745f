package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/vfs"
)

func logVerifyCommand() *cli.Command {
	return &cli.Command{
		Name:      "verify",
		Usage:     "read every byte of a data directory and say what is wrong; exit code 5 when something is",
		ArgsUsage: "DIR",
		Description: "Nothing is written. While a broker runs on the directory, what it is just writing may look unfinished.\n" +
			"After a crash, damage that the next start mends by itself is a warning.",
		Action: runLogVerify,
	}
}

func runLogVerify(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(log.DirReport{}) {
		return nil
	}
	if c.Args().Len() != 1 {
		f := usageError("verify takes one data directory", "millrace log verify DATA")
		f.why = fmt.Sprintf("%d were named", c.Args().Len())
		return f
	}
	dir := c.Args().First()
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("it is a file; millrace log dump prints files")
	}
	if err != nil {
		f := usageError("cannot verify "+dir, "name the directory that --data or log.dirs has")
		f.why, f.cause = reasonOf(err), err
		return f
	}
	bar := e.newProgress("verifying", directoryBytes(dir))
	report, err := log.VerifyDir(vfs.OS(), dir, func(p log.PartitionReport) { bar.add(p.SizeBytes) })
	bar.finish()
	if err != nil {
		return &failure{code: exitFailed, what: "cannot verify " + dir, why: oneLine(err.Error()), fix: "name a data directory that this user can read", cause: err}
	}
	if err := e.emit(result{value: report, text: func(w io.Writer, wide bool) { writeReport(w, report, wide, e.stdoutWidth()) }}); err != nil {
		return err
	}
	if report.Worst() == log.SeverityError {
		return silent(exitCondition)
	}
	return nil
}

// directoryBytes is the size of the segments in a data directory, for the bar.
func directoryBytes(dir string) int64 {
	segments, err := filepath.Glob(filepath.Join(dir, "*", "*.log"))
	if err != nil {
		return 0
	}
	sum := int64(0)
	for _, s := range segments {
		if info, err := os.Stat(s); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

func writeReport(w io.Writer, report log.DirReport, wide bool, width int) {
	var rows [][]any
	for _, p := range report.Partitions {
		rows = append(rows, []any{p.Topic, p.Partition, p.StartOffset, p.EndOffset, p.Segments, p.Batches, p.Records, p.SizeBytes, verdict(p.Findings), p.TopicID})
	}
	writeTable(w, columns("TOPIC", "PARTITION#", "LOG-START-OFFSET#", "LOG-END-OFFSET#", "SEGMENTS#", "BATCHES#", "RECORDS#", "BYTES#", "VERDICT", "+TOPIC-ID"), rows, wide, width)
	findings := append([]log.Finding{}, report.Findings...)
	for _, p := range report.Partitions {
		findings = append(findings, p.Findings...)
	}
	for i, f := range findings {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s: %s: %s\n", f.Severity, f.File, f.Message)
	}
	stop := "stopped clean"
	if !report.CleanStop {
		stop = "not stopped clean, or in use"
	}
	fmt.Fprintf(w, "\n%s: %s, %s, write-ahead log with %s, %s\n", report.Directory, stop, count(len(report.Partitions), "partition"), count(report.WALRecords, "record run"), verdict(findings))
}

// verdict is the worst of the findings in a word.
func verdict(findings []log.Finding) string {
	word := "OK"
	for _, f := range findings {
		switch f.Severity {
		case log.SeverityError:
			return "DAMAGED"
		case log.SeverityWarning:
			word = "WARNING"
		}
	}
	return word
}
