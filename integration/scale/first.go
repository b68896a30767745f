package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clientOptions are those that the flags ask for.
func (b *bench) clientOptions() (opts []kgo.Opt) {
	if b.clientLog {
		opts = append(opts, kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelDebug, func() string { return time.Now().Format("15:04:05.000 ") })))
	}
	return opts
}

// measureFirst forms clusters, creates the first topic of each, and writes to it at once.
func (b *bench) measureFirst(ctx context.Context) error {
	var firsts, gaps []time.Duration
	for i := range b.rounds {
		first, gap, err := b.firstTopic(ctx)
		if err != nil {
			return err
		}
		b.logf("new cluster %d: first acknowledgement %s after the topic was asked for, longest gap %s", i+1, first.Round(time.Millisecond), gap.Round(time.Millisecond))
		firsts, gaps = append(firsts, first), append(gaps, gap)
	}
	slices.Sort(firsts)
	slices.Sort(gaps)
	const goal = 500 * time.Millisecond
	b.judge(fmt.Sprintf("a new cluster's first topic, %d times: CreateTopics to the first acknowledgement of all partitions, median and worst", b.rounds),
		firsts[len(firsts)-1] <= goal, "≤ 500 ms", "%s and %s", firsts[len(firsts)/2].Round(time.Millisecond), firsts[len(firsts)-1].Round(time.Millisecond))
	b.judge("longest gap in the 4 s that follow, median and worst", gaps[len(gaps)-1] <= goal, "≤ 500 ms", "%s and %s", gaps[len(gaps)/2].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond))
	return nil
}

func (b *bench) firstTopic(ctx context.Context) (first, gap time.Duration, err error) {
	c, err := b.open(ctx, "first")
	if err != nil {
		return 0, 0, err
	}
	defer b.end(c, "first", &err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	if err != nil {
		return 0, 0, err
	}
	defer cl.Close()
	const partitions = 6
	began := time.Now()
	if err := create(ctx, cl, []string{"first"}, partitions, 3); err != nil {
		return 0, 0, err
	}
	created := time.Since(began)
	var l load
	end, err := l.start(c.Seeds(), "first", partitions, 5*time.Millisecond, 100, b.clientOptions()...)
	if err != nil {
		return 0, 0, err
	}
	defer end()
	err = until(ctx, patience, time.Millisecond, func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.sent) < partitions {
			return fmt.Errorf("%d of %d partitions have acknowledged", len(l.sent), partitions)
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	first = time.Since(began)
	b.logf("created after %s", created.Round(time.Millisecond))
	l.forgetGaps()
	if err := pause(ctx, 4*time.Second); err != nil {
		return 0, 0, err
	}
	if errs := l.failed(); len(errs) > 0 {
		return 0, 0, errs[0]
	}
	return first, l.gap(nil), nil
}
