package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Lines of the output of brokers and programs that tell of trouble: those of a Go program that fell, and what loggers and Java print.
var (
	fell    = regexp.MustCompile(`^(panic:|fatal error:|SIGSEGV|unexpected fault)`)
	trouble = regexp.MustCompile(`"level":"ERROR"|\bERROR\b|\bFATAL\b|Exception|OutOfMemoryError`)
)

// lastErrors returns at most n lines of trouble from the outputs (*.log) below a folder, the last one of each: first those of brokers that
// fell, then those of the outputs written last. They are a hint, and no judgement: what is killed complains.
func lastErrors(dir string, n int) (lines []string) {
	type found struct {
		file, line string
		fell       bool
		written    int64
	}
	var all []found
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".log" {
			return nil // what cannot be read tells nothing
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		if line, hard := lastTrouble(path); line != "" {
			all = append(all, found{strings.TrimSuffix(entry.Name(), ".log"), line, hard, info.ModTime().UnixNano()})
		}
		return nil
	})
	slices.SortFunc(all, func(a, b found) int {
		if a.fell != b.fell {
			if a.fell {
				return -1
			}
			return 1
		}
		return int(b.written/1e6 - a.written/1e6)
	})
	for _, f := range all[:min(n, len(all))] {
		lines = append(lines, fmt.Sprintf("%s said: %.*s", f.file, widthOfAnError, f.line))
	}
	return lines
}

// lastTrouble returns the last line of trouble of a file, or the first by which a Go program says that it fell; "" without.
func lastTrouble(path string) (line string, hard bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		switch text := scan.Text(); {
		case fell.MatchString(text):
			return text, true
		case trouble.MatchString(text):
			line = text
		}
	}
	return line, false
}
