// Command bench measures millrace beside Apache Kafka on this machine: both
// brokers run on loopback, the rounds of every measurement interleave, and what
// is printed are medians and ratios, since absolute figures of a shared machine
// say little. It is what `just peer-bench` runs.
//
// The load comes from `millrace bench` in a process of its own, so that a
// broker's CPU time and memory are those of the broker alone. Files: the brokers
// in system.go, what is measured in cells.go, what must hold in goals.go, the
// tables in report.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	rounds  int
	seconds float64
	quick   bool
	only    *regexp.Regexp
	out     string
	binary  string
	dir     string
	limit   time.Duration
}

func main() {
	var o options
	only := flag.String("only", "", "measure only the rows whose name this `REGEX` finds; no file is written")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds of every measurement (default 3)")
	flag.Float64Var(&o.seconds, "seconds", 0, "length of one measurement (default 1.2)")
	flag.BoolVar(&o.quick, "quick", false, "the rows that the goals speak of, in about five minutes")
	flag.StringVar(&o.out, "out", "integration/peer/RESULTS.md", "markdown `FILE` to write; empty for none")
	flag.StringVar(&o.binary, "millrace", "", "the millrace `BINARY` to measure (default: build the tree)")
	flag.StringVar(&o.dir, "dir", "", "where both brokers keep their data (default: a temporary directory)")
	flag.DurationVar(&o.limit, "limit", 25*time.Minute, "begin no round that would end after this time")
	flag.Parse()
	if *only != "" {
		o.only = regexp.MustCompile(*only)
		outSet := false
		flag.Visit(func(f *flag.Flag) { outSet = outSet || f.Name == "out" })
		if !outSet {
			o.out = ""
		}
	}
	if o.rounds == 0 {
		o.rounds = 3
	}
	if o.seconds == 0 {
		o.seconds = 1.2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "peer-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "millrace-peer-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dir = dir
	}
	if o.binary == "" {
		o.binary = filepath.Join(o.dir, "millrace")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", o.binary, "./cmd/millrace")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build millrace: %w\n%s", err, out)
		}
	}
	began := time.Now()
	r := &results{options: o, began: began, values: map[key][]float64{}}
	b := &bench{options: o, results: r}
	defer b.close()
	if err := b.startAndIdle(ctx); err != nil {
		return err
	}
	if err := b.warm(ctx); err != nil {
		return err
	}
	for round := range o.rounds {
		roundBegan := time.Now()
		for _, c := range b.cells() {
			if err := b.measure(ctx, c, round); err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, c.name, err)
			}
		}
		r.rounds = round + 1
		say("round %d of %d done after %s", round+1, o.rounds, time.Since(began).Round(time.Second))
		if time.Since(began)+time.Since(roundBegan) > o.limit {
			say("no time for another round in %s", o.limit)
			break
		}
	}
	for i, s := range b.systems {
		peak, err := s.memory("VmHWM")
		if err != nil {
			return err
		}
		r.add("memory under load", variantOf(i), "MiB", peak)
	}
	text := r.markdown()
	fmt.Print(text)
	if o.out != "" {
		return os.WriteFile(o.out, []byte(text), 0o644)
	}
	return nil
}

// say tells on stderr how far things are.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, strings.TrimSuffix(format, "\n")+"\n", args...)
}
