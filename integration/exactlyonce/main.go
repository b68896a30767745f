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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/integration/peer"
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
	prepare                   bool // fetch and compile only
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
	flag.BoolVar(&o.prepare, "prepare", false, "only fetch and compile what any of the proofs needs, so that a bound of their time has no download in it")
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
	do := run
	if o.prepare {
		do = prepare
	}
	if err := do(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "exactlyonce:", err)
		stop()
		os.Exit(1)
	}
}

// prepare fills the cache with the libraries of both releases, and with those of the brokers that we are compared with elsewhere.
func prepare(ctx context.Context, _ options) error {
	for _, old := range []bool{false, true} {
		if _, err := openJava(ctx, old); err != nil {
			return err
		}
		say("the programs are there (old clients: %t)", old)
	}
	if _, err := peer.Classpath(); err != nil {
		return err
	}
	say("Apache Kafka is there")
	return nil
}

// run runs the proofs. The last lines of what it prints, and those of its error, say what failed: often nobody sees more.
func run(ctx context.Context, o options) (err error) {
	if o.instances < 1 || o.copiers < 1 || o.length <= 0 {
		return errors.New("there is nothing to run without an instance, a copier and a time")
	}
	if err := errors.Join(os.RemoveAll(o.dir), os.MkdirAll(o.dir, 0o755)); err != nil {
		return err
	}
	say("%s, seed %d (old clients: %t, assigned partitions: %t), %s of faults for each proof", o.system, o.seed, o.old, o.assigned, o.length)
	j, err := openJava(ctx, o.old)
	if err != nil {
		return err
	}
	say("the programs are there")
	if o.system == "millrace" && o.binary == "" {
		o.binary = filepath.Join(o.dir, "binary")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "github.com/millrace/millrace/cmd/millrace")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build millrace: %w\n%s", err, out)
		}
		say("millrace is built")
	}
	s, err := openSystem(ctx, o, o.dir)
	if err != nil {
		return err
	}
	closed := sync.OnceValue(s.close)
	defer func() { err = errors.Join(err, closed()) }()
	say("the brokers are up")
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
		v.name = p.name
		if err != nil {
			v.complain("%v", err)
		} else {
			for _, err := range s.dead() {
				v.complain("%v", err)
			}
		}
		v.print(time.Since(began))
		if len(v.failures) > 0 {
			failed++
			for _, line := range lastErrors(o.dir, linesOfErrors) {
				say("%s", line)
			}
		}
		if err != nil {
			break // what was not done leaves the brokers in no known state
		}
	}
	if ran == 0 {
		return fmt.Errorf("no proof %q: streams or copier", o.only)
	}
	if failed > 0 {
		return fmt.Errorf("FAILED: %d of %d proofs with seed %d (old clients: %t, assigned partitions: %t); what was printed is in %s", failed, ran, o.seed, o.old, o.assigned, o.dir)
	}
	// Brokers that run make new files in folders that are being removed.
	if err := closed(); err != nil {
		return err
	}
	return os.RemoveAll(o.dir)
}

// Bounds of what is printed about a failure.
const (
	linesOfFailures = 20
	linesOfErrors   = 3
	widthOfAnError  = 200
)

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

// Bounds of the waits of a proof, which a slow machine does not reach: what they end is a hang. The work goes on for as long as it takes, unless
// nothing comes of it any more. A transaction of a program that was killed is aborted after its timeout, ten seconds, and the interval in which
// that is looked for.
const (
	untilBegun = 5 * time.Minute // the first record of programs that were just started
	untilStill = 2 * time.Minute // without one more record, while some are missing
	untilFree  = 2 * time.Minute // no transaction is open
	untilEnded = 2 * time.Minute // a program that was told to end
	untilRead  = 2 * time.Minute // a topic, whole
)

// expect waits until count has come to n, for as long as it grows. More than n is for the judges.
func (v *verdict) expect(ctx context.Context, count *atomic.Int64, n int, what string) {
	if err := grown(ctx, count, n, untilStill); err != nil {
		v.complain("%d of %d %s, %v", count.Load(), n, what, err)
	}
}

// grown waits until count has come to n; it is an error when it stands still for so long before, or ctx ends.
func grown(ctx context.Context, count *atomic.Int64, n int, still time.Duration) error {
	last, since := int64(-1), time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		now := count.Load()
		switch {
		case now >= int64(n):
			return nil
		case now != last:
			last, since = now, time.Now()
		case time.Since(since) >= still:
			return fmt.Errorf("and none for %s", still)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
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
	say("%s: %s in %s, %d brokers and %d programs killed; %s", v.name, state, took.Round(time.Second), v.brokers, v.programs, strings.Join(v.remarks, "; "))
	for i, f := range v.failures {
		if i == linesOfFailures {
			say("%s: and %d more", v.name, len(v.failures)-i)
			break
		}
		say("%s: failed: %s", v.name, f)
	}
}

var processBegan = time.Now()

// say tells on stderr how far things are, with the seconds since the beginning.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs "+format+"\n", append([]any{time.Since(processBegan).Seconds()}, args...)...)
}
