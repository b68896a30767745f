// Command bench measures millrace beside Apache Kafka on this machine: both
// run on loopback, the rounds of every measurement interleave, and what is
// printed are medians and ratios, since absolute figures of a shared machine
// say little. It is what `just peer-bench` runs.
//
// There are two sets of rows: one broker beside one, and three beside three.
// The load comes from `millrace bench` in a process of its own, so that the
// brokers' CPU time and memory are theirs alone. Files: the brokers in
// system.go, what is measured in cells.go, three.go, txn.go and kill.go, what must
// hold in goals.go, values of earlier rounds in keep.go, the tables in report.go.
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
	rounds  int // to measure
	seconds float64
	quick   bool
	sets    []int // numbers of brokers
	only    *regexp.Regexp
	out     string
	keep    string
	binary  string
	dir     string
	limit   time.Duration
}

func main() {
	var o options
	only := flag.String("only", "", "measure only the rows whose name this `REGEX` finds; no file is written")
	brokers := flag.Int("brokers", 0, "the set of rows: 1 for one broker beside one, 3 for three beside three (default both)")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds of every measurement")
	flag.Float64Var(&o.seconds, "seconds", 1.2, "length of one measurement")
	flag.BoolVar(&o.quick, "quick", false, "the rows that the goals speak of: about five minutes for one broker, three a round for three")
	flag.StringVar(&o.out, "out", "integration/peer/RESULTS.md", "markdown `FILE` whose tables of the measured sets are written anew; empty for none")
	flag.StringVar(&o.keep, "keep", "", "`FILE` of values of earlier rounds: they count too, and the new ones are added, so that rounds can be run one by one")
	flag.StringVar(&o.binary, "millrace", "", "the millrace `BINARY` to measure (default: build the tree)")
	flag.StringVar(&o.dir, "dir", "", "where the brokers keep their data (default: a temporary directory)")
	flag.DurationVar(&o.limit, "limit", 25*time.Minute, "begin no round of a set that would end after this time")
	flag.Parse()
	switch *brokers {
	case 0:
		o.sets = []int{1, 3}
	case 1, 3:
		o.sets = []int{*brokers}
	default:
		fmt.Fprintln(os.Stderr, "peer-bench: --brokers is 1 or 3")
		os.Exit(2)
	}
	if *only != "" {
		o.only = regexp.MustCompile(*only)
		outSet := false
		flag.Visit(func(f *flag.Flag) { outSet = outSet || f.Name == "out" })
		if !outSet {
			o.out = ""
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "peer-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp(o.dir, "millrace-peer-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.dir = dir
	if o.binary == "" {
		o.binary = filepath.Join(o.dir, "millrace")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", o.binary, "./cmd/millrace")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build millrace: %w\n%s", err, out)
		}
	}
	for _, brokers := range o.sets {
		if err := runSet(ctx, o, brokers); err != nil {
			return fmt.Errorf("%d brokers: %w", brokers, err)
		}
	}
	return nil
}

// runSet measures one set of rows, prints it and writes it to the file.
func runSet(ctx context.Context, o options, brokers int) error {
	began := time.Now()
	r := &results{options: o, brokers: brokers, began: began, values: map[key][]float64{}}
	if err := r.load(); err != nil {
		return err
	}
	b := &bench{options: o, brokers: brokers, results: r}
	defer b.close()
	round := b.roundOfThree
	if brokers == 1 {
		if err := b.startAndIdle(ctx); err != nil {
			return err
		}
		if err := b.warm(ctx); err != nil {
			return err
		}
		round = b.roundOfOne
	}
	earlier := r.rounds()
	for i := range o.rounds {
		roundBegan := time.Now()
		if err := round(ctx, earlier+i); err != nil {
			return fmt.Errorf("round %d, %w", earlier+i+1, err)
		}
		say("round %d of %d done after %s", i+1, o.rounds, time.Since(began).Round(time.Second))
		if brokers > 1 { // a round there is complete in itself
			if err := r.save(); err != nil {
				return err
			}
		}
		if time.Since(began)+time.Since(roundBegan) > o.limit {
			say("no time for another round in %s", o.limit)
			break
		}
	}
	if brokers == 1 {
		if err := b.peaks(); err != nil {
			return err
		}
		if err := r.save(); err != nil {
			return err
		}
	}
	text := r.markdown()
	fmt.Print(text)
	if o.out == "" {
		return nil
	}
	return writeSet(o.out, brokers, text)
}

// say tells on stderr how far things are, with the seconds since the beginning.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs "+strings.TrimSuffix(format, "\n")+"\n", append([]any{time.Since(processBegan).Seconds()}, args...)...)
}

var processBegan = time.Now()
