package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	system, only, binary, dir string
	length                    time.Duration
	instances, copiers        int
	seed                      uint64
	old                       bool // clients of the first protocol
	assigned                  bool // copiers with a partition each, without a group
	vary                      bool
}

// proofs are what can be run, in this order.
var proofs = []struct {
	name string
	run  func(ctx context.Context, o options, s *system, j *java, dir string) (verdict, error)
}{{"streams", streams}, {"copier", copier}}

func main() {
	var o options
	flag.StringVar(&o.system, "system", "millrace", "whose brokers: millrace, or kafka to see that the proofs themselves are right")
	flag.StringVar(&o.only, "only", "", "run one proof: streams or copier")
	flag.StringVar(&o.binary, "millrace", "", "the millrace `BINARY` to run (default: build the tree)")
	flag.StringVar(&o.dir, "keep", filepath.Join(os.TempDir(), "millrace-exactly-once"), "`FOLDER` of data and output, emptied first; it stays when something failed")
	flag.DurationVar(&o.length, "length", time.Minute, "how long brokers and programs are killed, for each proof")
	flag.IntVar(&o.instances, "instances", 2, "`N` instances of the word count")
	flag.IntVar(&o.copiers, "copiers", 3, "`N` copiers")
	flag.BoolVar(&o.old, "old", false, "run the programs with Kafka's clients of release "+oldClients+", which have the first protocol of transactions only")
	flag.BoolVar(&o.assigned, "assigned", false, "copiers that are assigned a partition each, and are no members of a group; -copiers is of no matter then")
	flag.BoolVar(&o.vary, "vary", false, "have the seed decide about -old and -assigned")
	flag.Uint64Var(&o.seed, "seed", 0, "of what is decided by chance; 0: by chance, too")
	flag.Parse()
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	if o.vary {
		o.old, o.assigned = o.seed&1 != 0, o.seed&2 != 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "exactlyonce:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.instances < 1 || o.copiers < 1 || o.length <= 0 {
		return errors.New("there is nothing to run without an instance, a copier and a time")
	}
	if err := errors.Join(os.RemoveAll(o.dir), os.MkdirAll(o.dir, 0o755)); err != nil {
		return err
	}
	j, err := openJava(ctx, o.old)
	if err != nil {
		return err
	}
	if o.system == "millrace" && o.binary == "" {
		o.binary = filepath.Join(o.dir, "binary")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "github.com/millrace/millrace/cmd/millrace")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build millrace: %w\n%s", err, out)
		}
	}
	say("%s, seed %d (old clients: %t, assigned partitions: %t), %s of faults for each proof", o.system, o.seed, o.old, o.assigned, o.length)
	s, err := openSystem(ctx, o, o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	failed, ran := 0, 0
	for _, p := range proofs {
		if o.only != "" && o.only != p.name {
			continue
		}
		ran++
		began := time.Now()
		dir := filepath.Join(o.dir, p.name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		v, err := p.run(ctx, o, s, j, dir)
		if err != nil {
			return fmt.Errorf("%s: %w (what was printed is in %s)", p.name, err, dir)
		}
		v.print(time.Since(began))
		if len(v.failures) > 0 {
			failed++
		}
	}
	if ran == 0 {
		return fmt.Errorf("no proof %q: streams or copier", o.only)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d proofs failed; what was printed is in %s", failed, ran, o.dir)
	}
	return os.RemoveAll(o.dir)
}

// verdict is what came of a proof.
type verdict struct {
	name              string
	brokers, programs int // killed
	remarks, failures []string
}

func (v *verdict) complain(format string, args ...any) {
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

func (v *verdict) remark(format string, args ...any) {
	v.remarks = append(v.remarks, fmt.Sprintf(format, args...))
}

// Bounds of the end of a proof: how long the work may still take after the last fault, and until no transaction is open. A transaction of
// a program that was killed is aborted after its timeout, ten seconds, and the interval in which that is looked for.
const (
	untilDone = 2 * time.Minute
	untilFree = time.Minute
)

// expect waits until count has come to n. More than n is for the judges.
func (v *verdict) expect(ctx context.Context, count *atomic.Int64, n int, what string) {
	ctx, cancel := context.WithTimeout(ctx, untilDone)
	defer cancel()
	if poll(ctx, func() error {
		if count.Load() < int64(n) {
			return errors.New("not yet")
		}
		return nil
	}) != nil {
		v.complain("%d of %d %s within %s of the last fault", count.Load(), n, what, untilDone)
	}
}

// read waits until no transaction holds a topic back, reads it whole at both isolation levels, and has what is committed judged.
func (v *verdict) read(ctx context.Context, s *system, topic string, judge func(committed reading) []string) {
	wait, cancel := context.WithTimeout(ctx, untilFree)
	defer cancel()
	if err := s.untilFree(wait, topic); err != nil {
		v.complain("%v", err)
	}
	committed, err := s.read(ctx, topic, true)
	if err != nil {
		v.complain("%v", err)
		return
	}
	v.failures = append(v.failures, judge(committed)...)
	all, err := s.read(ctx, topic, false)
	if err != nil {
		v.complain("%v", err)
		return
	}
	if aborted := all.records() - committed.records(); aborted > 0 {
		v.remark("%s has %d records of aborted transactions beside %d", topic, aborted, committed.records())
	}
}

// offsets sees that the group has committed the end of each partition: the offsets came with the copies.
func (v *verdict) offsets(ctx context.Context, s *system, group, topic string) {
	ctx, cancel := context.WithTimeout(ctx, untilFree)
	defer cancel()
	ends, err := s.ends(ctx, true, topic)
	if err != nil {
		v.complain("%v", err)
		return
	}
	committed, err := s.adm.FetchOffsets(ctx, group)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		v.complain("ask for the offsets of group %s: %v", group, err)
		return
	}
	for partition, end := range ends[topic] {
		at, _ := committed.Lookup(topic, partition)
		if at.At != end.Offset {
			v.complain("group %s has committed offset %d of %s-%d, which ends at %d", group, at.At, topic, partition, end.Offset)
		}
	}
}

func (v *verdict) print(took time.Duration) {
	state := "ok"
	if len(v.failures) > 0 {
		state = "FAILED"
	}
	fmt.Printf("%s: %s in %s, %d brokers and %d programs killed; %s\n", v.name, state, took.Round(time.Second), v.brokers, v.programs, strings.Join(v.remarks, "; "))
	for _, f := range v.failures {
		fmt.Println("  " + f)
	}
}

var processBegan = time.Now()

// say tells on stderr how far things are, with the seconds since the beginning.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs "+format+"\n", append([]any{time.Since(processBegan).Seconds()}, args...)...)
}
