package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/millrace/millrace/integration/cluster"
)

// bench is one run of the command.
type bench struct {
	binary, keep   string
	partitions     int
	topics         int
	rounds         int
	ballastMiB     int
	length, settle time.Duration
	step           time.Duration
	rates          []int // of commits
	kills, groups  int
	each, produced int // offsets by each request, records a second beside them
	turns          int // of each rate of commits, with none in between
	offsets        int
	// snapshotEntries is millrace.metadata.snapshot.entries while offsets are measured.
	snapshotEntries int
	set, env        []string
	together        bool
	verbose         bool
	clientLog       bool

	rows   []row
	missed int
}

// row is one figure with its goal, "" for one that is only told.
type row struct{ what, got, goal, judged string }

// parts are what can be measured, in the order in which they run.
var parts = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"partitions", (*bench).measurePartitions},
	{"move", (*bench).measureMove},
	{"stop", (*bench).measureStops},
	{"first", (*bench).measureFirst},
	{"commits", (*bench).measureCommits},
	{"coordinator", (*bench).measureCoordinator},
	{"connections", (*bench).measureConnections},
	{"groups", (*bench).measureGroups},
	{"offsets", (*bench).measureOffsets},
}

func main() {
	if order := os.Getenv(producerVariable); order != "" {
		if err := produceApart(order); err != nil {
			fmt.Fprintln(os.Stderr, "scale: producer:", err)
			os.Exit(1)
		}
		return
	}
	b := bench{}
	var set, env, rates string
	flag.StringVar(&b.binary, "binary", "", "the millrace to run; built from here when empty")
	flag.StringVar(&b.keep, "keep", filepath.Join(os.TempDir(), "millrace-scale"), "folder for data and output, removed afterwards")
	flag.IntVar(&b.partitions, "n", 10_000, "partitions of the first part")
	flag.IntVar(&b.topics, "topics", 0, "1 or 100: only so many topics in the first part; 0: both")
	flag.DurationVar(&b.settle, "settle", 130*time.Second, "how long garbage may take to be given back; the runtime collects an idle heap every two minutes")
	flag.IntVar(&b.ballastMiB, "ballast", 400, "MiB that lie in the partitions before the fourth broker joins")
	flag.IntVar(&b.rounds, "rounds", 10, "planned stops, and new clusters")
	flag.DurationVar(&b.length, "length", 20*time.Second, "how long the move's load is measured before the fourth broker joins")
	flag.DurationVar(&b.step, "step", 6*time.Second, "how long each turn of a rate of offset commits, and of none, is measured")
	flag.IntVar(&b.turns, "turns", 5, "how often each rate of offset commits is measured, in turns with none")
	flag.IntVar(&b.offsets, "offsets", 1_000_000, "offsets that are stored")
	flag.IntVar(&b.snapshotEntries, "snapshotentries", 400, "after how many entries brokers take snapshots while offsets are measured")
	flag.StringVar(&rates, "rates", "1000,2500,5000,10000,15000,20000,-1", "offset commits asked for in a second; -1: as fast as they are answered")
	flag.IntVar(&b.each, "each", 4, "offsets that a member commits by one request, 1 to 4; consumers commit all partitions they read at once, here four, and Kafka counts offsets")
	flag.IntVar(&b.produced, "produced", 500, "records a second, each of them a batch, that are produced beside offset commits")
	flag.IntVar(&b.kills, "kills", 3, "how often a coordinator is killed, and how many members join a large group")
	flag.IntVar(&b.groups, "groups", 1000, "groups of three that rest")
	flag.StringVar(&set, "set", "", "broker settings for all parts, key=value,key=value")
	flag.StringVar(&env, "env", "", "variables of the brokers' environment, key=value,key=value")
	flag.BoolVar(&b.together, "together", false, "have the producers beside offset commits in the members' process, as up to 2026-11-30")
	flag.BoolVar(&b.verbose, "v", false, "print what is done")
	flag.BoolVar(&b.clientLog, "clientlog", false, "print what the client of a first topic logs")
	flag.Parse()
	b.set, b.env = list(set), list(env)
	if b.each < 1 || b.each > 4 || b.produced < 1 || b.turns < 1 {
		fmt.Fprintln(os.Stderr, "scale: -each is 1 to 4, as each of a group's three members reads four partitions of twelve, and -produced and -turns at least 1")
		os.Exit(2)
	}
	for _, r := range list(rates) {
		n, err := strconv.Atoi(r)
		if err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
			os.Exit(2)
		}
		b.rates = append(b.rates, n)
	}
	code, err := b.command(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		code = 1
	}
	os.Exit(code)
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func (b *bench) command(names []string) (code int, err error) {
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p struct {
			name string
			run  func(*bench, context.Context) error
		}) bool {
			return p.name == name
		}) {
			return 2, fmt.Errorf("there is no part %q", name)
		}
	}
	if !cluster.InSandbox() && b.binary == "" {
		dir, err := os.MkdirTemp("", "millrace-scale-binary-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		b.binary = filepath.Join(dir, "millrace")
		if out, err := exec.Command("go", "build", "-o", b.binary, "github.com/millrace/millrace/cmd/millrace").CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build millrace: %w\n%s", err, out)
		}
		os.Args = slices.Insert(os.Args, 1, "-binary", b.binary)
	}
	if code, ended, err := cluster.Sandbox(); ended || err != nil {
		return code, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := os.MkdirAll(b.keep, 0o755); err != nil {
		return 1, err
	}
	var errs []error
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		if err := p.run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"figure", "measured", "goal", ""})
	for _, r := range b.rows {
		w.AppendRow(table.Row{r.what, r.got, r.goal, r.judged})
	}
	fmt.Println(w.Render())
	if err := errors.Join(errs...); err != nil {
		return 1, err
	}
	if b.missed > 0 {
		return 1, nil
	}
	return 0, nil
}

// tell notes a figure without a goal.
func (b *bench) tell(what, format string, args ...any) {
	r := row{what: what, got: fmt.Sprintf(format, args...)}
	b.rows = append(b.rows, r)
	b.logf("%s: %s", r.what, r.got)
}

// judge notes a figure and whether it reaches its goal.
func (b *bench) judge(what string, ok bool, goal, format string, args ...any) {
	r := row{what: what, got: fmt.Sprintf(format, args...), goal: goal, judged: "✔"}
	if !ok {
		r.judged = "missed"
		b.missed++
	}
	b.rows = append(b.rows, r)
	b.logf("%s: %s (goal %s) %s", r.what, r.got, r.goal, r.judged)
}

// logf prints a line of progress.
func (b *bench) logf(format string, args ...any) {
	if b.verbose {
		fmt.Fprintf(os.Stderr, "  %s %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
	}
}

// open starts a cluster of three brokers in a folder of its own.
func (b *bench) open(ctx context.Context, name string, set ...string) (*cluster.Cluster, error) {
	dir := filepath.Join(b.keep, name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	// An empty GOMAXPROCS is none, so that brokers decide for themselves: the fault runs set it.
	c, err := cluster.Open(cluster.Config{Binary: b.binary, Dir: dir, Set: append(append([]string{"auto.create.topics.enable=false"}, b.set...), set...), Env: append([]string{"GOMAXPROCS="}, b.env...)})
	if err != nil {
		return nil, err
	}
	start, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.Start(start); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// patience bounds every wait for a state.
const patience = 60 * time.Second

// end closes a cluster and removes its data, unless something failed.
func (b *bench) end(c *cluster.Cluster, name string, err *error) {
	if e := c.Close(); *err == nil {
		*err = e
	}
	if *err == nil {
		*err = os.RemoveAll(filepath.Join(b.keep, name))
	}
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// until tries fn until it succeeds.
func until(ctx context.Context, d, every time.Duration, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if pause(ctx, every) != nil {
			return err
		}
	}
}
