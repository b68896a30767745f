// Command gate measures what three brokers acknowledge with the default promise: each record is on the disks of all
// in-sync replicas, replication factor 3, min.insync.replicas 2, acks=all. Brokers and client share this machine; all
// three write to its one disk. The values are random bytes, so that nothing on the way can shrink them. It is what
// `just gate` runs, and it fails when the row that counts stays below its goal.
//
// Beside the rates it says where the work goes: CPU per record of each broker, syncs per thousand records, system calls
// with -strace, and stacks with -perf (perf and strace must be there). File broker.go reads that of a process.
//
// Invariants: only processes that were started here are signalled; the directory is removed at the end unless it was
// given with -dir.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
)

// goal is what the row that counts must reach, records a second.
const goal = 100_000

// A row is one way to send.
type row struct {
	name   string
	counts bool // this one must reach the goal
	args   []string
}

// rows are the ways to send: a client as people use it, and encoded requests sent again and again, which cost next to
// nothing and leave the machine to the brokers.
var rows = []row{
	{"client, batches of 1 MB", true, nil},
	{"client, batches of 16 KiB", false, []string{"--batch-size", "16384"}},
	{"client, 100,000 a second", false, []string{"--throughput", strconv.Itoa(goal)}},
	{"raw, batches of 1 MB", false, []string{"--raw", "--connections", "3"}},
	{"raw, batches of 16 KiB", false, []string{"--raw", "--connections", "3", "--batch-size", "16384"}},
}

// options are the flags.
type options struct {
	binary, dir, perf   string
	strace              bool
	only                *regexp.Regexp
	rounds, partitions  int
	recordSize          int
	seconds             float64
	brokerSet, topicSet string
}

func main() {
	var o options
	flag.StringVar(&o.binary, "millrace", "", "the millrace `BINARY` to measure; more of them, with commas, are measured in turn (default: build the tree)")
	flag.StringVar(&o.dir, "dir", "", "where the brokers keep their data (default: a temporary directory)")
	flag.StringVar(&o.perf, "perf", "", "record stacks of each broker into files of this `DIR`")
	flag.BoolVar(&o.strace, "strace", false, "count the system calls of each broker; it slows them down")
	only := flag.String("only", "", "measure only the rows whose name this `REGEX` finds")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of every row")
	flag.IntVar(&o.partitions, "partitions", 6, "partitions of the topic")
	flag.IntVar(&o.recordSize, "record-size", 100, "`BYTES` of a record's value")
	flag.Float64Var(&o.seconds, "seconds", 3, "length of one measurement")
	flag.StringVar(&o.brokerSet, "set", "", "settings of the brokers, KEY=VALUE with commas")
	flag.StringVar(&o.topicSet, "topic-set", "", "settings of the topic, KEY=VALUE with commas")
	flag.Parse()
	o.only = regexp.MustCompile(*only)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	met, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
	}
	if err != nil || !met {
		os.Exit(1)
	}
}

// run measures everything and prints the table.
func run(ctx context.Context, o options) (met bool, err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "millrace-gate-"); err != nil {
			return false, err
		}
		defer os.RemoveAll(o.dir)
	}
	for _, dir := range []string{o.dir, o.perf} {
		if dir != "" {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return false, err
			}
		}
	}
	if o.binary == "" {
		o.binary = filepath.Join(o.dir, "millrace")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", o.binary, "./cmd/millrace")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return false, fmt.Errorf("build millrace: %w\n%s", err, out)
		}
	}
	payload := filepath.Join(o.dir, "payload")
	if err := writePayload(payload, o.recordSize); err != nil {
		return false, err
	}
	results := map[string][]result{} // by binary and row
	binaries := strings.Split(o.binary, ",")
	for round := range o.rounds {
		for i := range binaries {
			at := (i + round) % len(binaries)
			if err := measureCluster(ctx, o, binaries[at], payload, func(r row, got result) {
				key := fmt.Sprint(at, r.name)
				results[key] = append(results[key], got)
				fmt.Fprintf(os.Stderr, "%-28s %s\n", r.name, got)
			}); err != nil {
				return false, err
			}
		}
	}
	met = true
	for at, binary := range binaries {
		if len(binaries) > 1 {
			fmt.Printf("%s\n", filepath.Base(binary))
		}
		fmt.Printf("| %-26s | k records/s | p50 ms | p99 ms | broker CPU µs/record | syncs per 1000 records |\n|---|---|---|---|---|---|\n", "row")
		for _, r := range rows {
			all := results[fmt.Sprint(at, r.name)]
			if len(all) == 0 {
				continue
			}
			rates := pick(all, func(r result) float64 { return r.rate })
			fmt.Printf("| %-26s | %.0f [%.0f, %.0f] | %.1f | %.1f | %.2f | %.2f |\n", r.name, median(rates)/1e3, slices.Min(rates)/1e3, slices.Max(rates)/1e3,
				median(pick(all, func(r result) float64 { return r.p50 })), median(pick(all, func(r result) float64 { return r.p99 })),
				median(pick(all, func(r result) float64 { return r.cpu })), median(pick(all, func(r result) float64 { return r.syncs })))
			if r.counts && median(rates) < goal {
				fmt.Printf("the goal of %d records/s is missed\n", goal)
				met = false
			}
		}
	}
	return met, nil
}

func pick(all []result, of func(result) float64) []float64 {
	var out []float64
	for _, r := range all {
		out = append(out, of(r))
	}
	return out
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// writePayload makes values of random bytes but the line feed, one a line.
func writePayload(path string, size int) error {
	random := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for range 1 << 14 {
		for range size {
			if c := byte(random.UintN(255)); c != '\n' {
				b.WriteByte(c)
			} else {
				b.WriteByte(255)
			}
		}
		b.WriteByte('\n')
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// result is one measurement: records a second, latencies in ms, CPU of all brokers in µs a record, syncs per thousand.
type result struct {
	rate, p50, p99, cpu, syncs float64
	each                       []float64 // cpu of each broker
}

func (r result) String() string {
	return fmt.Sprintf("%7.0f k/s  p50 %.1f p99 %.1f ms  %.2f µs a record (%.2f)  %.2f syncs a thousand", r.rate/1e3, r.p50, r.p99, r.cpu, r.each, r.syncs)
}

// measureCluster starts three brokers on empty directories and measures each row once.
func measureCluster(ctx context.Context, o options, binary, payload string, tell func(row, result)) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	dir := filepath.Join(o.dir, "cluster")
	// GOMAXPROCS empty: each broker decides for itself, as one that somebody starts.
	cfg := cluster.Config{Binary: binary, Dir: dir, Env: []string{"GOMAXPROCS="}}
	if o.brokerSet != "" {
		cfg.Set = append(cfg.Set, strings.Split(o.brokerSet, ",")...)
	}
	c, err := cluster.Open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(), os.RemoveAll(dir)) }()
	if err := c.Start(ctx); err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	for i, r := range rows {
		if !o.only.MatchString(r.name) {
			continue
		}
		topic := fmt.Sprintf("gate-%d", i)
		if err := createTopic(ctx, adm, o, topic); err != nil {
			return err
		}
		got, err := o.measure(ctx, c, binary, topic, append([]string{"--payload-file", payload, "--duration", time.Duration(o.seconds * float64(time.Second)).String()}, r.args...))
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		tell(r, got)
		if _, err := adm.DeleteTopic(ctx, topic); err != nil {
			return fmt.Errorf("delete topic %s: %w", topic, err)
		}
	}
	return nil
}

// createTopic makes the topic and waits until every partition has a leader that serves.
func createTopic(ctx context.Context, adm *kadm.Client, o options, topic string) error {
	configs := map[string]*string{"min.insync.replicas": kadm.StringPtr("2"), "file.delete.delay.ms": kadm.StringPtr("1000")}
	if o.topicSet != "" {
		for kv := range strings.SplitSeq(o.topicSet, ",") {
			k, v, _ := strings.Cut(kv, "=")
			configs[k] = &v
		}
	}
	if _, err := adm.CreateTopic(ctx, int32(o.partitions), 3, configs, topic); err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	for {
		if offsets, err := adm.ListEndOffsets(ctx, topic); err == nil && offsets.Error() == nil && len(offsets[topic]) == o.partitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("topic %s gets no leaders: %w", topic, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// measure runs `millrace bench produce` and reads what the brokers did meanwhile.
func (o options) measure(ctx context.Context, c *cluster.Cluster, binary, topic string, args []string) (result, error) {
	before, err := readBrokers(ctx, c)
	if err != nil {
		return result{}, err
	}
	stop := o.watch(ctx, c, topic)
	cmd := exec.CommandContext(ctx, binary, append([]string{"bench", "produce", "-t", topic, "--acks", "all", "-b", strings.Join(c.Seeds(), ","), "--format", "json", "--quiet"}, args...)...)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	err = cmd.Run()
	stop()
	if err != nil {
		return result{}, fmt.Errorf("millrace bench: %w\n%s", err, talk.String())
	}
	after, err := readBrokers(ctx, c)
	if err != nil {
		return result{}, err
	}
	var bench struct {
		Records   float64 `json:"records"`
		PerSecond float64 `json:"records_per_second"`
		Latency   struct {
			P50 float64 `json:"p50_ms"`
			P99 float64 `json:"p99_ms"`
		} `json:"latency"`
	}
	if err := json.Unmarshal(out.Bytes(), &bench); err != nil {
		return result{}, fmt.Errorf("read what millrace bench printed: %w", err)
	}
	if bench.Records == 0 {
		return result{}, errors.New("nothing was acknowledged")
	}
	r := result{rate: bench.PerSecond, p50: bench.Latency.P50, p99: bench.Latency.P99}
	for i := range before {
		cpu := float64(after[i].cpu-before[i].cpu) / 1e3 / bench.Records
		r.each = append(r.each, cpu)
		r.cpu += cpu
		r.syncs += (after[i].syncs - before[i].syncs) / bench.Records * 1000
	}
	return r, nil
}

// watch starts what -perf and -strace ask for at each broker, and returns a function that ends it.
func (o options) watch(ctx context.Context, c *cluster.Cluster, topic string) (stop func()) {
	var started []*exec.Cmd
	start := func(name string, args ...string) {
		cmd := exec.CommandContext(ctx, name, args...)
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "gate:", err)
			return
		}
		started = append(started, cmd)
	}
	for _, n := range c.Nodes {
		pid, at := strconv.Itoa(n.Pid()), fmt.Sprintf("%s-%d", topic, n.Index)
		if o.perf != "" {
			start("perf", "record", "-q", "-o", filepath.Join(o.perf, at+".perf"), "-e", "cpu-clock", "-F", "1999", "-g", "-p", pid)
		}
		if o.strace {
			start("strace", "-q", "-c", "-f", "-p", pid, "-o", filepath.Join(o.dir, at+".strace"))
		}
	}
	return func() {
		for _, cmd := range started {
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait()
		}
	}
}
