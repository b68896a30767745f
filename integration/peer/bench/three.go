package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The rows that are measured apart from the cells.
const (
	rowStartThree = "start of three, from nothing to the first acknowledged record"
	rowKill       = "kill/a leader of partitions"
	rowKillBoth   = "kill/a leader of partitions and of the metadata"
)

// manyPartitions is what a topic of many partitions has, and fewPartitions the one that it is compared with.
const (
	manyPartitions = 1000
	fewPartitions  = 6
)

// threeBrokers are the rows of three brokers: RF 3, min.insync.replicas 2, acks=all.
func (b *bench) threeBrokers() (list []cell) {
	duration := time.Duration(b.seconds * float64(time.Second)).String()
	produce := func(kind string, size, partitions int, vs ...variant) {
		for _, c := range clients {
			args := append([]string{"produce", "--record-size", strconv.Itoa(size), "--acks", "all", "--duration", duration}, c.args...)
			if c.raw {
				args = append(args, "--connections", strconv.Itoa(b.brokers)) // one to each leader
			}
			list = append(list, cell{name: rowThree(kind, size, partitions, c.name), kind: "produce", partitions: partitions, reuse: kind == "partitions", variants: vs, args: args})
		}
	}
	for _, size := range []int{100, 1024} {
		produce("produce", size, fewPartitions, synced, unsynced, kafka)
	}
	list = append(list, b.endToEnd([]variant{synced, unsynced, kafka})...)
	list = append(list, b.transactionRows()...)
	for _, partitions := range []int{fewPartitions, manyPartitions} {
		if b.quick {
			produce("partitions", 100, partitions, synced, unsynced)
		} else {
			produce("partitions", 100, partitions, synced, unsynced, kafka)
		}
	}
	return list
}

// rowThree is the name of a row of three brokers that produces.
func rowThree(kind string, size, partitions int, client string) string {
	return fmt.Sprintf("%s/%dB/p%d/%s", kind, size, partitions, client)
}

// roundOfThree measures everything at the brokers of one system, then at those of the other: two clusters of three would
// share the machine's memory. Every round begins with another system.
func (b *bench) roundOfThree(ctx context.Context, round int) error {
	for i := range b.systems {
		which := (i + round) % len(b.systems)
		if err := b.threeAt(ctx, which, round); err != nil {
			return fmt.Errorf("%s: %w", variants[variantOf(which)].name, err)
		}
	}
	return nil
}

func (b *bench) threeAt(ctx context.Context, which, round int) error {
	cells := slices.DeleteFunc(slices.Clone(b.cells()), func(c cell) bool {
		return !slices.ContainsFunc(c.variants, func(v variant) bool { return variants[v].system == which })
	})
	kills := b.killRows()
	if len(cells) == 0 && len(kills) == 0 {
		return nil
	}
	took, idle, err := b.open(ctx, which)
	if err != nil {
		return err
	}
	s, v := b.systems[which], variantOf(which)
	b.results.add(rowStartThree, v, "ms", float64(took.Microseconds())/1e3)
	b.results.add("memory idle", v, "MiB", idle)
	say("%s: first acknowledged record after %s, idle at %.0f MiB", s.name, took.Round(time.Millisecond), idle)
	if len(cells) > 0 {
		if err := b.warmThree(ctx, s, cells); err != nil {
			return err
		}
		if err := b.fillIsolation(ctx, s, cells); err != nil {
			return err
		}
	}
	for _, c := range cells {
		for i := range c.variants {
			v := c.variants[(i+round)%len(c.variants)]
			if variants[v].system != which {
				continue
			}
			if err := b.measureAt(ctx, c, v); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	if slices.ContainsFunc(cells, func(c cell) bool { return slices.Contains(c.variants, kafka) }) { // both carried the same load
		peak, err := s.memory("VmHWM")
		if err != nil {
			return err
		}
		b.results.add("memory under load", v, "MiB", peak)
	}
	if err := b.kills(ctx, s, v, kills); err != nil {
		return err
	}
	return b.end(which)
}

// firstRecord creates a topic once all brokers may hold a replica, sends a record to it, and returns the time from the
// first process to its acknowledgement.
func (s *system) firstRecord(ctx context.Context) (time.Duration, error) {
	if err := s.create(ctx, "first", fewPartitions, nil); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.client.ProduceSync(ctx, &kgo.Record{Topic: "first", Value: []byte("first")}).FirstErr(); err != nil {
		return 0, fmt.Errorf("produce the first record at %s: %w", s.name, err)
	}
	return time.Since(s.started), nil
}

// Bounds of the warming: of its time, and of the share of the brokers' CPU time that compilers may still take.
const (
	warmAtMost    = 100 * time.Second
	warmAllLong   = 2 * warmAtMost // for all rows
	compilerShare = 0.1
)

// warmThree sends and reads until the JVMs have compiled their hot paths, those of followers too, or a time is over.
// Three of them share the cores with their own compilers: after half a minute these still take 40 % of their CPU time.
// Ours has nothing to compile, and gets one turn.
func (b *bench) warmThree(ctx context.Context, s *system, cells []cell) error {
	began, most := time.Now(), warmAtMost
	if !b.quick {
		most = warmAllLong
	}
	turns := [][]string{
		{"produce", "--raw", "--connections", "3", "--batch-size", "16384"}, {"produce"},
		{"produce", "--raw", "--connections", "3", "--record-size", "1024", "--batch-size", "16384"}, {"produce", "--record-size", "1024"}, {"e2e", "--throughput", "3000", "--warm-up", "500ms"},
	}
	transactions := [][]string{append(b.transactionArgs(), "--protocol", "1"), append(b.transactionArgs(), "--protocol", "2")}
	isTransaction := func(c cell) bool { return c.kind == "txn" || c.kind == "isolation" }
	switch {
	case !slices.ContainsFunc(cells, isTransaction):
	case !slices.ContainsFunc(cells, func(c cell) bool { return !isTransaction(c) }):
		turns = transactions // nothing else is to be measured
	default:
		turns = append(turns, transactions...)
	}
	for i := range turns {
		if err := s.create(ctx, fmt.Sprintf("warm-%d", i), fewPartitions, nil); err != nil {
			return err
		}
	}
	seconds := 5 * time.Second
	if s.name != "kafka" {
		seconds = time.Second
	}
	for {
		var all, compilers time.Duration
		for i, args := range turns {
			before := s.compilers()
			o, err := s.drive(ctx, b.binary, append(slices.Clone(args), "-t", fmt.Sprintf("warm-%d", i), "--duration", seconds.String())...)
			if err != nil {
				return err
			}
			all, compilers = all+o.cpu, compilers+s.compilers()-before
		}
		share := compilers.Seconds() / all.Seconds()
		say("%s: warmed for %s, compilers take %.0f%% of the CPU", s.name, time.Since(began).Round(time.Second), 100*share)
		if s.name != "kafka" || share < compilerShare || time.Since(began)+time.Duration(len(turns))*seconds > most {
			if s.name == "kafka" {
				b.results.add("warmed", kafka, compilersMetric, 100*share)
			}
			break
		}
	}
	for i := range turns {
		if err := s.remove(ctx, fmt.Sprintf("warm-%d", i)); err != nil {
			return err
		}
	}
	return settle(ctx)
}

// compilers is the CPU time of the threads that compile, in all brokers so far, to 10 ms.
func (s *system) compilers() (sum time.Duration) {
	for _, b := range s.brokers {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", b.Pid()))
		for _, task := range tasks {
			stat, _ := os.ReadFile(task)
			// id (name) state … utime and stime, the 12th and 13th behind the name
			_, rest, ok := strings.Cut(string(stat), "CompilerThre")
			if f := strings.Fields(rest[strings.Index(rest, ")")+1:]); ok && len(f) > 12 {
				for _, ticks := range f[11:13] {
					n, _ := strconv.ParseInt(ticks, 10, 64)
					sum += time.Duration(n) * 10 * time.Millisecond
				}
			}
		}
	}
	return sum
}
