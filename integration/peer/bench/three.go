package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The rows that are measured apart from the cells.
const (
	rowStartThree = "start of three, from nothing to the first acknowledged record"
	rowKill       = "kill -9 of a leader"
	rowKillBoth   = "kill -9 of a leader that leads the metadata too"
)

// manyPartitions is what a topic of many partitions has, and fewPartitions the one that it is compared with.
const (
	manyPartitions = 1000
	fewPartitions  = 6
)

// threeBrokers are the rows of three brokers: RF 3, min.insync.replicas 2, acks=all.
func (b *bench) threeBrokers() (list []cell) {
	duration := time.Duration(b.seconds * float64(time.Second)).String()
	produce := func(size, partitions int, vs ...variant) {
		for _, c := range clients {
			args := append([]string{"produce", "--record-size", strconv.Itoa(size), "--acks", "all", "--duration", duration}, c.args...)
			if c.raw {
				args = append(args, "--connections", strconv.Itoa(b.brokers)) // one to each leader
			}
			list = append(list, cell{name: produceRow(size, partitions, c.name), kind: "produce", partitions: partitions, reuse: partitions == manyPartitions, variants: vs, args: args})
		}
	}
	for _, size := range []int{100, 1024} {
		produce(size, fewPartitions, synced, unsynced, kafka)
	}
	if b.quick {
		produce(100, manyPartitions, synced, unsynced)
	} else {
		produce(100, manyPartitions, synced, unsynced, kafka)
	}
	return append(list, b.endToEnd([]variant{synced, unsynced, kafka})...)
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
	took, idle, err := b.open(ctx, which)
	if err != nil {
		return err
	}
	s, v := b.systems[which], variantOf(which)
	b.results.add(rowStartThree, v, "ms", float64(took.Microseconds())/1e3)
	b.results.add("memory idle", v, "MiB", idle)
	say("%s: first acknowledged record after %s, idle at %.0f MiB", s.name, took.Round(time.Millisecond), idle)
	cells := b.cells()
	if len(cells) > 0 {
		if err := b.warmThree(ctx, s); err != nil {
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
	if len(cells) == len(b.threeBrokers()) {
		peak, err := s.memory("VmHWM")
		if err != nil {
			return err
		}
		b.results.add("memory under load", v, "MiB", peak)
	}
	if err := b.kills(ctx, s, v); err != nil {
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

// warmThree lets the JVMs compile their hot paths, those of followers too. Three of them share the cores with their own
// compilers: their rates still grow after half a minute. Ours has nothing to compile.
func (b *bench) warmThree(ctx context.Context, s *system) error {
	seconds := 1 * time.Second
	if s.name == "kafka" {
		seconds *= 8
	}
	for i, args := range [][]string{
		{"produce", "--raw", "--connections", "3", "--batch-size", "16384"}, {"produce"},
		{"produce", "--raw", "--connections", "3", "--record-size", "1024"}, {"e2e", "--throughput", "3000", "--warm-up", "500ms"},
	} {
		topic := fmt.Sprintf("warm-%d", i)
		if err := s.create(ctx, topic, fewPartitions, nil); err != nil {
			return err
		}
		o, err := s.drive(ctx, b.binary, append(args, "-t", topic, "--duration", seconds.String())...)
		if err != nil {
			return err
		}
		say("%s: warmed with %s, others %.0f%%", s.name, strings.Join(args, " "), o.others)
		if err := s.remove(ctx, topic); err != nil {
			return err
		}
	}
	return settle(ctx)
}
