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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/integration/cluster"
)

// options are the flags.
type options struct {
	tier, only, binary, keep, mutant, client string
	minutes                                  float64
	each                                     time.Duration
	seed                                     uint64
	brokers, memoryMiB, kills                int
	verbose, failover, mutants               bool
	transactional                            bool
}

func main() {
	var o options
	flag.StringVar(&o.tier, "tier", "", "t1: the smoke test of each merge")
	flag.StringVar(&o.only, "scenarios", "", "run these, such as S1,S4, instead of all in turn")
	flag.Float64Var(&o.minutes, "minutes", 0, "go on for that long; 0: each scenario once")
	flag.DurationVar(&o.each, "each", time.Minute, "length of the faults of one run")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the first run; 0: by chance")
	flag.IntVar(&o.brokers, "brokers", 3, "brokers of a cluster")
	flag.IntVar(&o.memoryMiB, "memory", 768, "cap of a broker's memory in MiB, where there are cgroups")
	flag.StringVar(&o.binary, "binary", "", "the millrace to run; built from here when empty")
	flag.StringVar(&o.keep, "keep", filepath.Join(os.TempDir(), "millrace-faults"), "folder for runs; failed ones stay")
	flag.BoolVar(&o.mutants, "mutants", false, "see that the checker notices brokers which break a rule")
	flag.StringVar(&o.mutant, "mutant", "", "have the brokers of a run break this rule")
	flag.BoolVar(&o.failover, "failover", false, "measure the gaps between acknowledgements instead")
	flag.StringVar(&o.client, "client", "kgo", "whose gaps -failover measures: kgo, librdkafka or java, the last two at their defaults")
	flag.IntVar(&o.kills, "kills", 20, "how many kills -failover makes")
	flag.BoolVar(&o.transactional, "transactions", true, "have producers and a group of the workload use transactions")
	flag.BoolVar(&o.verbose, "v", false, "print what is done")
	flag.Parse()
	code, err := command(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		code = 1
	}
	os.Exit(code)
}

func command(o options) (code int, err error) {
	if !cluster.InSandbox() {
		if o.binary == "" {
			dir, err := os.MkdirTemp("", "millrace-faults-binary-")
			if err != nil {
				return 1, err
			}
			defer os.RemoveAll(dir)
			if o.binary, err = build(dir, o.mutants || o.mutant != ""); err != nil {
				return 1, err
			}
			os.Args = append(os.Args, "-binary", o.binary)
		}
	}
	if code, ended, err := cluster.Sandbox(); ended || err != nil {
		return code, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := os.MkdirAll(o.keep, 0o755); err != nil {
		return 1, err
	}
	if !cluster.InSandbox() {
		fmt.Println("without root: no power cuts, no partitions, no disks of their own")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	if o.failover {
		return measureFailover(ctx, o)
	}
	list, err := o.choose()
	if err != nil {
		return 2, err
	}
	if o.mutants {
		return o.killMutants(ctx, list)
	}
	var t results
	until := time.Now().Add(time.Duration(o.minutes * float64(time.Minute)))
	for i := 0; ctx.Err() == nil; i++ {
		if i >= len(list) && time.Now().After(until) {
			break
		}
		s := list[i%len(list)]
		t.add(o.run(ctx, s, o.seed+uint64(i)))
	}
	t.print(os.Stdout)
	if ctx.Err() != nil {
		return 130, errors.New("interrupted")
	}
	if t.failed > 0 {
		return 1, nil
	}
	return 0, nil
}

// choose is the list of scenarios that the flags ask for.
func (o *options) choose() ([]*scenario, error) {
	all := scenarios
	switch o.tier {
	case "":
		if o.mutants {
			all = mutants
		}
	case "t1":
		all = tierOne
	default:
		return nil, fmt.Errorf("no tier %q", o.tier)
	}
	if o.only == "" {
		return all, nil
	}
	var out []*scenario
	for name := range strings.SplitSeq(o.only, ",") {
		at := slices.IndexFunc(all, func(s *scenario) bool { return strings.EqualFold(s.name, name) })
		if at < 0 {
			return nil, fmt.Errorf("no scenario %q", name)
		}
		out = append(out, all[at])
	}
	return out, nil
}

// build makes the binary under test.
func build(dir string, mutants bool) (string, error) {
	name := filepath.Join(dir, "millrace")
	args := []string{"build", "-o", name}
	if mutants {
		args = append(args, "-tags", "mutants")
	}
	if out, err := exec.Command("go", append(args, "github.com/millrace/millrace/cmd/millrace")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build millrace: %w\n%s", err, out)
	}
	return name, nil
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// run makes one run and returns its row.
func (o options) run(ctx context.Context, s *scenario, seed uint64) row {
	r := &run{options: o, name: s.name, seed: seed, random: newRandom(seed)}
	r.dir = filepath.Join(o.keep, fmt.Sprintf("%s-%d%s", s.name, seed, map[bool]string{true: "-mutant"}[o.mutant != ""]))
	began := time.Now()
	if err := os.RemoveAll(r.dir); err != nil {
		r.fail("%v", err)
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		r.fail("%v", err)
	}
	fmt.Printf("%s %s, seed %d, group failover %s\n", s.name, s.what, seed, failoverModes[seed%2])
	if s.brokers > 0 {
		r.brokers = s.brokers
	}
	r.topics, r.perTopic = topics, partitionsPerTopic
	if r.transactions = s.transactional || o.transactional && s.round != nil && !s.plain; r.transactions {
		r.topics = append(slices.Clone(topics), totals)
	}
	if s.late {
		r.topics, r.quiet = append(slices.Clone(r.topics), payments), []string{ledger}
	}
	r.impatient = s.impatient
	if s.perTopic > 0 {
		r.perTopic = s.perTopic
	}
	if r.groups = s.groups; s.round != nil && r.groups == nil {
		r.groups = usualGroups
	}
	length := o.each
	if s.length > 0 {
		length = s.length
	}
	report, err := r.execute(ctx, s, length)
	if err != nil {
		r.fail("%v", err)
	}
	w := row{scenario: s, seed: seed, faults: r.faults, report: report, failures: r.failures.list, took: time.Since(began), dir: r.dir}
	w.notes = r.notes
	if r.late != nil {
		w.notes = append(w.notes, r.late.notes()...)
	}
	for why := range r.skipped {
		w.skipped = append(w.skipped, why)
	}
	if w.ok() {
		_ = os.RemoveAll(r.dir)
	}
	w.print(os.Stdout)
	return w
}
